"""The mean number of classes in an image (K) and the share of images with each class, from known labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int8
from numpy import ndarray as Array
from numpy.typing import NDArray
from scipy import stats

from fewtags.errors import ConfigError
from fewtags.labels import Label

FAR = 3.0
"""Standard errors from which on labels are not blank at random."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Counts:
    """K and class priors of N images.

    Attributes:
        mean: K, the sum of `prior` over the classes that have a known cell.
        interval: (low, high) of K.
        prior: float64 [C], share of images with each class; nan without a known cell.
        prior_interval: float64 [C, 2], (low, high) of each share.
        images: number of images with a known cell.
        level: confidence level of the intervals.
    """

    mean: float
    interval: tuple[float, float]
    prior: NDArray[np.float64]
    prior_interval: NDArray[np.float64]
    images: int
    level: float = 0.95


def estimate_counts(labels: Int8[Array, "m c"], population: int, *, level: float = 0.95) -> Counts:
    """Estimate K and class priors of `population` images from the known cells of m of them.

    The known cells of a class must be a random part of its cells: those of m random images that are labelled
    completely, or cells whose state had no influence on whether they were labelled. An unknown cell does not count.

    - prior_c = positives / known cells of class c. Its interval is that of Clopper and Pearson (Biometrika 1934) with
      the number of known cells divided by (N - m_c) / (N - 1), since a part of a finite set is drawn without
      replacement (Korn and Graubard, Survey Methodology 1998). It is narrowed to what the known cells leave possible.
    - K = sum of prior_c. Its variance is linearised: the sum over images of u_i^2 with
      u_i = sum over known cells of (z_ic - prior_c) / m_c, which includes the covariance of classes in an image. Where
      cells of these images are unknown, it is at least the sum of the variances of the classes, because other cells
      of other images are hidden for each class. Two more images, one class (at most K) above and below the mean, are
      added, so that equal counts are not certain. The limits are those of Fay and Feuer (Statistics in Medicine 1997),
      exact for Poisson counts.

    `docs/expected_number.md` has the measured coverage.

    Args:
        labels: values of `Label`; the other images of the population need no row.
        population: N, at least m.
        level: of the intervals, in (0, 1).

    Raises:
        ConfigError: `level` out of range.
    """
    if not 0 < level < 1:
        raise ConfigError(f"the level of an interval must be between 0 and 1, got {level}.")
    assert len(labels) <= population, (len(labels), population)
    known, positive = labels != Label.UNKNOWN, labels == Label.POSITIVE
    cells, found = known.sum(0), positive.sum(0)
    with np.errstate(invalid="ignore"):
        prior = found / cells
    some = cells > 0
    left = 1 - cells / max(population, 1)  # of a class completely known, nothing is uncertain
    u = ((positive - prior) * known)[:, some] * (np.sqrt(left) / np.maximum(cells, 1))[some]
    images = int(known.any(1).sum())
    mean, m = float(prior[some].sum()), float(cells[some].mean()) if some.any() else 0.0
    open_ = float(left[some].mean()) if some.any() else 0.0
    variance = float(np.square(u.sum(1)).sum())
    if not known[known.any(1)].all():
        variance = max(variance, float(np.square(u).sum()))
    variance *= images / max(images - 1, 1)
    variance = (variance * max(m - 1, 0.0) + 2 * min(mean, 1.0) * open_ / max(m, 1.0)) / (m + 1)
    low, high = _fay_feuer(mean, variance, open_ / max(m, 1.0), level)
    least, most = float((found / population)[some].sum()), float((1 - (cells - found) / population)[some].sum())
    return Counts(
        mean=mean,
        interval=(min(max(low, least), mean), max(min(high, most), mean)),
        prior=prior,
        prior_interval=_clopper_pearson(found, cells, population, level),
        images=images,
        level=level,
    )


def _fay_feuer(mean: float, variance: float, one: float, level: float) -> tuple[float, float]:
    """Limits of a mean of counts; `one` is what one more class in one image adds to it."""
    low = _gamma_limit(mean, variance, (1 - level) / 2)
    return low, _gamma_limit(mean + one, variance + one**2, (1 + level) / 2)


def _gamma_limit(mean: float, variance: float, share: float) -> float:
    """Quantile of the gamma distribution with this mean and variance."""
    if mean <= 0 or variance <= 0:
        return mean
    return float(stats.gamma.ppf(share, mean**2 / variance, scale=variance / mean))


