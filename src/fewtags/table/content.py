"""Find files with the same content: copies inside a split, and leaks across splits."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from hashlib import blake2b
from io import SEEK_END
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.shards.photos import open_bytes, photo_status

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

_TAIL = 4096
_CHUNK = 64
_MOST_THREADS = 8  # disks do not serve more in parallel, and decoded photos are large

_Result = TypeVar("_Result")


def each(function: Callable[[str], _Result], paths: Sequence[str], *, threads: int | None = None) -> Iterator[_Result]:
    """Yield the result of a function for every path, in order, computed by threads (None: one per core, at most 8)."""
    chunks = (paths[i : i + _CHUNK] for i in range(0, len(paths), _CHUNK))
    pool = ThreadPoolExecutor(threads or min(_MOST_THREADS, os.cpu_count() or 1), "fewtags-read")
    try:
        for results in pool.map(lambda chunk: [function(path) for path in chunk], chunks):
            yield from results
    finally:
        # Ctrl-C must not wait for the remaining files.
        pool.shutdown(cancel_futures=True)


def same_content(paths: Sequence[str], *, threads: int | None = None) -> list[tuple[int, ...]]:
    """Return groups of positions of files with the same bytes, in order. Unreadable files are in no group.

    Only files of equal size are opened, and only those with equal last 4 KiB are read completely. The tail is compared
    because photos of one camera have similar heads.
    """
    groups = [list(range(len(paths)))]
    for fingerprint in (_size, partial(_digest, tail=_TAIL), _digest):
        suspects = [(g, n) for g, group in enumerate(groups) for n in group]
        found = each(fingerprint, [paths[n] for _, n in suspects], threads=threads)
        alike: dict[tuple[int, bytes | int], list[int]] = defaultdict(list)
        for (g, n), value in zip(suspects, found, strict=True):
            if value is not None:
                alike[g, value].append(n)
        groups = [group for group in alike.values() if len(group) > 1]
    return sorted(map(tuple, groups))


def content_groups(table: LabelTable, *, threads: int | None = None) -> NDArray[np.int64]:
    """Return group ids that keep equal photos in one split: `table.split(groups=content_groups(table))`.

    The id of an image, int64 [N], is the position of the first photo with the same content. An unreadable file is a
    group of its own. A table without an image folder is a `DataError`.
    """
    table.require_root()
    out = np.arange(len(table))
    for same in same_content(photo_paths(table), threads=threads):
        out[list(same)] = same[0]
    return out


def photo_paths(table: LabelTable) -> list[str]:
    """Return the paths of the photos of a table; an empty list if it has no root."""
    return [] if table.root is None else [str(table.root / key) for key in table.images.to_pylist()]


def _size(path: str) -> int | None:
    try:
        return photo_status(path).size
    except (OSError, ValueError, DataError):  # a name with a null character is a ValueError
        return None


def _digest(path: str, tail: int = 0) -> bytes | None:
    """Hash of the content, or of the last `tail` bytes if it is not 0; None for an unreadable file."""
    try:
        status = photo_status(path)
        return _hashed(path, status.size, status.changed, tail)
    except (OSError, ValueError, DataError):
        return None


@lru_cache(maxsize=1 << 16)
def _hashed(path: str, size: int, changed: int, tail: int) -> bytes:  # noqa: ARG001 (a changed file is read again)
    """Hash a file once, although splits, leaks and `check` are found one after the other."""
    digest = blake2b(digest_size=16)
    with open_bytes(path) as file:
        if tail:
            file.seek(max(file.seek(0, SEEK_END) - tail, 0))
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.digest()
