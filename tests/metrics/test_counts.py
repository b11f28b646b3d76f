"""K and class priors: values by hand, what an interval must respect, coverage, cells that are not blank at random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.counts import counts_from_tags, estimate_counts, possible_mean, score_by_known, share_by_known

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return np.array(rows, np.int8)


def test_complete_images_by_hand():
    """Counts 2, 1, 0, 1: K = 1, priors 3/4, 1/4 and 0, in four images of very many.

    Clopper-Pearson of 3 of 4 at 95 %: 0.1941 to 0.9937. Variance of the mean: s^2 / m = (2/3) / 4; with one image above
    and one below the mean, ((m - 1) s^2 / m + 2 / m) / (m + 1) = (3 * (2/3) / 4 + 2/4) / 5 = 1/5. The limits are
    quantiles of gamma distributions, the lower one with mean 1 and variance 1/5, the upper one with 5/4 and 1/5 + 1/16.
    """
    found = estimate_counts(int8([[P, P, N], [P, N, N], [N, N, N], [P, N, N]]), 10**9)
    assert found.mean == 1.0
    assert found.prior.tolist() == [0.75, 0.25, 0]
    assert found.prior_interval[0] == pytest.approx([0.19412, 0.99369], abs=1e-4)
    low = stats.gamma.ppf(0.025, 5, scale=1 / 5)
    variance = 1 / 5 + 1 / 16
    high = stats.gamma.ppf(0.975, 1.25**2 / variance, scale=variance / 1.25)
    assert found.interval == pytest.approx((low, high), rel=1e-6)


def test_no_positive_has_the_limit_of_poisson():
    """Nothing in 100 images: at most -log(.025) / 100 classes in an image."""
    found = estimate_counts(np.full((100, 1), N, np.int8), 10**9)
    assert found.mean == 0
    assert found.interval == (0.0, pytest.approx(-np.log(0.025) / 100, rel=1e-6))


def test_all_images_are_certain():
    labels = int8([[P, N], [P, P], [N, N]])
    found = estimate_counts(labels, 3)
    assert found.interval == (1.0, 1.0)
    np.testing.assert_allclose(found.prior_interval, [[2 / 3] * 2, [1 / 3] * 2])


def test_equal_counts_are_not_certain():
    low, high = estimate_counts(int8([[P, N]] * 50), 10**6).interval
    assert 0.9 < low < 1.0 < high < 1.15


def test_an_unknown_cell_does_not_count():
    """Class 0: two of three known cells; class 1: one of one; class 2 is never known."""
    found = estimate_counts(int8([[P, U, U], [P, P, U], [N, U, U]]), 100)
    np.testing.assert_allclose(found.prior, [2 / 3, 1, np.nan])
    assert found.mean == pytest.approx(5 / 3)
    assert np.isnan(found.prior_interval[2]).all()


@given(hnp.arrays(np.int8, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.sampled_from([-1, 0, 1])))
def test_the_value_is_inside_and_limits_are_possible(labels):
    n = len(labels) + 3
    found = estimate_counts(labels, n)
    some = (labels != U).any(0)
    low, high = found.interval
    assert low <= found.mean <= high
    positives, negatives = (labels == P).sum(0), (labels == N).sum(0)
    assert low >= positives[some].sum() / n - 1e-9
    assert high <= (1 - negatives[some] / n).sum() + 1e-9
    limits = found.prior_interval[some]
    assert (limits[:, 0] <= found.prior[some] + 1e-9).all()
    assert (limits[:, 1] >= found.prior[some] - 1e-9).all()
    assert (limits[:, 0] >= positives[some] / n - 1e-9).all()
    order = np.arange(labels.shape[1])[::-1]
    assert estimate_counts(labels[:, order], n).interval == pytest.approx(found.interval)


@pytest.mark.parametrize("partial", [False, True])
def test_intervals_cover_the_population(partial):
    """94 to 99 % of 300 draws in docs/expected_number.md; here 95 % of 200 with room for chance."""
    draw = np.random.default_rng(3)
    busy = draw.beta(1, 3, (600, 1))
    truth = draw.random((600, 8)) < 0.1 + 0.6 * busy  # classes of a busy photo come together
    inside, classes = 0, np.zeros(8)
    for _ in range(200):
        if partial:
            shown = np.where(draw.random(truth.shape) < 0.2, np.where(truth, P, N), U).astype(np.int8)
        else:
            shown = np.where(truth[draw.permutation(600)[:60]], P, N).astype(np.int8)
        found = estimate_counts(shown, 600)
        inside += found.interval[0] <= truth.sum(1).mean() <= found.interval[1]
        prior = truth.mean(0)
        classes += (found.prior_interval[:, 0] <= prior) & (prior <= found.prior_interval[:, 1])
    assert inside >= 184
    assert classes.min() >= 184


def test_without_an_assumption_little_is_known():
    """Two of six cells are positive, one is negative: 1 to (6 - 1) / 2 classes in each of two images."""
    assert possible_mean(int8([[P, U, N], [U, P, U]])) == (1.0, 2.5)


def test_cells_that_people_labelled_because_they_saw_them_are_found():
    draw = np.random.default_rng(0)
    truth = draw.random((400, 5)) < 0.3
    often = np.where(draw.random((400, 1)) < 0.5, 0.7, 0.2)
    random = np.where(draw.random(truth.shape) < often, np.where(truth, P, N), U).astype(np.int8)
    assert abs(share_by_known(random).z) < 3
    # Half of the photos have a label for what they show and for little else.
    seen = np.where(draw.random(truth.shape) < np.where((often < 0.5) & truth, 0.9, often), np.where(truth, P, N), U)
    found = share_by_known(seen.astype(np.int8))
    assert found.few > found.many + 0.1
    assert found.z < -3


def test_equally_many_known_cells_cannot_be_compared():
    assert share_by_known(int8([[P, N], [N, P]])) is None
    assert share_by_known(int8([[U, U]])) is None


def test_tags_by_hand():
    """p / max p: (1, 1, 0) and (1, .25, 0): priors 1, 5/8 and 0, so K = 1.625."""
    mean, prior = counts_from_tags(np.array([[0.5, 0.5, 0.0], [0.8, 0.2, 0.0]]))
    assert prior == pytest.approx([1, 0.625, 0])
    assert mean == pytest.approx(1.625)


def test_tags_that_are_certain_give_the_mean_of_the_counts():
    """A photo of n classes has each as its tag with probability 1 / n."""
    truth = np.random.default_rng(0).random((50, 6)) < 0.5
    truth = truth[truth.any(1)]
    mean, prior = counts_from_tags(truth / truth.sum(1, keepdims=True))
    assert mean == pytest.approx(truth.sum(1).mean())
    assert prior == pytest.approx(truth.mean(0))


def test_a_level_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="between 0 and 1, got 1"):
        estimate_counts(int8([[P]]), 2, level=1.0)


def test_scores_of_known_cells_are_compared_class_by_class():
    """One class is the test of Mann and Whitney; two classes are not one, whatever their scores are."""
    rng = np.random.default_rng(3)
    scores, labels = rng.normal(size=(60, 1)), rng.choice(np.array([1, 0, -1], np.int8), size=(60, 1))
    found = score_by_known(scores, labels)
    known = labels[:, 0] != 0
    expected = stats.mannwhitneyu(scores[known, 0], scores[~known, 0], method="asymptotic", use_continuity=False)
    assert found.area == pytest.approx(expected.statistic / (known.sum() * (~known).sum()))
    assert 2 * stats.norm.sf(abs(found.z)) == pytest.approx(expected.pvalue)
    assert found.known == known.sum()
    twice = score_by_known(np.hstack([scores, scores + 100]), np.hstack([labels, labels]))
    assert twice.area == pytest.approx(found.area)
    assert twice.z == pytest.approx(found.z * 2**0.5)
    assert score_by_known(scores, np.ones((60, 1), np.int8)) is None
