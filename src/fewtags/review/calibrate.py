"""Probabilities of unknown cells that agree with the expected number of positives of each class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from fewtags.labels import Label

LEAST_EXPECTED = 0.5
"""Positives that are expected at least among the unknown cells of a class: a count is never certain."""
_STEPS = 60  # of bisection: the bracket shrinks below the precision of float64


def expected_unknown(labels: NDArray[np.int8], share: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return how many unknown cells of each class are expected to be positive, float64 [C].

    The class is expected in `share` N of the N images, and its known positives are already found. The result is at
    least `LEAST_EXPECTED` and at most the number of unknown cells less `LEAST_EXPECTED`; it is half of the unknown
    cells where both are impossible, and 0 without unknown cells.

    Args:
        labels: [N, C], values of `Label`.
        share: [C], share of images that contain each class.
    """
    unknown = (labels == Label.UNKNOWN).sum(0)
    left = np.asarray(share, np.float64) * len(labels) - (labels == Label.POSITIVE).sum(0)
    least = np.minimum(LEAST_EXPECTED, unknown / 2)
    return np.asarray(np.clip(left, least, unknown - least), np.float64)


def calibrate(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    expected: NDArray[np.floating],
    slope: float | NDArray[np.floating] = 1.0,
) -> NDArray[np.float64]:
    """Return sigmoid(slope_c logit + b_c), float64 [N, C], where b_c fits the sum over unknown cells to `expected`.

    A model that is trained on positives and assumed negatives gives unknown cells too low a probability. The order
    within a class stays as it is. A class without unknown cells has b_c = 0.

    Args:
        logits: [N, C], finite.
        labels: [N, C], values of `Label`.
        expected: [C], as from `expected_unknown`.
        slope: above 0, one for all classes or one for each.
    """
    scaled = np.asarray(logits, np.float64) * slope
    unknown = labels == Label.UNKNOWN
    some = unknown.any(0)
    # At the ends of the bracket, every unknown cell is on one side of the mean probability that is wanted.
    target = np.zeros(len(some))
    target[some] = logit(np.asarray(expected, np.float64)[some] / unknown.sum(0)[some])
    low = target - np.where(unknown, scaled, -np.inf).max(0, initial=-np.inf)
    high = target - np.where(unknown, scaled, np.inf).min(0, initial=np.inf)
    low[~some] = high[~some] = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = (expit(scaled + middle) * unknown).sum(0) < expected
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    offset = np.where(some, (low + high) / 2, 0.0)
    return np.asarray(expit(scaled + offset), np.float64)
