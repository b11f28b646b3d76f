"""The labels that an annotation file states, in the form that all readers share, and the table they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.formats.boxes import Regions, fault_text, regions_of
from fewtags.formats.common import clean_name, close_images, distinct, distinct_facts, joined_names
from fewtags.formats.labels import Labels, Stated
from fewtags.formats.locate import ImageKeys
from fewtags.formats.negatives import read_negatives
from fewtags.formats.options import ReadOptions
from fewtags.formats.places import choose_places
from fewtags.labels import ClassNames, Label
from fewtags.table.table import FACTS, Excluded, ExclusionKind, LabelTable, Notes, ValueReading
from fewtags.text import counted, some

__all__ = ["Labels", "Source", "Stated", "count_messages", "mark_sources", "value_readings"]


@final
@dataclass(frozen=True, kw_only=True)
class Source:
    """What an annotation file states about R image names. Every reader makes one; `table` does the rest.

    Attributes:
        path: the file or folder.
        classes: the vocabulary.
        labels: the stated labels.
        photos: image keys of the R names.
        unit: unit of the corners: pixels, or fractions of the photo, in the frame that the file uses ("percent":
            fractions that the file writes as per cent); or fractions of the displayed photo, already checked.
        options: how annotations are read; they say which names of classes state an absence.
        origin: returns the name of a label in the excluded list, by its position.
        sizes: float64 [R, 2], declared width and height, NaN if unknown; None: unknown for all images.
        complete: bool [R], images that are completely annotated: other classes are absent; None: no image.
        empty: bool [R], images that are stated to show none of the classes; None: no image.
        splits: R names of splits, or None.
        sources: names of the sources of labels; the first is the file.
        notes: how the file was read.
        keep_repeats: keep equal facts without a region. Other readers keep the first.
        key: what the random points of a label depend on, by its position; None: its `origin`.
    """

    path: Path
    classes: ClassNames
    labels: Labels
    photos: ImageKeys
    unit: Literal["pixels", "fractions", "percent", "displayed"]
    options: ReadOptions
    origin: Callable[[int], str]
    sizes: NDArray[np.float64] | None = None
    complete: NDArray[np.bool_] | None = None
    empty: NDArray[np.bool_] | None = None
    splits: Sequence[str] | None = None
    sources: tuple[str, ...] = ()
    notes: Notes = field(default_factory=Notes)
    keep_repeats: bool = False
    key: Callable[[int], object] | None = None

    def table(self) -> LabelTable:
        """Return the label table: the labels of photos that exist, with regions as fractions of the displayed photo.

        If an image is stated to show none of the classes and yet has a class, both facts are kept, and the table takes
        the cell as unknown.
        """
        plain = self._with_plain_names()
        if plain is not None:
            return plain.table()
        return self._with_places()._with_negatives()._table()

    def _table(self) -> LabelTable:
        labels, photos = self.labels, self.photos
        image = photos.image[labels.image]
        known = image >= 0
        facts = np.flatnonzero(known & (labels.state != Label.UNKNOWN))
        denied = facts[np.isin(image[facts], self._images_of(self.empty)) & (labels.state[facts] == Label.POSITIVE)]
        rows = np.concatenate([facts, denied])
        state = np.concatenate([labels.state[facts], np.full(len(denied), Label.NEGATIVE, np.int8)])
        regions = self._regions(facts, image)
        locations = np.concatenate([regions.locations, np.full((len(denied), 4), np.nan)])
        if not self.keep_repeats:
            kept = distinct_facts(image[rows], labels.class_[rows], state, ~np.isnan(locations[:, 0]))
            rows, state, locations = rows[kept], state[kept], locations[kept]
        n, c = len(photos.keys), len(self.classes)
        closed, sets = np.full(n, -1, np.int16), np.ones((1, c), np.bool_)
        complete = np.concatenate([self._images_of(self.empty), self._images_of(self.complete)])
        if complete.size:
            open_ = np.flatnonzero(known & (labels.state == Label.UNKNOWN))
            every, sets = close_images(n, c, image[open_], labels.class_[open_])
            closed[complete] = every[complete]
        splits, clashes = self._splits()
        counts = (int((~known).sum()), len(denied))
        table = LabelTable.build(
            photos.keys,
            self.classes,
            image=image[rows],
            class_=labels.class_[rows],
            state=state,
            locations=locations,
            source=self.path.resolve().name,
            complete_set=closed,
            complete_classes=sets,
            root=photos.root,
            split=splits,
            notes=photos.notes
            + self.notes
            + self._notes(facts, regions, counts, clashes)
            + Notes(warnings=self._lost(known)),
        )
        return mark_sources(table, self.sources, labels.source[rows])

    def _with_places(self) -> Source:
        """Return the source in which the places are those that the options ask for, see `choose_places`."""
        labels, options = self.labels, self.options
        sizes = None if self.unit != "pixels" else np.full((len(labels.image), 2), np.nan)
        if sizes is not None and self.sizes is not None:
            sizes = self.sizes[labels.image]
        used = (self.photos.image[labels.image] >= 0) & (labels.state == Label.POSITIVE)
        chosen, drawn = choose_places(labels, sizes, used, self.key or self.origin, options)
        notes = Notes(messages=(f"{self.path.resolve().name}: {drawn}",) if drawn else ())
        return replace(self, labels=chosen, notes=notes + self.notes)

    def _with_negatives(self) -> Source:
        """Return the source in which names such as "none" and "-cat" are negative labels, see `read_negatives`."""
        where = self.path.resolve().name
        found = read_negatives(self.classes, self.labels, self.photos.image, self.options, where)
        if found is None:
            return self
        origin, kept = self.origin, found.kept
        empty = found.empty if self.empty is None else found.empty | self.empty
        return replace(
            self,
            classes=found.classes,
            labels=found.labels,
            origin=lambda i: origin(int(kept[i])),
            empty=empty if empty.any() else None,
            notes=self.notes + found.notes,
        )

    def _with_plain_names(self) -> Source | None:
        """Return the source with one class for names that look the same; None if all names are plain already."""
        plain = [clean_name(name) or name for name in self.classes.names]
        ids = [clean_name(name) or name for name in self.classes.ids]
        if ids == [*self.classes.ids] and plain == [*self.classes.names]:
            return None
        names = dict(zip(ids, plain, strict=True))
        position = {key: i for i, key in enumerate(names)}
        class_ = np.array([position[key] for key in ids], np.int64)[self.labels.class_]
        warnings = joined_names(self.path.resolve().name, self.classes.ids)
        notes = self.notes + Notes(warnings=warnings)
        classes = ClassNames.of(names, names.values())
        return replace(self, classes=classes, labels=replace(self.labels, class_=class_), notes=notes)

    def _lost(self, kept: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return a warning if all photos of a class are left out."""
        positive = self.labels.state == Label.POSITIVE
        there, here = (np.bincount(self.labels.class_[rows]) > 0 for rows in (positive, positive & kept))
        there[: len(here)] &= ~here
        lost = [self.classes.ids[c] for c in np.flatnonzero(there).tolist()]
        where = self.path.resolve().name
        return (f"{where}: all photos with {some(lost)} are left out, so nothing is known of it",) if lost else ()

    def _images_of(self, names: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return the images of some names, without those that are left out."""
        found = distinct(self.photos.image[np.zeros(0, np.int64) if names is None else names])
        return found[found >= 0]

    def _regions(self, facts: NDArray[np.int64], image: NDArray[np.int64]) -> Regions:
        """Return the regions of facts; most labels of large sets have none."""
        labels, photos = self.labels, self.photos
        located = np.flatnonzero(labels.located[facts])
        rows = facts[located]
        if self.unit == "displayed":
            found = Regions(labels.corners[rows], np.zeros(len(rows), np.int8))
        else:
            sizes = np.full((len(photos.keys), 2), np.nan)
            if self.sizes is not None:
                declared = (photos.image >= 0) & ~np.isnan(self.sizes).any(1)
                sizes[photos.image[declared]] = self.sizes[declared]
            found = regions_of(
                labels.corners[rows], self.unit, labels.point[rows], image[rows], sizes, photos, str(self.path)
            )
        locations, fault = np.full((len(facts), 4), np.nan), np.zeros(len(facts), np.int8)
        locations[located], fault[located] = found.locations, found.fault
        return Regions(locations, fault, found.messages, found.warnings)

    def _splits(self) -> tuple[list[str] | None, Sequence[Excluded]]:
        """Return the split of each image, and the images that are in several."""
        if self.splits is None:
            return None, ()
        names = [""] * len(self.photos.keys)
        clashes: dict[int, Excluded] = {}
        for image, split in zip(self.photos.image.tolist(), self.splits, strict=True):
            if image >= 0 and split:
                if names[image] not in ("", split):
                    reason = f"is in {names[image]} and in {split}; the first of them counts"
                    clashes[image] = Excluded(self.photos.keys[image], reason, str(self.path), "splits")
                names[image] = names[image] or split
        return names, [*clashes.values()]

    def _notes(
        self, facts: NDArray[np.int64], regions: Regions, counts: tuple[int, int], clashes: Sequence[Excluded]
    ) -> Notes:
        known = {*facts.tolist()} if self.labels.unread else set()
        reasons: dict[int, tuple[str, ExclusionKind]] = {
            row: (reason, "unread-place") for row, reason in self.labels.unread if row in known
        }
        for k in np.flatnonzero(regions.fault).tolist():
            row = int(facts[k])
            reasons.setdefault(row, (fault_text(int(regions.fault[k]), bool(self.labels.point[row])), "bad-place"))
        faults = [
            Excluded(self.origin(row), f"{reason}; its label is kept", str(self.path), kind)
            for row, (reason, kind) in sorted(reasons.items())
        ]
        orphans, denied = counts
        rows = (
            (
                *(len(faults), "box or point cannot be used, see the excluded list; its label is kept"),
                "boxes or points cannot be used, see the excluded list; the labels are kept",
            ),
            (orphans, "label belongs to a photo that is left out", "labels belong to photos that are left out"),
            (
                *(denied, "label is in an image that is stated to show none of the classes: unknown"),
                "labels are in images that are stated to show none of the classes: unknown",
            ),
            (len(clashes), *SEVERAL_SPLITS),
        )
        messages = regions.messages + count_messages(self.path, rows)
        return Notes((), (*faults, *clashes), messages, regions.warnings)


SEVERAL_SPLITS = (
    "image is in several splits; the first of them counts",
    "images are in several splits; the first of them counts",
)
"""Texts of a message about one image, and about several, that the labels put into several splits."""


def value_readings(where: str, rows: Iterable[tuple[str, str, int]]) -> tuple[ValueReading, ...]:
    """Return how values were read, from (value, meaning, count) rows; values that do not occur are left out."""
    return tuple(ValueReading(where, value, meaning, int(count)) for value, meaning, count in rows if count > 0)


def count_messages(path: Path, rows: Iterable[tuple[int, str, str]]) -> tuple[str, ...]:
    """Return messages about a file from rows (count, text for one, text for several); without those of count 0."""
    name = path.resolve().name
    return tuple(f"{name}: {counted(count, one, many)}" for count, one, many in rows if count)


def mark_sources(table: LabelTable, names: Sequence[str], source: NDArray[np.int64]) -> LabelTable:
    """Return the table with `names[source[i]]` as source of fact i; the same table if there is one name only."""
    if len(names) < 2:
        return table
    column = pa.DictionaryArray.from_arrays(pa.array(source.astype(np.int32)), pa.array(names, pa.string()))
    return replace(table, facts=table.facts.set_column(7, FACTS.field(7), column))
