"""Average precision and ranks that never count an unknown cell.

Arrays are scores [n, c] (logits, probabilities, higher means more likely present) and labels [n, c] (values of
`Label`) of n images and c classes. Results are float64 fractions in 0..1, not percentages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float, Int8, Int64, UInt16
from numpy import ndarray as Array

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label

BLOCK_CELLS = 4_000_000  # size of work arrays, independent of n and c

Empty = Literal["exclude", "zero"]


# --- average precision


def average_precision(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"], *, empty: Empty = "exclude"
) -> Float[Array, " c"]:
    """AP of each class over its known cells: the mean, over its positives, of the precision at that positive's score.

    Tie-safe: cells of equal score enter together, so the order of the images has no influence. Equal to scikit-learn's
    `average_precision_score`, and to the sum over thresholds of (recall gained) x precision.

    Args:
        scores: higher means more likely present.
        labels: values of `Label`; unknown cells are left out, class by class.
        empty: a class with known negatives but no known positive is nan ("exclude") or 0 ("zero", what the public code
            of Cole et al., Large Loss Matters, ASL and others puts into the mean). A class with nothing known is nan.

    Returns:
        float64 [c]. A class without known negatives has AP 1, which says nothing: see `ranking_report`.

    Raises:
        DataError: a score is NaN.

    >>> labels = np.array([[1], [-1], [1], [0]], np.int8)
    >>> average_precision(np.array([[0.9], [0.8], [0.7], [0.6]]), labels).round(4).tolist()  # (1/1 + 2/3) / 2
    [0.8333]
    """
    refuse_nan(scores)
    result = np.full(scores.shape[1], np.nan)
    for c, score, label in class_columns(scores, labels):
        known = np.sort(score[label != Label.UNKNOWN])
        positive = np.sort(score[label == Label.POSITIVE])
        if positive.size:
            # How many positives, and how many known cells, score at least as high as each positive.
            hits = positive.size - np.searchsorted(positive, positive)
            found = known.size - np.searchsorted(known, positive)
            result[c] = np.mean(hits / found)
        elif known.size and empty == "zero":
            result[c] = 0.0
    return result


@final
@dataclass(frozen=True, eq=False)
class RankingReport:
    """Per-class average precision and the label counts behind it.

    Attributes:
        average_precision: float64 [c]; nan for a class that is not counted.
        positives: int64 [c], known positive cells.
        negatives: int64 [c], known negative cells.
        unknown: int64 [c], cells that were left out.
    """

    average_precision: Float[Array, " c"]
    positives: Int64[Array, " c"]
    negatives: Int64[Array, " c"]
    unknown: Int64[Array, " c"]

    @property
    def mean_average_precision(self) -> float:
        """Mean AP of the counted classes; nan if there are none."""
        return mean_of_known(self.average_precision)

    @property
    def excluded(self) -> dict[int, str]:
        """Classes that are not in the mean, with the reason."""
        left_out = np.flatnonzero(np.isnan(self.average_precision)).tolist()
        return {c: _why(int(self.positives[c]), int(self.negatives[c])) for c in left_out}

    @property
    def known_cells(self) -> int:
        """Number of known (image, class) cells, over all classes."""
        return int(self.positives.sum() + self.negatives.sum())


def _why(positives: int, negatives: int) -> str:
    if not positives and not negatives:
        return "nothing known"
    return "no known negative" if positives else "no known positive"


def ranking_report(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"], *, empty: Empty = "exclude"
) -> RankingReport:
    """AP of each class, their mean, and the counts behind them.

    A class needs a known positive and a known negative to be counted: without a positive there is nothing to find,
    without a negative every order is perfect. `empty="zero"` reproduces the peers instead: 0 without a known positive,
    1 without a known negative, and only classes without any known cell are left out.

    Raises:
        DataError: a score is NaN.
    """
    result = average_precision(scores, labels, empty=empty)
    positives = _count(labels, Label.POSITIVE)
    negatives = _count(labels, Label.NEGATIVE)
    if empty == "exclude":
        result[negatives == 0] = np.nan
    return RankingReport(result, positives, negatives, len(labels) - positives - negatives)


def unknown_as_absent(labels: Int8[Array, "n c"]) -> Int8[Array, "n c"]:
    """Labels in which every unknown cell is negative: what most published single-positive code evaluates on.

    A missing label that the model finds counts as its mistake, so results are pessimistic and must be named so.
    """
    return np.where(labels == Label.POSITIVE, np.int8(Label.POSITIVE), np.int8(Label.NEGATIVE))


# --- intervals


@final
@dataclass(frozen=True, eq=False)
class Intervals:
    """Bootstrap percentile intervals.

    Attributes:
        mean_average_precision: (low, high); nan if no class is counted.
        average_precision: float64 [c, 2], low and high of each class; nan for a class that is not counted.
        level: share of the resamples inside, for example 0.95.
        n_resamples: how many were drawn.
    """

    mean_average_precision: tuple[float, float]
    average_precision: Float[Array, "c 2"]
    level: float
    n_resamples: int


def bootstrap_intervals(
    scores: Float[Array, "n c"],
    labels: Int8[Array, "n c"],
    rng: np.random.Generator,
    *,
    n_resamples: int = 200,
    level: float = 0.95,
) -> Intervals:
    """Bootstrap intervals of AP and mAP over the choice of images, which are resampled with replacement.

    All classes share the resamples, so the interval of the mean respects that the classes come from the same images. In
    each resample a class is counted by the rule of `ranking_report`. The interval does not cover the variation
    between training runs: for that, train with several seeds.

    Args:
        scores: as in `average_precision`; sorted once per class, a resample only changes the weights of the images.
        labels: values of `Label`.
        rng: gives n_resamples x n image numbers.
        n_resamples: at least 1.
        level: in 0..1, both ends excluded.

    Raises:
        ConfigError: `n_resamples` or `level` out of range.
        DataError: a score is NaN.
    """
    if n_resamples < 1 or not 0 < level < 1:
        raise ConfigError(f"a bootstrap needs n_resamples >= 1 and 0 < level < 1, got {n_resamples} and {level}.")
    drawn = _drawn(scores, labels, rng, n_resamples)
    tails = ((1 - level) / 2, (1 + level) / 2)
    means = np.array([mean_of_known(column) for column in drawn.T])
    per_class = np.array([_quantiles(row, tails) for row in drawn]).reshape(len(drawn), 2)
    return Intervals(_quantiles(means, tails), per_class, level, n_resamples)


def resampled_means(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"], rng: np.random.Generator, *, n_resamples: int = 200
) -> Float[Array, " r"]:
    """The mAP of every resample of `bootstrap_intervals`, nan where no class is counted in it.

    Two models on the same labels with generators in the same state see the same resamples: the difference of their
    results is paired.

    Raises:
        ConfigError: `n_resamples` below 1.
        DataError: a score is NaN.
    """
    if n_resamples < 1:
        raise ConfigError(f"a bootstrap needs n_resamples >= 1, got {n_resamples}.")
    return np.array([mean_of_known(column) for column in _drawn(scores, labels, rng, n_resamples).T])


def _drawn(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"], rng: np.random.Generator, n_resamples: int
) -> Float[Array, "c r"]:
    """AP of every class in every resample, nan where it is not counted."""
    refuse_nan(scores)
    n, classes = scores.shape
    weights = np.zeros((n_resamples, n), np.uint16)
    for weight in weights if n else ():
        weight[:] = np.bincount(rng.integers(n, size=n), minlength=n)
    drawn = np.full((classes, n_resamples), np.nan)
    for c, score, label in class_columns(scores, labels):
        if (label == Label.POSITIVE).any() and (label == Label.NEGATIVE).any():
            drawn[c] = _resampled_average_precision(score, label, weights)
    return drawn


def _resampled_average_precision(
    score: Float[Array, " n"], label: Int8[Array, " n"], weights: UInt16[Array, "r n"]
) -> Float[Array, " r"]:
    """AP of one class for image weights [r, n]; nan where a resample holds no positive or no negative."""
    # The distinct scores of positives cut the ranking into segments, 0 the highest and the last below every positive.
    # Within a segment order is irrelevant, so a resample is just a histogram over the segments.
    cuts = np.unique(score[label == Label.POSITIVE])
    segment = len(cuts) - np.searchsorted(cuts, score, side="right")
    bins = len(cuts) + 1
    # Known negatives go to the first bins, positives to as many more, unknown cells to a last one that is not read.
    place = np.where(label == Label.NEGATIVE, segment, np.where(label == Label.POSITIVE, bins + segment, 2 * bins))
    result = np.full(len(weights), np.nan)
    for r, weight in enumerate(weights):
        count = np.bincount(place, weight, 2 * bins + 1)
        gained, others = count[bins : 2 * bins], count[:bins]
        hits, total = np.cumsum(gained), np.cumsum(gained + others)
        if hits[-1] and total[-1] > hits[-1]:
            result[r] = np.sum(gained * hits / np.maximum(total, 1)) / hits[-1]
    return result


def _quantiles(values: Float[Array, " r"], tails: tuple[float, float]) -> tuple[float, float]:
    values = values[~np.isnan(values)]
    if not values.size:
        return np.nan, np.nan
    low, high = np.quantile(values, tails)
    return float(low), float(high)


# --- when no negative is known


@final
@dataclass(frozen=True, eq=False)
class PositiveOnlyReport:
    """Metrics for labels without known negatives, for example a folder per class.

    Attributes:
        images: images with a known positive; the others are left out.
        hit_at_1: share of them whose highest-scored class is a known positive. An unknown class on top counts as a
            miss although it may be present.
        recall_at: for each k, mean over images of the share of its known positives among its k highest-scored classes.
        mean_rank: mean rank of the known positives among the classes not known to be present; 1 is the best.
        pessimistic: AP with *unknown counted as absent*.
    """

    images: int
    hit_at_1: float
    recall_at: dict[int, float]
    mean_rank: float
    pessimistic: RankingReport


def positive_only_report(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"], *, ks: Sequence[int] = (1, 3, 5)
) -> PositiveOnlyReport:
    """Ranks of the known positives among the classes of their images.

    Ties are resolved in expectation, as if tied classes were put in random order: a constant model gets chance level.

    Raises:
        DataError: a score is NaN.
    """
    refuse_nan(scores)
    image, class_ = np.nonzero(labels == Label.POSITIVE)
    above, tied, rank = (np.zeros(len(image)) for _ in range(3))
    step = max(1, BLOCK_CELLS // max(scores.shape[1], 1))
    for part in (slice(first, first + step) for first in range(0, len(image), step)):
        row = scores[image[part]]
        own = scores[image[part], class_[part]][:, None]
        other = labels[image[part]] != Label.POSITIVE
        higher, equal = row > own, row == own
        above[part], tied[part] = higher.sum(1), equal.sum(1)
        rank[part] = 1 + (higher & other).sum(1) + (equal & other).sum(1) / 2
    positives = np.bincount(image, minlength=len(scores))
    some = positives > 0

    def found(k: int) -> Float[Array, " images"]:
        """Known positives among the k highest of each image; each with its probability under random tie order."""
        likely = np.bincount(image, np.clip((k - above) / tied, 0, 1), len(scores))
        return likely[some].astype(np.float64)  # the histogram of nothing would be int64

    return PositiveOnlyReport(
        images=int(some.sum()),
        hit_at_1=mean_of_known(found(1)),
        recall_at={k: mean_of_known(found(k) / positives[some]) for k in ks},
        mean_rank=mean_of_known(rank),
        pessimistic=ranking_report(scores, unknown_as_absent(labels)),
    )


# --- shared


def class_columns(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"]
) -> Iterator[tuple[int, Float[Array, " n"], Int8[Array, " n"]]]:
    """Each class with its contiguous scores and labels; copied in blocks, so never all of n x c at once."""
    n, classes = scores.shape
    step = max(1, BLOCK_CELLS // max(n, 1))
    for first in range(0, classes, step):
        score = np.ascontiguousarray(scores[:, first : first + step].T)
        label = np.ascontiguousarray(labels[:, first : first + step].T)
        yield from ((first + i, score[i], label[i]) for i in range(len(score)))


def _count(labels: Int8[Array, "n c"], state: Label) -> Int64[Array, " c"]:
    counts: Int64[Array, " c"] = (labels == state).sum(0)
    return counts


def refuse_nan(scores: Float[Array, "n c"]) -> None:
    """Raise DataError at the first score that is not a number."""
    # The minimum of an array with a NaN is NaN; unlike isnan it needs no second array.
    if scores.size and np.isnan(scores.min()):
        n, c = np.argwhere(np.isnan(scores))[0].tolist()
        raise DataError(f"the score of image {n}, class {c} is not a number; the model or its input is broken.")


def mean_of_known(values: Float[Array, " k"]) -> float:
    """Mean of the values that are not nan; nan if there are none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else np.nan
