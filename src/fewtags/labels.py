"""Three-valued labels, the frozen vocabulary, and the batch.

This is the one place that knows which number stands for which state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.text import suggest

if TYPE_CHECKING:
    from torch import Tensor, device


class Label(IntEnum):
    """What is known about one class in one image."""

    NEGATIVE = -1
    UNKNOWN = 0
    POSITIVE = 1


@final
@dataclass(frozen=True)
class ClassNames:
    """The vocabulary of a problem: unique ids in a fixed order, with display names apart from them.

    Two classes may share a display name ("crane" the bird and "crane" the machine) and stay two classes.

    Attributes:
        ids: unique, non-empty identifiers; position i is class i everywhere in the library.
        names: what a person reads; the same length as `ids`, repeats allowed.

    Raises:
        DataError: empty or repeated ids, or a different number of names than ids.

    >>> ClassNames.of(["cat", "dog"]).index("dog")
    1
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.names):
            raise DataError(f"{len(self.ids)} class ids but {len(self.names)} display names; give one name per id.")
        if repeated := [i for i, n in Counter(self.ids).items() if n > 1]:
            raise DataError(
                f"class id {repeated[0]!r} occurs more than once; ids must be unique (display names may repeat)."
            )
        if "" in self.ids:
            raise DataError("an empty string is not a class id; give every class a name.")

    @classmethod
    def of(cls, ids: Iterable[str], names: Iterable[str] | None = None) -> ClassNames:
        """Make a vocabulary; display names default to the ids."""
        fixed = tuple(ids)
        return cls(fixed, fixed if names is None else tuple(names))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {i: n for n, i in enumerate(self.ids)}

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._position

    def index(self, class_id: str) -> int:
        """Position of a class id.

        Raises:
            DataError: the id is not in the vocabulary; the closest one is suggested.
        """
        if class_id not in self._position:
            raise DataError(f"{class_id!r} is not a class{suggest(class_id, self.ids)}.")
        return self._position[class_id]

    @property
    def display(self) -> tuple[str, ...]:
        """Names for people, made distinct: a repeated name carries its id in brackets."""
        counts = Counter(self.names)
        return tuple(n if counts[n] == 1 else f"{n} [{i}]" for i, n in zip(self.ids, self.names, strict=True))


@final
@dataclass(frozen=True, eq=False)
class LabelMatrix:
    """All labels of N images and C classes, sparse, for training: CSR over images plus blanket negatives.

    A cell is, in this order: what `states` says; else NEGATIVE where the image is `closed` (everything that is not
    named is known to be absent) for that class; else UNKNOWN.

    Attributes:
        indptr: int64 [N + 1].
        classes: int32 [nnz], ascending within a row, no repeats.
        states: int8 [nnz], values of `Label`.
        closed: int16 [N], row of `covers` that the image is closed for, -1 for none.
        covers: bool [S, C].
    """

    indptr: NDArray[np.int64]
    classes: NDArray[np.int32]
    states: NDArray[np.int8]
    closed: NDArray[np.int16]
    covers: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        return len(self.indptr) - 1, self.covers.shape[1]

    @classmethod
    def from_dense(cls, dense: NDArray[np.int8]) -> LabelMatrix:
        """Make one from an int8 [N, C] array of `Label` values."""
        n, c = dense.shape
        row, col = np.nonzero(dense != Label.UNKNOWN)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]).astype(np.int64)
        none = np.full(n, -1, np.int16)
        return cls(indptr, col.astype(np.int32), dense[row, col].astype(np.int8), none, np.zeros((0, c), np.bool_))

    def rows(self, index: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int8]:
        """Dense int8 [b, C] of the images in `index`."""
        index = np.asarray(index, np.int64)
        out = np.full((len(index), self.shape[1]), Label.UNKNOWN, np.int8)
        closed = self.closed[index]
        shut = closed >= 0
        out[shut] = np.where(self.covers[closed[shut]], np.int8(Label.NEGATIVE), np.int8(Label.UNKNOWN))
        row, entry = _gather(self.indptr, index)
        out[row, self.classes[entry]] = self.states[entry]
        return out

    def blanket(self, index: Sequence[int] | NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cells that are negative only because their image is closed: places in `index` int64 [m], classes [m]."""
        index = np.asarray(index, np.int64)
        covered = np.zeros((len(index), self.shape[1]), np.bool_)
        shut = self.closed[index] >= 0
        covered[shut] = self.covers[self.closed[index][shut]]
        row, entry = _gather(self.indptr, index)
        covered[row, self.classes[entry]] = False
        cells = np.argwhere(covered)
        return cells[:, 0], cells[:, 1]

    def dense(self) -> NDArray[np.int8]:
        """Dense int8 [N, C] of everything; N x C bytes."""
        return self.rows(np.arange(self.shape[0]))

    def columns(self, first: int, last: int) -> NDArray[np.int8]:
        """Dense int8 [N, last - first] of a block of classes, for per-class work that must not hold N x C."""
        n = self.shape[0]
        out = np.full((n, last - first), Label.UNKNOWN, np.int8)
        shut = self.closed >= 0
        covered = self.covers[self.closed[shut], first:last]
        out[shut] = np.where(covered, np.int8(Label.NEGATIVE), np.int8(Label.UNKNOWN))
        inside = (self.classes >= first) & (self.classes < last)
        row = np.repeat(np.arange(n), np.diff(self.indptr))[inside]
        out[row, self.classes[inside] - first] = self.states[inside]
        return out

    def counts(self, state: Label) -> NDArray[np.int64]:
        """int64 [C]: in how many images each class is in `state`."""
        n, c = self.shape
        _, blanketed = self._entries()
        blanket = -np.bincount(self.classes[blanketed], minlength=c)
        images = np.bincount(self.closed[self.closed >= 0], minlength=len(self.covers))
        for closed_for, cover in zip(images, self.covers, strict=True):
            blanket += closed_for * cover
        return self._tally(state, self.classes, blanket, n)

    def image_counts(self, state: Label) -> NDArray[np.int64]:
        """int64 [N]: how many classes are in `state` in each image."""
        n, c = self.shape
        row, blanketed = self._entries()
        blanket = np.zeros(n, np.int64)
        shut = self.closed >= 0
        blanket[shut] = self.covers.sum(1)[self.closed[shut]]
        return self._tally(state, row, blanket - np.bincount(row[blanketed], minlength=n), c)

    def _entries(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Image of each entry, int64 [nnz], and whether its cell lies under a blanket that it overrides, bool [nnz]."""
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
        closed = self.closed[row]
        shut = closed >= 0
        blanketed = np.zeros(len(row), np.bool_)
        blanketed[shut] = self.covers[closed[shut], self.classes[shut]]
        return row, blanketed

    def _tally(
        self, state: Label, along: NDArray[np.integer], blanket: NDArray[np.int64], others: int
    ) -> NDArray[np.int64]:
        """Count entries by `along`; `blanket` negatives come on top, `others` is how many cells there are each."""
        positives = np.bincount(along[self.states == Label.POSITIVE], minlength=len(blanket))
        negatives = np.bincount(along[self.states == Label.NEGATIVE], minlength=len(blanket)) + blanket
        if state == Label.UNKNOWN:
            return others - positives - negatives
        return positives if state == Label.POSITIVE else negatives

    def subset(self, index: NDArray[np.integer]) -> LabelMatrix:
        """The same for the images in `index`, in that order."""
        index = np.asarray(index, np.int64)
        row, entry = _gather(self.indptr, index)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(index)))]).astype(np.int64)
        return LabelMatrix(indptr, self.classes[entry], self.states[entry], self.closed[index], self.covers)


