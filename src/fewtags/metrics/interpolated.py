"""The three definitions of average precision used for VOC results. Unknown (difficult) cells are left out."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int8, Real
from numpy import ndarray as Array

from fewtags.labels import Label
from fewtags.metrics.ranking import average_precision, refuse_nan

Points = Literal["11", "all"]
Definition = Literal["non_interpolated", "all_point", "11_point"]
"""`non_interpolated`: mean precision at the positives (scikit-learn's); `all_point`: area under the interpolated curve
(VOC2010 and later); `11_point`: mean interpolated precision at recall 0, 0.1, .. 1 (VOC2007)."""


def average_precision_by(
    definition: Definition, scores: Float[Array, "n c"], labels: Int8[Array, "n c"]
) -> Float[Array, " c"]:
    """AP of each class over its known cells, by one of the three definitions.

    The interpolated precision at recall r is the best precision at any recall of r or more (Everingham et al., IJCV
    2010, eq. 1 and 2). Cells of equal score enter together; the VOC development kit orders them like the photos. The
    AP is nan without a known positive or without a known negative. Raises DataError if a score is NaN.

    >>> labels = np.array([[1], [-1], [-1], [1]], np.int8)
    >>> scores = np.array([[0.9], [0.8], [0.7], [0.6]])
    >>> [average_precision_by(d, scores, labels).round(4).tolist() for d in ("non_interpolated", "all_point")]
    [[0.75], [0.75]]
    """
    refuse_nan(scores)
    countable = (labels == Label.POSITIVE).any(0) & (labels == Label.NEGATIVE).any(0)
    if definition == "non_interpolated":
        return np.where(countable, average_precision(scores, labels), np.nan)
    result = np.full(scores.shape[1], np.nan)
    for c in np.flatnonzero(countable):
        known = labels[:, c] != Label.UNKNOWN
        result[c] = _interpolated(scores[known, c], labels[known, c] == Label.POSITIVE, definition)
    return result


def _interpolated(score: Float[Array, " n"], positive: Bool[Array, " n"], definition: Definition) -> float:
    """Interpolated average precision of one class."""
    order = np.argsort(-score, kind="stable")
    # The last cell of every run of equal scores: a possible threshold.
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    hits = np.cumsum(positive[order])[last]
    return interpolated_precision(hits, last + 1, int(hits[-1]), "all" if definition == "all_point" else "11")


def interpolated_precision(hits: Real[Array, " k"], counted: Real[Array, " k"], total: int, points: Points) -> float:
    """Area under the interpolated precision, or its mean at recall 0, 0.1, .. 1, from the counts at k thresholds.

    Args:
        hits: correct detections down to each threshold.
        counted: all detections down to each threshold.
        total: number of objects to find, at least 1.
        points: "all" for the area, "11" for the mean.
    """
    envelope = np.maximum.accumulate((hits / np.maximum(counted, np.finfo(np.float64).tiny))[::-1])[::-1]
    if points == "all":
        return float(np.sum(np.diff(hits, prepend=0) * envelope) / total)
    # The first threshold whose recall reaches k / 10, compared as whole numbers; precision is 0 if none does.
    reached = np.searchsorted(10 * hits, np.arange(11) * total)
    return float(np.append(envelope, 0.0)[reached].sum() / 11)
