"""Check that image keys are unique, without a hash table of texts: tables have tens of millions of keys."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_BLOCK = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
# Arrow arrays do not change, and every change of a table's facts or notes makes a table with the same keys.
_UNIQUE: WeakValueDictionary[int, pa.Array] = WeakValueDictionary()


def repeated_key(keys: pa.Array) -> tuple[str, int] | None:
    """Return the most frequent key and how often it occurs; None if every key occurs once.

    Keys in ascending order and keys with different hashes are different; only else the keys are counted.
    """
    if _UNIQUE.get(id(keys)) is keys:
        return None
    plain = isinstance(keys, pa.StringArray) and keys.null_count == 0
    if not plain or not (_ascend(keys) or _hashes_differ(keys)):
        unique = keys.value_counts()
        if len(unique) != len(keys):
            counts = unique.field("counts").to_numpy()
            return unique.field("values")[int(np.argmax(counts))].as_py(), int(counts.max())
    _UNIQUE[id(keys)] = keys
    return None


def _ascend(keys: pa.StringArray) -> bool:
    return bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py()) if len(keys) > 1 else True


def _hashes_differ(keys: pa.StringArray) -> bool:
    hashes = np.concatenate([*_hashes(keys)])
    hashes.sort()
    return not np.any(hashes[1:] == hashes[:-1])


def _hashes(keys: pa.StringArray) -> Iterator[NDArray[np.uint64]]:
    """Yield a hash of each key, in blocks; equal keys have equal hashes. Eight bytes of all keys are taken at once."""
    _, places, texts = keys.buffers()
    offsets = np.frombuffer(places, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    for first in range(0, len(keys), _BLOCK):
        ends = offsets[first : first + _BLOCK + 1].astype(np.int64)
        text = bytes(texts[ends[0] : ends[-1]]) + bytes(8)
        words = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))  # the eight bytes from every byte on
        at, left = ends[:-1] - ends[0], np.diff(ends)
        found = left.astype(np.uint64)
        while len(rows := np.flatnonzero(left > 0)):
            word = words[at[rows]] & _FIRST_BYTES[np.minimum(left[rows], 8)]
            mixed = (found[rows] ^ word) * _ODD
            found[rows] = mixed ^ (mixed >> np.uint64(32))
            at += 8
            left -= 8
        yield found
