"""The label table: every known fact about every image, immutable and columnar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label, LabelMatrix

FACTS = pa.schema(
    [
        pa.field("image", pa.int32(), nullable=False),
        pa.field("class", pa.int32(), nullable=False),
        pa.field("state", pa.int8(), nullable=False),
        # A location in fractions of the displayed (EXIF-turned) image; a point has x0 = x1 and y0 = y1; null: none.
        pa.field("x0", pa.float32()),
        pa.field("y0", pa.float32()),
        pa.field("x1", pa.float32()),
        pa.field("y1", pa.float32()),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)


@final
@dataclass(frozen=True)
class ValueReading:
    """How a reader understood one distinct value: where it stood, what it was taken for, how often.

    >>> print(ValueReading("labels.csv, class columns", "(blank)", "unknown", 88400))
    labels.csv, class columns: (blank) -> unknown (88,400)
    """

    where: str
    value: str
    meaning: str
    count: int

    def __str__(self) -> str:
        return f"{self.where}: {self.value} -> {self.meaning} ({self.count:,})"


@final
@dataclass(frozen=True)
class Excluded:
    """Something a reader or check left out, and why. One line of `excluded.csv`."""

    item: str
    reason: str
    where: str = ""


@final
@dataclass(frozen=True)
class Notes:
    """What a reader has to say about how it read; travels with the table, not part of its content or fingerprint."""

    readings: tuple[ValueReading, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    messages: tuple[str, ...] = ()

    def __add__(self, other: Notes) -> Notes:
        return Notes(self.readings + other.readings, self.excluded + other.excluded, self.messages + other.messages)


@final
@dataclass(frozen=True)
class LabelTable:
    """What is known about N images and C classes; whatever is absent is unknown.

    Attributes:
        images: string [N], unique keys: paths relative to `root`, with forward slashes.
        classes: the vocabulary.
        facts: one row per known fact, columns `FACTS`; the same class may be located several times in an image.
        closed: int16 [N], row of `covers` an image is closed for (all classes covered and not named by a fact are known
            to be absent: "complete" annotation, or a `none` folder), -1 for none.
        covers: bool [S, C].
        root: folder that the keys are relative to; None for tables without photos.
        split: string [N] or None: the split each image belongs to in its source ("train", "val", ...; "" for none).
        notes: how the reader understood the files.

    Raises:
        DataError: repeated keys, or facts that point outside the images or classes.
    """

    images: pa.Array
    classes: ClassNames
    facts: pa.Table
    closed: NDArray[np.int16]
    covers: NDArray[np.bool_]
    root: Path | None = None
    split: pa.Array | None = None
    notes: Notes = field(default_factory=Notes, compare=False)

    def __post_init__(self) -> None:
        n, c = len(self.images), len(self.classes)
        assert self.facts.schema.equals(FACTS), self.facts.schema
        assert self.closed.shape == (n,) and self.covers.shape[1] == c, (self.closed.shape, self.covers.shape, n, c)
        assert self.split is None or len(self.split) == n
        if len(unique := self.images.value_counts()) != n:
            counts = unique.field("counts").to_numpy()
            key = unique.field("values")[int(np.argmax(counts))].as_py()
            raise DataError(f"image key {key!r} occurs {counts.max()} times; keys (relative paths) must be unique.")
        for column, size in (("image", n), ("class", c)):
            values = self.facts[column].to_numpy()
            if len(values) and not (0 <= values.min() and values.max() < size):
                raise DataError(f"a fact names {column} {values.max()}, but there are {size}.")

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def build(
        cls,
        images: Sequence[str],
        classes: ClassNames,
        *,
        image: NDArray[np.integer],
        class_: NDArray[np.integer],
        state: NDArray[np.integer],
        locations: NDArray[np.floating] | None = None,
        source: str = "",
        closed: NDArray[np.integer] | None = None,
        covers: NDArray[np.bool_] | None = None,
        root: Path | None = None,
        split: Sequence[str] | None = None,
        notes: Notes | None = None,
    ) -> LabelTable:
        """Make a table from plain arrays.

        Args:
            images: N unique keys.
            classes: the vocabulary.
            image: int [F], position of each fact's image in `images`.
            class_: int [F], position of each fact's class.
            state: int [F], values of `Label`; UNKNOWN is not a fact.
            locations: float [F, 4] x0, y0, x1, y1 in 0..1 of the displayed image, NaN rows where there is none.
            source: name of the file or folder the facts come from.
            closed: int [N], see the class.
            covers: bool [S, C], see the class.
            root: folder of the images.
            split: N split names.
            notes: how the reader understood the files.
        """
        f, n = len(image), len(images)
        assert not np.any(np.asarray(state) == Label.UNKNOWN), "an unknown cell is not a fact"
        where = np.full((f, 4), np.nan, np.float32) if locations is None else np.asarray(locations, np.float32)
        missing = np.isnan(where).any(1)
        columns = [
            pa.array(np.asarray(image, np.int32)),
            pa.array(np.asarray(class_, np.int32)),
            pa.array(np.asarray(state, np.int8)),
            *(pa.array(where[:, i], mask=missing) for i in range(4)),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(f, np.int32)), pa.array([source])),
        ]
        return cls(
            pa.array(images, pa.string()),
            classes,
            pa.Table.from_arrays(columns, schema=FACTS),
            np.full(n, -1, np.int16) if closed is None else np.asarray(closed, np.int16),
            np.zeros((0, len(classes)), np.bool_) if covers is None else covers,
            root,
            None if split is None else pa.array(split, pa.string()),
            notes or Notes(),
        )

    @cached_property
    def matrix(self) -> LabelMatrix:
        """The labels as a sparse N x C matrix for training.

        Several facts about one cell are one label; where sources contradict each other (positive and negative), the
        cell is unknown, and `check` counts it.
        """
        n, c = len(self), len(self.classes)
        cell = self.facts["image"].to_numpy().astype(np.int64) * c + self.facts["class"].to_numpy()
        state = self.facts["state"].to_numpy()
        order = np.argsort(cell, kind="stable")
        cell, state = cell[order], state[order]
        first = np.flatnonzero(np.diff(cell, prepend=-1))
        low, high = (np.minimum.reduceat(state, first), np.maximum.reduceat(state, first)) if len(first) else (state, state)
        merged = np.where(low == high, low, np.int8(Label.UNKNOWN)).astype(np.int8)
        cells = cell[first]
        indptr = np.searchsorted(cells, np.arange(n + 1, dtype=np.int64) * c).astype(np.int64)
        return LabelMatrix(indptr, (cells % c if c else cells).astype(np.int32), merged, self.closed, self.covers)
