"""The extension point for methods: an `Objective` turns a batch into a loss.

`step` reads state and changes none; `commit` writes state, after an optimiser step that was applied. All state is in
the parts that `setup` returns, and the training loop checkpoints them. Schedules are functions of `Progress`.
docs/write_an_objective.md builds a method of your own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.labels import Batch, LabelMatrix
from fewtags.stores.shard import Shard
from fewtags.text import named


@final
@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts about a run, from which an objective derives settings that the user left open.

    Attributes:
        samples: number of training images.
        classes: number of classes.
        grid: (height, width) of the net's maps.
        epochs: number of epochs, warm-up included.
        steps_per_epoch: batches in an epoch, 0 if unknown.
        positives: number of known positive labels.
        negatives: number of known negative labels.
        most_positives: largest number of known positives of one image.
        points: number of points.
        boxes: number of boxes.
        positives_per_image: mean number of classes that an image contains, measured or guessed.
        positives_source: a sentence about the origin of `positives_per_image`.
        head_solved: a stage after the warm-up solves the head on one view of each image.
        warmup_solved: the first stage solves the head.
        few_images: pretraining uses the preset for few images.
        teacher: the training images have scores of a teacher.
        answer_weights: the stage that solves the head tries several weights of answered labels.
    """

    samples: int
    classes: int
    grid: tuple[int, int] = (1, 1)
    epochs: int = 1
    steps_per_epoch: int = 0
    positives: int = 0
    negatives: int = 0
    most_positives: int = 0
    points: int = 0
    boxes: int = 0
    positives_per_image: float = 1.0
    positives_source: str = ""
    head_solved: bool = False
    warmup_solved: bool = False
    few_images: bool = False
    teacher: bool = False
    answer_weights: bool = False

    @property
    def almost_complete(self) -> bool:
        """Whether at most one label in a hundred is unknown, as where some objects are difficult or crowds."""
        return self.positives + self.negatives >= 0.99 * self.samples * self.classes


@final
@dataclass(frozen=True)
class Derived:
    """A derived value of a setting, and a sentence that explains it to the user; empty if it needs no explanation."""

    value: Any
    note: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class StoreMemory:
    """The memory of a store that grows with the number of images.

    Attributes:
        name: name in messages.
        size: function from the number of images to bytes.
        remedy: function from the number of images and the free bytes to a sentence that names the setting to change.
        on_disk: whether the store is a file in the run folder.
        detail: content per image; a store with a detail is listed when training starts.
    """

    name: str
    size: Callable[[int], int]
    remedy: Callable[[int, int], str]
    on_disk: bool = False
    detail: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Problem:
    """What an objective knows when training starts.

    Attributes:
        labels: the training labels, N images by C classes.
        grid: (height, width) of the net's maps.
        warmup_epochs: number of first epochs that train the head alone.
        epochs: number of all epochs, warm-up included; must equal that of `Fit`.
        seed: the run's seed.
        shard: the rows that this process owns.
        device: the device of the net. On the device "meta", `setup` must allocate and write nothing.
        state_dir: folder for memory-mapped state; None keeps everything in memory.
        truth: complete labels, if they are known; for diagnostics only.
        answered: the labels that people answered when they were asked; None if there are none.
        features_dim: d, channels of the net's features; 0 if unknown.
        precision: arithmetic of forward passes that the objective runs itself: "no" (float32), "bf16" or "fp16".
        teacher: scores of a teacher for the cells, float16 [N, C] in 0..1, on the CPU; NaN for no score. None without a
            teacher. See `fewtags.stores.teacher.TeacherScores`.
    """

    labels: LabelMatrix
    grid: tuple[int, int]
    _: KW_ONLY
    warmup_epochs: int = 0
    epochs: int = 1
    seed: int = 0
    shard: Shard = field(default_factory=Shard)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    state_dir: Path | None = None
    truth: LabelMatrix | None = None
    answered: LabelMatrix | None = None
    features_dim: int = 0
    precision: str = "no"
    teacher: NDArray[np.float16] | None = None


