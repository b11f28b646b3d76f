"""The state of a `Fit`: where it is, its history, and how both are saved and restored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from accelerate import Accelerator
from torch import nn

from fewtags.engine.checkpoint import CheckpointFolder
from fewtags.engine.tensor_files import (
    load_part,
    load_pickled,
    load_tensors,
    save_checked,
    save_part,
    save_pickled,
    save_tensors,
)
from fewtags.errors import CheckpointError
from fewtags.files import write_text
from fewtags.objectives.base import Part

VALUES_OF_OLD_CHECKPOINTS = {"optimizer": "adam", "patience": "0", "fallback": "pessimistic_mAP"}
"""Values of settings that older checkpoints do not record."""


@final
@dataclass(kw_only=True)
class FitState:
    """Where the loop is; part of every checkpoint.

    Attributes:
        epoch: the current epoch, counted over all stages.
        step: batches done in it.
        global_step: optimiser steps done in all.
        sums: sums of the logs over the batches of the epoch.
        diagnostics: reported by the objective at the start of the epoch.
        history: a record of every epoch.
        best_epoch: epoch with the highest monitored metric, `best_value`; None if there is none.
    """

    epoch: int = 0
    step: int = 0
    global_step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float | int | str]] = field(default_factory=list)
    best_epoch: int | None = None
    best_value: float | None = None


@final
class FitStorage:
    """Saves and restores everything that a `Fit` changes, in the run folder `out`.

    `identity` must be equal when the run is resumed.
    """

    def __init__(
        self,
        out: Path,
        net: nn.Module,
        averaged: nn.Module | None,
        parts: Mapping[str, Part],
        accelerator: Accelerator,
        identity: Mapping[str, Any],
    ) -> None:
        self.out, self.folder = out, CheckpointFolder(out / "checkpoints")
        self.nets = {"net": net} | ({} if averaged is None else {"averaged": averaged})
        self.parts, self.accelerator, self.identity = parts, accelerator, identity

    def save(self, state: FitState, optimizer: Any) -> Path:
        """Write a checkpoint, by all processes together; `optimizer` is None while a head is solved."""
        accelerator, step = self.accelerator, state.global_step
        temporary = self.folder.temporary(step)
        if accelerator.is_main_process:
            self.folder.begin(step)
            for name, net in self.nets.items():
                save_tensors(temporary / f"{name}.safetensors", net.state_dict())
            extra = {"optimizer": {} if optimizer is None else optimizer.state_dict()}
            if accelerator.scaler is not None:
                extra["scaler"] = accelerator.scaler.state_dict()
            save_pickled(temporary / "optimizer.pt", extra)
        accelerator.wait_for_everyone()
        for name, part in self.parts.items():
            save_part(temporary / f"parts-{accelerator.process_index}", name, part.state_dict())
        accelerator.wait_for_everyone()
        path = self.folder.root / f"step-{step:09d}"
        if accelerator.is_main_process:
            path = self.folder.finish(step, {"state": asdict(state), **self.identity})
        accelerator.wait_for_everyone()
        return path

    def load(self, path: Path) -> FitState:
        """Restore the nets and the parts from a checkpoint, and return its state.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another run.
        """
        progress = CheckpointFolder.progress(path)
        for key, now in self.identity.items():
            if (saved := progress.get(key, VALUES_OF_OLD_CHECKPOINTS.get(key))) != now:
                raise CheckpointError(
                    f"{path} was written with {key} {saved}, this run has {now}; resume it with what it began with."
                )
        own = f"parts-{self.accelerator.process_index}/"
        self.folder.verify(path, progress, lambda file: file.startswith("parts-") and not file.startswith(own))
        for name, net in self.nets.items():
            _load_weights(net, path / f"{name}.safetensors")
        for name, part in self.parts.items():
            part.load_state_dict(load_part(path / f"parts-{self.accelerator.process_index}", name))
        return FitState(**progress["state"])

    def load_optimizer(self, path: Path, optimizer: Any) -> None:
        """Restore the gradient scaler, and the optimiser unless it is None."""
        extra = load_pickled(path / "optimizer.pt")
        if optimizer is not None:
            optimizer.load_state_dict(extra["optimizer"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(extra["scaler"])

    def write_history(self, state: FitState, best: nn.Module | None) -> None:
        """Write `metrics.jsonl`; and `best.safetensors` from the net of an epoch that is the best so far."""
        if self.accelerator.is_main_process:
            if best is not None:
                save_checked(self.out / "best.safetensors", best.state_dict())
            write_text(self.out / "metrics.jsonl", "".join(_json_line(record) for record in state.history))


def _load_weights(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} has the weights of another net than this run's: {reason[:300]}") from None


def _json_line(record: Mapping[str, float | int | str]) -> str:
    """Return a record as a line of JSON, in which a number that is not finite is null."""
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(values) + "\n"
