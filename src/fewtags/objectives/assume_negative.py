"""Baselines: cross-entropy of the known labels, and assume-negative with its variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.partial import assume_negative, bce, weak_assume_negative
from fewtags.objectives.base import Part, Problem, Progress
from fewtags.objectives.checks import check_settings
from fewtags.objectives.located import LocatedObjective
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.objectives.taught import TaughtObjective
from fewtags.text import setting


@final
@dataclass
class BCE(TaughtObjective, LocatedObjective, LogitObjective):
    """Binary cross-entropy of the known cells; unknown cells are ignored (SCL paper, eq. 1).

    Use it if labels are complete, or if enough negatives are known. Labels without any negative are refused: the net
    would learn to predict every class everywhere (section 3.1). With a teacher they are not: its scores are then the
    labels of unknown cells.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Check that at least one negative is known, or that there is a teacher."""
        self.meet_teacher(problem)
        if self._teacher is None and not problem.labels.counts(Label.NEGATIVE).any():
            raise ConfigError(
                "objective 'bce' needs known negatives, and no training image has one: it would learn to predict every "
                "class everywhere. Use 'expected_negative' or 'assume_negative'; or, where what is not named is "
                f"absent, read the labels with {setting('complete', True)}."
            )
        return {}

    @property
    def solvable(self) -> bool:
        """The loss is convex in the logits."""
        return True

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute eq. (1)."""
        loss = bce(logits, batch.labels)
        logs = {"bce": loss.detach()}
        return ImageLoss(self.with_distillation(loss, logs, logits, batch), logs)


@final
@dataclass(kw_only=True)
class AssumeNegative(TaughtObjective, LocatedObjective, LogitObjective):
    """Unknown labels count as negative: AN (SCL paper, eq. 2), AN-LS and WAN (Cole et al., CVPR 2021).

    Args:
        smoothing: label smoothing e of AN-LS, in 0..0.5 (the paper searches 0.1 and 0.2); 0 for plain AN.
        negative_weight: weight of unknown cells; "weak" for 1 / (classes - 1), which is WAN; None for 1, plain AN.
            Known negatives keep the weight 1.
    """

    smoothing: float = 0.0
    negative_weight: float | Literal["weak"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self)
        if not 0 <= self.smoothing < 0.5:
            raise ConfigError(
                f"smoothing must be in 0..0.5 (0.5 excluded: labels would say nothing), got {self.smoothing}."
            )
        weight = self.negative_weight
        if weight not in (None, "weak") and (isinstance(weight, str) or not weight > 0):
            raise ConfigError(f"negative_weight must be a number above 0, or 'weak', got {weight!r}.")
        if self.smoothing and weight is not None:
            raise ConfigError(
                f"smoothing={self.smoothing} and negative_weight={weight!r} are two different baselines (AN-LS and "
                "WAN); give one of them."
            )

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Check the weight, and keep the scores of a teacher; this method has no state."""
        self.meet_teacher(problem)
        if self.negative_weight == "weak" and problem.labels.shape[1] < 2:
            raise ConfigError(
                "negative_weight='weak' is 1 / (classes - 1) and needs at least 2 classes; give a number."
            )
        return {}

    @property
    def solvable(self) -> bool:
        """The loss is convex in the logits."""
        return True

    def absent(self, batch: Batch) -> Tensor:
        """All of them."""
        return batch.labels == Label.UNKNOWN

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute AN, AN-LS or WAN."""
        if self.negative_weight is None:
            loss = assume_negative(logits, batch.labels, smoothing=self.smoothing)
        else:
            weight = None if self.negative_weight == "weak" else self.negative_weight
            loss = weak_assume_negative(logits, batch.labels, negative_weight=weight)
        logs = {"an": loss.detach()}
        return ImageLoss(self.with_distillation(loss, logs, logits, batch), logs)
