"""`LabelTable`: every known fact about every image, immutable and columnar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label, LabelMatrix, Locations
from fewtags.notebook import html_table, photo_frame
from fewtags.shards.places import place
from fewtags.table.keys import repeated_key
from fewtags.table.split import Groups, split_table
from fewtags.table.summary import Summary, summarise
from fewtags.text import flag, quoted

CORNERS = ("x0", "y0", "x1", "y1")
"""Fractions of the displayed (EXIF-rotated) image; a point has x0 = x1 and y0 = y1; null without a location."""

FACTS = pa.schema(
    [
        pa.field("image", pa.int32(), nullable=False),
        pa.field("class", pa.int32(), nullable=False),
        pa.field("state", pa.int8(), nullable=False),
        *(pa.field(corner, pa.float32()) for corner in CORNERS),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)

MAX_COMPLETE_SETS = int(np.iinfo(np.int16).max) + 1
"""The most different sets of completely annotated classes in a table."""

IMPLIED_SOURCE = "(complete annotation)"
"""Source of the facts of `implied_facts`."""


@final
@dataclass(frozen=True)
class ValueReading:
    """How a reader understood one distinct value: where it occurs, its meaning, and its count.

    >>> print(ValueReading("labels.csv, class columns", "(blank)", "unknown", 88400))
    labels.csv, class columns: (blank) -> unknown (88,400)
    """

    where: str
    value: str
    meaning: str
    count: int

    def __str__(self) -> str:
        return f"{self.where}: {self.value} -> {self.meaning} ({self.count:,})"


ExclusionKind = Literal[
    "missing", "unreadable", "unusable", "splits", "bad-place", "unread-place", "partial", "group", "excluded"
]
"""Why an item is left out; `check` reports a finding with this code.

