"""Curriculum labelling: the net labels the cells that it is sure of, and learns from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.partial import assume_negative, bce
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, StoreMemory
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.stores.pseudo import PseudoLabels
from fewtags.text import method_setting, setting


@final
@dataclass(eq=False, kw_only=True)
class CurriculumLabelling(LogitObjective):
    """Between epochs, unknown labels with a clear prediction become labels, until the next prediction.

    Durand et al., "Learning a Deep ConvNet for Multi-Label Classification with Partial Labels" (CVPR 2019), with the
    "score threshold" strategy, which was their best but for one that needs a Bayesian net. Before epoch `label_from`
    and then every `every` epochs, all training images are predicted in eval mode.

    Args:
        positive_above: probability above which an unknown label becomes positive.
        negative_below: probability below which it becomes negative; 0: none does.
        label_from: first epoch with such labels. Default: a third of the epochs.
        every: number of epochs between predictions.
        unknown: all other unknown labels: "ignore" (needs known negatives), or "negative". Default: "negative" if fewer
            negatives than positives are known.
    """

    positive_above: Annotated[float, Range(0, 1)] = 0.7
    negative_below: Annotated[float, Range(0, 1)] = 0.0
    label_from: Annotated[int | None, Range(1)] = None
    every: Annotated[int, Range(1)] = 1
    unknown: Literal["ignore", "negative"] | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.negative_below > self.positive_above:
            raise ConfigError(
                f"negative_below={self.negative_below:g} is above positive_above={self.positive_above:g}; a cell would "
                "be both."
            )

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive the first epoch with new labels, and how unknown labels count."""
        unknown = "ignore" if facts.negatives >= facts.positives else "negative"
        return {"label_from": Derived(max(1, facts.epochs // 3)), "unknown": Derived(unknown)}

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of the new labels and of a prediction of all images."""
        remedy = "train with more memory, or on fewer images."

        return (
            StoreMemory(name="new labels", size=lambda images: 5 * images * facts.classes, remedy=lambda *_: remedy),
        )

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Warn if no epoch has new labels."""
        if (self.label_from or 0) >= facts.epochs:
            yield (
                f"objective.label_from = {self.label_from} is not below the number of epochs ({facts.epochs}): no "
                "label is added."
            )

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make room for the new labels."""
        if self.unknown == "ignore" and not problem.labels.counts(Label.NEGATIVE).any():
            raise ConfigError(
                "unknown='ignore' needs known negatives, and no training image has one: every class would be predicted "
                f"everywhere. Use {method_setting('unknown', 'negative')}; or, where what is not named is absent, read "
                f"the labels with {setting('complete', True)}."
            )
        self._problem = problem
        self._labels = PseudoLabels(*problem.labels.shape, shard=problem.shard, device=problem.device)
        return {"new_labels": self._labels}

    def needs_predictions(self, epoch: int) -> bool:
        """Every `every` epochs, from `label_from` on."""
        late = epoch - (self.label_from or 1)
        return late >= 0 and late % self.every == 0

    def on_predictions(self, epoch: int, logits: Tensor) -> None:
        """Label the cells with a clear prediction."""
        prob = logits.sigmoid()
        labels = torch.zeros_like(prob, dtype=torch.int8)
        labels[prob > self.positive_above] = int(Label.POSITIVE)
        labels[prob < self.negative_below] = int(Label.NEGATIVE)
        owned = self._problem.shard.owned(self._problem.labels.shape[0])
        known = torch.from_numpy(self._problem.labels.rows(owned.numpy())) != Label.UNKNOWN
        self._labels.write(owned, labels.masked_fill(known.to(labels.device), Label.UNKNOWN))

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Count the new labels, and how many are right if the complete labels are known."""
        if not self.needs_predictions(epoch):
            return {}
        count, images = self._labels.judge(self._problem.truth), self._problem.labels.shape[0]
        found = {"new_positives_per_image": count.positive / images, "new_negatives_per_image": count.negative / images}
        if count.judged_positive:
            found["new_positive_precision"] = count.right_positive / count.judged_positive
        if count.judged_negative:
            found["new_negative_precision"] = count.right_negative / count.judged_negative
        return found

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute the cross-entropy of annotated and new labels."""
        new = self._labels.read(batch.index)
        labels = torch.where(batch.labels == Label.UNKNOWN, new, batch.labels)
        loss = (assume_negative if self.unknown == "negative" else bce)(logits, labels)
        return ImageLoss(loss, {"curriculum": loss.detach(), "changed_labels": (new != 0).float().sum(1).mean()})
