"""Regions of Label Studio: rectangles, keypoints, polygons, ellipses and brush masks, in per cent of the photo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.formats.common import (
    NO_CORNERS,
    Corners,
    Point,
    bounds,
    ellipse_bounds,
    ellipse_corners,
    finite_number,
)
from fewtags.formats.masks import MOST_PIXELS, Outline, box_of


@final
@dataclass(frozen=True, kw_only=True)
class Region:
    """A region in fractions of the photo; neither box nor point for a choice about the whole photo.

    Attributes:
        outline: the outline of an object that is not a plain rectangle.
        unread: why the region is not read.
        size: declared width and height of the photo in pixels, if given.
        meaning: what the region adds to the reading of a label, in words.
    """

    box: Corners | None = None
    point: Point | None = None
    outline: Outline | None = None
    unread: str = ""
    size: Point | None = None
    meaning: str = ""


def region_of(kind: str, item: Mapping[str, Any], value: Mapping[str, Any]) -> Region:
    """Return the region of a result `item` with its type, such as "rectanglelabels", and its value."""
    width, height = finite_number(item.get("original_width")), finite_number(item.get("original_height"))
    size = (width, height) if width > 0 and height > 0 else None
    turned = finite_number(item.get("image_rotation") or 0)
    rotated = f"its photo was rotated by {turned:g} degrees in Label Studio, which is not supported"
    if kind.startswith(("brush", "bitmask")) or value.get("format") == "rle":
        mask = None if turned else _brush(value.get("rle"), size)
        if mask is not None:
            height, width = mask.shape
            x0, y0, x1, y1 = box_of(mask)
            box, outline = (x0 / width, y0 / height, x1 / width, y1 / height), Outline.of_mask(mask, fractions=True)
            return Region(box=box, outline=outline, size=size, meaning=", with its bounding box")
        why = "its brush mask cannot be read: draw a rectangle, polygon or keypoint to locate it"
        return Region(unread=rotated if turned else why, meaning=", its region is not read")
    corners = _corners(value, size, kind.startswith("keypoint"))
    if corners is None:
        return Region()
    if turned:
        why = rotated
    elif isinstance(corners, str):
        why = corners
    elif len(corners) == 2:
        return Region(point=corners, size=size, meaning=", with its point")
    else:
        boxed = "radiusX" not in value and "points" not in value and not finite_number(value.get("rotation", 0))
        return Region(
            box=corners,
            outline=_outline(value, size) if all(map(math.isfinite, corners)) else None,
            size=size,
            meaning=", with its box" if boxed else ", with its bounding box",
        )
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
    if radii:
        return ellipse_bounds(x, y, w, h, rotation, ratio)
    return bounds(_turned(x, y, w, h, rotation, ratio)) if rotation else (x, y, x + w, y + h)


def _turned(x: float, y: float, w: float, h: float, rotation: float, ratio: float) -> list[Point]:
    """Return the corners of a rectangle rotated clockwise about its top-left corner.

    `ratio` is width / height of the photo in pixels.
    """
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    # In units of the photo's height the pixels are square.
    steps = [(0.0, 0.0), (w * ratio, 0.0), (w * ratio, h), (0.0, h)]
    return [(x + (a * cos - b * sin) / ratio, y + a * sin + b * cos) for a, b in steps]


def _outline(value: Mapping[str, Any], size: Point | None) -> Outline | None:
    """Return the outline of a polygon, an ellipse or a rotated rectangle with finite numbers, else None."""
    if isinstance(points := value.get("points"), list):
        corners = [(finite_number(x) / 100, finite_number(y) / 100) for x, y in points]
        return Outline.of_polygon(corners, fractions=True)
    ratio = 1.0 if size is None else size[0] / size[1]
    x, y, rotation = (finite_number(value.get(key, 0)) for key in ("x", "y", "rotation"))
    if "radiusX" in value:
        rx, ry = finite_number(value["radiusX"]), finite_number(value.get("radiusY"))
        corners = ellipse_corners(x / 100, y / 100, rx / 100, ry / 100, rotation, ratio)
        return Outline.of_polygon(corners, fractions=True)
    if not rotation:
        return None
    w, h = finite_number(value.get("width")) / 100, finite_number(value.get("height")) / 100
    return Outline.of_polygon(_turned(x / 100, y / 100, w, h, rotation, ratio), fractions=True)


def _brush(rle: object, size: Point | None) -> NDArray[np.bool_] | None:
    """Return the pixels of a brush mask, bool [height, width]; None if it cannot be read.

    The mask is an image with four channels, row by row, of which the last is the opacity. `rle` has its bytes: 32 bits
    with the number of values, 5 bits with the bits of a value less one, and four times 4 bits with the bits of a length
    less one. Then follow runs: a bit that is set if one value is repeated, 2 bits that choose the bits of the length,
    the length less one, and the value or values. (The format of the package rle-pack by K. Schmidt.)
    """
    if not isinstance(rle, bytes) or size is None or 4 * size[0] * size[1] > MOST_PIXELS:
        return None
    width, height = map(int, size)
    bits, place = np.unpackbits(np.frombuffer(rle, np.uint8)), 0

    def number(count: int) -> int:
        nonlocal place
        place += count
        if place > len(bits):
            raise ValueError
        return int("".join(map(str, bits[place - count : place])), 2)

    try:
        if number(32) != 4 * width * height or (word := number(5) + 1) != 8:
            return None
        values = np.zeros(4 * width * height, np.uint8)
        lengths = [number(4) + 1 for _ in range(4)]
        done = 0
        while done < len(values):
            repeated, length = number(1), number(lengths[number(2)]) + 1
            if repeated:
                values[done : done + length] = number(word)
            else:
                own = bits[place : place + word * length]
                values[done : done + length] = np.packbits(own)[: len(values) - done]
                place += word * length
            done += length
    except ValueError:
        return None
    opacity: NDArray[np.bool_] = values.reshape(height, width, 4)[:, :, 3] > 0
    return opacity
