"""Outlines of objects, polygons or run lengths: as masks, and as one random point in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.table.keyed_random import content_hashes, uniform

MOST_PIXELS = 2**27
"""A mask of more pixels is not drawn: files are not trusted, and no photo is that large."""
_MOST_SIDE = 2**16
GRID = 1024
"""Outlines in fractions of a photo are drawn on a grid of this many cells across and down."""


@final
@dataclass(frozen=True)
class Outline:
    """The outline of an object, on a grid of cells.

    Attributes:
        segmentation: polygons or run lengths of cells, see `draw_mask`.
        corner: x and y of the top-left corner of the grid, in the unit of the file.
        cell: width and height of a cell, in the unit of the file.
        by_rows: the run lengths go row by row; `size` is then width and height.
    """

    segmentation: object
    corner: tuple[float, float] = (0.0, 0.0)
    cell: tuple[float, float] = (1.0, 1.0)
    by_rows: bool = False

    @classmethod
    def of_polygon(cls, corners: Sequence[tuple[float, float]], *, fractions: bool = False) -> Outline:
        """Return the outline of a polygon x, y in pixels, or in fractions of the photo."""
        scale = GRID if fractions else 1
        return cls([[scale * n for corner in corners for n in corner]], cell=(1 / scale, 1 / scale))

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_], *, fractions: bool = False) -> Outline:
        """Return the outline of pixels of a photo, bool [height, width]; in pixels, or in fractions of the photo."""
        height, width = mask.shape
        flat = mask.ravel()
        changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
        runs = np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()
        counts = [0, *runs] if flat[:1].any() else runs
        cell = (1 / width, 1 / height) if fractions else (1.0, 1.0)
        return cls({"size": [width, height], "counts": counts}, cell=cell, by_rows=True)

    def point(self, draw: tuple[float, float, float]) -> tuple[float, float] | None:
        """Return a random point x, y of the object in the unit of the file, see `point_of`."""
        found = point_of(self.segmentation, draw)
        if found is None:
            return None
        x, y = found[::-1] if self.by_rows else found
        return self.corner[0] + x * self.cell[0], self.corner[1] + y * self.cell[1]


def draws(seed: int, key: object) -> tuple[float, float, float]:
    """Return three random numbers in [0, 1): for the pixel of an object, and for the place in it across and down.

    The numbers depend only on the seed and on the key, which names the object.
    """
    words = ("pixel", "across", "down")
    pixel, across, down = uniform(content_hashes(f"{seed}/{key}/{word}" for word in words)).tolist()
    return pixel, across, down


def run_lengths(counts: object) -> NDArray[np.int64]:
    """Return the lengths of the runs of a mask, int64 [R], column by column, first outside; empty for other values.

    `counts` is a list of numbers, or compressed text: each number is written in groups of five bits, lowest first, as
    characters from "0" on. The sixth bit of a group is set if the number continues; the fifth bit of the last group is
    the sign. From the fourth number on, the difference to the number two positions before is written.

    >>> run_lengths([6, 2, 1]).tolist(), run_lengths("621").tolist(), run_lengths("52203O").tolist()
    ([6, 2, 1], [6, 2, 1], [5, 2, 2, 2, 5, 1])
    """
    runs = _decompressed(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not runs or not all(isinstance(n, int) for n in runs):
        return np.zeros(0, np.int64)
    return np.array(runs if min(runs) >= 0 and sum(runs) <= MOST_PIXELS else [], np.int64)


def _decompressed(text: str) -> list[int]:
    runs: list[int] = []
    value = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64 or shift > 60:
            return []
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return [] if shift else runs


def draw_mask(segmentation: object, height: int, width: int) -> NDArray[np.bool_]:
    """Return the pixels of an object; none if it is neither polygons nor run lengths of that size.

    A pixel belongs to a polygon if its centre lies inside, by the even-odd rule, and to an object with several polygons
    if it belongs to one of them. The mask is bool [height, width].

    `segmentation` is a list of polygons x, y, x, y, ... in pixels, or `size` (height, width) and `counts`.
    """
    if isinstance(segmentation, Mapping):
        runs = _runs_of(segmentation)
        if runs is None or segmentation["size"] != [height, width]:
            return np.zeros((height, width), np.bool_)
        return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
    starts, ends = _spans(_polygons(segmentation), (0, 0, width, height))
    mask = np.zeros(height * width, np.bool_)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        mask[start:end] = True
    return mask.reshape(height, width)


def box_of(mask: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    """Return the bounding box of the pixels of a mask, bool [height, width]; NaN without a pixel."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return (math.nan,) * 4
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def point_of(segmentation: object, draw: tuple[float, float, float]) -> tuple[float, float] | None:
    """Return a random point of an object in pixels, uniform over its mask; None if the mask has no pixel.

    For the arguments, see `draw_mask` and `draws`.
    """
    pixel, across, down = draw
    if isinstance(segmentation, Mapping):
        runs = _runs_of(segmentation)
        if runs is None or not runs[1::2].any():
            return None
        ends = np.cumsum(runs)
        column, row = divmod(_nth((ends - runs)[1::2], ends[1::2], pixel), segmentation["size"][0])
        return column + across, row + down
    polygons = _polygons(segmentation)
    if not polygons:
        return None
    points = np.concatenate(polygons)
    left, top = np.floor(points.min(0)).astype(int).tolist()
    right, bottom = np.ceil(points.max(0)).astype(int).tolist()
    starts, ends = _spans(polygons, (left, top, right, bottom))
    if not len(starts):
        return None
    row, column = divmod(_nth(starts, ends, pixel), right - left)
    return left + column + across, top + row + down


