"""Groups of classes of which exactly one, or at most one, is present in a photo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.errors import ConfigError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import MAX_COMPLETE_SETS, Excluded, LabelTable, Notes, fact_table
from fewtags.text import counted, suggest

Group = tuple[str, ...]


@final
@dataclass(frozen=True)
class ClassGroups:
    """Groups of class ids. In a photo, exactly one, or at most one, class of a group is present.

    A known positive makes the other classes of its group negative. Of `exactly_one`, a class is positive if all others
    are negative.
    """

    exactly_one: tuple[Group, ...] = ()
    at_most_one: tuple[Group, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.exactly_one or self.at_most_one)

    def resolved(self, classes: ClassNames) -> ClassGroups:
        """Return the same groups by the ids of a vocabulary; a class may be given by its display name.

        Raises:
            ConfigError: a group has fewer than two classes, or a class that is not known; a class is in two groups.
        """
        found = ClassGroups(
            tuple(_resolve("data.exactly_one", group, classes) for group in self.exactly_one),
            tuple(_resolve("data.at_most_one", group, classes) for group in self.at_most_one),
        )
        seen: set[str] = set()
        for group in (*found.exactly_one, *found.at_most_one):
            if twice := [class_id for class_id in group if class_id in seen or group.count(class_id) > 1]:
                raise ConfigError(
                    f"class {twice[0]!r} occurs twice in data.exactly_one and data.at_most_one; a class can be in one "
                    "group, once."
                )
            seen |= {*group}
        return found

    def positions(self, classes: ClassNames) -> Iterator[tuple[bool, NDArray[np.int64], str]]:
        """Yield for each group of ids whether one class is always present, its positions, and its name in messages."""
        for always, groups, words in ((True, self.exactly_one, "exactly"), (False, self.at_most_one, "at most")):
            for group in groups:
                name = f"{words} one of {', '.join(classes.display[classes.index(i)] for i in group)}"
                yield always, np.array([classes.index(i) for i in group], np.int64), name

    def settled(self, labels: NDArray[np.int8], classes: ClassNames) -> tuple[NDArray[np.int8], list[str]]:
        """Return labels int8 [N, C] with what follows from the groups, and messages with counts; see `settle`."""
        out = labels.copy()
        messages: list[str] = []
        for always, columns, name in self.positions(classes):
            out[:, columns], against = settle(labels[:, columns], always)
            messages += _messages(name, labels[:, columns], out[:, columns], int(against.sum()))
        return out, messages

    def applied(self, table: LabelTable, where: str) -> LabelTable:
        """Return the table with what follows from the groups, as facts with a source of their own; see `settle`.

        Messages count what follows. Photos whose labels contradict a group are listed in the notes.
        """
        classes = table.classes
        for always, columns, name in self.positions(classes):
            before = np.concatenate([table.matrix.columns(c, c + 1) for c in columns.tolist()], 1)
            after, against = settle(before, always)
            table = _without(table, np.flatnonzero(against), columns)
            row, column = np.nonzero((before == Label.UNKNOWN) & (after != Label.UNKNOWN))
            if len(row):
                facts = fact_table(row, columns[column], after[row, column], source=f"({name})")
                table = replace(table, facts=pa.concat_tables([table.facts, facts]).unify_dictionaries())
            messages = [f"{where}: {text}" for text in _messages(name, before, after, 0)]
            excluded = []
            for n in np.flatnonzero(against).tolist():
                present = [classes.display[c] for c in columns[before[n] == Label.POSITIVE].tolist()]
                said = f"{' and '.join(present)} are present" if present else "all are absent"
                excluded.append(
                    Excluded(str(table.images[n].as_py()), f"{said}, but {name} is possible", where, "group")
                )
            table = replace(table, notes=table.notes + Notes(excluded=tuple(excluded), messages=tuple(messages)))
        return table


def settle(states: NDArray[np.int8], always: bool) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return the states int8 [n, g] of one group with what follows, and which images contradict it, bool [n].

    If one class is positive, the others are negative. With `always`, a class is positive if all others are negative.
    An image contradicts the group if several classes are positive or, with `always`, all are negative; the group is
    unknown there.

    >>> settle(np.array([[1, 0, 0], [-1, -1, 0], [1, 1, 0]], np.int8), True)[0].tolist()
    [[1, -1, -1], [-1, -1, 1], [0, 0, 0]]
    """
    positives, negatives = (states == Label.POSITIVE).sum(1), (states == Label.NEGATIVE).sum(1)
    size, out = states.shape[1], states.copy()
    out[(positives == 1)[:, None] & (states == Label.UNKNOWN)] = Label.NEGATIVE
    if always:
        last = (positives == 0) & (negatives == size - 1)
        out[last[:, None] & (states == Label.UNKNOWN)] = Label.POSITIVE
    against = (positives > 1) | (always & (negatives == size))
    out[against] = Label.UNKNOWN
    return out, against


def _resolve(key: str, group: Sequence[str], classes: ClassNames) -> Group:
    if len(group) < 2:
        raise ConfigError(f'{key}: a group needs two classes or more, got {list(group)}; write [["day", "night"]].')
    ids = []
    for word in group:
        if word in classes:
            ids.append(word)
        elif word in classes.display:
            ids.append(classes.ids[classes.display.index(word)])
        else:
            hint = suggest(word, dict.fromkeys((*classes.ids, *classes.display)))
            raise ConfigError(f"{key}: {word!r} is not a class of these labels{hint}.")
    return tuple(ids)


def _messages(name: str, before: NDArray[np.int8], after: NDArray[np.int8], against: int) -> Iterator[str]:
    """Yield sentences about one group: what follows from known labels, and what contradicts it."""
    new = (before == Label.UNKNOWN) & (after != Label.UNKNOWN)
    counts = [(int((new & (after == state)).sum()), word) for state, word in _STATES]
    if found := [counted(count, f"{word} label") for count, word in counts if count]:
        yield f"{name}: {' and '.join(found)} follow from known ones"
    if against:
        yield (
            f"warning: {counted(against, 'photo contradicts', 'photos contradict')} the model's group, {name}; these "
            "labels count as unknown"
        )


_STATES = ((Label.NEGATIVE, "negative"), (Label.POSITIVE, "positive"))


def _without(table: LabelTable, images: NDArray[np.int64], columns: NDArray[np.int64]) -> LabelTable:
    """Return the table in which the classes `columns` are unknown in some images."""
    if not len(images):
        return table
    image, class_ = (table.facts[name].to_numpy() for name in ("image", "class"))
    facts = table.facts.filter(pa.array(~(np.isin(image, images) & np.isin(class_, columns))))
    numbers, sets = table.complete_set.astype(np.int64), [*table.complete_classes]
    changed = images[numbers[images] >= 0]
    for old in np.unique(numbers[changed]).tolist():
        fewer = sets[old].copy()
        fewer[columns] = False
        numbers[changed[table.complete_set[changed] == old]] = len(sets)
        sets.append(fewer)
    if len(sets) > MAX_COMPLETE_SETS:
        raise ConfigError(f"the labels are complete for more than {MAX_COMPLETE_SETS:,} sets of classes.")
    complete = np.array(sets, np.bool_).reshape(-1, len(table.classes))
    return replace(table, facts=facts, complete_set=numbers.astype(np.int16), complete_classes=complete)
