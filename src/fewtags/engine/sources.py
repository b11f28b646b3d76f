"""Cached features of a frozen trunk: an epoch on them takes a second or less.

This is exact because a frozen trunk is in eval mode, so the features of a view are the same in every epoch. Epoch e
trains on view number e mod V of every image, which is the view that `TrainSet(views_cycle=V)` would crop. If an
objective needs a second view, there are V of them, too, and number e mod V belongs to the first view with that number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.engine.checkpoint import BAD_ARRAY, write_array
from fewtags.engine.solve import ChannelStatistics, channel_statistics
from fewtags.errors import CheckpointError, ConfigError
from fewtags.labels import Batch, LabelMatrix, Locations, SecondView
from fewtags.nets.spatial import SpatialNet, Trunk
from fewtags.photos.loader import EpochSampler, EvalLoader, TrainLoader, make_places
from fewtags.photos.scan import Tick
from fewtags.stores.shard import Shard

# Convolutions are fastest with channels last; features that are stored so need no second copy in a batch.
CHANNELS_LAST, CHANNELS_FIRST = (0, 1, 3, 4, 2), (0, 1, 4, 2, 3)


@final
@dataclass(frozen=True)
class CachePlan:
    """How many views are cached, and in which form.

    Attributes:
        views: random views per image.
        dtype: float32 (exact), or float16 where that would not fit.
        bytes: their size over all processes, second views included.
        pooled: keep only the mean over the grid, [d, 1, 1], if nothing needs maps.
    """

    views: int
    dtype: torch.dtype
    bytes: int
    pooled: bool = False


def plan_cache(
    samples: int,
    features: tuple[int, int, int],
    views: int,
    limit: int,
    *,
    second_view: bool = False,
    pooled: bool = False,
    remedy: str = "Raise train.cache_gib, or set train.cached_views = 0 to train without a cache.",
) -> CachePlan:
    """Fit a cache into `limit` bytes: float32 if it fits, else float16, else fewer views.

    `features` is (d, h, w) of one view of one of N `samples`. With `second_view`, there are two for each view; with
    `pooled`, only the mean over the grid is kept. `remedy` ends the message if nothing fits.

    Raises:
        ConfigError: one view does not fit.

    >>> plan_cache(1000, (1280, 7, 7), 8, 2 * 10**9).dtype
    torch.float16
    """
    one = samples * int(np.prod(features[:1] if pooled else features)) * (2 if second_view else 1)
    for dtype in (torch.float32, torch.float16):
        if views * one * dtype.itemsize <= limit:
            return CachePlan(views, dtype, views * one * dtype.itemsize, pooled)
    fitting = limit // (one * torch.float16.itemsize)
    if not fitting:
        what = "a first and a second view" if second_view else "one view"
        raise ConfigError(
            f"cached features of {what} of {samples:,} images take {one * 2 / 2**30:.1f} GiB, more than the limit of "
            f"{limit / 2**30:.1f} GiB. {remedy}"
        )
    return CachePlan(int(fitting), torch.float16, int(fitting) * one * torch.float16.itemsize, pooled)


@final
@dataclass(frozen=True, eq=False)
class ViewFeatures:
    """Features of V views of n images from a frozen trunk. They do not depend on labels, so runs can share them.

    Attributes:
        features: [V, n, d, h, w], float32 or float16, channels last in memory. The n images are those of one process.
        views: float32 [V, n, 2, 3].
        second_view: features of the second view that belongs to each view; None if there is none.
    """

    features: Tensor
    views: Tensor
    second_view: ViewFeatures | None = None

    @property
    def count(self) -> int:
        """V: views per image."""
        return len(self.features)

    def save(self, folder: Path) -> None:
        """Write `features.npy` and `views.npy`, second views into `strong/`; a missing folder is made."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in (("features", self.features.permute(*CHANNELS_LAST)), ("views", self.views)):
            write_array(folder / f"{name}.npy", values.numpy())
        shutil.rmtree(folder / "strong", ignore_errors=True)
        if self.second_view is not None:
            self.second_view.save(folder / "strong")

    @classmethod
    def load(cls, folder: Path) -> ViewFeatures:
        """Load what `save` wrote, memory-mapped, so that processes on one machine share the memory.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        try:
            # Copy on write, so that the files do not change.
            files = [np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("features", "views")]
        except BAD_ARRAY as error:
            raise CheckpointError(f"cached views in {folder} cannot be read ({error}); delete the folder.") from None
        features, views = (torch.from_numpy(values) for values in files)
        second_view = cls.load(folder / "strong") if (folder / "strong").exists() else None
        return cls(features.permute(*CHANNELS_FIRST), views, second_view)


@torch.no_grad()
def fill_views(
    net: SpatialNet,
    loader: TrainLoader,
    plan: CachePlan,
    *,
    shard: Shard | None = None,
    device: torch.device | None = None,
    tick: Tick | None = None,
) -> ViewFeatures:
    """Compute the features of every view once, also of second views if the loader draws them; they stay in main memory.

    The trunk of the net must be frozen, and `views_cycle` of the loader's data set the number of views of the plan.
    `tick` is called with views done and to do.
    """
    shard, device = shard or Shard(), device or torch.device("cpu")
    rows = shard.rows(loader.sampler.samples)
    first, second = _FeatureBuffer(plan, rows), _FeatureBuffer(plan, rows)
    net.eval()
    done = 0
    for view in range(plan.views):
        for batch in loader.batches(view):
            local = shard.local(batch.index)
            for filling, seen in ((first, SecondView(batch.images, batch.views)), (second, batch.second_view)):
                if seen is not None:
                    images = seen.images.to(device, memory_format=torch.channels_last)
                    filling.put(view, local, net.features(images), seen.views)
            done += len(local)
            if tick is not None:
                tick(done, plan.views * rows)
    second_view = ViewFeatures(second.features, second.views) if second.features.numel() else None
    return ViewFeatures(first.features, first.views, second_view)


class _FeatureBuffer:
    """Features and views of images that are filled in batch by batch."""

    def __init__(self, plan: CachePlan, rows: int) -> None:
        self.plan, self.rows = plan, rows
        self.features, self.views = torch.empty(0), torch.empty(plan.views, rows, 2, 3)

    def put(self, view: int, rows: Tensor, features: Tensor, views: Tensor) -> None:
        """Store the features of view number `view` of the images `rows`."""
        if self.plan.pooled:
            features = features.float().mean((2, 3), keepdim=True)
        if not self.features.numel():
            d, h, w = features.shape[1:]
            shape = (self.plan.views, self.rows, h, w, d)
            self.features = torch.empty(shape, dtype=self.plan.dtype).permute(*CHANNELS_FIRST)
        self.features[view, rows] = features.to("cpu", self.plan.dtype)
        self.views[view, rows] = views


@final
class StoredViews:
    """Training batches of cached features of this process's images, `filled`; a `BatchSource`.

    `Batch.images` are features [b, d, h, w].
    """

    def __init__(
        self,
        filled: ViewFeatures,
        sampler: EpochSampler,
        labels: LabelMatrix,
        *,
        locations: Locations | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.filled, self.sampler, self.labels, self.locations = filled, sampler, labels, locations
        self._shard = shard or Shard()
        rows = self._shard.rows(sampler.samples)
        assert filled.features.shape[1] == rows, (filled.features.shape, rows)
        assert labels.shape[0] == sampler.samples, (labels.shape, sampler.samples)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same on every process."""
        return self.sampler.steps

    def statistics(self, device: torch.device | None = None) -> ChannelStatistics:
        """Compute statistics of the pooled features of all processes, which exchange tensors on `device`."""
        return channel_statistics(self.filled.features, self.sampler.samples, self._shard, device)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `start` on."""
        for pairs in self.sampler.batches(epoch, start):
            index = np.array([i for _, i in pairs], np.int64)
            yield self._batch(epoch, index, self._shard.local(torch.from_numpy(index)))

    def in_order(self, epoch: int, size: int) -> Iterator[Batch]:
        """Yield the images of `batches` in the order of their rows, so that float32 features are not copied.

        `epoch` selects the view, and `size` is the number of images in a batch; the last one may be smaller.
        """
        owned = self._shard.owned(self.sampler.samples).numpy()
        for first in range(0, len(owned), size):
            rows = slice(first, min(first + size, len(owned)))
            yield self._batch(epoch, owned[rows], rows)

    def _batch(self, epoch: int, index: NDArray[np.int64], rows: Tensor | slice) -> Batch:
        view, second = epoch % self.filled.count, self.filled.second_view
        other = None if second is None else SecondView(second.features[view][rows].float(), second.views[view][rows])
        return Batch(
            images=self.filled.features[view][rows].float(),
            labels=torch.from_numpy(self.labels.rows(index)),
            index=torch.from_numpy(index),
            views=self.filled.views[view][rows],
            places=None if self.locations is None else make_places(*self.locations.rows(index)),
            second_view=other,
        )


def fill_fixed(
    net: SpatialNet, loader: EvalLoader, plan: CachePlan, rows: int, *, device: torch.device, tick: Tick | None = None
) -> ViewFeatures:
    """Compute the features of the test view of each of the loader's `rows` photos once; they stay in main memory.

    The trunk of the net must be frozen. `tick` is called with photos done, and 0.
    """
    assert plan.views == 1, plan
    filling, done = _FeatureBuffer(plan, rows), 0
    for batch, features in _through_trunk(net, loader, device):
        filling.put(0, torch.arange(done, done + len(features)), features, batch.views)
        done += len(features)
        if tick is not None:
            tick(done, 0)
    return ViewFeatures(filling.features, filling.views)


def head_inputs(
    net: SpatialNet, loader: EvalLoader, device: torch.device, tick: Tick | None = None, *, pooled: bool = False
) -> Tensor:
    """Compute the inputs that the head needs to predict this process's photos, in order.

    They are mean features, float32 [n, d, 1, 1], if pooling first gives the same logits or if `pooled`; otherwise
    features, float32 [n, d, h, w].
    """
    pooled = pooled or net.head.plan.commutes
    pieces: list[Tensor] = []
    done = 0
    for _, features in _through_trunk(net, loader, device):
        features = features.float()
        pieces.append((features.mean((2, 3), keepdim=True) if pooled else features).cpu())
        done += len(features)
        if tick is not None:
            tick(done, 0)
    # A process may have no photos.
    return torch.cat(pieces) if pieces else torch.zeros(0, net.head.features_dim, 1, 1)


def pooled_features(net: Trunk, loader: EvalLoader, device: torch.device) -> Tensor:
    """Compute the mean features [n, d] of this process's photos; the net keeps its mode, training or eval."""
    training = net.training
    pieces = [features.float().mean((2, 3)).cpu() for _, features in _through_trunk(net, loader, device)]
    net.train(training)
    return torch.cat(pieces)


def _through_trunk(net: Trunk, loader: EvalLoader, device: torch.device) -> Iterator[tuple[Batch, Tensor]]:
    """Yield batches and their features [b, d, h, w], without gradients."""
    net.eval()
    for batch in loader:
        with torch.no_grad():
            yield batch, net.features(batch.images.to(device, memory_format=torch.channels_last))
