"""NNCLR: the positive of a view is its nearest neighbour among the projections of earlier images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import collapse, ntxent, similarity
from fewtags.nets.encoder import pooled
from fewtags.nets.projection import unit
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step
from fewtags.objectives.momentum import (
    channels_of,
    check_ranges,
    default_queue_size,
    predicting_heads,
    second_view,
)
from fewtags.stores.queue import AlignedQueues

INFINITY = float("inf")


class Projected(NamedTuple):
    """What `step` hands to `commit`: numbers and projections of the images of all processes."""

    ids: Tensor
    projections: Tensor


@final
@dataclass(eq=False)
class NNCLR(Objective):
    """NNCLR (Dwibedi et al., ICCV 2021): NT-Xent of NN(z1) against the predictions of view 2, both ways.

    z is the projection of a view, p the prediction made from it, NN(z) the vector of the queue that is most similar to
    z, all of unit length (section 3.2). The right candidate for NN(z1) of an image is its p2, the others are the p2 of
    the other images; half of the loss is this, half the same with the views exchanged. Then the z1 are enqueued.

    The candidates are the images of all processes. Predictions get a gradient, neighbours none.

    Deviations: the queue starts empty, and as long as nothing is in it, NN(z) is z itself without its gradient (the
    published queue starts with random vectors); the projector's last BatchNorm has no weight and bias; BatchNorm in
    projector and predictor sees the batch of one process.

    Args:
        temperature: t.
        queue_size: D, projections in the queue; None: a sixteenth of the images, a power of two from 16 to 65536.
        projection_dim: of z and p.
        hidden_dim: width of the projector's two hidden layers; None: that of the features.
        predictor_dim: width of the predictor's hidden layer.

    Raises:
        ConfigError: a value that is out of range.
    """

    needs_second_view: ClassVar[bool] = True

    temperature: float = 0.1
    queue_size: int | None = None
    projection_dim: int = 256
    hidden_dim: int | None = None
    predictor_dim: int = 4096

    def __post_init__(self) -> None:
        check_ranges(self, RANGES)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make the projector, the predictor and the queue.

        Raises:
            ConfigError: the problem does not say how many channels the features have.
        """
        hidden, out = 2 * [self.hidden_dim or channels_of(problem)], self.projection_dim
        self._shard = problem.shard
        self._projector, self._predictor = predicting_heads(
            problem, hidden, out, self.predictor_dim, normalised_output=True
        )
        size = self.queue_size or default_queue_size(problem.labels.shape[0])
        self._queue = AlignedQueues(size, {"projections": out}, device=problem.device)
        return {"projector": self._projector, "predictor": self._predictor, "queue": self._queue}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """The symmetrised loss of neighbours, against the queue as it is.

        Raises:
            ConfigError: a batch without second views.
        """
        views = net(batch.images, second_view(batch, "NNCLR"))
        projector, predictor = self._projector.train(net.training), self._predictor.train(net.training)
        z1, z2 = (projector(pooled(features)) for features in views)
        p1, p2 = unit(predictor(z1)), unit(predictor(z2))
        near1, near2 = (self._nearest(unit(z.detach())) for z in (z1, z2))
        loss = (self._contrast(near1, p2) + self._contrast(near2, p1)) / 2
        logs = {"spread": collapse(z1.detach()), "positive": (near1 * p2.detach()).sum(1).mean()}
        ids, projections = (self._shard.concatenate(rows)[0] for rows in (batch.index, unit(z1.detach())))
        return Step(loss, logs, Projected(ids, projections))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Enqueue the projections of view 1, of all processes."""
        found: Projected = out.payload
        self._queue.enqueue(found.ids, {"projections": found.projections})

    @torch.no_grad()
    def _nearest(self, rows: Tensor) -> Tensor:
        """NN(z) of unit rows [b, p]; the rows themselves where nothing is in the queue."""
        queue, counted = self._queue.read("projections").to(rows), self._queue.counted()
        best = similarity(rows, queue).masked_fill(~counted, -INFINITY).argmax(1)
        return torch.where(counted.any(), queue[best], rows)

    def _contrast(self, neighbours: Tensor, predictions: Tensor) -> Tensor:
        """NT-Xent over the global batch, whose gradient reaches this process's predictions.

        Every process computes the loss of all images: a prediction is a candidate for the neighbours of other
        processes, too. The loop takes a process's gradient by its share of the images, so that it must be that of the
        sum over all of them divided by this process's; then the mean over processes is what one process would find.
        """
        neighbours, first = self._shard.concatenate(neighbours)
        everything = self._shard.concatenate(predictions.detach())[0]
        candidates = torch.cat([everything[:first], predictions, everything[first + len(predictions) :]])
        right = torch.arange(len(candidates), device=candidates.device)
        loss = ntxent(neighbours, candidates, right, self.temperature)
        return loss + (len(candidates) / max(len(predictions), 1) - 1) * (loss - loss.detach())


RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (1e-3, INFINITY),
    "queue_size": (1.0, INFINITY),
    "projection_dim": (1.0, INFINITY),
    "hidden_dim": (1.0, INFINITY),
    "predictor_dim": (1.0, INFINITY),
}
