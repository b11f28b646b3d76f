"""mAP-loc: average precision in which a positive counts only if its heatmap points at the object (PatchML section 4).

Each image has one prediction per class: its score, and its heatmap cut at a threshold. It is correct if the class is
present and at least half of the cut is on the object (IoA-P, see `localisation.ioa_p`), and otherwise wrong. mAP-loc
never exceeds the mAP of the same cells. PatchML gives no formula; in this reading that bound holds, as in its tables.

Scores are [n, c] and labels [n, c] (values of `Label`) of n images and c classes; located cells are listed as p pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.localisation import IOA_HIT, IOA_THRESHOLDS, reaches
from fewtags.metrics.ranking import average_precision, mean_of_known, refuse_nan, why_excluded


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class MapLocReport:
    """Localised average precision and the label counts behind it.

    Attributes:
        thresholds: t thresholds of the maps.
        localised: float64 [c, t], AP with located hits only; nan for a class that is not counted.
        classified: float64 [c], AP of the same cells without the maps: the upper bound of `localised`.
        positives: int64 [c], positive cells with a known region.
        negatives: int64 [c], known negative cells.
        unlocated: int64 [c], positive cells with an unknown region; they are left out.
        unknown: int64 [c], unknown cells; they are left out.
    """

    thresholds: tuple[float, ...]
    localised: Float[Array, "c t"]
    classified: Float[Array, " c"]
    positives: Int64[Array, " c"]
    negatives: Int64[Array, " c"]
    unlocated: Int64[Array, " c"]
    unknown: Int64[Array, " c"]

    @property
    def map_loc(self) -> float:
        """mAP-loc: the mean over the counted classes and all thresholds; nan if no class is counted."""
        return mean_of_known(self.localised.reshape(-1))

    @property
    def by_threshold(self) -> Float[Array, " t"]:
        """mAP-loc at each threshold."""
        return np.array([mean_of_known(column) for column in self.localised.T], np.float64)

    @property
    def best_map_loc(self) -> float:
        """mAP-loc at its best threshold, the other reading of PatchML. The threshold is chosen on the same images."""
        return float(self.by_threshold.max())

    @property
    def map_cl(self) -> float:
        """The mAP of the same cells without the maps; nan if no class is counted."""
        return mean_of_known(self.classified)

    @property
    def map_cl_chance(self) -> float:
        """The mAP of constant scores on the same cells: the mean share of positives; nan if no class is counted."""
        known = np.where(np.isnan(self.classified), np.nan, self.positives + self.negatives)
        return mean_of_known(self.positives / known)

    @property
    def excluded(self) -> dict[int, str]:
        """Classes that are not in the means, with the reason."""
        return {
            c: "no located positive"
            if not self.positives[c] and self.unlocated[c]
            else why_excluded(self.positives[c], self.negatives[c])
            for c in np.flatnonzero(np.isnan(self.classified)).tolist()
        }


def map_loc_report(
    scores: Float[Array, "n c"],
    labels: Int8[Array, "n c"],
    located_cells: Int64[Array, "p 2"],
    ioa: Float[Array, "p t"],
    *,
    thresholds: Sequence[float] = IOA_THRESHOLDS,
    hit: float = IOA_HIT,
    strict: bool = False,
) -> MapLocReport:
    """mAP-loc from scores and from the IoA-P of the located cells.

    AP of a class and a threshold: the sum, over its hits, of (hits scored at least as high) / (known cells scored at
    least as high), divided by its located positives. Cells of equal score enter together. As in `ranking_report`, only
    classes with a located positive and a known negative are counted.

    Args:
        scores: higher means more likely present.
        labels: values of `Label`; unknown cells are left out, and positive cells that `located_cells` does not list.
        located_cells: image and class of each positive cell with a known region.
        ioa: `ioa_p` of each located cell; nan (an empty cut) is a miss.
        thresholds: t thresholds of the maps; only reported.
        hit: minimum IoA-P of a hit.
        strict: IoA-P must exceed `hit`.

    Raises:
        DataError: a score is NaN, or `located_cells` fails `check_located`.
    """
    refuse_nan(scores)
    check_located(labels, located_cells)
    hits = reaches(ioa, hit, strict=strict)
    located = np.zeros(labels.shape, np.bool_)
    located[located_cells[:, 0], located_cells[:, 1]] = True
    positive, negative = labels == Label.POSITIVE, labels == Label.NEGATIVE
    cells = np.where(positive & ~located, np.int8(Label.UNKNOWN), labels)
    counted = located.any(0) & negative.any(0)
    localised = np.full((labels.shape[1], hits.shape[1]), np.nan)
    for c in np.flatnonzero(counted).tolist():
        own = located_cells[:, 1] == c
        localised[c] = _localised_precision(scores[:, c], cells[:, c], located_cells[own, 0], hits[own])
    return MapLocReport(
        thresholds=tuple(thresholds),
        localised=localised,
        classified=np.where(counted, average_precision(scores, cells), np.nan),
        positives=located.sum(0),
        negatives=negative.sum(0),
        unlocated=(positive & ~located).sum(0),
        unknown=(labels == Label.UNKNOWN).sum(0),
    )


def _localised_precision(
    score: Float[Array, " n"], cell: Int8[Array, " n"], image: Int64[Array, " q"], hits: Bool[Array, "q t"]
) -> Float[Array, " t"]:
    """AP of one class at each threshold; `image` lists its q positives."""
    known = np.sort(score[cell != Label.UNKNOWN])
    result = np.zeros(hits.shape[1])
    for t, hit in enumerate(hits.T):
        found = np.sort(score[image[hit]])
        right = found.size - np.searchsorted(found, found)
        result[t] = np.sum(right / (known.size - np.searchsorted(known, found))) / len(image)
    return result


def check_located(labels: Int8[Array, "n c"], located_cells: Int64[Array, "p 2"]) -> None:
    """Raise DataError if `located_cells` lists a cell that does not exist or is not positive, or a cell twice."""
    n, classes = labels.shape
    for image, c in located_cells[((located_cells < 0) | (located_cells >= [n, classes])).any(1)].tolist():
        raise DataError(
            f"class number {c} has a region in image number {image}, but there are {classes} classes and {n} images, "
            "counted from 0."
        )
    for image, c in located_cells[labels[located_cells[:, 0], located_cells[:, 1]] != Label.POSITIVE].tolist():
        raise DataError(
            f"class {c} has a region in image {image}, but its label there is not positive; drop the region or set the "
            "label."
        )
    cells, counts = np.unique(located_cells, axis=0, return_counts=True)
    for image, c in cells[counts > 1].tolist():
        raise DataError(f"class {c} is listed more than once in image {image}; unite the regions of a class first.")
