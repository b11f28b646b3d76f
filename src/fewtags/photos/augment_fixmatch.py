"""The strong view of FixMatch: what is done to the pixels of a crop, so that the same photo looks quite different."""

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
    """Random colours, then a grey square somewhere (Cutout; DeVries and Taylor, 2017).

    FixMatch (NeurIPS 2020) draws two of fourteen changes (RandAugment) before the square. Five of those move pixels,
    which no `View` of a crop could follow, and torchvision's draw from the global generator; brightness, contrast and
    saturation, always all three, stand in for the others.

    Attributes:
        jitter: random colours.
        cutout: largest side of the square, as a share of the crop's; 0 is off. FixMatch: 0.5.

    Raises:
        ConfigError: a share outside 0..1.
    """

    jitter: Jitter = field(default_factory=lambda: Jitter(0.6, 0.6, 0.6))
    cutout: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.cutout <= 1:
            raise ConfigError(f"cutout {self.cutout:g} is a share of the crop's side, 0 (off) to 1.")

    def __call__(self, image: Pixels, rng: np.random.Generator) -> Pixels:
        """A changed copy of uint8 [h, w, 3].

        The square's side is uniform in 0..`cutout`, its centre anywhere in the crop; what reaches outside is cut off.
        """
        changed = self.jitter(image, rng).copy()
        side, row, column = self.cutout * rng.random(), rng.random(), rng.random()
        changed[_pixels(row, side, image.shape[0]), _pixels(column, side, image.shape[1])] = GREY
        return changed


def _pixels(centre: float, side: float, count: int) -> slice:
    """Those of `count` pixels that an interval covers, both ends rounded."""
    return slice(max(0, round((centre - side / 2) * count)), max(0, round((centre + side / 2) * count)))
