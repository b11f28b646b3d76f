"""Findings of `check` in label tables, without their photos."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np

from fewtags.labels import ClassNames
from fewtags.table.summary import Summary
from fewtags.table.table import Excluded, ExclusionKind, LabelTable
from fewtags.table.vocabulary import look_alikes
from fewtags.text import counted, setting

Level = Literal["error", "warning", "note"]

SHARE_RATIO = 3.0
"""A class is reported if its shares of the positives in two splits differ by more than this factor ..."""
SHARE_COUNT = 5
"""... and it has, or should have, at least this many positives: smaller counts differ by chance."""
FEW = 5
"""A class with fewer training positives is reported."""


_AN_ID = re.compile(r"[nN]\d{8}|/[mg]/\w+|\d+|(?:class|label|cat|category|id)[ _-]?\d+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}")
"""Ids of WordNet, OpenImages, numbers, numbered classes and UUIDs."""

_LEFT_OUT: Mapping[ExclusionKind, tuple[Level, str, str, str]] = {
    "missing": (
        *("error", "photo named in the labels does not exist", "photos named in the labels do not exist"),
        "Check the image folder, or remove the names from the labels.",
    ),
    "unreadable": (
        *("error", "file or folder cannot be read and is left out", "files or folders cannot be read and are left out"),
        "Fix, rename or remove them.",
    ),
    "unusable": (
        *("error", "item of the labels cannot be used and is left out"),
        *("items of the labels cannot be used and are left out", "Fix or remove them in the file."),
    ),
    "splits": (
        *("error", "image is in several splits or in none of them", "images are in several splits or in none of them"),
        "Choose one split for each, or remove them.",
    ),
    "bad-place": (
        *("error", "box or point cannot be used and is left out", "boxes or points cannot be used and are left out"),
        "Fix them, or remove them if only the label matters.",
    ),
    "unread-place": (
        *("warning", "region is of a kind that is not read", "regions are of a kind that is not read"),
        "The labels are kept; draw the regions as points or boxes to use them.",
    ),
    "partial": (
        *("warning", "set of images has labels but no photos here", "sets of images have labels but no photos here"),
        "Download the photos to use them.",
    ),
    "group": (
        *("error", "photo contradicts a group of classes", "photos contradict a group of classes"),
        "The labels of the group are unknown there. Fix them, or change data.exactly_one or data.at_most_one.",
    ),
    "excluded": (
        *("note", "item is left out, as splits or settings say", "items are left out, as splits or settings say"),
        "Nothing to do.",
    ),
}
"""For each kind of `Excluded`: level, text for one item and for several, and what to do."""


@final
@dataclass(frozen=True)
class Finding:
    """One result of `check`.

    Attributes:
        level: "error": data would be lost or misread; "warning": results may suffer; "note": how it was understood.
        code: the kind of finding, a fixed word for scripts, for example "leak".
        message: what was found, how often, and what to do.
        items: all items that the message counts.

    >>> print(Finding("warning", "few-positives", "train: 2 classes have fewer than 5 positives.", ("bat 1", "owl 4")))
    warning: train: 2 classes have fewer than 5 positives. (bat 1; owl 4)
    """

    level: Level
    code: str
    message: str
    items: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = "; ".join(self.items[:3]) + (f"; and {len(self.items) - 3:,} more" if len(self.items) > 3 else "")
        return f"{self.level}: {self.message}" + (f" ({shown})" if shown else "")


def counted_finding(
    level: Level, code: str, items: Iterable[str], nouns: tuple[str, str], text: str, where: str = ""
) -> Iterator[Finding]:
    """Yield a finding that begins with the number of its items (`nouns`: singular and plural), if there are any."""
    if found := tuple(items):
        yield Finding(level, code, f"{where}{counted(len(found), *nouns)} {text}", found)


def training_split(splits: Iterable[str]) -> str:
    """Return the split to train on: "train", or the first one."""
    names = list(splits)
    return "train" if "train" in names else names[0]


def label_findings(tables: Mapping[str, LabelTable], summaries: Mapping[str, Summary]) -> Iterator[Finding]:
    """Yield all findings that need no photo."""
    train = training_split(tables)
    for name, summary in summaries.items():
        yield from _split_findings(name, summary, name == train)
    for name, summary in summaries.items():
        if name != train:
            yield from _compared(train, summaries[train], name, summary)
    yield from _look_alikes(summaries)
    yield from _ids(summaries[train].classes)
    yield from _collisions(tables)


def reader_findings(tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
    """Yield the notes of the readers; splits of one table have the same notes, which are reported once."""
    for message in dict.fromkeys(m for t in tables.values() for m in t.notes.messages):
        yield Finding("note", "reader", message)
    for message in dict.fromkeys(m for t in tables.values() for m in t.notes.warnings):
        yield Finding("warning", "misread", message)
    for found in dict.fromkeys(found for t in tables.values() for found in t.notes.lists):
        yield Finding("warning" if found.warns else "note", found.code, found.message, found.items)
    kinds: dict[ExclusionKind, list[Excluded]] = defaultdict(list)
    for row in dict.fromkeys(e for t in tables.values() for e in t.notes.excluded):
        kinds[row.kind].append(row)
    for kind, rows in kinds.items():
        level, one, many, cure = _LEFT_OUT[kind]
        items = tuple(f"{_place(row)}: {row.reason}" for row in rows)
        yield Finding(level, kind, f"{counted(len(rows), one, many)}. {cure}", items)


def _place(row: Excluded) -> str:
    """Return the item that was left out, and the file or split that it is from unless the item names it."""
    return row.item if not row.where or Path(row.where).name in row.item else f"{row.item} in {row.where}"


def _split_findings(name: str, summary: Summary, trained_on: bool) -> Iterator[Finding]:
    if not summary.images:
        yield Finding("error", "empty", f"{name}: there are no images.")
        return
    yield from _contradictions(name, summary)
    if summary.kind == "unlabelled":
        message = f"{name}: no image has a label. Check that labels and photos belong together."
        yield Finding("error" if trained_on else "warning", "unlabelled", message)
        return
    if summary.without_label:
        message = (
            f"{name}: {counted(summary.without_label, 'image has', 'images have')} no label. Blank is not absent: if "
            "an image shows none of the classes, say so (a `none` folder or tag, zeros in a table, "
            f"{setting('complete', True)})."
        )
        yield Finding("warning", "unlabelled", message)
    if not trained_on and not sum(summary.negatives):
        message = (
            f"{name}: no negative is known, so average precision has no meaning here; hit@1, recall@k and mean rank "
            f"are reported instead. {_cure_without_negatives(summary)}"
        )
        yield Finding("warning", "no-negatives", message)
    yield from _class_findings(f"{name}: ", summary, trained_on)


def _cure_without_negatives(summary: Summary) -> str:
    if sum(summary.positives) < summary.images * len(summary.classes):
        return f"Use {setting('complete', True)} if what is not named is known to be absent."
    return "Every class is present in every photo: add photos without them."


def _contradictions(name: str, summary: Summary) -> Iterator[Finding]:
    """Labels that are lost because facts contradict: an error within one source, a warning between sources."""
    inside = summary.contradictions_inside
    levels: tuple[tuple[Level, bool, int, str], ...] = (
        ("error", True, inside, "in one source, and counted as unknown. Fix it"),
        ("warning", False, summary.contradictions - inside, "and counted as unknown. Decide which source is right"),
    )
    for level, alone, count, end in levels:
        if count:
            items = tuple(str(c) for c in summary.contradicting if c.inside == alone)
            message = f"{name}: {counted(count, 'label is', 'labels are')} both positive and negative {end}."
            yield Finding(level, "contradiction", message, items)


def _class_findings(where: str, summary: Summary, trained_on: bool) -> Iterator[Finding]:
    """Classes without positives, with few positives, or without negatives while other classes have some."""
    positives, negatives = np.array(summary.positives, np.int64), np.array(summary.negatives, np.int64)
    display = summary.classes.display
    absent, have = [display[c] for c in np.flatnonzero(positives == 0)], ("class has", "classes have")
    them, they = ("it", "it") if len(absent) == 1 else ("them", "they")
    end = f"nothing can be learnt about {them}" if trained_on else f"{they} cannot be scored"
    yield from counted_finding("warning", "absent-class", absent, have, f"no positive; {end}.", where)
    if not trained_on:
        return
    always = [display[c] for c in np.flatnonzero((positives == summary.images) & (positives > 0))]
    text = (
        f"positive in every one of the {counted(summary.images, 'photo')}: there is nothing to tell apart, and every "
        "photo will be tagged so. Add photos without: in a folder `none/`, with the tag none, or with 0 in a table."
    )
    yield from counted_finding("warning", "always-positive", always, ("class is", "classes are"), text, where)
    few = [f"{display[c]} {positives[c]}" for c in np.flatnonzero((positives > 0) & (positives < FEW))]
    text = f"fewer than {FEW} positives; expect low scores."
    yield from counted_finding("warning", "few-positives", few, have, text, where)
    if negatives.any():
        never = [display[c] for c in np.flatnonzero((positives > 0) & (negatives == 0))]
        text = (
            "never known to be absent, while others are: bce can only learn that they are always present. Use a method "
            "that counts unknown as absent (expected_negative, assume_negative), or state where they are absent."
        )
        yield from counted_finding("warning", "only-positives", never, ("class is", "classes are"), text, where)


def _compared(train: str, ours: Summary, name: str, theirs: Summary) -> Iterator[Finding]:
    """Compare the vocabulary and class shares of a split with those of the training split."""
    if ours.classes.ids != theirs.classes.ids:
        mine, other = set(ours.classes.ids), set(theirs.classes.ids)
        items = (
            *(f"only in {train}: {c}" for c in sorted(mine - other)),
            *(f"only in {name}: {c}" for c in sorted(other - mine)),
        )
        message = (
            f"{name} has {'other classes' if items else 'the classes in another order'} than {train}; all splits need "
            "one vocabulary. Read them together, or name the classes when reading."
        )
        yield Finding("error", "vocabulary", message, items)
        return
    # Shares of the positives, not of the images, stay comparable if train has one label per photo and val all labels.
    a, b = (np.array(s.positives) / max(sum(s.positives), 1) for s in (ours, theirs))
    enough = np.maximum(a * sum(theirs.positives), theirs.positives) >= SHARE_COUNT
    differ = enough & (a > 0) & (b > 0) & (np.maximum(a, b) > SHARE_RATIO * np.minimum(a, b))
    display = ours.classes.display
    items = tuple(f"{display[c]} {a[c]:.1%} in {train}, {b[c]:.1%} in {name}" for c in np.flatnonzero(differ))
    text = (
        f"a share of the positives more than {SHARE_RATIO:g} times larger or smaller than in {train}. What is fitted "
        "on one may not fit the other; a stratified split keeps the shares."
    )
    yield from counted_finding("warning", "class-share", items, ("class takes", "classes take"), text, f"{name}: ")


def _ids(classes: ClassNames) -> Iterator[Finding]:
    """Classes that are called by an id, such as n02012849 or /m/01yrx, if most classes are."""
    called = zip(classes.ids, classes.names, strict=True)
    plain = [name for class_id, name in called if name == class_id and _AN_ID.fullmatch(name)]
    if 2 * len(plain) > len(classes):
        text = (
            f"an id; give names to show with a file that has an id and a name in each row: {setting('names', 'FILE')}."
        )
        yield from counted_finding("note", "ids", plain, ("class is called by", "classes are called by"), text)


def _look_alikes(summaries: Mapping[str, Summary]) -> Iterator[Finding]:
    """Classes whose names differ only in spelling, each group once."""
    groups = dict.fromkeys(group for summary in summaries.values() for group in look_alikes(summary.classes))
    if groups:
        first, second, *_ = next(iter(groups))
        text = (
            "only in case, spaces, underscores, hyphens or Unicode form; they count as different classes. If they are "
            f"the same, join them: {setting('rename', [f'{first}={second}'])}."
        )
        items = [" = ".join(map(repr, group)) for group in groups]
        yield from counted_finding(
            "warning", "look-alike", items, ("group of class names differs", "groups of class names differ"), text
        )


def _collisions(tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
    """Image keys that are the same file on case-insensitive or normalising file systems (Windows, macOS)."""
    first: dict[tuple[str, str], str] = {}
    others: dict[str, set[str]] = defaultdict(set)
    for table in tables.values():
        root = str(table.root)
        for key in table.images.to_pylist():
            known = first.setdefault((root, unicodedata.normalize("NFC", key).casefold()), key)
            if known != key:
                others[known].add(key)
    items = [" = ".join([key, *sorted(rest)]) for key, rest in others.items()]
    text = (
        "spelt in several ways that differ only in case or in the encoding of accents; on Windows and macOS they are "
        "one file. Rename them."
    )
    yield from counted_finding("warning", "name-collision", items, ("image name is", "image names are"), text)