- missing: the photo does not exist.
- unreadable: the photo cannot be read.
- unusable: a row or annotation has no usable content.
- splits: an image is in several splits or in none.
- bad-place: a box or point is invalid; its label is kept.
- unread-place: a region of a kind that is not read; its label is kept.
- partial: photos were never downloaded.
- group: several classes of an exclusive group are positive; the labels of the group are unknown.
- excluded: the user excluded it.
"""


@final
@dataclass(frozen=True)
class Excluded:
    """An item that a reader or check left out, with the reason. One line of `excluded.csv`."""

    item: str
    reason: str
    where: str = ""
    kind: ExclusionKind = "excluded"


@final
@dataclass(frozen=True)
class Listed:
    """A message about several items that names each of them, such as copies of photos that were joined.

    `str` has the first three of them.

    Attributes:
        code: fixed word for scripts; `check` reports a finding with this code.
        message: what was found, how often, and what to do.
        items: all items that the message counts.
        warns: whether it is a warning, or else a note.
    """

    code: str
    message: str
    items: tuple[str, ...]
    warns: bool = False

    def __str__(self) -> str:
        rest = f"; and {len(self.items) - 3:,} more" if len(self.items) > 3 else ""
        return f"{self.message} ({'; '.join(self.items[:3])}{rest})" if self.items else self.message


@final
@dataclass(frozen=True)
class Notes:
    """A reader's report about the files. Part of the table, but not of its content or fingerprint."""

    readings: tuple[ValueReading, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    messages: tuple[str, ...] = ()  # how the files were understood
    warnings: tuple[str, ...] = ()  # possible misunderstandings, each with the setting that changes it
    lists: tuple[Listed, ...] = ()  # messages that name their items

    def __add__(self, other: Notes) -> Notes:
        return Notes(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LabelTable:
    """The known labels of N images and C classes. What no row states is unknown.

    Compare tables by `fingerprint`; `==` compares identity.

    Attributes:
        images: string [N], unique keys: paths relative to `root`, with forward slashes. The position of an image is its
            sample index.
        classes: the vocabulary.
        facts: one row per known fact, columns `FACTS`; the same class may be located several times in an image.
        complete_set: int16 [N], row of `complete_classes` for which each image is completely annotated, -1 for none.
            Every class of the set without a fact is absent from the image (an implied negative).
        complete_classes: bool [S, C], sets of classes.
        root: folder that the keys are relative to; None for tables without photos.
        split_names: string [N] or None: the split of each image in its source ("train", "val", ...; "" for none).
        notes: the reader's report.

    Raises:
        DataError: repeated keys, or facts whose image or class number is out of range.

    >>> table = LabelTable.build(["a.jpg", "b.jpg"], ClassNames.of(["cat"]), image=[0], class_=[0], state=[1])
    >>> table
    LabelTable(2 images, 1 classes, 1 facts)
    >>> table.summary().kind
    'single positive'
    """

    images: pa.Array
    classes: ClassNames
    facts: pa.Table
    complete_set: NDArray[np.int16]
    complete_classes: NDArray[np.bool_]
    root: Path | None = None
    split_names: pa.Array | None = None
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        n, c = len(self.images), len(self.classes)
        assert self.facts.schema.equals(FACTS), self.facts.schema
        assert self.complete_set.shape == (n,), (self.complete_set.shape, n)
        assert self.complete_classes.shape[1] == c, (self.complete_classes.shape, c)
        assert self.complete_set.max(initial=-1) < len(self.complete_classes), self.complete_classes.shape
        assert self.split_names is None or len(self.split_names) == n
        if (repeated := repeated_key(self.images)) is not None:
            key, times = repeated
            raise DataError(f"image key {quoted(key)} occurs {times} times; keys (relative paths) must be unique.")
        for column, size in (("image", n), ("class", c)):
            values = self.facts[column].to_numpy()
            if values.min(initial=0) < 0 or values.max(initial=-1) >= size:
                wrong = values[np.argmax((values < 0) | (values >= size))]
                raise DataError(f"a fact names {column} number {wrong}, but there are {size:,}, counted from 0.")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        where = f", root={str(self.root)!r}" if self.root is not None else ""
        return f"LabelTable({len(self):,} images, {len(self.classes):,} classes, {len(self.facts):,} facts{where})"

    def _repr_html_(self) -> str:
        summary = self.summary()
        shown, left_out = summary.listed_classes()
        rows = [
            (self.classes.display[c], summary.positives[c], summary.negatives[c], summary.unknowns[c]) for c in shown
        ]
        notes = [left_out] if left_out else []
        title = f"{len(self):,} images, {len(self.classes):,} classes: {summary.kind}"
        return html_table(title, ("class", "positive", "negative", "unknown"), rows, notes)

    def to_pandas(self) -> Any:
        """Return a DataFrame with the column image, and a column for each class: 1 positive, 0 negative, NaN unknown.

        Raises ConfigError if pandas is not installed.
        """
        states = self.matrix.dense()
        values = np.where(states == Label.UNKNOWN, np.nan, (states == Label.POSITIVE).astype(np.float64))
        return photo_frame(self.images.to_pylist(), dict(zip(self.classes.ids, values.T, strict=True)))

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
        complete_set: NDArray[np.integer] | None = None,
        complete_classes: NDArray[np.bool_] | None = None,
        root: Path | None = None,
        split: Sequence[str] | None = None,
        notes: Notes | None = None,
    ) -> LabelTable:
        """Make a table from N unique keys, the arguments of `fact_table`, N split names and attributes of the class."""
        complete_set = np.full(len(images), -1) if complete_set is None else complete_set
        return cls(
            images=pa.array(images, pa.string()),
            classes=classes,
            facts=fact_table(image, class_, state, locations, source),
            complete_set=np.asarray(complete_set, np.int16),
            complete_classes=np.zeros((0, len(classes)), np.bool_) if complete_classes is None else complete_classes,
            root=root,
            split_names=None if split is None else pa.array(split, pa.string()),
            notes=notes or Notes(),
        )

    @cached_property
    def matrix(self) -> LabelMatrix:
        """The labels as a sparse N x C matrix for training.

        Several facts about one cell are one label. A cell with contradicting facts (positive and negative) is unknown;
        `check` counts such cells.
        """
        n, c = len(self), len(self.classes)
        image, classes, state = (self.facts[name].to_numpy() for name in ("image", "class", "state"))
        if not _ascend(image, classes):
            cell = self.fact_cells
            cell <<= 2
            cell += state + np.int8(1)
            cell.sort(kind="stable")  # the facts of an image are often together, which this algorithm uses
            state = (cell & 3).astype(np.int8) - np.int8(1)
            cell >>= 2
            first = np.flatnonzero(np.concatenate([cell[:1] >= 0, cell[1:] != cell[:-1]]))
            low, high = (f.reduceat(state, first) if len(first) else state for f in (np.minimum, np.maximum))
            state = np.where(low == high, low, np.int8(Label.UNKNOWN))
            image, classes = (part.astype(np.int32) for part in np.divmod(cell[first], max(c, 1)))
        indptr = np.searchsorted(image, np.arange(n + 1, dtype=image.dtype)).astype(np.int64)
        return LabelMatrix(indptr, classes, state, self.complete_set, self.complete_classes)

    @property
    def fact_cells(self) -> NDArray[np.int64]:
        """Cell of each fact as one number, image * C + class: int64 [F]."""
        cell: NDArray[np.int64] = self.facts["image"].to_numpy().astype(np.int64)
        cell *= len(self.classes)  # in place: tables can have tens of millions of facts
        cell += self.facts["class"].to_numpy()
        return cell

    @cached_property
    def locations(self) -> Locations:
        """Points and boxes of the positive cells, sorted by image; contradicted cells have none."""
        image, labels = self.facts["image"].to_numpy(), self.matrix
        located = np.flatnonzero(~self.facts["x0"].is_null().to_numpy())
        located = located[np.argsort(image[located], kind="stable")]
        owner = np.repeat(np.arange(len(self), dtype=np.int64), np.diff(labels.indptr))
        positive = (owner * len(self.classes) + labels.classes)[labels.states == Label.POSITIVE]
        located = located[np.isin(self.fact_cells[located], positive)]
        boxes = np.stack([self.facts[corner].to_numpy()[located] for corner in CORNERS], 1)
        indptr = np.searchsorted(image[located], np.arange(len(self) + 1)).astype(np.int64)
        class_ = self.facts["class"].to_numpy()[located].astype(np.int32)
        return Locations(indptr, class_, boxes.astype(np.float32))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the content: classes, image keys, facts with locations, implied negatives.

        The order of images and of classes counts, because indices refer to it. The order of facts, the row numbers of
        `complete_classes`, sources, split names, root and notes do not count: they change no label.
        """
        digest = hashlib.sha256(b"fewtags label table 1\n")
        keys = self.images.to_pylist()
        for part in (
            json.dumps([self.classes.ids, self.classes.names]).encode(),
            np.array([len(key) for key in keys], "<i8").tobytes(),
            "".join(keys).encode(),
            _canonical_facts(self.facts),
            *_canonical_sets(self.complete_set, self.complete_classes),
        ):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def summary(self) -> Summary:
        """Count labels per class and state, images without labels and contradictions; `print` the result."""
        return summarise(self)

    def subset(self, index: Sequence[int] | NDArray[np.integer] | NDArray[np.bool_]) -> LabelTable:
        """Return the images at positions `index` (int [M], no repeats), in that order, or those of a bool [N] mask.

        All classes are kept, also those without a label. A position outside 0..N - 1 or a mask of another length is an
        `IndexError`; a repeated position is a `DataError`.
        """
        n = len(self)
        index = np.asarray(index)
        if index.dtype == np.bool_:
            if len(index) != n:
                raise IndexError(f"the mask has {len(index):,} values, but the table has {n:,} images")
            index = np.flatnonzero(index)
        index = index.astype(np.int64)
        if np.any((index < 0) | (index >= n)):
            raise IndexError(f"positions are {index.min()} to {index.max()}, but the table has {n:,} images")
        position = np.full(n, -1, np.int32)
        position[index] = np.arange(len(index), dtype=np.int32)
        image = position[self.facts["image"].to_numpy()]
        return replace(
            self,
            images=self.images.take(pa.array(index)),
            facts=with_column(self.facts, "image", pa.array(image)).filter(pa.array(image >= 0)),
            complete_set=self.complete_set[index],
            split_names=None if self.split_names is None else self.split_names.take(pa.array(index)),
        )

    def split(
        self, val: float = 0.1, seed: int = 0, groups: Groups | None = None, stratify: bool = True
    ) -> tuple[LabelTable, LabelTable]:
        """Split the table into a training table and a validation table with the share `val` of the images, in (0, 1).

        `split.split_table` explains the other arguments and the errors. It also makes more than two parts.
        """
        parts = split_table(self, {"train": 1 - val, "val": val}, seed=seed, groups=groups, stratify=stratify)
        return parts["train"], parts["val"]

    def named_splits(self) -> dict[str, LabelTable]:
        """Return one table per split that the source names, in order of appearance; "" has the images without a split.

        A source without splits is a `DataError`.
        """
        if self.split_names is None:
            raise DataError("the source of this table names no splits; make one with split(val=0.1).")
        encoded = pc.fill_null(self.split_names, "").dictionary_encode()
        codes = encoded.indices.to_numpy()
        return {name: self.subset(codes == code) for code, name in enumerate(encoded.dictionary.to_pylist())}

    def require_root(self, labels: str = "the labels", how: str = "") -> Path:
        """Return the folder of the photos. The `DataError` for an unknown folder uses the words `labels` and `how`."""
        if self.root is None:
            raise DataError(
                f"{labels} do not say where the photos are; give their folder: {how or flag('images', 'FOLDER')}."
            )
        return self.root

    def with_root(self, root: Path | str | None) -> LabelTable:
        """Return the same labels for photos in another folder."""
        return replace(self, root=None if root is None else place(root))

    def with_facts(self, facts: pa.Table) -> LabelTable:
        """Return the same images and classes with other facts, and without completely annotated images."""
        none, no_sets = np.full(len(self), -1, np.int16), np.zeros((0, len(self.classes)), np.bool_)
        return replace(self, facts=facts, complete_set=none, complete_classes=no_sets)

    def noting(self, *messages: str) -> LabelTable:
        """Return the same table with messages added to its notes."""
        return replace(self, notes=self.notes + Notes(messages=messages))


def _ascend(image: NDArray[np.integer], class_: NDArray[np.integer]) -> bool:
    """Return whether facts are in the order of images, and those of an image in the order of classes, each once."""
    later = image[1:] > image[:-1]
    later |= (image[1:] == image[:-1]) & (class_[1:] > class_[:-1])
    return bool(later.all())


def with_column(facts: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return facts with other values in one column."""
    number = FACTS.get_field_index(name)
    return facts.set_column(number, FACTS.field(number), values)


def implied_facts(image: NDArray[np.integer], class_: NDArray[np.integer]) -> pa.Table:
    """Return facts, with a source of their own, for implied negatives: image int [F] and class int [F] of each."""
    return fact_table(image, class_, np.full(len(image), Label.NEGATIVE), source=IMPLIED_SOURCE)


def fact_table(
    image: NDArray[np.integer],
    class_: NDArray[np.integer],
    state: NDArray[np.integer],
    locations: NDArray[np.floating] | None = None,
    source: str = "",
) -> pa.Table:
    """Make facts from plain arrays.

    Args:
        image: int [F], image number of each fact.
        class_: int [F], class number of each fact.
        state: int [F], values of `Label`; UNKNOWN is not a fact.
        locations: float [F, 4] x0, y0, x1, y1 in 0..1 of the displayed image; NaN for facts without a location.
        source: name of the file or folder of the facts.
    """
    assert not np.any(np.asarray(state) == Label.UNKNOWN), "an unknown cell is not a fact"
    f = len(image)
    where = np.full((f, 4), np.nan, np.float32) if locations is None else np.asarray(locations, np.float32)
    missing = np.isnan(where).any(1)
    x0, y0, x1, y1 = where[~missing].T
    assert np.all((x0 >= 0) & (x0 <= x1) & (x1 <= 1) & (y0 >= 0) & (y0 <= y1) & (y1 <= 1)), "location outside the image"
    columns = [
        pa.array(np.asarray(image, np.int32)),
        pa.array(np.asarray(class_, np.int32)),
        pa.array(np.asarray(state, np.int8)),
        *(pa.array(where[:, i], mask=missing) for i in range(4)),
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(f, np.int32)), pa.array([source])),
    ]
    return pa.Table.from_arrays(columns, schema=FACTS)


