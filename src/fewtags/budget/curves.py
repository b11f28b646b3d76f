"""Learning curves: mAP as a function of the number of labels, fitted to measured runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.budget.costs import Annotation
from fewtags.errors import DataError
from fewtags.text import counted

Measure = Literal["mAP", "mAP_loc"]
Values = NDArray[np.float64]

LEAST_BUDGETS = 3
LEAST_SEEDS = 2
FARTHEST = 4.0
"""A fitted curve gives no value beyond this multiple of the largest measured number of labels."""
LEVEL = 0.95


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured run: a net trained on purchased labels.

    Attributes:
        kind: type of the labels.
        labels: (image, class) pairs bought.
        seed: of the purchase and of training; errors of runs with the same seed are assumed to be correlated.
        mean_ap: mAP on complete labels, 0..1.
        mean_ap_loc: mAP-loc likewise; None: not measured.
        photos: number of photos that the purchase could choose from; None: unknown.
    """

    kind: Annotation
    labels: int
    seed: int
    mean_ap: float
    mean_ap_loc: float | None = None
    photos: int | None = None


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """Expected value of a measure at one number of labels.

    Attributes:
        value: the expected measure, 0..1; None: no value.
        low: lower end of the interval of the expectation; None: no interval.
        high: its upper end.
        factor: labels as a multiple of the largest measured number; above 1, the value is extrapolated.
        refused: why there is no value at this number of labels.
        bound: "at least" or "at most", if the value is that at the nearest number of labels that has one: curves rise.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    factor: float = 1.0
    refused: str = ""
    bound: Literal["", "at least", "at most"] = ""

    @property
    def extrapolated(self) -> bool:
        """Whether there is a value, more than 1 % beyond the largest measured number of labels."""
        return self.value is not None and self.factor > 1.01


FORMS: Mapping[str, Callable[[Values, Values], Values]] = {
    "inverse power law": lambda z, c: z**-c,
    "exponential": lambda z, t: np.exp(-z / t),
    "hyperbola": lambda z, t: 1 / (1 + z / t),
}
"""u(z) of the forms a - b u(z): decreasing towards 0, with one parameter each."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """measure(x) = a - b u(x / x0), clipped to 0..1: it rises and saturates.

    u is an inverse power law, the usual form of learning curves (Hestness et al., Deep Learning Scaling is Predictable,
    Empirically, 2017), an exponential or a hyperbola (both in Viering and Loog, The Shape of Learning Curves: a Review,
    2023). Few points cannot distinguish these, but they differ in extrapolation. All three are therefore fitted, with
    weights exp(-(RSS - min RSS) / (2 s^2)), s^2 = min RSS / (n - 3). These are Akaike weights for noise of known
    variance, estimated from the best fit (all forms have three parameters).

    Attributes:
        labels: float64 [n], x of the runs.
        measured: float64 [n], measure of the runs.
        seeds: int64 [n].
        scale: x0.
        weights: float64 [3], of the forms in `FORMS`, with sum 1.
        fits: the best fit of each form.
        draws: R bootstrap fits; the number of each form is proportional to its weight.
        spread: standard deviation of single runs around the curve.
    """

    labels: Values
    measured: Values
    seeds: NDArray[np.int64]
    scale: float
    weights: Values
    fits: Fits
    draws: Fits
    spread: float

    @property
    def most(self) -> float:
        """Largest measured number of labels."""
        return float(self.labels.max())

    @property
    def judged(self) -> tuple[float, float]:
        """The smallest and the largest number of labels at which `estimate` gives a value."""
        return float(self.labels.min()) / FARTHEST, self.most * FARTHEST

    def expected(self, labels: float) -> float:
        """Return the weighted mean of the forms, for any number of labels."""
        return float(self.weights @ self.fits.at(labels / self.scale))

    def estimate(self, labels: float) -> Estimate:
        """Return the expected measure of a net trained on `labels` labels, with a 95 % interval of the expectation.

        Single runs scatter around it with standard deviation `spread`, which the interval does not include.
        """
        (least, most), factor, refused = self.judged, labels / self.most, ""
        if labels > most * (1 + 1e-9):
            refused = f"{factor:.3g} times the largest pilot; values are given up to {FARTHEST:g} times"
        elif labels < least * (1 - 1e-9):
            refused = f"less than 1/{FARTHEST:g} of the smallest pilot, {self.labels.min():,.0f} labels"
        if refused:
            return Estimate(value=None, factor=factor, refused=refused)
        value, (low, high) = self.expected(labels), interval(self.draws.at(labels / self.scale))
        return Estimate(value=value, low=min(low, value), high=max(high, value), factor=factor)

    def of_seed(self, labels: float, seed: int) -> Values:
        """Fit a and b to the runs of one seed, with the bootstrap shapes; return the measure, float64 [R] in 0..1."""
        own = self.seeds == seed
        u = self.draws.falling(self.labels[own] / self.scale)  # [R, k]
        at = self.draws.falling(np.array([labels / self.scale]))[:, 0]
        from_mean, mean = u - u.mean(1, keepdims=True), float(self.measured[own].mean())
        slope = (from_mean @ self.measured[own]) / (from_mean**2).sum(1)
        found: Values = np.clip(mean + slope * (at - u.mean(1)), 0.0, 1.0)
        return found


@final
@dataclass(frozen=True, eq=False)
class Fits:
    """Curves a - b u(z; shape) of several forms; all arrays are [r]."""

    form: NDArray[np.int64]  # position in `FORMS`
    a: Values  # saturation, at least 0; curves are clipped to 1
    b: Values  # at least 0
    shape: Values  # the parameter of u

    def at(self, z: float) -> Values:
        """Return the value of each fit at z, float64 [r] in 0..1."""
        return np.clip(self.a - self.b * self.falling(np.array([z]))[:, 0], 0.0, 1.0)

    def falling(self, z: Values) -> Values:
        """Return u(z) of each fit at each z [k], float64 [r, k]."""
        shape = self.shape[:, None]
        return np.select([self.form[:, None] == i for i in range(len(FORMS))], [f(z, shape) for f in FORMS.values()])

    def __add__(self, other: Fits) -> Fits:
        return Fits(*(np.concatenate([column, getattr(other, name)]) for name, column in vars(self).items()))


def fit_curve(results: Sequence[Result], measure: Measure = "mAP", *, draws: int = 1000, seed: int = 0) -> Curve:
    """Fit a curve to the runs of one type by least squares, with intervals from a bootstrap of `draws` fits.

    For a given shape, a curve is linear in a and b, whose best values have a closed form; the shape is the best of 60.

    The bootstrap is parametric. Residuals are separated into a seed effect, which all budgets of a seed share (they are
    nested), and the rest; new measurements are drawn with these variances and fitted again. The variances come from few
    runs, so each draw scales them by their chi-squared distributions: with two seeds the interval is wide.

    Raises:
        DataError: fewer than three budgets with at least two seeds; the message says what to run.
    """
    if problem := too_few(results):
        raise DataError(problem)
    measured = [r.mean_ap if measure == "mAP" else r.mean_ap_loc for r in results]
    assert None not in measured, "a run lacks the measure"
    x, y = np.array([r.labels for r in results], np.float64), np.array(measured, np.float64)
    seeds = np.array([r.seed for r in results], np.int64)
    scale = float(np.exp(np.log(x).mean()))
    z, rng = x / scale, np.random.default_rng(seed)
    found = [_fit_form(form, z, y[None]) for form in range(len(FORMS))]
    errors = np.array([float(((y - curve) ** 2).sum()) for _, (curve,) in found])
    weights = np.exp(-(errors - errors.min()) / max(2 * errors.min() / (len(y) - 3), 1e-12))
    weights /= weights.sum()
    noise, spread = _noise(y - found[int(errors.argmin())][1][0], seeds, draws, rng)
    drawn = np.split(noise, np.round(np.cumsum(weights)[:-1] * draws).astype(int))
    again = [_fit_form(i, z, curve + part)[0] for i, ((_, curve), part) in enumerate(zip(found, drawn, strict=True))]
    first = [fits for fits, _ in found]
    return Curve(
        labels=x,
        measured=y,
        seeds=seeds,
        scale=scale,
        weights=weights,
        fits=first[0] + first[1] + first[2],
        draws=again[0] + again[1] + again[2],
        spread=spread,
    )


def difference(first: Curve, labels: float, second: Curve, others: float) -> tuple[float, float, float] | None:
    """Return the expectation of one curve at `labels` minus that of another at `others`, with a 95 % interval.

    The difference is paired by seed: purchases of a seed are nested across types, so their errors are correlated. The
    runs of each seed are fitted with the bootstrap shapes, and the differences of the seeds get Student's t
    distribution. Draws of both curves are paired in the order of their forms; most pairs, but not all, have the same
    form, because each curve has its own weights. The difference of `Curve.expected`, which fits all seeds together, is
    close within the measured range, and may differ by mAP points far beyond it.

    Returns:
        median, low and high of one distribution; None if fewer than two seeds have at least three runs of both.
    """
    counts = [Counter(curve.seeds.tolist()) for curve in (first, second)]
    shared = sorted(seed for seed, n in (counts[0] & counts[1]).items() if n >= LEAST_BUDGETS)
    if len(shared) < LEAST_SEEDS:
        return None
    found = np.stack([first.of_seed(labels, seed) - second.of_seed(others, seed) for seed in shared], 1)
    student = np.random.default_rng(0).standard_t(len(shared) - 1, len(found))
    drawn = found.mean(1) + student * (found.std(1, ddof=1) / math.sqrt(len(shared)))
    return float(np.median(drawn)), *interval(drawn)


def interval(draws: Values) -> tuple[float, float]:
    """Return the central 95 % interval of draws [R]."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def too_few(results: Sequence[Result]) -> str:
    """Return what to run before a curve can be fitted to the runs of one type; empty if the runs suffice."""
    seeds: dict[int, set[int]] = {}
    for result in results:
        seeds.setdefault(result.labels, set()).add(result.seed)
    good = sum(len(found) >= LEAST_SEEDS for found in seeds.values())
    if good >= LEAST_BUDGETS:
        return ""
    every = len({result.seed for result in results})
    kind = results[0].kind.described() if results else "this type"
    return (
        f"{kind}: {counted(len(seeds), 'budget')} and {counted(every, 'seed')} are too few for a learning curve; run "
        f"at least {LEAST_BUDGETS} budgets, each with at least the same {LEAST_SEEDS} seeds (better: 4 budgets, each "
        "twice the one before, with 3 seeds)."
    )


