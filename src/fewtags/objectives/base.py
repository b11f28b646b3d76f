"""The one extension point: how a batch becomes a loss.

`step` reads and changes nothing; `commit` writes, and only after an optimiser step that really happened. All state is
in the parts that `setup` returns, and the loop checkpoints them. Schedules are functions of `Progress`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from fewtags.labels import Batch, LabelMatrix
from fewtags.stores.shard import Shard


@final
@dataclass(frozen=True)
class Problem:
    """What an objective may know before training starts.

    Attributes:
        labels: the training labels, N images by C classes.
        grid: (height, width) of the net's maps.
        warmup_epochs: how many of the first epochs train the head alone.
        epochs: all epochs, warm-up included; for schedules over a whole run, which together with `Progress` they need.
            `Fit` refuses a number that is not what it will train.
        seed: the run's seed.
        shard: which rows this process owns.
        device: where the net lives.
        state_dir: folder for memory-mapped state; None keeps everything in memory.
        truth: complete labels where they are known. For diagnostics only: a loss never depends on it.
        features_dim: d, channels of the net's features; 0 where nobody said.
        precision: of the net's arithmetic, "no" (float32), "bf16" or "fp16"; for forward passes of an objective's own.
    """

    labels: LabelMatrix
    grid: tuple[int, int]
    warmup_epochs: int = 0
    epochs: int = 1
    seed: int = 0
    shard: Shard = field(default_factory=Shard)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    state_dir: Path | None = None
    truth: LabelMatrix | None = None
    features_dim: int = 0
    precision: str = "no"


@final
@dataclass(frozen=True)
class Progress:
    """Where training is, counted in batches of this process (of which an optimiser step may take several).

    Attributes:
        epoch: counted over all stages, from 0.
        step: batches of the epoch that came before. In `Objective.step` that is the number of its batch, from 0; in
            the event `StepEnded` the batches done, up to `steps_per_epoch`.
        steps_per_epoch: batches in an epoch.
    """

    epoch: int
    step: int
    steps_per_epoch: int

    @property
    def exact_epoch(self) -> float:
        """Epochs done, with the fraction of the running one.

        >>> Progress(epoch=2, step=3, steps_per_epoch=6).exact_epoch
        2.5
        """
        return self.epoch + self.step / self.steps_per_epoch


@final
@dataclass(frozen=True)
class Step:
    """Result of one forward pass: `loss` has a gradient; `logs` (scalars) and `payload` (for `commit`) have none."""

    loss: Tensor
    logs: Mapping[str, Tensor]
    payload: Any = field(default=None, repr=False)


@runtime_checkable
class Part(Protocol):
    """Anything with state: a module or a store. The state is a flat mapping of names to tensors."""

    def state_dict(self) -> Mapping[str, Any]:
        """Everything needed to go on, without copies."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Take the state back."""
        ...


class Objective(ABC):
    """Turns a batch into a loss. Subclasses are final and hold hyper-parameters and parts; nothing else changes.

    Attributes:
        needs_second_view: whether every batch must have a second view of each image.
    """

    needs_second_view: ClassVar[bool] = False

    @property
    def needs_maps(self) -> bool:
        """Whether `step` looks at the maps or features of single cells; if not, pooled features are enough."""
        return True

    @property
    def solvable(self) -> bool:
        """Whether one fixed view of each image says all, and the loss is smooth while the parts stay as they are.

        A head on a frozen trunk is then trained to the end (`engine.solve`): `step` is called many times with other
        weights before one `commit`.
        """
        return False

    @property
    def solvable_warmup(self) -> bool:
        """Whether a warm-up stage may solve the head on pooled features: as `solvable`, and no maps are needed."""
        return self.solvable and not self.needs_maps

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make stores and heads for a problem. What is returned is checkpointed; its modules are optimised."""
        return {}

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Run once per epoch, never again on resume; results live in a part. Returns diagnostics to log."""
        return {}

    @abstractmethod
    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Forward and loss. Changes no part (BatchNorm statistics excepted)."""

    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Write to the parts; called after an applied optimiser step only."""
