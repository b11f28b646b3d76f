"""All photos below a folder, and what else is there."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from fewtags.errors import DataError
from fewtags.formats.common import is_hidden, is_utf8
from fewtags.formats.locate import extension, is_photo
from fewtags.formats.stated import value_readings
from fewtags.photos.listing import Listing, list_shards, list_url, with_shards
from fewtags.shards.places import Url, is_shard
from fewtags.table.table import Excluded, Notes
from fewtags.text import counted, quoted

_NO_PHOTOS = frozenset(
    f".{ending}"
    for ending in (
        *("txt", "xml", "json", "jsonl", "csv", "tsv", "yaml", "yml", "md", "pdf", "html", "db", "ini", "npy", "npz"),
        *("zip", "log", "py", "parquet", "names", "data", "cache", "doc", "docx", "xls", "xlsx", "mp4", "mov", "avi"),
    )
)
"""Endings of files that are certainly not photos; a file with another ending may be a photo of an unknown kind."""


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """The files below a root.

    Attributes:
        photos: paths of photos, relative to the root, with forward slashes, sorted; in shards, in their order.
        others: number of other files (and hidden folders) of each kind.
        notes: readings of the other files; the excluded list has photos and folders that cannot be used.
        unknown: sorted paths of files with an unknown ending, which may be photos.
        texts: paths of text files, without the ending.
        folders: sorted paths of all folders.
        in_shards: the photos are in shards or behind a URL.
    """

    photos: list[str]
    others: Counter[str]
    notes: Notes
    unknown: list[str] = field(default_factory=list)
    texts: frozenset[str] = frozenset()
    folders: list[str] = field(default_factory=list)
    in_shards: bool = False


def walk(root: Path, *, any_name: bool = False, shards: bool = False) -> Files:
    """Find all photos below a folder. Links are followed, except in circles; hidden files and folders are skipped.

    Names that are not UTF-8 cannot be keys of a table. They are excluded unless `any_name` is true. With `shards`, the
    root may be a shard or a `Url`, and a folder without photos has those of the shards in it, in their order.

    Raises:
        DataError: the path is not a folder.
    """
    if shards and isinstance(root, Url):
        return _listed(list_url(root), root, any_name)
    if shards and is_shard(root.name) and root.is_file():
        return _listed(list_shards(root, [""]), root, any_name)
    if not root.is_dir():
        raise DataError(f"{quoted(str(root))} is not a folder; pass the folder that contains the class folders.")
    photos: list[str] = []
    unknown: list[str] = []
    texts: set[str] = set()
    folders: list[str] = []
    others: Counter[str] = Counter()
    excluded: list[Excluded] = []
    archives: list[str] = []
    # Each folder has the (device, inode) of itself and of all folders above: a link back to one of them is a circle.
    top = root.stat()
    stack = [("", frozenset({(top.st_dev, top.st_ino)}))]
    while stack:
        folder, above = stack.pop()
        for entry in _listing(root, folder, excluded):
            name = entry.name
            key = f"{folder}/{name}" if folder else name
            if is_hidden(name):
                others["(hidden)"] += 1
            elif not any_name and not is_utf8(name):
                excluded.append(Excluded(ascii(key), "the name is not valid UTF-8; rename it", str(root), "unreadable"))
            elif (status := _status(entry, key, root, excluded)) is None:
                continue
            elif stat.S_ISDIR(status.st_mode):
                if (identity := (status.st_dev, status.st_ino)) in above:
                    excluded.append(Excluded(key, "a link to a folder that contains it", str(root)))
                else:
                    stack.append((key, above | {identity}))
                    folders.append(key)
            elif not is_photo(name):
                if shards and is_shard(name):
                    archives.append(key)
                    continue
                if extension(name) == ".txt":
                    texts.add(key.rpartition(".")[0])
                elif extension(name) and extension(name) not in _NO_PHOTOS:
                    unknown.append(key)
                others[f"*{extension(name)}" if extension(name) else "(no extension)"] += 1
            elif status.st_size == 0:
                excluded.append(Excluded(key, "empty file", str(root), "unreadable"))
            else:
                photos.append(key)
    if archives:
        found = with_shards(Listing(photos, others, excluded), root, archives)
        if not photos:
            return _listed(found, root, any_name)
    left_out = tuple(sorted(excluded, key=lambda e: e.item))
    readings = value_readings(str(root), ((kind, _meaning(kind), n) for kind, n in sorted(others.items())))
    left = counted(len(excluded), "file or folder", "files or folders")
    messages = (f"{left} left out, see the excluded list",) if excluded else ()
    return Files(
        photos=sorted(photos),
        others=others,
        notes=Notes(readings, left_out, messages),
        unknown=sorted(unknown),
        texts=frozenset(texts),
        folders=sorted(folders),
    )


def _listed(found: Listing, root: Path, any_name: bool) -> Files:
    """Return the files of a listing of shards."""
    names = found.photos if any_name else [name for name in found.photos if is_utf8(name)]
    kept, excluded = {*names}, [*found.excluded]
    if len(names) < len(found.photos):
        reason = "the name is not valid UTF-8; rename it"
        excluded += [
            Excluded(ascii(name), reason, str(root), "unreadable") for name in found.photos if name not in kept
        ]
    kinds = sorted(found.others.items())
    readings = value_readings(str(root), ((kind, "ignored, not a photo", n) for kind, n in kinds))
    notes = Notes(readings, tuple(excluded), tuple(found.messages))
    return Files(photos=names, others=found.others, notes=notes, in_shards=True)


def _meaning(kind: str) -> str:
    known = not kind.startswith("*") or kind[1:] in _NO_PHOTOS
    return "ignored, not a photo" if known else "ignored, an unknown ending"


def _listing(root: Path, folder: str, excluded: list[Excluded]) -> list[os.DirEntry[str]]:
    """Return all entries of a folder."""
    try:
        with os.scandir(root / folder) as entries:
            return [*entries]
    except OSError as error:
        excluded.append(Excluded(folder, f"folder cannot be read: {error.strerror}", str(root), "unreadable"))
        return []


def _status(entry: os.DirEntry[str], key: str, root: Path, excluded: list[Excluded]) -> os.stat_result | None:
    try:
        return os.stat(entry.path)  # noqa: PTH116  # on Windows, entry.stat() has no identity
    except OSError as error:
        excluded.append(Excluded(key, f"cannot be read: {error.strerror}", str(root), "unreadable"))
    return None
