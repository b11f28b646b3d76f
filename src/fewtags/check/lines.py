"""Parts of the text of `check`: the table of classes and the readings, short enough for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fewtags.table.summary import Summary
from fewtags.table.table import ValueReading
from fewtags.text import counted, flag

WIDTH = 80
"""Characters in a line of a terminal."""
_LONGEST_NAME = 24
_VALUES_IN_LINE = 3
_LINES_OF_PLACE = 8


def class_lines(summaries: Mapping[str, Summary]) -> Iterator[str]:
    """Yield positive, negative and unknown images of every class in every split, and points and boxes if any.

    The splits are beside each other if that fits into 80 columns, else below each other. Of many classes, the first
    and the last are shown. Splits with different classes give nothing, because a finding reports that.
    """
    first, *others = summaries.values()
    if any(other.classes.ids != first.classes.ids for other in others):
        return
    yield "images of each class: + positive, - negative, ? unknown"
    blocks = [_block(split, summary) for split, summary in summaries.items()]
    shown, left_out = first.listed_classes()
    width = min(_LONGEST_NAME, max([5, *(len(first.classes.display[c]) for c in shown)]))
    fits = width + sum(len(cell) for block in blocks for cell in block[0]) <= WIDTH
    for group in [blocks] if fits else [[block] for block in blocks]:
        yield f"{'class':<{width}}" + "".join(cell for block in group for cell in block[0])
        for place, c in enumerate(shown):
            if left_out and place == len(shown) // 2:
                yield f"{left_out}; {flag('json')} lists all"
            name = first.classes.display[c]
            name = name if len(name) <= width else f"{name[: width - 1]}…"
            yield f"{name:<{width}}" + "".join(cell for block in group for cell in block[1 + c])


def _block(split: str, summary: Summary) -> list[list[str]]:
    """Return the header and the rows of all classes for one split, as cells padded to the widths of their columns."""
    columns: list[tuple[str, Sequence[int]]] = [
        (f"{split[:12]} +", summary.positives),
        ("-", summary.negatives),
        ("?", summary.unknowns),
    ]
    if summary.points + summary.boxes:
        columns += [("points", summary.points_of), ("boxes", summary.boxes_of)]
    texts = [[header, *(f"{count:,}" for count in counts)] for header, counts in columns]
    padded = [[cell.rjust(2 + max(map(len, column))) for cell in column] for column in texts]
    return [list(row) for row in zip(*padded, strict=True)]


def reading_lines(readings: Sequence[ValueReading]) -> Iterator[str]:
    """Yield how the values were read: values with one meaning share a line, and of many lines the first are shown.

    >>> for line in reading_lines([ValueReading("a.csv", value, "absent", 2) for value in "0nfx-"]):
    ...     print(line)
    read: a.csv: 0, n, f and 2 more -> absent (10)
    """
    places: dict[str, dict[str, list[ValueReading]]] = {}
    for reading in readings:
        places.setdefault(reading.where, {}).setdefault(reading.meaning, []).append(reading)
    for where, meanings in places.items():
        lines = [line for same in meanings.values() for line in _folded(same)]
        yield from lines[:_LINES_OF_PLACE]
        if (rest := len(lines) - _LINES_OF_PLACE) > 0:
            yield f"read: {where}: {counted(rest, 'more line')}; {flag('json')} lists all"


def _folded(same: Sequence[ValueReading]) -> Iterator[str]:
    if len(same) <= _VALUES_IN_LINE:
        yield from (f"read: {reading}" for reading in same)
        return
    values = ", ".join(reading.value for reading in same[:_VALUES_IN_LINE])
    rest = len(same) - _VALUES_IN_LINE
    yield f"read: {same[0].where}: {values} and {rest:,} more -> {same[0].meaning} ({sum(r.count for r in same):,})"
