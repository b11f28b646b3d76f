"""Several labels in one cell of a text table: tags with a separator, a list of a program, or a vector of 0 and 1."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, joined_names
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.sheet import Sheet
from fewtags.formats.texts import several_in_one, tag_with_score, words_that_recur
from fewtags.formats.words import Meaning, Words
from fewtags.text import setting, some

SEPARATORS = ("|", ";", ",")
MISSING = frozenset({"na", "n/a", "#n/a", "null"})
"""What programs such as R write into a cell without a value."""
_BLANK = frozenset({*MISSING, "", "nan", "<na>", "[]", "()", "{}", "[nan]", "[none]"})
_NUMBERS = frozenset({"0", "1", "-1", "0.", "1.", "0.0", "1.0", "-1.0", "nan"})
_LINES = re.compile(r"[\r\n]+")
_COUNTS = re.compile(r"\d+(?:[\s/\\+&]+\d+)+")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")


def is_blank(value: str) -> bool:
    """Return whether a cell of tags states nothing."""
    return re.sub(r"\s+", "", fold(value)) in _BLANK


def tags_of(
    sheet: Sheet, column: int, options: ReadOptions, *, alone: bool = True
) -> tuple[dict[str, tuple[str, ...]], str, list[str]]:
    """Return the tags of each value of a column, how they were cut, and warnings.

    Blanks can separate tags only in a column that is `alone`: beside others, a cell with blanks is one name.

    Raises:
        DataError: it is not clear what separates the tags, or a cell has both a class and a name for none of them.
    """
    cells, how, warnings = _cut_all(sheet, column, options, alone)
    for value, tags in cells.items():
        if len(tags) > 1 and (none := next(filter(options.is_none, tags), None)):
            raise DataError(
                f"{sheet.first(column, value)}: {value!r} has both {none!r} and a class; fix the cell, or pass "
                f"{setting('none_folder', '')} if {none!r} is a class."
            )
    return cells, how, warnings


def _cut_all(
    sheet: Sheet, column: int, options: ReadOptions, alone: bool
) -> tuple[dict[str, tuple[str, ...]], str, list[str]]:
    where = f"{sheet.path.name}, column {sheet.header[column]!r}"
    values = [value for value in sheet.values[column] if not is_blank(value)]
    if found := next(filter(_is_object, values), None):
        raise DataError(
            f"{sheet.first(column, found)}: {found[:60]!r} is an object, not tags. Write the tags of each photo, such "
            "as cat|dog; if Label Studio wrote the table, export 'JSON' instead and pass that file."
        )
    lists = {value: tags for value in values if (tags := _list_of(value)) is not None}
    if lists and len(lists) < len(values):
        one, other = next(iter(lists)), next(value for value in values if value not in lists)
        raise DataError(
            f"{sheet.first(column, one)}: {one!r} is a list, but {other!r} is not; write all cells in one way, such as "
            "cat|dog."
        )
    if lists:
        alike = joined_names(where, (tag for tags in lists.values() for tag in tags))
        cells = dict.fromkeys(sheet.values[column], ()) | {value: _plain(tags) for value, tags in lists.items()}
        _check_scores(sheet, column, cells, options)
        return cells, "each cell is a list of tags", [*alike]
    separator = _separator(sheet, column, values, options, alone)
    cells = {value: () if is_blank(value) else cut(value, separator) for value in sheet.values[column]}
    _check_scores(sheet, column, cells, options)
    asked = options.tags_separator is not None
    warnings = [] if asked else [*_commas(sheet, column, separator, cells), *_joined(sheet, column, cells)]
    warnings += joined_names(where, (tag for value in values for tag in _parts(value, separator)))
    how = f"tags split at {separator!r}" if separator else "one tag a row"
    return cells, f"{how}, and at line breaks" if any(map(_LINES.search, values)) else how, warnings


def _check_scores(sheet: Sheet, column: int, cells: Mapping[str, Sequence[str]], options: ReadOptions) -> None:
    """Refuse tags with scores, such as dog:0.9, unless the user says what separates the tags."""
    tag = tag_with_score(tag for tags in cells.values() for tag in tags)
    if tag and options.tags_separator is None:
        value = next(value for value, tags in cells.items() if tag in tags)
        raise DataError(
            f"{sheet.first(column, value)}: {value[:60]!r} looks like tags with scores, and scores are not labels. "
            f"Write the tags that are right, without numbers; if the numbers belong to the names, pass "
            f"{setting('tags_separator', ',')}."
        )


def cut(value: str, separator: str) -> tuple[str, ...]:
    """Return the tags of a cell, without blank ones ("" and NaN) and without repeats; a line break ends a tag, too."""
    return _plain(_parts(value, separator))


def _parts(value: str, separator: str) -> list[str]:
    return [part for line in _LINES.split(value) for part in (line.split(separator) if separator else [line])]


def _plain(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags as names of classes, without blank ones ("" and NaN) and without repeats."""
    return tuple(dict.fromkeys(tag for text in tags if fold(tag := clean_name(text)) not in ("", "nan")))


