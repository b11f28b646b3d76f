"""Keyed seeds and generators: Philox written out, and that every part of a key matters."""

import numpy as np
import pytest

from fewtags.seeds import rng, seed_of


def philox(counter, key):
    """Philox 4x64 with ten rounds, from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011)."""
    mask = 2**64 - 1
    x, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [(second >> 64) ^ x[1] ^ k[0], second & mask, (first >> 64) ^ x[3] ^ k[1], first & mask]
        k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
    return x


@pytest.mark.parametrize("arguments", [(0, 0, 0, 0), (1, 2, 3, 4), (2**64 - 1, 2**40, 2**63 + 5, 1)])
def test_random_numbers_are_philox_of_the_arguments(arguments):
    seed, epoch, index, stream = arguments
    expected = philox((1, 0, index, epoch), (seed, stream)) + philox((2, 0, index, epoch), (seed, stream))
    assert rng(*arguments).bit_generator.random_raw(8).tolist() == expected


def test_every_argument_matters():
    draws = {rng(*arguments).random() for arguments in np.ndindex(3, 3, 3, 3)}
    assert len(draws) == 81


def test_seeds_differ_by_key_and_by_run():
    seeds = [seed_of(seed, *key) for seed in (0, 1) for key in ((), (1,), (2,), (1, 2), (2, 1))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_in_every_version():
    """numpy keeps SeedSequence stable: a run that an older version began goes on with the same numbers."""
    assert (seed_of(0), seed_of(0, 1, 2, 3)) == (7896617691693857887, 6463705122041852897)
