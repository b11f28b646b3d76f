"""mAP by the size of the objects (Verelst et al., WACV 2023, supplement D and fig. D.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fewtags.labels import ClassNames, Label
from fewtags.metrics.metric import Metric
from fewtags.metrics.ranking import ranking_report
from fewtags.table.table import LabelTable

BY_SIZE = "mAP_by_size"
"""Name of the group of metrics in JSON."""
BINS = ("small", "medium", "large")
FEWEST_SIZED = 30
"""Fewer positive labels with a box are not divided into bins."""


def cell_sizes(table: LabelTable, classes: ClassNames) -> NDArray[np.float64] | None:
    """Return the size of the object in each positive cell, float64 [n, C] for these classes; None without any box.

    The size is the share of the image that the largest box of the class covers. The paper gives an annotation the area
    of its box and does not say what it does with several objects of a class; the largest one is what a model needs to
    see. Cells without a box (tags and points) are nan.
    """
    row, number, boxes = table.locations.rows(np.arange(len(table)))
    area = np.prod(boxes[:, 2:].astype(np.float64) - boxes[:, :2], axis=1)
    at = np.array([classes.index(i) if i in classes else -1 for i in table.classes.ids], np.int64)[number]
    kept = (area > 0) & (at >= 0)
    if not kept.any():
        return None
    sizes = np.full((len(table), len(classes)), -np.inf)
    np.maximum.at(sizes, (row[kept], at[kept]), area[kept])
    sizes[np.isinf(sizes)] = np.nan
    return sizes


@final
class SizeBin(NamedTuple):
    """The mAP (0 to 1) of the objects that cover between `low` and `high` of their image; `labels` is their number."""

    low: float
    high: float
    labels: int
    mean_average_precision: float


def size_bins(
    scores: NDArray[np.float64], labels: NDArray[np.int8], sizes: NDArray[np.float64], count: int
) -> Iterator[SizeBin]:
    """Divide the positive cells with a size into bins of equal number (up to equal sizes), and yield the mAP of each.

    The mAP of a bin has its positives and all negatives, since negatives have no size; other positives do not count.

    Args:
        scores: float64 [n, C].
        labels: int8 [n, C], values of `Label`; one positive cell has a size.
        sizes: [n, C], see `cell_sizes`.
        count: number of bins.
    """
    sized = (labels == Label.POSITIVE) & ~np.isnan(sizes)
    ends = np.quantile(sizes[sized], np.arange(count + 1) / count)
    bin_of = np.where(sized, np.searchsorted(ends[1:-1], np.nan_to_num(sizes), side="left"), -1)
    for number in range(count):
        own = bin_of == number
        ranking = ranking_report(scores, np.where((labels == Label.POSITIVE) & ~own, np.int8(Label.UNKNOWN), labels))
        yield SizeBin(ends[number], ends[number + 1], int(own.sum()), ranking.mean_average_precision)


def size_metrics(
    scores: NDArray[np.float64], labels: NDArray[np.int8], sizes: NDArray[np.float64] | None
) -> Iterator[Metric]:
    """Yield the mAP of small, medium and large objects; nothing with fewer than 30 positive cells with a size.

    There are three bins, see `size_bins`. They have other classes and other shares of positives, so two models are
    compared in one bin, and not two bins of one model.

    Args:
        scores: float64 [n, C].
        labels: int8 [n, C], values of `Label`.
        sizes: [n, C], see `cell_sizes`.
    """
    if sizes is None or not (labels == Label.NEGATIVE).any():  # mAP says already that no negative is known
        return
    sized = (labels == Label.POSITIVE) & ~np.isnan(sizes)
    if sized.sum() < FEWEST_SIZED:
        return
    for name, own in zip(BINS, size_bins(scores, labels, sizes, len(BINS)), strict=True):
        yield Metric(
            key=f"{BY_SIZE}.{name}",
            label=f"mAP of {name} objects ({_percent(own.low)} to {_percent(own.high)} % of the image)",
            value=own.mean_average_precision,
            count=own.labels,
            items="positive labels",
            why="no class has both known positives of this size and known negatives",
            is_detail=True,
        )


def _percent(share: float) -> str:
    """Write a share in per cent with two digits.

    >>> _percent(0.00123), _percent(0.5), _percent(1.0)
    ('0.12', '50', '100')
    """
    return f"{100 * share:.2g}" if share < 0.995 else f"{100 * share:.0f}"
