"""What an annotation file states, label by label, and the table that follows from it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.formats.boxes import Placed, fault_text, place_boxes, place_fractions
from fewtags.formats.common import close_images, distinct, distinct_facts
from fewtags.formats.locate import Located
from fewtags.labels import ClassNames, Label
from fewtags.table.table import FACTS, Excluded, LabelTable, Notes

Corners = tuple[float, float, float, float]

_NOWHERE = (math.nan,) * 4
_NO_PLACE, _BOX, _POINT = range(3)


@final
class Stated:
    """Labels in the order in which they are met; 60 bytes each, whatever the file.

    `image` is a position among the names of the file, `class_` one in the vocabulary. UNKNOWN is worth stating: the
    cell stays open where everything else is annotated completely.
    """

    def __init__(self) -> None:
        self._image, self._class, self._state = array("q"), array("q"), array("b")
        self._place, self._corners, self._source = array("b"), array("d"), array("q")
        self._refused: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._image)

    def add(
        self,
        image: int,
        class_: int,
        *,
        state: Label = Label.POSITIVE,
        box: Corners | None = None,
        point: tuple[float, float] | None = None,
        source: int = 0,
        refused: str = "",
    ) -> None:
        """State one label.

        Args:
            image: position of the image among the names.
            class_: position of the class.
            state: what is said.
            box: x0, y0, x1, y1 of where.
            point: x, y of where.
            source: position in the names of sources.
            refused: why a place that is given cannot be read.
        """
        if refused:
            self._refused.append((len(self), refused))
        self._image.append(image)
        self._class.append(class_)
        self._state.append(state)
        self._place.append(_POINT if point is not None else _NO_PLACE if box is None else _BOX)
        self._corners.extend(point * 2 if point is not None else box or _NOWHERE)
        self._source.append(source)

    def labels(self) -> Labels:
        """All of them as arrays."""
        place = np.array(self._place, np.int8)
        return Labels(
            np.array(self._image, np.int64),
            np.array(self._class, np.int64),
            np.array(self._state, np.int8),
            np.array(self._corners, np.float64).reshape(-1, 4),
            place != _NO_PLACE,
            place == _POINT,
            np.array(self._source, np.int64),
            tuple(self._refused),
        )


@final
@dataclass(frozen=True)
class Labels:
    """F labels as arrays.

    Attributes:
        image: int64 [F].
        class_: int64 [F].
        state: int8 [F], values of `Label`.
        corners: float64 [F, 4] x0, y0, x1, y1; NaN where there is no place.
        placed: bool [F], whether a place is given.
        point: bool [F], whether it is a point.
        source: int64 [F], position in the names of sources.
        refused: rows with a place that cannot be read, and why.
    """

    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    state: NDArray[np.int8]
    corners: NDArray[np.float64]
    placed: NDArray[np.bool_]
    point: NDArray[np.bool_]
    source: NDArray[np.int64]
    refused: tuple[tuple[int, str], ...] = ()

    def take(self, rows: NDArray[np.int64]) -> Labels:
        """Some rows."""
        parts = (self.image[rows], self.class_[rows], self.state[rows], self.corners[rows])
        return Labels(*parts, self.placed[rows], self.point[rows], self.source[rows])


@final
@dataclass(frozen=True)
class Source:
    """An annotation file, read.

    Attributes:
        path: the file or folder.
        classes: the vocabulary.
        labels: what it states; `image` is a position among R names.
        photos: the photos of these names.
        unit: what the corners are counted in.
        sizes: float64 [R, 2] declared width and height, NaN where unknown.
        closes: bool [R], names of images about which everything is said.
        nothing: bool [R], names of images that are said to show none of the classes.
        origin: what to call a label in the excluded list, by its row.
        splits: R split names, or None.
        sources: names of the sources of facts; the first is the file.
        notes: how it was read.
    """

    path: Path
    classes: ClassNames
    labels: Labels
    photos: Located
    unit: Literal["pixels", "fractions"]
    sizes: NDArray[np.float64]
    closes: NDArray[np.bool_]
    nothing: NDArray[np.bool_]
    origin: Callable[[int], str]
    splits: Sequence[str] | None = None
    sources: tuple[str, ...] = ()
    notes: Notes = field(default_factory=Notes)

    def table(self) -> LabelTable:
        """The label table: labels of photos that are there, places as fractions of the displayed photo.

        A class that is named in an image that shows none of the classes keeps both facts, which the table takes as
        unknown.
        """
        photos, n, c = self.photos, len(self.photos.keys), len(self.classes)
        every = replace(self.labels, image=photos.image[self.labels.image], refused=())
        here = every.image >= 0
        row = np.flatnonzero(here & (every.state != Label.UNKNOWN))
        facts = every.take(row)
        placed = self._place(facts)
        open_ = np.flatnonzero(here & (every.state == Label.UNKNOWN))
        closed, covers = np.full(n, -1, np.int16), np.ones((1, c), np.bool_)
        if (shut := _images(self.closes | self.nothing, photos.image)).size:
            closing, covers = close_images(n, c, every.image[open_], every.class_[open_])
            closed[shut] = closing[shut]
        nothing = np.isin(facts.image, _images(self.nothing, photos.image))
        denied = np.flatnonzero(nothing & (facts.state == Label.POSITIVE))
        both = np.concatenate([np.arange(len(row)), denied])
        state, locations = facts.state[both], placed.locations[both]
        state[len(row) :], locations[len(row) :] = Label.NEGATIVE, np.nan
        keep = distinct_facts(facts.image[both], facts.class_[both], state, ~np.isnan(locations[:, 0]))
        splits, clashes = self._splits()
        table = LabelTable.build(
            photos.keys,
            self.classes,
            image=facts.image[both[keep]],
            class_=facts.class_[both[keep]],
            state=state[keep],
            locations=locations[keep],
            source=self.path.resolve().name,
            complete_set=closed,
            complete_classes=covers,
            root=photos.root,
            split=splits,
            notes=photos.notes
            + self.notes
            + self._notes(row, facts, placed, (int((~here).sum()), len(denied)), clashes),
        )
        return mark_sources(table, self.sources, facts.source[both[keep]])

    def _place(self, facts: Labels) -> Placed:
        place = place_boxes if self.unit == "pixels" else place_fractions
        sizes = np.full((len(self.photos.keys), 2), np.nan)
        known = (self.photos.image >= 0) & ~np.isnan(self.sizes).any(1)
        sizes[self.photos.image[known]] = self.sizes[known]
        rows = np.flatnonzero(facts.placed)  # most labels of large sets have no place
        some = place(facts.corners[rows], facts.placed[rows], facts.image[rows], sizes, self.photos, facts.point[rows])
        locations, fault = np.full((len(facts.image), 4), np.nan), np.zeros(len(facts.image), np.int8)
        locations[rows], fault[rows] = some.locations, some.fault
        return Placed(locations, fault, some.messages, some.warnings)

    def _splits(self) -> tuple[list[str] | None, Sequence[Excluded]]:
        """The split of each image, and the images that are in several."""
        if self.splits is None:
            return None, ()
        names = [""] * len(self.photos.keys)
        clashes: dict[int, Excluded] = {}
        for position, split in zip(self.photos.image.tolist(), self.splits, strict=True):
            if position >= 0 and split:
                if names[position] not in ("", split):
                    reason = f"is in {names[position]} and in {split}; the first of them counts"
                    clashes[position] = Excluded(self.photos.keys[position], reason, str(self.path), "splits")
                names[position] = names[position] or split
        return names, [*clashes.values()]

    def _notes(
        self,
        row: NDArray[np.int64],
        facts: Labels,
        placed: Placed,
        counts: tuple[int, int],
        clashes: Sequence[Excluded],
    ) -> Notes:
        where, name = str(self.path), self.path.resolve().name
        reasons = dict(self.labels.refused)
        refused = {*reasons}
        for k in np.flatnonzero(placed.fault).tolist():
            reasons.setdefault(int(row[k]), fault_text(int(placed.fault[k]), bool(facts.point[k])))
        known = {*row.tolist()}
        faults = [
            Excluded(
                self.origin(i), f"{reason}; its label is kept", where, "unread-place" if i in refused else "bad-place"
            )
            for i, reason in sorted(reasons.items())
            if i in known
        ]
        orphans, denied = counts
        said = (
            (len(faults), "boxes or points cannot be used, see the excluded list; the labels are kept"),
            (orphans, "labels belong to photos that are left out"),
            (denied, "labels are in an image that is said to show none of the classes: unknown"),
            (len(clashes), "images are in several splits; the first of them counts"),
        )
        messages = tuple(f"{name}: {count:,} {text}" for count, text in said if count)
        return Notes((), (*faults, *clashes), placed.messages + messages, placed.warnings)


def mark_sources(table: LabelTable, names: Sequence[str], source: NDArray[np.int64]) -> LabelTable:
    """A table whose fact i comes from `names[source[i]]`; the same table where there is one name only."""
    if len(names) < 2:
        return table
    column = pa.DictionaryArray.from_arrays(pa.array(source.astype(np.int32)), pa.array(names, pa.string()))
    return replace(table, facts=table.facts.set_column(7, FACTS.field(7), column))


def _images(rows: NDArray[np.bool_], image: NDArray[np.int64]) -> NDArray[np.int64]:
    """The images of some names, those that were left out excepted."""
    found = distinct(image[rows])
    return found[found >= 0]
