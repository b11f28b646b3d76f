"""Thresholds for decisions: one per class, with the rule that chose it.

Arrays are prob [n, c] in 0..1 and labels [n, c] (values of `Label`); a class is present where prob >= threshold. Every
threshold lies midway between two neighbouring probabilities (or between the last one and 0 or 1), so cells of equal
probability are decided alike, and rounding on another device does not flip the cell that the threshold was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from jaxtyping import Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.ranking import refuse_nan


class ThresholdRule(StrEnum):
    """Where a class's threshold comes from."""

    CLASS_F1 = "class_f1"  # the highest F1 of the class
    POOLED_F1 = "pooled_f1"  # the highest F1 of all classes together
    EXPECTED_COUNT = "expected_count"  # as many positives as expected
    HALF = "half"  # 0.5, if no label helps to choose


@final
@dataclass(frozen=True, eq=False)
class Thresholds:
    """One threshold per class.

    Attributes:
        values: float64 [c].
        rules: c entries, the rule each value comes from.
    """

    values: Float[Array, " c"]
    rules: tuple[ThresholdRule, ...]


def fit_thresholds(
    prob: Float[Array, "n c"],
    labels: Int8[Array, "n c"],
    *,
    minimum_positives: int = 5,
    expected_count: Float[Array, " c"] | None = None,
) -> Thresholds:
    """Choose each class's threshold on its known cells, by the first rule that its labels allow.

    1. At least `minimum_positives` known positives and one known negative: the highest F1 of the class.
    2. No known negative, and `expected_count` given: as many positives as expected (`count_thresholds`). Without known
       negatives F1 would take everything as present.
    3. Else: the one threshold with the highest F1 over the known cells of all classes that have known negatives,
       together. With few positives, a threshold of its own is mostly noise. Classes without known
       negatives would lower the common threshold until everything is present.
    4. No negative is known of any class, or no positive of those that have negatives: 0.5.

    Args:
        prob: the model's probabilities, float64 where they come from float64, so that they tie as they will in use.
        labels: values of `Label`.
        minimum_positives: see rule 1.
        expected_count: how many of the n images are expected to hold each class (any value >= 0), for rule 2.

    Raises:
        DataError: a probability is NaN or outside 0..1.
    """
    refuse_nan(prob)
    if prob.size and not (prob.min() >= 0 and prob.max() <= 1):
        found = f"{prob.min():g}..{prob.max():g}"
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
        values[counted] = count_thresholds(prob[:, counted], expected_count[counted])
        rules = [ThresholdRule.EXPECTED_COUNT if c else r for c, r in zip(counted.tolist(), rules, strict=True)]
    return Thresholds(values, tuple(rules))


def best_f1_threshold(prob: Float[Array, " k"], labels: Int8[Array, " k"]) -> float:
    """The threshold with the highest F1 on the known cells; of equally good ones the highest.

    Returns:
        A threshold in 0..1. If no cell is known positive, F1 is 0 throughout and nothing is taken as present.

    >>> labels = np.array([1, 1, -1, 0], np.int8)
    >>> best_f1_threshold(np.array([0.9, 0.6, 0.2, 0.4]), labels)  # between .6 and .2; the unknown .4 has no say
    0.4
    """
    known = labels != Label.UNKNOWN
    order = np.argsort(-prob[known])
    ranked = prob[known][order].astype(np.float64)
    hits = np.concatenate([[0], np.cumsum(labels[known][order] == Label.POSITIVE)])
    cuts = _cuts(ranked)
    # F1 = 2 tp / (predicted + positives), for each number of cells taken as present; F1 of nothing is 0.
    f1 = 2 * hits[cuts] / np.maximum(cuts + hits[-1], 1)
    return _between(ranked, int(cuts[np.argmax(f1)]))


def count_thresholds(prob: Float[Array, "n c"], expected_count: Float[Array, " c"]) -> Float[Array, " c"]:
    """Thresholds at which class c is taken as present in `expected_count[c]` of the n images.

    Cells of equal probability are not split: the reachable count nearest to the expected one is taken, the smaller of
    two equally near ones. For data without known negatives, where nothing tells a good threshold from a bad one.

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
    """How many cells, of probabilities in descending order, can be taken as present without splitting a tie: 0 .. k."""
    if not ranked.size:
        return np.zeros(1, np.int64)
    return np.concatenate([[0], np.flatnonzero(np.diff(ranked)) + 1, [ranked.size]])


def _between(ranked: Float[Array, " k"], cut: int) -> float:
    """A threshold that takes the first `cut` of descending probabilities and no other."""
    upper = float(ranked[cut - 1]) if cut else 1.0
    lower = float(ranked[cut]) if cut < ranked.size else 0.0
    middle = (upper + lower) / 2
    if cut == ranked.size or middle > lower:
        return middle
    # Nothing fits between neighbouring numbers: the upper one is its own threshold. Above a probability of 1 there is
    # none in 0..1 at all.
    return upper if cut else float(np.nextafter(1.0, 2.0))
