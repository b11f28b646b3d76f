"""Shapes of LabelMe: their places in pixels, and their outlines."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from fewtags.formats.common import NO_CORNERS, Corners, Point, bounds, ellipse_bounds, ellipse_corners, finite_number
from fewtags.formats.masks import MOST_PIXELS, Outline
from fewtags.photos.pillow import DAMAGE, open_picture

KINDS = {
    "rectangle": "positive, with its box",
    "point": "positive, with its point",
    "points": "positive, with each point",
} | dict.fromkeys(
    ("polygon", "circle", "line", "linestrip", "mask", "rotation", "quadrilateral"), "positive, with its bounding box"
)
"""How each kind of shape is read; `rotation` and `quadrilateral` are those of X-AnyLabeling."""


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a shape is: a box or points in pixels, NaN if they are broken.

    Attributes:
        box: the bounding box.
        points: the points; empty for other shapes.
        outline: the outline, if it is drawn.
        unread: why the place is not read.
    """

    box: Corners | None = None
    points: tuple[Point, ...] = ()
    outline: Outline | None = None
    unread: str = ""


def place_of(shape: Mapping[str, Any], kind: str, *, drawn: bool) -> Place:
    """Return the place of a shape; its outline is made only if points are drawn in it."""
    given = shape.get("points")
    pairs = [pair if isinstance(pair, list) and len(pair) == 2 else (None, None) for pair in _list(given)]
    points = [(finite_number(x), finite_number(y)) for x, y in pairs]
    if kind not in KINDS:
        return Place(unread=f"its shape_type {kind[:40]!r} is not read")
    if kind in ("point", "points"):
        return Place(points=tuple(points) or (NO_CORNERS[:2],))
    box = bounds(points)
    if not all(map(math.isfinite, box)):
        return Place(box=NO_CORNERS)
    if kind == "circle":
        if len(points) != 2:
            return Place(box=NO_CORNERS)
        (cx, cy), (x, y) = points
        circle = (cx, cy, math.hypot(x - cx, y - cy), math.hypot(x - cx, y - cy), 0.0)
        return Place(box=ellipse_bounds(*circle), outline=Outline.of_polygon(ellipse_corners(*circle)))
    if kind == "mask":
        x0, y0, x1, y1 = box  # the first and the last pixel
        return Place(box=(x0, y0, x1 + 1, y1 + 1), outline=_mask(shape.get("mask"), (x0, y0)) if drawn else None)
    outlined = kind in ("polygon", "rotation", "quadrilateral")
    return Place(box=box, outline=Outline.of_polygon(points) if outlined else None)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mask(data: object, corner: Point) -> Outline:
    """Return the outline of a mask, a PNG in base64 with the pixels of its bounding box; without pixels if broken."""
    if not isinstance(data, str):
        return Outline([])
    try:
        with open_picture(io.BytesIO(base64.b64decode(data, validate=True)), ("PNG",)) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                return Outline([])
            pixels = np.array(picture.convert("L")) > 0
    except DAMAGE:  # binascii.Error is a ValueError
        return Outline([])
    return replace(Outline.of_mask(pixels), corner=corner)
