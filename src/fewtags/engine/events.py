"""Events that a run yields, for the command line, the report, or a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fewtags.objectives.base import Progress


@final
@dataclass(frozen=True)
class Started:
    """Training begins, or continues from a checkpoint.

    Attributes:
        epochs: all epochs of all stages.
        steps_per_epoch: batches per epoch (per process).
        resumed_from: the checkpoint folder; None for a new run.
        epoch: the next epoch.
    """

    epochs: int
    steps_per_epoch: int
    resumed_from: Path | None
    epoch: int


@final
@dataclass(frozen=True)
class EpochStarted:
    """An epoch begins; `diagnostics` are what the objective reports about its state."""

    epoch: int
    stage: str
    diagnostics: Mapping[str, float]


@final
@dataclass(frozen=True)
class StepEnded:
    """An optimiser step is done, and the objective has committed it.

    Attributes:
        at: batches done in the epoch.
        global_step: optimiser steps since training began, skipped ones included.
        applied: false if mixed precision skipped the step; then nothing was committed.
    """

    at: Progress
    global_step: int
    applied: bool


@final
@dataclass(frozen=True)
class EpochEnded:
    """An epoch is done.

    Attributes:
        record: one flat line of `metrics.jsonl`: epoch, stage, lr, seconds, cpu_seconds, `train/...` means of the logs,
            `state/...` diagnostics of the objective, `val/...` validation metrics.
        best: whether the weights are the best so far by the monitored metric.
    """

    record: Mapping[str, float | int | str]
    best: bool


@final
@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete on disk."""

    path: Path


@final
@dataclass(frozen=True)
class Ended:
    """Training is done.

    Attributes:
        epochs: number of epochs trained.
        best_epoch: epoch with the highest monitored metric; None if the metric was never known.
        best_value: its value.
    """

    epochs: int
    best_epoch: int | None
    best_value: float | None


@final
@dataclass(frozen=True)
class Noted:
    """A warning for the user during training.

    Attributes:
        text: the message.
    """

    text: str


Event = Noted | Started | EpochStarted | StepEnded | EpochEnded | Saved | Ended
