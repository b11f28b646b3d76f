"""Seeds and generators that are functions of a key.

Every random number of fewtags is a function of a seed and a key. The number of processes and workers, the order of the
data and a resume therefore do not change it. There are four schemes:

- `rng` (here): Philox generators keyed by (seed, epoch, sample index, stream), for views and pixels of photos and the
  order of an epoch.
- `seed_of` (here): `numpy.random.SeedSequence` of (seed, key), for generators of other libraries, such as torch.
- `table.keyed_random`: SplitMix64 hashes of the seed and of image keys and class ids, for splits and simulated labels.
- `stores.rounding`: a 32-bit xorshift-multiply hash of (seed, sample, visit, cell), for stochastic rounding in torch,
  with the same bits on every device.
"""

from __future__ import annotations

import numpy as np


def rng(seed: int, epoch: int, index: int, stream: int = 0) -> np.random.Generator:
    """Return the random generator of one sample in one epoch, a function of the arguments.

    (seed, stream) is the key of a Philox generator, (index, epoch) the upper half of its counter. Different arguments,
    each below 2**64, therefore give sequences that share no block for the first 2**128 draws.

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
