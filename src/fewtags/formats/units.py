"""Boxes and points in another unit than their format has: fractions, per cent and pixels, for all readers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.text import counted

Unit = Literal["pixels", "fractions", "percent"]

_WORDS = {"pixels": "pixels", "fractions": "fractions of the photo", "percent": "per cent of the photo"}
_FAR = 2.0
_LARGE, _SEVERAL = 200, 8
_SLACK, _FEW = 0.02, 3


def check_unit(
    corners: NDArray[np.float64], points: NDArray[np.bool_], sizes: NDArray[np.float64], unit: Unit, where: str
) -> tuple[str, ...]:
    """Return warnings about regions that may be in another unit.

    Args:
        corners: float [F, 4] x0, y0, x1, y1 in pixels, or else in fractions.
        points: bool [F], which of them are points.
        sizes: float [F, 2], width and height of the photo of each region, 1 for fractions; NaN if unknown.
        unit: the unit in which the format writes them.
        where: the file, for messages.

    Raises:
        DataError: no region can be in the unit.
    """
    used: NDArray[np.bool_] = np.all(np.isfinite(corners), 1)
    corners = corners * (100 if unit == "percent" else 1)
    sizes = sizes * (100 if unit == "percent" else 1)
    corners, points, sizes = corners[used], points[used], sizes[used]
    if not len(corners):
        return ()
    last, n = corners[:, 2:], len(corners)
    one = 1.0 if unit == "pixels" else 0.0
    shown = f"{where}: all {n:,} boxes or points"
    largest = f"the largest coordinate is {last.max():g}"
    if unit != "fractions" and _within_one(last, points):
        raise DataError(
            f"{shown} lie within the first {'pixel' if unit == 'pixels' else 'per cent'} of their photo ({largest}), "
            f"so they look like fractions, but this format has {_WORDS[unit]}. {_cure(unit, where)}"
        )
    far = np.any(last > _FAR * np.where(np.isfinite(sizes), sizes, np.inf) + one, 1)
    if 2 * far.sum() > n:
        text = f"{where}: {far.sum():,} of {n:,} boxes or points reach far beyond their photo ({largest})"
        if unit == "pixels":
            return (f"{text}; are the photos smaller copies, or do the numbers mean something else than pixels?",)
        raise DataError(
            f"{text}, so they look like pixels or per cent, but this format has {_WORDS[unit]}. {_cure(unit, where)}"
        )
    if order := _other_order(corners, points, sizes, unit):
        return (f"{where}: {order}",)
    if unit == "pixels":
        extent = last - corners[:, :2]
        tiny = ~points & np.all((extent >= 0) & (extent < 1), 1)
        if tiny.any():
            small = counted(int(tiny.sum()), "box is", "boxes are")
            return (f"{where}: {small} smaller than a pixel; are the numbers fractions of the photo?",)
        large: np.bool_ = np.all(sizes >= _LARGE)
        if large and n >= _SEVERAL and last.max() <= 100 and last.max(0).min() > 50:
            return (
                f"{where}: no box or point goes beyond 100 ({largest}), although the photos are larger; are the "
                "numbers per cent of the photo? This format has pixels.",
            )
    return ()


def _other_order(
    corners: NDArray[np.float64], points: NDArray[np.bool_], sizes: NDArray[np.float64], unit: Unit
) -> str:
    """Return a doubt if many boxes reach beyond their photo: corners were perhaps written for a width and a height."""
    boxes: NDArray[np.bool_] = ~points & np.all(np.isfinite(sizes), 1)
    slack = _SLACK * sizes + (1.0 if unit == "pixels" else 0.0)
    beyond = boxes & np.any((corners[:, 2:] > sizes + slack) | (corners[:, :2] < -slack), 1)
    if beyond.sum() < _FEW or 3 * beyond.sum() <= boxes.sum():
        return ""
    return (
        f"{beyond.sum():,} of {boxes.sum():,} boxes reach beyond their photo. Are the photos those of the file, and "
        "are the numbers in the order of the format: corners, or a corner or a centre with a width and a height?"
    )


def _within_one(last: NDArray[np.float64], points: NDArray[np.bool_]) -> bool:
    """Return whether all regions end before 1; single pixels (whole numbers) are possible for points only."""
    broken = bool(np.any(last % 1 != 0))
    return bool(np.all(last <= 1)) and (broken or not bool(points.all()))


def _cure(unit: Unit, where: str) -> str:
    if where.lower().endswith((".csv", ".tsv", ".txt")):
        return "Say which unit they have with data.points (pixels or fractions)."
    if unit == "pixels":
        return "Multiply x by the width and y by the height of the photo."
    return "Divide x by the width and y by the height of the photo." if unit == "fractions" else "Multiply them by 100."
