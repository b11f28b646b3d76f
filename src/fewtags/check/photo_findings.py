"""Findings of `check` in the photos of label tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.check.label_findings import Finding, training_split
from fewtags.labels import Label
from fewtags.photos.scan import Scan, Tick, Trait, scan
from fewtags.table.content import photo_paths, same_content
from fewtags.table.table import LabelTable
from fewtags.text import counted

TINY = 32
"""Photos with a shorter side are reported if the input size of the net is unknown."""

_HANDLED = {
    Trait.ROTATED: (
        "rotated",
        "turned upright as their EXIF orientation says; points and boxes must mean the upright photo",
    ),
    Trait.DEEP: ("16-bit", "more than 8 bits deep and scaled to 8, never clipped"),
    Trait.CMYK: ("cmyk", "CMYK and converted to RGB"),
    Trait.PALETTE: ("palette", "palette pictures and converted to RGB"),
    Trait.ALPHA: ("alpha", "partly transparent and laid on white"),
    Trait.ANIMATED: ("animated", "made of several frames, of which the first is used"),
    Trait.MISNAMED: ("wrong-extension", "not of the format that their name says; the content counts"),
}


@final
@dataclass(frozen=True)
class PhotoScan:
    """The result of reading the photo files of several tables, each file once.

    Attributes:
        paths: F files, without repeats.
        owners: the images of each file as (split, position); usually one.
        decoded: whether the pixels were read too.
        scan: sizes, traits and errors of the files.
        same: positions of usable files with the same content, two or more each.
    """

    paths: Sequence[str]
    owners: Sequence[Sequence[tuple[str, int]]]
    decoded: bool
    scan: Scan
    same: Sequence[tuple[int, ...]]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, LabelTable],
        *,
        decode: bool = True,
        threads: int | None = None,
        progress: Tick | None = None,
    ) -> PhotoScan:
        """Read every photo file; tables without an image folder have none."""
        owners: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for split, table in tables.items():
            for image, path in enumerate(photo_paths(table)):
                owners[path].append((split, image))
        paths = list(owners)
        seen = scan(paths, decode=decode, threads=threads, progress=progress)
        unusable = seen.unusable
        usable = [n for n in range(len(paths)) if n not in unusable]
        same = same_content([paths[n] for n in usable], threads=threads)
        return cls(paths, list(owners.values()), decode, seen, [tuple(usable[n] for n in group) for group in same])

    def unusable(self, tables: Mapping[str, LabelTable]) -> dict[str, dict[str, str]]:
        """Return split -> image key -> why the image has no readable photo."""
        out: dict[str, dict[str, str]] = {split: {} for split in tables}
        for file in sorted(self.scan.unusable):
            reason = self.scan.unreadable.get(file, f"no such file: {self.paths[file]}")
            for split, image in self.owners[file]:
                out[split][tables[split].images[image].as_py()] = reason
        return out

    def findings(self, tables: Mapping[str, LabelTable], input_size: int | None = None) -> Iterator[Finding]:
        """Yield all findings; `input_size` is the side of the net's input in pixels."""
        for split, table in tables.items():
            if table.root is None:
                message = (
                    f"{split}: the folder of the photos is not known, so they were not looked at; give --images FOLDER."
                )
                yield Finding("warning", "no-photos", message)
        yield from self._unusable_findings(tables)
        yield from self._trait_findings(tables)
        yield from self._small(tables, input_size)
        yield from self._copies(tables)

    def _unusable_findings(self, tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
        cure = "such images are left out of training, with a line each in excluded.csv"
        if items := self._named(tables, sorted(self.scan.missing)):
            message = (
                f"{counted(len(items), 'photo is', 'photos are')} not there; {cure}. Check the folder of the images."
            )
            yield Finding("error", "missing", message, items)
        if items := tuple(
            f"{name}: {reason}"
            for file, reason in sorted(self.scan.unreadable.items())
            for name in self._named(tables, [file])
        ):
            message = f"{counted(len(items), 'photo')} cannot be read; {cure}. Fix or remove the files."
            yield Finding("error", "unreadable", message, items)

    def _trait_findings(self, tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
        for trait, (code, what) in _HANDLED.items():
            files = np.flatnonzero(self.scan.traits & trait)
            if len(files):
                items = self._named(tables, files)
                yield Finding("note", code, f"{counted(len(items), 'photo is', 'photos are')} {what}.", items)

    def _small(self, tables: Mapping[str, LabelTable], input_size: int | None) -> Iterator[Finding]:
        limit = input_size or TINY
        side = np.minimum(self.scan.width, self.scan.height)
        items = self._named(tables, np.flatnonzero((side > 0) & (side < limit)))
        if items:
            than = f"the net's input of {limit}" if input_size else str(limit)
            message = f"{counted(len(items), 'photo has', 'photos have')} a side shorter than {than} pixels."
            yield Finding("note" if input_size and input_size > TINY else "warning", "small", message, items)

    def _copies(self, tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
        groups = self._copy_groups()
        yield from _inside(tables, groups)
        yield from _across(tables, groups)
        contradicting = [text for group in groups for text in _contradictions(tables, group)]
        if contradicting:
            message = (
                f"{counted(len(contradicting), 'label differs', 'labels differ')} between copies of one photo, "
                "positive in one and negative in another. Decide which is right."
            )
            yield Finding("warning", "contradicting-copies", message, tuple(contradicting))

    def _copy_groups(self) -> list[list[tuple[str, int]]]:
        """Groups of images with the same content: copies of a file, or one file used several times."""
        grouped = {file for group in self.same for file in group}
        groups = [[owner for file in group for owner in self.owners[file]] for group in self.same]
        unusable = self.scan.unusable
        for file, owners in enumerate(self.owners):
            if len(owners) > 1 and file not in grouped and file not in unusable:
                groups.append(list(owners))
        return groups

    def _named(self, tables: Mapping[str, LabelTable], files: Sequence[int] | NDArray[np.int64]) -> tuple[str, ...]:
        return tuple(_name(tables, owner) for file in files for owner in self.owners[int(file)])


def _name(tables: Mapping[str, LabelTable], owner: tuple[str, int]) -> str:
    split, image = owner
    key = str(tables[split].images[image].as_py())
    return f"{split} {key}" if len(tables) > 1 else key


def _inside(tables: Mapping[str, LabelTable], groups: Sequence[Sequence[tuple[str, int]]]) -> Iterator[Finding]:
    items = []
    for group in groups:
        for split in dict.fromkeys(split for split, _ in group):
            copies = [owner for owner in group if owner[0] == split]
            if len(copies) > 1:
                items.append(" = ".join(_name(tables, owner) for owner in copies))
    if items:
        message = (
            f"{counted(len(items), 'photo occurs', 'photos occur')} several times in one split, as files with the same "
            "content. Keep one of each, with the labels of all."
        )
        yield Finding("warning", "copies", message, tuple(items))


def _across(tables: Mapping[str, LabelTable], groups: Sequence[Sequence[tuple[str, int]]]) -> Iterator[Finding]:
    train = training_split(tables)
    leaks = [group for group in groups if len({split for split, _ in group}) > 1]
    if not leaks:
        return
    touched = Counter(split for group in leaks for split, _ in group)
    shares = ", ".join(
        f"{n:,} of {len(tables[split]):,} in {split}" for split, n in sorted(touched.items()) if split != train
    )
    message = (
        f"{counted(len(leaks), 'photo is', 'photos are')} in more than one split ({shares}): scores there are too "
        "good. Remove them from one split; or leave --val out, so that equal photos stay on one side."
    )
    items = tuple(" = ".join(_name(tables, owner) for owner in group) for group in leaks)
    yield Finding("error", "leak", message, items)


def _contradictions(tables: Mapping[str, LabelTable], group: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Labels that are positive in one image of a group and negative in another."""
    classes = tables[group[0][0]].classes
    if any(tables[split].classes.ids != classes.ids for split, _ in group):
        return  # another finding says that the vocabularies differ
    rows = np.stack([tables[split].matrix.rows([image])[0] for split, image in group])
    both = (rows == Label.POSITIVE).any(0) & (rows == Label.NEGATIVE).any(0)
    for class_ in np.flatnonzero(both):
        yes = _name(tables, group[int(np.argmax(rows[:, class_] == Label.POSITIVE))])
        no = _name(tables, group[int(np.argmax(rows[:, class_] == Label.NEGATIVE))])
        yield f"{classes.display[class_]}: {yes} positive, {no} negative"
