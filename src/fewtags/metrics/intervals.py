"""Intervals of AP, mAP and their differences over the choice of images: a jackknife that keeps every class.

A bootstrap over images is not used, because a resample without a positive of a rare class leaves this class out of its
mean, and repeated positives raise AP: its interval is biased upwards, and with few positives it collapses to a point.

Here every image is left out once, in closed form. The n values of AP without one image give the variance, with the
covariance of classes that are in the same images, and the bias that AP has with few positives (the precision at a
positive counts this positive itself). The variance of a class with P positives is mixed with a prior that is worth
`PRIOR` positives: one more positive whose precision would be 0 or 1 with equal probability. It dominates for 1 to 3
positives and vanishes for many. Limits are quantiles of a beta distribution, so that they stay in 0..1.

The estimand is the mAP of the same model on very many images of the same kind, over the same classes. Coverage by
simulation: docs/intervals.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int8, Int64
from numpy import ndarray as Array
from scipy import stats

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.ranking import class_columns, refuse_nan

PRIOR = 2.0
FEWEST_POSITIVES = 5
"""A class with fewer known positives has no interval of its own; in that of the mean it counts with its variance."""


@final
@dataclass(frozen=True, eq=False)
class Intervals:
    """Two-sided intervals over the choice of images. They do not cover other training runs.

    Attributes:
        mean_average_precision: (low, high) around the mAP; nan if no class is counted.
        average_precision: float64 [c, 2], low and high of each class; nan for a class that is not counted or that has
            fewer than `FEWEST_POSITIVES` known positives.
        level: nominal coverage, for example 0.95.
    """

    mean_average_precision: tuple[float, float]
    average_precision: Float[Array, "c 2"]
    level: float


def jackknife_intervals(scores: Float[Array, "n c"], labels: Int8[Array, "n c"], *, level: float = 0.95) -> Intervals:
    """Intervals of AP and mAP; classes are counted by the rule of `ranking_report`.

    Args:
        scores: higher means more likely present.
        labels: values of `Label`; unknown cells are left out, class by class.
        level: in 0..1, both ends excluded.

    Raises:
        ConfigError: `level` out of range.
        DataError: a score is NaN.
    """
    _check_level(level)
    found = list(_classes(scores, labels))
    each = np.full((scores.shape[1], 2), np.nan)
    for one in found:
        if one.positives >= FEWEST_POSITIVES:
            each[one.class_] = _beta_interval(one.value, one.corrected, one.variance, level)
    if not found:
        return Intervals((np.nan, np.nan), each, level)
    value, corrected = (float(np.mean([getattr(one, name) for one in found])) for name in ("value", "corrected"))
    return Intervals(_beta_interval(value, corrected, _variance_of_mean(found), level), each, level)


def difference_interval(
    first: Float[Array, "n c"], second: Float[Array, "n c"], labels: Int8[Array, "n c"], *, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the mAP of `second` minus that of `first` on the same images, which cancels what they have in common.

    Returns:
        (low, high) in -1..1; nan if no class is counted.

    Raises:
        ConfigError: `level` out of range.
        DataError: a score is NaN.
    """
    _check_level(level)
    pairs = list(zip(_classes(first, labels), _classes(second, labels), strict=True))
    if not pairs:
        return np.nan, np.nan
    found = [_difference(a, b) for a, b in pairs]
    value = float(np.mean([one.value for one in found]))
    half = float(stats.norm.ppf((1 + level) / 2)) * _variance_of_mean(found) ** 0.5
    return max(-1.0, value - half), min(1.0, value + half)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class _ClassValue:
    """AP of a class, or the difference of two.

    Attributes:
        corrected: the value minus its estimated bias.
        influence: [n], contribution of each image to the error of the value; the sum of squares is the variance
            without the prior.
        variance: of the value, with the prior.
        precision: [positives], precision at each positive, in the order of the images.
        order: [known], the known cells by descending score.
    """

    class_: int
    positives: int
    value: float
    corrected: float
    influence: Float[Array, " n"]
    variance: float
    precision: Float[Array, " p"]
    order: Int64[Array, " k"]

    def same_order(self, other: _ClassValue) -> bool:
        """Whether both models put the known cells into the same order."""
        return bool(np.array_equal(self.order, other.order))


