"""The metrics of weakly supervised object localisation: MaxBoxAccV2 and PxAP (Choe et al., CVPR 2020).

Both metrics cut the map of each present class at every threshold. MaxBoxAccV2 compares the boxes around the part above
the threshold, PxAP its pixels. Maps [h, w], masks and boxes cover the whole image; boxes are x0, y0, x1, y1 in 0..1.
Deviation from the public code: maps are resized bilinearly instead of bicubically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int8, Int32, Int64
from numpy import ndarray as Array
from scipy import ndimage

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.localisation import Normalise, normalise_map, resize_map
from fewtags.metrics.ranking import mean_of_known

Parts = Literal["all", "outer", "largest"]
BoxRule = Literal["exact", "wsol"]
Mask = Bool[Array, "_ _"] | Int8[Array, "_ _"]

BOX_OVERLAPS = (0.3, 0.5, 0.7)  # MaxBoxAccV2: minimum intersections over union of a correct box
BOX_CUTS = tuple(k / 100 for k in range(100))  # and the thresholds from which it takes the best
PIXEL_BINS = 1000
SIZE = (224, 224)


def component_boxes(cut: Bool[Array, "h w"], *, parts: Parts = "all") -> Int64[Array, "n 4"]:
    """Boxes x0, y0, x1, y1 (pixel edges: x1 and y1 are one past the last pixel) around the connected parts of a mask.

    Diagonal neighbours are connected. `parts` is "outer": every part; "all": also the outline of every hole, as in the
    public code; "largest": the part whose outline through pixel centres encloses the largest area (a line encloses
    none), and of equal parts the one whose first pixel in reading order comes last.

    >>> component_boxes(np.array([[True, False, False], [False, False, True]])).tolist()
    [[0, 0, 1, 1], [2, 1, 3, 2]]
    """
    labelled, _ = ndimage.label(cut, np.ones((3, 3)))
    found = ndimage.find_objects(labelled)
    if parts == "largest":
        return _edges([found[_largest(labelled, found)]] if found else [])
    if parts == "outer":
        return _edges(found)
    # The first part of the padded background surrounds everything; an outline is a pixel wider than its hole.
    background, _ = ndimage.label(np.pad(~cut, 1, constant_values=True))
    holes = _edges(ndimage.find_objects(background)[1:]) + np.array([-2, -2, 0, 0])
    return np.concatenate([_edges(found), holes])


def _edges(parts: Sequence[tuple[slice, slice]]) -> Int64[Array, "n 4"]:
    boxes = [(columns.start, rows.start, columns.stop, rows.stop) for rows, columns in parts]
    return np.array(boxes, np.int64).reshape(-1, 4)


def _largest(labelled: Int32[Array, "h w"], found: Sequence[tuple[slice, slice]]) -> int:
    most = np.array([(rows.stop - rows.start - 1) * (columns.stop - columns.start - 1) for rows, columns in found])
    best, area = 0, -1.0
    for k in np.argsort(-most, kind="stable").tolist():
        if most[k] < area:
            break
        own = _outline_area(labelled[found[k]] == k + 1)
        if (own, k) > (area, best):
            best, area = k, own
    return best


def _outline_area(part: Bool[Array, "h w"]) -> float:
    """Area inside the outline through the pixel centres: four neighbours enclose 1, three 1/2, fewer nothing."""
    full = ndimage.binary_fill_holes(part).astype(np.int8)
    corners = full[:-1, :-1] + full[1:, :-1] + full[:-1, 1:] + full[1:, 1:]
    return float((corners == 4).sum() + (corners == 3).sum() / 2)


def box_iou(a: Float[Array, "m 4"], b: Float[Array, "n 4"], *, last: float = 0.0) -> Float[Array, "m n"]:
    """Intersection over union [m, n] of boxes x0, y0, x1, y1; 0 if both boxes have no area.

    `last` is added to every width and height: 1 if x1 and y1 are the numbers of the last pixels.
    """
    a, b = a[:, None], b[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + last
    common = sides.clip(0).prod(-1)
    union = (a[..., 2:] - a[..., :2] + last).prod(-1) + (b[..., 2:] - b[..., :2] + last).prod(-1) - common
    overlap: Float[Array, "m n"] = common / np.where(union > 0, union, 1.0)
    return overlap


def best_overlaps(
    heatmap: Float[Array, "h w"],
    boxes: Float[Array, "n 4"],
    *,
    cuts: Sequence[float] = BOX_CUTS,
    parts: Parts = "all",
    rule: BoxRule = "exact",
) -> Float[Array, " t"]:
    """For each cut, the best intersection over union of a box around {map > cut x maximum} with a true box.

    Args:
        heatmap: already normalised, at the resolution from which boxes are derived.
        boxes: of all instances of the class, at least one, in 0..1.
        cuts: thresholds, as shares of the maximum.
        parts: which boxes a cut map gives, see `component_boxes`.
        rule: "exact": boxes end at pixel edges. "wsol" repeats the public code: the map is cut in 256 levels, true
            boxes are rounded down to pixels, boxes of the map end at the last pixel at the right and bottom edge, x1
            and y1 are counted as pixels of the box, and a cut without pixels gives the box of the first pixel.
    """
    height, width = heatmap.shape
    truth = _in_pixels(boxes, heatmap.shape, rule)
    if rule == "wsol":
        levels = (heatmap * 255).clip(0, 255).astype(np.uint8).astype(np.float64)
        cut = np.trunc(np.asarray(cuts) * levels.max())
    else:
        levels, cut = heatmap, np.asarray(cuts) * heatmap.max()
    distinct, place = np.unique(cut, return_inverse=True)
    best = np.zeros(len(distinct))
    for k, level in enumerate(distinct):
        found = component_boxes(levels > level, parts=parts).astype(np.float64)
        if rule == "wsol":
            found = np.minimum(found, [width, height, width - 1, height - 1]) if len(found) else np.zeros((1, 4))
        best[k] = box_iou(found, truth, last=_last(rule)).max(initial=0.0)
    return best[place]


def whole_image_overlap(boxes: Float[Array, "n 4"], size: tuple[int, int], *, rule: BoxRule = "exact") -> float:
    """The best intersection over union of the whole image with any true box: the chance level of MaxBoxAccV2."""
    whole = np.array([[0.0, 0.0, size[1] - _last(rule), size[0] - _last(rule)]])
    return float(box_iou(whole, _in_pixels(boxes, size, rule), last=_last(rule)).max())


def _in_pixels(boxes: Float[Array, "n 4"], size: tuple[int, ...], rule: BoxRule) -> Float[Array, "n 4"]:
    pixels: Float[Array, "n 4"] = boxes.astype(np.float64) * np.array([size[1], size[0], size[1], size[0]])
    # 3 / 7 * 7 may be slightly below 3.
    return np.floor(pixels + 1e-9) if rule == "wsol" else pixels


def _last(rule: BoxRule) -> float:
    return 1.0 if rule == "wsol" else 0.0


@final
@dataclass(frozen=True, eq=False)
class BoxReport:
    """How often boxes derived from the maps are correct.

    Attributes:
        pairs: number of (image, class) pairs in which the class is present and has boxes.
        overlaps: d minimum intersections over union of a correct box.
        cuts: t thresholds of the maps.
        correct: number of pairs with a correct box.
        whole_image: number of pairs in which the whole image is a correct box.
    """

    pairs: int
    overlaps: tuple[float, ...]
    cuts: tuple[float, ...]
    correct: Int64[Array, "d t"]
    whole_image: Int64[Array, " d"]

    @property
    def accuracy(self) -> Float[Array, " d"]:
        """MaxBoxAcc at each overlap: the share of correct pairs at the best cut, which is chosen on these images."""
        share: Float[Array, " d"] = self.correct.max(1) / self.pairs
        return share

    @property
    def max_box_acc(self) -> float:
        """MaxBoxAccV2: the mean over the overlaps."""
        return float(self.accuracy.mean())

    @property
    def best_cuts(self) -> Float[Array, " d"]:
        """The first cut that reaches each accuracy."""
        best: Float[Array, " d"] = np.asarray(self.cuts, np.float64)[self.correct.argmax(1)]
        return best

    @property
    def chance(self) -> float:
        """MaxBoxAccV2 of the box of the whole image."""
        return float(self.whole_image.mean() / self.pairs)


def prepare_map(
    heatmap: Float[Array, "_ _"], size: tuple[int, ...], normalise: Normalise, name: str
) -> Float[Array, "h w"]:
    """Resize a map to `size` (height, width), then normalise it; float64. Raises DataError if it is not finite."""
    if not np.isfinite(heatmap).all():
        raise DataError(f"{name} contains a value that is not finite; the model or its input is broken.")
    return normalise_map(resize_map(heatmap, (size[0], size[1])), normalise)


def inside_and_known(mask: Mask) -> tuple[Bool[Array, "h w"], Bool[Array, "h w"]]:
    """Masks of the object's pixels and of the pixels with a known label, from bool or int8 values of `Label`."""
    if mask.dtype == np.bool_:
        return mask, np.ones_like(mask)
    return mask == Label.POSITIVE, mask != Label.UNKNOWN


