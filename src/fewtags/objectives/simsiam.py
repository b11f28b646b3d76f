"""SimSiam: each view predicts the projection of the other view, which gets no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from torch import nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import collapse, negative_cosine
from fewtags.nets.encoder import pooled
from fewtags.objectives.base import Part, Problem, Progress, Step
from fewtags.objectives.checks import Range
from fewtags.objectives.momentum import TwoViewObjective, channels_of, predicting_heads, second_view


@final
@dataclass(eq=False)
class SimSiam(TwoViewObjective):
    """SimSiam (Chen and He, CVPR 2021): L = D(p1, stop(z2)) / 2 + D(p2, stop(z1)) / 2, D = -cos (eq. 4).

    z is the projection of a view's features (three layers, BatchNorm after each, the last without ReLU), p the
    prediction made from it (two layers with a narrow one between them, BatchNorm on that one). No negatives, no
    momentum encoder, no queue: only the predictor and the stopped gradient prevent a collapse.

    Deviations: BatchNorm in projector and predictor sees the batch of one process (the paper synchronises it); the
    predictor's learning rate follows the schedule like all others (the published code can keep it constant).

    Args:
        projection_dim: d, of z and p.
        hidden_dim: width of the projector's hidden layers; default: that of the features.
        predictor_dim: width of the predictor's hidden layer, a quarter of d in the paper.
    """

    base_lr: ClassVar[float] = 0.05

    projection_dim: Annotated[int, Range(1)] = 2048
    hidden_dim: Annotated[int | None, Range(1)] = None
    predictor_dim: Annotated[int, Range(1)] = 512

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create the projector and the predictor."""
        hidden = 2 * [self.hidden_dim or channels_of(problem)]
        self._projector, self._predictor = predicting_heads(
            problem, hidden, self.projection_dim, self.predictor_dim, normalised_output=True
        )
        return {"projector": self._projector, "predictor": self._predictor}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute the symmetrised negative cosine."""
        views = net(batch.images, second_view(batch, "SimSiam"))
        projector, predictor = self._projector.train(net.training), self._predictor.train(net.training)
        z1, z2 = (projector(pooled(features)) for features in views)
        loss = (negative_cosine(predictor(z1), z2) + negative_cosine(predictor(z2), z1)) / 2
        return Step(loss, {"spread": collapse(z1.detach()), "positive": -loss.detach()})
