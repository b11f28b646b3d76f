"""Seeds and generators that are functions of a key.

Every random number of fewtags is a function of a seed and a key, never of a generator's past. The number of processes
and workers, the order of the data and a resume therefore change no draw. Four schemes, for four kinds of keys:

- `rng` (here): Philox generators keyed by (seed, epoch, sample index, stream), for the views and pixels of photos and
  the order of an epoch. Numpy, on the CPU, any number of draws per key.
- `seed_of` (here): `numpy.random.SeedSequence` of (seed, key), for generators of other libraries, above all torch:
  initial weights, shuffled keys of a step.
- `table.keyed_random`: SplitMix64 hashes of the seed and of *names* (image keys, class ids), for splits and simulated
  labels: one draw per image or cell, whatever other images exist.
- `stores.rounding`: a 32-bit xorshift-multiply hash of (seed, sample, visit, cell), for stochastic rounding: torch,
  the same bits on every device.
"""

from __future__ import annotations

import numpy as np


def rng(seed: int, epoch: int, index: int, stream: int = 0) -> np.random.Generator:
    """Return the random generator of one sample in one epoch, a function of the arguments.

    Philox, a counter-based generator: (seed, stream) is its key, (index, epoch) the upper half of its counter, and
    drawing advances the lower half. Different arguments, each below 2**64, therefore give sequences that share no block
    for the first 2**128 draws, and no state is kept anywhere.

    >>> rng(0, 1, 2).random() == rng(0, 1, 2).random() != rng(0, 2, 1).random()
    True
    """
    key, counter = np.array([seed, stream], np.uint64), np.array([0, 0, index, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def seed_of(seed: int, *key: int) -> int:
    """Return a seed in 0..2**63 - 1, a function of the seed of the run and of a key.

    >>> seed_of(0, 1) != seed_of(0, 2)
    True
    """
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)
