"""Draw a heatmap over its photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

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
# Maps whose highest probability is below this are drawn on a scale of their own: on 0..1 they are an even veil.
LOW = 0.5
# A map whose values differ by less than this share of the highest one is drawn as flat, so that noise is not enlarged.
FLAT = 0.01

ScaleKind = Literal["auto", "fixed", "relative"]


@final
@dataclass(frozen=True)
class HeatScale:
    """Which values have the weakest and the strongest colour; `relative` scales belong to the maps they were made for.

    >>> HeatScale.of([np.array([[0.1, 0.3]])]).text
    'relative scale: 0.10 to 0.30'
    >>> HeatScale.of([np.array([[0.1, 0.9]])]).text
    'fixed scale: 0 to 1'
    """

    low: float = 0.0
    high: float = 1.0
    relative: bool = False

    @classmethod
    def of(cls, maps: Sequence[NDArray[np.floating]], kind: ScaleKind = "auto") -> HeatScale:
        """Choose one scale for maps that are compared with each other.

        "auto" is the fixed scale 0..1 if any probability is at least `LOW`, else from the lowest to the highest value.
        """
        low, high = min(float(m.min()) for m in maps), max(float(m.max()) for m in maps)
        if kind == "fixed" or (kind == "auto" and high >= LOW):
            return cls()
        return cls(low, high, relative=True)

    @property
    def flat(self) -> bool:
        """Whether the values are too close to each other to show a difference."""
        return self.high - self.low <= FLAT * max(abs(self.low), abs(self.high))

    def apply(self, map_: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the map with `low` at 0 and `high` at 1; a flat map is 0 everywhere."""
        values = map_.astype(np.float64)
        if not self.relative:
            return values
        return np.zeros_like(values) if self.flat else (values - self.low) / (self.high - self.low)

    @property
    def ends(self) -> tuple[str, str]:
        """The numbers at the ends, with enough digits to differ."""
        if not self.relative:
            return "0", "1"
        digits = next((d for d in range(2, 9) if f"{self.low:.{d}f}" != f"{self.high:.{d}f}"), 2)
        return f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"

    @property
    def text(self) -> str:
        """The scale in words."""
        low, high = self.ends
        if self.relative and self.flat:
            return f"about {self.high:.2g} everywhere"
        return f"{'relative' if self.relative else 'fixed'} scale: {low} to {high}"


def overlay(
    photo: NDArray[np.uint8],
    probability: NDArray[np.floating],
    side: int | None = None,
    view: View | None = None,
) -> NDArray[np.uint8]:
    """Draw a photo in faint colour, with colour where the probability is high: opacity and hue follow the probability.

    The value 0 leaves the (faint) photo as it is. See `HeatScale` for maps with low probabilities.

    Args:
        photo: uint8 [H, W, 3].
        probability: [h, w] in 0..1, or such a map on a relative scale; in the frame of `view`; resized smoothly.
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
    """Draw the colours of a scale from low (left) to high (right) over medium grey, uint8 [height, width, 3]."""
    ramp = np.linspace(0, 1, width, dtype=np.float32)[None].repeat(height, 0)
    return overlay(np.full((height, width, 3), 150, np.uint8), ramp)
