"""Average precision of boxes by the definition of Pascal VOC: 11 points or all points, difficult objects ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.metrics.interpolated import Points, interpolated_precision
from fewtags.metrics.wsol import box_iou

OVERLAPS = tuple(round(0.5 + 0.05 * n, 2) for n in range(10))  # .50, .55, .. .95


@final
@dataclass(frozen=True)
class TrueBoxes:
    """Ground-truth boxes (x0, y0, x1, y1 in pixels) of one image, and their classes 0..C - 1.

    Difficult objects are ignored: they count neither as missed nor as wrong if found.
    """

    boxes: Float[Array, "m 4"]
    classes: Int[Array, " m"]
    difficult: Bool[Array, " m"]


@final
@dataclass(frozen=True)
class PredictedBoxes:
    """Predicted boxes (x0, y0, x1, y1 in pixels) of one image; a higher score means more confident."""

    boxes: Float[Array, "k 4"]
    classes: Int[Array, " k"]
    scores: Float[Array, " k"]


@final
@dataclass(frozen=True)
class VocAveragePrecision:
    """AP in 0..1 of each class at each minimum intersection over union; nan if all objects are difficult."""

    by_class: Float[Array, "t c"]
    overlaps: tuple[float, ...]

    @property
    def mean(self) -> float:
        """AP: mean over classes and overlaps, as detectron2 prints it for VOC."""
        return float(np.nanmean(self.by_class))

    def at(self, overlap: float) -> float:
        """The mean over classes at one overlap, for example AP50. Raises DataError if it was not measured."""
        if overlap not in self.overlaps:
            raise DataError(
                f"AP at overlap {overlap:g} was not measured, only at {', '.join(map(str, self.overlaps))}."
            )
        return float(np.nanmean(self.by_class[self.overlaps.index(overlap)]))


def voc_average_precision(
    truth: Sequence[TrueBoxes],
    found: Sequence[PredictedBoxes],
    classes: int,
    *,
    points: Points = "11",
    overlaps: tuple[float, ...] = OVERLAPS,
    border: float = 1.0,
) -> VocAveragePrecision:
    """AP of every class at every overlap (VOC development kit; detectron2's PascalVOCDetectionEvaluator).

    Detections are matched in order of confidence, each to the object of its class and image with the largest overlap. A
    detection is correct if the overlap exceeds the limit and the object is not matched yet, ignored if the object is
    difficult, and otherwise wrong.

    Args:
        truth: one entry per image.
        found: the same images in the same order.
        classes: C.
        points: "11": mean precision at recall 0, .1, .. 1 (VOC2007); "all": area under the curve (VOC2010 on).
        overlaps: limits of the intersection over union.
        border: added to widths and heights: 1 if corners are pixel numbers, as in VOC; 0 for continuous ones.

    Raises:
        DataError: `found` and `truth` have different lengths, or all objects are difficult.
    """
    if len(truth) != len(found):
        raise DataError(
            f"there are detections of {len(found)} images and objects of {len(truth)}; give the same images."
        )
    result = np.full((len(overlaps), classes), np.nan)
    for c in range(classes):
        result[:, c] = _one_class(truth, found, c, points, overlaps, border)
    if np.isnan(result).all():
        raise DataError("no object that counts is in these images, so that there is nothing to find.")
    return VocAveragePrecision(result, overlaps)


def _one_class(
    truth: Sequence[TrueBoxes],
    found: Sequence[PredictedBoxes],
    c: int,
    points: Points,
    overlaps: tuple[float, ...],
    border: float,
) -> Float[Array, " t"]:
    objects = [t.boxes[t.classes == c] for t in truth]
    easy = [~t.difficult[t.classes == c] for t in truth]
    total = int(sum(own.sum() for own in easy))
    if not total:
        return np.full(len(overlaps), np.nan)
    image = np.concatenate([np.full(int((f.classes == c).sum()), n) for n, f in enumerate(found)]).astype(np.int64)
    boxes = np.concatenate([f.boxes[f.classes == c] for f in found]).reshape(-1, 4)
    scores = np.concatenate([f.scores[f.classes == c] for f in found])
    order = np.argsort(-scores, kind="stable")
    best = [_best(boxes[i], objects[image[i]], border) for i in order]
    result = np.zeros(len(overlaps))
    for n, limit in enumerate(overlaps):
        taken = [np.zeros(len(own), np.bool_) for own in objects]
        right, wrong = np.zeros(len(order)), np.zeros(len(order))
        for rank, (i, (place, overlap)) in enumerate(zip(order, best, strict=True)):
            own = image[i]
            if overlap <= limit:
                wrong[rank] = 1
            elif easy[own][place]:
                (wrong if taken[own][place] else right)[rank] = 1
                taken[own][place] = True
        result[n] = interpolated_precision(np.cumsum(right), np.cumsum(right + wrong), total, points)
    return result


def _best(box: Float[Array, "4"], objects: Float[Array, "m 4"], border: float) -> tuple[int, float]:
    """The object that a box overlaps most, and the intersection over union; -inf if there is none."""
    if not len(objects):
        return -1, -np.inf
    overlap = box_iou(box[None], objects, last=border)[0]
    place = int(overlap.argmax())
    return place, float(overlap[place])