def _canonical_facts(facts: pa.Table) -> bytes:
    """The facts without their sources, as bytes that do not depend on their order."""
    columns = {"image": "<i4", "class": "<i4", "state": "i1", **dict.fromkeys(CORNERS, "<f4")}
    rows = np.zeros(len(facts), list(columns.items()))
    for name in columns:
        # A missing location becomes NaN; adding zero turns -0.0 into 0.0.
        rows[name] = facts[name].to_numpy() + 0
    cell = rows["image"].astype(np.int64) << 32 | rows["class"]
    if np.any(cell[1:] <= cell[:-1]):
        rows = rows[np.lexsort([*(rows[name] for name in reversed(columns)), cell])]
    return rows.tobytes()


def _canonical_sets(complete_set: NDArray[np.int16], complete_classes: NDArray[np.bool_]) -> tuple[bytes, bytes]:
    """Implied negatives as bytes that do not depend on the order of the sets, nor on equal or unused sets."""
    used = np.unique(complete_set[complete_set >= 0])
    used = used[complete_classes[used].any(1)]
    rows, inverse = np.unique(np.packbits(complete_classes[used], axis=1), axis=0, return_inverse=True)
    number = np.full(len(complete_classes) + 1, -1, "<i4")  # -1 (not complete) picks the last one
    number[used] = inverse.reshape(-1)
    return number[complete_set].tobytes(), rows.tobytes()
