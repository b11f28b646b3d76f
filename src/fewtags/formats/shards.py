"""Labels in shards: members of WebDataset's tar files beside the photos, and columns of Parquet files with photos."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from fewtags.errors import DataError
from fewtags.formats.common import is_split
from fewtags.formats.csv_layout import IMAGE_COLUMNS
from fewtags.formats.locate import PHOTO_FOLDERS
from fewtags.formats.metadata import Row, read_rows
from fewtags.formats.options import ReadOptions
from fewtags.photos.listing import is_hidden_name, other_kind
from fewtags.shards.index import index_of
from fewtags.shards.parquet import NAMES, features_of, holds_photos, photo_column
from fewtags.shards.photos import open_bytes
from fewtags.shards.places import is_shard
from fewtags.table.table import LabelTable, Notes
from fewtags.text import counted, some

PHOTO = "photo in the shard"
"""Name of the column of photos in messages."""
_MEMBERS = (".json", ".cls", ".tags", ".labels", ".label", ".txt")
"""Endings of members with labels, in WebDataset's names; text counts if a shard has none of the others."""
_DOWNLOADED = (
    *("key", "url", "status", "error_message", "sha256", "md5", "exif", "uid", "license", "nsfw", "watermark"),
    *("pwatermark", "punsafe", "similarity", "aesthetic", "original_width", "original_height"),
)
"""Fields that img2dataset writes about the download of a photo."""
_CURE = "write the labels into a CSV of photo names and pass it, with --images for the shards"
_LABEL_FILES = (".csv", ".tsv", ".jsonl", ".xml", ".yaml", ".yml")


def recognise(path: Path) -> str:
    """Return why a path is a shard with photos, or a folder of such shards and without photos and label files."""
    if not path.is_dir():
        return _holds_photos(path)
    shards = _below(path)
    return f"{shards[0]}: {_holds_photos(path / shards[0])}" if shards else ""


def _holds_photos(file: Path) -> str:
    if file.suffix.lower() == ".tar":
        return "its ending is that of a tar file of photos"
    return "it has a column of photos" if file.suffix.lower() == ".parquet" and holds_photos(file) else ""


def _below(folder: Path) -> list[str]:
    """Return the shards with photos below a folder, relative to it; none if there are photos or label files beside.

    Parquet files without photos are left out: img2dataset writes one with the addresses beside each tar file.
    """
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden_name(name))
        for name in sorted(files):
            if is_hidden_name(name):
                continue
            if not other_kind(name) or name.lower().endswith(_LABEL_FILES):
                return []
            if is_shard(name) and _holds_photos(Path(place) / name):
                found.append((Path(place) / name).relative_to(folder).as_posix())
    return found


