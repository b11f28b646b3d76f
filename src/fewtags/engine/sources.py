"""Views of a frozen trunk, pushed through it once and cached: a frozen-trunk epoch then takes a second or less.

Exact because a frozen trunk stays in eval mode: the features of a view are the same in every epoch. Epoch e trains on
view number e mod V of every image, the view that `TrainSet(views_cycle=V)` would crop and push through anew. Where an
objective needs a second view, there are V of them as well, and number e mod V goes with the first one.
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

from fewtags.engine.checkpoint import write_array
from fewtags.engine.solve import ChannelStatistics, channel_statistics
from fewtags.errors import CheckpointError, ConfigError
from fewtags.labels import Batch, LabelMatrix, Locations, SecondView
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.loader import EpochSampler, EvalLoader, TrainLoader, make_places
from fewtags.photos.scan import Tick
from fewtags.stores.shard import Shard

# Channels last is how convolutions want features; stored like this, a batch needs no second copy.
CHANNELS_LAST, CHANNELS_FIRST = (0, 1, 3, 4, 2), (0, 1, 4, 2, 3)


@final
@dataclass(frozen=True)
class CachePlan:
    """How many views are cached, and how.

    Attributes:
        views: random views per image.
        dtype: float32 (exact), or float16 where that would not fit.
        bytes: what they take, over all processes, second views included.
        pooled: keep the mean over the grid alone, [d, 1, 1]: enough where nothing looks at maps.
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

    Args:
        samples: N.
        features: (d, h, w) of one view.
        views: as many as wanted.
        limit: bytes.
        second_view: a second view is cached beside each view.
        pooled: keep the mean over the grid alone.
        remedy: ends the message if nothing fits.

    Raises:
        ConfigError: not even one view fits.

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
    """What a frozen trunk makes of V views of n images. Depends on no label, so that runs can share it.

    Attributes:
        features: [V, n, d, h, w], float32 or float16, channels last in memory. n images: those of one process.
        views: float32 [V, n, 2, 3].
        second_view: the same for the second view beside each view; None if there is none.
    """

    features: Tensor
    views: Tensor
    second_view: ViewFeatures | None = None

    @property
    def count(self) -> int:
        """V: views per image."""
        return len(self.features)

    def save(self, folder: Path) -> None:
        """Write `features.npy` and `views.npy`, and the second views into `strong/`; makes the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in (("features", self.features.permute(*CHANNELS_LAST)), ("views", self.views)):
            write_array(folder / f"{name}.npy", values.numpy())
        shutil.rmtree(folder / "strong", ignore_errors=True)
        if self.second_view is not None:
            self.second_view.save(folder / "strong")

    @classmethod
    def load(cls, folder: Path) -> ViewFeatures:
        """What `save` wrote, memory-mapped: processes on one machine share the memory.

        Raises:
            CheckpointError: missing or damaged.
        """
        try:
            # Copy on write: nothing may change the files.
            files = [np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("features", "views")]
        except (OSError, ValueError) as error:
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
    """Push every view through a trunk once, second views too if the loader draws them.

    Args:
        net: its trunk must be frozen.
        loader: crops the views; its data set must have `views_cycle` equal to the plan's views.
        plan: how many views, and how they are kept.
        shard: which images this process owns.
        device: where the trunk runs. Features stay in main memory.
        tick: told about progress.
    """
    shard, device = shard or Shard(), device or torch.device("cpu")
    rows = shard.rows(loader.sampler.samples)
    first, second = _Filling(plan, rows), _Filling(plan, rows)
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


class _Filling:
    """Features and views of some images of one kind, as far as they are known."""

    def __init__(self, plan: CachePlan, rows: int) -> None:
        self.plan, self.rows = plan, rows
        self.features, self.views = torch.empty(0), torch.empty(plan.views, rows, 2, 3)

    def put(self, view: int, rows: Tensor, features: Tensor, views: Tensor) -> None:
        """Keep what view number `view` of the images `rows` gave."""
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
    """Training batches from features that are there already; a `BatchSource`. `Batch.images` holds [b, d, h, w].

    Args:
        filled: V views of the images of this process.
        sampler: which samples make up which batch.
        labels: N images by C classes.
        locations: points and boxes of the images; None for none.
        shard: which images this process owns.
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
        """Mean and deviation of the pooled features of all processes, which exchange them on `device`."""
        return channel_statistics(self.filled.features, self.sampler.samples, self._shard, device)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on."""
        for pairs in self.sampler.batches(epoch, start):
            index = np.array([i for _, i in pairs], np.int64)
            yield self._batch(epoch, index, self._shard.local(torch.from_numpy(index)))

    def in_order(self, epoch: int, size: int) -> Iterator[Batch]:
        """The same images as in `batches`, in the order of their rows: what is cached as float32 is not copied.

        Args:
            epoch: decides the view.
            size: images a batch; the last one may be smaller.
        """
        owned = self._shard.owned(self.sampler.samples).numpy()
        for first in range(0, len(owned), size):
            rows = slice(first, min(first + size, len(owned)))
            yield self._batch(epoch, owned[rows], rows)

    def _batch(self, epoch: int, index: NDArray[np.int64], rows: Tensor | slice) -> Batch:
        view, second = epoch % self.filled.count, self.filled.second_view
        return Batch(
            self.filled.features[view][rows].float(),
            torch.from_numpy(self.labels.rows(index)),
            torch.from_numpy(index),
            self.filled.views[view][rows],
            None if self.locations is None else make_places(*self.locations.rows(index)),
            None if second is None else SecondView(second.features[view][rows].float(), second.views[view][rows]),
        )


def fill_fixed(
    net: SpatialNet, loader: EvalLoader, plan: CachePlan, rows: int, *, device: torch.device, tick: Tick | None = None
) -> ViewFeatures:
    """Push the test view of every photo through a trunk once.

    Args:
        net: its trunk must be frozen.
        loader: this process's share of the training photos.
        plan: one view; how it is kept.
        rows: photos of the loader.
        device: where the trunk runs. Features stay in main memory.
        tick: called with photos done, and 0.
    """
    assert plan.views == 1, plan
    filling, done = _Filling(plan, rows), 0
    for batch, features in _through_trunk(net, loader, device):
        filling.put(0, torch.arange(done, done + len(features)), features, batch.views)
        done += len(features)
        if tick is not None:
            tick(done, 0)
    return ViewFeatures(filling.features, filling.views)


def head_inputs(
    net: SpatialNet, loader: EvalLoader, device: torch.device, tick: Tick | None = None, *, pooled: bool = False
) -> Tensor:
    """What the head needs of this process's photos to predict, in order.

    Returns:
        float32 [n, d, 1, 1], mean features, where the pool may come first, or if they are asked for (`pooled`); else
        float32 [n, d, h, w].
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
    # A process may have no photo at all.
    return torch.cat(pieces) if pieces else torch.zeros(0, net.head.features_dim, 1, 1)


def _through_trunk(net: SpatialNet, loader: EvalLoader, device: torch.device) -> Iterator[tuple[Batch, Tensor]]:
    """Batches and their features [b, d, h, w], which no gradient will ever need."""
    net.eval()
    for batch in loader:
        with torch.no_grad():
            yield batch, net.features(batch.images.to(device, memory_format=torch.channels_last))
