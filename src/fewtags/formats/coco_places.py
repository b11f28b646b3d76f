"""Where the objects of a COCO file are: in their boxes, or at a point drawn in each mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.formats.coco_masks import draws, point_in_box, point_of
from fewtags.formats.common import ReadOptions

_Record = dict[str, Any]


def without_outlines(record: _Record) -> _Record:
    """Drop outlines while parsing: they are most of a large file, and gone at once they do not fill the memory."""
    record.pop("segmentation", None)
    return record


def outlines_to_points(seed: int) -> Callable[[_Record], _Record]:
    """The same, with a point x, y of the outline in its place; None where it has no pixel."""

    def drawn(record: _Record) -> _Record:
        if "segmentation" in record:
            outline = record["segmentation"]
            record["segmentation"] = point_of(outline, _draws(record, seed))
            record["pointless"] = bool(outline) and record["segmentation"] is None
        return record

    return drawn


def _draws(record: Mapping[str, Any], seed: int) -> tuple[float, float, float]:
    """The random numbers of an annotation: by its id, or by what it says where it has none."""
    own = [record.get(key) for key in ("image_id", "category_id", "bbox")]
    return draws(seed, record.get("id", own))


@final
@dataclass(frozen=True)
class CocoPlaces:
    """Where F objects are, as `place_boxes` wants it.

    Attributes:
        pixels: float64 [F, 4] x0, y0, x1, y1, NaN for what is no place.
        given: bool [F], whether there is a place.
        points: bool [F], whether it is a point.
        messages: what was done, with counts.
    """

    pixels: NDArray[np.float64]
    given: NDArray[np.bool_]
    points: NDArray[np.bool_]
    messages: tuple[str, ...] = ()


def find_places(
    records: Sequence[_Record],
    boxes: NDArray[np.float64],
    boxed: NDArray[np.bool_],
    sizes: NDArray[np.float64],
    options: ReadOptions,
) -> CocoPlaces:
    """The places that the options ask for.

    Args:
        records: F annotations, for points read with `outlines_to_points`.
        boxes: float64 [F, 4] x0, y0, x1, y1 in pixels, NaN for what is none.
        boxed: bool [F], whether there is a box.
        sizes: float64 [F, 2] width and height of the photos, NaN where unknown.
        options: `places` and `point_seed` count.
    """
    every, none = np.ones(len(records), np.bool_), np.zeros(len(records), np.bool_)
    if options.places == "none":
        return CocoPlaces(boxes, none, none)
    if options.places == "boxes":
        return CocoPlaces(boxes, boxed, none)
    masked = np.array([record.get("segmentation") is not None for record in records], np.bool_)
    points = [
        record["segmentation"] if mask else point_in_box(box, size, _draws(record, options.point_seed))
        for record, mask, box, size in zip(records, masked.tolist(), boxes.tolist(), sizes.tolist(), strict=True)
    ]
    in_boxes = int((boxed & ~masked).sum())
    damaged = sum(bool(record.get("pointless")) for record in records)
    said = f"{masked.sum():,} points drawn in masks, {in_boxes:,} in boxes without a mask"
    said += f", of which {damaged:,} have an outline that is damaged or holds no pixel" if damaged else ""
    pixels = np.tile(np.array(points, np.float64).reshape(-1, 2), 2)
    return CocoPlaces(pixels, masked | boxed, every, (f"{said} (point_seed {options.point_seed})",))