def _clopper_pearson(
    found: NDArray[np.integer], cells: NDArray[np.integer], population: int, level: float
) -> NDArray[np.float64]:
    """Limits of `found` positives among `cells` known cells of each class, float64 [C, 2]; nan without known cells."""
    x, m = found.astype(np.float64), cells.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        n = m * (population - 1) / (population - m)
        least, most, hits = x / population, 1 - (m - x) / population, x / m * n
        low = np.where(x > 0, stats.beta.ppf((1 - level) / 2, hits, n - hits + 1), 0.0)
        high = np.where(x < m, stats.beta.ppf((1 + level) / 2, hits + 1, n - hits), 1.0)
        whole = m == population
        low, high = np.where(whole, least, np.maximum(low, least)), np.where(whole, most, np.minimum(high, most))
        limits: NDArray[np.float64] = np.where((m > 0)[:, None], np.stack([low, high], 1), np.nan)
    return limits


def possible_mean(labels: Int8[Array, "n c"]) -> tuple[float, float]:
    """Smallest and largest K that the known cells of all images leave possible, without any assumption."""
    images, classes = labels.shape
    return (
        float((labels == Label.POSITIVE).sum() / max(images, 1)),
        float(classes - (labels == Label.NEGATIVE).sum() / max(images, 1)),
    )


@final
@dataclass(frozen=True)
class ShareByKnown:
    """Whether cells are blank at random: positives among the known cells of images with many and few known cells.

    Attributes:
        many: share of positives in images with more known cells than the median image.
        few: share in the other images, with as many cells of each class as weigh in `many`.
        z: difference over its standard error, for independent cells.
    """

    many: float
    few: float
    z: float


def share_by_known(labels: Int8[Array, "n c"]) -> ShareByKnown | None:
    """Compare positives in images with many and with few known cells, class by class (Mantel and Haenszel, 1959).

    If the state of a cell has no influence on whether it is labelled, both shares agree; if people label what they
    see, they need not. Agreement proves nothing. None if all images have equally many known cells, or no class has
    known cells in both parts.
    """
    known = labels != Label.UNKNOWN
    amount = known.sum(1)
    rows = amount > 0
    many = amount > np.median(amount[rows]) if rows.any() else rows
    parts = [known & part[:, None] for part in (many, rows & ~many)]
    m = np.array([part.sum(0) for part in parts], np.float64)
    both = (m > 0).all(0)
    if not both.any():
        return None
    m = m[:, both]
    found = np.array([((labels == Label.POSITIVE) & part).sum(0)[both] for part in parts])
    weight = m[0] * m[1] / m.sum(0)
    pooled = found.sum(0) / m.sum(0)
    first, second = ((weight * x).sum() / weight.sum() for x in found / m)
    error = float((weight * pooled * (1 - pooled)).sum()) ** 0.5 / float(weight.sum())
    return ShareByKnown(float(first), float(second), float((first - second) / error) if error else 0.0)


@final
@dataclass(frozen=True)
class ScoreByKnown:
    """Whether cells are blank at random, by the scores of a model that has not seen these images.

    Attributes:
        area: probability that a known cell has a higher score than an unknown cell of its class; one half if cells are
            blank at random.
        z: difference to one half over its standard error, for independent cells.
        known: number of known cells that were compared.
    """

    area: float
    z: float
    known: int


def score_by_known(scores: Float[Array, "n c"], labels: Int8[Array, "n c"]) -> ScoreByKnown | None:
    """Compare the scores of known and unknown cells, class by class (Mann and Whitney, 1947; van Elteren, 1960).

    People who label what they see, or what a model suggested, leave cells with low scores blank. None if no class has
    both kinds of cells.
    """
    known = labels != Label.UNKNOWN
    m, n = known.sum(0).astype(np.float64), (~known).sum(0).astype(np.float64)
    both = (m > 0) & (n > 0)
    if not both.any():
        return None
    m, n = m[both], n[both]
    ranks = stats.rankdata(scores[:, both], axis=0)
    wins = (ranks * known[:, both]).sum(0) - m * (m + 1) / 2
    error = float((m * n * (m + n + 1) / 12).sum()) ** 0.5
    return ScoreByKnown(float(wins.sum() / (m * n).sum()), float((wins - m * n / 2).sum() / error), int(m.sum()))


def counts_from_tags(prob: Float[Array, "n c"]) -> tuple[float, NDArray[np.float64]]:
    """Estimate K and class priors from the probability that the one tag of an image is each class; rows add up to 1.

    If the tag is one of the classes of an image at random, class c is the tag with probability
    p_c = E[z_c / n | image], n being the number of classes in the image. No class is in an image with a probability
    above 1, so that 1 / max_c p_c is at least the (harmonic) mean of n for such images. It is equal if the most
    probable class is certainly there, which is assumed: prior_c = mean over images of p_c / max p, and K is their sum.
    K is too high if images hardly tell which tag they have, and too low if the probabilities are too confident, so they
    must come from a model that has not seen the tags.

    Returns:
        K, and float64 [C].
    """
    share = prob.astype(np.float64) / prob.max(1, keepdims=True)
    prior: NDArray[np.float64] = share.mean(0)
    return float(prior.sum()), prior
