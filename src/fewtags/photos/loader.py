"""Batches for training and evaluation: sampler, collation, loaders and worker processes.

The order of an epoch and its samples are functions of (seed, epoch, sample index). The number of workers, the order of
requests, and a resume in the middle of an epoch therefore change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError, DataError
from fewtags.labels import Batch, Places, SecondView
from fewtags.photos.augment import Pixels
from fewtags.photos.dataset import EvalSet, Failure, Sample, TrainSet
from fewtags.photos.workers import WorkerLoader, Workers
from fewtags.seeds import rng

ORDER = 1
"""Stream of `rng`: the order of an epoch."""


@final
@dataclass(frozen=True)
class EpochSampler:
    """The samples of each batch, on every process and in every epoch.

    The order of an epoch is one permutation of all samples, drawn from (seed, epoch). Sample i belongs to rank i mod
    world in every epoch, so that a row of a store has one owner. Each rank takes its samples in the order of that
    permutation, in batches whose sizes differ by at most one. Every sample comes exactly once per epoch; nothing is
    padded, repeated or dropped. All ranks make the same number of steps.

    Attributes:
        samples: N.
        batch_size: largest number of samples per process and step (one more if a rank would have no batch otherwise: in
            practice, only with batch size 1).
        seed: seed of the run.
        rank: this process among `world`.
        world: number of processes.

    Raises:
        ConfigError: no samples, a batch size below 1, or more processes than samples.
    """

    samples: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world, (self.rank, self.world)
        if self.batch_size < 1:
            raise ConfigError(f"batch size {self.batch_size} must be 1 or more.")
        if self.samples < self.world:
            raise ConfigError(
                f"{self.samples} training images cannot be shared by {self.world} processes; add images or use fewer."
            )

    @property
    def steps(self) -> int:
        """Batches per epoch, the same on every rank and in every epoch."""
        fewest, most = self.samples // self.world, -(-self.samples // self.world)
        return min(-(-most // self.batch_size), fewest)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[tuple[int, int]]]:
        """The (epoch, index) pairs of each batch of an epoch, from batch number `start` on."""
        order = rng(self.seed, epoch, 0, ORDER).permutation(self.samples)
        cut = np.array_split(order[order % self.world == self.rank], self.steps)
        for step in range(start, self.steps):
            yield [(epoch, int(index)) for index in cut[step]]


@final
@dataclass(frozen=True, eq=False)
class PixelBatch:
    """A batch as it leaves a worker process: images, also of the second view, are uint8 [b, h, w, 3].

    That is a quarter of the bytes of a normalised batch. `problem` is that of its first sample with one.
    """

    batch: Batch
    problem: str = ""

    def pin_memory(self) -> PixelBatch:
        """Copy to page-locked memory; a `DataLoader` with `pin_memory` calls this."""
        return PixelBatch(self.batch.pin_memory(), self.problem)


@final
@dataclass(frozen=True)
class Collate:
    """Samples -> `Batch`, with pixels normalised to (pixel / 255 - mean) / std.

    `mean` and `std` are those of red, green and blue in 0..1, as the net's weights expect. Worker processes `stack`;
    the main process normalises, on the device where the batch is used.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def stack(self, samples: Sequence[Sample | Failure]) -> PixelBatch | Failure:
        """Return a batch of pixels that are not normalised, or the first failure among its samples."""
        good = [sample for sample in samples if isinstance(sample, Sample)]
        if len(good) < len(samples):
            return next(sample for sample in samples if isinstance(sample, Failure))
        images, views = _stacked(good)
        second_view = [sample.second_view for sample in good if sample.second_view is not None]
        classes = [sample.classes for sample in good if sample.classes is not None]
        boxes = [sample.boxes for sample in good if sample.boxes is not None]
        row = np.repeat(np.arange(len(classes)), [len(c) for c in classes])
        batch = Batch(
            images=images,
            labels=torch.from_numpy(np.stack([sample.labels for sample in good])),
            index=torch.tensor([sample.index for sample in good], dtype=torch.int64),
            views=views,
            places=make_places(row, np.concatenate(classes), np.concatenate(boxes)) if classes else None,
            second_view=SecondView(*_stacked(second_view)) if second_view else None,
        )
        seen = [one for sample in good for one in (sample, sample.second_view) if one is not None]
        return PixelBatch(batch, next((one.problem for one in seen if one.problem), ""))

    def normalise(self, stacked: PixelBatch, device: torch.device | None = None) -> Batch:
        """Return the batch with images float32 [b, 3, h, w] on a device; everything else stays in main memory."""
        batch = stacked.batch
        second_view = batch.second_view
        if second_view is not None:
            second_view = second_view._replace(images=self._normalised(second_view.images, device))
        return replace(batch, images=self._normalised(batch.images, device), second_view=second_view)

    def pixels(self, crops: Sequence[Pixels], device: torch.device | None = None) -> torch.Tensor:
        """Return normalised pixels, float32 [b, 3, h, w] on a device, of crops uint8 [h, w, 3] of one size."""
        return self._normalised(torch.from_numpy(np.stack(crops)), device)

    def _normalised(self, pixels: torch.Tensor, device: torch.device | None) -> torch.Tensor:
        """uint8 [b, h, w, 3] -> float32 [b, 3, h, w], channels last in memory, the same bits on every device."""
        device = device or torch.device("cpu")
        pixels = pixels.to(device, non_blocking=True)
        count, height, width, _ = pixels.shape
        # The normalised value of each of the 256 values, for one channel after the other.
        values = (np.arange(256) / 255 - np.array(self.mean)[:, None]) / np.array(self.std)[:, None]
        table = torch.from_numpy(values.astype(np.float32)).to(device).flatten()
        first = torch.tensor([0, 256, 512], dtype=torch.int32, device=device).repeat(width)
        images = torch.empty(count, height, width, 3, device=device)
        # On a CPU, the table positions of one image at a time stay in the cache.
        step = 1 if device.type == "cpu" else max(1, count)
        for rows, out in zip(pixels.view(count, height, width * 3).split(step), images.split(step), strict=True):
            torch.index_select(table, 0, (rows + first).flatten(), out=out.view(-1))
        return images.permute(0, 3, 1, 2)