def _fit_form(form: int, z: Values, y: Values) -> tuple[Fits, Values]:
    """The best curve of a form for each row of y [r, n], and its values at z, [r, n]."""
    # Outside this range, an exponential or hyperbola is a straight line, or constant from the first point on.
    low, high = (0.02, 3.0) if form == 0 else (float(z.min()) / 4, 3 * float(z.max()))
    shapes = np.geomspace(low, high, 60)
    u = list(FORMS.values())[form](z, shapes[:, None])  # [s, n]
    mean_u, mean_y = u.mean(1), y.mean(1)[:, None]
    from_mean = u - mean_u[:, None]
    b = np.maximum(-(y @ from_mean.T) / (from_mean**2).sum(1), 0.0)
    a = mean_y + b * mean_u
    # |y - a + b u|^2 at the best a and b: the residual variance of y
    error = ((y - mean_y) ** 2).sum(1)[:, None] - b**2 * (from_mean**2).sum(1)
    best, rows = error.argmin(1), np.arange(len(y))
    fits = Fits(np.full(len(y), form), a[rows, best], b[rows, best], shapes[best])
    return fits, fits.a[:, None] - fits.b[:, None] * u[best]


def _noise(residual: Values, seeds: NDArray[np.int64], draws: int, rng: np.random.Generator) -> tuple[Values, float]:
    """Draw new residuals [R, n]; also return the standard deviation of a single run."""
    _, of, runs = np.unique(seeds, return_inverse=True, return_counts=True)
    n, groups = len(residual), len(runs)
    means = np.bincount(of, residual) / runs
    free, per_seed = n - 3 - (groups - 1), n / groups
    if free < 1:  # many seeds with one or two runs each: the seed effect cannot be separated
        variance = float((residual**2).sum()) / (n - 3)
        scaled = variance * (n - 3) / rng.chisquare(n - 3, draws)
        return rng.standard_normal((draws, n)) * np.sqrt(scaled)[:, None], math.sqrt(variance)
    between = float((runs * means**2).sum()) / (groups - 1)
    within = float(((residual - means[of]) ** 2).sum()) / free
    drawn_within = within * free / rng.chisquare(free, draws)
    drawn_between = between * (groups - 1) / rng.chisquare(groups - 1, draws)
    effect = np.sqrt(np.maximum(drawn_between - drawn_within, 0.0) / per_seed)
    noise = rng.standard_normal((draws, groups))[:, of] * effect[:, None]
    noise += rng.standard_normal((draws, n)) * np.sqrt(drawn_within)[:, None]
    return noise, math.sqrt(within + max(between - within, 0.0) / per_seed)
