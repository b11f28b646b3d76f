"""All localisation metrics of one model on one set of images, in one pass over the maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from jaxtyping import Bool, Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.errors import ConfigError, DataError
from fewtags.metrics.localisation import (
    IOA_HIT,
    IOA_THRESHOLDS,
    LocalisationReport,
    Normalise,
    boxes_to_mask,
    ioa_p,
    pointing,
    summarise_pairs,
)
from fewtags.metrics.map_loc import MapLocReport, check_located, map_loc_report
from fewtags.metrics.metric import Metric, nested, number_or_none
from fewtags.metrics.wsol import (
    BOX_CUTS,
    BOX_OVERLAPS,
    PIXEL_BINS,
    SIZE,
    BoxReport,
    BoxRule,
    Mask,
    Parts,
    PixelReport,
    best_overlaps,
    component_boxes,
    inside_and_known,
    pixel_counts,
    prepare_map,
    whole_image_overlap,
)

_Item = TypeVar("_Item")


@final
@dataclass(frozen=True, eq=False)
class Region:
    """The region of one class in one image: the union of its instances.

    Attributes:
        boxes: x0, y0, x1, y1 in 0..1 of the image, all instances. A point has x0 = x1 and y0 = y1.
        mask: the union of all instances, bool or int8 values of `Label` (unknown pixels, for example of a crowd, are
            not counted), at any resolution; None: the union of the boxes.

    Raises:
        DataError: no box, or a box that is not ordered or not inside 0..1; a mask of another dtype, or without any
            object pixel.
    """

    boxes: Float[Array, "n 4"]
    mask: Bool[Array, "h w"] | Int8[Array, "h w"] | None = None

    def __post_init__(self) -> None:
        if not len(self.boxes):
            raise DataError("a region needs at least one box; leave out classes that are absent or not located.")
        first, last = self.boxes[:, :2], self.boxes[:, 2:]
        # Comparisons with NaN are False, so NaN is refused.
        good = (first >= 0).all(1) & (last <= 1).all(1) & (first <= last).all(1)
        if not good.all():
            bad = self.boxes[np.argmin(good)].tolist()
            raise DataError(f"a box is x0 <= x1, y0 <= y1 in 0..1 of the image, got {bad}; divide by width and height.")
        if self.mask is not None:
            _inside(self.mask)

    @classmethod
    def from_mask(cls, mask: Mask) -> Region:
        """Make a region from a mask, with the boxes of its connected parts. Raises DataError as above."""
        inside = _inside(mask)
        height, width = inside.shape
        boxes = component_boxes(inside, parts="outer") / np.array([width, height, width, height])
        return cls(boxes, mask)

    @property
    def has_extent(self) -> bool:
        """Whether no instance is known by a point only."""
        return self.mask is not None or bool((self.boxes[:, :2] < self.boxes[:, 2:]).all())


def _inside(mask: Mask) -> Bool[Array, "h w"]:
    """The object's pixels; at least one."""
    if mask.dtype not in (np.bool_, np.int8):
        raise DataError(
            f"a mask is bool, or int8 values of Label, got {mask.dtype}; use mask > 0 where it is 0 outside of the "
            "object."
        )
    inside, _ = inside_and_known(mask)
    if not inside.any():
        raise DataError("the mask of a region is empty; leave out classes that are absent.")
    return inside


