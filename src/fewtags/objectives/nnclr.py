"""NNCLR: the positive of a view is its nearest neighbour among the projections of earlier images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import collapse, ntxent, similarity
from fewtags.nets.encoder import pooled
from fewtags.nets.projection import unit
from fewtags.objectives.base import Derived, Part, Problem, Progress, RunFacts, Step
from fewtags.objectives.checks import INFINITY, Range
from fewtags.objectives.momentum import (
    TwoViewObjective,
    channels_of,
    derived_queue,
    make_queues,
    neighbour_purity,
    predicting_heads,
    queue_notes,
    second_view,
)


@final
@dataclass(eq=False)
class NNCLR(TwoViewObjective):
    """NNCLR (Dwibedi et al., ICCV 2021): NT-Xent of NN(z1) against the predictions of view 2, both ways.

    z is the projection of a view, p the prediction made from it, NN(z) the vector of the queue that is most similar to
    z, all of unit length (section 3.2). The right candidate for NN(z1) of an image is its p2, the others are the p2 of
    the other images; half of the loss is this, half the same with the views exchanged. Then the z1 are enqueued.

    The candidates are the images of all processes. Predictions get a gradient, neighbours do not.

    Deviations: an image's own older vectors are not its neighbours; the queue starts empty, and without a vector of
    another image, NN(z) is z itself without its gradient (the published queue starts with random vectors); the
    projector's last BatchNorm has no weight and bias; BatchNorm in projector and
    predictor sees the batch of one process.

    Args:
        temperature: t.
        queue_size: D, projections in the queue; default: see `default_queue_size`.
        projection_dim: of z and p.
        hidden_dim: width of the projector's two hidden layers; default: that of the features.
        predictor_dim: width of the predictor's hidden layer.
    """

    temperature: Annotated[float, Range(1e-3)] = 0.1
    queue_size: Annotated[int | None, Range(1)] = None
    projection_dim: Annotated[int, Range(1)] = 256
    hidden_dim: Annotated[int | None, Range(1)] = None
    predictor_dim: Annotated[int, Range(1)] = 4096

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive the queue size."""
        return derived_queue(facts)

    def notes(self, facts: RunFacts) -> Iterator[str]:
        """Warn of a queue that is too long for the number of images."""
        return queue_notes(self.queue_size, facts)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create the projector, the predictor and the queue."""
        hidden, out = 2 * [self.hidden_dim or channels_of(problem)], self.projection_dim
        self._shard, self._truth = problem.shard, problem.truth
        self._projector, self._predictor = predicting_heads(
            problem, hidden, out, self.predictor_dim, normalised_output=True
        )
        self._queue = make_queues(self.queue_size, problem, {"projections": out})
        return {"projector": self._projector, "predictor": self._predictor, "queue": self._queue}

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Return the purity of neighbours in the queue, if there are labels."""
        return neighbour_purity(self._queue, self._truth)

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute the symmetrised loss of neighbours against the queue before this batch is enqueued."""
        views = net(batch.images, second_view(batch, "NNCLR"))
        projector, predictor = self._projector.train(net.training), self._predictor.train(net.training)
        z1, z2 = (projector(pooled(features)) for features in views)
        p1, p2 = unit(predictor(z1)), unit(predictor(z2))
        near1, near2 = (self._nearest(unit(z.detach()), batch.index) for z in (z1, z2))
        loss = (self._contrast(near1, p2) + self._contrast(near2, p1)) / 2
        logs = {"spread": collapse(z1.detach()), "positive": (near1 * p2.detach()).sum(1).mean()}
        ids, projections = (self._shard.concatenate(rows)[0] for rows in (batch.index, unit(z1.detach())))
        return Step(loss, logs, (ids, {"projections": projections}))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Enqueue the projections of view 1, of all processes."""
        self._queue.enqueue(*out.payload)

    @torch.no_grad()
    def _nearest(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return NN(z) of unit rows [b, p] of the images `index`; the row itself if the queue has no other image."""
        queue, others = self._queue.read("projections").to(rows), self._queue.others(index)
        best = similarity(rows, queue).masked_fill(~others, -INFINITY).argmax(1)
        return torch.where(others.any(1, keepdim=True), queue[best], rows)

    def _contrast(self, neighbours: Tensor, predictions: Tensor) -> Tensor:
        """Compute NT-Xent over the global batch, with a gradient for this process's predictions.

        Every process computes the loss of all images, because its predictions are candidates for all neighbours. The
        loop weights a process's gradient by its share of the images; the last line cancels that weight.
        """
        neighbours, first = self._shard.concatenate(neighbours)
        everything = self._shard.concatenate(predictions.detach())[0]
        candidates = torch.cat([everything[:first], predictions, everything[first + len(predictions) :]])
        right = torch.arange(len(candidates), device=candidates.device)
        loss = ntxent(neighbours, candidates, right, self.temperature)
        return loss + (len(candidates) / max(len(predictions), 1) - 1) * (loss - loss.detach())
