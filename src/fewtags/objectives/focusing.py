"""Losses that weight cells by how sure the net is: focal, ASL, Hill, SPLC. Unknown labels count as negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor

from fewtags.labels import Batch
from fewtags.losses.focusing import corrected_labels, hill, self_paced_correction
from fewtags.losses.selective import PerLabel, selective_loss
from fewtags.objectives.base import Progress
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective


@dataclass(frozen=True, kw_only=True)
class CheckedObjective(LogitObjective):
    """Base of methods without state whose settings have ranges."""

    def __post_init__(self) -> None:
        check_settings(self)


@final
@dataclass(frozen=True, kw_only=True)
class Focal(CheckedObjective):
    """Focal loss (Lin et al., ICCV 2017): cells that are nearly right have a small loss.

    Args:
        gamma: focus; 0 is assume-negative.
    """

    gamma: Annotated[float, Range()] = 2.0

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute the focal loss."""
        loss = _asymmetric(logits, batch.labels, PerLabel(self.gamma, self.gamma, self.gamma), 0.0, attached=True)
        return ImageLoss(loss, {"focal": loss.detach()})


@final
@dataclass(frozen=True, kw_only=True)
class AsymmetricLoss(CheckedObjective):
    """Asymmetric loss (ASL; Ridnik et al., ICCV 2021): a focal loss with a stronger focus on negatives, which it clips.

    Args:
        positive_gamma: focus on positives; 0 in the experiments of the paper, 1 in its code.
        negative_gamma: focus on negatives.
        clip: negatives with a probability up to this have no loss and no gradient.
        attached: the focusing factor has a gradient; the public code has both variants.
    """

    positive_gamma: Annotated[float, Range()] = 0.0
    negative_gamma: Annotated[float, Range()] = 4.0
    clip: Annotated[float, Range(0, 1)] = 0.05
    attached: bool = False

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute ASL."""
        gammas = PerLabel(self.positive_gamma, self.negative_gamma, self.negative_gamma)
        loss = _asymmetric(logits, batch.labels, gammas, self.clip, attached=self.attached)
        return ImageLoss(loss, {"asl": loss.detach()})


@final
@dataclass(frozen=True, kw_only=True)
class Hill(CheckedObjective):
    """Hill loss (Zhang et al., 2021): negatives with a high score, which may be missing positives, have no gradient.

    Args:
        gamma: focus on positives.
        margin: of the logits of positives.
        peak: lambda of the paper; the gradient is largest at the probability peak / 3.
    """

    gamma: Annotated[float, Range()] = 2.0
    margin: Annotated[float, Range()] = 1.0
    peak: Annotated[float, Range(1)] = 1.5

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute the Hill loss."""
        loss = hill(logits, batch.labels, gamma=self.gamma, margin=self.margin, peak=self.peak)
        return ImageLoss(loss, {"hill": loss.detach()})


@final
@dataclass(frozen=True, kw_only=True)
class SPLC(CheckedObjective):
    """Self-paced loss correction (Zhang et al., 2021): unknown labels with a high score count as positive.

    Args:
        positive_above: tau of the paper: the probability above which an unknown label counts as positive.
        from_epoch: first epoch with corrections, warm-up included; 1 in the public code.
        gamma: focus of the focal margin loss; 0 for none.
        margin: of the logits of annotated positives; 0 for none.
    """

    positive_above: Annotated[float, Range(0, 1)] = 0.6
    from_epoch: Annotated[int, Range()] = 1
    gamma: Annotated[float, Range()] = 2.0
    margin: Annotated[float, Range()] = 1.0

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute SPLC with focal margin."""
        corrected = corrected_labels(logits, batch.labels, positive_above=self.positive_above)
        if at.epoch < self.from_epoch:
            corrected = torch.zeros_like(corrected)
        loss = self_paced_correction(logits, batch.labels, corrected, gamma=self.gamma, margin=self.margin)
        return ImageLoss(loss, {"splc": loss.detach(), "changed_labels": corrected.float().sum(1).mean()})


def _asymmetric(logits: Tensor, labels: Tensor, gammas: PerLabel, clip: float, *, attached: bool) -> Tensor:
    everywhere = torch.ones_like(labels, dtype=torch.bool)
    return selective_loss(logits, labels, everywhere, gammas=gammas, clip=clip, attached=attached)
