"""Photos of the pretraining benchmark: made small once, and their views kept as pixels that all runs share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fewtags.batched_views import stack_views
from fewtags.errors import DataError
from fewtags.labels import Batch, LabelMatrix, Locations, SecondView
from fewtags.nets.spatial import Preprocessing
from fewtags.photos.augment import Policy, ResizedCrop, SquareCrop
from fewtags.photos.augment_moco import AugPlus
from fewtags.photos.dataset import EvalSet, Failure, PhotoFolder, Sample, TrainSet
from fewtags.photos.loader import EpochSampler, make_places
from fewtags.table.table import LabelTable
from photo_sets import SPLITS, BenchmarkSet
from pretraining_protocol import PretrainBenchmark
from protocol import digest

FOLDER = "pretraining"  # in the cache folder
QUALITY = 95


@final
@dataclass(frozen=True, eq=False)
class Pixels:
    """Everything about the photos that runs share.

    Attributes:
        data: small photos and complete labels.
        pairs: uint8 [V, 2, n, s, s, 3], the two changed views of a pair, of the training photos.
        crops: uint8 [V, n, s, s, 3], plain crops of the training photos, for training on labels.
        crop_views: float32 [V, n, 2, 3], where those crops are.
        whole: uint8 [n, s, s, 3] of each split, whole photos stretched to a square.
    """

    data: BenchmarkSet
    pairs: NDArray[np.uint8]
    crops: NDArray[np.uint8]
    crop_views: NDArray[np.float32]
    whole: dict[str, NDArray[np.uint8]]


def shrink(data: BenchmarkSet, photo: int, cache: Path) -> BenchmarkSet:
    """The same set with photos of at most `photo` pixels, made once in `cache`."""
    folder = cache / FOLDER / f"photos-{photo}-{digest([table.fingerprint for table in data.splits.values()])}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for table in data.splits.values():
                _shrink_all(table, photo, made)
            made.replace(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    small = [replace(table, images=_names(table), root=folder) for table in data.splits.values()]
    return replace(data, train_truth=small[0], val=small[1], test=small[2])


def _shrink_all(table: LabelTable, photo: int, folder: Path) -> None:
    assert table.root is not None
    for key, name in zip(table.images.to_pylist(), _names(table).to_pylist(), strict=True):
        with Image.open(table.root / key) as file:
            image = file.convert("RGB")
        image.thumbnail((photo, photo), Image.Resampling.BICUBIC)
        image.save(folder / name, format="JPEG", quality=QUALITY, subsampling=0)


def _names(table: LabelTable) -> pa.Array:
    return pa.array([key.replace("/", "_") for key in table.images.to_pylist()], table.images.type)


def pixels_folder(benchmark: PretrainBenchmark, data: BenchmarkSet, cache: Path) -> Path:
    """Where the views of small photos lie; another folder for every other way of making them."""
    chosen: dict[str, Any] = {
        "size": True,
        "views": True,
        "view_seed": True,
        "pretrain": {"augment"},
        "finetune": {"min_area", "views"},
    }
    content = [benchmark.model_dump(mode="json", include=chosen), data.train_truth.root and data.train_truth.root.name]
    return cache / FOLDER / f"views-{digest(content)}"


def fill(benchmark: PretrainBenchmark, data: BenchmarkSet, folder: Path) -> None:
    """Make all views of the training photos, and the test view of every photo."""
    table, size = data.train_truth, benchmark.size
    a = benchmark.settings(next(n for n, m in benchmark.methods.items() if m.objective is not None), 0).augment
    change = AugPlus(
        brightness=a.brightness,
        contrast=a.contrast,
        saturation=a.saturation,
        hue=a.hue,
        jitter_share=a.jitter_share,
        grey_share=a.grey_share,
        blur_share=a.blur_share,
    )
    policy = ResizedCrop(size, (a.min_area, 1.0), flip=a.flip)
    pairs = TrainSet(
        photos=_photos(table),
        labels=table.matrix,
        policy=policy,
        seed=benchmark.view_seed,
        jitter=change,
        second_view=change,
    )
    square = SquareCrop(size, (benchmark.finetune.min_area, 1.0))
    crops = TrainSet(photos=_photos(table), labels=table.matrix, policy=square, seed=benchmark.view_seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        shape = (benchmark.views, 2, len(table), size, size, 3)
        file = np.lib.format.open_memmap(made / "pairs.npy", "w+", np.uint8, shape)
        for view in range(benchmark.views):
            for i in range(len(table)):
                sample = _good(pairs[view, i])
                assert sample.second_view is not None
                file[view, 0, i], file[view, 1, i] = sample.pixels, sample.second_view.pixels
        file.flush()
        samples = [[_good(crops[view, i]) for i in range(len(table))] for view in range(benchmark.finetune.views)]
        np.save(made / "crops.npy", np.stack([np.stack([s.pixels for s in row]) for row in samples]))
        views = np.stack([stack_views([s.view for s in row]).numpy() for row in samples])
        np.save(made / "crop_views.npy", views)
        for name in SPLITS:
            np.save(made / f"{name}.npy", whole(data.splits[name], square))
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def whole(table: LabelTable, policy: Policy) -> NDArray[np.uint8]:
    """uint8 [n, s, s, 3]: every photo through the policy's test view."""
    photos = EvalSet(_photos(table), table.matrix, policy)
    return np.stack([_good(photos[i]).pixels for i in range(len(table))])


