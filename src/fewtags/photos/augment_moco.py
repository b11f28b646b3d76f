"""Pixel change of the views of MoCo-v2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from PIL import Image, ImageFilter

from fewtags.errors import ConfigError
from fewtags.photos.augment import Jitter, Pixels, adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation


@final
@dataclass(frozen=True, kw_only=True)
class AugPlus:
    """Random colours, grey and blur: the "aug-plus" of MoCo-v2 (Chen et al., arXiv 2003.04297), as in SimCLR.

    The crop and the flip belong to the policy: `ResizedCrop(size, area=(0.2, 1.0))`. As in torchvision's `ColorJitter`,
    the four changes of colour come in random order, by factors uniform in 1 - strength .. 1 + strength and a shift
    uniform in -hue .. hue. Colours are not rounded to 256 hues first, as torchvision does with Pillow's images.

    The blur is in pixels of the crop, whatever its size; MoCo always crops 224. A smaller crop needs a
    proportionally smaller sigma; for very small crops, SimCLR uses no blur (`blur_share=0`).

    Attributes:
        brightness: strength 0..1; 0 is off. Likewise for `contrast` and `saturation`.
        hue: largest shift, as a share of the colour circle, 0..0.5; 0 is off.
        jitter_share: share of crops whose colours change, 0..1.
        grey_share: share of crops that become grey, 0..1.
        blur_share: share of crops that are blurred, 0..1.
        blur_sigma: smallest and largest standard deviation of the Gaussian, in pixels; drawn uniformly.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter_share: float = 0.8
    grey_share: float = 0.2
    blur_share: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        Jitter(self.brightness, self.contrast, self.saturation)  # refuses strengths outside 0..1
        if not 0 <= self.hue <= 0.5:
            raise ConfigError(f"hue jitter {self.hue:g} must be within 0 (off) to 0.5, half the colour circle.")
        for name in ("jitter_share", "grey_share", "blur_share"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ConfigError(f"{name} {share:g} must be within 0 (never) to 1 (always).")
        low, high = self.blur_sigma
        if not 0 <= low <= high < np.inf:
            raise ConfigError(f"blur sigma {low:g} to {high:g} pixels must be 0 or more, smaller number first.")

    def __call__(self, image: Pixels, rng: np.random.Generator) -> Pixels:
        """Return a changed copy of uint8 [h, w, 3].

        All random numbers are always drawn, so disabling one change does not alter the others.
        """
        changes, turns_grey, blurs = rng.random(3) < (self.jitter_share, self.grey_share, self.blur_share)
        order, draws, sigma = rng.permutation(4), rng.uniform(-1.0, 1.0, 4), rng.uniform(*self.blur_sigma)
        steps: tuple[tuple[Callable[[Pixels, float], Pixels], float, float], ...] = (
            (adjust_brightness, 1.0, self.brightness),
            (adjust_contrast, 1.0, self.contrast),
            (adjust_saturation, 1.0, self.saturation),
            (adjust_hue, 0.0, self.hue),
        )
        changed = image.copy()
        if changes:
            for place in order.tolist():
                adjust, neutral, strength = steps[place]
                if strength:
                    changed = adjust(changed, neutral + strength * float(draws[place]))
        if turns_grey:
            changed = adjust_saturation(changed, 0.0)
        return blur(changed, sigma) if blurs else changed


def blur(image: Pixels, sigma: float) -> Pixels:
    """Blur uint8 [h, w, 3] with a Gaussian of standard deviation `sigma` in pixels; edge pixels are repeated outside.

    As in MoCo, Pillow approximates the Gaussian by three box filters.
    """
    return np.array(Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma)))