@final
@dataclass(frozen=True, eq=False)
class Locations:
    """Where annotated objects are in N images: points and boxes, sorted by image. No entry does not mean no object.

    Attributes:
        indptr: int64 [N + 1].
        classes: int32 [m].
        boxes: float32 [m, 4], x0, y0, x1, y1 in 0..1 of the image; a point has x0 = x1 and y0 = y1.
    """

    indptr: NDArray[np.int64]
    classes: NDArray[np.int32]
    boxes: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.classes)

    def rows(
        self, index: Sequence[int] | NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """Those of the images in `index`: place in `index` int64 [k], classes int32 [k], boxes float32 [k, 4]."""
        row, entry = _gather(self.indptr, np.asarray(index, np.int64))
        return row, self.classes[entry], self.boxes[entry]


def _gather(indptr: NDArray[np.int64], index: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All entries of rows `index` of a CSR structure: position in `index` and number of the entry, int64 [m] each."""
    start, count = indptr[index], indptr[index + 1] - indptr[index]
    row = np.repeat(np.arange(len(index)), count)
    return row, np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())


@final
class Places(NamedTuple):
    """Points and boxes of a batch, see `Locations`.

    Attributes:
        row: int64 [m], position of the image in the batch.
        classes: int64 [m].
        boxes: float32 [m, 4] in the image frame; `Batch.views` tells where that is in the crop.
    """

    row: Tensor
    classes: Tensor
    boxes: Tensor


@final
class SecondView(NamedTuple):
    """A second view of every image of a batch.

    Attributes:
        images: as `Batch.images`.
        views: as `Batch.views`, its own.
    """

    images: Tensor
    views: Tensor


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """What an objective sees.

    Attributes:
        images: float32 [b, 3, h, w], or frozen-trunk features [b, d, h, w] when those are cached.
        labels: int8 [b, C], values of `Label`.
        index: int64 [b], global sample index; no repeats within an epoch.
        views: float32 [b, 2, 3], affine map crop -> image (see `geometry`).
        places: where annotated objects are; None where no training image has a point or box.
        second_view: a second view of every image; None where the objective does not need one.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    views: Tensor
    places: Places | None = None
    second_view: SecondView | None = None

    def to(self, where: device) -> Batch:
        """Copy to a device without blocking."""
        return self._each(lambda tensor: tensor.to(where, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory; a `DataLoader` with `pin_memory` calls this."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, move: Callable[[Tensor], Tensor]) -> Batch:
        places = None if self.places is None else Places(*map(move, self.places))
        second_view = None if self.second_view is None else SecondView(*map(move, self.second_view))
        return Batch(move(self.images), move(self.labels), move(self.index), move(self.views), places, second_view)
