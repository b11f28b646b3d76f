"""Labels in a Parquet file with photos: the columns with a `ClassLabel`, or else all columns beside the photos."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fewtags.errors import DataError
from fewtags.formats.csv_layout import IMAGE_COLUMNS
from fewtags.formats.metadata import Row
from fewtags.formats.options import fold
from fewtags.formats.shard_rows import PHOTO, ShardRows
from fewtags.shards.index import index_of
from fewtags.shards.parquet import NAMES, features_of, photo_column
from fewtags.table.table import Notes
from fewtags.text import setting, some

_BESIDE_CLASSES = ("split", "width", "height")
"""Columns that are read beside those of a `ClassLabel`."""


def read_parquet(shard: Path, start: str, named: Sequence[str] = ()) -> ShardRows:
    """Read a Parquet file with photos; `start` is its path in the folder that is read.

    `named` are columns that the user names: these are read, whatever they are called.
    """
    index = index_of(str(shard))
    photos = [os.fsdecode(name) for name in index.names.to_pylist()]
    try:
        schema = pq.read_schema(shard)
        photo, _ = photo_column(schema, str(shard))
        dropped = {photo.partition(".")[0], *NAMES, *IMAGE_COLUMNS}
        if twice := [name for name, n in Counter(schema.names).items() if n > 1]:
            raise DataError(f"{shard}: has {Counter(schema.names)[twice[0]]} columns {twice[0]!r}; keep one of them.")
        features = features_of(schema)
        classes = {name for name in schema.names if _has_names(features.get(name))} - {*_BESIDE_CLASSES}
        asked = {name for name in schema.names if fold(name) in map(fold, named)} - {photo.partition(".")[0]}
        plain = [name for name in schema.names if not _is_other(schema.field(name).type)]
        columns = [name for name in plain if name not in dropped or name in classes | asked]
        if classes:
            columns = [name for name in columns if name in classes | asked or name in _BESIDE_CLASSES]
        naming = [
            name for name in plain if name in dropped and name not in columns and _is_word(schema.field(name).type)
        ]
        others = pq.read_table(shard, columns=naming)
        table = pq.read_table(shard, columns=columns)
        table.validate(full=True)  # that text is UTF-8
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shard}: cannot be read as a Parquet file ({str(error).splitlines()[0]}).") from None
    values = {name: [*_named(features.get(name), table[name].to_pylist(), name in classes)] for name in columns}
    left = [name for name in schema.names if name not in columns and name != photo.partition(".")[0]]
    messages = (f"{shard.name}: the columns {some(left)} are not read as labels",) if left else ()
    warnings = tuple(f"{shard.name}: {text}" for name in naming if (text := _doubt(name, others[name])))
    rows = []
    for n, name in enumerate(photos):  # photos are in the order of the rows
        record = {PHOTO: start + name, **{column: values[column][n] for column in columns}}
        rows.append(Row(shard, n + 1, "", record))
    return ShardRows(rows, bool(columns), Notes(messages=messages, warnings=warnings), tuple(naming))


def _is_word(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


def _doubt(name: str, values: pa.ChunkedArray) -> str:
    """Return a warning about a column that names photos by its name, but has a value several times; "" if not."""
    text = values if pa.types.is_integer(values.type) else values.cast(pa.binary())  # that may not be UTF-8
    counts = Counter(value for value in text.to_pylist() if value not in (None, b""))
    value, rows = counts.most_common(1)[0] if counts else ("", 1)
    if rows < 2:
        return ""
    shown = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return (
        f"the column {name!r} is not read as labels, and does not name photos: {shown!r} is in {rows:,} rows. If it "
        f"has labels, pass {setting('columns', [name])}"
    )


def _has_names(feature: Any) -> bool:
    """Return whether a `ClassLabel` is somewhere in the description of a column."""
    if isinstance(feature, list):
        return any(map(_has_names, feature))
    if not isinstance(feature, dict):
        return False
    return feature.get("_type") == "ClassLabel" or any(map(_has_names, feature.values()))


def _is_other(kind: pa.DataType) -> bool:
    """Return whether values are bytes or times, or have them inside. Such values are not labels."""
    if pa.types.is_struct(kind):
        return any(_is_other(kind.field(n).type) for n in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_other(kind.value_type)
    other = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_temporal)
    return any(is_kind(kind) for is_kind in other)


def _named(feature: Any, values: Sequence[Any], labels: bool) -> Iterator[Any]:
    for value in values:
        name = _names_in(feature, value)
        single = isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and name is not None
        yield [name] if single and labels else name  # a name in a list is not split at commas


def _names_in(feature: Any, value: Any) -> Any:
    """Return a value with the names of classes in place of their numbers, wherever a `ClassLabel` is inside."""
    if value is None:
        return None
    if isinstance(feature, list) and feature:
        feature = {"feature": feature[0], "_type": "List"}
    if not isinstance(feature, dict):
        return value
    kind, inner = feature.get("_type"), feature.get("feature")
    if kind == "ClassLabel":
        names = feature.get("names")
        if not isinstance(names, list) or not isinstance(value, int):
            return value
        return names[value] if 0 <= value < len(names) else None
    if isinstance(kind, str):
        if isinstance(value, dict) and isinstance(inner, dict):  # a sequence of structs, stored as a struct of lists
            return {key: [_names_in(inner.get(key), one) for one in part or []] for key, part in value.items()}
        return [_names_in(inner, one) for one in value] if isinstance(value, list) else value
    return {key: _names_in(feature.get(key), one) for key, one in value.items()} if isinstance(value, dict) else value
