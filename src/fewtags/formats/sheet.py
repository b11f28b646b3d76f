"""Text tables such as CSV: their cells, with row numbers as an editor counts them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.formats.columns import Column
from fewtags.formats.common import clean_name, decoded, number_of
from fewtags.formats.locate import is_photo
from fewtags.formats.options import fold
from fewtags.formats.plain_table import plain_columns, plain_head
from fewtags.text import counted, quoted, setting, some, suggest

SPREADSHEET = (
    "a spreadsheet file, which is not read; open it, save the sheet with the labels as CSV (in Excel: Save As, 'CSV "
    "UTF-8'), and pass that file."
)
DELIMITERS = (",", "\t", ";", "|")
# Rows are turned into columns in small blocks: this makes a million rows six times faster, because the short lists are
# freed before the garbage collector visits them.
_BLOCK = 128
_SAMPLE, _LONGEST = 20, 100_000
_MARK = re.compile(r'"?sep=(.)"?\s*?(?=\r?\n|\Z)', re.IGNORECASE)
"""A first line that Excel writes and obeys."""


@final
@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A text table: stripped names and cells of the columns, and the line in which each row begins, counted from 1.

    `places` name the rows in messages; without them, they are called by their line.
    """

    path: Path
    delimiter: str
    header: tuple[str, ...]
    columns: tuple[Sequence[str], ...]
    lines: NDArray[np.int64]
    places: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def values(self) -> tuple[Counter[str], ...]:
        """How often each value occurs in each column."""
        return tuple(column.counts() for column in self.coded)

    @cached_property
    def coded(self) -> tuple[Column, ...]:
        """The columns, with the distinct values of each."""
        return tuple(map(Column.of, self.columns))

    def at(self, row: int, column: int | None = None) -> str:
        """Return the place of a cell or row, for messages."""
        where = self.places[row] if self.places else f"{self.path} row {self.lines[row]}"
        return where if column is None else f"{where}, column {self.header[column]!r}"

    @cached_property
    def decimal_comma(self) -> bool:
        """Whether numbers may have a decimal comma, as in the tables of many languages: the comma separates nothing."""
        return self.delimiter in (";", "\t") and not any("," in name for name in self.header)

    def number(self, text: str) -> float:
        """Return the number in a cell; NaN for other texts."""
        return number_of(with_point(text) if self.decimal_comma else text)

    def without_blank_rows(self) -> Sheet:
        """Return the sheet without rows whose cells are all blank, which spreadsheets write below a table."""
        blank = np.ones(len(self), np.bool_)
        for column in self.coded:
            blank &= column.each(lambda cell: not cell.strip(), np.bool_)
            if not blank.any():
                return self
        kept = np.flatnonzero(~blank).tolist()
        columns = tuple([column[i] for i in kept] for column in self.columns)
        places = tuple(self.places[i] for i in kept) if self.places else ()
        return replace(self, columns=columns, lines=self.lines[kept], places=places)

    def first(self, column: int, value: str) -> str:
        """Return the place of the first cell of a column with a value."""
        return self.at(self.columns[column].index(value), column)

    def find(self, name: str) -> int:
        """Return the position of a column.

        Raises:
            DataError: there is no such column; the closest name is suggested.
        """
        name = clean_name(name)
        if name in self.header:
            return self.header.index(name)
        alike = [i for i, known in enumerate(self.header) if fold(known) == fold(name)]
        if len(alike) == 1:
            return alike[0]
        hint = suggest(name, self.header)
        raise DataError(f"{self.path}: there is no column {name!r}{hint}; its columns are {some(self.header, 12)}.")


def read_sheet(path: Path, delimiter: str | None = None) -> Sheet:
    """Read a text table with a header, UTF-8 with or without byte order mark, or UTF-16 with one.

    The delimiter is one character, or "tab"; None is that of a first line "sep=;", or the one of , tab ; | that splits
    the header into most columns, and of these the one that splits most rows into as many. Blank cells at the end of
    rows, beyond the header, are dropped.

    Raises:
        DataError: neither UTF-8 nor UTF-16, broken quotes, no header or a title above it, repeated column names, or
            rows of another length.
        ConfigError: the delimiter is not a single character.
    """
    data = _data(path)
    return _plain_sheet(path, data, delimiter) or _any_sheet(path, data, delimiter)


def _plain_sheet(path: Path, data: bytes, delimiter: str | None) -> Sheet | None:
    """The sheet of a table that is read fast; None if it has no rows, an error, or any other peculiarity."""
    head = plain_head(data, _SAMPLE)
    if head is None or _MARK.match(head):
        return None
    try:
        found = _delimiter(head, delimiter)
        first = next(_records(head, found, path), None)
        header = _header(path, first, found, head)
    except (ConfigError, DataError):
        return None
    if first is None or first[0] != 1 or found not in DELIMITERS or not any(header[1:]):
        return None
    if any("\n" in name for name in first[1]):
        return None
    if (columns := plain_columns(data, found, len(header))) is None:
        return None
    lines = np.arange(2, len(columns[0]) + 2)
    return Sheet(path=path, delimiter=found, header=header, columns=tuple(columns), lines=lines)


def _any_sheet(path: Path, data: bytes, delimiter: str | None) -> Sheet:
    text = _text(path, data)
    if mark := _MARK.match(text):
        delimiter, text = delimiter or mark[1], text[mark.end() :]  # the line stays, blank, so that rows are counted
    found = _delimiter(text, delimiter)
    reader = _records(text, found, path)
    header = _header(path, next(reader, None), found, text)
    columns: list[list[str]] = [[] for _ in header]
    lines: list[int] = []
    while block := list(islice(reader, _BLOCK)):
        begins, rows = zip(*block, strict=True)
        if set(map(len, rows)) != {len(header)}:
            for line, row in block:
                if not any(cell.strip() for cell in row[len(header) :]):
                    del row[len(header) :]
                if len(row) != len(header):
                    raise DataError(_wrong_length(f"{path} row {line}", row, header, found))
        lines.extend(begins)
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
            column.extend(cells)
    return Sheet(path=path, delimiter=found, header=header, columns=tuple(columns), lines=np.array(lines, np.int64))


