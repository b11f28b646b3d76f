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
    """Training begins, or continues from the checkpoint `resumed_from`; `epoch` is the next one, over all stages."""

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
    """An optimiser step is done.

    Attributes:
        at: batches done in the epoch.
        global_step: optimiser steps since training began, skipped ones included.
        applied: false if mixed precision skipped the step; then the objective has not committed it.
    """

    at: Progress
    global_step: int
    applied: bool


@final
@dataclass(frozen=True)
class EpochEnded:
    """An epoch is done.

    Attributes:
        record: one flat line of `metrics.jsonl`: epoch, stage, lr, seconds, cpu_seconds, `train/...` means of the
            logs, `state/...` diagnostics of the objective, `val/...` validation metrics.
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
    """Training is done; `best_epoch` has the highest monitored metric, None if the metric was never known."""

    epochs: int
    best_epoch: int | None
    best_value: float | None


@final
@dataclass(frozen=True)
class Noted:
    """A message for the user during training, by default a warning."""

    text: str
    warning: bool = True


Event = Noted | Started | EpochStarted | StepEnded | EpochEnded | Saved | Ended
