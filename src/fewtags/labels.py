"""Three-valued labels, the vocabulary, and the batch."""

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
    """The vocabulary of a problem: unique ids in a fixed order, and a display name for each.

    Attributes:
        ids: unique, non-empty identifiers; position i is class i everywhere in the library.
        names: display names; the same length as `ids`. Two classes may have the same name.

    Raises:
        DataError: empty or repeated ids, or different numbers of names and ids.

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
        """Position of a class id. Raises DataError if it is not in the vocabulary; the closest one is suggested."""
        if class_id not in self._position:
            raise DataError(f"{class_id!r} is not a class{suggest(class_id, self.ids)}.")
        return self._position[class_id]

    @property
    def display(self) -> tuple[str, ...]:
        """Display names made distinct: a repeated name is followed by its id in brackets."""
        counts = Counter(self.names)
        return tuple(n if counts[n] == 1 else f"{n} [{i}]" for i, n in zip(self.ids, self.names, strict=True))


@final
@dataclass(frozen=True, eq=False)
class LabelMatrix:
    """All labels of N images and C classes, sparse, for training: CSR over images plus implied negatives.

    A cell has the state of its entry. A cell without an entry is NEGATIVE if its image is completely annotated for the
    class (an implied negative), and UNKNOWN otherwise.

    Attributes:
        indptr: int64 [N + 1].
        classes: int32 [nnz], ascending within a row, no repeats.
        states: int8 [nnz], values of `Label`.
        complete_set: int16 [N], row of `complete_classes` with the completely annotated classes of an image, or -1.
        complete_classes: bool [S, C], sets of classes.
    """

    indptr: NDArray[np.int64]
    classes: NDArray[np.int32]
    states: NDArray[np.int8]
    complete_set: NDArray[np.int16]
    complete_classes: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        return len(self.indptr) - 1, self.complete_classes.shape[1]

    @classmethod
    def from_dense(cls, dense: NDArray[np.int8]) -> LabelMatrix:
        """Make a matrix from an int8 [N, C] array of `Label` values."""
        n, c = dense.shape
        row, col = np.nonzero(dense != Label.UNKNOWN)
        none, states = np.full(n, -1, np.int16), dense[row, col].astype(np.int8)
        return cls(_indptr(row, n), col.astype(np.int32), states, none, np.zeros((0, c), np.bool_))

    def rows(self, index: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int8]:
        """Dense int8 [b, C] of the images in `index`."""
        index = np.asarray(index, np.int64)
        out = np.where(self._is_complete(index), np.int8(Label.NEGATIVE), np.int8(Label.UNKNOWN))
        row, entry = _gather(self.indptr, index)
        out[row, self.classes[entry]] = self.states[entry]
        return out

    def implied_negatives(
        self, index: Sequence[int] | NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions in `index` and classes, int64 [m] each, of the cells that are negative without an entry."""
        index = np.asarray(index, np.int64)
        complete = self._is_complete(index)
        row, entry = _gather(self.indptr, index)
        complete[row, self.classes[entry]] = False
        cells = np.argwhere(complete)
        return cells[:, 0], cells[:, 1]

    def _is_complete(self, index: NDArray[np.integer], classes: slice = slice(None)) -> NDArray[np.bool_]:
        """Whether each image of `index` is completely annotated for each of `classes`, bool [b, c], a new array."""
        sets = self.complete_set[index]
        out = np.zeros((len(index), len(range(self.shape[1])[classes])), np.bool_)
        out[sets >= 0] = self.complete_classes[sets[sets >= 0], classes]
        return out

    def dense(self) -> NDArray[np.int8]:
        """Dense int8 [N, C] of all cells."""
        return self.rows(np.arange(self.shape[0]))

    def columns(self, first: int, last: int) -> NDArray[np.int8]:
        """Dense int8 [N, last - first] of a block of classes."""
        n = self.shape[0]
        complete = self._is_complete(np.arange(n), slice(first, last))
        out = np.where(complete, np.int8(Label.NEGATIVE), np.int8(Label.UNKNOWN))
        inside = (self.classes >= first) & (self.classes < last)
        row = np.repeat(np.arange(n), np.diff(self.indptr))[inside]
        out[row, self.classes[inside] - first] = self.states[inside]
        return out

    def at(self, image: NDArray[np.integer], class_: NDArray[np.integer]) -> NDArray[np.int8]:
        """Labels of single cells, int8 [m]; `image` and `class_` are [m]."""
        c = self.shape[1]
        entries = np.repeat(np.arange(self.shape[0]) * c, np.diff(self.indptr)) + self.classes
        cells = image.astype(np.int64) * c + class_
        sets = self.complete_set[image]
        found = np.full(len(cells), Label.UNKNOWN, np.int8)
        if (closed := sets >= 0).any():
            found[closed] = np.where(self.complete_classes[sets[closed], class_[closed]], Label.NEGATIVE, Label.UNKNOWN)
        if not len(entries) or not len(cells):
            return found
        if len(entries) < len(cells) and np.all(cells[1:] > cells[:-1]):  # fewer to look for
            cell = np.minimum(np.searchsorted(cells, entries), len(cells) - 1)
            there = cells[cell] == entries
            found[cell[there]] = self.states[there]
            return found
        entry = np.minimum(np.searchsorted(entries, cells), len(entries) - 1)
        return np.where(entries[entry] == cells, self.states[entry], found)

    def positives(self, index: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions in `index` and classes, int64 [m] each, of the positive cells of these images."""
        row, entry = _gather(self.indptr, np.asarray(index, np.int64))
        positive = self.states[entry] == Label.POSITIVE
        return row[positive], self.classes[entry][positive].astype(np.int64)

    def counts(self, state: Label) -> NDArray[np.int64]:
        """int64 [C]: number of images in which each class is in `state`."""
        n, c = self.shape
        _, overrides = self._entries()
        implied = -np.bincount(self.classes[overrides], minlength=c)
        images = np.bincount(self.complete_set[self.complete_set >= 0], minlength=len(self.complete_classes))
        for count, classes in zip(images, self.complete_classes, strict=True):
            implied += count * classes
        return self._tally(state, self.classes, implied, n)

    def image_counts(self, state: Label) -> NDArray[np.int64]:
        """int64 [N]: number of classes that are in `state` in each image."""
        n, c = self.shape
        row, overrides = self._entries()
        implied = np.append(self.complete_classes.sum(1), 0)[self.complete_set]
        return self._tally(state, row, implied - np.bincount(row[overrides], minlength=n), c)

    def _entries(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Image of each entry, int64 [nnz], and whether the entry overrides an implied negative, bool [nnz]."""
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
        overrides = self.complete_set[row] >= 0
        overrides[overrides] = self.complete_classes[self.complete_set[row[overrides]], self.classes[overrides]]
        return row, overrides

    def _tally(
        self, state: Label, along: NDArray[np.integer], implied: NDArray[np.int64], cells: int
    ) -> NDArray[np.int64]:
        """Count the cells in `state` per value of `along` (image or class of each entry).

        `implied` counts the implied negatives of each value, and `cells` all its cells.
        """
        positives = np.bincount(along[self.states == Label.POSITIVE], minlength=len(implied))
        negatives = np.bincount(along[self.states == Label.NEGATIVE], minlength=len(implied)) + implied
        if state == Label.UNKNOWN:
            return cells - positives - negatives
        return positives if state == Label.POSITIVE else negatives

    def subset(self, index: NDArray[np.integer]) -> LabelMatrix:
        """The labels of the images in `index`, in that order."""
        index = np.asarray(index, np.int64)
        row, entry = _gather(self.indptr, index)
        return LabelMatrix(
            _indptr(row, len(index)),
            self.classes[entry],
            self.states[entry],
            self.complete_set[index],
            self.complete_classes,
        )


@final
@dataclass(frozen=True, eq=False)
class Locations:
    """Points and boxes of annotated objects in N images, sorted by image (CSR). An object may have no entry.

    Boxes [m, 4] are x0, y0, x1, y1 in 0..1 of the image; a point has x0 = x1 and y0 = y1.
    """

    indptr: NDArray[np.int64]
    classes: NDArray[np.int32]
    boxes: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.classes)

    def rows(
        self, index: Sequence[int] | NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """Objects in the images of `index`: position in `index` int64 [k], classes int32 [k], boxes float32 [k, 4]."""
        row, entry = _gather(self.indptr, np.asarray(index, np.int64))
        return row, self.classes[entry], self.boxes[entry]


def _indptr(row: NDArray[np.integer], rows: int) -> NDArray[np.int64]:
    """Start of each row in entries that are sorted by row, int64 [rows + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)


def _gather(indptr: NDArray[np.int64], index: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entries of the rows `index` of a CSR structure: position in `index` and entry number, int64 [m] each."""
    start, count = indptr[index], indptr[index + 1] - indptr[index]
    row = np.repeat(np.arange(len(index)), count)
    return row, np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())


@final
class Places(NamedTuple):
    """Points and boxes of a batch, see `Locations`.

    Attributes:
        row: int64 [m], position of the image in the batch.
        classes: int64 [m].
        boxes: float32 [m, 4] in the image frame.
    """

    row: Tensor
    classes: Tensor
    boxes: Tensor


@final
class SecondView(NamedTuple):
    """A second view of every image of a batch: images and views as in `Batch`."""

    images: Tensor
    views: Tensor


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """The input of an objective: images with their labels, views and locations.

    Attributes:
        images: float32 [b, 3, h, w], or frozen-trunk features [b, d, h, w] when those are cached.
        labels: int8 [b, C], values of `Label`.
        index: int64 [b], global sample index; no repeats within an epoch.
        views: float32 [b, 2, 3], affine map crop -> image (see `geometry`).
        places: points and boxes of annotated objects; None if no training image has any.
        second_view: a second view of every image; None if the objective does not need one.
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
        return Batch(
            images=move(self.images),
            labels=move(self.labels),
            index=move(self.index),
            views=move(self.views),
            places=places,
            second_view=second_view,
        )
