"""Labels in a tar file: members beside the photos, with WebDataset's names."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fewtags.errors import DataError
from fewtags.formats.csv_layout import IMAGE_COLUMNS
from fewtags.formats.metadata import Row
from fewtags.formats.shard_rows import PHOTO, ShardRows
from fewtags.photos.listing import other_kind
from fewtags.shards.index import index_of
from fewtags.shards.photos import open_bytes
from fewtags.table.table import Notes
from fewtags.text import counted

_MEMBERS = (".json", ".cls", ".tags", ".labels", ".label", ".txt")
"""Endings of members with labels, in WebDataset's names; text counts if a shard has none of the others."""
_DOWNLOADED = (
    *("key", "url", "status", "error_message", "sha256", "md5", "exif", "uid", "license", "nsfw", "watermark"),
    *("pwatermark", "punsafe", "similarity", "aesthetic", "original_width", "original_height"),
)
"""Fields that img2dataset writes about the download of a photo."""


def read_tar(shard: Path, start: str) -> ShardRows:
    """Read a tar file; `start` is its path in the folder that is read."""
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
    return ShardRows(rows, bool(record_of), Notes(messages=tuple(messages)))


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
        return {"text" if ending == ".txt" else "labels": "\n".join(lines) or None}  # a line break ends a tag
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{at}: not JSON ({error}); correct it.") from None
    if isinstance(found, dict):
        left = _DOWNLOADED if found.keys() >= {"key", "status"} else ()
        dropped = {*IMAGE_COLUMNS, *left}
        return {key: value for key, value in found.items() if key not in dropped and not key.startswith("__")}
    return {"labels": found}
