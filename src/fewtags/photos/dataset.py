"""Data sets: photo files, labels and a policy give samples.

All randomness of a sample is a function of (seed, epoch, sample index). The epoch is part of the key that the sampler
passes to the data set; no data set, transform or worker has a state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch.utils.data import Dataset

from fewtags.errors import FewtagsError
from fewtags.geometry import View
from fewtags.labels import LabelMatrix, Locations
from fewtags.photos.augment import PixelChange, Policy
from fewtags.photos.cache import PhotoCache, ViewRead
from fewtags.photos.decode import open_photo
from fewtags.photos.in_memory import NamedImage, photo_in_memory
from fewtags.seeds import rng

AUGMENTATION, SECOND_VIEW = 0, 2
"""Streams of `rng`: the first view of a photo, and the second."""


@final
@dataclass(frozen=True)
class PhotoFolder:
    """The photo files of a label table: a folder, and keys relative to it."""

    root: Path
    keys: pa.Array  # string [N]; worker processes would gradually copy all objects of a list

    def __len__(self) -> int:
        return len(self.keys)

    def path(self, index: int) -> Path:
        """Return the path of a photo."""
        return self.root / str(self.keys[index].as_py())


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """One photo seen through one view.

    Attributes:
        pixels: uint8 [h, w, 3].
        labels: int8 [C].
        index: global sample index.
        view: map from the crop to the photo.
        classes: int32 [m], classes of the located objects; None if no photo has located objects.
        boxes: float32 [m, 4], points and boxes of these objects in the photo.
        second_view: the same photo through another view; None if the objective does not need one.
        problem: why the cache of photos could not be written; "" if it could, or without one.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int8]
    index: int
    view: View
    classes: NDArray[np.int32] | None = None
    boxes: NDArray[np.float32] | None = None
    second_view: Sample | None = None
    problem: str = ""


@final
@dataclass(frozen=True)
class Failure:
    """Error message of a worker process, in place of a sample.

    torch raises the exception of a worker again with its traceback as the message; a value arrives unchanged.
    """

    message: str


@final
@dataclass(frozen=True, kw_only=True)
class TrainSet(Dataset[Sample | Failure]):
    """Training photos, randomly cropped.

    Attributes:
        photos: N files.
        labels: N images by C classes.
        policy: draws the views.
        seed: seed of the run.
        jitter: random pixel change of every view; None: no change.
        views_cycle: reuse the views of the first `views_cycle` epochs cyclically, as a cache does; None: never.
        locations: points and boxes for the batches; None for none.
        second_view: pixel change of a second, independent view of every photo; None: no second view.
        cache: shrunken copies of the photos, which are read instead of them; None: no cache.
    """

    photos: PhotoFolder
    labels: LabelMatrix
    policy: Policy
    seed: int = 0
    jitter: PixelChange | None = None
    views_cycle: int | None = None
    locations: Locations | None = None
    second_view: PixelChange | None = None
    cache: PhotoCache | None = None

    def __post_init__(self) -> None:
        assert len(self.photos) == self.labels.shape[0], (len(self.photos), self.labels.shape)
        assert self.views_cycle is None or self.views_cycle > 0, self.views_cycle

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, at: tuple[int, int]) -> Sample | Failure:
        """Return the sample of (epoch, index)."""
        try:
            sample = self._draw(at, AUGMENTATION, self.jitter)
            if self.locations is not None:
                _, classes, boxes = self.locations.rows([sample.index])
                sample = replace(sample, classes=classes, boxes=boxes)
            if self.second_view is not None:
                sample = replace(sample, second_view=self._draw(at, SECOND_VIEW, self.second_view))
        except FewtagsError as error:
            return Failure(str(error))
        return sample

    def _draw(self, at: tuple[int, int], stream: int, change: PixelChange | None) -> Sample:
        """The photo through a random view, with changed pixels; all random numbers come from one stream."""
        epoch, index = at
        random = rng(self.seed, epoch % self.views_cycle if self.views_cycle else epoch, index, stream)
        path, size = self.photos.path(index), self.policy.size

        def view_of(aspect: float) -> View:
            return self.policy.sample(random, aspect)

        cache = self.cache
        seen = (
            ViewRead(*read_through(path, view_of, size)) if cache is None else cache.read_through(path, view_of, size)
        )
        pixels = seen.pixels if change is None else change(seen.pixels, random)
        labels = self.labels.rows([index])[0]
        return Sample(pixels=pixels, labels=labels, index=index, view=seen.view, problem=seen.problem)


@final
@dataclass(frozen=True)
class EvalSet(Dataset[Sample | Failure]):
    """N photos with labels, N images by C classes, through the test view of a policy."""

    photos: PhotoFolder
    labels: LabelMatrix
    policy: Policy

    def __post_init__(self) -> None:
        assert len(self.photos) == self.labels.shape[0], (len(self.photos), self.labels.shape)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> Sample | Failure:
        """Return the sample of an index."""
        try:
            pixels, view = read_through(self.photos.path(index), self.policy.test_view, self.policy.size)
        except FewtagsError as error:
            return Failure(str(error))
        return Sample(pixels=pixels, labels=self.labels.rows([index])[0], index=index, view=view)


def read_through(
    source: Path | NamedImage, view_of: Callable[[float], View], size: int
) -> tuple[NDArray[np.uint8], View]:
    """Read a photo through a view: pixels uint8 [size, size, 3], and the view. An unreadable photo is a `DataError`.

    `view_of` maps an aspect (displayed width / height) to a view, for example the `test_view` of a policy.
    """
    opened = nullcontext(photo_in_memory(source)) if isinstance(source, NamedImage) else open_photo(source)
    with opened as photo:
        view = view_of(photo.info.aspect)
        return photo.read(view, (size, size)), view
