"""Text tables without peculiarities, such as those that programs write, by the reader of Arrow.

A table is plain if both readers must agree on it: each line is a row with as many cells as the header, and quotes are
only around whole cells. Any other table is left to the careful reader, `sheet.read_sheet`, and so are its errors.
"""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from fewtags.formats.columns import Column
from fewtags.table.coded import WORDS, coded

_LONGEST = 100_000
"""Bytes of a line; `csv` refuses cells with 131,072 characters."""
_BLOCK = 1 << 24
_PART = 1 << 20
"""Bytes that a thread of Arrow reads at a time; more than the longest line."""
_LINE_ENDS, _QUOTE = b"\n\r", ord('"')


def plain_head(data: bytes, lines: int) -> str | None:
    """Return the first lines of a table as text; None if they are not UTF-8."""
    start = end = _start(data)
    for _ in range(lines):
        end = data.find(b"\n", end) + 1
        if not end:
            end = len(data)
            break
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        return None


def plain_columns(data: bytes, delimiter: str, count: int) -> list[Column] | None:
    """Return the columns of a table with a header in its first line, without the header; None if it is not plain."""
    start = _start(data)
    if len(delimiter.encode()) > 1 or b"\0" in data or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return None
    lines = _count_lines(np.frombuffer(data, np.uint8)[start:], ord(delimiter))
    if lines is None or lines < 2:
        return None
    names = [str(j) for j in range(count)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            pyarrow.csv.ReadOptions(column_names=names, skip_rows=1, block_size=_PART),
            pyarrow.csv.ParseOptions(delimiter=delimiter, double_quote=False, ignore_empty_lines=True),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, WORDS), strings_can_be_null=False),
        )
        found = [coded(table[name]) for name in names]
    except pa.ArrowException:  # not UTF-8, or rows of another length
        return None
    if len(table) != lines - 1:  # a line is blank, or its end is in quotes
        return None
    return [Column(column.words.to_pylist(), column.codes) for column in found]


def _start(data: bytes) -> int:
    return len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0


def _count_lines(text: NDArray[np.uint8], delimiter: int) -> int | None:
    """Return the number of lines; None if one is long, or if quotes are not around whole cells."""
    is_end = np.zeros(256, np.bool_)
    is_end[[delimiter, *_LINE_ENDS]] = True
    quotes = lines = 0
    last = -1  # where the line before ended
    for first in range(0, len(text), _BLOCK):
        block = text[first : first + _BLOCK]
        ends = np.flatnonzero(block == _LINE_ENDS[0]) + first
        if np.any(np.diff(ends, prepend=last) > _LONGEST):
            return None
        lines, last = lines + len(ends), int(ends[-1]) if len(ends) else last
        marks = np.flatnonzero(block == _QUOTE) + first
        opens, closes = marks[quotes % 2 :: 2], marks[1 - quotes % 2 :: 2]
        before, after = text[opens[opens > 0] - 1], text[closes[closes < len(text) - 1] + 1]
        if not (is_end[before].all() and is_end[after].all()):
            return None
        quotes += len(marks)
    if quotes % 2 or len(text) - last > _LONGEST:
        return None
    return lines + (last < len(text) - 1)