@final
@dataclass(frozen=True)
class Progress:
    """The position in a training run, in batches of this process. An optimiser step may accumulate several batches.

    Attributes:
        epoch: counted over all stages, from 0.
        step: in `Objective.step`, the number of the batch within the epoch, from 0; in `StepEnded`, batches done.
        steps_per_epoch: batches in an epoch.
        lr: the learning rate of the step, for parts that train themselves; 0 in events and while a head is solved.
        answer_weight: weight of answered labels, while several are tried (`StageConfig.answer_weights`); else None.
    """

    epoch: int
    step: int
    steps_per_epoch: int
    lr: float = 0.0
    answer_weight: float | None = None

    @property
    def exact_epoch(self) -> float:
        """Return the number of epochs done, with the fraction of the current one.

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
    """Anything with state: a module or a store. The state is a flat mapping from names to tensors."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the complete state, without copies."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Restore a state."""
        ...


class Objective(ABC):
    """Turns a batch into a loss.

    Subclasses are dataclasses. Their fields are the settings, their parts are the state, and nothing else changes.
    A `ConfigError` reports settings that are out of range or contradict each other, when the object is made.

    Attributes:
        needs_second_view: whether every batch needs a second view of each image.
        uses_teacher: whether the scores of a teacher (`Problem.teacher`) can change the loss.
        base_lr: default learning rate of pretraining (SGD) per 256 images in a step.
    """

    needs_second_view: ClassVar[bool] = False
    uses_teacher: ClassVar[bool] = False
    base_lr: ClassVar[float] = 0.3

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create stores and heads. The loop checkpoints the returned parts and optimises the modules among them.

        Raises:
            ConfigError: the settings do not fit the problem.
        """
        return {}

    def needs_predictions(self, epoch: int) -> bool:
        """Whether this epoch begins with `on_predictions`, which costs a forward pass over all training images."""
        return False

    def on_predictions(self, epoch: int, logits: Tensor) -> None:
        """Update parts from predictions, before `on_epoch_start`; not called again when the epoch is resumed.

        `logits`, float32 [rows, C], are those of the net in eval mode for the test views of this process's training
        images, in the order of `Shard.owned`.
        """

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Update parts at the start of an epoch, but not when it is resumed; return diagnostics to log."""
        return {}

    @abstractmethod
    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute the loss of a batch without changing a part, except BatchNorm statistics.

        Raises:
            ConfigError: the batch has no second view, but the objective needs one.
        """

    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Write to the parts; called after an optimiser step that was applied."""

    @property
    def uses_locations(self) -> bool:
        """Whether points and boxes change the loss."""
        return False

    @property
    def needs_maps(self) -> bool:
        """Whether `step` uses the maps or features of single cells; otherwise pooled features are enough."""
        return True

    @property
    def solvable(self) -> bool:
        """Whether the loss needs only one fixed view of each image and is smooth while the parts do not change.

        `engine.solve` can then solve a head on a frozen trunk: it calls `step` many times before one `commit`.
        """
        return False

    @property
    def open_answer_weight(self) -> bool:
        """Whether `step` gives answered labels the weight of `Progress.answer_weight`, because no setting fixes it."""
        return False

    @property
    def solvable_warmup(self) -> bool:
        """Whether a warm-up stage can solve the head on pooled features."""
        return self.solvable and not self.needs_maps

    def remarks(self, means: Mapping[str, float]) -> Iterator[str]:
        """Yield warnings about an epoch; `means` are the loss ("loss") and the logs of `step`, over its steps."""
        yield from ()

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Return values, derived from the data or the machine, for settings that the user left open."""
        return {}

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the stores that grow with the number of images, so that a run that cannot fit is refused early."""
        return ()

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Yield warnings about settings that do not suit the data; called with all settings derived."""
        yield from ()

    @property
    def assumed_positives(self) -> float | tuple[float, ...] | None:
        """The assumed number of classes per image, or the share of images of each class; None if nothing is assumed.

        Thresholds are chosen by it for classes without known negatives.
        """
        return None

    def collapsed_losses(self) -> Mapping[str, float]:
        """Return the values of logged losses if all images get the same vector (pretraining), by name in `logs`."""
        return {}

    @property
    def collapse_remedy(self) -> str:
        """Return a sentence: which settings to change if all images get the same vector (pretraining)."""
        rate, batch = named("train.lr"), named("train.batch_size")
        return f"Start again with a lower {rate}, a larger {batch}, or objective.momentum nearer to 1."
