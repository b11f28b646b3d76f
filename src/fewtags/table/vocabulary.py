"""Class names that two tables spell differently: compare, match and rename them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import numpy as np
import pyarrow as pa

from fewtags.errors import ConfigError
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable, Notes, with_column
from fewtags.text import MOST_NAMED, counted, setting, some, suggest


def folded(name: str) -> str:
    """Return the form in which class names are compared: without case, separators and variants of Unicode.

    Separators are spaces, underscores, hyphens and invisible characters. They count between two digits, and a hyphen
    at the beginning counts too, because it may mean "not".

    >>> folded("Traffic_Light") == folded("traffic light") == folded("trafficlight")
    True
    >>> folded("1 1") == folded("11"), folded("-cat") == folded("cat")
    (False, False)
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Cc") or c.isspace()).strip()
    words = [word for word in re.split(r"(?<=\w)[\s_\u2010-\u2015-]+(?=\w)|[\s_]+", text) if word]
    parts = words[:1]
    for before, word in pairwise(words):
        parts += [" ", word] if before[-1].isdigit() and word[0].isdigit() else [word]
    return "".join(parts) or name


def look_alikes(classes: ClassNames) -> list[tuple[str, ...]]:
    """Return the groups of display names of one vocabulary that differ only in spelling, see `folded`.

    Equal display names of different ids do not form a group: some vocabularies use one name for two classes.
    """
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for name in classes.names:
        groups[folded(name)].setdefault(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


@final
@dataclass(frozen=True)
class Matching:
    """The classes of one vocabulary compared with those of another.

    Classes are matched by id first. An id that the other vocabulary lacks is then compared with the ids and display
    names there, and its display name with their ids, see `folded`. A match must be unique in both directions.

    Attributes:
        pairs: ids that differ from an id of the other vocabulary only in spelling, with that id.
        unclear: ids that look like several classes, or like one that has another match, with the ids of these.
    """

    pairs: Mapping[str, str]
    unclear: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, own: ClassNames, other: ClassNames) -> Matching:
        """Compare two vocabularies."""
        by_id, by_name = defaultdict(list), defaultdict(list)
        for class_id, name in zip(other.ids, other.names, strict=True):
            by_id[folded(class_id)].append(class_id)
            by_name[folded(name)].append(class_id)
        found: dict[str, list[str]] = {}
        certain: set[str] = set()
        for class_id, name in zip(own.ids, own.names, strict=True):
            if class_id in other:
                continue
            sure = dict.fromkeys([*by_id[folded(class_id)], *by_name[folded(class_id)], *by_id[folded(name)]])
            if alike := list(sure or dict.fromkeys(by_name[folded(name)])):
                found[class_id] = alike
                certain |= {class_id} if sure else set()
        wanted = Counter(new for alike in found.values() for new in alike)
        pairs = {
            old: alike[0]
            for old, alike in found.items()
            if old in certain and len(alike) == 1 and alike[0] not in own and wanted[alike[0]] == 1
        }
        return cls(pairs, {old: alike for old, alike in found.items() if old not in pairs})

    def notes(self, theirs: str, where: str = "") -> Notes:
        """Return a message that names the pairs, and a warning with the cure for each class that is not matched.

        `theirs` and `where` are what the texts call the other labels and the own ones.
        """
        start = f"{where}: " if where else ""
        same = [f"{old!r} = {new!r}" for old, new in self.pairs.items()]
        rest = f" and {len(same) - MOST_NAMED:,} more" if len(same) > MOST_NAMED else ""
        what = counted(len(same), "class name is", "class names are")
        listed = ", ".join(same[:MOST_NAMED]) + rest
        message = f"{start}{what} matched to {theirs}, because only the spelling differs: {listed}"
        warnings = tuple(
            f"{start}class {old!r} looks like {some(new, MOST_NAMED)} of {theirs} and is not matched. If it is the "
            f"same class, pass {setting('rename', [f'{old}={new[0]}'])}."
            for old, new in self.unclear.items()
        )
        return Notes(messages=(message,) if same else (), warnings=warnings)

    def rename(self, table: LabelTable, classes: ClassNames) -> LabelTable:
        """Return the table of the own vocabulary with its pairs named as in the other one, `classes`."""
        return rename_classes(table, {old: (new, classes.names[classes.index(new)]) for old, new in self.pairs.items()})


def match_classes(table: LabelTable, classes: ClassNames, theirs: str, where: str = "") -> LabelTable:
    """Return a table with its classes named as in `classes` where only the spelling differs; its notes say so.

    See `Matching`.
    """
    found = Matching.of(table.classes, classes)
    renamed = found.rename(table, classes)
    return replace(renamed, notes=renamed.notes + found.notes(theirs, where))


def rename_classes(table: LabelTable, new: Mapping[str, tuple[str, str]]) -> LabelTable:
    """Return the table with other ids and display names for some classes; `new` maps ids to (id, display name).

    A class that gets the id of another one is joined with it. An image is complete for a joined class if it is
    complete for all of its parts.
    """
    if not new:
        return table
    old = zip(table.classes.ids, table.classes.names, strict=True)
    target = [new.get(class_id, (class_id, name)) for class_id, name in old]
    display: dict[str, str] = {}
    for class_id, (new_id, name) in zip(table.classes.ids, target, strict=True):
        if new_id not in display or class_id == new_id:  # a class that keeps its id keeps its display name
            display[new_id] = name
    classes = ClassNames.of(display, display.values())
    column = np.array([classes.index(new_id) for new_id, _ in target], np.int64)
    complete = np.ones((len(table.complete_classes), len(classes)), np.bool_)
    for c, position in enumerate(column.tolist()):
        complete[:, position] &= table.complete_classes[:, c]
    moved = column[table.facts["class"].to_numpy()].astype(np.int32)
    facts = with_column(table.facts, "class", pa.array(moved))
    return replace(table, classes=classes, facts=facts, complete_classes=complete)


def rename_as_asked(table: LabelTable, words: Sequence[str]) -> LabelTable:
    """Return the table with classes renamed by words "OLD=NEW", as in `data.rename`; OLD is an id or a display name.

    A message says how many labels were renamed, or that a table has no such class.

    Raises:
        ConfigError: a word is not OLD=NEW, or OLD is the display name of several classes.
    """
    new: dict[str, tuple[str, str]] = {}
    messages: list[str] = []
    names = dict(zip(table.classes.ids, table.classes.names, strict=True))
    for word in words:
        cuts = [(word[:i].strip(), word[i + 1 :].strip()) for i, c in enumerate(word) if c == "="]
        cuts = [(old, name) for old, name in cuts if old and name]
        if not cuts:
            raise ConfigError(f"data.rename: {word!r} is not OLD=NEW; write it as in {setting('rename', ['Cat=cat'])}.")
        # A name may contain "=" itself.
        old, name = next((cut for cut in cuts if cut[0] in names or cut[0] in names.values()), cuts[0])
        ids = [old] if old in names else [class_id for class_id, shown in names.items() if shown == old]
        if len(ids) > 1:
            raise ConfigError(f"data.rename: {old!r} is the name of the classes {some(ids)}; give the id of one.")
        if not ids:
            known = [*names, *names.values()]
            messages.append(
                f"data.rename: {old!r} is not a class of these labels{suggest(old, known)}; nothing renamed"
            )
            continue
        new[ids[0]] = (name, names.get(name, name))
        how = "joined with" if name in names and name != ids[0] else "renamed to"
        messages.append(f"data.rename: class {old!r} is {how} {name!r}")
    return rename_classes(table, new).noting(*messages)
