"""Regions of Label Studio: rectangles, keypoints, polygons and ellipses, in per cent of the photo."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fewtags.formats.common import finite_number
from fewtags.formats.stated import NO_CORNERS, Corners


@final
@dataclass(frozen=True)
class Region:
    """A region in fractions of the photo; neither box nor point for a choice about the whole photo.

    Attributes:
        box: x0, y0, x1, y1.
        point: x, y.
        unread: why the region is not read.
        size: declared width and height of the photo in pixels, if given.
        meaning: what the region adds to the reading of a label, in words.
    """

    box: Corners | None = None
    point: tuple[float, float] | None = None
    unread: str = ""
    size: tuple[float, float] | None = None
    meaning: str = ""


def region_of(kind: str, item: Mapping[str, Any], value: Mapping[str, Any]) -> Region:
    """Return the region of a result.

    Args:
        kind: type of the result, such as "rectanglelabels".
        item: the result.
        value: value of the result.
    """
    width, height = finite_number(item.get("original_width")), finite_number(item.get("original_height"))
    size = (width, height) if width > 0 and height > 0 else None
    turned = finite_number(item.get("image_rotation") or 0)
    corners = _point(value) if kind.startswith("keypoint") else _corners(value, size)
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


def _point(value: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return a keypoint in fractions; its width and height, if any, are those of the dot on the screen."""
    return (finite_number(value["x"]) / 100, finite_number(value["y"]) / 100) if "x" in value and "y" in value else None


def _corners(value: Mapping[str, Any], size: tuple[float, float] | None) -> Corners | tuple[float, float] | str | None:
    """Return a box or point in fractions (NaN if broken), the reason why it cannot be read, or None for no region."""
    if "points" in value:
        return _polygon(value["points"])
    if "x" not in value or "y" not in value:
        return None
    x, y = finite_number(value["x"]) / 100, finite_number(value["y"]) / 100
    rotation = finite_number(value.get("rotation", 0))
    radii = "radiusX" in value
    if not radii and "height" not in value:
        return x, y
    keys = ("radiusX", "radiusY") if radii else ("width", "height")
    w, h = (finite_number(value.get(key)) / 100 for key in keys)
    if not all(map(math.isfinite, (x, y, w, h, rotation))) or (radii and min(w, h) < 0):
        return NO_CORNERS
    if rotation and size is None:
        return "it is rotated, and original_width and original_height are not given"
    ratio = 1.0 if size is None else size[0] / size[1]
    return _ellipse(x, y, w, h, rotation, ratio) if radii else _rectangle(x, y, w, h, rotation, ratio)


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


def _ellipse(x: float, y: float, rx: float, ry: float, rotation: float, ratio: float) -> Corners:
    """Return the bounding box of an ellipse rotated about its centre."""
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    across, down = math.hypot(rx * ratio * cos, ry * sin) / ratio, math.hypot(rx * ratio * sin, ry * cos)
    return x - across, y - down, x + across, y + down


def _polygon(points: object) -> Corners:
    if not isinstance(points, list) or not points:
        return NO_CORNERS
    pairs: Sequence[tuple[float, float]] = [
        (finite_number(pair[0]), finite_number(pair[1]))
        if isinstance(pair, list) and len(pair) == 2
        else (math.nan, math.nan)
        for pair in points
    ]
    x, y = zip(*pairs, strict=True)
    if not all(map(math.isfinite, (*x, *y))):
        return NO_CORNERS
    return min(x) / 100, min(y) / 100, max(x) / 100, max(y) / 100
