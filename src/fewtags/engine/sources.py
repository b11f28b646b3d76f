"""Views of a frozen trunk, pushed through it once and cached: a frozen-trunk epoch then takes a second or less.

Exact because a frozen trunk stays in eval mode: the features of a view are the same in every epoch. Epoch e trains on
view number e mod V of every image, the view that `TrainSet(views_cycle=V)` would crop and push through anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from fewtags.data.loader import EvalLoader, TrainLoader
from fewtags.errors import ConfigError
from fewtags.labels import Batch, LabelMatrix
from fewtags.nets.spatial import SpatialNet
from fewtags.stores.shard import Shard

Tick = Callable[[int, int], None]
"""Called with images done and images to do."""


@final
@dataclass(frozen=True)
class CachePlan:
    """How many views are cached, and how.

    Attributes:
        views: random views per image.
        dtype: float32 (exact), or float16 where that would not fit.
        bytes: what they take, over all processes.
    """

    views: int
    dtype: torch.dtype
    bytes: int


def plan_cache(samples: int, features: tuple[int, int, int], views: int, limit: int) -> CachePlan:
    """Fit a cache into `limit` bytes: float32 if it fits, else float16, else fewer views.

    Args:
        samples: N.
        features: (d, h, w) of one view.
        views: as many as wanted.
        limit: bytes.

    Raises:
        ConfigError: not even one view fits.

    >>> plan_cache(1000, (1280, 7, 7), 8, 2 * 10**9).dtype
    torch.float16
    """
    one = samples * int(np.prod(features))
    for dtype in (torch.float32, torch.float16):
        if views * one * dtype.itemsize <= limit:
            return CachePlan(views, dtype, views * one * dtype.itemsize)
    fitting = limit // (one * torch.float16.itemsize)
    if not fitting:
        raise ConfigError(
            f"cached features of one view of {samples:,} images take {one * 2 / 2**30:.1f} GiB, more than the limit of "
            f"{limit / 2**30:.1f} GiB. Raise train.cache_gib, or set train.cached_views = 0 to train without a cache."
        )
    return CachePlan(int(fitting), torch.float16, int(fitting) * one * torch.float16.itemsize)


@final
class CachedViews:
    """Training batches from cached features; a `BatchSource`. `Batch.images` holds features [b, d, h, w].

    Args:
        net: its trunk is pushed through; it must be frozen.
        loader: crops the views; its data set must have `views_cycle` equal to the plan's views.
        labels: N images by C classes.
        plan: how many views, and how they are kept.
        shard: which images this process owns.
        device: where the trunk runs. Features stay in main memory.
        tick: told about progress.
    """

    def __init__(
        self,
        net: SpatialNet,
        loader: TrainLoader,
        labels: LabelMatrix,
        plan: CachePlan,
        *,
        shard: Shard | None = None,
        device: torch.device | None = None,
        tick: Tick | None = None,
    ) -> None:
        self._loader, self._labels, self._plan = loader, labels, plan
        self._shard = shard or Shard()
        self._features, self._views = self._fill(net, device or torch.device("cpu"), tick)

    def _fill(self, net: SpatialNet, device: torch.device, tick: Tick | None) -> tuple[Tensor, Tensor]:
        rows, plan = self._shard.rows(self._labels.shape[0]), self._plan
        features, views = torch.empty(0), torch.empty(plan.views, rows, 2, 3)
        net.eval()
        done = 0
        with torch.no_grad():
            for view in range(plan.views):
                for batch in self._loader.batches(view):
                    images = batch.images.to(device, memory_format=torch.channels_last)
                    values = net.features(images).to("cpu", plan.dtype)
                    if not features.numel():
                        features = torch.empty(plan.views, rows, *values.shape[1:], dtype=plan.dtype)
                    local = self._shard.local(batch.index)
                    features[view, local] = values
                    views[view, local] = batch.views
                    done += len(local)
                    if tick is not None:
                        tick(done, plan.views * rows)
        return features, views

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same on every process."""
        return self._loader.steps_per_epoch

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on."""
        view = epoch % self._plan.views
        for pairs in self._loader.sampler.batches(epoch, start):
            index = np.array([i for _, i in pairs], np.int64)
            rows = self._shard.local(torch.from_numpy(index))
            yield Batch(
                self._features[view, rows].float(),
                torch.from_numpy(self._labels.rows(index)),
                torch.from_numpy(index),
                self._views[view, rows],
            )


def pooled_features(net: SpatialNet, loader: EvalLoader, device: torch.device, tick: Tick | None = None) -> Tensor:
    """float32 [n, d, 1, 1]: mean features of this process's photos, in order. All that pooled logits need."""
    net.eval()
    pieces: list[Tensor] = []
    with torch.no_grad():
        for batch in loader:
            images = batch.images.to(device, memory_format=torch.channels_last)
            pieces.append(net.features(images).float().mean((2, 3), keepdim=True).cpu())
            if tick is not None:
                tick(sum(map(len, pieces)), 0)
    return torch.cat(pieces)
