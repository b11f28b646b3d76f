"""Names that state what a photo does not show: "none", "No Finding", "-cat". One rule for all formats."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.labels import Labels
from fewtags.formats.options import ReadOptions, fold
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Notes, ValueReading
from fewtags.text import counted, setting, some

_NOT = re.compile(r"(?:!|not[\s_]|no[\s_]|\xac)\s*(.+)|(.+?)\s*\?", re.IGNORECASE)


@final
@dataclass(frozen=True, kw_only=True)
class Negatives:
    """The labels of a file whose negative names are read as such.

    Attributes:
        classes: the vocabulary without the names that mean "none of the classes".
        labels: their labels; "-cat" has become "cat", negative.
        kept: int64 [F], position of each label among those that were given.
        empty: bool [R], image names that are stated to show none of the classes.
        notes: how the names were read.
    """

    classes: ClassNames
    labels: Labels
    kept: NDArray[np.int64]
    empty: NDArray[np.bool_]
    notes: Notes


def read_negatives(
    classes: ClassNames, labels: Labels, image: NDArray[np.int64], options: ReadOptions, where: str
) -> Negatives | None:
    """Read classes whose names state an absence; None if there is none of them.

    - A name that means "none of the classes" (`ReadOptions.is_none`): the image shows none of the classes. Where the
      file puts it beside another class, it is a class of its own, and a warning gives both cures.
    - A name such as "-cat" (`ReadOptions.absent`): the class "cat" is absent. With regions or states of its own it
      remains a class, with a warning.
    - A name that may mean either (`ReadOptions.may_be_none`), such as "empty", remains a class, with a warning.

    Args:
        classes: the vocabulary of the file.
        labels: F stated labels; `labels.image` is one of R image names.
        image: int64 [R], the image of each name, negative if it is left out.
        options: how annotations are read.
        where: the file, for messages.

    Raises:
        DataError: no class is left.
    """
    found = _Reader(classes, labels, image, options, where)
    for c, name in enumerate(classes.names):
        if options.is_none(name):
            found.none(c, name)
        elif options.absent(name):
            found.absent(c, name)
        elif options.may_be_none(name):
            found.unclear(c, name)
        elif options.may_be_unlabelled(name):
            found.warnings.append(f"{where}: class {name!r} {_unlabelled_text()}")
        elif (text := _opposite(name, classes.names, options)) and not labels.located[labels.class_ == c].any():
            found.warnings.append(f"{where}: class {name!r} {text}")
    return found.result()


def name_warnings(names: Iterable[str], options: ReadOptions, where: str) -> tuple[str, ...]:
    """Return the warnings of `read_negatives` about the names of folders, which have no other labels."""
    names = sorted(names)
    unclear = [f"{where}: {name!r} is read as a class. {_cures(name)}" for name in names if options.may_be_none(name)]
    present = {name for name in names if not options.absent(name)}
    alone = [name for name in names if options.absent(name) and options.absent(name) not in present]
    unclear += [f"{where}: {name!r} {_unlabelled_text()}" for name in names if options.may_be_unlabelled(name)]
    asked = [f"{where}: {name!r} {text}" for name in names if (text := _opposite(name, names, options))]
    return (*unclear, *(_alone(name, options, where) for name in alone), *asked)


def _opposite(name: str, names: Collection[str], options: ReadOptions) -> str:
    """Return a doubt about a name such as "!cat", "not cat", "no cat" or "cat?", if "cat" is a class; else ""."""
    if (match := _NOT.fullmatch(name)) is None:
        return ""
    others = {fold(other): other for other in names}
    if (other := others.get(fold(match[1] or match[2]))) is None:
        return ""
    if match[1]:
        minus = (options.absent_prefix or "-") + other
        cure = f"If it means that {other!r} is absent, write {minus!r} instead."
    else:
        cure = f"If it means that {other!r} is uncertain, remove this label."
    return f"is read as a class of its own beside {other!r}. {cure}"


def _unlabelled_text() -> str:
    return (
        "is read as a class. If it means that nobody has labelled the photo, remove this label, or move the photos out "
        f"of the folder; if it is a class, pass {setting('none_folder', 'none')}."
    )


def _cures(name: str) -> str:
    none, plain = (setting("none_folder", value) for value in (name, "none"))
    return f"If it means that a photo shows none of the classes, pass {none}; if it is a class, pass {plain}."


def _alone(name: str, options: ReadOptions, where: str) -> str:
    return (
        f"{where}: {name!r} is read as: {options.absent(name)!r} is absent; but nothing says where it is present. If "
        f"{name!r} is the name of a class, pass {setting('absent_prefix', '')}."
    )


@final
class _Reader:
    def __init__(
        self, classes: ClassNames, labels: Labels, image: NDArray[np.int64], options: ReadOptions, where: str
    ) -> None:
        self.classes, self.labels, self.image, self.options, self.where = classes, labels, image, options, where
        self.empty = np.zeros(len(image), np.bool_)
        self.dropped: set[int] = set()
        self.negated: dict[int, str] = {}
        self.readings: list[ValueReading] = []
        self.messages: list[str] = []
        self.warnings: list[str] = []
        ordinary = [not (options.is_none(name) or options.absent(name)) for name in classes.names]
        self.shown = (labels.state == Label.POSITIVE) & np.array(ordinary, np.bool_)[labels.class_]

    def none(self, c: int, name: str) -> None:
        rows = np.flatnonzero(self.labels.class_ == c)
        present = rows[self.labels.state[rows] == Label.POSITIVE]
        both, photos = self._beside(c, present)
        if both and self.options.none_folder is None:
            self.warnings.append(f"{self._class(name)} is beside another class in {both:,} of {photos}. {_cures(name)}")
            return
        self.empty[self.labels.image[present]] = True
        self.dropped.add(c)
        if len(present):
            self.readings.append(ValueReading(self.where, name, "none of the classes", len(present)))
        if other := len(rows) - len(present):
            self.messages.append(
                f"{self.where}: {counted(other, 'label says', 'labels say')} that a photo is not {name!r}, which "
                "states nothing about any class"
            )
        if not len(rows):
            self.messages.append(f'{self.where}: {name!r} means "none of the classes"; no label uses it')

    def absent(self, c: int, name: str) -> None:
        rows = np.flatnonzero(self.labels.class_ == c)
        target = self.options.absent(name)
        key = setting("absent_prefix", "")
        if (self.labels.state[rows] != Label.POSITIVE).any() or self.labels.located[rows].any():
            self.warnings.append(
                f"{self._class(name)} is read as a class, because its labels have regions or are negative. If it means "
                f"that {target!r} is absent, write it without; if it is a class, pass {key}."
            )
            return
        self.negated[c] = target
        self.readings.append(ValueReading(self.where, name, f"{target} is absent", len(rows)))
        if target not in (*self.classes.names, *self.classes.ids):
            self.warnings.append(_alone(name, self.options, self.where))

    def unclear(self, c: int, name: str) -> None:
        rows = np.flatnonzero(self.labels.class_ == c)
        present = rows[self.labels.state[rows] == Label.POSITIVE]
        if not len(rows):
            self.dropped.add(c)
            self.messages.append(f"{self.where}: the class {name!r} has no label and is left out")
            return
        both, photos = self._beside(c, present)
        where = f", beside another class in {both:,}" if both else ", never beside another class"
        self.warnings.append(f"{self._class(name)} is in {photos}{where}. {_cures(name)}")

    def _beside(self, c: int, present: NDArray[np.int64]) -> tuple[int, str]:
        """Return in how many photos a class is beside another one, and in how many it is, in words."""
        own = np.unique(self.labels.image[present])
        others = self.labels.image[self.shown & (self.labels.class_ != c)]
        keys = np.where(self.image >= 0, self.image, -2 - np.arange(len(self.image)))
        both = np.isin(np.unique(keys[own]), keys[others]) if len(own) else own
        return int(both.sum()), counted(len(np.unique(keys[own])), "photo")

    def _class(self, name: str) -> str:
        return f"{self.where}: class {name!r}"

    def result(self) -> Negatives | None:
        notes = Notes(tuple(self.readings), (), tuple(self.messages), tuple(self.warnings))
        if not (self.dropped or self.negated):
            return replace(self._unchanged(), notes=notes) if self.warnings else None
        names = {
            i: name
            for c, (i, name) in enumerate(zip(self.classes.ids, self.classes.names, strict=True))
            if c not in self.dropped and c not in self.negated
        }
        by_name = {name: i for i, name in names.items()}
        target = {c: by_name.get(name, name) for c, name in self.negated.items()}
        names = {**names, **{i: i for i in target.values() if i not in names}}
        if not names:
            none = some([self.classes.names[c] for c in sorted(self.dropped)])
            none, cure = some([self.classes.names[c] for c in sorted(self.dropped)]), setting("none_folder", "")
            raise DataError(
                f"{self.where}: there is no class beside {none}, so there is nothing to learn. If it is a class, pass "
                f"{cure}."
            )
        classes = ClassNames.of(names, names.values())
        column = [-1 if c in self.dropped else classes.index(target.get(c, i)) for c, i in enumerate(self.classes.ids)]
        class_ = np.array(column, np.int64)[self.labels.class_]
        kept = np.flatnonzero(class_ >= 0)
        flipped = np.isin(self.labels.class_, list(self.negated))
        state = np.where(flipped, np.int8(Label.NEGATIVE), self.labels.state)
        place = {int(old): new for new, old in enumerate(kept)}
        labels = Labels(
            image=self.labels.image[kept],
            class_=class_[kept],
            state=state[kept],
            corners=self.labels.corners[kept],
            located=self.labels.located[kept],
            point=self.labels.point[kept],
            source=self.labels.source[kept],
            unread=tuple((place[row], why) for row, why in self.labels.unread if row in place),
            inner=None if self.labels.inner is None else self.labels.inner[kept],
        )
        return Negatives(classes=classes, labels=labels, kept=kept, empty=self.empty, notes=notes)

    def _unchanged(self) -> Negatives:
        rows = np.arange(len(self.labels.image))
        return Negatives(classes=self.classes, labels=self.labels, kept=rows, empty=self.empty, notes=Notes())
