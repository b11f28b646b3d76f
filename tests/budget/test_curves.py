"""Learning curves: closed-form fits, an optimiser as the oracle, and how often intervals hold what they promise."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from fewtags.budget.costs import Annotation
from fewtags.budget.curves import FORMS, Result, difference, fit_curve, too_few
from fewtags.errors import DataError

BUDGETS = (500, 1000, 2000, 4000)


def results(values, seeds=(0, 1, 2), budgets=BUDGETS, kind=Annotation.TAGS):
    """Runs at each budget and seed; `values` is called with both."""
    return [Result(kind=kind, labels=x, seed=s, mean_ap=float(values(x, s))) for s in seeds for x in budgets]


def noisy(truth, rng, seeds=3, between=0.01, within=0.01):
    effect = rng.normal(0, between, seeds)
    return results(lambda x, s: np.clip(truth(x) + effect[s] + rng.normal(0, within), 0, 1), range(seeds))


def test_a_power_law_is_found():
    """0.6 - 0.3 (x / 500)^-0.5: at 500, 1000, 2000, 4000 it is .3, .3879, .45, .4939; at 8000 0.6 - 0.3 / 4 = .525.

    The grid of exponents has steps of 9 %, so that the value beyond is right to about a thousandth.
    """
    curve = fit_curve(results(lambda x, s: 0.6 - 0.3 * (x / 500) ** -0.5))
    assert curve.weights.argmax() == list(FORMS).index("inverse power law")
    assert curve.expected(2000) == pytest.approx(0.45, abs=1e-4)
    found = curve.estimate(8000)
    assert found.value == pytest.approx(0.525, abs=2e-3)
    assert (found.factor, found.extrapolated) == (2.0, True)
    assert curve.spread < 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_the_fit_is_as_good_as_an_optimisers(form):
    """scipy's optimiser, started at the truth, ends at no smaller error than 1.01 times ours."""
    rng, u = np.random.default_rng(5), FORMS[form]
    shape = 0.5 if form == "inverse power law" else 1.5
    z = np.array(BUDGETS) / np.exp(np.log(BUDGETS).mean())
    runs = results(
        lambda x, s: 0.6 - 0.3 * u(np.array(x / np.exp(np.log(BUDGETS).mean())), shape) + rng.normal(0, 0.01)
    )
    y = np.array([run.mean_ap for run in runs])
    curve, place = fit_curve(runs, draws=20), list(FORMS).index(form)
    a, b, s = (float(getattr(curve.fits, name)[place]) for name in ("a", "b", "shape"))
    ours = float(((y - np.tile(a - b * u(z, np.array(s)), 3)) ** 2).sum())
    best = least_squares(
        lambda p: y - np.tile(p[0] - p[1] * u(z, p[2]), 3), [0.6, 0.3, shape], bounds=([0, 0, 0.02], [9, 9, 9])
    )
    assert ours <= 1.01 * 2 * best.cost


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_estimates_are_ordered_and_within_0_and_1(values):
    """Whatever was measured: low <= value <= high, all in 0..1, and the expectation never falls with more labels."""
    runs = [
        Result(kind=Annotation.TAGS, labels=x, seed=s, mean_ap=values[4 * s + i])
        for s in range(3)
        for i, x in enumerate(BUDGETS)
    ]
    curve = fit_curve(runs, draws=40)
    found = [curve.estimate(x) for x in (200, 500, 3000, 16000)]
    for estimate in found:
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    expected = [estimate.value for estimate in found]
    assert all(b >= a - 1e-12 for a, b in pairwise(expected))


def test_order_and_scale_of_the_runs_do_not_matter():
    rng = np.random.default_rng(3)
    runs = noisy(lambda x: 0.6 - 0.3 * (x / 500) ** -0.5, rng)
    curve = fit_curve(runs)
    shuffled = fit_curve([runs[i] for i in rng.permutation(len(runs))])
    larger = fit_curve([Result(kind=r.kind, labels=10 * r.labels, seed=r.seed, mean_ap=r.mean_ap) for r in runs])
    for x in (700, 4000, 9000):
        assert shuffled.expected(x) == pytest.approx(curve.expected(x), abs=1e-9)
        assert larger.expected(10 * x) == pytest.approx(curve.expected(x), abs=1e-9)


