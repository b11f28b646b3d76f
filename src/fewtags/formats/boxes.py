"""From boxes and points to fractions of the displayed photo: clipping, faults, and EXIF orientation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.locate import Located
from fewtags.photos.decode import ImageInfo, probe
from fewtags.photos.orientation import boxes_to_displayed, swaps_axes
from fewtags.table.content import each
from fewtags.text import some

FAULTS = (
    "",
    "its box has coordinates that are not numbers",
    "its box has no width or no height",
    "its box lies outside the photo",
    "its box cannot be placed: the width and height of the photo are not known",
)
"""What is wrong with a box; the position in this list is its code."""

# Fractions are written with few digits, and sums of them reach a little beyond 1.
_ROUNDING = 2e-3


def fault_text(fault: int, point: bool) -> str:
    """What is wrong with a box or point."""
    return FAULTS[fault].replace("its box", "its point") if point else FAULTS[fault]


@final
@dataclass(frozen=True)
class Placed:
    """Boxes and points in the frame of the label table.

    Attributes:
        locations: float64 [F, 4] x0, y0, x1, y1 in 0..1 of the displayed photo; NaN where there is no usable box.
        fault: int8 [F], see `fault_text`; 0 also where no box was given.
        messages: what was done, with counts.
        warnings: what may be wrong.
    """

    locations: NDArray[np.float64]
    fault: NDArray[np.int8]
    messages: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def place_boxes(
    pixels: NDArray[np.float64],
    given: NDArray[np.bool_],
    image: NDArray[np.int64],
    sizes: NDArray[np.float64],
    photos: Located,
    points: NDArray[np.bool_] | None = None,
) -> Placed:
    """Turn boxes in pixels of the size that the annotations declare into fractions of the displayed photo.

    The headers of photos with boxes are read, where the photos are there. If EXIF turns a photo by a quarter, the
    declared width and height tell whether its boxes are in the stored or in the displayed frame; the former are turned
    with it. In a square photo, or one that is mirrored or turned by 180 degrees, nothing tells: the displayed frame is
    assumed, since that is what annotation tools show.

    Args:
        pixels: float [F, 4] x0, y0, x1, y1, (0, 0) the top-left corner of the top-left pixel.
        given: bool [F], whether there is a box at all.
        image: int [F], position of each box's photo in `photos.keys`.
        sizes: float [N, 2] declared width and height of each photo, NaN where unknown; then the displayed size counts.
        photos: the photos.
        points: bool [F], which of them are points (x0 = x1, y0 = y1); None for none.
    """
    headers = _headers(photos, np.unique(image[given]))
    scale = sizes.copy()
    for i, header in headers.items():
        if not (scale[i] > 0).all():
            scale[i] = header.width, header.height
    found = box_fractions(np.where(given[:, None], pixels, np.nan), scale[image], points)
    return _displayed(found, given, image, sizes, headers, photos, _word(given, points))


def place_fractions(
    fractions: NDArray[np.float64],
    given: NDArray[np.bool_],
    image: NDArray[np.int64],
    sizes: NDArray[np.float64],
    photos: Located,
    points: NDArray[np.bool_] | None = None,
) -> Placed:
    """The same as `place_boxes` for boxes [F, 4] in fractions of the photo; `sizes` tell no more than the frame."""
    headers = _headers(photos, np.unique(image[given]))
    whole = np.ones((len(image), 2))
    found = box_fractions(np.where(given[:, None], fractions, np.nan), whole, points, _ROUNDING)
    return _displayed(found, given, image, sizes, headers, photos, _word(given, points))


def box_fractions(
    pixels: NDArray[np.float64],
    sizes: NDArray[np.float64],
    points: NDArray[np.bool_] | None = None,
    slack: float = 1.0,
) -> tuple[NDArray[np.float64], NDArray[np.int8], int]:
    """Boxes as fractions, clipped to the photo. A point has no size to lose: it lies inside or outside.

    Args:
        pixels: float [F, 4] x0, y0, x1, y1.
        sizes: float [F, 2] width and height of the photo of each box, NaN or not positive where unknown.
        points: bool [F], which of them are points; None for none.
        slack: how far a box or point may lie beyond its photo and still be in it; a pixel, since tools round.

    Returns:
        locations float64 [F, 4], NaN where there is a fault; int8 [F] the fault, see `FAULTS`; and how many boxes
        reached beyond their photo by more than `slack`.
    """
    point = np.zeros(len(pixels), np.bool_) if points is None else points
    known: NDArray[np.bool_] = np.all((sizes > 0) & np.isfinite(sizes), 1)
    scale = np.tile(np.where(known[:, None], sizes, 1.0), 2)
    finite: NDArray[np.bool_] = np.all(np.isfinite(pixels), 1)
    whole = np.where(finite[:, None], pixels, 0.0)
    clipped = whole.clip(0.0, scale)
    beyond = np.any(np.abs(whole - clipped) > slack, 1)
    empty = ~point & np.any(whole[:, 2:] <= whole[:, :2], 1)
    outside = (point & beyond) | (~point & np.any(clipped[:, 2:] <= clipped[:, :2], 1))
    fault = np.select([~finite, empty, ~known, outside], [1, 2, 4, 3], 0).astype(np.int8)
    return np.where((fault == 0)[:, None], clipped / scale, np.nan), fault, int((beyond & (fault == 0)).sum())


Frame = Literal["displayed", "stored", "unclear", "neither"]
# Sizes of scaled photos are rounded, so that their shapes agree only about.
_SAME_SHAPE = 0.05


def declared_frame(header: ImageInfo, width: float, height: float) -> Frame:
    """In which frame of a photo boxes are whose file declares this width and height.

    "unclear": nothing tells, because the photo is square, mirrored, or turned by 180 degrees. "neither": the photo has
    another shape. In both cases the displayed frame is assumed.
    """
    declared = np.log(width / height)
    stored, displayed = np.log(header.stored[0] / header.stored[1]), np.log(header.aspect)
    if min(abs(declared - stored), abs(declared - displayed)) > _SAME_SHAPE:
        return "neither"
    if header.orientation == 1:
        return "displayed"
    if not swaps_axes(header.orientation) or abs(declared - stored) == abs(declared - displayed):
        return "unclear"
    return "stored" if abs(declared - stored) < abs(declared - displayed) else "displayed"


def _displayed(
    found: tuple[NDArray[np.float64], NDArray[np.int8], int],
    given: NDArray[np.bool_],
    image: NDArray[np.int64],
    sizes: NDArray[np.float64],
    headers: Mapping[int, ImageInfo],
    photos: Located,
    what: str,
) -> Placed:
    """Turn what `box_fractions` found with the photos that EXIF turns."""
    locations, fault, cut = found
    fault[~given] = 0
    frames = {i: _frame(header, sizes[i]) for i, header in headers.items()}
    rows = np.argsort(image, kind="stable")
    for i in (i for i, frame in frames.items() if frame == "stored"):
        own = rows[np.searchsorted(image, i, "left", rows) : np.searchsorted(image, i, "right", rows)]
        own = own[~np.isnan(locations[own, 0])]
        locations[own] = boxes_to_displayed(locations[own], headers[i].orientation)
    messages = (f"{cut:,} boxes reached beyond their photo and were cut at its edge",) if cut else ()
    unread = len(np.unique(image[given])) - len(headers) if photos.root else 0
    others = [photos.keys[i] for i, frame in frames.items() if frame == "neither"]
    text = f"{len(others):,} photos have another shape than the file says, {what} may be off, for example "
    warnings = (f"{text}{some(others, 1)}",) if others else ()
    return Placed(locations, fault, messages + _frame_messages(frames, headers, unread, what), warnings)


def _word(given: NDArray[np.bool_], points: NDArray[np.bool_] | None) -> str:
    if points is None or not points[given].any():
        return "boxes"
    return "points" if points[given].all() else "boxes and points"


def _frame(header: ImageInfo, size: NDArray[np.float64]) -> Frame:
    if (size > 0).all():
        return declared_frame(header, *size)
    return "displayed" if header.orientation == 1 else "unclear"


def _headers(photos: Located, wanted: NDArray[np.int64]) -> dict[int, ImageInfo]:
    """Headers of the photos that are there and can be read."""
    root = photos.root
    if root is None:
        return {}
    found = each(_header, [str(root / photos.keys[i]) for i in wanted])
    return {int(i): header for i, header in zip(wanted, found, strict=True) if header is not None}


def _header(path: str) -> ImageInfo | None:
    try:
        return probe(path)
    except DataError:  # `check` and the loader say what is wrong with it
        return None


def _frame_messages(
    frames: Mapping[int, Frame], headers: Mapping[int, ImageInfo], unread: int, what: str
) -> tuple[str, ...]:
    turned = Counter(frame for i, frame in frames.items() if headers[i].orientation != 1)
    said = (
        (turned["stored"], f"photos are turned by EXIF, and their {what} were turned with them"),
        (turned["displayed"], f"photos are turned by EXIF, and their {what} were so already"),
        (
            turned["unclear"],
            f"photos are turned or mirrored by EXIF; their {what} are taken to be so already, nothing tells",
        ),
        (unread, f"photos have a header that cannot be read; their {what} are taken as they are"),
    )
    return tuple(f"{count:,} {text}" for count, text in said if count)
