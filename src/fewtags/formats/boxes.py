"""Convert boxes and points to fractions of the displayed photo: clip them, find faults, follow EXIF orientation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.locate import ImageKeys
from fewtags.formats.units import Unit, check_unit
from fewtags.photos.decode import ImageInfo, probe
from fewtags.photos.orientation import boxes_to_displayed, swaps_axes
from fewtags.table.content import each
from fewtags.text import counted, some

FAULTS = (
    "",
    "its box has coordinates that are not numbers",
    "its box has no width or no height",
    "its box lies outside the photo",
    "its box cannot be placed: the width and height of the photo are not known",
)
"""What is wrong with a box; the position in this list is its code."""

# Fractions are written with few digits, so their sums can exceed 1 slightly.
_ROUNDING = 2e-3
# Sizes of scaled photos are rounded, so their aspect ratios agree only approximately.
_SAME_SHAPE = 0.05

Frame = Literal["displayed", "stored", "unclear", "neither"]


def fault_text(fault: int, point: bool) -> str:
    """Return what is wrong with a box or point."""
    return FAULTS[fault].replace("its box", "its point") if point else FAULTS[fault]


@final
@dataclass(frozen=True)
class Regions:
    """Boxes and points in the frame of the label table.

    Attributes:
        locations: float64 [F, 4] x0, y0, x1, y1 in 0..1 of the displayed photo; NaN if the region cannot be used.
        fault: int8 [F], see `fault_text`; 0 for usable regions.
    """

    locations: NDArray[np.float64]
    fault: NDArray[np.int8]
    messages: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


_TURNED = ("photo is turned", "photos are turned")


def regions_of(
    corners: NDArray[np.float64],
    unit: Unit,
    points: NDArray[np.bool_],
    image: NDArray[np.int64],
    sizes: NDArray[np.float64],
    photos: ImageKeys,
    where: str,
) -> Regions:
    """Convert regions in pixels of the photo size that the annotations declare, or in fractions of the photo.

    The headers of existing photos are read. Regions in the stored frame of a photo that EXIF turns are turned as well,
    see `declared_frame`.

    Args:
        corners: float [F, 4] x0, y0, x1, y1; for pixels, (0, 0) is the top-left corner of the top-left pixel.
        unit: unit of the corners.
        points: bool [F], which regions are points (x0 = x1, y0 = y1).
        image: int [F], position of each region's photo in `photos.keys`.
        sizes: float [N, 2] declared width and height of each photo, NaN if unknown; then the displayed size is used.
        photos: the photos.
        where: the file, for messages.

    Raises:
        DataError: the regions cannot be in the unit, see `check_unit`.
    """
    headers = _headers(photos, np.unique(image))
    scale = sizes.copy() if unit == "pixels" else np.ones_like(sizes)
    for i, header in headers.items():
        if not (scale[i] > 0).all():
            scale[i] = header.width, header.height
    doubts = check_unit(corners, points, scale[image], unit, where)
    slack = 1.0 if unit == "pixels" else _ROUNDING
    locations, fault, cut = box_fractions(corners, scale[image], points, slack)
    frames = {i: declared_frame(header, *sizes[i]) for i, header in headers.items()}
    rows = np.argsort(image, kind="stable")
    for i in (i for i, frame in frames.items() if frame == "stored"):
        own = rows[np.searchsorted(image, i, "left", rows) : np.searchsorted(image, i, "right", rows)]
        own = own[~np.isnan(locations[own, 0])]
        locations[own] = boxes_to_displayed(locations[own], headers[i].orientation)
    what = "boxes" if not points.any() else "points" if points.all() else "boxes and points"
    turned = Counter(frame for i, frame in frames.items() if headers[i].orientation != 1)
    unread = len(np.unique(image)) - len(headers) if photos.root else 0
    counts = (
        (cut, "box", "boxes", " reached beyond the photo and cut at its edge"),
        (turned["stored"], *_TURNED, f" by EXIF, and the {what} with the photo"),
        (turned["displayed"], *_TURNED, f" by EXIF; the {what} were in that frame already"),
        (
            *(turned["unclear"], "photo is turned or mirrored", "photos are turned or mirrored"),
            f" by EXIF; the file does not show the frame of the {what}, and the displayed one is assumed",
        ),
        (unread, "photo has", "photos have", f" a header that cannot be read; the {what} are taken as they are"),
    )
    messages = tuple(counted(count, one, many) + text for count, one, many, text in counts if count)
    others = [photos.keys[i] for i, frame in frames.items() if frame == "neither"]
    text = f"{counted(len(others), 'photo has', 'photos have')} another aspect ratio than the file says, so that "
    text += f"{what} may be misplaced"
    warnings = (f"{text}, for example {some(others, 1)}",) if others else ()
    return Regions(locations, fault, messages, (*warnings, *doubts))


def box_fractions(
    pixels: NDArray[np.float64], sizes: NDArray[np.float64], points: NDArray[np.bool_], slack: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.int8], int]:
    """Return boxes as fractions, clipped to the photo. A point is not clipped: it lies inside or outside.

    Args:
        pixels: float [F, 4] x0, y0, x1, y1.
        sizes: float [F, 2] width and height of the photo of each box, NaN or not positive if unknown.
        points: bool [F], which of them are points.
        slack: distance by which a region may exceed its photo uncounted; one pixel, because annotation tools round.

    Returns:
        locations float64 [F, 4], NaN for boxes with a fault; int8 [F], the fault, see `FAULTS`; and the number of boxes
        that exceed their photo by more than `slack`.
    """
    known: NDArray[np.bool_] = np.all((sizes > 0) & np.isfinite(sizes), 1)
    scale = np.tile(np.where(known[:, None], sizes, 1.0), 2)
    finite: NDArray[np.bool_] = np.all(np.isfinite(pixels), 1)
    whole = np.where(finite[:, None], pixels, 0.0)
    clipped = whole.clip(0.0, scale)
    beyond = np.any(np.abs(whole - clipped) > slack, 1)
    empty = ~points & np.any(whole[:, 2:] <= whole[:, :2], 1)
    outside = (points & beyond) | (~points & np.any(clipped[:, 2:] <= clipped[:, :2], 1))
    fault = np.select([~finite, empty, ~known, outside], [1, 2, 4, 3], 0).astype(np.int8)
    return np.where((fault == 0)[:, None], clipped / scale, np.nan), fault, int((beyond & (fault == 0)).sum())


def declared_frame(header: ImageInfo, width: float, height: float) -> Frame:
    """Return the frame of regions whose file declares this width and height (NaN if unknown) for a photo.

    "unclear": EXIF changes the photo, but its size is unknown, or equal in both frames (a square photo, or one that is
    mirrored or turned by 180 degrees). "neither": the photo has another aspect ratio. In both cases the displayed frame
    is assumed, because annotation tools show it.
    """
    if not (width > 0 and height > 0):
        return "displayed" if header.orientation == 1 else "unclear"
    declared = np.log(width / height)
    stored, displayed = np.log(header.stored[0] / header.stored[1]), np.log(header.aspect)
    if min(abs(declared - stored), abs(declared - displayed)) > _SAME_SHAPE:
        return "neither"
    if header.orientation == 1:
        return "displayed"
    if not swaps_axes(header.orientation) or abs(declared - stored) == abs(declared - displayed):
        return "unclear"
    return "stored" if abs(declared - stored) < abs(declared - displayed) else "displayed"


def _headers(photos: ImageKeys, wanted: NDArray[np.int64]) -> dict[int, ImageInfo]:
    """Return the headers of the photos that exist and can be read."""
    if photos.root is None:
        return {}
    found = each(_header, [str(photos.root / photos.keys[i]) for i in wanted])
    return {int(i): header for i, header in zip(wanted, found, strict=True) if header is not None}


def _header(path: str) -> ImageInfo | None:
    try:
        return probe(path)
    except DataError:  # `check` and the loader report it
        return None
