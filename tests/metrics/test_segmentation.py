import json
from pathlib import Path

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.metrics.segmentation import confusion, segmentation_report

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mls.json").read_text("utf-8"))["metrics"]


def test_by_hand():
    """Truth 0 0 1 1 2, prediction 0 1 1 1 0: hits 1, 2, 0; unions 3, 3, 2.

    IoU 1/3, 2/3, 0; accuracies 1/2, 1, 0; 3 of 5 pixels.
    """
    matrix = confusion(np.array([0, 1, 1, 1, 0]), np.array([0, 0, 1, 1, 2]), 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [1, 0, 0]]
    report = segmentation_report(matrix)
    np.testing.assert_allclose(report.iou, [1 / 3, 2 / 3, 0])
    np.testing.assert_allclose(report.accuracy, [0.5, 1, 0])
    assert (report.mean_iou, report.mean_accuracy, report.pixel_accuracy) == pytest.approx((1 / 3, 0.5, 0.6))


def test_golden():
    predicted, truth = (np.array(GOLDEN[key]) for key in ("seg_pred", "seg_target"))
    matrix = confusion(predicted, truth, 4)
    assert matrix.tolist() == GOLDEN["seg_confusion"]
    report = segmentation_report(matrix)
    assert report.mean_iou == pytest.approx(GOLDEN["mIoU"], abs=1e-12)
    assert report.mean_accuracy == pytest.approx(GOLDEN["mAcc"], abs=1e-12)
    assert report.pixel_accuracy == pytest.approx(GOLDEN["aAcc"], abs=1e-12)


def test_matrices_of_images_add_up_and_ignored_pixels_do_not_count():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 5, (2, 6, 7)), rng.integers(0, 5, (2, 6, 7))
    truth[rng.random(truth.shape) < 0.3] = 255
    whole = confusion(predicted, truth, 5)
    assert np.array_equal(whole, sum(confusion(p, t, 5) for p, t in zip(predicted, truth, strict=True)))
    assert whole.sum() == (truth != 255).sum()
    predicted[truth == 255] = 0
    assert np.array_equal(whole, confusion(predicted, truth, 5))


def test_a_class_that_never_occurs_is_left_out_of_the_means():
    report = segmentation_report(confusion(np.array([0, 1]), np.array([0, 0]), 3))
    np.testing.assert_allclose(report.iou, [0.5, 0, np.nan])
    np.testing.assert_allclose(report.accuracy, [0.5, np.nan, np.nan])
    assert (report.mean_iou, report.mean_accuracy) == (0.25, 0.5)


def test_what_cannot_be_is_refused():
    with pytest.raises(DataError, match=r"^the prediction is \(2,\) and the truth \(3,\); give the same pixels\.$"):
        confusion(np.zeros(2, int), np.zeros(3, int), 2)
    with pytest.raises(
        DataError, match=r"^the truth contains class 7, but the classes are 0 to 2; map it to one of them, or"
    ):
        confusion(np.array([0]), np.array([7]), 3)
    with pytest.raises(DataError, match=r"^the prediction contains class -1, but"):
        confusion(np.array([-1]), np.array([1]), 3)
    with pytest.raises(DataError, match=r"^no pixel has a known class"):
        segmentation_report(np.zeros((2, 2), np.int64))