TRUTHS = {
    "power law": lambda x: 0.62 - 0.35 * (x / 500) ** -0.4,
    "exponential": lambda x: 0.6 - 0.35 * np.exp(-x / 2500),
    "hyperbola": lambda x: 0.6 * x / (x + 1200),
    "logarithm": lambda x: 0.2 + 0.06 * np.log(x / 500),  # none of the forms
}


@pytest.mark.parametrize(("truth", "least"), [*((n, 0.88) for n in list(TRUTHS)[:3]), ("logarithm", 0.75)])
def test_intervals_cover_the_truth(truth, least):
    """95 % intervals of 100 simulated pilots at the largest budget and at twice it: no fewer than the bound cover.

    A true rate of 0.95 falls below 0.88 with probability 0.002. A logarithm is none of the forms; twice the largest
    budget it is covered less often, which is why far extrapolation is refused.
    """
    rng, curve = np.random.default_rng(11), TRUTHS[truth]
    covered = np.zeros(2)
    for _ in range(100):
        fitted = fit_curve(noisy(curve, rng), draws=200)
        for i, x in enumerate((4000, 8000)):
            found = fitted.estimate(x)
            covered[i] += found.low <= curve(x) <= found.high
    assert (covered >= 100 * least).all(), covered


def pair(rng, seeds=3, noise=0.005):
    """Two types that share the seed's effect: .62 and .60 at the top, the second .94 of the first's labels."""
    effect, runs = rng.normal(0, 0.02, seeds), []
    for truth, share in ((TRUTHS["power law"], 1), (lambda x: 0.6 - 0.36 * (x / 500) ** -0.45, 0.94)):
        budgets = [round(share * x) for x in BUDGETS]
        runs.append(results(lambda x, s, t=truth: t(x) + effect[s] + rng.normal(0, noise), range(seeds), budgets))
    return runs


def test_differences_are_covered():
    """100 simulated pairs of pilots: at the largest budget and at twice it at least 88 intervals hold the truth."""
    rng, covered = np.random.default_rng(12), np.zeros(2)
    for _ in range(100):
        first, second = (fit_curve(runs, draws=200) for runs in pair(rng))
        for i, times in enumerate((1, 2)):
            x, y = 4000 * times, 3760 * times
            middle, low, high = difference(first, x, second, y)
            assert low <= middle <= high
            covered[i] += low <= TRUTHS["power law"](x) - (0.6 - 0.36 * (y / 500) ** -0.45) <= high
    assert (covered >= 88).all(), covered


def test_what_seeds_share_does_not_blur_a_difference():
    """Seeds differ by .02, types by about .01: the difference is known better than either type."""
    first, second = (fit_curve(runs) for runs in pair(np.random.default_rng(3), 5, 0.001))
    middle, low, high = difference(first, 4000, second, 3760)
    own = first.estimate(4000)
    assert high - low < (own.high - own.low) / 4
    assert low > 0
    assert middle == pytest.approx(first.expected(4000) - second.expected(3760), abs=0.002)
    assert difference(second, 3760, first, 4000) == pytest.approx((-middle, -high, -low), abs=0.002)


def test_a_difference_is_the_median_of_what_its_interval_is_of():
    """Two seeds, first minus second .02 and .04 at every budget: Student's t with 1 degree of freedom around .03.

    The draws have the centre .03 and the scale .02 / sqrt(2) / sqrt(2) = .01, and 95 % of them are within 12.7 of it.
    """
    curve = fit_curve(results(lambda x, s: 0.5 - 0.2 * (x / 500) ** -0.5, (0, 1)))
    better = fit_curve(results(lambda x, s: 0.52 + 0.02 * s - 0.2 * (x / 500) ** -0.5, (0, 1)))
    middle, low, high = difference(better, 4000, curve, 4000)
    assert middle == pytest.approx(0.03, abs=0.002)
    assert (low, high) == pytest.approx((0.03 - 0.127, 0.03 + 0.127), abs=0.06)


def test_weights_are_those_of_noise_of_the_best_fits_variance():
    """Both by the formula: RSS of each form from its fit, n - 3 = 9."""
    rng = np.random.default_rng(7)
    curve = fit_curve(noisy(TRUTHS["exponential"], rng))
    falling = curve.fits.falling(curve.labels / curve.scale)
    errors = ((curve.measured - curve.fits.a[:, None] + curve.fits.b[:, None] * falling) ** 2).sum(1)
    variance = errors.min() / 9
    expected = [np.exp(-(e - errors.min()) / (2 * variance)) for e in errors]
    np.testing.assert_allclose(curve.weights, expected / np.sum(expected), rtol=1e-9)
    assert np.ptp(curve.weights) > 0.01


