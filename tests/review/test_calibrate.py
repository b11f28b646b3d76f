"""Calibration: sums, order, and the limits of expected counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.labels import Label
from fewtags.review.calibrate import LEAST_EXPECTED, calibrate, expected_unknown

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
