"""Labels in shards: members of WebDataset's tar files beside the photos, and columns of Parquet files with photos."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fewtags.errors import DataError
from fewtags.formats.common import is_split
from fewtags.formats.csv_layout import TAG_NAMES
from fewtags.formats.locate import PHOTO_FOLDERS
from fewtags.formats.metadata import Row, read_rows
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.shard_parquet import read_parquet
from fewtags.formats.shard_rows import PHOTO, ShardRows, with_splits, with_unknown
from fewtags.formats.shard_tar import read_tar
from fewtags.formats.texts import are_captions
from fewtags.photos.listing import is_hidden_name, other_kind
from fewtags.shards.parquet import holds_photos
from fewtags.shards.places import is_shard
from fewtags.table.table import LabelTable, Notes
from fewtags.text import setting, some

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
    wanted = options.columns or ()
    parts = [_read(path / name if name else path, f"{name}/" if name else "", wanted) for name in names]
    rows = [row for part in parts for row in part.rows]
    if broken := next((row for row in rows if not _is_text(str(row.record[PHOTO]))), None):
        name = ascii(str(broken.record[PHOTO]))
        raise DataError(f"{broken.file}: the name {name} of a photo is not valid UTF-8; rename it.")
    notes = sum((part.notes for part in parts), Notes())
    if options.columns is None:
        _refuse_apart(path, parts)
    if not rows:
        raise DataError(f"{path}: has no photos.")
    if not any(part.labelled for part in parts):
        rows = [*_of_folders(path, rows, list(dict.fromkeys(name for part in parts for name in part.left)))]
    rows = [*with_splits([*with_unknown(rows)])]
    if all(set(row.record) <= {PHOTO, "split"} for row in rows):
        raise DataError(f"{path}: no photo has labels beside it; {_CURE}.")
    named = options.model_copy(update={"image_column": PHOTO})
    table = read_rows(path, rows, PHOTO, images or path, named, null_is_unknown=True)
    return replace(table, notes=notes + table.notes)


def _is_text(name: str) -> bool:
    """Return whether a name has only characters; bytes that are not UTF-8 are half a character each."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _read(shard: Path, start: str, wanted: Sequence[str]) -> ShardRows:
    return read_parquet(shard, start, wanted) if shard.suffix.lower() == ".parquet" else read_tar(shard, start)


def _refuse_apart(path: Path, parts: Sequence[ShardRows]) -> None:
    """Raise DataError if shards have their labels in different fields, so that those of some would not be read."""
    found = [(row.at, fields) for part in parts for row, fields in _label_fields(part)]
    other = next((one for one in found[1:] if not one[1] & found[0][1]), None)
    if other is not None:
        (first, fields), (second, others) = found[0], other
        raise DataError(
            f"{path}: the labels of {first} are in {some(sorted(fields))}, and those of {second} in "
            f"{some(sorted(others))}. Write them in the same way, or read the shards one by one; if some are not "
            f"labels, name the others: {setting('columns', sorted(fields))}."
        )


def _label_fields(part: ShardRows) -> Iterator[tuple[Row, set[str]]]:
    """Yield the first row of a shard with labels, and the fields of the shard with the names of labels."""
    texts = [value.splitlines() for row in part.rows if isinstance(value := row.record.get("text"), str)]
    names = TAG_NAMES if are_captions(texts) else TAG_NAMES | {"text"}
    filled = [
        (row, {name for name, value in row.record.items() if fold(name) in names and value not in (None, "", [])})
        for row in part.rows
    ]
    if fields := set[str]().union(*(fields for _, fields in filled)):
        yield next(row for row, fields in filled if fields), fields


def _of_folders(path: Path, rows: Sequence[Row], left: list[str]) -> Iterator[Row]:
    """Yield the rows with the folder of their photo as the class, if the folders look like classes.

    `left` are the columns that were not read, because their names are those of columns that name photos.
    """
    folders = [Path(str(row.record[PHOTO])).parent.name for row in rows]
    names = {name for name in folders if name and not is_shard(name)}
    general = {name for name in names if name.lower() in PHOTO_FOLDERS or is_split(name)}
    if len(names) < 2 or general or any(not name or is_shard(name) for name in folders):
        text = f"{path}: no photo has labels beside it, and folders do not name classes"
        if not left:
            raise DataError(f"{text}; {_CURE}.")
        raise DataError(
            f"{text}. The columns {some(left)} are not read, since they usually name photos; if they have labels, pass "
            f"{setting('columns', left)}; or {_CURE}."
        )
    for row, name in zip(rows, folders, strict=True):
        yield replace(row, record={**row.record, "label": [name]})
