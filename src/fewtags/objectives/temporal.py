"""Temporal ensembling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.consistency import consistency
from fewtags.losses.partial import assume_negative
from fewtags.objectives.base import Part, Problem, Progress, RunFacts, Step, StoreMemory
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.stores.ensemble import Ensemble
from fewtags.text import flag


@final
@dataclass(eq=False, kw_only=True)
class TemporalEnsembling(LogitObjective):
    """Assume-negative, and each image's prediction should agree with the mean of its earlier predictions.

    Laine & Aila, "Temporal Ensembling for Semi-Supervised Learning" (ICLR 2017), with sigmoids in place of a softmax.
    It is the ancestor of CL of the SCL paper, which differs in the start value (the labels), in the distance, and in
    the classification loss.

    Args:
        weight: largest weight of the consistency. In the paper it is 30 times the share of labelled images, for
            squared errors of a softmax over 10 classes.
        momentum: a of the ensemble.
        ramp: share of the epochs over which the weight rises as exp(-5 (1 - t)^2); 80 of 300 epochs in the paper.
    """

    weight: Annotated[float, Range()] = 1.0
    momentum: Annotated[float, Range(0, 0.999)] = 0.6
    ramp: Annotated[float, Range(0, 1)] = 80 / 300

    def __post_init__(self) -> None:
        check_settings(self)

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of the ensembles."""
        remedy = (
            f"train with more memory, on fewer images, or with {flag('method', 'assume_negative')}, which keeps none."
        )

        return (StoreMemory(name="ensembles", size=lambda n: 4 * n * (facts.classes + 1), remedy=lambda *_: remedy),)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make the ensembles."""
        self._epochs = problem.epochs
        self._ensemble = Ensemble(
            *problem.labels.shape, momentum=self.momentum, shard=problem.shard, device=problem.device
        )
        return {"ensemble": self._ensemble}

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute the loss; the payload is the probabilities."""
        loss = assume_negative(logits, batch.labels)
        target, seen = self._ensemble.read(batch.index)
        agreement = consistency(logits, target, distance="l2", weight=seen[:, None])
        total = loss + self.weight * self._rise(at.epoch) * agreement
        logs = {"an": loss.detach(), "consistency": agreement.detach()}
        return ImageLoss(total, logs, logits.detach().sigmoid())

    def _rise(self, epoch: int) -> float:
        """Return the share of the weight in an epoch; 0 in the first."""
        ramp = self.ramp * self._epochs
        if not epoch:
            return 0.0
        return math.exp(-5 * (1 - epoch / ramp) ** 2) if epoch < ramp else 1.0

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Add the predictions to the ensembles."""
        self._ensemble.update(batch.index, out.payload)
