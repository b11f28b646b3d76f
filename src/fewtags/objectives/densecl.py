"""DenseCL: MoCo for images, and for every cell of the grid with its matching cell in the other view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, final

from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import dense_infonce, infonce
from fewtags.nets.encoder import pooled
from fewtags.nets.projection import MLP, unit
from fewtags.objectives.base import Part, Problem, Progress, Step
from fewtags.objectives.checks import Range
from fewtags.objectives.momentum import DENSE, QueueObjective, channels_of, key_logs, make_queues, run, second_view
from fewtags.seeds import seed_of


@final
@dataclass(eq=False, kw_only=True)
class DenseCL(QueueObjective):
    """DenseCL (Wang et al., CVPR 2021): L = (1 - lambda) L_image + lambda L_cells (eq. 3).

    L_image is MoCo-v2's InfoNCE. L_cells is InfoNCE of every cell of view 1's grid: a dense projector (two 1x1
    convolutions) makes a vector of each cell; the positive key is that of view 2's cell whose backbone features are the
    most similar (eq. 4); negatives come from a second queue, of dense projections that are averaged over an image's
    grid (eq. 2). Both queues contain the same images at the same slots. A momentum encoder computes the keys; its
    outputs are put back in order after the shuffled BatchNorm.

    Deviations: the queues start empty; empty slots and older keys of the same image are not negatives; L_cells has the
    same weight from the first step on (published configurations omit it from the first thousand steps); any batch size
    can be combined with any queue size.

    Args:
        weight: lambda.
        temperature: tau, of both losses.
        momentum: m of the momentum encoder.
        queue_size: D, of each queue; default: see `default_queue_size`.
        projection_dim: of both projectors.
        hidden_dim: width of the hidden layer of both; default: that of the features.
        batchnorm_groups: see `MoCo`.
    """

    weight: Annotated[float, Range(0, 1)] = 0.5
    temperature: Annotated[float, Range(1e-3)] = 0.2
    momentum: Annotated[float, Range(0, 1)] = 0.999
    queue_size: Annotated[int | None, Range(1)] = None
    projection_dim: Annotated[int, Range(1)] = 128
    hidden_dim: Annotated[int | None, Range(1)] = None
    batchnorm_groups: Annotated[int, Range(1)] = 1

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Create both projectors, the momentum encoder and the queues."""
        channels, dim = channels_of(problem), self.projection_dim
        self._dense = MLP((channels, self.hidden_dim or channels, dim), seed=seed_of(problem.seed, DENSE))
        self._pair = self.make_pair(net, problem, dense=self._dense)
        self._queues = make_queues(self.queue_size, problem, {"projections": dim, "cells": dim})
        return {**self._pair.parts(), "queues": self._queues}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute both losses against the queues before this batch is enqueued."""
        grid = run(net, batch.images, self.batchnorm_groups)
        query, cells = unit(self._pair.projector(pooled(grid))), unit(_per_cell(self._dense, grid), 1)
        shard = self._pair.problem.shard
        sizes = shard.sizes(batch.images)
        (key, key_cells, key_grid, means), first = self._pair.encode(
            net, second_view(batch, "DenseCL"), at, self._outputs, sizes
        )
        own = slice(first, first + len(query))
        queue, cell_queue = (self._queues.read(name).to(query) for name in ("projections", "cells"))
        filled, others = self._queues.counted(), self._queues.others(batch.index)
        contrast = infonce(query, key[own], queue, self.temperature, counted=others)
        dense = dense_infonce(
            cells, key_cells[own], grid.flatten(2), key_grid[own], cell_queue, self.temperature, counted=others
        )
        logs = {"infonce": contrast.detach(), "dense_infonce": dense.detach()}
        ids = shard.concatenate(batch.index, sizes)[0]
        loss = (1 - self.weight) * contrast + self.weight * dense
        logs |= key_logs(query, key[own], queue, filled)
        return Step(loss, logs, (ids, {"projections": key, "cells": means}))

    def _outputs(self, grid: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return keys of images [b, p] and cells [b, p, s], features by cell [b, d, s], and mean cell keys [b, p]."""
        projector, dense = (self._pair.follower.get_submodule(name) for name in ("projector", "dense"))
        cells = _per_cell(dense, grid)
        return unit(projector(pooled(grid))), unit(cells, 1), grid.flatten(2), unit(cells.mean(2))


def _per_cell(head: nn.Module, grid: Tensor) -> Tensor:
    """Apply a head to every cell of a grid [b, d, h, w], like 1x1 convolutions; return [b, p, h w]."""
    cells = grid.flatten(2).transpose(1, 2)
    rows: Tensor = head(cells.flatten(0, 1))
    return rows.reshape(*cells.shape[:2], -1).transpose(1, 2)