def pixel_counts(
    heatmap: Float[Array, "h w"], mask: Bool[Array, "h w"] | Int8[Array, "h w"], *, bins: int = PIXEL_BINS
) -> Float[Array, "2 b"]:
    """Histograms of a map's values inside and outside of the object, as shares of the image.

    Args:
        heatmap: of the mask's size; values are clipped to 0..1.
        mask: see `inside_and_known`; unknown pixels are left out.
        bins: equal parts of 0..1; the value 1 has its own bin, so b = bins + 1.
    """
    inside, known = inside_and_known(mask)
    place = (heatmap * bins).astype(np.int64).clip(0, bins)
    both = [np.bincount(place[which & known], minlength=bins + 1) for which in (inside, ~inside)]
    return np.stack(both) / mask.size


def average_precision_of_counts(inside: Float[Array, " b"], outside: Float[Array, " b"]) -> float:
    """Area under the precision-recall curve of pixels, from their counts in bins of ascending value.

    The sum over bins of (recall gained) x precision; pixels of one bin enter together. nan if no pixel is inside.
    """
    found, right = np.cumsum((inside + outside)[::-1]), np.cumsum(inside[::-1])
    if not len(right) or right[-1] <= 0:
        return np.nan
    some = found > 0
    return float(np.sum(inside[::-1][some] * right[some] / found[some]) / right[-1])


@final
@dataclass(frozen=True, eq=False)
class PixelReport:
    """PxAP from sums of `pixel_counts`: histograms of each class's object pixels, and of the other pixels."""

    inside: Float[Array, "c b"]
    outside: Float[Array, "c b"]

    @property
    def pxap(self) -> float:
        """PxAP: all pixels of all classes on one curve; nan if there are none."""
        return average_precision_of_counts(self.inside.sum(0), self.outside.sum(0))

    @property
    def per_class(self) -> Float[Array, " c"]:
        """PxAP of each class on its own curve; nan if no pixel belongs to it."""
        return np.array([average_precision_of_counts(a, b) for a, b in zip(self.inside, self.outside, strict=True)])

    @property
    def mean_pxap(self) -> float:
        """Mean of `per_class` without nan; nan if no class has a value."""
        return mean_of_known(self.per_class)

    @property
    def chance(self) -> float:
        """PxAP of flat maps: the share of object pixels; nan if there are no pixels."""
        total = self.inside.sum() + self.outside.sum()
        return float(self.inside.sum() / total) if total > 0 else np.nan
