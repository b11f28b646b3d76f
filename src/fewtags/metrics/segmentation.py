"""Metrics of semantic segmentation from one confusion matrix: mIoU, mAcc, aAcc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int64, Integer
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.metrics.ranking import ratio


def confusion(
    predicted: Integer[Array, "..."], truth: Integer[Array, "..."], classes: int, ignore: int | None = 255
) -> Int64[Array, "c c"]:
    """Number of pixels of each true class (row) and predicted class (column). Add the matrices of several images.

    Class numbers are 0..classes - 1; pixels with the true number `ignore` do not count.

    Raises:
        DataError: the shapes differ, or a number is not a class.
    """
    if predicted.shape != truth.shape:
        raise DataError(f"the prediction is {predicted.shape} and the truth {truth.shape}; give the same pixels.")
    counted = np.ones(truth.shape, np.bool_) if ignore is None else truth != ignore
    t, p = truth[counted].astype(np.int64), predicted[counted].astype(np.int64)
    for name, values in (("truth", t), ("prediction", p)):
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise DataError(
                f"the {name} contains class {int(wrong[0])}, but the classes are 0 to {classes - 1}; map it to one of "
                "them, or to the number that is ignored."
            )
    return np.bincount(classes * t + p, minlength=classes * classes).reshape(classes, classes)


@final
@dataclass(frozen=True)
class SegmentationReport:
    """Metrics of a confusion matrix; fractions in 0..1.

    Attributes:
        iou: intersection over union of each class; nan for a class in neither truth nor prediction.
        accuracy: share of correct pixels of each class; nan for a class without a pixel.
        mean_iou: mIoU, the mean without nan.
        mean_accuracy: mAcc, the mean without nan.
        pixel_accuracy: aAcc, the share of correct pixels.
    """

    iou: Float[Array, " c"]
    accuracy: Float[Array, " c"]
    mean_iou: float
    mean_accuracy: float
    pixel_accuracy: float


def segmentation_report(matrix: Int64[Array, "c c"]) -> SegmentationReport:
    """The metrics of mmsegmentation and of the MLS paper's table 3, over all pixels of a data set at once.

    Some libraries report the mean of per-image values instead. Raises DataError if no pixel counts.
    """
    if not matrix.sum():
        raise DataError("no pixel has a known class, so there is nothing to measure.")
    hit, true, said = np.diag(matrix).astype(np.float64), matrix.sum(1), matrix.sum(0)
    iou, accuracy = ratio(hit, true + said - hit), ratio(hit, true)
    return SegmentationReport(
        iou, accuracy, float(np.nanmean(iou)), float(np.nanmean(accuracy)), float(hit.sum() / matrix.sum())
    )
