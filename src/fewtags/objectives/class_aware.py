"""Class-aware selective loss (CSL) of image labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.selective import PerLabel, annotation_weights, selective_loss, selectivity
from fewtags.objectives.base import Part, Problem, Progress
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.stores.state import copy_state
from fewtags.text import method_setting, setting


@final
class ClassPrior:
    """A part: the share of images that contain each class, float32 [C], as the net predicts it."""

    def __init__(self, classes: int, problem: Problem) -> None:
        self.values = torch.zeros(classes, device=problem.device)
        self._samples, self._shard = problem.labels.shape[0], problem.shard

    def measure(self, logits: Tensor) -> None:
        """Set the prior from the logits [rows, C] of this process's images. Collective."""
        self.values.copy_(self._shard.sum(logits.sigmoid().sum(0)) / self._samples)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensor itself, not a copy."""
        return {"values": self.values}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place."""
        copy_state(self.state_dict(), state_dict, "class prior")


@final
@dataclass(eq=False, kw_only=True)
class ClassAwareSelective(LogitObjective):
    """CSL: a focal loss in which unknown labels are ignored or count as negative, by class and by score.

    Ben-Baruch et al., "Multi-label Classification with Partial Annotations Using Class-aware Selective Loss" (CVPR
    2022). `patchml` uses the same loss together with points and boxes.

    Args:
        mode: "ignore" unknown labels; take them as "negative"; "selective": as negative, except those of frequent
            classes and those with the highest scores of the batch; "ignore_normalised": ignore them, and weight images
            with few known labels more.
        gammas: focus on positive, negative and unknown labels; (0, 1, 4) and (0, 3, 4) in the tables of the paper.
        clip: negative and unknown labels with a probability up to this have no loss and no gradient.
        top_k: with "selective", the number of likely positives per image that stay ignored.
        prior_threshold: with "selective", classes with a larger prior stay ignored; 1: none. 0.5 in the tables.
        prior_epochs: number of first epochs that train in the mode "ignore", after which the prior of a class is its
            mean probability over all training images. The paper trains a first net for it. Needs a `prior_threshold`
            below 1, and known negatives. 0: the prior is the share of positives among the known labels of the class.
    """

    mode: Literal["ignore", "negative", "selective", "ignore_normalised"] = "selective"
    gammas: tuple[float, float, float] = (0.0, 1.0, 4.0)
    clip: Annotated[float, Range(0, 1)] = 0.0
    top_k: Annotated[int, Range()] = 5
    prior_threshold: Annotated[float, Range(0, 1)] = 1.0
    prior_epochs: Annotated[int, Range()] = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if not all(gamma >= 0 for gamma in self.gammas):
            raise ConfigError(
                f"gammas must be numbers of at least 0, for positive, negative and unknown; got {self.gammas}."
            )
        if self.prior_epochs and (self.mode != "selective" or self.prior_threshold >= 1):
            raise ConfigError(
                f"prior_epochs={self.prior_epochs} has no effect with mode={self.mode!r} and prior_threshold="
                f"{self.prior_threshold:g}; it needs mode='selective' and a prior_threshold below 1."
            )

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Count the shares of the classes, or make room for their mean probabilities."""
        labels = problem.labels
        positives, negatives = (torch.from_numpy(labels.counts(s)).float() for s in (Label.POSITIVE, Label.NEGATIVE))
        ignores = self.mode.startswith("ignore") or self.prior_epochs or self.prior_threshold < 1
        if ignores and not negatives.any():
            raise ConfigError(
                f"mode={self.mode!r}, prior_threshold={self.prior_threshold:g} needs known negatives, and no training "
                "image has one: every class would be predicted everywhere. Use "
                f"{method_setting('mode', 'negative')}, or {method_setting('mode', 'selective')} with "
                f"{method_setting('prior_threshold', 1)}; or, where what is not named is absent, read the labels with "
                f"{setting('complete', True)}."
            )
        self._shares = (positives / (positives + negatives).clamp(min=1)).to(problem.device)
        self._prior: ClassPrior | None = None
        if not self.prior_epochs:
            return {}
        self._prior = ClassPrior(labels.shape[1], problem)
        return {"class_prior": self._prior}

    def needs_predictions(self, epoch: int) -> bool:
        """The prior is measured once."""
        return self.prior_epochs > 0 and epoch == self.prior_epochs

    def on_predictions(self, epoch: int, logits: Tensor) -> None:
        """Take the mean probability of each class as its prior."""
        assert self._prior is not None
        self._prior.measure(logits)

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute CSL."""
        mode: str = "ignore" if at.epoch < self.prior_epochs or self.mode == "ignore_normalised" else self.mode
        prior = self._shares if self._prior is None else self._prior.values
        omega = selectivity(
            logits, batch.labels, mode, top_k=self.top_k, prior=prior, prior_threshold=self.prior_threshold
        )
        weights = annotation_weights(batch.labels) if self.mode == "ignore_normalised" else None
        loss = selective_loss(
            logits, batch.labels, omega, gammas=PerLabel(*self.gammas), clip=self.clip, image_weights=weights
        )
        return ImageLoss(loss, {"csl": loss.detach()})
