"""Draws keyed by content: the published hash functions, and that the numbers are even and independent."""

import hashlib

import numpy as np
import pytest

from fewtags.table.keyed_random import content_hashes, mixed, seeded, uniform


def test_mixing_is_splitmix64():
    """SplitMix64 from state 0 puts out finaliser(k x 0x9E3779B97F4A7C15) for k = 1, 2, 3.

    The three numbers are the first outputs of the reference implementation (https://prng.di.unimi.it/splitmix64.c)
    seeded with 0. `mixed(0, k - 1)` is the k-th.
    """
    found = mixed(np.zeros(3, np.uint64), np.arange(3, dtype=np.uint64))
    assert [hex(v) for v in found] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_hashes_are_of_the_utf8_bytes_and_depend_on_nothing_else():
    keys = ["a.jpg", "größe/ü.jpg", ""]
    expected = [int.from_bytes(hashlib.blake2b(k.encode(), digest_size=8).digest(), "little") for k in keys]
    assert content_hashes(keys).tolist() == expected
    assert content_hashes(reversed(keys)).tolist() == expected[::-1]
    assert content_hashes([]).tolist() == []


@pytest.mark.parametrize("seed", [0, 1, -1, 2**70])
def test_draws_are_even_for_any_seed(seed):
    """Chi-square over 64 bins of 64,000 keyed draws: mean 63, standard deviation 11.2; 110 is 4.2 deviations away."""
    draws = uniform(seeded(content_hashes(f"img_{i:06d}.jpg" for i in range(64_000)), seed))
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.bincount((draws * 64).astype(int), minlength=64)
    assert ((counts - 1000) ** 2 / 1000).sum() < 110


def test_draws_of_neighbouring_seeds_and_of_rows_and_columns_are_uncorrelated():
    """Correlation of n independent pairs has standard deviation 1 / sqrt(n) = .005; five of them are .025."""
    images, classes = content_hashes(map(str, range(200))), content_hashes(f"c{i}" for i in range(200))
    cells = mixed(images[:, None], classes[None, :])
    first, second = uniform(seeded(cells, 0)), uniform(seeded(cells, 1))
    for left, right in ((first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first, first.T)):
        off = ~np.eye(*left.shape, dtype=bool)
        assert abs(np.corrcoef(left[off], right[off])[0, 1]) < 0.025
