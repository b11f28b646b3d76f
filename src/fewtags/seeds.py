"""Seeds that are functions of a run's seed and of integers such as epoch and step."""

from __future__ import annotations

import numpy as np


def seed_of(seed: int, *key: int) -> int:
    """Return a seed in 0..2**63 - 1 that depends on a run's seed and a key; the same on every machine and version.

    Args:
        seed: of the run, 0 or more.
        key: integers of 0 or more.

    >>> seed_of(0, 1) != seed_of(0, 2)
    True
    """
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)
