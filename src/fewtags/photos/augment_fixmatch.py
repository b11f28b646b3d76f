"""Pixel change of the strongly augmented view of FixMatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from fewtags.errors import ConfigError
from fewtags.photos.augment import Jitter, Pixels

GREY = 127


@final
@dataclass(frozen=True)
class Strong:
    """Random colours, then a grey square at a random position (Cutout; DeVries and Taylor, 2017).

    FixMatch (NeurIPS 2020) draws two of fourteen changes (RandAugment) before the square. Deviation: we always change
    brightness, contrast and saturation instead. Five changes of RandAugment move pixels, which no `View` of a crop can
    represent, and torchvision's implementations draw from the global generator.

    Attributes:
        jitter: change of colours.
        cutout: largest side of the square, as a share of the side of the crop, 0..1; 0 is off. FixMatch: 0.5.
    """

    jitter: Jitter = field(default_factory=lambda: Jitter(0.6, 0.6, 0.6))
    cutout: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.cutout <= 1:
            raise ConfigError(f"cutout {self.cutout:g} is a share of the crop's side, 0 (off) to 1.")

    def __call__(self, image: Pixels, rng: np.random.Generator) -> Pixels:
        """Return a changed copy of uint8 [h, w, 3].

        The square's side is uniform in 0..`cutout`, its centre uniform in the crop; it is clipped to the crop.
        """
        changed = self.jitter(image, rng).copy()
        side, row, column = self.cutout * rng.random(), rng.random(), rng.random()
        changed[_pixels(row, side, image.shape[0]), _pixels(column, side, image.shape[1])] = GREY
        return changed


def _pixels(centre: float, side: float, count: int) -> slice:
    """The pixels, out of `count`, that an interval covers; both ends are rounded."""
    return slice(max(0, round((centre - side / 2) * count)), max(0, round((centre + side / 2) * count)))
