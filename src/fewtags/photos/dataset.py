"""Data sets: photo files, labels and a policy give samples.

All randomness of a sample is a function of (seed, epoch, sample index). The epoch is part of the key that the sampler
passes to the data set; no data set, transform or worker has a state.
"""

from __future__ import annotations

from collections.abc import Callable
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
from fewtags.photos.decode import open_photo
from fewtags.seeds import rng

AUGMENTATION, SECOND_VIEW = 0, 2
"""Streams of `rng`: the first view of a photo, and the second."""


@final
@dataclass(frozen=True)
class PhotoFolder:
    """The photo files of a label table.

    Attributes:
        root: folder that the keys are relative to.
        keys: pyarrow string [N]. Not a list: worker processes would gradually copy all of its objects.
    """

    root: Path
    keys: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    def path(self, index: int) -> Path:
        """Path of a photo."""
        key: str = self.keys[index].as_py()
        return self.root / key


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """One photo seen through one view.

    Attributes:
        pixels: uint8 [h, w, 3].
        labels: int8 [C].
        index: global sample index.
        view: from the crop to the photo.
        classes: int32 [m], of the located objects; None if no photo has any.
        boxes: float32 [m, 4], points and boxes of these objects in the photo.
        second_view: the same photo through another view; None if the objective does not need one.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int8]
    index: int
    view: View
    classes: NDArray[np.int32] | None = None
    boxes: NDArray[np.float32] | None = None
    second_view: Sample | None = None


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
        seed: of the run.
        jitter: random pixel change of every view; None: no change.
        views_cycle: reuse the views of the first `views_cycle` epochs cyclically, as a cache does; None: never.
        locations: points and boxes for the batches; None for none.
        second_view: pixel change of a second, independent view of every photo; None: no second view.
    """

    photos: PhotoFolder
    labels: LabelMatrix
    policy: Policy
    seed: int = 0
    jitter: PixelChange | None = None
    views_cycle: int | None = None
    locations: Locations | None = None
    second_view: PixelChange | None = None

    def __post_init__(self) -> None:
        assert len(self.photos) == self.labels.shape[0], (len(self.photos), self.labels.shape)
        assert self.views_cycle is None or self.views_cycle > 0, self.views_cycle

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, at: tuple[int, int]) -> Sample | Failure:
        """The sample of (epoch, index)."""
        sample = self._drawn(at, AUGMENTATION, self.jitter)
        if isinstance(sample, Failure):
            return sample
        if self.locations is not None:
            _, classes, boxes = self.locations.rows([sample.index])
            sample = replace(sample, classes=classes, boxes=boxes)
        if self.second_view is None:
            return sample
        second_view = self._drawn(at, SECOND_VIEW, self.second_view)
        return second_view if isinstance(second_view, Failure) else replace(sample, second_view=second_view)

    def _drawn(self, at: tuple[int, int], stream: int, change: PixelChange | None) -> Sample | Failure:
        """The photo through a random view, with changed pixels; all random numbers come from one stream."""
        epoch, index = at
        random = rng(self.seed, epoch % self.views_cycle if self.views_cycle else epoch, index, stream)
        sample = _sample(
            self.photos, self.labels, index, lambda aspect: self.policy.sample(random, aspect), self.policy
        )
        if isinstance(sample, Failure) or change is None:
            return sample
        return replace(sample, pixels=change(sample.pixels, random))


@final
@dataclass(frozen=True)
class EvalSet(Dataset[Sample | Failure]):
    """Photos through the test view of a policy.

    Attributes:
        photos: N files.
        labels: N images by C classes.
        policy: has the test view.
    """

    photos: PhotoFolder
    labels: LabelMatrix
    policy: Policy

    def __post_init__(self) -> None:
        assert len(self.photos) == self.labels.shape[0], (len(self.photos), self.labels.shape)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> Sample | Failure:
        """The sample of an index."""
        return _sample(self.photos, self.labels, index, self.policy.test_view, self.policy)


def _sample(
    photos: PhotoFolder, labels: LabelMatrix, index: int, view_of: Callable[[float], View], policy: Policy
) -> Sample | Failure:
    try:
        pixels, view = read_through(photos.path(index), view_of, policy.size)
    except FewtagsError as error:
        return Failure(str(error))
    return Sample(pixels=pixels, labels=labels.rows([index])[0], index=index, view=view)


def read_through(path: Path, view_of: Callable[[float], View], size: int) -> tuple[NDArray[np.uint8], View]:
    """Read a photo through a view: pixels uint8 [size, size, 3], and the view.

    Args:
        path: the file.
        view_of: aspect (displayed width / height) -> view, for example a policy's `test_view`.
        size: side of the square in pixels.

    Raises:
        DataError: the photo cannot be read.
    """
    with open_photo(path) as photo:
        view = view_of(photo.info.aspect)
        return photo.read(view, (size, size)), view