def _classes(scores: Float[Array, "n c"], labels: Int8[Array, "n c"]) -> Iterator[_ClassValue]:
    """The classes with a known positive and a known negative."""
    refuse_nan(scores)
    for class_, score, label in class_columns(scores, labels):
        known = label != Label.UNKNOWN
        positive = label[known] == Label.POSITIVE
        count, n = int(positive.sum()), len(positive)
        if not 0 < count < n:
            continue
        value, left_out, precision = leave_one_out(score[known], positive)
        influence = np.zeros(len(score))
        influence[known] = (left_out.mean() - left_out) * ((n - 1) / n) ** 0.5
        bias = (n - 1) * (left_out.mean() - value) if count > 1 else value / 2
        # With precision 1 at every positive nothing varies, but one more positive might have another precision.
        smoothed = (count * value + 0.5) / (count + 1)
        yield _ClassValue(
            class_=class_,
            positives=count,
            value=value,
            corrected=smoothed if value == 1 else min(max(value - bias, 0.0), 1.0),
            influence=influence,
            variance=_with_prior(influence, count, smoothed * (1 - smoothed) / (count + 1)),
            precision=precision,
            order=np.argsort(-score[known], kind="stable"),
        )


def leave_one_out(
    scores: Float[Array, " n"], positive: Bool[Array, " n"]
) -> tuple[float, Float[Array, " n"], Float[Array, " p"]]:
    """AP of one class, its AP without each of the images, and the precision at each positive.

    Without its only positive, a class keeps its AP: nothing is known about the alternative.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, y = scores[order], positive[order]
    # Equal scores form a group, which enters the ranking as a whole.
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    group = np.searchsorted(last, np.arange(len(ranked)))
    hits, found = np.cumsum(y)[last].astype(np.float64), last + 1.0
    gained = np.diff(hits, prepend=0.0)
    count, terms = hits[-1], gained * hits / found
    before, fewer = np.cumsum(terms) - terms, np.maximum(found - 1, 1)
    without_negative = (before + _sum_from(gained * hits / fewer)) / count
    without_positive = np.full(len(hits), terms.sum() / count)
    if count > 1:
        own = (hits - 1) / fewer  # the positive that is left out is not in the mean of the others
        without_positive = (before + _sum_from(gained * own) - own) / (count - 1)
    left_out, precision = np.empty(len(scores)), np.empty(len(scores))
    left_out[order] = np.where(y, without_positive[group], without_negative[group])
    precision[order] = (hits / found)[group]
    return float(terms.sum() / count), left_out, precision[positive]


def _sum_from(values: Float[Array, " g"]) -> Float[Array, " g"]:
    """The sum of each value and all later ones."""
    return np.cumsum(values[::-1])[::-1]


def _difference(a: _ClassValue, b: _ClassValue) -> _ClassValue:
    """The difference b - a; its prior is one more positive with the largest difference of precision that occurs."""
    precision, influence = b.precision - a.precision, b.influence - a.influence
    prior = (np.square(precision).sum() + np.square(precision).max()) / (a.positives + 1) ** 2
    if not precision.any() and not a.same_order(b):  # both perfect: as for a class with precision 1 everywhere
        smoothed = (a.positives * a.value + 0.5) / (a.positives + 1)
        prior = smoothed * (1 - smoothed) / (a.positives + 1)
    value = b.value - a.value
    return replace(
        a,
        value=value,
        corrected=value,
        influence=influence,
        variance=_with_prior(influence, a.positives, prior),
        precision=precision,
    )


def _with_prior(influence: Float[Array, " n"], positives: int, prior: float) -> float:
    """Mean of the jackknife's variance and the prior, weighted by P - 1 and `PRIOR`."""
    return float(((positives - 1) * np.square(influence).sum() + PRIOR * prior) / (positives - 1 + PRIOR))


def _variance_of_mean(found: list[_ClassValue]) -> float:
    """Jackknife variance of the mean over classes, plus what the priors add to the variances of the classes."""
    total = np.sum([one.influence for one in found], 0)
    added = sum(max(0.0, one.variance - float(np.square(one.influence).sum())) for one in found)
    return (float(np.square(total).sum()) + added) / len(found) ** 2


def _beta_interval(value: float, corrected: float, variance: float, level: float) -> tuple[float, float]:
    """From the lower limit around the corrected value to the upper limit around the value; it includes the value."""
    low, high = (_beta_limit(mean, variance, p) for mean, p in ((corrected, (1 - level) / 2), (value, (1 + level) / 2)))
    return min(low, value), max(high, value)


def _beta_limit(mean: float, variance: float, share: float) -> float:
    """Quantile of the beta distribution with this mean and variance."""
    mean = min(max(mean, 1e-4), 1 - 1e-4)
    both = mean * (1 - mean) / min(variance, 0.99 * mean * (1 - mean)) - 1 if variance > 0 else np.inf
    return float(stats.beta.ppf(share, mean * both, (1 - mean) * both)) if np.isfinite(both) else mean


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"the level of an interval must be between 0 and 1, got {level}.")
