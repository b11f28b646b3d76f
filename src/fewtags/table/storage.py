"""Write label tables as a Parquet file, which can be loaded again, or as a CSV for people and other tools.

The Parquet file has one row per fact, and one row with an empty class for each image without facts. Its columns are
`image, class, state, x0, y0, x1, y1, source, split, closed`; `closed` is the `complete_set` of a `LabelTable`. Images
are in the order of the table. The key "fewtags" of the metadata contains, as JSON, the format number, the vocabulary
and the complete classes ("covers").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fewtags.errors import DataError
from fewtags.files import replacing
from fewtags.labels import ClassNames, Label
from fewtags.shards.places import place
from fewtags.table.table import CORNERS, FACTS, LabelTable, Notes, implied_facts
from fewtags.text import quoted, some

FORMAT = 1
"""Number of the file format; increased if an older fewtags could misread a file."""

_KEY = b"fewtags"
_WORDS = pa.dictionary(pa.int32(), pa.string())
_ROW_GROUP = 1 << 20
_LARGEST_DICTIONARY = 1 << 28
"""Bytes of the distinct words of a column in a row group; beyond it Parquet writes the word of every row."""
_COLUMNS = {
    "image": _WORDS,
    "class": _WORDS,
    "state": pa.int8(),
    **dict.fromkeys(CORNERS, pa.float32()),
    "source": _WORDS,
    "split": _WORDS,
    "closed": pa.int16(),
}
_MOST_CSV_ROWS = 100_000_000
_CSV_BLOCK = 2_000_000


@final
class _Header(BaseModel):
    """Metadata of the file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Annotated[int, Field(ge=1)]
    ids: list[str]
    names: list[str]
    covers: list[list[Annotated[int, Field(ge=0)]]]
    root: str | None
    messages: list[str]


def save(table: LabelTable, path: Path | str, *, keep_root: bool = False) -> None:
    """Write a table to one Parquet file, atomically. The readings, exclusions and warnings of its notes are not stored.

    A path that ends in .csv gets the text table of `write_csv`. `keep_root` stores the image folder too (not in CSV).
    It is off by default: photos move, and a path may reveal private names. If the folder of `path` does not exist, the
    error is a `DiskError`.

    Raises:
        DataError: another ending, or classes without a label, which a CSV cannot keep.
    """
    if not isinstance(table, LabelTable):
        raise DataError(f"save writes a LabelTable, not an object of the type {type(table).__name__}.")
    ending = Path(path).suffix.lower()
    if ending == ".csv":
        if lost := unwritten_classes(table):
            are = "the class" if len(lost) == 1 else "the classes"
            raise DataError(f"{path}: a CSV cannot keep {are} without a label, {some(lost)}; save as .parquet.")
        write_csv(table, path)
        return
    if ending != ".parquet":
        raise DataError(f"{path}: a label table is saved as .parquet or .csv; give a name with one of these endings.")
    index, fact = _rows_by_image(table.facts["image"].to_numpy(), np.arange(len(table), dtype=np.int32))
    taken = _taken(table.facts, fact)
    names = None if table.split_names is None else pc.fill_null(table.split_names, "").dictionary_encode()
    columns = {
        **taken,
        "class": pa.DictionaryArray.from_arrays(taken["class"], pa.array(table.classes.ids, pa.string())),
        "split": pa.nulls(len(index), _WORDS) if names is None else names.take(pa.array(index)),
        "closed": pa.array(table.complete_set[index], mask=table.complete_set[index] < 0),
    }
    header = _Header(
        format=FORMAT,
        ids=list(table.classes.ids),
        names=list(table.classes.names),
        covers=[np.flatnonzero(row).tolist() for row in table.complete_classes],
        root=table.root.as_posix() if keep_root and table.root is not None else None,
        messages=list(table.notes.messages),
    )
    schema = pa.schema(list(_COLUMNS.items()), metadata={_KEY: header.model_dump_json().encode()})
    options = {"compression": "zstd", "write_page_checksum": True, "dictionary_pagesize_limit": _LARGEST_DICTIONARY}
    with replacing(Path(path)) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema, **options) as writer:
        for first in range(0, max(len(index), 1), _ROW_GROUP):
            part = {name: column[first : first + _ROW_GROUP] for name, column in columns.items()}
            writer.write_table(
                pa.table({"image": _image_words(table, index[first : first + _ROW_GROUP]), **part}, schema)
            )


