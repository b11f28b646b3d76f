"""Whether probabilities agree with frequencies, and how logits are changed so that they do.

Arrays are logits or prob [n, c] and labels [n, c] (values of `Label`) of n images and c classes. A class is *judged* if
at least half of its cells are known and one of them is negative: labels of fewer cells say more about what people
label than about how often the class occurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.ranking import refuse_nan

BINS = 15
"""Bins of `calibration_report`, as in Guo et al. (ICML 2017)."""
SPREAD = 3.0
"""Standard deviation of the offsets of classes around their mean that `fit_calibration` expects, in logits."""
JUDGED_SHARE = 0.5
"""Share of known cells from which on a class is judged."""
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
    """Return sigmoid(slope_c logit + b_c), float64 [N, C], with the b_c of `count_offsets`.

    The order within a class stays as it is.
    """
    scaled = np.asarray(logits, np.float64) * slope
    return np.asarray(expit(scaled + count_offsets(scaled, labels, expected)), np.float64)


def count_offsets(
    logits: NDArray[np.floating], labels: NDArray[np.int8], expected: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return float64 [C], b_c such that the sum of sigmoid(logit + b_c) over the unknown cells is `expected`.

    A model that is trained on positives and assumed negatives gives unknown cells too low a probability. A class
    without unknown cells has b_c = 0.

    Args:
        logits: [N, C], finite.
        labels: [N, C], values of `Label`.
        expected: [C], as from `expected_unknown`.
    """
    unknown = labels == Label.UNKNOWN
    some = unknown.any(0)
    # At the ends of the bracket, every unknown cell is on one side of the mean probability that is wanted.
    target = np.zeros(len(some))
    target[some] = logit(np.asarray(expected, np.float64)[some] / unknown.sum(0)[some])
    low = target - np.where(unknown, logits, -np.inf).max(0, initial=-np.inf)
    high = target - np.where(unknown, logits, np.inf).min(0, initial=np.inf)
    low[~some] = high[~some] = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = (expit(logits + middle) * unknown).sum(0) < expected
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(np.where(some, (low + high) / 2, 0.0), np.float64)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationReport:
    """How far probabilities are from frequencies, over the known cells of the judged classes.

    Attributes:
        error: expected calibration error (Naeini et al., AAAI 2015): the mean over cells of the distance between the
            mean probability and the share of positives of their bin. Bins are equally wide. nan without a judged class.
        brier: mean squared distance between probability and label. nan without a judged class.
        cells: number of cells.
        classes: number of judged classes.
        counts: int64 [b], cells of each bin.
        prob: float64 [b], mean probability of each bin; nan for an empty one.
        share: float64 [b], share of positives of each bin; nan for an empty one.
    """

    error: float
    brier: float
    cells: int
    classes: int
    counts: NDArray[np.int64]
    prob: NDArray[np.float64]
    share: NDArray[np.float64]


