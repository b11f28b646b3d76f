import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score, precision_score, recall_score

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.decisions import LabelCardinality, decide_cells, decision_report, label_cardinality

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return np.array(rows, np.int8)


def test_counts_and_f1_family_by_hand():
    """Thresholds .5 and .3.

    Class 0: .9 + tp, .5 - fp (the threshold itself counts as present), .4 + fn, .8 unknown: precision 1/2, recall 1/2.
    Class 1: .3 + tp, .2 - tn, .1 - tn, .9 unknown: precision 1, recall 1. CP 3/4, CR 3/4, CF1 3/4.
    Overall: tp 2, fp 1, fn 1: OP 2/3, OR 2/3, OF1 2/3.
    """
    prob = np.array([[0.9, 0.3], [0.5, 0.2], [0.4, 0.1], [0.8, 0.9]])
    labels = int8([[P, P], [N, N], [P, N], [U, U]])
    report = decision_report(prob, labels, np.array([0.5, 0.3]))
    assert report.true_positives.tolist() == [1, 1]
    assert report.false_positives.tolist() == [1, 0]
    assert report.false_negatives.tolist() == [1, 0]
    assert report.true_negatives.tolist() == [0, 2]
    assert report.precision.tolist() == [0.5, 1.0]
    assert report.recall.tolist() == [0.5, 1.0]
    assert report.f1.tolist() == [0.5, 1.0]
    assert (report.class_precision, report.class_recall, report.cf1) == (0.75, 0.75, 0.75)
    assert (report.overall_precision, report.overall_recall, report.of1) == pytest.approx((2 / 3,) * 3)


def test_classes_that_cannot_be_judged_are_left_out_of_the_class_means():
    """Class 0 has both kinds and is never predicted: all 0. Class 1 lacks negatives, class 2 positives.

    Overall: class 1 gives a tp, class 2 an fp, class 0 an fn: OP 1/2, OR 1/2.
    """
    prob = np.array([[0.1, 0.9, 0.9], [0.1, 0.9, 0.1]])
    report = decision_report(prob, int8([[P, P, N], [N, U, N]]), np.full(3, 0.5))
    np.testing.assert_array_equal(report.f1, [0, np.nan, np.nan])
    np.testing.assert_array_equal(report.precision, [0, np.nan, np.nan])
    assert (report.class_precision, report.cf1) == (0.0, 0.0)
    assert (report.overall_precision, report.overall_recall, report.of1) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("labels", [[[P], [U]], [[N], [U]], [[U], [U]]])
def test_without_known_positives_or_negatives_nothing_is_claimed(labels):
    report = decision_report(np.array([[0.9], [0.1]]), int8(labels), np.array([0.5]))
    for value in (report.cf1, report.of1, report.overall_precision, report.overall_recall, report.class_recall):
        assert math.isnan(value)


def test_golden_csra():
    """Scores, targets and results of CSRA's own code, from `golden/patchml.json` ("mAP"); .5 is present there too."""
    scores = np.array([[0.9, 0.2, 0.5], [0.8, 0.7, 0.5], [0.3, 0.6, 0.1], [0.6, 0.4, 0.5], [0.1, 0.9, 0.2]])
    targets = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1], [0, 1, 0]])
    report = decision_report(scores, np.where(targets == 1, P, N).astype(np.int8), np.full(3, 0.5))
    got = (report.overall_precision, report.overall_recall, report.of1)
    assert got == pytest.approx((0.555555556, 0.714285714, 0.625), abs=1e-9)
    got = (report.class_precision, report.class_recall, report.cf1)
    assert got == pytest.approx((0.555555556, 0.722222222, 0.628019324), abs=1e-9)


SHAPE = st.tuples(st.integers(1, 10), st.integers(1, 4))
PROBLEM = SHAPE.flatmap(
    lambda s: st.tuples(
        hnp.arrays(np.float64, s, elements=st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0])),
        hnp.arrays(np.int8, s, elements=st.integers(-1, 1)),
        hnp.arrays(np.float64, s[1:], elements=st.sampled_from([0.2, 0.5, 0.6])),
    )
)


@given(PROBLEM)
def test_equals_scikit_learn_on_the_known_cells(problem):
    prob, labels, thresholds = problem
    report = decision_report(prob, labels, thresholds)
    known = labels != U
    truth, decided = labels[known] == P, (prob >= thresholds)[known]
    if truth.any() and not truth.all():
        options = {"zero_division": 0.0}
        assert report.overall_precision == pytest.approx(precision_score(truth, decided, **options))
        assert report.overall_recall == pytest.approx(recall_score(truth, decided, **options))
        assert report.of1 == pytest.approx(f1_score(truth, decided, **options))
    for c in range(prob.shape[1]):
        truth, decided = labels[known[:, c], c] == P, prob[known[:, c], c] >= thresholds[c]
        if truth.any() and not truth.all():
            assert report.f1[c] == pytest.approx(f1_score(truth, decided, zero_division=0.0))
        else:
            assert math.isnan(report.f1[c])


@given(PROBLEM)
def test_probabilities_of_unknown_cells_do_not_matter(problem):
    prob, labels, thresholds = problem
    report = decision_report(prob, labels, thresholds)
    other = decision_report(np.where(labels == U, 1 - prob, prob), labels, thresholds)
    for name in ("true_positives", "false_positives", "false_negatives", "true_negatives"):
        np.testing.assert_array_equal(getattr(report, name), getattr(other, name))
    total = report.true_positives + report.false_positives + report.false_negatives + report.true_negatives
    np.testing.assert_array_equal(total, (labels != U).sum(0))


def test_label_cardinality_by_hand():
    """Two images: 1 known positive; .6 .5 | .5 reach their threshold: 3 / 2; probabilities sum to 2: 1 each."""
    prob = np.array([[0.6, 0.5], [0.5, 0.4]], np.float32)
    got = label_cardinality(prob, int8([[P, U], [N, U]]), np.array([0.5, 0.5]))
    assert (got.known, got.predicted) == (0.5, 1.5)
    assert got.expected == pytest.approx(1.0)
    assert label_cardinality(prob[:0], int8([]).reshape(0, 2), np.array([0.5, 0.5])) == LabelCardinality(0.0, 0.0, 0.0)


def test_a_probability_that_is_not_a_number_is_named():
    with pytest.raises(DataError) as error:
        decision_report(np.array([[0.5, np.nan]]), int8([[P, N]]), np.full(2, 0.5))
    assert str(error.value) == "the score of image 0, class 1 is not a number; the model or its input is broken."


def test_groups_by_hand():
    """Exactly one of 0, 1: the better one, at any threshold. At most one of 2, 3: the better of those above theirs."""
    prob = np.array([[0.1, 0.2, 0.8, 0.9], [0.9, 0.8, 0.7, 0.2], [0.4, 0.4, 0.1, 0.3]])
    groups = ((True, (0, 1)), (False, (2, 3)))
    thresholds = np.array([0.5, 0.5, 0.5, 0.95])
    assert decide_cells(prob, thresholds, groups).tolist() == [
        [False, True, True, False],
        [True, False, True, False],
        [True, False, False, False],
    ]
    labels = np.ones((3, 4), np.int8)
    labels[0] = -1
    assert decision_report(prob, labels, thresholds, groups).true_positives.tolist() == [2, 0, 1, 0]
    assert label_cardinality(prob, labels, thresholds, groups).predicted == pytest.approx(5 / 3)