def open_pixels(data: BenchmarkSet, folder: Path) -> Pixels:
    """Everything that `fill` made; views of pairs stay on disk, in pages that processes share."""
    rest = {name: np.load(folder / f"{name}.npy") for name in ("crops", "crop_views", *SPLITS)}
    pairs = np.load(folder / "pairs.npy", mmap_mode="r")
    return Pixels(data, pairs, rest["crops"], rest["crop_views"], {name: rest[name] for name in SPLITS})


def normalised(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> Tensor:
    """float32 [b, 3, s, s] as a net wants it, from uint8 [b, s, s, 3]; channels last in memory."""
    mean, std = (torch.tensor(values) for values in (preprocessing.mean, preprocessing.std))
    return ((torch.from_numpy(pixels).float() / 255 - mean) / std).permute(0, 3, 1, 2)


@final
@dataclass(frozen=True, eq=False)
class PairSource:
    """A `BatchSource` of two views of every training photo; which of them is a function of the epoch.

    Attributes:
        pixels: the views.
        sampler: which photos make up which batch.
        labels: without classes.
        preprocessing: of the net.
    """

    pixels: Pixels
    sampler: EpochSampler
    labels: LabelMatrix
    preprocessing: Preprocessing

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.sampler.steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on."""
        count = len(self.pixels.pairs)
        one, two = epoch % count, (epoch + epoch // count) % count
        for chosen in self.sampler.batches(epoch, start):
            index = np.array([i for _, i in chosen], np.int64)
            first, second = (self._images(view, part, index) for part, view in enumerate((one, two)))
            nowhere = torch.zeros(len(index), 2, 3)  # no method here asks where the views are
            labels = torch.from_numpy(self.labels.rows(index))
            yield Batch(
                images=first,
                labels=labels,
                index=torch.from_numpy(index),
                views=nowhere,
                places=None,
                second_view=SecondView(second, nowhere),
            )

    def _images(self, view: int, part: int, index: NDArray[np.int64]) -> Tensor:
        return normalised(self.pixels.pairs[view, part][index], self.preprocessing)


@final
@dataclass(frozen=True, eq=False)
class CropSource:
    """A `BatchSource` of crops of a few training photos, with labels.

    Attributes:
        pixels: the crops.
        rows: positions of the photos among all training photos, int64 [n].
        sampler: of those n.
        labels: of those n.
        preprocessing: of the net.
        locations: of those n; None for none.
    """

    pixels: Pixels
    rows: NDArray[np.int64]
    sampler: EpochSampler
    labels: LabelMatrix
    preprocessing: Preprocessing
    locations: Locations | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.sampler.steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on."""
        view = epoch % len(self.pixels.crops)
        for chosen in self.sampler.batches(epoch, start):
            index = np.array([i for _, i in chosen], np.int64)
            rows = self.rows[index]
            yield Batch(
                images=normalised(self.pixels.crops[view][rows], self.preprocessing),
                labels=torch.from_numpy(self.labels.rows(index)),
                index=torch.from_numpy(index),
                views=torch.from_numpy(self.pixels.crop_views[view][rows]),
                places=None if self.locations is None else make_places(*self.locations.rows(index)),
            )


def _photos(table: LabelTable) -> PhotoFolder:
    assert table.root is not None
    return PhotoFolder(table.root, table.images)


def _good(sample: Sample | Failure) -> Sample:
    if isinstance(sample, Failure):
        raise DataError(sample.message)
    return sample
