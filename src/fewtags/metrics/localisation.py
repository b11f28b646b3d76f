"""Pointing game and IoA-P: whether heatmaps point at their objects. Each metric has a chance level.

A heatmap [h, w] and the region of the same class [H, W] both cover the whole image (the image frame), at any two
resolutions: the map is resized to the region. A region is the union of all instances of the class, as a mask; boxes
become one with `boxes_to_mask`. Only present classes are evaluated; the ranking of the images is not
evaluated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from fewtags.errors import DataError

Normalise = Literal["minmax", "max", "none"]

IOA_THRESHOLDS = (0.6, 0.7, 0.8, 0.9)  # PatchML section 4: the thresholds that cut a map into inside and outside
IOA_HIT = 0.5  # and the IoA-P from which a cut map counts as localised


def boxes_to_mask(boxes: Float[Array, "n 4"], size: tuple[int, int]) -> Bool[Array, "h w"]:
    """The union of boxes as a mask of `size` (height, width): pixels whose centre is inside a box.

    Args:
        boxes: x0, y0, x1, y1 in 0..1 of the image. A point has x0 = x1 and y0 = y1.
        size: of the mask.

    A box that holds no pixel centre marks the pixel that holds its own centre, so small objects and points stay.

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
    """Bilinear, `align_corners=False`, as `torch.nn.functional.interpolate`; float64. Flat stays exactly flat."""
    return _stretch(_stretch(heatmap.astype(np.float64), size[0]).T, size[1]).T


def _stretch(values: Float[Array, "old k"], new: int) -> Float[Array, "new k"]:
    """Interpolate linearly between the rows, which stand at the centres of equal parts."""
    old = len(values)
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    before = at.astype(np.int64)
    after = np.minimum(before + 1, old - 1)
    stretched: Float[Array, "new k"] = values[before] + (values[after] - values[before]) * (at - before)[:, None]
    return stretched


def normalise_map(heatmap: Float[Array, "h w"], how: Normalise) -> Float[Array, "h w"]:
    """Bring one map to a common scale before it is cut.

    Args:
        heatmap: finite.
        how: "minmax" stretches it to 0..1, "max" divides it by its highest value, "none" leaves it as it is. A flat map
            becomes 0 everywhere under "minmax", and so does one without a value above 0 under "max".

    >>> normalise_map(np.array([[1.0, 2.0, 4.0]]), "max").tolist()
    [[0.25, 0.5, 1.0]]
    """
    if how == "none":
        return heatmap
    low, high = heatmap.min() if how == "minmax" else 0.0, heatmap.max()
    scaled: Float[Array, "h w"] = (heatmap - low) / (high - low) if high > low else np.zeros_like(heatmap)
    return scaled


def pointing(heatmap: Float[Array, "h w"], region: Bool[Array, "H W"]) -> float:
    """Pointing game (Zhang et al., ECCV 2016): 1 if the map, resized to the region, is highest inside the region.

    Several equally high pixels count with the share of them that is inside, so a flat map gets the chance level, which
    is the region's share of the image. Deviation: the paper accepts a miss by up to 15 pixels, this does not.

    Raises:
        DataError: the map holds a NaN.
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
    """IoA-P (PatchML eq. 6): the share of {map >= threshold} that lies inside the region, for each threshold.

    Chance level: the region's share of the image. Note that a single hot pixel inside gets 1.

    Args:
        heatmap: probabilities; resized to the region first.
        region: union of all instances of the class.
        thresholds: of the map.
        normalise: as in `normalise_map`, of the resized map. The paper is silent; without "minmax" most maps never
            reach 0.6.

    Returns:
        float64 [t] in 0..1; nan where no pixel reaches the threshold.

    Raises:
        DataError: the map holds a NaN.

    >>> region = np.array([[False, False, True, False]])
    >>> ioa_p(np.array([[0.0, 0.5, 1.0, 0.9]]), region, thresholds=[0.7, 0.95]).tolist()
    [0.5, 1.0]
    """
    resized = normalise_map(_resized(heatmap, region), normalise)
    cut = resized >= np.asarray(thresholds, np.float64)[:, None, None]
    area = cut.sum((1, 2))
    return np.where(area > 0, (cut & region).sum((1, 2)) / np.maximum(area, 1), np.nan)


def reaches(ioa: Float[Array, "*any"], hit: float = IOA_HIT, *, strict: bool = False) -> Bool[Array, "*any"]:
    """Where an IoA-P counts as localised: `hit` or more (`strict`: more); nan never does.

    PatchML does not say whether exactly 0.5 counts.
    """
    reached: Bool[Array, "*any"] = np.greater(ioa, hit) if strict else np.greater_equal(ioa, hit)
    return reached


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalisationReport:
    """Means over (image, class) pairs in which the class is present.

    Attributes:
        pairs: how many.
        pointing: mean of `pointing`.
        chance: mean share of the image that the regions take: what a flat map reaches in `pointing` and in `ioa`.
        thresholds: of the maps, t of them.
        ioa: float64 [t], mean IoA-P; a map that never reaches the threshold counts as 0.
        ioa_hits: float64 [t], share of the pairs that are localised, by default those with IoA-P >= 0.5.
        ioa_hits_chance: share of the pairs whose region takes that share of the image: what a flat map reaches.
    """

    pairs: int
    pointing: float
    chance: float
    thresholds: tuple[float, ...]
    ioa: Float[Array, " t"]
    ioa_hits: Float[Array, " t"]
    ioa_hits_chance: float


def localisation_report(
    pairs: Iterable[tuple[Float[Array, "_ _"], Bool[Array, "_ _"]]],
    *,
    thresholds: Sequence[float] = IOA_THRESHOLDS,
    normalise: Normalise = "minmax",
) -> LocalisationReport:
    """Evaluate heatmaps against regions, one (heatmap, region) pair at a time.

    Raises:
        DataError: no pair, an empty region, or a NaN in a map.
    """
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


def summarise_pairs(
    peaks: Float[Array, " p"],
    shares: Float[Array, " p"],
    ioa: Float[Array, "p t"],
    thresholds: Sequence[float],
    *,
    hit: float = IOA_HIT,
    strict: bool = False,
) -> LocalisationReport:
    """Means over at least one pair that was already measured.

    Args:
        peaks: `pointing` of each pair.
        shares: of the image that each region takes.
        ioa: `ioa_p` of each pair.
        thresholds: of the maps, t of them.
        hit: as in `reaches`.
        strict: as in `reaches`.
    """
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
        raise DataError("the heatmap holds a value that is not a number; the model or its input is broken.")
    height, width = region.shape
    return resize_map(heatmap, (height, width))
