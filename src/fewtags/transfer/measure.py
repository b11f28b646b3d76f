"""Metrics of one run, and their mean and standard deviation over several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final, get_args

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.interpolated import Definition, average_precision_by
from fewtags.metrics.ranking import mean_of_known
from fewtags.transfer.task import Task, targets

METRICS: Mapping[str, str] = {
    "top1": "top-1 accuracy",
    "class_accuracy": "mean accuracy of the classes",
    "mAP": "mAP (non-interpolated)",
    "mAP_all_point": "mAP (all-point, VOC2010)",
    "mAP_11_point": "mAP (11-point, VOC2007)",
    "box_AP": "box AP",
    "box_AP50": "box AP50",
    "box_AP75": "box AP75",
    "mask_AP": "mask AP",
    "mask_AP50": "mask AP50",
    "mask_AP75": "mask AP75",
    "mIoU": "mIoU",
    "mAcc": "mAcc (mean accuracy of the classes)",
    "aAcc": "aAcc (share of the pixels that are right)",
}
"""Printed name of every metric of `fewtags transfer`."""


@final
class Spread(NamedTuple):
    """Mean of a metric over runs, standard deviation with n - 1 (nan for a single run), and the value of each run."""

    mean: float
    sd: float
    runs: tuple[float, ...]


def measure(task: Task, scores: NDArray[np.floating]) -> dict[str, float]:
    """Measure scores [N, C] of the test photos; all metrics are in 0..1.

    Single-label: "top1", the share of photos whose highest score is right (the first of equal scores counts), and
    "class_accuracy", the mean of that share over the classes that have test photos. Multi-label: mAP over the classes
    with known positives and known negatives, in three definitions; unknown cells are ignored.

    Raises:
        DataError: a score is not a number.
    """
    if np.isnan(scores).any():
        raise DataError("a score of the test photos is not a number; check the encoder and its input.")
    if task.kind == "single":
        truth = targets(task.test, "test")
        right = scores.argmax(1) == truth
        per_class = [right[truth == c].mean() for c in np.unique(truth)]
        return {"top1": float(right.mean()), "class_accuracy": float(np.mean(per_class))}
    labels = task.test.matrix.dense()
    definitions: tuple[Definition, ...] = get_args(Definition)
    names, values = ("mAP", "mAP_all_point", "mAP_11_point"), scores.astype(np.float64)
    return {
        name: mean_of_known(average_precision_by(d, values, labels)) for name, d in zip(names, definitions, strict=True)
    }


def chance_map(task: Task) -> float | None:
    """Return the mAP that random scores reach: the mean share of positives among the known test photos of a class.

    None for single-label tasks and without a class that counts. Interpolated definitions have a slightly higher one.
    """
    if task.kind == "single":
        return None
    labels = task.test.matrix.dense()
    positive, negative = ((labels == state).sum(0) for state in (Label.POSITIVE, Label.NEGATIVE))
    counted = (positive > 0) & (negative > 0)
    return float((positive[counted] / (positive + negative)[counted]).mean()) if counted.any() else None


def over_runs(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Return the mean and standard deviation of every metric."""
    columns = {name: tuple(run[name] for run in runs) for name in runs[0]}
    return {
        name: Spread(float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else float("nan"), v)
        for name, v in columns.items()
    }