def vectors(sheet: Sheet, column: int, words: Words, options: ReadOptions) -> dict[str, list[Meaning]] | None:
    """Return the meaning of each state in cells such as "1 0 NaN" or [True, False]; None if they are not vectors.

    The header names the classes, in the same order and with as many names; see `vector_classes`.

    Raises:
        DataError: the cells are vectors, but have different lengths, or nothing names their classes.
    """
    values = [value for value in sheet.values[column] if not is_blank(value)]
    found = {value: _states_of(value, words) for value in values}
    whole = all(re.fullmatch("[01]{2,}", value.strip()) for value in values)
    if whole and values:
        lengths = {len(value.strip()) for value in values}
        # 10 and 11 alone may be numbers of classes.
        if len(lengths) > 1 or not (min(lengths) > 2 or any(value.strip()[0] == "0" for value in values)):
            return None
        found = {value: list(value.strip()) for value in values}
    known = {value: parts for value, parts in found.items() if parts is not None}
    if len(known) < len(values) or not any(len(parts) > 1 for parts in known.values()):
        return None
    sizes = sorted({len(parts) for parts in known.values()})
    listed = [fold(part) for parts in known.values() for part in parts]
    if options.tags_separator is not None and len(sizes) > 1 and "nan" not in listed:
        return None  # classes that are called 0 and 1
    names = vector_classes(sheet, column)
    value = next(value for value in values if len(known[value]) > 1)
    if len(sizes) > 1 or len(names) != sizes[0]:
        stated, unit = ("0 or 1", "numbers") if set(listed) <= _NUMBERS else ("present or absent", "states")
        much = f"{sizes[0]} {unit}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} {unit}"
        example = " ".join(f"class{i}" for i in range(1, min(sizes[-1], 3) + 1))
        raise DataError(
            f"{sheet.first(column, value)}: {value!r} states {stated} for each class, but nothing names the classes "
            f"(the cells have {much}). Make one column per class, or write the names of the classes as the header of "
            f"this column, separated by blanks: '{example}{' ...' if sizes[-1] > 3 else ''}'."
        )
    meaning = {part: words.meaning(part) or Meaning.OPEN for parts in known.values() for part in parts}
    blank = [Meaning.BLANK] * len(names)
    return {
        value: [meaning[part] for part in known[value]] if value in known else blank for value in sheet.values[column]
    }


def vector_classes(sheet: Sheet, column: int) -> list[str]:
    """Return the class names in the header of a column of vectors."""
    names = [name for name in re.split(r"[\s|;,]+", sheet.header[column].strip("[](){} ")) if name]
    return names if len(set(names)) == len(names) else []


def _states_of(value: str, words: Words) -> list[str] | None:
    """Return the states of a vector such as [1, 0], 1|0|1 or True False; None for other cells."""
    text = value.strip()
    if text[:1] in "[({" and text[-1:] in "])}":
        text = text[1:-1]
    parts = [part.strip("'\" ") for part in re.split(r"[\s|;,]+", text.strip())]
    return parts if all(fold(part) in _NUMBERS or words.is_label(part) for part in parts) else None


def _list_of(value: str) -> Sequence[str] | None:
    """Return the tags of a cell such as ['cat', 'dog'] or [cat, dog], as they are written; None for other cells."""
    text = value.strip()
    if len(text) < 2 or text[0] + text[-1] not in ("[]", "()", "{}"):
        return None
    inner = text[1:-1]
    quoted = [one or other for one, other in _QUOTED.findall(inner)]
    if not quoted:
        return _parts(inner, ",") if text[0] == "[" else None
    between = _QUOTED.sub("", inner)
    return [re.sub(r"\\(.)", r"\1", tag) for tag in quoted] if not between.strip(" ,\n\t") else None


