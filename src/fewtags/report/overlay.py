"""Draw a heatmap over its photo."""

from __future__ import annotations

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewtags.geometry import View

# Opacity of the strongest cell, so that the photo under it is still visible.
STRENGTH = 0.68
# Share of the photo's own colour that is kept, so that it is not taken for heat.
SATURATION = 0.35
# Perceptually uniform: from purple (weak) over red to yellow (strong), in print and for colour-blind readers, too.
COLOURS = "plasma"


def overlay(
    photo: NDArray[np.uint8],
    probability: NDArray[np.floating],
    side: int | None = None,
    view: View | None = None,
) -> NDArray[np.uint8]:
    """Draw a photo in faint colour, with colour where the probability is high: opacity and hue follow the probability.

    The scale is fixed, so that pictures of different classes, photos and runs can be compared: probability 0 leaves the
    (faint) photo as it is.

    Args:
        photo: uint8 [H, W, 3].
        probability: [h, w] in 0..1, in the frame of `view`; resized smoothly.
        side: longest side of the result in pixels; None keeps the photo's size.
        view: which part of the photo the map shows (axis-aligned, not flipped); None: all of it. The rest is
            darkened.

    Returns:
        uint8 [H', W', 3].
    """
    picture = Image.fromarray(photo)
    if side is not None and max(picture.size) > side:
        scale = side / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    left, top, right, bottom = _pixels(view or View.identity(), picture.width, picture.height)
    grey = np.asarray(picture.convert("L"), np.float32)[:, :, None]
    faint = grey + SATURATION * (np.asarray(picture, np.float32) - grey)
    mixed = 0.45 * faint
    map_ = Image.fromarray(np.asarray(probability, np.float32)).resize(
        (right - left, bottom - top), Image.Resampling.BICUBIC
    )
    value = np.clip(np.asarray(map_), 0.0, 1.0)
    heat = matplotlib.colormaps[COLOURS](value)[:, :, :3].astype(np.float32) * 255
    weight = STRENGTH * value[:, :, None]
    mixed[top:bottom, left:right] = (1 - weight) * faint[top:bottom, left:right] + weight * heat
    return np.round(mixed).astype(np.uint8)


def _pixels(view: View, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of an axis-aligned view, in whole pixels and not empty."""
    a, b, c, d, e, f = view.matrix
    assert b == d == 0, view
    assert min(a, e) > 0, view
    left, top = min(width - 1, round(c * width)), min(height - 1, round(f * height))
    return (
        left,
        top,
        min(width, max(left + 1, round((a + c) * width))),
        min(height, max(top + 1, round((e + f) * height))),
    )


def scale(width: int = 240, height: int = 14) -> NDArray[np.uint8]:
    """Draw the colours of probabilities 0 (left) to 1 (right) over medium grey, uint8 [height, width, 3]: a legend."""
    ramp = np.linspace(0, 1, width, dtype=np.float32)[None].repeat(height, 0)
    return overlay(np.full((height, width, 3), 150, np.uint8), ramp)
