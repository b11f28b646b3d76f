"""What `fit` yields while it runs. The command line, the report and a notebook all consume these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fewtags.objectives.base import Progress


@final
@dataclass(frozen=True)
class Started:
    """Training begins, or goes on from a checkpoint.

    Attributes:
        epochs: all epochs of all stages.
        steps_per_epoch: batches per epoch (per process).
        resumed_from: the checkpoint folder, None for a fresh start.
        epoch: the epoch that comes next.
    """

    epochs: int
    steps_per_epoch: int
    resumed_from: Path | None
    epoch: int


@final
@dataclass(frozen=True)
class EpochStarted:
    """An epoch begins; `diagnostics` is what the objective reports of its state."""

    epoch: int
    stage: str
    diagnostics: Mapping[str, float]


@final
@dataclass(frozen=True)
class StepEnded:
    """An optimiser step is done, and the objective has committed.

    Attributes:
        at: the batches done of the epoch.
        global_step: optimiser steps done since training began, those that were skipped included.
        applied: false when mixed precision skipped the step; nothing was committed then.
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
        best: whether these weights are the best so far by the monitored metric.
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
        epochs: epochs trained in all.
        best_epoch: epoch with the highest monitored metric; None if nothing could be monitored.
        best_value: its value.
    """

    epochs: int
    best_epoch: int | None
    best_value: float | None


@final
@dataclass(frozen=True)
class Noted:
    """Something that whoever trains should know now.

    Attributes:
        text: in words.
    """

    text: str


Event = Noted | Started | EpochStarted | StepEnded | EpochEnded | Saved | Ended
