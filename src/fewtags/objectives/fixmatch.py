"""FixMatch for several labels: confident predictions on one view are labels of another; with UPS's uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.pseudo import certain, confident, pseudo_loss, spread
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Part, Problem, Progress, Step
from fewtags.objectives.checks import Range
from fewtags.objectives.supervised import (
    SupervisedObjective,
    class_shares,
    only_fillable,
    pseudo_diagnostics,
    refuse_too_late,
    refuse_without_negatives,
    supervised_loss,
)
from fewtags.stores.pseudo import PseudoLabels
from fewtags.stores.recent import RecentScores

PerClass = float | tuple[float, ...]


class Chosen(NamedTuple):
    """Payload of a step: probabilities on the weak view, and pseudo-labels from `pseudo_from` on."""

    prob: Tensor
    pseudo: Tensor | None


@final
@dataclass(eq=False, kw_only=True)
class FixMatch(SupervisedObjective):
    """FixMatch (Sohn et al., 2020) for several labels: L = w_image L_image + w_patch L_patch + w_pseudo L_pseudo.

    The first two terms are PatchML's eq. (3) on the weak view, with the same settings: tags, points and boxes count as
    they do there. L_pseudo is the cross-entropy of the strong view's image logits with pseudo-labels: of the weak
    view's probabilities f, f >= tau+ is a positive, f <= tau- a negative, the rest is left out. From epoch
    `pseudo_from` on both views go through the net together, and the pseudo-labels get no gradient.

    UPS (Rizve et al., 2021; `uncertainty_views` above 0): the mean over the last `uncertainty_views` weak views of an
    image, including this one, replaces f, and their standard deviation must not exceed kappa. A cell with fewer views
    gets no pseudo-label. Deviation: UPS predicts one image several times with dropout. The heads here have no dropout,
    so the predictions for views of earlier epochs are used; they also differ because the net has changed since.

    Deviations from FixMatch: sigmoid and two thresholds per class instead of the highest class of a softmax; batches
    mix labelled and unlabelled images at random instead of at a fixed ratio; the strong view is a separate crop, which
    may show another part of the image. PercentMatch's moving thresholds are not offered, because no code is public.

    `pseudo_weight` is FixMatch's lambda_u. The settings that are not listed here are those of `SupervisedObjective`.

    Args:
        positive_from: tau+, one for all classes or one per class; above 1: no pseudo-positives.
        negative_to: tau-, one for all classes or one per class; below 0: no pseudo-negatives.
        per_selected: divide the L_pseudo of an image by its number of selected cells (UPS) instead of all cells.
        uncertainty_views: number of views that UPS compares, at least 2; 0: FixMatch alone.
        uncertain_positive: kappa+ of UPS, the largest standard deviation of a pseudo-positive.
        uncertain_negative: kappa- of UPS, the largest standard deviation of a pseudo-negative.
    """

    needs_second_view: ClassVar[bool] = True

    pseudo_weight: Annotated[float, Range(1e-6)] = 1.0
    pseudo_from: Annotated[int, Range()] = 5
    positive_from: PerClass = 0.95
    negative_to: PerClass = 0.05
    per_selected: bool = False
    uncertainty_views: Annotated[int, Range()] = 0
    uncertain_positive: Annotated[float, Range()] = 0.05
    uncertain_negative: Annotated[float, Range()] = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uncertainty_views == 1:
            raise ConfigError("uncertainty_views compares at least 2 views, or is 0 (off), got 1.")
        given = [len(limits) for limits in (self.negative_to, self.positive_from) if isinstance(limits, tuple)]
        if len(set(given)) > 1:
            raise ConfigError(f"negative_to has {given[0]} values and positive_from {given[1]}; give one per class.")
        low, high = (_per_class(limits, max(given, default=1)) for limits in (self.negative_to, self.positive_from))
        for c, (negative, positive) in enumerate(zip(low, high, strict=True)):
            if not negative < positive:
                where = f" of class {c}" if given else ""
                raise ConfigError(f"negative_to{where} must be below positive_from, got {negative} and {positive}.")

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Allocate pseudo-labels, and with UPS the scores of earlier views."""
        self._problem = problem
        refuse_without_negatives(self, problem.labels)
        first = max(self.pseudo_from, self.uncertainty_views - 1)
        refuse_too_late(first, problem.epochs, "objective.pseudo_from or objective.uncertainty_views")
        samples, classes = problem.labels.shape
        shard, device = problem.shard, problem.device
        self._prior = class_shares(problem.labels).to(device)
        for name in ("positive_from", "negative_to"):
            if isinstance(limits := getattr(self, name), tuple) and len(limits) != classes:
                raise ConfigError(
                    f"{name} has {len(limits)} values for {classes} classes; give one number, or one per class."
                )
        self._positive_from = torch.tensor(_per_class(self.positive_from, classes), device=device)
        self._negative_to = torch.tensor(_per_class(self.negative_to, classes), device=device)
        if self.pseudo_fill == "unlabelled" and not (problem.labels.image_counts(Label.UNKNOWN) == classes).any():
            raise ConfigError(
                f"each of the {samples:,} training images has a label, so that pseudo_fill = 'unlabelled' fills none; "
                "add images without labels, or set pseudo_fill = 'unknown'."
            )
        self._pseudo = PseudoLabels(samples, classes, shard=shard, device=device)
        self._recent: RecentScores | None = None
        parts: dict[str, Part] = {"pseudo_labels": self._pseudo}
        if self.uncertainty_views:
            earlier = self.uncertainty_views - 1
            self._recent = RecentScores(samples, classes, earlier, shard=shard, device=device)
            parts["recent_scores"] = self._recent
        return parts

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Count the pseudo-labels of the previous epoch."""
        if epoch <= self.pseudo_from:
            return {}
        return pseudo_diagnostics(self._pseudo.judge(self._problem.truth), self._problem.labels.shape[0])

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute the loss of both views, with the state before this batch."""
        if batch.second_view is None:
            raise ConfigError(
                "FixMatch needs batches with a second view; load them from a TrainSet that has a `second_view`."
            )
        if at.epoch < self.pseudo_from:
            out: Output = net(batch.images)
            known = supervised_loss(self, out, batch, self._prior)
            return Step(known.loss, known.logs, Chosen(out.logits.detach().float().sigmoid(), None))
        both: Output = net(torch.cat([batch.images, batch.second_view.images]))
        weak, strong = (Output(*half) for half in zip(*(values.chunk(2) for values in both), strict=True))
        known = supervised_loss(self, weak, batch, self._prior)
        prob = weak.logits.detach().float().sigmoid()
        pseudo = only_fillable(self._choose(batch, prob), batch.labels, self.pseudo_fill)
        extra = pseudo_loss(strong.logits, pseudo, per_selected=self.per_selected)
        return Step(
            known.loss + self.pseudo_weight * extra, known.logs | {"pseudo": extra.detach()}, Chosen(prob, pseudo)
        )

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Keep the pseudo-labels, and with UPS the scores of this view."""
        chosen: Chosen = out.payload
        if self._recent is not None:
            self._recent.write(batch.index, chosen.prob)
        if chosen.pseudo is not None:
            self._pseudo.write(batch.index, chosen.pseudo)

    def _choose(self, batch: Batch, prob: Tensor) -> Tensor:
        """Return the pseudo-labels of the confident cells, int8 [b, C]."""
        if self._recent is None:
            return confident(prob, self._positive_from, self._negative_to)
        earlier, complete = self._recent.read(batch.index)
        mean, deviation = spread(torch.cat([earlier, prob[None]]))
        sure = confident(mean, self._positive_from, self._negative_to)
        sure = certain(sure, deviation, self.uncertain_positive, self.uncertain_negative)
        return sure.masked_fill(~complete[:, None], Label.UNKNOWN)


def _per_class(limits: PerClass, classes: int) -> tuple[float, ...]:
    return limits if isinstance(limits, tuple) else (limits,) * classes
