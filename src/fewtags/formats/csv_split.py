"""The split that a text table names: a column of names under any header, or columns such as `is_valid`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fewtags.errors import DataError
from fewtags.formats.common import split_name
from fewtags.formats.options import fold
from fewtags.formats.sheet import Sheet
from fewtags.formats.stated import value_readings
from fewtags.formats.words import Meaning, Words
from fewtags.table.table import ValueReading
from fewtags.text import setting, some

_SPLIT = frozenset({"split", "subset", "partition"})
_KNOWN = frozenset({"train", "val", "test"})
_FOLDS = frozenset({"fold", "folds", "kfold", "cv_fold", "fold_id", "fold_no"})


@final
@dataclass(frozen=True)
class Splits:
    """The split of each row.

    Attributes:
        columns: the columns that name it.
        names: R names; "" for no split.
        readings: how the values were read.
    """

    columns: tuple[int, ...]
    names: Sequence[str]
    readings: tuple[ValueReading, ...]


def find_splits(
    sheet: Sheet, others: Sequence[int], chosen: Collection[int], tags: Collection[str], words: Words
) -> tuple[Splits | None, tuple[int, ...], tuple[str, ...]]:
    """Find the split of the rows.

    Args:
        sheet: the table.
        others: columns beside that of the images.
        chosen: columns that the user names as labels, which are never splits.
        tags: headers of columns of tags, in lower case.
        words: the words of class columns.

    Returns:
        the splits, columns that name folds or something similar and are not labels, and warnings.

    Raises:
        DataError: two columns may name the split, or a column may be a split or a class.
    """
    free = [j for j in others if j not in chosen]
    name = {j: fold(sheet.header[j]) for j in free}
    classes = [j for j in free if _binary(sheet, j, words)]
    named = [j for j in free if name[j] in _SPLIT and j not in classes]
    named += [j for j in free if j not in named and name[j] not in tags and _names_splits(sheet, j)]
    flags = {j: split for j in classes if (split := _flag(name[j]))}
    if not flags:
        flags = _plain_flags(sheet, {j: split_name(name[j]) for j in classes}, words)
    folds = tuple(j for j in free if name[j] in _FOLDS and j not in named)
    if len(named) + bool(flags) > 1:
        several = some([sheet.header[j] for j in (*named, *flags)])
        raise DataError(f"{sheet.path}: {several} may all name the split of a photo; keep one of them.")
    where = f"{sheet.path.name}, column"
    warnings = [
        f"{where} {sheet.header[j]!r} is read neither as a split nor as a class; to use it as a split, call it 'split' "
        "and write train, val or test."
        for j in folds
    ]
    if flags:
        return _by_flags(sheet, flags, words), folds, tuple(warnings)
    if not named:
        warnings += [
            f"{where} {sheet.header[j]!r} is read as a class, because its values are those of one; if it is a split, "
            "write train, val or test."
            for j in classes
            if name[j] in _SPLIT
        ]
        return None, folds, tuple(warnings)
    found = _by_names(sheet, named[0])
    if not _KNOWN & set(found.names):
        warnings.append(
            f"{where} {sheet.header[named[0]]!r}: no value is train, val or test, so that all photos are in splits of "
            "other names. If numbers mean splits, write their names."
        )
    return found, folds, tuple(warnings)


def _binary(sheet: Sheet, column: int, words: Words) -> bool:
    """Return whether a column has words for present and absent only."""
    found = {words.meaning(value) for value in sheet.values[column]} - {Meaning.BLANK, Meaning.OPEN}
    return bool(found) and found <= {Meaning.POSITIVE, Meaning.NEGATIVE}


def _names_splits(sheet: Sheet, column: int) -> bool:
    """Return whether all values are spellings of at least two of train, val and test."""
    found = {split_name(value) for value in sheet.values[column] if value.strip()}
    return len(found) > 1 and found <= _KNOWN


def _flag(header: str) -> str:
    """Return the split that a header such as is_valid asks about, or ""."""
    match = re.fullmatch(r"(?:is|in|for|use_for)[\s_\-]?(.+)", header)
    split = split_name(match[1]) if match else ""
    return split if split in _KNOWN else ""


def _plain_flags(sheet: Sheet, classes: Mapping[int, str], words: Words) -> dict[int, str]:
    """Return columns called train, val, test if each row has one of them; "train" alone is a class."""
    flags = {j: split for j, split in classes.items() if split in _KNOWN}
    if len(set(flags.values())) > 1:
        yes = [[words.meaning(value) is Meaning.POSITIVE for value in sheet.columns[j]] for j in flags]
        if all(sum(row) == 1 for row in zip(*yes, strict=True)):
            return flags
    if asked := [sheet.header[j] for j, split in flags.items() if split != "train"]:
        first = asked[0]
        raise DataError(
            f"{sheet.path}: the column {first!r} may be a class or a split. If it is a split, call it 'is_{first}'; if "
            f"it is a class, list the classes: {setting('columns', ['CLASS', first, '...'])}."
        )
    return {}


def _by_names(sheet: Sheet, column: int) -> Splits:
    names = {value: split_name(value) for value in sheet.values[column]}
    rows = (
        (value.strip() or "(blank)", f"split {names[value]!r}" if names[value] else "no split", n)
        for value, n in sorted(sheet.values[column].items())
    )
    where = f"{sheet.path.name}, column {sheet.header[column]!r}"
    return Splits((column,), [names[value] for value in sheet.columns[column]], value_readings(where, rows))


def _by_flags(sheet: Sheet, flags: Mapping[int, str], words: Words) -> Splits:
    """Return the split of each row by columns such as is_valid: true means this split, false the other side."""
    other = "train" if "train" not in flags.values() else "val" if set(flags.values()) == {"train"} else ""
    names = []
    for i in range(len(sheet)):
        meanings = {split: words.meaning(sheet.columns[j][i]) for j, split in flags.items()}
        true = [split for split, meaning in meanings.items() if meaning is Meaning.POSITIVE]
        if len(true) > 1:
            raise DataError(f"{sheet.at(i)}: the photo is in {true[0]!r} and in {true[1]!r}; put it in one split.")
        names.append(true[0] if true else other if Meaning.NEGATIVE in meanings.values() else "")
    headers = " and ".join(repr(sheet.header[j]) for j in flags)
    where = f"{sheet.path.name}, column{'s' if len(flags) > 1 else ''} {headers}"
    counts = Counter(zip((_cells(sheet, flags, i) for i in range(len(sheet))), names, strict=True))
    rows = ((cells, f"split {name!r}" if name else "no split", n) for (cells, name), n in sorted(counts.items()))
    return Splits(tuple(flags), names, value_readings(where, rows))


def _cells(sheet: Sheet, flags: Mapping[int, str], row: int) -> str:
    return ", ".join(sheet.columns[j][row].strip() or "(blank)" for j in flags)
