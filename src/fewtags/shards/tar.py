"""The files in a tar file, and where their bytes are. Data are not read."""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections import Counter
from io import SEEK_END
from typing import BinaryIO

from fewtags.errors import DataError
from fewtags.shards.index import Index, make_index
from fewtags.text import quoted

_PACKED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"\x04\x22\x4d\x18", "lz4", "unlz4"),
    (b"PK\x03\x04", "zip", "unzip"),
)

_DAMAGE = (tarfile.TarError, ValueError, OverflowError, LookupError)
"""Exceptions of `tarfile` for damaged headers."""


def index_tar(file: BinaryIO, shown: str, signature: str) -> Index:
    """Read the headers of a tar file.

    - Of files with the same name, the last one counts, as when the tar file is unpacked.
    - A hard link is the file that it names. Symbolic links and sparse files are not read.
    - `./` and `/` at the beginning of a name, and `..` in it, are removed: names stay below the tar file.
    - A file that is cut or damaged has the photos before the damage; `Index.damage` says where it is.

    Raises:
        DataError: the file is compressed, or not a tar file.
    """
    head = file.read(512)
    for magic, kind, cure in _PACKED:
        if head.startswith(magic):
            raise DataError(
                f"{shown}: is compressed ({kind}), so no photo can be read without all before it; unpack it: {cure}."
            )
    if not head:
        raise DataError(f"{shown}: is empty (0 bytes); copy it again.")
    size = file.seek(0, SEEK_END)
    file.seek(0)
    places: dict[bytes, tuple[int, int]] = {}
    others: Counter[str] = Counter()
    repeated, last, damage = 0, "", ""
    try:
        archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # closing it would only read on
    except _DAMAGE as error:
        raise DataError(f"{shown}: is not a tar file ({error}); copy it again, or rename it.") from error
    try:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # it would keep an object for each file
            last = member.name
            name = _name(last)
            if member.isdir():
                continue
            if member.islnk() and _name(member.linkname) in places:
                found = places[_name(member.linkname)]
            elif member.isreg() and not member.issparse():
                found = (member.offset_data, member.size)
            else:
                others["(links and special files)"] += 1
                continue
            repeated += name in places
            places.pop(name, None)
            places[name] = found
            if member.offset_data + member.size > size:
                damage = f"it ends within the file {quoted(last)}"
    except _DAMAGE as error:
        damage = damage or f"{error}, after the file {quoted(last)}"
    if not damage:
        file.seek(archive.offset)
        damage = _end(file.read(512), archive.offset, last)
    if damage and not places:
        raise DataError(f"{shown}: is not a tar file, or damaged ({damage}); copy it again.")
    return make_index(
        places.keys(),
        [start for start, _ in places.values()],
        [size for _, size in places.values()],
        signature=signature,
        about={"kind": "tar", "damage": damage, "repeated": repeated, "others": dict(others)},
    )


def _name(name: str) -> bytes:
    return os.fsencode(posixpath.normpath("/" + name).lstrip("/"))


def _end(block: bytes, offset: int, last: str) -> str:
    """Return what is wrong with the block after the last file, or ""."""
    if not block:
        return f"it has no end mark after the file {quoted(last)}, so it may be cut"
    if len(block) < 512:
        return f"it ends within a header after the file {quoted(last)}"
    return f"the header at byte {offset:,} is damaged, after the file {quoted(last)}" if block.strip(b"\0") else ""
