"""Thresholds for decisions: one per class, with the rule that chose it.

Arrays are prob [n, c] in 0..1 and labels [n, c] (values of `Label`); a class is present if prob >= threshold. Every
threshold is midway between two neighbouring probabilities (or between the last one and 0 or 1), so that rounding on
another device does not change decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.ranking import refuse_nan


class ThresholdRule(StrEnum):
    """How a class's threshold was chosen."""

    CLASS_F1 = "class_f1"  # the highest F1 of the class
    POOLED_F1 = "pooled_f1"  # the highest F1 of all classes together
    EXPECTED_COUNT = "expected_count"  # the expected number of positives
    NONE_EXPECTED = "none_expected"  # the expected number is 0: above all scores, so that the class is hardly tagged
    HALF = "half"  # 0.5, without labels to choose from
    OWN = "own"  # given by the user
    PRECISION = "precision"  # the lowest with a wanted precision


@final
@dataclass(frozen=True, eq=False)
class Thresholds:
    """One threshold per class, float64 [c], and the rule that chose each."""

    values: Float[Array, " c"]
    rules: tuple[ThresholdRule, ...]


def fit_thresholds(
    prob: Float[Array, "n c"],
    labels: Int8[Array, "n c"],
    *,
    minimum_positives: int = 5,
    expected_count: Float[Array, " c"] | None = None,
    more_prob: Float[Array, "m c"] | None = None,
    enough: float | int = 5,
) -> Thresholds:
    """Choose each class's threshold on its known cells, by the first rule that its labels allow.

    1. At least `minimum_positives` known positives and one known negative: the highest F1 of the class.
    2. No known negative, and `expected_count` given: the expected number of positives (`count_thresholds`). F1 would
       predict everything as present. If less than `enough` are expected, `more_prob` is added to the images.
    3. Else: the highest F1 over the known cells of all classes that have known negatives, pooled. With few positives,
       a threshold for the class alone would be mostly noise.
    4. No class has a known negative, or no class with negatives has a known positive: 0.5.

    Args:
        prob: the model's probabilities; do not round float64, so that ties are the same in use.
        labels: values of `Label`.
        minimum_positives: see rule 1.
        expected_count: for rule 2, the number of the n images that are expected to contain each class (>= 0).
        more_prob: for rule 2, probabilities of m further images, of which the same share is expected to contain it.
        enough: see rule 2.

    Raises:
        DataError: a probability is NaN or outside 0..1.
    """
    for given in [prob] if more_prob is None else [prob, more_prob]:
        refuse_nan(given)
        if given.size and not (given.min() >= 0 and given.max() <= 1):
            found = f"{given.min():g}..{given.max():g}"
            raise DataError(f"thresholds need probabilities in 0..1, got {found}; apply a sigmoid to logits first.")
    positives, negatives = (labels == Label.POSITIVE).sum(0), (labels == Label.NEGATIVE).sum(0)
    own = (positives >= max(minimum_positives, 1)) & (negatives > 0)
    counted = np.zeros_like(own) if expected_count is None else negatives == 0
    common, rule = 0.5, ThresholdRule.HALF
    pooled = negatives > 0
    if positives[pooled].any() and not (own | counted).all():
        common, rule = best_f1_threshold(prob[:, pooled].ravel(), labels[:, pooled].ravel()), ThresholdRule.POOLED_F1
    values = np.full(prob.shape[1], common)
    rules = [rule] * prob.shape[1]
    for c in np.flatnonzero(own).tolist():
        values[c], rules[c] = best_f1_threshold(prob[:, c], labels[:, c]), ThresholdRule.CLASS_F1
    if expected_count is not None:
        for c in np.flatnonzero(counted).tolist():
            scores, expected = prob[:, [c]], expected_count[[c]]
            if more_prob is not None and expected[0] < enough:
                expected = expected * (len(prob) + len(more_prob)) / len(prob)
                scores = np.concatenate([scores, more_prob[:, [c]]])
            values[c] = count_thresholds(scores, expected)[0]
            some = (scores >= values[c]).any()
            rules[c] = ThresholdRule.EXPECTED_COUNT if some else ThresholdRule.NONE_EXPECTED
    return Thresholds(values, tuple(rules))