def _is_object(value: str) -> bool:
    """Return whether a cell is an object of JSON or Python, such as {"cat": 1}, or a list of them."""
    text = _QUOTED.sub("", value.strip())
    return text[:1] + text[-1:] in ("{}", "[]") and "{" in text and ":" in text


def _separator(sheet: Sheet, column: int, values: Sequence[str], options: ReadOptions, alone: bool) -> str:
    """Return the character between the tags; "" if each cell has one tag."""
    if options.tags_separator is not None:
        return given_separator(options)
    seen = {mark: [value for value in values if mark in value] for mark in SEPARATORS}
    used = [mark for mark, cells in seen.items() if cells]
    if len(used) > 1 and (used[0] != "|" or _mixed(values, used)):
        one, other = seen[used[0]][0], seen[used[1]][0]
        raise DataError(
            f"{sheet.first(column, one)}: {some(used)} may all separate tags, as in {one!r} and {other!r}; pass the "
            f"one that does: {setting('tags_separator', used[0])}."
        )
    if used:
        return used[0]
    # Names with blanks ("traffic light") have as many words as distinct cells; tags are few, in many combinations.
    tags = {tag for value in values for tag in value.split()}
    alone = alone and not any(map(_LINES.search, values))  # what is on a line of its own is one tag
    return " " if alone and len(tags) < len({value.strip() for value in values}) else ""


def given_separator(options: ReadOptions) -> str:
    """Return the character that the user gives as the one between tags; "" if there is none."""
    given = options.tags_separator or ""
    return {"space": " ", "tab": "\t"}.get(given, given)


def _mixed(values: Iterable[str], marks: Sequence[str]) -> bool:
    """Return whether a tag between the first marks has other marks that separate tags, too."""
    tags = {tag for value in values for tag in cut(value, marks[0])}
    return any(part in tags for tag in tags for mark in marks[1:] if mark in tag for part in cut(tag, mark))


def _commas(sheet: Sheet, column: int, separator: str, cells: Mapping[str, Collection[str]]) -> list[str]:
    """Return a warning about commas that may belong to a name, because the parts around them never occur apart.

    Raises:
        DataError: no cell shows that commas separate tags.
    """
    if separator != ",":
        return []
    uses: dict[str, set[frozenset[str]]] = defaultdict(set)
    for tags in cells.values():
        for tag in tags:
            uses[tag].add(frozenset(tags))
    several = {value: tags for value, tags in cells.items() if len(tags) > 1}
    together = [value for value, tags in several.items() if all(len(uses[tag]) == 1 for tag in tags)]
    if not together:
        return []
    value = together[0]
    cure = (
        f"If the commas separate tags, pass {setting('tags_separator', ',')}; if they belong to the names, pass "
        f"{setting('tags_separator', '|')}."
    )
    if len(together) == len(several):
        raise DataError(
            f"{sheet.first(column, value)}: {value!r} may be {len(several[value])} tags, or one name with a comma. "
            f"{cure}"
        )
    text = f"{some(together, 3)} were split at commas, but their parts never occur apart. {cure}"
    return [f"{sheet.path.name}, column {sheet.header[column]!r}: {text}"]


def _joined(sheet: Sheet, column: int, cells: Mapping[str, Collection[str]]) -> list[str]:
    """Return a warning about tags that may be several."""
    tags = [tag for found in cells.values() for tag in found]
    doubts, why = several_in_one(tags), "the parts are tags or numbers themselves"
    doubts += [tag for tag in dict.fromkeys(tags) if _COUNTS.fullmatch(tag) and tag not in doubts]
    if not doubts:
        doubts, why = words_that_recur(tags), "most of their words are in several of them"
    if not doubts:
        return []
    text = (
        f"{some(doubts, 3)} {'is read as one class' if len(doubts) == 1 else 'are read as one class each'}, but "
        f"{why}. If there are several tags, pass what separates them, for example "
        f"{setting('tags_separator', 'space')}."
    )
    return [f"{sheet.path.name}, column {sheet.header[column]!r}: {text}"]
