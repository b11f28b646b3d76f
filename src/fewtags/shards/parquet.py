"""Photos in the rows of Parquet files: a column of struct{bytes, path} as Hugging Face writes it, or of binary."""

from __future__ import annotations

import json
import os
import posixpath
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.shards import remote
from fewtags.shards.index import Index, make_index
from fewtags.shards.places import is_url

USUAL = ("image", "img", "photo", "picture", "jpg", "jpeg", "png", "bytes")
"""Names of columns of photos; the first of them counts if there are several columns of bytes."""
NAMES = (
    *("path", "image_path", "file_name", "filename", "file", "key", "__key__"),
    *("id", "image_id", "photo_id", "name", "url", "uid"),
)
"""Names of columns that name photos, in the order in which they are tried."""
_MOST_FILES, _MOST_GROUPS = 8, 4


def index_parquet(file: BinaryIO, shown: str, signature: str) -> Index:
    """Name the rows of a Parquet file by the path of their photo, or by the first column of `NAMES`.

    A column names the rows if all its values are filled and distinct; else they are `row-0`, `row-1`, ...

    Raises:
        DataError: it is not a Parquet file, or has no column of photos, or several.
    """
    try:
        parquet = pq.ParquetFile(file)
        leaf, named = photo_column(parquet.schema_arrow, shown)
        names, why = _row_names(parquet, named)
        largest = max((parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups)), default=0)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shown}: cannot be read as a Parquet file ({_line(error)}); copy it again.") from error
    rows = range(len(names))
    about = {"kind": "parquet", "column": leaf, "named": why, "group": largest}
    return make_index(names, rows, [-1] * len(names), signature=signature, about=about)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def photo_column(schema: pa.Schema, shown: str) -> tuple[str, str | None]:
    """Return the column of bytes of a schema, and that of paths beside it (None: there is none).

    Raises:
        DataError: there is no column of photos, or there are several.
    """
    found: dict[str, tuple[str, str | None]] = {}
    for column in schema:
        kind = column.type
        if pa.types.is_struct(kind):
            inside = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)}
            if "bytes" in inside and _is_bytes(inside["bytes"]):
                path = f"{column.name}.path" if "path" in inside and _is_text(inside["path"]) else None
                found[column.name] = (f"{column.name}.bytes", path)
        elif _is_bytes(kind):
            found[column.name] = (column.name, None)
    declared = [name for name in _declared_images(schema) if name in found]
    candidates = declared or list(found)
    chosen = candidates if len(candidates) < 2 else [name for name in USUAL if name in candidates][:1]
    if not found:
        raise DataError(
            f"{shown}: has no column of photos, only {', '.join(schema.names) or 'no column'}; expected a column of "
            "bytes, or of struct{bytes, path} as Hugging Face writes it."
        )
    if not chosen:
        raise DataError(
            f"{shown}: has several columns of bytes, {', '.join(candidates)}; name the one with the photos 'image'."
        )
    return found[chosen[0]]


def holds_photos(file: Path) -> bool:
    """Return whether a Parquet file has a column of photos."""
    try:
        photo_column(pq.read_schema(file), file.name)
    except (DataError, pa.ArrowException, OSError, UnicodeDecodeError):
        return False
    return True


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """Return Hugging Face's description of the columns; an empty one if there is none."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (LookupError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _declared_images(schema: pa.Schema) -> list[str]:
    """Return the columns that Hugging Face's metadata calls images."""
    kinds = features_of(schema)
    return [name for name, kind in kinds.items() if isinstance(kind, dict) and kind.get("_type") == "Image"]


def _row_names(parquet: pq.ParquetFile, named: str | None) -> tuple[list[bytes], str]:
    """Return a name for each row, and the column that they come from ("": none)."""
    schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    kinds = {column.name: column.type for column in schema}
    columns = [name for name in NAMES if name in kinds and (_is_text(kinds[name]) or pa.types.is_integer(kinds[name]))]
    for column in ([named] if named else []) + columns:
        values = parquet.read(columns=[column]).column(0)
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, "path")
        texts = values.cast(pa.string()).cast(pa.binary()).to_pylist()  # pyarrow does not check that text is UTF-8
        names = [name for text in texts if (name := _name(text))]
        if len(names) == rows and len({*names}) == rows:
            return names, column
    return [b"row-%d" % n for n in range(rows)], ""


def _name(value: bytes | None) -> bytes:
    return posixpath.normpath(b"/" + (value or b"").replace(b"\\", b"/")).lstrip(b"/")


@final
@dataclass
class _Opened:
    """An open Parquet file; one thread reads it at a time.

    Attributes:
        file: the file.
        begins: int64 [groups + 1], rows at which row groups begin, and the number of rows.
        groups: photos of the row groups that were read last.
    """

    file: pq.ParquetFile
    begins: NDArray[np.int64]
    lock: Lock = field(default_factory=Lock)
    groups: OrderedDict[int, pa.ChunkedArray] = field(default_factory=OrderedDict)


_OPENED: dict[int, OrderedDict[tuple[str, str], _Opened]] = {}
_LOCKS: dict[int, Lock] = {}


def read_row(shard: str, index: Index, row: int) -> bytes | None:
    """Return the bytes of a photo; None if the row has none. The row group of the photo is read as a whole and kept."""
    key, process = (shard, index.signature), os.getpid()
    opened = _OPENED.setdefault(process, OrderedDict())
    with _LOCKS.setdefault(process, Lock()):  # one per process: a fork may copy a held lock
        if key not in opened:
            opened[key] = _open(shard)
        opened.move_to_end(key)
        while len(opened) > _MOST_FILES:
            opened.popitem(last=False)
        file = opened[key]
    group = int(np.searchsorted(file.begins, row, "right")) - 1
    with file.lock:
        if group not in file.groups:
            file.groups[group] = _read_group(shard, file.file, group, index.about["column"])
        file.groups.move_to_end(group)
        while len(file.groups) > _MOST_GROUPS:
            file.groups.popitem(last=False)
        found: bytes | None = file.groups[group][row - int(file.begins[group])].as_py()
    return found


def _open(shard: str) -> _Opened:
    with remote.asking(shard):
        file = pq.ParquetFile(remote.open_in_parts(shard) if is_url(shard) else Path(shard))
    sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    return _Opened(file, np.cumsum([0, *sizes]))


def _read_group(shard: str, file: pq.ParquetFile, group: int, leaf: str) -> pa.ChunkedArray:
    try:
        with remote.asking(shard):
            column = file.read_row_group(group, columns=[leaf]).column(0)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{shard}: row group {group:,} cannot be read ({_line(error)}); copy the file again."
        ) from error
    return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