def judged_classes(labels: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return bool [C], the classes of which at least half of the cells are known, and one is negative."""
    known, negative = labels != Label.UNKNOWN, labels == Label.NEGATIVE
    judged: NDArray[np.bool_] = negative.any(0) & (known.sum(0) >= JUDGED_SHARE * len(labels))
    return judged


def fitted_classes(labels: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return bool [C], the judged classes, if one of them has a positive: without one, no finite offset fits."""
    judged = judged_classes(labels)
    return judged & bool((labels[:, judged] == Label.POSITIVE).any())


def calibration_report(prob: NDArray[np.floating], labels: NDArray[np.int8], *, bins: int = BINS) -> CalibrationReport:
    """Compare probabilities with the known cells of the judged classes.

    Raises:
        DataError: a probability is NaN or outside 0..1.

    >>> labels = np.array([[1], [-1], [1], [1]], np.int8)
    >>> calibration_report(np.array([[0.9], [0.9], [0.9], [0.9]]), labels).error.__round__(2)  # .9 and 3 of 4
    0.15
    """
    refuse_nan(prob)
    if prob.size and not (prob.min() >= 0 and prob.max() <= 1):
        raise DataError(f"calibration needs probabilities in 0..1, got {prob.min():g}..{prob.max():g}.")
    judged = judged_classes(labels)
    known = (labels != Label.UNKNOWN) & judged
    p, y = np.asarray(prob, np.float64)[known], (labels == Label.POSITIVE)[known]
    place = np.minimum((p * bins).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean, share = (np.bincount(place, values, minlength=bins) / counts for values in (p, y.astype(np.float64)))
    nothing = not len(p)
    return CalibrationReport(
        error=float("nan") if nothing else float(np.nansum(counts * np.abs(mean - share)) / len(p)),
        brier=float("nan") if nothing else float(np.mean((p - y) ** 2)),
        cells=len(p),
        classes=int(judged.sum()),
        counts=counts.astype(np.int64),
        prob=mean,
        share=share,
    )


@final
@dataclass(frozen=True, eq=False)
class Calibration:
    """A change of logits that keeps the order of the images in every class: slope x logit + offset_c.

    Attributes:
        slope: above 0, one for all classes.
        offsets: float64 [C].
    """

    slope: float
    offsets: NDArray[np.float64]

    @classmethod
    def none(cls, classes: int) -> Calibration:
        """Return the calibration that changes nothing."""
        return cls(1.0, np.zeros(classes))

    def logits(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the changed logits, float64 [n, C]."""
        changed: NDArray[np.float64] = self.slope * np.asarray(logits, np.float64) + self.offsets
        return changed

    def thresholds(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the thresholds [C] that decide as `values` did; 0 and 1 stay."""
        changed: NDArray[np.float64] = expit(self.slope * logit(np.asarray(values, np.float64)) + self.offsets)
        return changed

    def after(self, first: Calibration) -> Calibration:
        """Return the calibration that does `first` and then this one."""
        return Calibration(self.slope * first.slope, self.slope * first.offsets + self.offsets)

    @property
    def inverse(self) -> Calibration:
        """The calibration that undoes this one."""
        return Calibration(1 / self.slope, -self.offsets / self.slope)


def fit_calibration(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    share: NDArray[np.floating],
    *,
    spread: float = SPREAD,
) -> Calibration:
    """Fit a slope for all classes and an offset for each (Platt, 1999, with one slope, which few labels can fit).

    In the classes of `fitted_classes`, the known labels decide: the penalised likelihood of logistic regression, in
    which offsets are N(m, spread^2) with any m, and log slope is N(0, 1). The offset of another class fits the sum of
    its probabilities to the number of positives that `share` expects; where that is nan, it is the mean offset of the
    fitted classes. Without a fitted class, the slope is 1, and this mean 0.

    Args:
        logits: [N, C], finite.
        labels: [N, C], values of `Label`.
        share: [C], expected share of images that contain each class, in 0..1; nan if nothing is known about it.
        spread: standard deviation of the offsets around their mean, above 0.

    Raises:
        DataError: there is no image, or a logit is not finite.
    """
    if not len(labels):
        raise DataError("there is no photo to calibrate on.")
    refuse_nan(logits)
    if not np.isfinite(logits).all():
        n, c = np.argwhere(~np.isfinite(logits))[0].tolist()
        raise DataError(f"the score of image {n}, class {c} is infinite; the model or its input is broken.")
    scores, fitted = np.asarray(logits, np.float64), fitted_classes(labels)
    slope, offsets = 1.0, np.zeros(labels.shape[1])
    if fitted.any():
        slope, offsets[fitted] = _logistic(scores[:, fitted], labels[:, fitted], spread)
        offsets[~fitted] = offsets[fitted].mean()
    rest = ~fitted & ~np.isnan(share)
    if rest.any():
        few = labels[:, rest]
        offsets[rest] = count_offsets(slope * scores[:, rest], few, expected_unknown(few, np.asarray(share)[rest]))
    return Calibration(slope, offsets)


def _logistic(
    scores: NDArray[np.float64], labels: NDArray[np.int8], spread: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the slope, and an offset for each class, with the highest penalised likelihood of the known cells."""
    known, y = labels != Label.UNKNOWN, (labels == Label.POSITIVE).astype(np.float64)
    centre = float(scores[known].mean())  # without it, slope and offsets would be tied to each other
    moved = np.where(known, scores - centre, 0.0)

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        log_slope, middle, own = parameters[0], parameters[1], parameters[2:]
        slope = np.exp(log_slope)
        z = slope * moved + middle + own
        wrong = np.where(known, expit(z) - y, 0.0)
        likelihood = np.where(known, np.logaddexp(0.0, z) - y * z, 0.0).sum()
        value = likelihood + 0.5 * (own @ own) / spread**2 + 0.5 * log_slope**2
        by_slope = slope * (wrong * moved).sum() + log_slope
        return float(value), np.concatenate([[by_slope, wrong.sum()], wrong.sum(0) + own / spread**2])

    start = np.zeros(2 + scores.shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-6})
    slope = float(np.exp(found.x[0]))
    return slope, found.x[1] + found.x[2:] - slope * centre
