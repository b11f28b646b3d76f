"""The label table: every known fact about every image, immutable and columnar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label, LabelMatrix, Locations
from fewtags.table.split import Groups, split_table
from fewtags.table.summary import Summary, summarise

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


MOST_CLOSURES = int(np.iinfo(np.int16).max) + 1
"""How many different sets of covered classes a table can hold."""

BLANKET_SOURCE = "(complete annotation)"
"""Source of negatives that came from a closed image, where they have to be written out one by one."""


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


Kind = Literal["missing", "unreadable", "unusable", "splits", "bad-place", "unread-place", "partial", "excluded"]
"""Why something is left out: a photo is not there, or cannot be read; a row or annotation says nothing that can be
used; an image is in several splits or in none; a box or point is broken, or of a kind that is not read, and its label
is kept; photos were never downloaded; or the user wants it so. `check` makes a finding with that code of each."""


@final
@dataclass(frozen=True)
class Excluded:
    """Something a reader or check left out, and why. One line of `excluded.csv`."""

    item: str
    reason: str
    where: str = ""
    kind: Kind = "excluded"


@final
@dataclass(frozen=True)
class Notes:
    """What a reader has to say about how it read; travels with the table, not part of its content or fingerprint.

    Attributes:
        readings: how each distinct value was understood.
        excluded: what was left out.
        messages: how the files were understood.
        warnings: where they may have been misunderstood, with the setting that reads them otherwise.
    """

    readings: tuple[ValueReading, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    messages: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Notes) -> Notes:
        return Notes(
            self.readings + other.readings,
            self.excluded + other.excluded,
            self.messages + other.messages,
            self.warnings + other.warnings,
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class LabelTable:
    """What is known about N images and C classes; whatever is absent is unknown.

    Tables are compared by `fingerprint`; `==` is identity.

    Attributes:
        images: string [N], unique keys: paths relative to `root`, with forward slashes. The position of an image is its
            sample index.
        classes: the vocabulary.
        facts: one row per known fact, columns `FACTS`; the same class may be located several times in an image.
        closed: int16 [N], row of `covers` an image is closed for (all classes covered and not named by a fact are known
            to be absent: "complete" annotation, or a `none` folder), -1 for none.
        covers: bool [S, C].
        root: folder that the keys are relative to; None for tables without photos.
        split_names: string [N] or None: the split each image belongs to in its source ("train", "val", ...; "" for
            none).
        notes: how the reader understood the files.

    Raises:
        DataError: repeated keys, or facts that point outside the images or classes.

    >>> table = LabelTable.build(["a.jpg", "b.jpg"], ClassNames.of(["cat"]), image=[0], class_=[0], state=[1])
    >>> table
    LabelTable(2 images, 1 classes, 1 facts)
    >>> table.summary().kind
    'single positive'
    """

    images: pa.Array
    classes: ClassNames
    facts: pa.Table
    closed: NDArray[np.int16]
    covers: NDArray[np.bool_]
    root: Path | None = None
    split_names: pa.Array | None = None
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        n, c = len(self.images), len(self.classes)
        assert self.facts.schema.equals(FACTS), self.facts.schema
        assert self.closed.shape == (n,), (self.closed.shape, n)
        assert self.covers.shape[1] == c, (self.covers.shape, c)
        assert self.closed.max(initial=-1) < len(self.covers), (self.closed.max(), self.covers.shape)
        assert self.split_names is None or len(self.split_names) == n
        if len(unique := self.images.value_counts()) != n:
            counts = unique.field("counts").to_numpy()
            key = unique.field("values")[int(np.argmax(counts))].as_py()
            raise DataError(f"image key {key!r} occurs {counts.max()} times; keys (relative paths) must be unique.")
        for column, size in (("image", n), ("class", c)):
            values = self.facts[column].to_numpy()
            if np.any(outside := (values < 0) | (values >= size)):
                wrong = values[outside.argmax()]
                raise DataError(f"a fact names {column} number {wrong}, but there are {size:,}, counted from 0.")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        where = f", root={str(self.root)!r}" if self.root is not None else ""
        return f"LabelTable({len(self):,} images, {len(self.classes):,} classes, {len(self.facts):,} facts{where})"

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
            image: see `fact_table`, as `class_`, `state`, `locations` and `source`.
            class_: position of each fact's class.
            state: what is known.
            locations: where.
            source: from which file or folder.
            closed: int [N], see the class.
            covers: bool [S, C], see the class.
            root: folder of the images.
            split: N split names.
            notes: how the reader understood the files.
        """
        return cls(
            pa.array(images, pa.string()),
            classes,
            fact_table(image, class_, state, locations, source),
            np.full(len(images), -1, np.int16) if closed is None else np.asarray(closed, np.int16),
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
        low, high = (f.reduceat(state, first) if len(first) else state for f in (np.minimum, np.maximum))
        merged = np.where(low == high, low, np.int8(Label.UNKNOWN)).astype(np.int8)
        cells = cell[first]
        indptr = np.searchsorted(cells, np.arange(n + 1, dtype=np.int64) * c).astype(np.int64)
        return LabelMatrix(indptr, (cells % c if c else cells).astype(np.int32), merged, self.closed, self.covers)

    @cached_property
    def locations(self) -> Locations:
        """Points and boxes of the positive cells, sorted by image; those of contradicted cells are left out."""
        n, c = len(self), len(self.classes)
        image, class_ = (self.facts[name].to_numpy() for name in ("image", "class"))
        located = np.flatnonzero(~self.facts["x0"].is_null().to_numpy())
        located = located[np.argsort(image[located], kind="stable")]
        labels = self.matrix
        owner = np.repeat(np.arange(n, dtype=np.int64), np.diff(labels.indptr))
        positive = (owner * c + labels.classes)[labels.states == Label.POSITIVE]
        located = located[np.isin(image[located].astype(np.int64) * c + class_[located], positive)]
        boxes = np.stack([self.facts[name].to_numpy()[located] for name in ("x0", "y0", "x1", "y1")], 1)
        indptr = np.searchsorted(image[located], np.arange(n + 1)).astype(np.int64)
        return Locations(indptr, class_[located].astype(np.int32), boxes.astype(np.float32))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of what the table says: classes, image keys, facts with locations, blanket negatives.

        The order of images and of classes counts, because a sample index and a class index mean a position. The order
        of facts and the row numbers of `covers` do not, nor do sources, split names, root and notes: they change no
        label.
        """
        digest = hashlib.sha256(b"fewtags label table 1\n")
        keys = self.images.to_pylist()
        for part in (
            json.dumps([self.classes.ids, self.classes.names]).encode(),
            np.array([len(key) for key in keys], "<i8").tobytes(),
            "".join(keys).encode(),
            _canonical_facts(self.facts),
            *_canonical_closures(self.closed, self.covers),
        ):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def summary(self) -> Summary:
        """Counts per class and state, images without labels, contradictions, kind of labels; `print` it."""
        return summarise(self)

    def subset(self, index: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> LabelTable:
        """The images at positions `index` (int [M], no repeats), in that order, or where a bool [N] mask is true.

        All classes stay, those without a label here included: a class keeps its position in every subset.

        Raises:
            IndexError: a position outside 0..N - 1, or a mask of another length.
            DataError: a repeated position.
        """
        n = len(self)
        index = np.asarray(index)
        if index.dtype == np.bool_:
            if len(index) != n:
                raise IndexError(f"a mask of {len(index):,} values for {n:,} images")
            index = np.flatnonzero(index)
        index = index.astype(np.int64)
        if np.any((index < 0) | (index >= n)):
            raise IndexError(f"positions from {index.min()} to {index.max()} in a table of {n:,} images")
        position = np.full(n, -1, np.int32)
        position[index] = np.arange(len(index), dtype=np.int32)
        image = position[self.facts["image"].to_numpy()]
        facts = self.facts.set_column(0, FACTS.field(0), pa.array(image)).filter(pa.array(image >= 0))
        return replace(
            self,
            images=self.images.take(pa.array(index)),
            facts=facts,
            closed=self.closed[index],
            split_names=None if self.split_names is None else self.split_names.take(pa.array(index)),
        )

    def split(
        self, val: float = 0.1, seed: int = 0, groups: Groups | None = None, stratify: bool = True
    ) -> tuple[LabelTable, LabelTable]:
        """Split off a validation table: (train, val). See `split.split_table`, also for more than two parts.

        Args:
            val: share of the images for validation, in (0, 1).
            seed: another seed, another split.
            groups: what must stay together: N group ids, a regular expression on image keys, or a function of a key.
            stratify: give both parts their share of each class's positives, rarest classes first.

        Raises:
            ConfigError: `val` outside (0, 1).
            DataError: groups that do not fit, or nothing left for one side.
        """
        parts = split_table(self, {"train": 1 - val, "val": val}, seed=seed, groups=groups, stratify=stratify)
        return parts["train"], parts["val"]

    def named_splits(self) -> dict[str, LabelTable]:
        """One table per split that the source names, in order of appearance; images that it puts in none under "".

        Raises:
            DataError: the source names no splits.
        """
        if self.split_names is None:
            raise DataError("this table's source names no splits; make one with split(val=0.1).")
        encoded = pc.fill_null(self.split_names, "").dictionary_encode()
        codes = encoded.indices.to_numpy()
        return {name: self.subset(codes == code) for code, name in enumerate(encoded.dictionary.to_pylist())}

    def require_root(self, labels: str = "the labels") -> Path:
        """Return the folder of the photos.

        Args:
            labels: how the error message calls the table.

        Raises:
            DataError: the folder is unknown.
        """
        if self.root is None:
            raise DataError(f"{labels} do not say where the photos are; give their folder: --images FOLDER.")
        return self.root

    def with_root(self, root: Path | str | None) -> LabelTable:
        """The same labels for photos in another folder."""
        return replace(self, root=None if root is None else Path(root))

    def noting(self, *messages: str) -> LabelTable:
        """The same with messages added to its notes."""
        return replace(self, notes=self.notes + Notes(messages=messages))


def fact_table(
    image: NDArray[np.integer],
    class_: NDArray[np.integer],
    state: NDArray[np.integer],
    locations: NDArray[np.floating] | None = None,
    source: str = "",
) -> pa.Table:
    """Make facts from plain arrays.

    Args:
        image: int [F], position of each fact's image.
        class_: int [F], position of each fact's class.
        state: int [F], values of `Label`; UNKNOWN is not a fact.
        locations: float [F, 4] x0, y0, x1, y1 in 0..1 of the displayed image, NaN rows where there is none.
        source: name of the file or folder the facts come from.
    """
    assert not np.any(np.asarray(state) == Label.UNKNOWN), "an unknown cell is not a fact"
    f = len(image)
    where = np.full((f, 4), np.nan, np.float32) if locations is None else np.asarray(locations, np.float32)
    missing = np.isnan(where).any(1)
    x0, y0, x1, y1 = where[~missing].T
    assert np.all((x0 >= 0) & (x0 <= x1) & (x1 <= 1) & (y0 >= 0) & (y0 <= y1) & (y1 <= 1)), (
        "a location outside the image"
    )
    columns = [
        pa.array(np.asarray(image, np.int32)),
        pa.array(np.asarray(class_, np.int32)),
        pa.array(np.asarray(state, np.int8)),
        *(pa.array(where[:, i], mask=missing) for i in range(4)),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(f, np.int32)), pa.array([source])),
    ]
    return pa.Table.from_arrays(columns, schema=FACTS)


def _canonical_facts(facts: pa.Table) -> bytes:
    """The facts without their sources as bytes that do not depend on their order."""
    columns = {"image": "<i4", "class": "<i4", "state": "i1", "x0": "<f4", "y0": "<f4", "x1": "<f4", "y1": "<f4"}
    rows = np.zeros(len(facts), list(columns.items()))
    for name in columns:
        # No location becomes NaN; adding zero makes -0.0 and 0.0 the same bytes.
        rows[name] = facts[name].to_numpy() + 0
    cell = rows["image"].astype(np.int64) << 32 | rows["class"]
    if np.any(cell[1:] <= cell[:-1]):
        rows = rows[np.lexsort([*(rows[name] for name in reversed(columns)), cell])]
    return rows.tobytes()


def _canonical_closures(closed: NDArray[np.int16], covers: NDArray[np.bool_]) -> tuple[bytes, bytes]:
    """Blanket negatives as bytes that depend neither on the order of `covers` nor on rows that are equal or unused."""
    used = np.unique(closed[closed >= 0])
    used = used[covers[used].any(1)]
    rows, inverse = np.unique(np.packbits(covers[used], axis=1), axis=0, return_inverse=True)
    number = np.full(len(covers) + 1, -1, "<i4")  # The last one is what -1, an open image, picks.
    number[used] = inverse.reshape(-1)
    return number[closed].tobytes(), rows.tobytes()
