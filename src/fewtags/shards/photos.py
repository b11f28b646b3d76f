"""The photo store: the bytes, size and time of a photo, whether it is a file, in a shard, or behind a URL.

A local file costs what `os.stat` and `open` cost: only a path at which there is no file is looked for in shards.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fewtags.errors import DataError
from fewtags.shards import remote
from fewtags.shards.index import Index, index_of, refuse_compressed, signature_of
from fewtags.shards.parquet import read_row
from fewtags.shards.places import is_shard, is_url, splits


class Status(NamedTuple):
    """What tells whether a photo has changed.

    Attributes:
        size: in bytes; -1 if it is not known without reading the photo.
        changed: time of the last change in nanoseconds, or another number that changes; of a photo in a shard, that of
            the shard.
        entry: the same of its entry in the folder.
        is_file: it can be read: not a folder, a pipe or a device.
        is_folder: it is a folder.
    """

    size: int
    changed: int
    entry: int
    is_file: bool
    is_folder: bool


class _Member(NamedTuple):
    shard: str
    listed: Index
    n: int


def photo_status(path: Path | str) -> Status:
    """Return the status of a photo.

    Raises:
        OSError: there is no such photo, or it cannot be looked at.
        ValueError: the text is not a path, for example because of a null character.
        DataError: its shard or server cannot be used.
    """
    try:
        found = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return _status_elsewhere(os.fspath(path))
    kind = found.st_mode
    return Status(found.st_size, found.st_mtime_ns, found.st_ctime_ns, stat.S_ISREG(kind), stat.S_ISDIR(kind))


def _status_elsewhere(path: str) -> Status:
    if member := _member(path):
        size = int(member.listed.sizes[member.n])
        if not is_url(member.shard):
            found = os.stat(member.shard)  # noqa: PTH116
            return Status(size, found.st_mtime_ns, found.st_ctime_ns, True, False)
        mark = member.listed.signature
    elif is_url(path):
        size, mark = signature_of(path)
    else:
        raise FileNotFoundError(path)
    number = int.from_bytes(blake2b(mark.encode(), digest_size=7).digest(), "big")
    return Status(size, number, number, True, False)


def remote_mark(path: Path | str) -> bytes | None:
    """Return bytes that change with a photo behind a URL, without reading it; None for a local photo.

    Raises:
        OSError: there is no such photo.
        DataError: its shard or server cannot be used.
    """
    text = os.fspath(path)
    if not is_url(text):
        return None
    if member := _member(text):
        return f"{member.listed.signature} {member.listed.starts[member.n]} {member.listed.sizes[member.n]}".encode()
    return signature_of(text)[1].encode()


def photo_exists(path: Path | str) -> bool:
    """Return whether there is something at a path; a shard or server that cannot be used counts as there."""
    try:
        photo_status(path)
    except DataError:
        return True
    except (OSError, ValueError):  # a name that no file can have
        return False
    return True


def open_bytes(path: Path | str) -> BinaryIO:
    """Open a photo to read its bytes. Photos that are not local files are in memory then.

    Raises:
        OSError: there is no such photo, or it cannot be opened.
        DataError: its shard or server cannot be used, or its shard ends within it.
    """
    try:
        return open(path, "rb")  # noqa: PTH123
    except (FileNotFoundError, NotADirectoryError):
        return BytesIO(_read_elsewhere(os.fspath(path)))


def _read_elsewhere(path: str) -> bytes:
    member = _member(path)
    if member is None:
        if not is_url(path):
            raise FileNotFoundError(path)
        if is_shard(path):
            raise DataError(f"{path}: {shard_problem(path)}.")
        return remote.read_whole(path)
    start, size = int(member.listed.starts[member.n]), int(member.listed.sizes[member.n])
    if size < 0:
        content = read_row(member.shard, member.listed, start)
        if content is None:
            raise DataError(f"{path}: its row has no bytes; write the photo into the Parquet file, or remove the row.")
        return content
    if is_url(member.shard):
        content = remote.read_range(member.shard, start, start + size)
    else:
        with open(member.shard, "rb", buffering=0) as file:  # noqa: PTH123
            file.seek(start)
            content = file.read(size)
    if len(content) < size:
        where = "its shard ends within it" if content else "its shard ends before it"
        raise DataError(f"{path}: {where} ({len(content):,} of {size:,} bytes); copy {member.shard} again.")
    return content


def shard_problem(shard: Path | str) -> str:
    """Return why a shard is not a photo, in words: what is damaged in it, or that it has many."""
    text = os.fspath(shard)
    try:
        refuse_compressed(text)
        found = index_of(text)
    except DataError as error:
        return str(error).removeprefix(f"{text}: ").rstrip(".")
    except OSError as error:
        return f"cannot be opened ({error.strerror or error})"
    if found.damage:
        return f"the shard is damaged: {found.damage}; the {len(found):,} files before that are read, copy it again"
    return "is a shard, not a photo; name a photo in it"


def _member(path: str) -> _Member | None:
    """Return where a photo in a shard is; None if the path has no shard that exists, or the shard has no such photo."""
    for shard, name in splits(path):
        if not is_url(shard) and not os.path.isfile(shard):  # noqa: PTH113
            continue
        refuse_compressed(shard)
        try:
            index = index_of(shard)
        except FileNotFoundError:
            continue
        n = index.find(name)
        return None if n < 0 else _Member(shard, index, n)
    return None
