"""Heatmaps against regions pair by pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.metrics.localisation import (
    IOA_THRESHOLDS,
    LocalisationReport,
    Normalise,
    ioa_p,
    pointing,
    summarise_pairs,
)


def localisation_report(
    pairs: Iterable[tuple[Float[Array, "_ _"], Bool[Array, "_ _"]]],
    *,
    thresholds: Sequence[float] = IOA_THRESHOLDS,
    normalise: Normalise = "minmax",
) -> LocalisationReport:
    """Evaluate (heatmap, region) pairs. Raises DataError for no pair, an empty region, or a NaN in a map."""
    peaks, shares, inside = [], [], []
    for n, (heatmap, region) in enumerate(pairs):
        if not region.any():
            raise DataError(f"the region of pair {n} is empty; give only classes that are present and located.")
        peaks.append(pointing(heatmap, region))
        shares.append(float(region.mean()))
        inside.append(ioa_p(heatmap, region, thresholds=thresholds, normalise=normalise))
    if not peaks:
        raise DataError("no located object to measure against; localisation needs boxes, points or masks.")
    return summarise_pairs(np.array(peaks), np.array(shares), np.stack(inside), thresholds)