@final
@dataclass(frozen=True, kw_only=True)
class LocateOptions:
    """Settings of the localisation metrics; the defaults follow the papers that the modules name.

    Attributes:
        thresholds: of the maps, for IoA-P and mAP-loc.
        hit: minimum IoA-P of a hit.
        strict: IoA-P must exceed `hit`.
        normalise: scaling of every map before it is cut, see `normalise_map`.
        size: height and width of the maps from which boxes are derived, and of the masks made from true boxes.
        overlaps: minimum intersections over union of a correct box.
        cuts: thresholds of the maps from which boxes are derived; these take most of the time.
        parts: see `component_boxes`.
        rule: see `best_overlaps`.
        bins: number of bins of the PxAP histogram.

    Raises:
        ConfigError: an empty list, or a size below 1.
    """

    thresholds: tuple[float, ...] = IOA_THRESHOLDS
    hit: float = IOA_HIT
    strict: bool = False
    normalise: Normalise = "minmax"
    size: tuple[int, int] = SIZE
    overlaps: tuple[float, ...] = BOX_OVERLAPS
    cuts: tuple[float, ...] = BOX_CUTS
    parts: Parts = "all"
    rule: BoxRule = "exact"
    bins: int = PIXEL_BINS

    def __post_init__(self) -> None:
        for name in ("thresholds", "overlaps", "cuts"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; give at least one number from 0 to 1.")
        if min(self.bins, *self.size) < 1:
            raise ConfigError(f"bins is {self.bins} and size {self.size}; expected 1 or more of each.")


DEFAULT = LocateOptions()


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LocateReport:
    """All metrics of maps, with their chance levels.

    Attributes:
        images: number of evaluated images.
        present: pointing game and IoA-P over the located (image, class) pairs.
        ranked: mAP-loc, and the classes that it leaves out.
        ranked_chance: mAP-loc of flat maps with the same scores; nan if no class is counted.
        boxes: MaxBoxAccV2.
        pixels: PxAP.
    """

    images: int
    present: LocalisationReport
    ranked: MapLocReport
    ranked_chance: float
    boxes: BoxReport
    pixels: PixelReport

    def metrics(self) -> Iterator[Metric]:
        """The summary metrics with their chance levels."""
        present, ranked, boxes, pixels = self.present, self.ranked, self.boxes, self.pixels
        regions: dict[str, Any] = {"count": present.pairs, "items": "regions"}
        classes: dict[str, Any] = {
            "count": len(ranked.positives) - len(ranked.excluded),
            "items": "classes",
            "why": "no class has both located positives and known negatives",
        }
        shown = classes | {"count": int((~np.isnan(pixels.per_class)).sum()), "why": ""}
        hits, hits_chance = float(present.ioa_hits.mean()), present.ioa_hits_chance
        for key, label, value, chance, what in (
            ("pointing", "pointing game", present.pointing, present.chance, regions),
            ("IoA-P", "IoA-P", float(present.ioa.mean()), present.chance, regions),
            ("IoA-P_hits", "IoA-P hits", hits, hits_chance, regions),
            ("mAP-loc", "mAP-loc", ranked.map_loc, self.ranked_chance, classes),
            ("mAP-loc_best_threshold", "mAP-loc, best threshold", ranked.best_map_loc, None, classes),
            ("mAP-cl_same_cells", "mAP-cl, same cells", ranked.map_cl, ranked.map_cl_chance, classes),
            ("MaxBoxAccV2", "MaxBoxAccV2", boxes.max_box_acc, boxes.chance, regions),
            ("PxAP", "PxAP", pixels.pxap, pixels.chance, regions),
            ("mean_PxAP", "mean PxAP", pixels.mean_pxap, None, shown),
        ):
            yield Metric(key=key, label=label, value=value, chance=chance, **what)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, fractions in 0..1; nan becomes None."""
        present, ranked, boxes = self.present, self.ranked, self.boxes
        thresholds = zip(present.thresholds, present.ioa, present.ioa_hits, ranked.by_threshold, strict=True)
        return {
            "images": self.images,
            "located": present.pairs,
            "not_located": int(ranked.unlocated.sum()),
            **nested(self.metrics()),
            "metrics": [metric.to_dict() for metric in self.metrics()],
            "by_threshold": [
                {
                    "threshold": t,
                    "IoA-P": number_or_none(a),
                    "IoA-P_hits": number_or_none(b),
                    "mAP-loc": number_or_none(c),
                }
                for t, a, b, c in thresholds
            ],
            "by_overlap": [
                {"overlap": o, "accuracy": number_or_none(a), "best_cut": number_or_none(c)}
                for o, a, c in zip(boxes.overlaps, boxes.accuracy, boxes.best_cuts, strict=True)
            ],
            "per_class": self._per_class(),
        }

    def _per_class(self) -> list[dict[str, Any]]:
        ranked, excluded, pxap = self.ranked, self.ranked.excluded, self.pixels.per_class
        return [
            {
                "mAP-loc": number_or_none(float(ranked.localised[c].mean())),
                "mAP-cl_same_cells": number_or_none(ranked.classified[c]),
                "PxAP": number_or_none(pxap[c]),
                "located": int(ranked.positives[c]),
                "not_located": int(ranked.unlocated[c]),
                "negatives": int(ranked.negatives[c]),
                "excluded": excluded.get(c),
            }
            for c in range(len(pxap))
        ]


def locate_report(
    maps: Iterable[Float[Array, "_ _ _"]],
    logits: Float[Array, "_ _"],
    labels: Int8[Array, "n c"],
    regions: Iterable[Mapping[int, Region]],
    *,
    options: LocateOptions = DEFAULT,
) -> LocateReport:
    """Pointing game, IoA-P, mAP-loc, MaxBoxAccV2 and PxAP of the maps of n images and c classes.

    Maps and regions may be generators, so that only one image is in memory at a time. Positive cells without a region
    or with an instance that has only a point, and unknown cells are left out and counted. Only mAP-loc depends on the
    ranking of the images; the other metrics use present classes only. The chance level of mAP-loc is the value of flat
    maps with the same scores.

    Args:
        maps: [c, h, w] of each image, probabilities in the image frame; or an array [n, c, h, w].
        logits: [n, c]; higher means more likely present.
        labels: values of `Label`.
        regions: of each image, by class number; in the frame of the maps.
        options: settings of the metrics.

    Raises:
        DataError: maps, logits, labels and regions do not have the same images and classes; a region of a class that
            is not positive; no region at all; a value that is not finite.
    """
    if logits.shape != labels.shape:
        raise DataError(
            f"logits are {logits.shape} and labels {labels.shape}; give one row an image, a column a class."
        )
    where: list[tuple[int, int]] = []
    pairs: list[_Pair] = []
    counts = np.zeros((labels.shape[1], 2, options.bins + 1))
    both = zip(_all(maps, len(labels), "maps"), _all(regions, len(labels), "regions"), strict=True)
    for n, (own, located) in enumerate(both):
        _check_image(own, located, n, labels)
        for c, region in located.items():
            if region.has_extent:
                pair, pixels = _measure(own[c], region, options, f"the heatmap of image {n}, class {c}")
                where.append((n, c))
                pairs.append(pair)
                counts[c] += pixels
    if not pairs:
        raise DataError("no located object to measure against; localisation needs boxes or masks of positive classes.")
    return _report(logits, labels, np.array(where, np.int64), pairs, PixelReport(counts[:, 0], counts[:, 1]), options)


@final
class _Pair(NamedTuple):
    """The values of one region."""

    peak: float
    share: float
    ioa: Float[Array, " t"]
    correct: Bool[Array, "d k"]
    whole_image: Bool[Array, " d"]


def _measure(
    heatmap: Float[Array, "h w"], region: Region, options: LocateOptions, name: str
) -> tuple[_Pair, Float[Array, "2 b"]]:
    mask = boxes_to_mask(region.boxes, options.size) if region.mask is None else region.mask
    inside, known = inside_and_known(mask)
    height, width = mask.shape
    resized = prepare_map(heatmap, (height, width), options.normalise, name)
    coarse = resized if region.mask is None else prepare_map(heatmap, options.size, options.normalise, name)
    overlaps = best_overlaps(coarse, region.boxes, cuts=options.cuts, parts=options.parts, rule=options.rule)
    level = np.asarray(options.overlaps, np.float64)
    # Maps are normalised over the whole image; unknown pixels are left out of the comparison only.
    values, truth = resized[known][None], inside[known][None]
    pair = _Pair(
        pointing(values, truth),
        float(truth.mean()),
        ioa_p(values, truth, thresholds=options.thresholds, normalise="none"),
        overlaps >= level[:, None],
        whole_image_overlap(region.boxes, options.size, rule=options.rule) >= level,
    )
    return pair, pixel_counts(resized, mask, bins=options.bins)


def _report(
    logits: Float[Array, "n c"],
    labels: Int8[Array, "n c"],
    where: Int64[Array, "p 2"],
    pairs: Sequence[_Pair],
    pixels: PixelReport,
    options: LocateOptions,
) -> LocateReport:
    peaks, shares, ioa, correct, whole = (np.stack(values) for values in zip(*pairs, strict=True))
    hit, strict = options.hit, options.strict
    flat = map_loc_report(logits, labels, where, shares[:, None], thresholds=(0.0,), hit=hit, strict=strict)
    return LocateReport(
        images=len(labels),
        present=summarise_pairs(peaks, shares, ioa, options.thresholds, hit=hit, strict=strict),
        ranked=map_loc_report(logits, labels, where, ioa, thresholds=options.thresholds, hit=hit, strict=strict),
        ranked_chance=flat.map_loc,
        boxes=BoxReport(len(pairs), options.overlaps, options.cuts, correct.sum(0), whole.sum(0)),
        pixels=pixels,
    )


def _check_image(
    maps: Float[Array, "_ _ _"], regions: Mapping[int, Region], n: int, labels: Int8[Array, "_ _"]
) -> None:
    if len(maps) != labels.shape[1]:
        raise DataError(f"image {n} has {len(maps)} maps for {labels.shape[1]} classes; give one map a class.")
    check_located(labels, np.array([(n, c) for c in regions], np.int64).reshape(-1, 2))


def _all(items: Iterable[_Item], expected: int, name: str) -> Iterator[_Item]:
    """The items; raises DataError if their number is not as expected."""
    n = 0
    for n, item in enumerate(items, 1):
        if n > expected:
            break
        yield item
    if n != expected:
        many = f"more than {expected}" if n > expected else str(n)
        raise DataError(
            f"there are {name} of {many} images, but labels of {expected}; give one entry an image, in order."
        )