def _delimiter(text: str, delimiter: str | None) -> str:
    likely = max(DELIMITERS, key=_cells(text))
    found = {"tab": "\t", "\\t": "\t", None: likely}.get(delimiter, delimiter) or ","
    if len(found) != 1:
        raise ConfigError(f"delimiter {delimiter!r}: expected one character, or 'tab'.")
    if found in '\r\n"':
        raise ConfigError(f"delimiter {delimiter!r}: a line end or quotation mark cannot stand between cells.")
    return found


def _cells(text: str) -> Callable[[str], tuple[int, int]]:
    """Return a function of a delimiter: the cells of the first line, and the lines after it that have as many."""
    lines = [line[:_LONGEST] for line in islice(io.StringIO(text, newline=""), _SAMPLE) if line.strip()]

    def count(delimiter: str) -> tuple[int, int]:
        cells = [len(row) for line in lines for row in csv.reader([line], delimiter=delimiter)]
        return (cells[0], cells.count(cells[0])) if cells and cells[0] > 1 else (1, 0)

    return count


def _wrong_length(where: str, row: Sequence[str], header: Sequence[str], delimiter: str) -> str:
    start = f"{where}: {counted(len(row), 'cell')}, but the header has {len(header)}"
    if len(row) < len(header):
        return f"{start}; add the missing cells, blank ones too, or pass {setting('delimiter', 'CHARACTER')}."
    joined = delimiter.join(row[len(header) - 1 :]).strip()
    return (
        f'{start}; if {joined!r} is one cell, write it in quotes, as in "{joined}"; if another character separates '
        f"the cells, pass {setting('delimiter', 'CHARACTER')}."
    )


def _records(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the line in which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                yield begin, row
            begin = reader.line_num + 1
    except csv.Error as error:
        if "limit" in str(error):
            raise DataError(f"{path} row {begin}: a cell is too long ({error}); is a quote left open?") from None
        raise DataError(
            f"{path} row {begin}: broken quotes ({error}); close each quoted cell, and write a quote inside it twice."
        ) from None


def _data(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError(f"{path}: {SPREADSHEET}")
    return data


def _text(path: Path, data: bytes) -> str:
    try:
        text = decoded(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} row {line}: not UTF-8 text; save the table as 'CSV UTF-8'.") from None
    if "\0" in text:
        raise DataError(
            f"{path} row {text.count(chr(10), 0, text.index(chr(0))) + 1}: a null character; is this a text file?"
        )
    return text


def _header(path: Path, first: tuple[int, Sequence[str]] | None, delimiter: str, text: str) -> tuple[str, ...]:
    if first is None:
        raise DataError(f"{path}: the file is empty; expected a header such as 'image,tags' and a row per photo.")
    header = tuple(map(clean_name, first[1]))
    if not any(header[1:]):
        _check_alone(f"{path} row {first[0]}", header[0], text)
    if photos := [name for name in header if is_photo(name)]:
        raise DataError(
            f"{path} row 1: {quoted(photos[0])} looks like a photo, not like a column; add a header such as "
            "'image,tags'."
        )
    if len(header) == 1:
        raise DataError(
            f"{path}: a single column {header[0]!r} when split at {delimiter!r}; expected an image column and labels. "
            f"Pass {setting('delimiter', 'CHARACTER')} if another character separates the cells."
        )
    if repeated := [name for name, n in Counter(header).items() if n > 1 and name]:
        raise DataError(f"{path}: several columns are called {repeated[0]!r}; rename them.")
    return header


def _check_alone(where: str, name: str, text: str) -> None:
    """Raise an error if the only name of a header is a title, a count of rows, or several names between blanks."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ,;\t|")][:_SAMPLE]
    if not lines:
        raise DataError(f"{where}: the file has blank cells only; expected a header such as 'image,tags'.")
    below = lines[1:]
    if name.isdecimal() and below:
        raise DataError(
            f"{where}: {name!r} is a number, as the count of rows in lists of CelebA and DeepFashion, but the rows "
            "below are not names and photos with 1 and -1, or the file does not end in .txt. Write a table with commas "
            "instead: 'image' and the names of the classes in row 1, then a row per photo with 1 and 0."
        )
    if '"' in lines[0][1:-1] and lines[0][:1] + lines[0][-1:] == '""':
        raise DataError(f"{where}: the row is in quotes as a whole; save the table again, without quotes around rows.")
    if any(mark in line for line in below for mark in DELIMITERS):
        what = f"{name!r} is alone in its row, like a title" if name else "the row is blank"
        raise DataError(f"{where}: {what}; remove the rows above the header.")
    words = name.split()
    if len(words) > 1 and is_photo(words[0]):
        raise DataError(
            f"{where}: {words[0]!r} looks like a photo, not like a column; add a header such as 'image,tags', and put "
            "commas between the cells."
        )
    if len(words) > 1 and below:
        alike = all(line.count(" ") == lines[0].count(" ") for line in below)
        cure = f"pass {setting('delimiter', ' ')}" if alike else "put commas between the cells"
        raise DataError(f"{where}: {name[:60]!r} is a single column; if blanks separate the cells, {cure}.")


def with_point(text: str) -> str:
    """Return a number with a decimal comma with a point; other texts as they are."""
    return text.replace(",", ".") if re.fullmatch(r"\s*[+-]?\d*,\d+\s*", text) else text
