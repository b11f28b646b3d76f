"""The rows of a Parquet file of labels, checked: the file is untrusted input."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.coded import WORDS, Coded, checked, coded, codes_of, first_rows
from fewtags.table.table import CORNERS, FACTS
from fewtags.text import quoted

COLUMNS = {
    "image": WORDS,
    "class": WORDS,
    "state": pa.int8(),
    **dict.fromkeys(CORNERS, pa.float32()),
    "source": WORDS,
    "split": WORDS,
    "closed": pa.int16(),
}
"""Columns of the file."""
_PART = 1 << 16
"""Rows that are read at a time to see whether a column has a value."""
_MOST_THREADS = 4
"""More would wait for the images, the largest column."""


Column: TypeAlias = Coded | pa.Array | pa.ChunkedArray


def read_columns(file: pyarrow.parquet.ParquetFile, path: Path) -> dict[str, Column]:
    """Return the columns of a file, some at a time: a thread for each core, and at most `_MOST_THREADS`.

    Raises:
        DataError: there is no such column, or more than one, or it has another type.
    """
    metadata, schema = file.metadata, file.schema_arrow

    def read(name: str) -> Column:
        if name not in schema.names:
            return _read_column(None, name, path.name)
        if schema.names.count(name) > 1:
            raise DataError(f"{path.name} has {schema.names.count(name)} columns {name!r}; keep one of them.")
        with pyarrow.parquet.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as own:
            if schema.field(name).type == COLUMNS[name] and _is_null(own, name):
                return _nulls(metadata.num_rows, name)
            return _read_column(own.read([name]), name, path.name)

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "fewtags-columns") as pool:
        return dict(zip(COLUMNS, pool.map(read, COLUMNS), strict=True))


def _is_null(file: pyarrow.parquet.ParquetFile, name: str) -> bool:
    """Return whether a column has no value.

    Its values are read, a part at a time, up to the first one. The statistics of the file would say so, too, but if
    they are damaged, pyarrow 26 ends the process when they are asked for.
    """
    parts = file.iter_batches(_PART, columns=[name], use_threads=False)
    return all(part.column(0).null_count == len(part) for part in parts)


def _nulls(rows: int, name: str) -> Column:
    if COLUMNS[name] == WORDS:
        return Coded(pa.array([], pa.string()), np.broadcast_to(np.int32(-1), rows))  # takes no memory
    return pa.nulls(rows, COLUMNS[name])


def _read_column(table: pa.Table | None, name: str, file: str) -> Column:
    """Return a column of a table; None stands for a file without it.

    Words are `Coded`. The classes keep the dictionary of each part of the file, if it has dictionaries.

    Raises:
        DataError: there is no such column, or it has another type.
    """
    if table is None:
        raise DataError(f"{file} has no column {name!r}; a label table has {', '.join(COLUMNS)}.")
    try:
        if COLUMNS[name] != WORDS:
            return table[name].cast(COLUMNS[name]).combine_chunks()
        if name == "class" and table[name].type == WORDS:
            return checked(table[name])
        return coded(table[name])
    except pa.ArrowException as error:
        raise DataError(
            f"{file}: column {name!r} has type {table[name].type}, not {COLUMNS[name]} ({error})."
        ) from error


@final
@dataclass(frozen=True)
class Rows:
    """The columns of a file; each method checks the rows that it reads.

    Raises:
        DataError: an impossible row, which is named.
    """

    file: str
    columns: dict[str, Column]

    def __post_init__(self) -> None:
        self._refuse(self._missing("image"), "has no image")

    def _refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        """Raise an error for the first wrong row."""
        if np.any(wrong):
            row = int(np.argmax(wrong))
            code = int(self._index[row])
            image = "None" if code < 0 else quoted(self.images[code].as_py())
            raise DataError(f"{self.file} row {row + 1:,} (image {image}) {why}; the file was changed or damaged.")

    def _missing(self, name: str) -> NDArray[np.bool_]:
        column = self.columns[name]
        if isinstance(column, Coded):
            return column.codes < 0
        if column.null_count in (0, len(column)):
            return np.full(len(column), column.null_count > 0)
        found: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
        return found

    @property
    def images(self) -> pa.Array:
        """The image keys, in order of appearance."""
        return self._words("image").words

    @property
    def _index(self) -> NDArray[np.int32]:
        """The image of each row."""
        return self._words("image").codes

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """The first row of each image."""
        return first_rows(self._index)

    def _words(self, name: str) -> Coded:
        column = self.columns[name]
        assert isinstance(column, Coded), name
        return column

    def _numbers(self, name: str) -> pa.Array:
        column = self.columns[name]
        assert not isinstance(column, Coded), name
        return column

    def complete_set(self, sets: int) -> NDArray[np.int16]:
        """Return the number of the set of classes, below `sets`, that each image is completely annotated for."""
        closed = self._numbers("closed")
        if closed.null_count == len(closed):
            return np.full(len(self.images), -1, np.int16)
        found = np.asarray(pc.fill_null(closed, -1)).astype(np.int16)
        of_image = found[self._first]
        self._refuse(found != of_image[self._index], "has a different 'closed' than other rows of the same image")
        outside = (found < -1) | (found >= sets)
        self._refuse(outside, f"has a 'closed' that is not one of the {sets} sets of classes")
        return of_image

    def split_names(self) -> pa.Array | None:
        """Return the split of each image, or None."""
        split = self._words("split")
        if not len(split.words):
            return None
        self._refuse(split.codes < 0, "has no split, but other rows have one")
        of_image = split.codes[self._first]
        self._refuse(split.codes != of_image[self._index], "is in another split than other rows of the same image")
        return split.words.take(pa.array(of_image))

    def facts(self, classes: ClassNames) -> pa.Table:
        """Return the rows that have a class."""
        silent = self._missing("class")
        state = np.asarray(pc.fill_null(self._numbers("state"), Label.UNKNOWN))
        self._refuse(silent & (state != Label.UNKNOWN), "has a state but no class")
        known = (state == Label.NEGATIVE) | (state == Label.POSITIVE)
        self._refuse(~silent & ~known, f"has a state that is neither {Label.NEGATIVE:d} nor {Label.POSITIVE:d}")
        source = self._words("source")
        self._refuse(~silent & (source.codes < 0), "has a label without a source")
        corners = self._corners()
        number = self._class_numbers(classes)
        self._refuse(~silent & (number < 0), "has a class that is not in the file's vocabulary")
        numbers = [self._index, number, state, source.codes]
        if silent.any():
            kept = ~silent  # positions would be eight times as large
            numbers = [column[kept] for column in numbers]
            mask, count = pa.array(kept), len(numbers[0])
            corners = [
                column[:count] if column.null_count == len(column) else column.filter(mask) for column in corners
            ]
        index, number, state, codes = map(pa.array, numbers)
        sources = pa.DictionaryArray.from_arrays(codes, source.words)
        return pa.Table.from_arrays([index, number, state, *corners, sources], schema=FACTS)

    def _class_numbers(self, classes: ClassNames) -> NDArray[np.int32]:
        """The class of each row; -1 for another class and for none."""
        column = self.columns["class"]
        parts = column.chunks if not isinstance(column, Coded) else [column]
        found, row = np.empty(len(column), np.int32), 0
        for part in parts:
            words, codes = (part.words, part.codes) if isinstance(part, Coded) else (part.dictionary, codes_of(part))
            known = [classes.index(word) if word in classes else -1 for word in words.to_pylist()]
            np.take(np.array([*known, -1], np.int32), codes, out=found[row : row + len(codes)], mode="wrap")
            row += len(codes)
        return found

    def _corners(self) -> list[pa.Array]:
        columns = [self._numbers(corner) for corner in CORNERS]
        if all(column.null_count == len(column) for column in columns):
            return columns[:1] * len(CORNERS)  # one array of nulls for all
        x0, y0, x1, y1 = (column.to_numpy(zero_copy_only=False) for column in columns)
        inside = (x0 >= 0) & (x0 <= x1) & (x1 <= 1) & (y0 >= 0) & (y0 <= y1) & (y1 <= 1)
        none = np.logical_and.reduce([self._missing(corner) for corner in CORNERS])
        self._refuse(~none & ~inside, "has a location that is not 0 <= x0 <= x1 <= 1 and 0 <= y0 <= y1 <= 1")
        return columns