def _image_words(table: LabelTable, index: NDArray[np.int32]) -> pa.DictionaryArray:
    """Keys of sorted image numbers. The dictionary has only the images between them: each row group stores its own."""
    low, high = (index[0], index[-1] + 1) if len(index) else (0, 0)
    return pa.DictionaryArray.from_arrays(pa.array(index - np.int32(low)), table.images[low:high])


def is_label_table(path: Path) -> bool:
    """Return whether a file is one that `save` wrote, by its metadata."""
    try:
        return _KEY in (pyarrow.parquet.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def load(path: Path | str, *, root: Path | str | None = None) -> LabelTable:
    """Read a table that `save` wrote. The file is untrusted input: everything is checked.

    `root` is the folder of the images; it defaults to the folder stored in the file, if any.

    Raises:
        DataError: no such file, not a label table, a newer format, or inconsistent rows.
    """
    path = Path(path)
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            metadata, names = file.schema_arrow.metadata or {}, file.schema_arrow.names
            header = _read_header(metadata, path.name)
            # One after the other: what a column needs while it is decoded is free again for the next.
            columns = {
                name: _column(file.read([name]) if name in names else None, name, path.name) for name in _COLUMNS
            }
    except FileNotFoundError as error:
        raise DataError(f"there is no file {quoted(str(path))}.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} cannot be read as a Parquet file: {error}") from error
    if len({len(column) for column in columns.values()}) > 1:
        raise DataError(f"{path.name}: its columns have different numbers of rows; the file is damaged.")
    classes = ClassNames.of(header.ids, header.names)
    rows = _Rows(path.name, columns)
    images, index = rows.images()
    first = _first_rows(index)
    complete_classes = np.zeros((len(header.covers), len(classes)), np.bool_)
    for row, numbers in zip(complete_classes, header.covers, strict=True):
        if numbers and max(numbers) >= len(classes):
            known = f"but there are {len(classes):,} classes"
            raise DataError(f"{path.name}: 'covers' in its metadata has class number {max(numbers)}, {known}.")
        row[numbers] = True
    stored = header.root if root is None else root
    return LabelTable(
        images=images,
        classes=classes,
        facts=rows.facts(index, classes),
        complete_set=rows.complete_set(index, first, len(header.covers)),
        complete_classes=complete_classes,
        root=None if stored is None else place(stored),
        split_names=rows.split_names(index, first),
        notes=Notes(messages=tuple(header.messages)),
    )


def _read_header(metadata: dict[bytes, bytes], name: str) -> _Header:
    if _KEY not in metadata:
        raise DataError(
            f"{name} is a Parquet file but not a label table (its metadata has no 'fewtags'); give a CSV instead."
        )
    try:
        found = json.loads(metadata[_KEY])
        if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
            raise DataError(
                f"{name} has format {found['format']}, this fewtags reads {FORMAT}; install a newer fewtags."
            )
        return _Header.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{name}: its 'fewtags' metadata is damaged ({where}: {first['msg']}).") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: its 'fewtags' metadata is damaged ({error}).") from error


def _column(table: pa.Table | None, name: str, file: str) -> pa.Array:
    if table is None:
        raise DataError(f"{file} has no column {name!r}; a label table has {', '.join(_COLUMNS)}.")
    try:
        if _COLUMNS[name] != _WORDS:
            return table[name].cast(_COLUMNS[name]).combine_chunks()
        return _words(table[name])
    except pa.ArrowException as error:
        raise DataError(
            f"{file}: column {name!r} has type {table[name].type}, not {_COLUMNS[name]} ({error})."
        ) from error


