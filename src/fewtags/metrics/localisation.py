"""Pointing game and IoA-P: whether heatmaps point at their objects.

A heatmap [h, w] and the region of the same class [H, W] both cover the whole image; the map is resized to the region.
A region is the union of all instances of the class, as a mask (`boxes_to_mask` converts boxes). Only present classes
are evaluated. The chance level of both metrics is the region's share of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from fewtags.errors import DataError

Normalise = Literal["minmax", "max", "none"]

IOA_THRESHOLDS = (0.6, 0.7, 0.8, 0.9)  # PatchML section 4: thresholds of the maps
IOA_HIT = 0.5  # and the minimum IoA-P of a localised map


def boxes_to_mask(boxes: Float[Array, "n 4"], size: tuple[int, int]) -> Bool[Array, "h w"]:
    """The union of boxes (x0, y0, x1, y1 in 0..1) as a mask of `size` (height, width): pixels with the centre inside.

    A point, or a box that contains no pixel centre, marks the pixel that contains its own centre.

    >>> boxes_to_mask(np.array([[0.5, 0.0, 1.0, 1.0]]), (1, 4)).tolist()
    [[False, False, True, True]]
    """
    h, w = size
    y, x = (np.arange(h) + 0.5) / h, (np.arange(w) + 0.5) / w
    mask = np.zeros(size, np.bool_)
    for x0, y0, x1, y1 in boxes.tolist():
        rows, columns = np.flatnonzero((y >= y0) & (y <= y1)), np.flatnonzero((x >= x0) & (x <= x1))
        if rows.size == 0:
            rows = np.array([min(max(int((y0 + y1) / 2 * h), 0), h - 1)])
        if columns.size == 0:
            columns = np.array([min(max(int((x0 + x1) / 2 * w), 0), w - 1)])
        mask[np.ix_(rows, columns)] = True
    return mask


def resize_map(heatmap: Float[Array, "h w"], size: tuple[int, int]) -> Float[Array, "H W"]:
    """Resize bilinearly with `align_corners=False`, as torch does; float64. Flat maps stay exactly flat."""
    return _stretch(_stretch(heatmap.astype(np.float64), size[0]).T, size[1]).T


def _stretch(values: Float[Array, "old k"], new: int) -> Float[Array, "new k"]:
    """Interpolate linearly between the rows, which are at the centres of equal parts."""
    old = len(values)
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    before = at.astype(np.int64)
    after = np.minimum(before + 1, old - 1)
    stretched: Float[Array, "new k"] = values[before] + (values[after] - values[before]) * (at - before)[:, None]
    return stretched


def normalise_map(heatmap: Float[Array, "h w"], how: Normalise) -> Float[Array, "h w"]:
    """Scale a finite map before it is cut: "minmax" to 0..1, "max" by its maximum, "none" not at all.

    A flat map becomes 0 everywhere with "minmax", and a map without positive values with "max".

    >>> normalise_map(np.array([[1.0, 2.0, 4.0]]), "max").tolist()
    [[0.25, 0.5, 1.0]]
    """
    if how == "none":
        return heatmap
    low, high = heatmap.min() if how == "minmax" else 0.0, heatmap.max()
    scaled: Float[Array, "h w"] = (heatmap - low) / (high - low) if high > low else np.zeros_like(heatmap)
    return scaled


def pointing(heatmap: Float[Array, "h w"], region: Bool[Array, "H W"]) -> float:
    """Pointing game (Zhang et al., ECCV 2016): 1 if the maximum of the resized map is inside the region, else 0.

    If several pixels have the maximum, the result is the share of them that is inside, so a flat map gets the chance
    level. Deviation: the paper accepts a miss by up to 15 pixels. Raises DataError if the map contains a NaN.
    """
    resized = _resized(heatmap, region)
    return float(region[resized == resized.max()].mean())


def ioa_p(
    heatmap: Float[Array, "h w"],
    region: Bool[Array, "H W"],
    *,
    thresholds: Sequence[float] = IOA_THRESHOLDS,
    normalise: Normalise = "minmax",
) -> Float[Array, " t"]:
    """IoA-P (PatchML eq. 6): the share of {map >= threshold} that is inside the region, for each threshold.

    A single pixel above the threshold gets 1 if it is inside; without any, the result is nan. Raises DataError if the
    map contains a NaN.

    Args:
        heatmap: probabilities; resized to the region first.
        region: union of all instances of the class.
        thresholds: of the map.
        normalise: of the resized map, see `normalise_map`. The paper does not specify it; without "minmax" most maps
            never reach 0.6.

    >>> region = np.array([[False, False, True, False]])
    >>> ioa_p(np.array([[0.0, 0.5, 1.0, 0.9]]), region, thresholds=[0.7, 0.95]).tolist()
    [0.5, 1.0]
    """
    resized = normalise_map(_resized(heatmap, region), normalise)
    cut = resized >= np.asarray(thresholds, np.float64)[:, None, None]
    area = cut.sum((1, 2))
    return np.where(area > 0, (cut & region).sum((1, 2)) / np.maximum(area, 1), np.nan)


def reaches(ioa: Float[Array, "*any"], hit: float = IOA_HIT, *, strict: bool = False) -> Bool[Array, "*any"]:
    """Whether an IoA-P counts as localised: at least `hit`, or above it if `strict` (PatchML is unclear); not nan."""
    reached: Bool[Array, "*any"] = np.greater(ioa, hit) if strict else np.greater_equal(ioa, hit)
    return reached


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalisationReport:
    """Means over (image, class) pairs in which the class is present.

    Attributes:
        pairs: number of pairs.
        pointing: mean of `pointing`.
        chance: mean share of the regions in their images: the value of flat maps in `pointing` and in `ioa`.
        thresholds: t thresholds of the maps.
        ioa: float64 [t], mean IoA-P; a map that never reaches the threshold counts as 0.
        ioa_hits: float64 [t], share of the pairs that are localised, by default with IoA-P >= 0.5.
        ioa_hits_chance: the value of flat maps in `ioa_hits`.
    """

    pairs: int
    pointing: float
    chance: float
    thresholds: tuple[float, ...]
    ioa: Float[Array, " t"]
    ioa_hits: Float[Array, " t"]
    ioa_hits_chance: float


def summarise_pairs(
    peaks: Float[Array, " p"],
    shares: Float[Array, " p"],
    ioa: Float[Array, "p t"],
    thresholds: Sequence[float],
    *,
    hit: float = IOA_HIT,
    strict: bool = False,
) -> LocalisationReport:
    """Average over pairs: `pointing` from `peaks`, the share of the image that the region covers, and `ioa_p`."""
    return LocalisationReport(
        pairs=len(peaks),
        pointing=float(peaks.mean()),
        chance=float(shares.mean()),
        thresholds=tuple(thresholds),
        ioa=np.nan_to_num(ioa, nan=0.0).mean(0),
        ioa_hits=reaches(ioa, hit, strict=strict).mean(0),
        ioa_hits_chance=float(reaches(shares, hit, strict=strict).mean()),
    )


def _resized(heatmap: Float[Array, "h w"], region: Bool[Array, "H W"]) -> Float[Array, "H W"]:
    if np.isnan(heatmap).any():
        raise DataError("the heatmap contains a value that is not a number; the model or its input is broken.")
    height, width = region.shape
    return resize_map(heatmap, (height, width))
