"""The tags of the rows of a text table, in one column or in several that have one list of tags."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fewtags.formats.csv_cells import MISSING, tags_of
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.sheet import Sheet

_STEMS = frozenset(
    [
        *("tag", "tags", "label", "labels", "class", "classes", "category", "categories", "keyword", "keywords"),
        *("choice", "choices", "finding", "findings", "object", "objects", "species", "attribute", "attributes"),
    ]
)


@final
@dataclass(frozen=True, kw_only=True)
class RowTags:
    """The tags of R rows. Rows with equal cells have the same key.

    Attributes:
        keys: the key of each row.
        tags: the tags of each key.
        nothing: keys of rows that say that none of the classes is present.
        uses: number of rows with each tag.
        fillers: number of rows with each name for none of the classes, or for a missing value, that is beside a class.
        how: how the tags were cut, in words.
        warnings: doubts about them.
    """

    keys: Sequence[Hashable]
    tags: Mapping[Hashable, Sequence[str]]
    nothing: frozenset[Hashable]
    uses: Mapping[str, int]
    fillers: Mapping[str, int]
    how: str
    warnings: Sequence[str]


def tags_of_rows(sheet: Sheet, columns: Sequence[int], options: ReadOptions) -> RowTags:
    """Return the tags of the rows of a sheet, see `tags_of`.

    "none", "NA" or "null" beside a class says that there is no further tag.
    """
    read = [tags_of(sheet, column, options, alone=len(columns) == 1) for column in columns]
    keys: Sequence[Hashable]
    if len(columns) == 1:
        keys, counts = sheet.columns[columns[0]], Counter[Hashable](sheet.values[columns[0]])
        joined: dict[Hashable, tuple[str, ...]] = dict(read[0][0].items())
    else:
        keys = [*zip(*(sheet.columns[column] for column in columns), strict=True)]
        counts = Counter(keys)
        joined = {}
        for key in dict.fromkeys(zip(*(sheet.columns[column] for column in columns), strict=True)):
            parts = (cells[value] for value, (cells, _, _) in zip(key, read, strict=True))
            joined[key] = tuple(dict.fromkeys(tag for part in parts for tag in part))
    uses: Counter[str] = Counter()
    fillers: Counter[str] = Counter()
    nothing = set()
    tags: dict[Hashable, tuple[str, ...]] = {}
    for row, found in joined.items():
        named = tuple(tag for tag in found if not options.is_none(tag))
        known = tuple(tag for tag in named if fold(tag) not in MISSING) or named
        if known and len(known) < len(found):
            fillers.update(dict.fromkeys((tag for tag in found if tag not in known), counts[row]))
            found = named = known
        if found and not named:
            nothing.add(row)
        tags[row] = found
        uses.update(dict.fromkeys(found, counts[row]))
    ways = dict.fromkeys(how for _, how, _ in read)
    how = (
        next(iter(ways))
        if len(ways) == 1
        else "; ".join(f"{sheet.header[column]!r}: {how}" for column, (_, how, _) in zip(columns, read, strict=True))
    )
    how = how.replace("one tag a row", "one tag a cell") if len(columns) > 1 else how
    warnings = [warning for *_, found in read for warning in found]
    return RowTags(
        keys=keys, tags=tags, nothing=frozenset(nothing), uses=uses, fillers=fillers, how=how, warnings=warnings
    )


def numbered(sheet: Sheet, columns: Sequence[int]) -> list[int]:
    """Return the columns that are numbered and called like tags, such as tag1 and tag2; none if there are two kinds.

    A column without a number belongs to those with one: label, label_2; tags, tags.1 (as pandas calls it).
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for column in columns:
        match = re.fullmatch(r"(.*?)[\s_.-]*(\d*)", fold(sheet.header[column]))
        stem = re.sub(r"[\s_-]+", " ", match[1]) if match else ""
        if stem in _STEMS or (stem.split() and stem.split()[-1] in _STEMS):
            groups[stem].append(column)
    several = [own for own in groups.values() if len(own) > 1]
    return several[0] if len(several) == 1 else []
