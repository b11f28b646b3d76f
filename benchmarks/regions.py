"""Heatmaps against regions pair by pair, and the cells of a map that masks fill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from torch import Tensor

from fewtags.errors import DataError
from fewtags.metrics.localisation import (
    IOA_THRESHOLDS,
    LocalisationReport,
    Normalise,
    ioa_p,
    pointing,
    summarise_pairs,
)
from fewtags.patches import filled_cells, shares_of_cells


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


def cells_of_masks(
    masks: Bool[Tensor, "m H W"] | Float[Tensor, "m H W"], grid: tuple[int, int], coverage: float = 0.5
) -> Bool[Tensor, "m h w"]:
    """Return the cells that each mask fills, by the rule of `cells_of_boxes`; an empty mask fills none.

    Masks cover the whole crop at any resolution: True, or the share 0..1 of a pixel that belongs to the object. Pixels
    on the border of two cells count for both, by area. Raises ConfigError if `coverage` is out of range.
    """
    with torch.autocast(masks.device.type, enabled=False):
        pixels = masks.to(torch.float32)
        rows, columns = (_pixels(side, cells, masks.device) for side, cells in zip(masks.shape[1:], grid, strict=True))
        share = rows.T @ pixels @ columns
    flat = share.flatten(1)
    return filled_cells(share, flat.argmax(1), coverage) & (flat.amax(1) > 0)[:, None, None]


def _pixels(side: int, cells: int, device: torch.device) -> Float[Tensor, "side cells"]:
    """Share of each cell that lies in each pixel, along one side."""
    edges = torch.linspace(0, 1, side + 1, device=device)
    return shares_of_cells(edges[:-1], edges[1:], cells)
