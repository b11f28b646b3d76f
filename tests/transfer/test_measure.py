"""Numbers of a run, and of several."""

import math

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.metrics.ranking import ranking_report
from fewtags.transfer.measure import METRICS, measure, over_runs


def test_top1_and_the_mean_of_the_classes_by_hand(single):
    """Classes 0, 1, 2 three times each. Always saying 0 is right in 3 of 9; then one photo of class 1 is right, too.

    Classes: 3/3, 1/3, 0/3: mean 4/9, the same as top-1 here, since all classes have three test photos.
    """
    scores = np.zeros((9, 3))
    scores[:, 0] = 1
    scores[1, 1] = 2
    assert measure(single, scores) == pytest.approx({"top1": 4 / 9, "class_accuracy": 4 / 9})


def test_classes_count_the_same_whatever_their_size(single):
    """Test photos 0, 1, 3, 6: classes 0, 1, 0, 0. Always 0: 3 of 4 photos, 1 of 2 classes."""
    task = type(single)("", "single", single.train, single.test.subset([0, 1, 3, 6]))
    scores = np.tile([1.0, 0.0, 0.0], (4, 1))
    assert measure(task, scores) == {"top1": 0.75, "class_accuracy": 0.5}


def test_map_in_three_definitions(multi):
    """The first is the mAP of `fewtags evaluate`."""
    scores = np.random.default_rng(0).normal(size=(12, 3))
    found = measure(multi, scores)
    assert list(found) == ["mAP", "mAP_all_point", "mAP_11_point"]
    assert found["mAP"] == ranking_report(scores, multi.test.matrix.dense()).mean_average_precision
    assert found["mAP"] < found["mAP_all_point"]
    assert set(found) < set(METRICS)


def test_a_score_that_is_no_number_is_refused(single):
    with pytest.raises(DataError, match="a score of the test photos is not a number"):
        measure(single, np.full((9, 3), np.nan))


def test_mean_and_deviation():
    """Of 1, 2, 6: mean 3, squares 4 + 1 + 9 over n - 1 = 2: 7."""
    found = over_runs([{"top1": 1.0}, {"top1": 2.0}, {"top1": 6.0}])["top1"]
    assert found == (3.0, pytest.approx(math.sqrt(7)), (1.0, 2.0, 6.0))
    assert math.isnan(over_runs([{"top1": 1.0}])["top1"].sd)
