"""Random numbers keyed by names: image keys and class ids. `fewtags.seeds` lists all keyed schemes.

The draw of an image or label is a function of the seed and the names alone, whatever other images exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_WEYL = np.uint64(0x9E3779B97F4A7C15)


def content_hashes(keys: Iterable[str]) -> NDArray[np.uint64]:
    """Hash names: uint64 [N], the first eight bytes of each BLAKE2b digest (about a second for a million keys)."""
    digests = b"".join(blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def mixed(words: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash pairs of words to one word, elementwise (SplitMix64's finaliser; Steele, Lea & Flood, OOPSLA 2014)."""
    z = words + (other + np.uint64(1)) * _WEYL
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def seeded(words: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Hash words with a seed; another seed gives independent words."""
    # An array, not a scalar: numpy warns about the (wanted) overflow of scalars only.
    return mixed(words, np.full(1, seed % 2**64, np.uint64))


def uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert words to float64 in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
