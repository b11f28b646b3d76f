"""DenseCL: MoCo, and the same for every cell of the grid with the cell that matches it in the other view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.losses.contrastive import collapse, dense_infonce, infonce
from fewtags.nets.encoder import pooled
from fewtags.nets.projection import MLP, unit
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step
from fewtags.objectives.momentum import (
    DENSE,
    RANGES,
    MomentumPair,
    channels_of,
    check_ranges,
    default_queue_size,
    mean_norm,
    run,
    second_view,
)
from fewtags.seeds import seed_of
from fewtags.stores.queue import AlignedQueues


class DenseKeys(NamedTuple):
    """What `step` hands to `commit`: of the images of all processes, numbers and unit rows for both queues."""

    ids: Tensor
    projections: Tensor
    cells: Tensor


@final
@dataclass(eq=False)
class DenseCL(Objective):
    """DenseCL (Wang et al., CVPR 2021): L = (1 - lambda) L_image + lambda L_cells (eq. 3).

    L_image is MoCo-v2's InfoNCE. L_cells is InfoNCE of every cell of view 1's grid: a dense projector (two 1x1
    convolutions) makes a vector of each cell; the positive key is that of view 2's cell whose backbone features are the
    most similar (eq. 4); negatives come from a second queue, of dense projections that are averaged over an image's
    grid (eq. 2). Both queues hold the same images at the same slots. Keys are those of a momentum encoder, its heads
    and grids put back in order after its shuffled BatchNorm.

    Deviations: the queues start empty, and what was never written is no negative; the weight of L_cells is the same
    from the first step on (published configurations leave it out of the first thousand); any batch size goes with any
    queue size.

    Args:
        weight: lambda.
        temperature: tau, of both losses.
        momentum: m of the momentum encoder.
        queue_size: D, of each queue; None: a sixteenth of the images, a power of two from 16 to 65536.
        projection_dim: of both projectors.
        hidden_dim: width of the hidden layer of both; None: that of the features.
        batchnorm_groups: see `MoCo`.

    Raises:
        ConfigError: a value that is out of range.
    """

    needs_second_view: ClassVar[bool] = True

    weight: float = 0.5
    temperature: float = 0.2
    momentum: float = 0.999
    queue_size: int | None = None
    projection_dim: int = 128
    hidden_dim: int | None = None
    batchnorm_groups: int = 1

    def __post_init__(self) -> None:
        check_ranges(self, OWN_RANGES)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make both projectors, the momentum encoder and the queues.

        Raises:
            ConfigError: the problem does not say how many channels the features have.
        """
        channels = channels_of(problem)
        widths = (self.hidden_dim or channels, self.projection_dim)
        self._dense = MLP((channels, *widths), seed=seed_of(problem.seed, DENSE))
        self._pair = MomentumPair(net, problem, widths, self.momentum, self.batchnorm_groups, pooled, dense=self._dense)
        size, dim = self.queue_size or default_queue_size(problem.labels.shape[0]), self.projection_dim
        self._queues = AlignedQueues(size, {"projections": dim, "cells": dim}, device=problem.device)
        return {**self._pair.parts(), "queues": self._queues}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Both losses, against the queues as they are.

        Raises:
            ConfigError: a batch without second views.
        """
        grid = run(net, batch.images, self.batchnorm_groups)
        query, cells = unit(self._pair.projector(pooled(grid))), unit(_per_cell(self._dense, grid), 1)
        shard = self._pair.problem.shard
        sizes = shard.sizes(batch.images)
        (key, key_cells, key_grid, means), first = self._pair.encode(
            net, second_view(batch, "DenseCL"), at, self._outputs, sizes
        )
        own = slice(first, first + len(query))
        queue, cell_queue = (self._queues.read(name).to(query) for name in ("projections", "cells"))
        filled = self._queues.counted()
        contrast = infonce(query, key[own], queue, self.temperature, counted=filled[None])
        dense = dense_infonce(
            cells, key_cells[own], grid.flatten(2), key_grid[own], cell_queue, self.temperature, counted=filled[None]
        )
        logs = {
            "infonce": contrast.detach(),
            "dense_infonce": dense.detach(),
            "spread": collapse(query.detach()),
            "positive": (query.detach() * key[own]).sum(1).mean(),
            "mean_key": mean_norm(queue, filled),
        }
        ids = shard.concatenate(batch.index, sizes)[0]
        loss = (1 - self.weight) * contrast + self.weight * dense
        return Step(loss, logs, DenseKeys(ids, key, means))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Enqueue the keys of all processes, and move the momentum encoder."""
        keys: DenseKeys = out.payload
        self._queues.enqueue(keys.ids, {"projections": keys.projections, "cells": keys.cells})
        self._pair.follow(net)

    def _outputs(self, grid: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys of images [b, p] and of cells [b, p, s], features by cell [b, d, s], keys for the queue of cells."""
        projector, dense = (self._pair.follower.get_submodule(name) for name in ("projector", "dense"))
        cells = _per_cell(dense, grid)
        return unit(projector(pooled(grid))), unit(cells, 1), grid.flatten(2), unit(cells.mean(2))


def _per_cell(head: nn.Module, grid: Tensor) -> Tensor:
    """A head on every cell of a grid [b, d, h, w], as 1x1 convolutions would: [b, p, h w]."""
    cells = grid.flatten(2).transpose(1, 2)
    rows: Tensor = head(cells.flatten(0, 1))
    return rows.reshape(*cells.shape[:2], -1).transpose(1, 2)


OWN_RANGES: Mapping[str, tuple[float, float]] = {
    "weight": (0.0, 1.0),
    **RANGES,
}
