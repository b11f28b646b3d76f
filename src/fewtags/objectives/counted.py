"""Baselines without assumed negatives: Cole et al., "Multi-Label Learning from Single Positive Labels" (CVPR 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.counted import (
    Total,
    count_penalty,
    expected_positive_regularisation,
    online_estimation,
    pairwise_ranking,
)
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, Step, StoreMemory
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.stores.cells import EstimatedLabels
from fewtags.text import flag


@dataclass(eq=False, kw_only=True)
class CountedObjective(LogitObjective):
    """Base of methods that know K, the mean number of classes in an image."""

    positives_per_image: Annotated[float | None, Range(0, above=True)] = None

    def __post_init__(self) -> None:
        check_settings(self)

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive K from the labels."""
        return {"positives_per_image": Derived(facts.positives_per_image, facts.positives_source)}

    @property
    def assumed_positives(self) -> float | tuple[float, ...] | None:
        """Return K."""
        return self.positives_per_image

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Remember how to add up over processes, and K."""
        assert self.positives_per_image is not None, "derive K first"
        self._k, self._total = float(self.positives_per_image), total_of(problem)
        return {}


@final
@dataclass(eq=False, kw_only=True)
class EPR(CountedObjective):
    """Expected positive regularisation: known labels, and a penalty on the mean number of predicted classes (eq. 7).

    Unknown labels have no loss of their own. The penalty alone keeps the net from predicting every class everywhere.
    It compares the mean of the batch (of all processes) with K.

    Args:
        positives_per_image: K. Default: estimated from the labels.
    """

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute eq. (7)."""
        loss = expected_positive_regularisation(logits, batch.labels, self._k, total=self._total)
        penalty = count_penalty(logits.detach(), self._k, total=self._total)
        return ImageLoss(loss, {"epr": loss.detach(), "count_penalty": penalty})


@final
@dataclass(eq=False, kw_only=True)
class ROLE(CountedObjective):
    """Regularised online label estimation: the net and one learned label per image and class teach each other (eq. 10).

    The estimated labels have an Adam of their own, without weight decay; it takes a step with every batch, at
    `estimator_factor` times the learning rate of the net.

    Args:
        positives_per_image: K. Default: estimated from the labels.
        estimator_factor: see above; 10 in the public code.
    """

    estimator_factor: Annotated[float, Range(0, above=True)] = 10.0

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of the estimated labels and the two moments of Adam."""
        remedy = f"train with more memory, on fewer images, or with {flag('method', 'epr')}, which estimates no labels."

        return (StoreMemory(name="estimated labels", size=lambda n: 12 * n * facts.classes, remedy=lambda *_: remedy),)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Start the estimated labels."""
        super().setup(net, problem)
        self._estimated = EstimatedLabels(problem.labels, seed=problem.seed, shard=problem.shard, device=problem.device)
        return {"estimated_labels": self._estimated}

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute eq. (10); the payload is the gradient of the estimated labels, and their learning rate."""
        with torch.enable_grad():
            own = self._estimated.read(batch.index).requires_grad_()
            # One half of the loss moves the net and the other half the estimated labels.
            theirs = online_estimation(logits.detach(), own, batch.labels, self._k, total=self._total)
            (gradient,) = torch.autograd.grad(theirs, own)
        loss = online_estimation(logits, own.detach(), batch.labels, self._k, total=self._total)
        if self._total is not None:
            # The mean over the images of all processes has a smaller gradient than that over the own ones.
            own_images = gradient.new_tensor(float(len(gradient)))
            gradient = gradient * own_images / self._total(own_images)
        payload = (gradient, at.lr * self.estimator_factor)
        logs = {"role": loss.detach(), "estimated_positives": own.detach().sigmoid().sum(1).mean()}
        return ImageLoss(loss, logs, payload)

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Move the estimated labels."""
        gradient, lr = out.payload
        self._estimated.update(batch.index, gradient, lr)


@final
@dataclass(frozen=True)
class PairwiseRanking(LogitObjective):
    """Annotated positives should rank above all other classes of their image (PR, in Cole's appendix).

    A weak baseline: nothing compares the scores of two images.
    """

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute PR."""
        loss = pairwise_ranking(logits, batch.labels)
        return ImageLoss(loss, {"pairwise_ranking": loss.detach()})


def total_of(problem: Problem) -> Total | None:
    """Return a function that sums tensors over processes; None for one process."""
    return None if problem.shard.world == 1 else problem.shard.sum
