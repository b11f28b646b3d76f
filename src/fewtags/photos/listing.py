"""The photos in shards and behind URLs: their names, without reading them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from fewtags.errors import DataError
from fewtags.photos.decode import EXTENSIONS
from fewtags.shards import remote
from fewtags.shards.index import index_of, refuse_compressed
from fewtags.shards.photos import shard_problem
from fewtags.shards.places import Url, is_shard
from fewtags.table.table import Excluded
from fewtags.text import counted

_MANY_ROWS = 1000
"""From this number of photos in a row group on, a message says that random order is slow."""


@final
@dataclass
class Listing:
    """Photos below a root, and what is beside them.

    Attributes:
        photos: paths relative to the root, with forward slashes, in the order of the shards.
        others: number of other files of each kind.
        excluded: shards that cannot be used, or not as a whole, and empty photos, with the reason.
        messages: how the shards were read.
    """

    photos: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    excluded: list[Excluded] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def list_shards(root: Path, names: Iterable[str]) -> Listing:
    """List the photos in shards below a root; "" is the root itself. A shard that cannot be used is excluded."""
    out = Listing()
    said: dict[str, list[str]] = {}
    for name in names:
        shard = str(root / name) if name else str(root)
        shown = name or os.path.basename(shard)  # noqa: PTH119
        try:
            refuse_compressed(shard)
            for text in _add(out, shard, f"{name}/" if name else "", str(root)):
                said.setdefault(text, []).append(shown)
        except (DataError, OSError):
            out.excluded.append(Excluded(shown, shard_problem(shard), str(root), "unreadable"))
    for text, where in said.items():
        more = f" and {counted(len(where) - 1, 'other file')}" if len(where) > 1 else ""
        out.messages.append(f"{where[0]}{more}: {text}")
    return out


def _add(out: Listing, shard: str, start: str, where: str) -> Iterator[str]:
    """Add the photos of a shard, and yield messages about it."""
    index = index_of(shard)
    names = [os.fsdecode(name) for name in index.names.to_pylist()]
    sizes, columns = index.sizes.tolist(), index.about["kind"] == "parquet"
    for name, size in zip(names, sizes, strict=True):
        if columns:
            out.photos.append(start + name)
        elif kind := other_kind(name):
            out.others[kind] += 1
        elif size == 0:
            out.excluded.append(Excluded(start + name, "empty file", where, "unreadable"))
        else:
            out.photos.append(start + name)
    out.others.update(index.about.get("others", {}))
    if index.damage:
        shown = start.rstrip("/") or os.path.basename(shard)  # noqa: PTH119
        out.excluded.append(Excluded(shown, shard_problem(shard), where, "unreadable"))
    if repeated := index.about.get("repeated"):
        yield f"{counted(repeated, 'file has', 'files have')} the name of a later one, which counts, as in unpacking"
    if columns:
        named = f"named by {index.about['named']!r}" if index.about["named"] else "named by their number"
        text = f"photos of the column {index.about['column']!r}, {named}"
        if (group := index.about["group"]) > _MANY_ROWS:
            text += f"; row groups have up to {group:,} photos, and each photo in random order reads one of them whole"
        yield text


SYSTEM_FOLDERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"})
"""Folders that macOS, Synology, Windows and Linux add, with copies, thumbnails or deleted files."""


def is_hidden_name(name: str) -> bool:
    """Return whether a file or folder is hidden, or a folder that an operating system adds."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def other_kind(name: str) -> str:
    """Return the kind of a file that is not a photo, or is hidden; "" for a photo.

    >>> other_kind("a/b.jpg"), other_kind("a/b.json"), other_kind("a/.b.jpg"), other_kind("README")
    ('', '*.json', '(hidden)', '(no extension)')
    """
    parts = name.split("/")
    if any(map(is_hidden_name, parts)):
        return "(hidden)"
    stem, dot, last = parts[-1].rpartition(".")
    ending = f".{last.lower()}" if dot and stem else ""
    return "" if ending in EXTENSIONS else f"*{ending}" if ending else "(no extension)"


def list_url(root: Url) -> Listing:
    """List the photos below a URL; without a photo, those in the shards below it.

    Raises:
        DataError: there is nothing, or the server cannot be used.
    """
    if is_shard(str(root)) and not root.is_dir():
        return list_shards(root, [""])
    files, out, shards = remote.files_below(str(root)), Listing(), []
    for name, size in files.items():
        kind = other_kind(name)
        if not kind and size:
            out.photos.append(name)
        elif not kind:
            out.excluded.append(Excluded(name, "empty file", str(root), "unreadable"))
        elif is_shard(name) and kind != "(hidden)":
            shards.append(name)
        else:
            out.others[kind] += 1
    return with_shards(out, root, shards)


def with_shards(found: Listing, root: Path, shards: list[str]) -> Listing:
    """Return the photos in shards if there are no others; a folder with photos may also have an archive of them."""
    if not shards:
        return found
    if found.photos:
        found.others.update(f"*{os.path.splitext(name)[1].lower()}" for name in shards)  # noqa: PTH122
        return found
    inside = list_shards(root, sorted(shards))
    inside.others.update(found.others)
    inside.excluded[:0] = found.excluded
    return inside
