"""Calibration: sums, order, the limits of expected counts; errors by hand; what a fit finds."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.calibration import (
    LEAST_EXPECTED,
    Calibration,
    calibrate,
    calibration_report,
    expected_unknown,
    fit_calibration,
    fitted_classes,
    judged_classes,
)

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def test_expected_unknown_by_hand():
    """Class 0: .75 of 4 images less 1 known positive = 2. Class 1: .5 x 4 = 2 less 2 = 0, at least 1/2.

    Class 2: 1 x 4 = 4, one unknown cell, so the most is 1 - 1/2. Class 3: no unknown cell.
    """
    labels = np.array([[P, P, N, P], [U, P, N, N], [U, U, N, N], [U, N, U, N]], np.int8)
    assert expected_unknown(labels, np.array([0.75, 0.5, 1.0, 1.0])).tolist() == [2.0, 0.5, 0.5, 0.0]


def test_two_cells_by_hand():
    """Logits 0 and log 2 with an expected sum of 1: b is the middle, -log(2) / 2, so both lie evenly around 1/2.

    sigmoid(-log(2) / 2) = 1 / (1 + sqrt 2).
    """
    prob = calibrate(np.array([[0.0], [np.log(2)]]), np.zeros((2, 1), np.int8), np.array([1.0]))
    assert prob[:, 0] == pytest.approx([1 / (1 + np.sqrt(2)), np.sqrt(2) / (1 + np.sqrt(2))])


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.floats(0.1, 4), st.floats(-30, 30))
def test_sum_fits_and_order_stays(seed, slope, shift):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(0, 5, (40, 3)) + shift, rng.integers(-1, 2, (40, 3)).astype(np.int8)
    expected = expected_unknown(labels, rng.uniform(0, 1, 3))
    prob = calibrate(logits, labels, expected, slope)
    assert (prob * (labels == U)).sum(0) == pytest.approx(expected, rel=1e-6)
    assert (np.diff(np.take_along_axis(prob, np.argsort(logits, 0), 0), axis=0) >= 0).all()


def test_probabilities_are_right_on_average_when_the_model_is_shifted():
    """True probabilities sigmoid(z); a model trained on a tenth of the positives has logits lower by 2.3.

    After calibration with the true share, the cells that get .4 to .6 are positive in about half of the cases.
    """
    rng = np.random.default_rng(0)
    z = rng.normal(-1, 2, (20_000, 1))
    truth = rng.random(z.shape) < 1 / (1 + np.exp(-z))
    labels = np.where(truth & (rng.random(z.shape) < 0.1), P, U).astype(np.int8)
    prob = calibrate(z - 2.3, labels, expected_unknown(labels, truth.mean(0)))
    middle = (labels == U) & (prob > 0.4) & (prob < 0.6)
    assert truth[middle].mean() == pytest.approx(0.5, abs=0.04)


def test_no_unknown_cell():
    labels = np.array([[P], [N]], np.int8)
    assert calibrate(np.zeros((2, 1)), labels, expected_unknown(labels, np.array([0.5])))[:, 0].tolist() == [0.5, 0.5]
    assert 0 < LEAST_EXPECTED < 1


# ---- frequencies ----------------------------------------------------------------------------------------------------


def test_report_by_hand():
    """Two bins. Below .5: cells .1 (no) and .3 (yes), mean .2, share .5. Above: .7 (yes), .9 (yes), mean .8, share 1.

    Error: (2 x .3 + 2 x .2) / 4 = .25. Brier: (.01 + .49 + .09 + .01) / 4 = .15. The unknown cell does not count.
    """
    prob = np.array([[0.1, 0.3], [0.7, 0.9], [0.5, 0.2]])
    labels = np.array([[N, P], [P, P], [U, N]], np.int8)
    found = calibration_report(prob[:2], np.array([[N, N], [P, P]], np.int8), bins=2)
    assert found.error == pytest.approx(0.2)
    found = calibration_report(prob, labels, bins=2)
    assert (found.cells, found.classes, found.counts.tolist()) == (5, 2, [3, 2])
    assert found.error == pytest.approx((3 * abs(0.2 - 1 / 3) + 2 * 0.2) / 5)
    assert found.brier == pytest.approx((0.01 + 0.49 + 0.09 + 0.01 + 0.04) / 5)


def test_brier_score_is_that_of_scikit_learn():
    from sklearn.metrics import brier_score_loss

    rng = np.random.default_rng(0)
    prob, labels = rng.random((50, 3)), rng.choice([N, P], (50, 3)).astype(np.int8)
    assert calibration_report(prob, labels).brier == pytest.approx(brier_score_loss(labels.ravel() == P, prob.ravel()))


def test_edges_and_empty_bins():
    """Probability 1 is in the last bin; empty bins count nothing; without a judged class nothing is defined."""
    found = calibration_report(np.array([[1.0], [0.0]]), np.array([[P], [N]], np.int8))
    assert (found.error, found.brier, found.counts[[0, -1]].tolist()) == (0.0, 0.0, [1, 1])
    assert np.isnan(found.prob[1])
    nothing = calibration_report(np.array([[0.3], [0.2]]), np.array([[P], [U]], np.int8))
    assert np.isnan([nothing.error, nothing.brier]).all()
    with pytest.raises(DataError, match=re.escape("calibration needs probabilities in 0..1, got -1..2.")):
        calibration_report(np.array([[-1.0], [2.0]]), np.array([[P], [N]], np.int8))


def test_judged_classes():
    """Half known with a negative; all positive; a third known; nothing known."""
    labels = np.array([[P, P, N, U], [N, P, U, U], [U, P, U, U], [U, P, U, U]], np.int8)
    assert judged_classes(labels).tolist() == [True, False, False, False]


# ---- the fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slope", "shift"), [(0.5, 0.0), (2.0, -1.5)])
def test_fit_finds_the_change(slope, shift):
    """True logits are slope z + shift + an offset for each class; half of the cells are known."""
    rng = np.random.default_rng(0)
    z, own = rng.normal(0.7, 2, (4000, 4)), np.array([-1.0, 0.0, 0.5, 0.5])
    truth = rng.random(z.shape) < 1 / (1 + np.exp(-(slope * z + shift + own)))
    labels = np.where(rng.random(z.shape) < 0.6, np.where(truth, P, N), U).astype(np.int8)
    found = fit_calibration(z, labels, np.full(4, 0.5))
    assert found.slope == pytest.approx(slope, rel=0.08)
    assert found.offsets == pytest.approx(shift + own, abs=0.25)
    before, after = (calibration_report(1 / (1 + np.exp(-x)), labels).error for x in (z, found.logits(z)))
    assert after < 0.02 < before


def test_few_labels_share_their_offset():
    """With one positive, an own offset is mostly chance: a small spread keeps it close to the others."""
    rng = np.random.default_rng(1)
    z = rng.normal(0, 1, (60, 5))
    labels = np.where(rng.random(z.shape) < 1 / (1 + np.exp(3 - z)), P, N).astype(np.int8)
    labels[:, 0] = N
    wide, narrow = (fit_calibration(z, labels, np.full(5, 0.1), spread=spread).offsets for spread in (3.0, 0.1))
    assert wide[0] < wide[1:].min() - 0.5
    assert np.ptp(narrow) < 0.2


def test_classes_without_negatives_fit_the_expected_number():
    rng = np.random.default_rng(2)
    z = rng.normal(0, 2, (200, 2))
    truth = rng.random(z.shape) < 1 / (1 + np.exp(2 - z))
    labels = np.where(truth, P, N).astype(np.int8)
    labels[:, 1] = np.where(truth[:, 1] & (rng.random(200) < 0.3), P, U)
    found = fit_calibration(z, labels, np.array([0.9, 0.4]))
    prob = 1 / (1 + np.exp(-found.logits(z)))
    positives = (labels[:, 1] == P).sum()
    assert prob[labels[:, 1] == U, 1].sum() == pytest.approx(0.4 * 200 - positives, rel=1e-6)
    assert prob[:, 0].mean() == pytest.approx(truth[:, 0].mean(), abs=0.03)
    assert fit_calibration(z, np.zeros((200, 2), np.int8), np.array([0.5, 0.4])).slope == 1.0


def test_extreme_inputs():
    """One photo, logits that separate the labels, and equal logits give finite numbers; no photo is an error."""
    for z, labels in (
        (np.array([[3.0]]), np.array([[N]], np.int8)),
        (np.array([[-900.0], [900.0]]), np.array([[N], [P]], np.int8)),
        (np.zeros((4, 1)), np.array([[N], [P], [N], [P]], np.int8)),
    ):
        found = fit_calibration(z, labels, np.array([0.5]))
        assert np.isfinite([found.slope, *found.offsets]).all()
        assert found.slope > 0
    with pytest.raises(DataError, match="no photo to calibrate on"):
        fit_calibration(np.zeros((0, 1)), np.zeros((0, 1), np.int8), np.array([0.5]))


@given(st.integers(0, 2**32), st.floats(0.05, 20))
def test_thresholds_move_with_probabilities(seed, slope):
    """Decisions at the moved thresholds are those before; undoing gives the logits back."""
    rng = np.random.default_rng(seed)
    change = Calibration(slope, rng.normal(0, 3, 3))
    z, thresholds = rng.normal(0, 3, (20, 3)), np.array([rng.uniform(0.01, 0.99), 0.0, 1.0])
    first, second = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(-change.logits(z)))
    # In column 2, a logit above 36 has the probability 1.
    same = (first >= thresholds) == (second >= change.thresholds(thresholds))
    assert (same | (second == 1.0)).all()
    assert change.thresholds(thresholds)[1:].tolist() == [0.0, 1.0]
    assert change.inverse.logits(change.logits(z)) == pytest.approx(z, abs=1e-9)
    both = change.after(change.inverse)
    assert both.slope == pytest.approx(1.0)
    assert both.offsets == pytest.approx(np.zeros(3), abs=1e-9)


def test_without_a_known_positive_no_class_is_fitted():
    """The likelihood would rise as long as the common offset falls. All cells are known, so nothing is left to fit."""
    logits, labels = np.linspace(-2, 2, 8).reshape(4, 2), np.full((4, 2), N, np.int8)
    found = fit_calibration(logits, labels, np.array([0.5, 0.5]))
    assert (found.slope, found.offsets.tolist()) == (1.0, [0.0, 0.0])
    assert fitted_classes(labels).tolist() == [False, False]
    labels[0, 1] = P
    assert fitted_classes(labels).tolist() == [True, True]
    assert np.abs(fit_calibration(logits, labels, np.array([0.5, 0.5])).offsets).max() < 10


def test_a_class_of_which_nothing_is_known_gets_the_mean_offset():
    logits = np.random.default_rng(0).normal(size=(40, 3))
    labels = np.where(logits + np.random.default_rng(1).normal(size=(40, 3)) > 1, P, N).astype(np.int8)
    labels[:, 2] = U
    offsets = fit_calibration(logits, labels, np.array([0.5, 0.5, np.nan])).offsets
    assert offsets[2] == pytest.approx(offsets[:2].mean())
    assert fit_calibration(logits, np.full_like(labels, U), np.array([0.5, 0.5, np.nan])).offsets[2] == 0


@pytest.mark.parametrize(("value", "text"), [(np.nan, "not a number"), (np.inf, "infinite")])
def test_fit_refuses_what_is_not_finite(value, text):
    logits = np.zeros((3, 2))
    logits[2, 1] = value
    with pytest.raises(DataError, match=f"the score of image 2, class 1 is {text}"):
        fit_calibration(logits, np.array([[P, N], [N, P], [N, N]], np.int8), np.array([0.5, 0.5]))
