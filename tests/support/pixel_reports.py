"""PxAP of plain lists of pairs, in bins as `metrics.locate` computes it for whole data sets, or exactly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.metrics.localisation import Normalise
from fewtags.metrics.wsol import (
    PIXEL_BINS,
    Mask,
    average_precision_of_counts,
    inside_and_known,
    pixel_counts,
    prepare_map,
)


def pxap(
    pairs: Iterable[tuple[Float[Array, "_ _"], Mask]],
    *,
    bins: int | None = PIXEL_BINS,
    normalise: Normalise = "minmax",
) -> float:
    """PxAP of (heatmap, mask) pairs; each map is resized to its mask.

    Deviation: every image has the same weight, whatever the size of its mask; the public code resizes all to 224 x 224.

    Args:
        pairs: heatmaps, and masks of the union of all instances of the class, see `inside_and_known`.
        bins: as in `pixel_counts`; nothing but the counts is kept. None keeps all values in memory and is exact.
        normalise: as in `normalise_map`.

    Raises:
        DataError: no pixel belongs to an object, or a map with a value that is not finite.
    """
    counts = np.zeros((2, (bins or 0) + 1))
    values: list[Float[Array, " k"]] = []
    weights: list[Float[Array, "2 k"]] = []
    for n, (heatmap, mask) in enumerate(pairs):
        resized = prepare_map(heatmap, mask.shape, normalise, f"the heatmap of pair {n}")
        if bins is not None:
            counts += pixel_counts(resized, mask, bins=bins)
        else:
            inside, known = inside_and_known(mask)
            values.append(resized[known])
            weights.append(np.stack([inside[known], ~inside[known]]) / mask.size)
    if values:
        _, place = np.unique(np.concatenate(values), return_inverse=True)
        counts = np.stack([np.bincount(place, weight) for weight in np.concatenate(weights, 1)])
    result = average_precision_of_counts(*counts)
    if np.isnan(result):
        raise DataError("no pixel belongs to an object; PxAP needs boxes or masks of classes that are present.")
    return result
