"""Find files with the same content: copies inside a split, and leaks across splits."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from io import SEEK_END
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

_TAIL = 4096
_CHUNK = 64
_MOST_THREADS = 8  # disks do not serve more in parallel, and decoded photos are large

_Result = TypeVar("_Result")


def each(function: Callable[[str], _Result], paths: Sequence[str], *, threads: int | None = None) -> Iterator[_Result]:
    """Yield the result of a function for every file, in order, computed by a few threads.

    Args:
        function: called with a path, from any thread.
        paths: the files.
        threads: None: one per core, at most 8.
    """
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
    for fingerprint in (_size, _digest_of_tail, _digest_of_all):
        suspects = [n for group in groups for n in group]
        group_of = [g for g, group in enumerate(groups) for _ in group]
        found = each(fingerprint, [paths[n] for n in suspects], threads=threads)
        groups = _alike(suspects, zip(group_of, found, strict=True))
    return sorted(map(tuple, groups))


def content_groups(table: LabelTable, *, threads: int | None = None) -> NDArray[np.int64]:
    """Return group ids that keep equal photos in one split: `table.split(groups=content_groups(table))`.

    Returns:
        int64 [N], the position of the first photo with the same content; an unreadable file is its own group.

    Raises:
        DataError: the table has no image folder.
    """
    table.require_root()
    out = np.arange(len(table))
    for same in same_content(photo_paths(table), threads=threads):
        out[list(same)] = same[0]
    return out


def photo_paths(table: LabelTable) -> list[str]:
    """Return the paths of the photos of a table; none if it has no root."""
    root = table.root
    return [] if root is None else [str(root / key) for key in table.images.to_pylist()]


def _alike(items: Iterable[int], keys: Iterable[tuple[int, bytes | int | None]]) -> list[list[int]]:
    """Groups of two or more items with equal keys; items with the fingerprint None are left out."""
    groups: dict[tuple[int, bytes | int | None], list[int]] = defaultdict(list)
    for item, key in zip(items, keys, strict=True):
        if key[1] is not None:
            groups[key].append(item)
    return [group for group in groups.values() if len(group) > 1]


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):  # a name with a null character is a ValueError
        return None


def _digest_of_tail(path: str) -> bytes | None:
    return _digest(path, -_TAIL)


def _digest_of_all(path: str) -> bytes | None:
    return _digest(path, 0)


def _digest(path: str, start: int) -> bytes | None:
    """Hash of the content from `start` (negative: from the end); None for an unreadable file."""
    digest = blake2b(digest_size=16)
    try:
        with Path(path).open("rb") as file:
            if start < 0:
                file.seek(max(start + file.seek(0, SEEK_END), 0))
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return None
    return digest.digest()