def point_in_box(
    box: Sequence[float], size: tuple[float, float], draw: tuple[float, float, float]
) -> tuple[float, float]:
    """Return a random point of a box (x0, y0, x1, y1 in pixels), uniform over its part inside the photo.

    Sides shorter than a pixel are widened to one. `size` is the width and height of the photo, NaN if unknown.
    """
    found = []
    for low, high, most, part in zip(box[:2], box[2:], size, draw[1:], strict=True):
        if 0 <= high - low < 1:
            low, high = (low + high - 1) / 2, (low + high + 1) / 2
        if most > 0 and max(low, 0.0) < min(high, most):
            low, high = max(low, 0.0), min(high, most)
        found.append(low + part * (high - low))
    return found[0], found[1]


def _runs_of(segmentation: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Return the runs of a mask, or None if they do not fill its size."""
    size, runs = segmentation.get("size"), run_lengths(segmentation.get("counts"))
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        return None
    return runs if int(runs.sum()) == size[0] * size[1] else None


def _polygons(segmentation: object) -> list[NDArray[np.float64]]:
    """Return the polygons [P, 2] that have three or more corners, all within the size of a photo."""
    found = []
    for polygon in segmentation if isinstance(segmentation, list) else []:
        try:
            corners = np.array(polygon, np.float64)
        except (TypeError, ValueError, OverflowError):
            continue
        if corners.ndim == 1 and len(corners) >= 6 and len(corners) % 2 == 0 and (abs(corners) <= _MOST_SIDE).all():
            found.append(corners.reshape(-1, 2))
    return found


def _spans(
    polygons: Sequence[NDArray[np.float64]], frame: tuple[int, int, int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where runs of pixels inside any polygon begin and end, ascending and without overlap; ends are exclusive.

    int64 [S] each: positions in a frame (x0, y0, x1, y1 in pixels), row by row.
    """
    x0, y0, x1, y1 = frame
    width = x1 - x0
    flat = [np.zeros(0, np.int64)]
    for start in polygons:
        end = np.roll(start, -1, 0)
        low, high = start[:, 1].min(), start[:, 1].max()
        centres = np.arange(max(y0, math.floor(low)), min(y1, math.ceil(high)))[:, None] + 0.5
        row, edge = np.nonzero((start[:, 1] <= centres) != (end[:, 1] <= centres))
        height = centres[row, 0]
        share = (height - start[edge, 1]) / (end[edge, 1] - start[edge, 1])
        crossing = start[edge, 0] + share * (end[edge, 0] - start[edge, 0])
        # A run begins and ends at the first pixel whose centre lies at a crossing or right of it.
        column = np.ceil(crossing - 0.5).clip(x0, x1) - x0
        flat.append(np.sort(((height - 0.5 - y0) * width + column).astype(np.int64)))
    starts, ends = (np.concatenate([part[first::2] for part in flat]) for first in (0, 1))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(starts) else ends
    starts = np.maximum(starts, np.concatenate([starts[:1], ends[:-1]]))
    kept = ends > starts
    return starts[kept], ends[kept]


def _nth(starts: NDArray[np.int64], ends: NDArray[np.int64], share: float) -> int:
    """Return the position in runs that has the given share of all their positions before it."""
    before = np.cumsum(ends - starts)
    number = int(share * before[-1])
    run = int(np.searchsorted(before, number, "right"))
    return int(ends[run] - before[run] + number)


def outlines_to_points(seed: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that replaces the outline of a COCO annotation by a point x, y in it, see `Labels.inner`."""

    def replaced(record: dict[str, Any]) -> dict[str, Any]:
        if outline := record.pop("segmentation", None):
            record["inner"] = point_of(outline, draws(seed, key_of(record))) or (math.inf, math.inf)
        return record

    return replaced


def key_of(record: Mapping[str, Any]) -> object:
    """Return what the random numbers of a COCO annotation depend on: its id, or else its image, category and box."""
    return record.get("id", [record.get(key) for key in ("image_id", "category_id", "bbox")])
