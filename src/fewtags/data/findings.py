"""What `check` finds in label tables, apart from their photos."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.data.summary import Summary
from fewtags.data.table import LabelTable

Level = Literal["error", "warning", "note"]

SHARE_RATIO = 3.0
"""A class whose share of the positives differs by more than this factor between two splits is worth a look ..."""
SHARE_COUNT = 5
"""... where at least so many positives are there or should be: smaller counts differ by chance."""
FEW = 5
"""A class with fewer training positives is named."""


@final
@dataclass(frozen=True)
class Finding:
    """One thing that `check` has to say.

    Attributes:
        level: "error": data would be lost or misread; "warning": results may suffer; "note": how something is taken.
        code: what kind, a fixed word for scripts, for example "leak".
        message: what, how many, what to do.
        items: everything that the message counts.

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


def training_split(splits: Iterable[str]) -> str:
    """The split to train on: "train", or else the first."""
    names = list(splits)
    return "train" if "train" in names else names[0]


def label_findings(tables: Mapping[str, LabelTable], summaries: Mapping[str, Summary]) -> Iterator[Finding]:
    """Everything that can be said without opening a photo."""
    train = training_split(tables)
    for name, summary in summaries.items():
        yield from _split_findings(name, summary, name == train)
    for name, summary in summaries.items():
        if name != train:
            yield from _compared(train, summaries[train], name, summary)
    yield from _collisions(tables)


def reader_findings(tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
    """What the readers had to say; splits of one table carry the same notes, which are said once."""
    for message in dict.fromkeys(m for t in tables.values() for m in t.notes.messages):
        yield Finding("note", "reader", message)
    if excluded := dict.fromkeys(e for t in tables.values() for e in t.notes.excluded):
        items = tuple(f"{e.where + ', ' if e.where else ''}{e.item}: {e.reason}" for e in excluded)
        message = f"{counted(len(items), 'item')} left out while reading; see excluded.csv, and mend the files."
        yield Finding("warning", "excluded", message, items)


def counted(number: int, thing: str, many: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "photo is", "photos are"), counted(2000, "class", "classes")
    ('1 photo is', '2,000 classes')
    """
    return f"{number:,} {thing if number == 1 else many or thing + 's'}"


def _split_findings(name: str, summary: Summary, trained_on: bool) -> Iterator[Finding]:
    if not summary.images:
        yield Finding("error", "empty", f"{name}: there are no images.")
        return
    if summary.kind == "unlabelled":
        message = f"{name}: no image has a label. Check that labels and photos belong together."
        yield Finding("error" if trained_on else "warning", "unlabelled", message)
        return
    if summary.without_label:
        message = (
            f"{name}: of {counted(summary.without_label, 'image')} nothing is known. Blank is not absent: where an "
            "image shows none of the classes, say so (a `none` folder or tag, zeros in a table, --complete)."
        )
        yield Finding("warning", "unlabelled", message)
    if summary.contradictions:
        message = (
            f"{name}: {counted(summary.contradictions, 'label is', 'labels are')} both positive and negative and taken "
            "as unknown. Decide which source is right."
        )
        yield Finding("warning", "contradiction", message, tuple(map(str, summary.contradicting)))
    if not trained_on and not sum(summary.negatives):
        message = (
            f"{name}: no negative is known, so average precision has no meaning here; hit@1, recall@k and mean rank "
            "are reported instead. Use --complete if what is not named is known to be absent."
        )
        yield Finding("warning", "no-negatives", message)
    yield from _scarce(name, summary, trained_on)


def _scarce(name: str, summary: Summary, trained_on: bool) -> Iterator[Finding]:
    positives = np.array(summary.positives, np.int64)
    display = summary.classes.display
    if absent := tuple(display[c] for c in np.flatnonzero(positives == 0)):
        end = "nothing can be learnt about them" if trained_on else "they cannot be scored"
        message = f"{name}: {counted(len(absent), 'class has', 'classes have')} no positive; {end}."
        yield Finding("warning", "absent-class", message, absent)
    few = np.flatnonzero((positives > 0) & (positives < FEW))
    if trained_on and len(few):
        message = f"{name}: {counted(len(few), 'class has', 'classes have')} fewer than {FEW} positives; expect little."
        yield Finding("warning", "few-positives", message, tuple(f"{display[c]} {positives[c]}" for c in few))


def _compared(train: str, ours: Summary, name: str, theirs: Summary) -> Iterator[Finding]:
    """Vocabulary and class shares of another split against the training split's."""
    if ours.classes.ids != theirs.classes.ids:
        missing, extra = (
            set(ours.classes.ids) - set(theirs.classes.ids),
            set(theirs.classes.ids) - set(ours.classes.ids),
        )
        items = tuple(
            [f"only in {train}: {c}" for c in sorted(missing)] + [f"only in {name}: {c}" for c in sorted(extra)]
        )
        message = (
            f"{name} has {'other classes' if items else 'the classes in another order'} than {train}; all splits need "
            "one vocabulary. Read them together, or name the classes when reading."
        )
        yield Finding("error", "vocabulary", message, items)
        return
    differ = _differing(np.array(ours.positives, np.int64), np.array(theirs.positives, np.int64))
    if differ:
        display = ours.classes.display
        items = tuple(f"{display[c]} {a:.1%} in {train}, {b:.1%} in {name}" for c, a, b in differ)
        message = (
            f"{name}: {counted(len(differ), 'class takes', 'classes take')} a share of the positives more than "
            f"{SHARE_RATIO:g} times larger or smaller than in {train}. What is fitted on one may not carry over; a "
            "stratified split keeps the shares."
        )
        yield Finding("warning", "class-share", message, items)


def _differing(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> list[tuple[int, float, float]]:
    """Class numbers with their shares of all positives, where these differ by more than `SHARE_RATIO`.

    Shares of the positives, not of the images: one label per photo in train and all labels in val are comparable then.
    """
    if not ours.sum() or not theirs.sum():
        return []
    a, b = ours / ours.sum(), theirs / theirs.sum()
    enough = np.maximum(a * theirs.sum(), theirs) >= SHARE_COUNT
    known = (ours > 0) & (theirs > 0)
    far = np.maximum(a, b) > SHARE_RATIO * np.minimum(a, b)
    return [(int(c), float(a[c]), float(b[c])) for c in np.flatnonzero(enough & known & far)]


def _collisions(tables: Mapping[str, LabelTable]) -> Iterator[Finding]:
    """Keys that a case-insensitive or normalising file system (Windows, macOS) takes for one file."""
    first: dict[tuple[str, str], str] = {}
    others: dict[str, set[str]] = defaultdict(set)
    for table in tables.values():
        root = str(table.root)
        for key in table.images.to_pylist():
            known = first.setdefault((root, unicodedata.normalize("NFC", key).casefold()), key)
            if known != key:
                others[known].add(key)
    items = tuple(" = ".join([key, *sorted(rest)]) for key, rest in others.items())
    if items:
        message = (
            f"{counted(len(items), 'image name is', 'image names are')} spelt in several ways that differ only in case "
            "or in how accents are encoded; on Windows and macOS they are one file. Rename them."
        )
        yield Finding("warning", "name-collision", message, items)
