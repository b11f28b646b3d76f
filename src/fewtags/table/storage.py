"""Write label tables as a Parquet file, which can be loaded again, or as a CSV for people and other tools.

The Parquet file has one row per fact, and one row with an empty class for each image without facts. Its columns are
`image, class, state, x0, y0, x1, y1, source, split, closed`; `closed` is the `complete_set` of a `LabelTable`. Images
are in the order of the table. The key "fewtags" of the metadata contains, as JSON, the format number, the vocabulary
and the complete classes ("covers").
"""

from __future__ import annotations

import json
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
from fewtags.table.coded import WORDS
from fewtags.table.rows import COLUMNS, Rows, read_columns
from fewtags.table.table import CORNERS, LabelTable, Notes, implied_facts
from fewtags.text import quoted, some

FORMAT = 1
"""Number of the file format; increased if an older fewtags could misread a file."""

_KEY = b"fewtags"
_ROW_GROUP = 1 << 20
_LARGEST_DICTIONARY = 1 << 28
"""Bytes of the distinct words of a column in a row group; beyond it Parquet writes the word of every row."""
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
        "split": pa.nulls(len(index), WORDS) if names is None else names.take(pa.array(index)),
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
    schema = pa.schema(list(COLUMNS.items()), metadata={_KEY: header.model_dump_json().encode()})
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
            header = _read_header(file.schema_arrow.metadata or {}, path.name)
            columns = read_columns(file, path)
    except FileNotFoundError as error:
        raise DataError(f"there is no file {quoted(str(path))}.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} cannot be read as a Parquet file: {error}") from error
    if len({len(column) for column in columns.values()}) > 1:
        raise DataError(f"{path.name}: its columns have different numbers of rows; the file is damaged.")
    classes = ClassNames.of(header.ids, header.names)
    rows = Rows(path.name, columns)
    complete_classes = np.zeros((len(header.covers), len(classes)), np.bool_)
    for row, numbers in zip(complete_classes, header.covers, strict=True):
        if numbers and max(numbers) >= len(classes):
            known = f"but there are {len(classes):,} classes"
            raise DataError(f"{path.name}: 'covers' in its metadata has class number {max(numbers)}, {known}.")
        row[numbers] = True
    stored = header.root if root is None else root
    return LabelTable(
        images=rows.images,
        classes=classes,
        facts=rows.facts(classes),
        complete_set=rows.complete_set(len(header.covers)),
        complete_classes=complete_classes,
        root=None if stored is None else place(stored),
        split_names=rows.split_names(),
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
    kinds = {name: kind for name, kind in COLUMNS.items() if name not in unwritten}
    return pa.schema([(name, pa.string() if kind in (WORDS, pa.int8()) else kind) for name, kind in kinds.items()])


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