def _stacked(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels uint8 [b, h, w, 3] and views float32 [b, 2, 3]."""
    pixels = torch.from_numpy(np.stack([sample.pixels for sample in samples]))
    return pixels, stack_views([sample.view for sample in samples])


def make_places(row: NDArray[np.int64], classes: NDArray[np.int32], boxes: NDArray[np.float32]) -> Places:
    """Return the result of `Locations.rows` as tensors of a batch."""
    return Places(torch.from_numpy(row), torch.from_numpy(classes).long(), torch.from_numpy(boxes))


@final
class TrainLoader:
    """Training batches of any epoch, from any step on; a `BatchSource` of the training loop.

    Worker processes start with the first epoch and stop with the loader. One epoch is read at a time. `problem` says
    why the cache of photos could not be written, and is "" as long as it could.

    Args:
        data: the samples.
        sampler: their order.
        collate: makes a batch of samples.
        workers: worker processes; None: the main process.
        device: device of the normalised images; None: main memory. Everything else of a batch is in main memory.
    """

    def __init__(
        self,
        data: TrainSet,
        sampler: EpochSampler,
        collate: Collate,
        workers: Workers | None = None,
        device: torch.device | None = None,
    ) -> None:
        assert len(data) == sampler.samples, (len(data), sampler.samples)
        self.sampler = sampler
        self._collate, self._device = collate, device
        self._plan, self.problem = _Plan(sampler), ""
        self._loader = make_loader(data, self._plan, collate, workers, batch_size=sampler.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch, the same on every process."""
        return self.sampler.steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `start` on; an unreadable photo is a `DataError`."""
        self._plan.epoch, self._plan.start = epoch, start
        return _normalised(self._watched(), self._collate, self._device)

    def _watched(self) -> Iterator[PixelBatch | Failure]:
        """Yield the batches, and keep the first problem."""
        for batch in self._loader:
            if isinstance(batch, PixelBatch) and not self.problem:
                self.problem = batch.problem
            yield batch


@dataclass
class _Plan:
    """Batches of the next epoch; the main process reads it."""

    sampler: EpochSampler
    epoch: int = 0
    start: int = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.sampler.batches(self.epoch, self.start)

    def __len__(self) -> int:
        return self.sampler.steps - self.start


@final
class EvalLoader:
    """The photos of one process once, in order, through the test view; nothing is padded or dropped.

    Photo i belongs to rank i mod world. The last batch may be smaller than `batch_size`. Worker processes start anew
    for every pass. `TrainLoader` explains the other arguments.

    Raises:
        ConfigError: a batch size below 1.
        DataError: while iterating: a photo cannot be read.
    """

    def __init__(
        self,
        data: EvalSet,
        batch_size: int,
        collate: Collate,
        workers: Workers | None = None,
        *,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size {batch_size} must be 1 or more.")
        assert 0 <= rank < world, (rank, world)
        batches = BatchSampler(range(rank, len(data), world), batch_size, drop_last=False)
        self._collate, self._device = collate, device
        self._loader = make_loader(data, batches, collate, workers, persistent=False, batch_size=batch_size)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        return _normalised(iter(self._loader), self._collate, self._device)


def make_loader(
    data: TrainSet | EvalSet,
    batches: Iterable[Sequence[Any]],
    collate: Collate,
    workers: Workers | None = None,
    *,
    persistent: bool = True,
    batch_size: int = 64,
) -> WorkerLoader:
    """Return a loader of batches of keys: a `PixelBatch`, or a `Failure` for an unreadable photo."""
    views = 2 if isinstance(data, TrainSet) and data.second_view is not None else 1
    pixels = 3 * data.policy.size**2  # bytes of a crop
    return WorkerLoader(
        data, batches, collate.stack, workers, persistent=persistent, batch_bytes=batch_size * views * pixels
    )


def _normalised(
    batches: Iterator[PixelBatch | Failure], collate: Collate, device: torch.device | None
) -> Iterator[Batch]:
    for batch in batches:
        if isinstance(batch, Failure):
            raise DataError(batch.message)
        yield collate.normalise(batch, device)