def read_shards(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a tar or Parquet file with photos, or a folder of them (not behind a URL).

    - **tar**: the labels of the photo `x.jpg` are in `x.cls` (one class), `x.tags`, `x.labels` or `x.label` (one class
      or more in text); in a shard without these in `x.json`, the fields of an object; without it in `x.txt`. Without
      any such member, the folders in the tar files are the classes.
    - **Parquet**: the columns with Hugging Face's `ClassLabel`, whose numbers get their names, also in lists and boxes
      (`objects`), or else all beside the photos.
    - From there on, labels are read as those of a `metadata.jsonl`, see `read_metadata`. Nothing is known about a photo
      without a member, or whose labels are -1 or null.
    - The split is a column or field `split`, or else what the first folder in a tar file, or the name of the shard or
      of its folder says (`train-00000-of-00002.parquet`).

    Raises:
        DataError: a shard is damaged, has no labels, or none that are clear; or photos are missing.
    """
    options = options or ReadOptions()
    names = _below(path) if path.is_dir() else [""]
    if not names:
        raise DataError(f"{path}: has no .tar or .parquet file, or photos or label files beside them.")
    parts = [_read(path / name if name else path, f"{name}/" if name else "") for name in names]
    rows = [row for part in parts for row in part.rows]
    if broken := next((row for row in rows if not _is_text(str(row.record[PHOTO]))), None):
        name = ascii(str(broken.record[PHOTO]))
        raise DataError(f"{broken.file}: the name {name} of a photo is not valid UTF-8; rename it.")
    notes = sum((part.notes for part in parts), Notes())
    if not rows:
        raise DataError(f"{path}: has no photos.")
    if not any(part.labelled for part in parts):
        rows = [*_of_folders(path, rows)]
    rows = [*_with_splits([*_with_unknown(rows)])]
    if all(set(row.record) <= {PHOTO, "split"} for row in rows):
        raise DataError(f"{path}: no photo has labels beside it; {_CURE}.")
    named = options.model_copy(update={"image_column": PHOTO})
    table = read_rows(path, rows, PHOTO, images or path, named, null_is_unknown=True)
    return replace(table, notes=notes + table.notes)


def _is_text(name: str) -> bool:
    """Return whether a name has only characters; bytes that are not UTF-8 are half a character each."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


@final
@dataclass
class _Part:
    """The photos of a shard.

    Attributes:
        rows: a row for each photo.
        labelled: some have labels beside them.
        notes: about members and columns that are not read.
    """

    rows: list[Row]
    labelled: bool
    notes: Notes = field(default_factory=Notes)


def _read(shard: Path, start: str) -> _Part:
    return _read_parquet(shard, start) if shard.suffix.lower() == ".parquet" else _read_tar(shard, start)


# --- tar


def _read_tar(shard: Path, start: str) -> _Part:
    index = index_of(str(shard))
    if index.damage:
        raise DataError(f"{shard}: is damaged: {index.damage}; copy it again.")
    names = [os.fsdecode(name) for name in index.names.to_pylist()]
    photos = [name for name in names if not other_kind(name)]
    beside: dict[str, list[str]] = defaultdict(list)
    for name in names:
        kind = other_kind(name)
        if kind.startswith("*") and kind[1:] in _MEMBERS:
            beside[kind[1:]].append(name)
    used, messages = _chosen(shard, beside)
    record_of: dict[str, dict[str, Any]] = defaultdict(dict)
    place_of: dict[str, dict[str, str]] = defaultdict(dict)
    lone = 0
    photos_of = _by_stem(photos, used)
    for name in used:
        found = photos_of(name)
        lone += not found
        record = _record(shard, name) if found else {}
        for photo in found:
            for key, value in record.items():
                if value is not None and record_of[photo].get(key) is not None:
                    both = f"{place_of[photo][key]} and {name}"
                    raise DataError(f"{shard}: {both} both have the field {key!r} of {photo}; keep one of them.")
                if value is not None or key not in record_of[photo]:
                    record_of[photo][key], place_of[photo][key] = value, name
    if lone:
        messages.append(f"{shard.name}: {counted(lone, 'member')} with labels, but without a photo of that name")
    rows = []
    for n, photo in enumerate(photos, 1):
        shown = f"{shard}/{next(iter(place_of[photo].values()), photo)}"
        record = {PHOTO: start + photo, **record_of.get(photo, {})}
        rows.append(Row(shard, n, "", record, shown))
    return _Part(rows, bool(record_of), Notes(messages=tuple(messages)))


def _chosen(shard: Path, beside: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """Return the members that are read as labels, and messages about the others: text and objects beside classes."""
    texts, objects = beside.pop(".txt", []), beside.pop(".json", [])
    classes = [name for members in beside.values() for name in members]
    used, left = (classes, {"json": objects, "txt": texts}) if classes else (objects or texts, {})
    if objects and not classes:
        left = {"txt": texts}
    messages = [
        f"{shard.name}: {counted(len(names), 'member')} *.{ending} beside other labels are not read"
        for ending, names in left.items()
        if names
    ]
    return used, messages


def _by_stem(photos: Sequence[str], members: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function from the name of a member to its photos: of the same name, apart from the ending.

    If no member has the name of a photo, they are those of the same WebDataset key.
    """
    whole: dict[str, list[str]] = defaultdict(list)
    keys: dict[str, list[str]] = defaultdict(list)
    for photo in photos:
        whole[os.path.splitext(photo)[0]].append(photo)  # noqa: PTH122
        keys[_key(photo)].append(photo)

    if any(os.path.splitext(name)[0] in whole for name in members):  # noqa: PTH122
        return lambda name: whole.get(os.path.splitext(name)[0], [])  # noqa: PTH122
    return lambda name: keys.get(_key(name), [])


def _key(name: str) -> str:
    """Return WebDataset's key: the path up to the first dot of its last part."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.split(".")[0]


def _record(shard: Path, name: str) -> dict[str, Any]:
    """Return the labels of a member by field."""
    at = f"{shard}/{name}"
    with open_bytes(at) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{at}: is not UTF-8 ({error.reason}); expected text.") from None
    ending = os.path.splitext(name)[1].lower()  # noqa: PTH122
    if ending != ".json":
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if ending == ".cls":  # one class, whatever its name is
            return {"labels": lines or None}
        return {"text" if ending == ".txt" else "labels": lines if len(lines) > 1 else lines[0] if lines else None}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{at}: not JSON ({error}); correct it.") from None
    if isinstance(found, dict):
        left = _DOWNLOADED if found.keys() >= {"key", "status"} else ()
        dropped = {*IMAGE_COLUMNS, *left}
        return {key: value for key, value in found.items() if key not in dropped and not key.startswith("__")}
    return {"labels": found}


def _of_folders(path: Path, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows with the folder of their photo as the class, if the folders look like classes."""
    folders = [Path(str(row.record[PHOTO])).parent.name for row in rows]
    names = {name for name in folders if name and not is_shard(name)}
    general = {name for name in names if name.lower() in PHOTO_FOLDERS or is_split(name)}
    if len(names) < 2 or general or any(not name or is_shard(name) for name in folders):
        raise DataError(f"{path}: no photo has labels beside it, and folders do not name classes; {_CURE}.")
    for row, name in zip(rows, folders, strict=True):
        yield replace(row, record={**row.record, "label": [name]})


# --- Parquet


def _read_parquet(shard: Path, start: str) -> _Part:
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
        wanted = [name for name in schema.names if name not in dropped or name in classes]
        columns = [name for name in wanted if not _is_other(schema.field(name).type)]
        if classes:
            columns = [name for name in columns if name in classes or name in _BESIDE_CLASSES]
        table = pq.read_table(shard, columns=columns)
        table.validate(full=True)  # that text is UTF-8
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shard}: cannot be read as a Parquet file ({str(error).splitlines()[0]}).") from None
    values = {name: [*_named(features.get(name), table[name].to_pylist(), name in classes)] for name in columns}
    left = [name for name in schema.names if name not in columns and name != photo.partition(".")[0]]
    messages = (f"{shard.name}: the columns {some(left)} are not read as labels",) if left else ()
    rows = []
    for n, name in enumerate(photos):  # photos are in the order of the rows
        record = {PHOTO: start + name, **{column: values[column][n] for column in columns}}
        rows.append(Row(shard, n + 1, "", record))
    return _Part(rows, bool(columns), notes=Notes(messages=messages))


_BESIDE_CLASSES = ("split", "width", "height")
"""Columns that are read beside those of a `ClassLabel`."""


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


# --- photos without labels, and splits


def _with_unknown(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows; those without labels get a null for each field, since nothing is known about them."""
    fields = dict.fromkeys(key for row in rows for key in row.record if key != PHOTO)
    for row in rows:
        yield row if len(row.record) > 1 else replace(row, record={**row.record, **fields})


def _with_splits(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows with the split that the name of their shard says, unless some row has one of its own."""
    if any(row.record.get("split") for row in rows):
        yield from rows
        return
    split_of = {file: _split_of(file) for file in {row.file for row in rows}}
    inside = [is_split(_inside(row).partition("/")[0]) if "/" in _inside(row) else "" for row in rows]
    splits = inside if all(inside) else [split_of[row.file] for row in rows]
    counts = Counter(splits)
    for row, split in zip(rows, splits, strict=True):
        yield replace(row, record={**row.record, "split": split}) if len(counts) > 1 or split else row


def _split_of(shard: Path) -> str:
    """Return the split of a name such as `train-00000-of-00002.parquet`, or of the folder of the shard; "" for none."""
    stem = re.sub(r"(-\d+-of-\d+.*|[-_.]?\d+)$", "", shard.stem)
    last = re.split(r"[-_.]", stem)[-1]  # of imagenet1k-train-000.tar
    return is_split(stem) or is_split(last) or is_split(shard.parent.name)


def _inside(row: Row) -> str:
    """Return the name of a photo in its shard."""
    name = str(row.record[PHOTO])
    return name.partition(f"{row.file.name}/")[2] or name
