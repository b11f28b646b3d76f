"""What a run records about its photos when it begins, to see before a resume whether they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from io import SEEK_END

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.shards.photos import open_bytes, photo_status, remote_mark
from fewtags.table.content import each, photo_paths
from fewtags.table.table import LabelTable

ANY_SIZE = -1
"""Recorded size of a photo that could not be read: a file of any size may replace it."""
READ_WHOLE = 4 * 2**20
"""Photos of more bytes are compared by samples of their content."""
SAMPLES, SAMPLE_BYTES = 64, 2**16


def photo_sizes(table: LabelTable) -> NDArray[np.int64]:
    """int64 [N]: the size of every photo in bytes, `ANY_SIZE` for a missing one."""
    return np.fromiter(each(_size, photo_paths(table)), np.int64)


def photo_contents(table: LabelTable) -> NDArray[np.int64]:
    """int64 [N, 4]: the time of the last change, that of the last change of its entry, and a digest of each photo.

    The digest covers a file up to `READ_WHOLE` bytes as a whole, and 64 evenly spaced samples of a larger one. Of a
    photo in a shard, the times are those of the shard. A photo behind a URL is not read: times and digest are those of
    what the server says about its file. A missing photo has zeros.
    """
    return np.array([*each(_content, photo_paths(table))], np.int64).reshape(-1, 4)


def photo_digests(paths: Sequence[str]) -> NDArray[np.int64]:
    """int64 [n, 2]: the digests that `photo_contents` records, of photos at paths."""
    return np.array([*each(_digest, paths)], np.int64).reshape(-1, 2)


def changed_contents(table: LabelTable, before: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Bool [N]: whether the content of a photo differs from what `photo_contents` recorded.

    A photo with both times unchanged is not read. A copied folder has other times, so its photos are read.
    """
    paths = photo_paths(table)
    times = np.array([*each(_times, paths)], np.int64).reshape(-1, 2)
    read = np.flatnonzero((times != before[:, :2]).any(1))
    digests = np.array([*each(_digest, [paths[n] for n in read])], np.int64).reshape(-1, 2)
    changed = np.zeros(len(before), np.bool_)
    changed[read] = (digests != before[read, 2:]).any(1)
    return changed


def _size(path: str) -> int:
    try:
        return photo_status(path).size
    except (OSError, ValueError, DataError):  # a name with a null character is a ValueError
        return ANY_SIZE


def _times(path: str) -> tuple[int, int]:
    try:
        status = photo_status(path)
    except (OSError, ValueError, DataError):
        return (0, 0)
    return (status.changed, status.entry)


def _content(path: str) -> tuple[int, int, int, int]:
    return (*_times(path), *_digest(path))


def _digest(path: str) -> tuple[int, int]:
    digest = blake2b(digest_size=16)
    try:
        if (mark := remote_mark(path)) is None:
            _add_content(digest, path)
        else:
            digest.update(mark)
    except (OSError, ValueError, DataError):
        return (0, 0)
    first, second = np.frombuffer(digest.digest(), np.int64).tolist()
    return (first, second)


def _add_content(digest: blake2b, path: str) -> None:
    with open_bytes(path) as file:
        size = file.seek(0, SEEK_END)
        file.seek(0)
        if size <= READ_WHOLE:
            digest.update(file.read())
            return
        for start in np.linspace(0, size - SAMPLE_BYTES, SAMPLES).astype(np.int64).tolist():
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
