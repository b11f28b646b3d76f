"""Findings of `check` in the photos of label tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fewtags.check.label_findings import Finding, counted_finding, training_split
from fewtags.labels import Label
from fewtags.photos.alike import BITS, INSTALL, LIMIT, can_compare, find_alike
from fewtags.photos.scan import Scan, Tick, Trait, scan
from fewtags.table.content import photo_paths, same_content
from fewtags.table.table import LabelTable
from fewtags.text import flag, run_setting

TINY = 32
"""Photos with a shorter side are reported if the input size of the net is unknown."""

_HANDLED = {
    Trait.ROTATED: ("rotated", "turned upright by EXIF orientation; points and boxes must mean the upright photo"),
    Trait.DEEP: ("16-bit", "more than 8 bits deep and scaled to 8, never clipped"),
    Trait.CMYK: ("cmyk", "CMYK and converted to RGB"),
    Trait.PALETTE: ("palette", "palette pictures and converted to RGB"),
    Trait.ALPHA: ("alpha", "partly transparent and composited on white"),
    Trait.ANIMATED: ("animated", "made of several frames, of which the first is used"),
    Trait.MISNAMED: ("wrong-extension", "not of the format that their name says; the content counts"),
    Trait.UNENDED: ("unended", "without the last bytes of their file; all pixels are there, and they are used"),
}

_NOUNS = ("photo is", "photos are")

Image = tuple[str, int]
"""Split and position of an image."""


@final
@dataclass(frozen=True)
class PhotoScan:
    """The result of reading the photo files of several tables, each file once.

    Attributes:
        tables: the tables by split.
        paths: F files, without repeats.
        owners: the images of each file; usually one.
        scan: sizes, traits and errors of the files.
        same: positions of usable files with the same content, two or more each.
    """

    tables: Mapping[str, LabelTable]
    paths: Sequence[str]
    owners: Sequence[Sequence[Image]]
    scan: Scan
    same: Sequence[Sequence[int]]

    @classmethod
    def of(
        cls, tables: Mapping[str, LabelTable], decode: bool, threads: int | None, progress: Tick | None
    ) -> PhotoScan:
        """Read every photo file; tables without an image folder have none."""
        owners: dict[str, list[Image]] = defaultdict(list)
        for split, table in tables.items():
            for image, path in enumerate(photo_paths(table)):
                owners[path].append((split, image))
        paths = list(owners)
        seen = scan(paths, decode=decode, threads=threads, progress=progress)
        unusable = seen.unusable
        usable = [n for n in range(len(paths)) if n not in unusable]
        same = same_content([paths[n] for n in usable], threads=threads)
        return cls(tables, paths, list(owners.values()), seen, [[usable[n] for n in group] for group in same])

    def unusable(self) -> dict[str, dict[str, str]]:
        """Return split -> image key -> why the image has no readable photo."""
        out: dict[str, dict[str, str]] = {split: {} for split in self.tables}
        for file in sorted(self.scan.unusable):
            reason = self.scan.unreadable.get(file, f"no such file: {self.paths[file]}")
            for split, image in self.owners[file]:
                out[split][self.tables[split].images[image].as_py()] = reason
        return out

    def findings(self, input_size: int | None = None) -> Iterator[Finding]:
        """Yield all findings; `input_size` is the side of the net's input in pixels."""
        for split, table in self.tables.items():
            if table.root is None:
                message = (
                    f"{split}: the labels do not say where the photos are, so no photo was read, and training cannot "
                    f"begin; give {flag('images', 'FOLDER')}."
                )
                yield Finding("warning", "no-photos", message)
        cure = "such images are left out of training"
        missing = self._names(sorted(self.scan.missing))
        text = f"missing; {cure}. Check the folder of the images."
        yield from counted_finding("error", "missing", missing, _NOUNS, text)
        unreadable = sorted(self.scan.unreadable.items())
        items = [f"{name}: {reason}" for file, reason in unreadable for name in self._names([file])]
        text = f"cannot be read; {cure}. Fix or remove the files."
        yield from counted_finding("error", "unreadable", items, ("photo", "photos"), text)
        for trait, (code, what) in _HANDLED.items():
            yield from counted_finding(
                "note", code, self._names(np.flatnonzero(self.scan.traits & trait)), _NOUNS, f"{what}."
            )
        limit, side = input_size or TINY, np.minimum(self.scan.width, self.scan.height)
        than = f"the net's input of {limit}" if input_size else str(limit)
        yield from counted_finding(
            "note" if limit > TINY else "warning",
            "small",
            self._names(np.flatnonzero((side > 0) & (side < limit))),
            ("photo has", "photos have"),
            f"a side shorter than {than} pixels.",
        )
        yield from self._copies()

    def _copies(self) -> Iterator[Finding]:
        """Groups of images with the same content: copies of a file, or one file used several times."""
        skipped = self.scan.unusable.union(*self.same)
        repeated = [[n] for n, images in enumerate(self.owners) if len(images) > 1 and n not in skipped]
        groups = [[image for file in group for image in self.owners[file]] for group in (*self.same, *repeated)]
        copies = [
            " = ".join(self._name(image) for image in group if image[0] == split)
            for group in groups
            for split, count in Counter(split for split, _ in group).items()
            if count > 1
        ]
        yield from counted_finding(
            "warning",
            "copies",
            copies,
            ("photo occurs", "photos occur"),
            "several times in one split, as files with the same content. Keep one of each, with the labels of all.",
        )
        yield from self._leaks(groups)
        yield from counted_finding(
            "warning",
            "contradicting-copies",
            [text for group in groups for text in self._contradictions(group)],
            ("label differs", "labels differ"),
            "between copies of one photo, positive in one and negative in another. Decide which is right.",
        )

    def _leaks(self, groups: Sequence[Sequence[Image]]) -> Iterator[Finding]:
        """Photos in several splits: in training too, or in several splits to measure on."""
        train = training_split(self.tables)
        leaks = [group for group in groups if len({split for split, _ in group}) > 1]
        learned = [group for group in leaks if any(split == train for split, _ in group)]
        touched = sorted(Counter(split for group in learned for split, _ in group if split != train).items())
        shares = ", ".join(f"{n:,} of {len(self.tables[split]):,} in {split}" for split, n in touched)
        text = (
            f"in {train} and in another split ({shares}). Training leaves them out of {train}, so that scores are fair."
        )
        yield from counted_finding(
            "warning", "leak", [" = ".join(map(self._name, group)) for group in learned], _NOUNS, text
        )
        measured = [[image for image in group if image[0] != train] for group in leaks]
        yield from counted_finding(
            "warning",
            "measured-twice",
            [" = ".join(map(self._name, group)) for group in measured if len({split for split, _ in group}) > 1],
            _NOUNS,
            "in several splits to measure on. Epoch and thresholds are chosen on one of them, so scores on the other "
            "are too good. Remove them from one of the splits.",
        )

    def near_copies(self, threads: int | None = None) -> Iterator[Finding]:
        """Pairs of photos that look alike, within a split and between training and another one; files are not equal."""
        if not can_compare():
            message = f"copies that were encoded again or resized were not looked for; that needs {INSTALL}."
            yield Finding("note", "near-copies", message)
            return
        unusable = self.scan.unusable
        usable = np.array([n for n in range(len(self.paths)) if n not in unusable], np.int64)
        alike = find_alike([self.paths[n] for n in usable], threads=threads)
        # Files of equal content, which another finding reports, have one number.
        content = np.arange(len(self.paths))
        for group in self.same:
            content[list(group)] = group[0]
        names, train = [*self.tables], training_split(self.tables)
        first = [owners[0] for owners in self.owners]
        split = np.array([names.index(name) for name, _ in first], np.int64)[usable]
        one, other = (split[alike.pairs[:, place]] for place in (0, 1))
        new = content[usable][alike.pairs[:, 0]] != content[usable][alike.pairs[:, 1]]
        is_train = (one == names.index(train)) | (other == names.index(train))
        inside, across, measured = (
            [
                f"{self._name(first[usable[a]])} ~ {self._name(first[usable[b]])} (distance {distance})"
                for a, b, distance in alike.nearest(new & wanted)
            ]
            for wanted in (one == other, (one != other) & is_train, (one != other) & ~is_train)
        )
        of = f"look alike (encoded again or resized? hashes differ in at most {LIMIT} of {BITS} bits)"
        nouns = ("pair of photos", "pairs of photos")
        yield from counted_finding(
            "warning", "near-copies", inside, nouns, f"in one split {of}. Look at them, and keep one of each if so."
        )
        yield from counted_finding(
            "warning",
            "near-leak",
            across,
            nouns,
            f"in {train} and in another split {of}. Scores may be too good; to leave them out of {train}: "
            f"{run_setting('data.near_copies', 'leave_out')}.",
        )
        yield from counted_finding(
            "warning", "near-measured-twice", measured, nouns, f"in two splits to measure on {of}. Look at them."
        )

    def _contradictions(self, group: Sequence[Image]) -> Iterator[str]:
        """Labels that are positive in one image of a group and negative in another."""
        classes = self.tables[group[0][0]].classes
        if any(self.tables[split].classes.ids != classes.ids for split, _ in group):
            return  # another finding says that the vocabularies differ
        rows = np.stack([self.tables[split].matrix.rows([image])[0] for split, image in group])
        positive, negative = rows == Label.POSITIVE, rows == Label.NEGATIVE
        for class_ in np.flatnonzero(positive.any(0) & negative.any(0)):
            yes, no = (self._name(group[int(np.argmax(cells[:, class_]))]) for cells in (positive, negative))
            yield f"{classes.display[class_]}: {yes} positive, {no} negative"

    def _names(self, files: Iterable[int]) -> list[str]:
        return [self._name(image) for file in files for image in self.owners[file]]

    def _name(self, image: Image) -> str:
        key = str(self.tables[image[0]].images[image[1]].as_py())
        return f"{image[0]} {key}" if len(self.tables) > 1 else key
