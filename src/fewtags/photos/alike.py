"""Find photos that look alike: copies that were encoded again, or resized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fewtags.errors import ConfigError, DataError
from fewtags.photos.decode import open_photo
from fewtags.shards.photos import photo_status
from fewtags.table.content import each

BITS = 256
"""Length of a perceptual hash."""
LIMIT = 10
"""Photos look alike if their hashes differ in at most this many bits; docs/LOG.md has the measurements."""
INSTALL = "pip install 'fewtags[copies]'"
_SIDE = 64
_FLAT = 4.0
_NEIGHBOURS = 32


@final
@dataclass(frozen=True, eq=False)
class Alike:
    """Pairs of photos that look alike.

    Attributes:
        pairs: int64 [m, 2], positions, the earlier one first.
        distances: int64 [m], the bits in which their hashes differ, 0 to `LIMIT`.
        groups: int64 [n], the position of the first photo that is linked to each photo by such pairs.
    """

    pairs: NDArray[np.int64]
    distances: NDArray[np.int64]
    groups: NDArray[np.int64]

    def nearest(self, wanted: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
        """Return (earlier photo, later photo, distance) of wanted pairs, bool [m]; the nearest for each later one."""
        rows = np.flatnonzero(wanted)
        rows = rows[np.lexsort([self.pairs[rows, 0], self.distances[rows], self.pairs[rows, 1]])]
        _, first = np.unique(self.pairs[rows, 1], return_index=True)
        rows = rows[first]
        return [(a, b, d) for (a, b), d in zip(self.pairs[rows].tolist(), self.distances[rows].tolist(), strict=True)]


def can_compare() -> bool:
    """Return whether the library for perceptual hashes is installed."""
    return find_spec("imagehash") is not None


def find_alike(paths: Sequence[str], *, threads: int | None = None) -> Alike:
    """Compare the perceptual hashes (DCT, `imagehash.phash`) of photos, without comparing all pairs.

    Two hashes that differ in at most `LIMIT` bits agree in one of `LIMIT` + 1 pieces. Only photos that share a piece
    are compared, and of many that share it, each with the next 32. Unreadable and nearly uniform photos are not
    compared.

    Raises:
        ConfigError: the library is not installed.
    """
    if not can_compare():
        raise ConfigError(f"finding re-encoded copies needs the library imagehash: {INSTALL}.")
    found = [_print(path) for path in paths] if threads == 1 else [*each(_print, paths, threads=threads)]
    usable = np.array([n for n, bits in enumerate(found) if bits is not None], np.int64)
    read = b"".join(bits for bits in found if bits is not None)
    prints = np.frombuffer(read, np.uint8).reshape(-1, BITS // 8)
    pairs, distances = near_pairs(prints)
    pairs = usable[pairs].reshape(-1, 2)
    return Alike(pairs, distances, linked(len(paths), pairs))


def linked(n: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each of n items the first one, int64 [n], that pairs int64 [m, 2] link to it, directly or not.

    >>> linked(4, np.array([[3, 1], [1, 2]])).tolist()
    [0, 1, 1, 1]
    """
    if not n:
        return np.zeros(0, np.int64)
    links = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), (n, n))
    number = connected_components(links, directed=False)[1]
    first: NDArray[np.int64] = np.unique(number, return_index=True)[1][number]
    return first


def near_pairs(prints: NDArray[np.uint8], limit: int = LIMIT) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs int64 [m, 2] of hashes uint8 [n, bytes] that differ in at most `limit` bits, and the distances."""
    bits, codes = np.unpackbits(prints, axis=1), []
    for piece in np.array_split(np.arange(bits.shape[1]), limit + 1):
        code = bits[:, piece].astype(np.int64) @ (1 << np.arange(len(piece)))
        order = np.argsort(code, kind="stable")
        ranked = code[order]
        for step in range(1, min(_NEIGHBOURS, max(len(prints) - 1, 0)) + 1):
            same = np.flatnonzero(ranked[step:] == ranked[:-step])
            if not len(same):
                break
            codes.append(np.stack([order[same], order[same + step]], 1))
    pairs = np.unique(np.sort(np.concatenate(codes), 1), axis=0) if codes else np.zeros((0, 2), np.int64)
    distances = np.bitwise_count(prints[pairs[:, 0]] ^ prints[pairs[:, 1]]).sum(1, dtype=np.int64)
    near = distances <= limit
    return pairs[near].astype(np.int64), distances[near]


def _print(path: str) -> bytes | None:
    try:
        status = photo_status(path)
    except (OSError, ValueError, DataError):
        return None
    return _hash(path, status.size, status.changed)


@lru_cache(maxsize=1 << 18)
def _hash(path: str, size: int, changed: int) -> bytes | None:  # noqa: ARG001 (a changed file is read again)
    """Return the hash of a photo; None if it cannot be read or is nearly uniform. Read once for check and split."""
    from imagehash import phash

    try:
        with open_photo(path) as photo:
            image = Image.fromarray(photo.read(size=(_SIDE, _SIDE))).convert("L")
    except DataError:
        return None
    if np.asarray(image).std() < _FLAT:
        return None
    return np.packbits(phash(image, hash_size=16).hash).tobytes()