def _words(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of words, whose codes are in order of appearance, whoever wrote the file.

    Decoding every row is what costs time, and is done only if the file's own codes are in another order.
    """
    if column.type == _WORDS and column.num_chunks:
        words = column.unify_dictionaries().combine_chunks()
        words.dictionary.validate(full=True)  # Not every writer's strings are UTF-8.
        codes = _codes(words)
        if not words.dictionary.null_count and len(_first_rows(codes)) == len(words.dictionary):
            return words
    words = column.cast(pa.string()).combine_chunks().dictionary_encode()
    words.validate(full=True)
    return words


def _codes(words: pa.DictionaryArray) -> NDArray[np.int32]:
    """The code of each row, -1 for null."""
    codes = words.indices if words.indices.null_count == 0 else pc.fill_null(words.indices, -1)
    return np.asarray(codes.to_numpy(), np.int32)


def _first_rows(codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rows in which a code is larger than all before it: the first row of every code, if they are in order."""
    largest = np.maximum.accumulate(codes)
    return np.flatnonzero(np.concatenate([largest[:1] >= 0, largest[1:] > largest[:-1]]))


@final
@dataclass(frozen=True)
class _Rows:
    """The columns of a file; each method checks the rows that it reads."""

    file: str
    columns: dict[str, pa.Array]

    def refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        """Raise an error for the first wrong row."""
        if np.any(wrong):
            row = int(np.argmax(wrong))
            image = self.columns["image"][row].as_py()
            raise DataError(
                f"{self.file} row {row + 1:,} (image {quoted(image)}) {why}; the file was changed or damaged."
            )

    def missing(self, name: str) -> NDArray[np.bool_]:
        column = self.columns[name]
        if column.null_count in (0, len(column)):
            return np.full(len(column), column.null_count > 0)
        found: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
        return found

    def images(self) -> tuple[pa.Array, NDArray[np.int32]]:
        self.refuse(self.missing("image"), "has no image")
        return self.columns["image"].dictionary, self.columns["image"].indices.to_numpy()

    def complete_set(self, index: NDArray[np.int32], first: NDArray[np.int64], sets: int) -> NDArray[np.int16]:
        closed = self.columns["closed"]
        if closed.null_count == len(closed):
            return np.full(len(first), -1, np.int16)
        found = np.asarray(pc.fill_null(closed, -1)).astype(np.int16)
        self.refuse(found != found[first][index], "has a different 'closed' than other rows of the same image")
        outside = (found < -1) | (found >= sets)
        self.refuse(outside, f"has a 'closed' that is not one of the {sets} sets of classes")
        return found[first]

    def split_names(self, index: NDArray[np.int32], first: NDArray[np.int64]) -> pa.Array | None:
        if (missing := self.missing("split")).all():
            return None
        self.refuse(missing, "has no split, but other rows have one")
        split = self.columns["split"].indices.to_numpy()
        self.refuse(split != split[first][index], "is in another split than other rows of the same image")
        return self.columns["split"].take(pa.array(first)).cast(pa.string())

    def facts(self, index: NDArray[np.int32], classes: ClassNames) -> pa.Table:
        silent = self.missing("class")
        state = np.asarray(pc.fill_null(self.columns["state"], Label.UNKNOWN))
        self.refuse(silent & (state != Label.UNKNOWN), "has a state but no class")
        known = (state == Label.NEGATIVE) | (state == Label.POSITIVE)
        self.refuse(~silent & ~known, f"has a state that is neither {Label.NEGATIVE:d} nor {Label.POSITIVE:d}")
        self.refuse(~silent & self.missing("source"), "has a label without a source")
        corners = self.corners()
        words = self.columns["class"]
        named = [*(word in classes for word in words.dictionary.to_pylist()), True]
        self.refuse(~np.array(named)[_codes(words)], "has a class that is not in the file's vocabulary")
        number = np.array([*(classes.index(word) for word in words.dictionary.to_pylist()), 0], np.int32)
        columns = [
            pa.array(index),
            pa.array(number[_codes(words)]),
            pa.array(state),
            *corners,
            self.columns["source"],
        ]
        facts = pa.table(columns, names=FACTS.names)
        return (facts.filter(pa.array(~silent)) if silent.any() else facts).cast(FACTS)

    def corners(self) -> list[pa.Array]:
        columns = [self.columns[corner] for corner in CORNERS]
        if all(column.null_count == len(column) for column in columns):
            return columns[:1] * len(CORNERS)  # one array of nulls for all
        x0, y0, x1, y1 = (column.to_numpy(zero_copy_only=False) for column in columns)
        inside = (x0 >= 0) & (x0 <= x1) & (x1 <= 1) & (y0 >= 0) & (y0 <= y1) & (y1 <= 1)
        none = np.logical_and.reduce([self.missing(corner) for corner in CORNERS])
        self.refuse(~none & ~inside, "has a location that is not 0 <= x0 <= x1 <= 1 and 0 <= y0 <= y1 <= 1")
        return columns


def write_csv(table: LabelTable, path: Path | str, *, implied_negatives: bool = True) -> None:
    """Write a table as CSV, one row per label, atomically.

    Columns: image, class (its id), state ("positive" or "negative"), x0, y0, x1, y1 (fractions of the displayed image,
    empty without a location), source; and split if the table names splits. An image without labels has one row with
    only its name and split. Classes without any label do not occur in the file; `unwritten_classes` lists them.

    `implied_negatives` also writes the implied negatives of completely annotated images, one row each. Without them the
    file contains less than the table.

    Raises:
        DataError: the folder does not exist; too many implied negatives for a CSV.
    """
    implied = int(table.complete_classes.sum(1)[table.complete_set[table.complete_set >= 0]].sum())
    if implied_negatives and implied > _MOST_CSV_ROWS:
        raise DataError(
            f"{implied:,} negatives of completely annotated images are too many for a CSV (at most "
            f"{_MOST_CSV_ROWS:,}); give a name that ends in .parquet, or in Python implied_negatives=False."
        )
    facts = table.facts.take(pa.array(np.argsort(table.facts["image"].to_numpy(), kind="stable")))
    images, step = np.arange(len(table), dtype=np.int32), max(1, _CSV_BLOCK // max(1, len(table.classes)))
    with replacing(Path(path)) as temporary, pyarrow.csv.CSVWriter(temporary, _csv_schema(table)) as writer:
        for i in range(0, len(table), step):
            writer.write_table(_csv_block(table, facts, images[i : i + step], implied_negatives))


def unwritten_classes(table: LabelTable) -> list[str]:
    """Return the ids of the classes without a label, which the CSV of `write_csv` does not name."""
    named = np.any(table.complete_classes[np.unique(table.complete_set[table.complete_set >= 0])], axis=0)
    named[table.facts["class"].to_numpy()] = True
    return [table.classes.ids[c] for c in np.flatnonzero(~named)]


def _csv_block(table: LabelTable, facts: pa.Table, block: NDArray[np.int32], implied: bool) -> pa.Table:
    """CSV rows of consecutive images; `facts` are sorted by image."""
    begin, end = np.searchsorted(facts["image"].to_numpy(), [block[0], block[-1] + 1])
    row, class_ = table.matrix.implied_negatives(block if implied else block[:0])
    both = pa.concat_tables([facts.slice(begin, end - begin), implied_facts(block[row], class_)])
    image, fact = _rows_by_image(both["image"].to_numpy(), block)
    taken = _taken(both, fact)
    columns = {
        **taken,
        "image": table.images.take(pa.array(image)),
        "class": pa.array(table.classes.ids, pa.string()).take(taken["class"]),
        "state": pc.if_else(pc.equal(taken["state"], int(Label.POSITIVE)), "positive", "negative"),
        "source": taken["source"].cast(pa.string()),
    }
    if table.split_names is not None:
        columns["split"] = pc.fill_null(table.split_names, "").take(pa.array(image))
    return pa.table(columns, schema=_csv_schema(table))


def _csv_schema(table: LabelTable) -> pa.Schema:
    unwritten = ("closed",) if table.split_names is not None else ("closed", "split")
    kinds = {name: kind for name, kind in _COLUMNS.items() if name not in unwritten}
    return pa.schema([(name, pa.string() if kind in (_WORDS, pa.int8()) else kind) for name, kind in kinds.items()])


def _rows_by_image(image: NDArray[np.int32], images: NDArray[np.int32]) -> tuple[NDArray[np.int32], pa.Array]:
    """One row per fact and one per image without facts, sorted by image: the image, and the fact number or null."""
    silent = np.ones(len(images), np.bool_)
    silent[image - images[:1]] = False
    index = np.concatenate([image, images[silent]])
    order = np.argsort(index, kind="stable")
    return index[order], pa.array(order, mask=order >= len(image))


def _taken(facts: pa.Table, fact: pa.Array) -> dict[str, pa.Array]:
    """All columns of `facts` except the image, at positions `fact`; null where `fact` is null."""
    facts = facts.unify_dictionaries().combine_chunks()
    return {name: facts[name].combine_chunks().take(fact) for name in ("class", "state", *CORNERS, "source")}
