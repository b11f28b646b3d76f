"""Average precision and ranks that never count an unknown cell.

Arrays are scores [n, c] (logits, probabilities, higher means more likely present) and labels [n, c] (values of
`Label`) of n images and c classes. Results are float64 fractions in 0..1, not percentages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int8, Int64, Real
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.labels import Label

BLOCK_CELLS = 4_000_000  # size of work arrays, independent of n and c


def average_precision(scores: Float[Array, "n c"], labels: Int8[Array, "n c"]) -> Float[Array, " c"]:
    """AP of each class over its known cells: the mean, over its positives, of the precision at that positive's score.

    Equal to scikit-learn's `average_precision_score`: the sum over thresholds of (recall gained) x precision. Cells of
    equal score enter together, so the order of the images has no influence. The AP is nan without a known positive, and
    1 without a known negative, which is meaningless: see `ranking_report`. Raises DataError if a score is NaN.

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
    return result


@final
@dataclass(frozen=True, eq=False)
class RankingReport:
    """Average precision of each class (nan if it is not counted), and its numbers of known and unknown cells."""

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
        return {c: why_excluded(self.positives[c], self.negatives[c]) for c in left_out}

    @property
    def known_cells(self) -> int:
        """Number of known (image, class) cells, over all classes."""
        return int(self.positives.sum() + self.negatives.sum())


def why_excluded(positives: int | np.int64, negatives: int | np.int64) -> str:
    """Say which known cells of a class are missing."""
    if not positives and not negatives:
        return "nothing known"
    return "no known negative" if positives else "no known positive"


def ranking_report(scores: Float[Array, "n c"], labels: Int8[Array, "n c"]) -> RankingReport:
    """AP of each class, their mean, and the counts behind them.

    Only classes with a known positive and a known negative are counted: without a positive there is nothing to find,
    without a negative every order is perfect. (Most published code counts the others as AP 0 and AP 1.) Raises
    DataError if a score is NaN.
    """
    result = average_precision(scores, labels)
    positives, negatives = (labels == Label.POSITIVE).sum(0), (labels == Label.NEGATIVE).sum(0)
    result[negatives == 0] = np.nan
    return RankingReport(result, positives, negatives, len(labels) - positives - negatives)


def unknown_as_absent(labels: Int8[Array, "n c"]) -> Int8[Array, "n c"]:
    """Replace unknown by negative, as most published single-positive code evaluates.

    A correct prediction of an unknown cell counts as an error, so results are pessimistic and must be named so.
    """
    return np.where(labels == Label.POSITIVE, np.int8(Label.POSITIVE), np.int8(Label.NEGATIVE))


@final
@dataclass(frozen=True, eq=False)
class PositiveOnlyReport:
    """Metrics for labels without known negatives, for example a folder per class.

    Attributes:
        images: number of images with a known positive; the others are left out.
        hit_at_1: share of them whose highest-scored class is a known positive; an unknown class counts as a miss.
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

    The result for tied classes is the expected value over random orders, so a constant model gets chance level. Raises
    DataError if a score is NaN.
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
        """Expected number of known positives among the k highest classes of each image, over random orders of ties."""
        likely = np.bincount(image, np.clip((k - above) / tied, 0, 1), len(scores))
        return likely[some].astype(np.float64)  # the histogram of nothing would be int64

    return PositiveOnlyReport(
        images=int(some.sum()),
        hit_at_1=mean_of_known(found(1)),
        recall_at={k: mean_of_known(found(k) / positives[some]) for k in ks},
        mean_rank=mean_of_known(rank),
        pessimistic=ranking_report(scores, unknown_as_absent(labels)),
    )


def class_columns(
    scores: Float[Array, "n c"], labels: Int8[Array, "n c"]
) -> Iterator[tuple[int, Float[Array, " n"], Int8[Array, " n"]]]:
    """Each class with its contiguous scores and labels, copied in blocks of classes to save memory."""
    n, classes = scores.shape
    step = max(1, BLOCK_CELLS // max(n, 1))
    for first in range(0, classes, step):
        score = np.ascontiguousarray(scores[:, first : first + step].T)
        label = np.ascontiguousarray(labels[:, first : first + step].T)
        yield from ((first + i, score[i], label[i]) for i in range(len(score)))


def refuse_nan(scores: Float[Array, "n c"]) -> None:
    """Raise DataError at the first score that is not a number."""
    # The minimum of an array with a NaN is NaN, and needs no second array.
    if scores.size and np.isnan(scores.min()):
        n, c = np.argwhere(np.isnan(scores))[0].tolist()
        raise DataError(f"the score of image {n}, class {c} is not a number; the model or its input is broken.")


def ratio(part: Real[Array, " k"], whole: Real[Array, " k"]) -> Float[Array, " k"]:
    """Quotients; nan where `whole` is 0."""
    result: Float[Array, " k"] = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return result


def mean_of_known(values: Float[Array, " k"]) -> float:
    """Mean of the values that are not nan; nan if there are none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else np.nan