def test_each_curve_has_draws_of_a_form_by_its_own_weights():
    """So the draws of two curves, both in the order of the forms, need not be of one form each."""
    first, second = (fit_curve(runs) for runs in pair(np.random.default_rng(3)))
    for curve in (first, second):
        assert (np.diff(curve.draws.form) >= 0).all()
        np.testing.assert_allclose(np.bincount(curve.draws.form, minlength=3) / 1000, curve.weights, atol=0.001)
    assert (first.draws.form != second.draws.form).any()


def test_a_difference_needs_common_seeds():
    runs = results(lambda x, s: 0.5 - 100 / x)
    curve = fit_curve(runs)
    assert difference(curve, 4000, curve, 4000) == (0.0, 0.0, 0.0)
    others = fit_curve([Result(kind=r.kind, labels=r.labels, seed=r.seed + 2, mean_ap=r.mean_ap) for r in runs])
    assert difference(curve, 4000, others, 4000) is None


def test_fewer_seeds_and_more_noise_make_wider_intervals():
    truth = TRUTHS["power law"]

    def width(seeds, noise):
        rng = np.random.default_rng(1)
        found = [fit_curve(noisy(truth, rng, seeds, noise, noise), draws=200).estimate(4000) for _ in range(20)]
        return np.median([estimate.high - estimate.low for estimate in found])

    assert width(2, 0.01) > 1.5 * width(5, 0.01)
    assert width(3, 0.03) > 2 * width(3, 0.01)


def test_spread_is_that_of_single_runs():
    """Seed effects of .03 and noise of .01: single runs scatter by sqrt(.03^2 + .01^2) = .0316 around the curve."""
    rng = np.random.default_rng(2)
    found = [fit_curve(noisy(TRUTHS["power law"], rng, 8, 0.03, 0.01), draws=2).spread for _ in range(30)]
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.0316, rel=0.15)


def test_many_seeds_with_one_run_each():
    """Seeds that are never seen twice cannot be told from noise: all of it is noise, on n - 3 degrees of freedom."""
    rng = np.random.default_rng(4)
    truth = TRUTHS["power law"]
    runs = [
        Result(kind=Annotation.TAGS, labels=x, seed=10 * i + j, mean_ap=truth(x) + rng.normal(0, 0.01))
        for i, x in enumerate(BUDGETS)
        for j in range(3)
    ]
    found = fit_curve(runs).estimate(4000)
    assert found.low <= truth(4000) <= found.high
    assert 0.005 < found.high - found.low < 0.1


def test_far_beyond_the_pilot_nothing_is_said():
    curve = fit_curve(results(lambda x, s: 0.6 - 0.3 * (x / 500) ** -0.5 + 0.001 * s))
    assert curve.estimate(16000).value is not None
    found = curve.estimate(20000)
    assert (found.value, found.low, found.extrapolated) == (None, None, False)
    assert found.refused == "5 times the largest pilot; values are given up to 4 times"
    assert curve.estimate(100).refused == "less than 1/4 of the smallest pilot, 500 labels"


@pytest.mark.parametrize(
    ("budgets", "seeds", "told"),
    [((500, 1000), (0, 1, 2), "2 budgets and 3 seeds are"), (BUDGETS, (0,), "4 budgets and 1 seed are")],
)
def test_too_few_runs_say_what_to_run(budgets, seeds, told):
    runs = results(lambda x, s: 0.5, seeds, budgets)
    with pytest.raises(DataError) as error:
        fit_curve(runs)
    assert str(error.value) == (
        f"tags (I): {told} too few for a learning curve; run at least 3 budgets, each with at least the same 2 seeds "
        "(better: 4 budgets, each twice the one before, with 3 seeds)."
    )


def test_three_budgets_with_two_seeds_are_enough():
    assert too_few(results(lambda x, s: 0.5, (0, 1), BUDGETS[:3])) == ""
    assert too_few(results(lambda x, s: 0.5, (0, 1), BUDGETS[:3])[:-1]) != ""