def best_f1_threshold(prob: Float[Array, " k"], labels: Int8[Array, " k"]) -> float:
    """The threshold in 0..1 with the highest F1 on the known cells; of several, the highest.

    Without a known positive, nothing is predicted as present.

    >>> labels = np.array([1, 1, -1, 0], np.int8)
    >>> best_f1_threshold(np.array([0.9, 0.6, 0.2, 0.4]), labels)  # between .6 and .2; .4 is unknown
    0.4
    """
    known = labels != Label.UNKNOWN
    order = np.argsort(-prob[known])
    ranked = prob[known][order].astype(np.float64)
    hits = np.concatenate([[0], np.cumsum(labels[known][order] == Label.POSITIVE)])
    cuts = _cuts(ranked)
    # F1 = 2 tp / (predicted + positives), for each number of predicted cells; F1 of nothing is 0.
    f1 = 2 * hits[cuts] / np.maximum(cuts + hits[-1], 1)
    return _between(ranked, int(cuts[np.argmax(f1)]))


@final
@dataclass(frozen=True, eq=False)
class PrecisionCuts:
    """The result of `precision_thresholds`, an entry for each of c classes.

    Attributes:
        values: float64 [c], the threshold; nan where none is chosen.
        judged: bool [c], whether the class has enough known positives and a known negative.
        best: float64 [c], the highest precision of a threshold that accepts enough positives; nan where not judged.
    """

    values: Float[Array, " c"]
    judged: Bool[Array, " c"]
    best: Float[Array, " c"]


def precision_thresholds(
    prob: Float[Array, "n c"], labels: Int8[Array, "n c"], wanted: float, *, minimum_positives: int = 5
) -> PrecisionCuts:
    """Choose for each class the lowest threshold whose precision on the known cells is at least `wanted`.

    The lowest one has the highest recall. A threshold must accept at least `minimum_positives` known positives,
    because the precision of fewer is mostly chance. A class with fewer, or without a known negative, is not judged.

    >>> prob, labels = np.array([[0.9], [0.8], [0.6], [0.4]]), np.array([[1], [1], [-1], [1]], np.int8)
    >>> precision_thresholds(prob, labels, 0.75, minimum_positives=1).values.round(3).tolist()  # 3 of 4
    [0.2]
    >>> precision_thresholds(prob, labels, 0.9, minimum_positives=1).values.round(3).tolist()  # 2 of 2
    [0.7]
    """
    refuse_nan(prob)
    values, best = np.full(prob.shape[1], np.nan), np.full(prob.shape[1], np.nan)
    positives, negatives = (labels == Label.POSITIVE).sum(0), (labels == Label.NEGATIVE).sum(0)
    judged = (positives >= max(minimum_positives, 1)) & (negatives > 0)
    for c in np.flatnonzero(judged).tolist():
        known = labels[:, c] != Label.UNKNOWN
        order = np.argsort(-prob[known, c], kind="stable")
        ranked = prob[known, c][order].astype(np.float64)
        hits = np.concatenate([[0], np.cumsum(labels[known, c][order] == Label.POSITIVE)])
        cuts = _cuts(ranked)
        cuts = cuts[hits[cuts] >= max(minimum_positives, 1)]
        precision = hits[cuts] / cuts
        best[c] = precision.max()
        if (reached := cuts[precision >= wanted]).size:
            values[c] = _between(ranked, int(reached[-1]))
    return PrecisionCuts(values, judged, best)


def count_thresholds(prob: Float[Array, "n c"], expected_count: Float[Array, " c"]) -> Float[Array, " c"]:
    """Thresholds at which class c is predicted as present in `expected_count[c]` of the n images.

    Cells of equal probability are not split: the nearest possible count is used, the smaller of two equally near ones.

    >>> count_thresholds(np.array([[0.9], [0.5], [0.1]]), np.array([2.0])).round(4).tolist()  # midway of .5 and .1
    [0.3]
    """
    values = np.zeros(prob.shape[1])
    for c, expected in enumerate(expected_count):
        ranked = -np.sort(-prob[:, c].astype(np.float64))
        cuts = _cuts(ranked)
        values[c] = _between(ranked, int(cuts[np.argmin(np.abs(cuts - expected))]))
    return values


def _cuts(ranked: Float[Array, " k"]) -> Int64[Array, " m"]:
    """The numbers of cells, 0..k, that can be predicted without splitting equal (descending) probabilities."""
    if not ranked.size:
        return np.zeros(1, np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(ranked)) + 1, [ranked.size]])


def _between(ranked: Float[Array, " k"], cut: int) -> float:
    """A threshold that only the first `cut` of descending probabilities reach."""
    upper = float(ranked[cut - 1]) if cut else 1.0
    lower = float(ranked[cut]) if cut < ranked.size else 0.0
    middle = (upper + lower) / 2
    if cut == ranked.size or middle > lower:
        return middle
    # No number is between the two: use the upper one, or a number above 1 to exclude a probability of 1.
    return upper if cut else float(np.nextafter(1.0, 2.0))
