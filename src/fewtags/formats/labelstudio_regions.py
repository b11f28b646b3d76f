"""Regions of Label Studio: rectangles, keypoints, polygons and ellipses, in per cent of the photo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from fewtags.formats.common import NO_CORNERS, Corners, Point, bounds, ellipse_bounds, finite_number


@final
@dataclass(frozen=True)
class Region:
    """A region in fractions of the photo; neither box nor point for a choice about the whole photo.

    Attributes:
        unread: why the region is not read.
        size: declared width and height of the photo in pixels, if given.
        meaning: what the region adds to the reading of a label, in words.
    """

    box: Corners | None = None
    point: Point | None = None
    unread: str = ""
    size: Point | None = None
    meaning: str = ""


def region_of(kind: str, item: Mapping[str, Any], value: Mapping[str, Any]) -> Region:
    """Return the region of a result `item` with its type, such as "rectanglelabels", and its value."""
    width, height = finite_number(item.get("original_width")), finite_number(item.get("original_height"))
    size = (width, height) if width > 0 and height > 0 else None
    turned = finite_number(item.get("image_rotation") or 0)
    corners = _corners(value, size, kind.startswith("keypoint"))
    if kind.startswith(("brush", "bitmask")) or value.get("format") == "rle":
        why = "its brush mask is not read: draw a rectangle, polygon or keypoint to locate it"
    elif corners is None:
        return Region()
    elif turned:
        why = f"its photo was rotated by {turned:g} degrees in Label Studio, which is not supported"
    elif isinstance(corners, str):
        why = corners
    elif len(corners) == 2:
        return Region(point=corners, size=size, meaning=", with its point")
    else:
        boxed = "radiusX" not in value and "points" not in value and not finite_number(value.get("rotation", 0))
        return Region(corners, size=size, meaning=", with its box" if boxed else ", with its bounding box")
    return Region(unread=why, meaning=", its region is not read")


def _corners(value: Mapping[str, Any], size: Point | None, keypoint: bool) -> Corners | Point | str | None:
    """Return a box or point in fractions (NaN if broken), the reason why it cannot be read, or None for no region."""
    if "points" in value and not keypoint:
        points = value["points"] if isinstance(value["points"], list) else []
        pairs = [pair if isinstance(pair, list) and len(pair) == 2 else (None, None) for pair in points]
        x0, y0, x1, y1 = bounds([(finite_number(x), finite_number(y)) for x, y in pairs])
        return x0 / 100, y0 / 100, x1 / 100, y1 / 100
    if "x" not in value or "y" not in value:
        return None
    x, y = finite_number(value["x"]) / 100, finite_number(value["y"]) / 100
    radii = "radiusX" in value
    if keypoint or (not radii and "height" not in value):  # the size of a keypoint is that of its dot on the screen
        return x, y
    rotation = finite_number(value.get("rotation", 0))
    keys = ("radiusX", "radiusY") if radii else ("width", "height")
    w, h = (finite_number(value.get(key)) / 100 for key in keys)
    if not all(map(math.isfinite, (x, y, w, h, rotation))) or (radii and min(w, h) < 0):
        return NO_CORNERS
    if rotation and size is None:
        return "it is rotated, and original_width and original_height are not given"
    ratio = 1.0 if size is None else size[0] / size[1]
    return ellipse_bounds(x, y, w, h, rotation, ratio) if radii else _rectangle(x, y, w, h, rotation, ratio)


def _rectangle(x: float, y: float, w: float, h: float, rotation: float, ratio: float) -> Corners:
    """Return the bounding box of a rectangle rotated clockwise about its top-left corner.

    `ratio` is width / height of the photo in pixels.
    """
    if not rotation:
        return x, y, x + w, y + h
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    # In units of the photo's height the pixels are square.
    across = [0.0, w * ratio * cos, -h * sin, w * ratio * cos - h * sin]
    down = [0.0, w * ratio * sin, h * cos, w * ratio * sin + h * cos]
    return x + min(across) / ratio, y + min(down), x + max(across) / ratio, y + max(down)
