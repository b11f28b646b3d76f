"""Augmentation policies, which draw views, and pixel changes such as colour jitter.

A policy is a frozen value that draws boxes and flips as a `View`. It depends on the photo's aspect, never on pixels, so
that a draw can be repeated, moved and inverted. Positions are continuous, not whole pixels: crop, resize and flip are
one pass over the pixels of the file (`decode.Photo.read`).

A pixel change is a separate function of pixels and a generator, off by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError
from fewtags.geometry import View

Pixels = NDArray[np.uint8]
PixelChange = Callable[[Pixels, np.random.Generator], Pixels]
"""Returns a random change of a crop, uint8 [h, w, 3]: `Jitter`, `augment_fixmatch.Strong`, `augment_moco.AugPlus`."""


class Policy(Protocol):
    """Draws the views for training, and gives the view for testing."""

    @property
    def size(self) -> int:
        """Height and width of the crops in pixels."""

    def sample(self, rng: np.random.Generator, aspect: float) -> View:
        """Draw a training view; `aspect` is the displayed width / height of the photo."""

    def test_view(self, aspect: float) -> View:
        """Return the view for validation, test and prediction."""


def _check(size: int, area: tuple[float, float]) -> None:
    if size < 1:
        raise ConfigError(f"crop size {size} is not a number of pixels; give 1 or more.")
    if not 0 < area[0] <= area[1] <= 1:
        raise ConfigError(f"crop area {area[0]:g} to {area[1]:g} must be above 0 and at most 1, smaller number first.")


def _maybe_flip(rng: np.random.Generator, view: View, flip: bool) -> View:
    # The number is always drawn, so that `flip` does not change other draws.
    return view.then(View.flip()) if rng.random() < 0.5 and flip else view


@final
@dataclass(frozen=True)
class SquareCrop:
    """The `coco` policy: stretch the photo to a square, crop a square at random, flip with probability 1/2.

    SCL paper, appendix A: photos are resized to 672 x 672, a square with the share `area` of the photo is cropped at
    random and resized to 448 x 448. In fractions of the photo the first size does not matter: both sides are the square
    root of a share that is uniform in `area`. (The paper says both "square crop" and "RandomResizedCrop", whose default
    varies the shape; we use squares.) The test view is the whole photo, stretched.

    Attributes:
        size: height and width of the crops in pixels.
        area: smallest and largest share of the photo, in 0..1.
        flip: exchange left and right in half of the draws.
    """

    size: int = 448
    area: tuple[float, float] = (0.25, 1.0)
    flip: bool = True

    def __post_init__(self) -> None:
        _check(self.size, self.area)

    def sample(self, rng: np.random.Generator, aspect: float) -> View:  # noqa: ARG002
        """Draw a square of the stretched photo; the same for every aspect."""
        side = math.sqrt(rng.uniform(*self.area))
        x, y = rng.uniform(0.0, 1.0 - side), rng.uniform(0.0, 1.0 - side)
        return _maybe_flip(rng, View.crop(x, y, x + side, y + side), self.flip)

    def test_view(self, aspect: float) -> View:  # noqa: ARG002
        """The whole photo."""
        return View.identity()


@final
@dataclass(frozen=True)
class ResizedCrop:
    """The `imagenet` policy: a box of random area and shape, flipped with probability 1/2; the test view is the centre.

    torchvision's `RandomResizedCrop`: share of the photo uniform in `area`, width / height in pixels log-uniform in
    `ratio`, ten tries to fit it into the photo, else the largest centred box whose shape is allowed. The test view
    is "resize the shorter side to size / `centre`, crop the centre square". Neither rounds to whole pixels.

    Attributes:
        size: height and width of the crops in pixels.
        area: smallest and largest share of the photo.
        ratio: smallest and largest width / height, in pixels of the photo.
        centre: side of the test square as a share of the photo's shorter side: 224 of 256.
        flip: exchange left and right in half of the draws.
    """

    size: int = 224
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    centre: float = 224 / 256
    flip: bool = True

    def __post_init__(self) -> None:
        _check(self.size, self.area)
        low, high = self.ratio
        if not 0 < low <= high:
            raise ConfigError(f"crop ratio {low:g} to {high:g} must be above 0, smaller number first.")
        if not 0 < self.centre <= 1:
            raise ConfigError(f"centre {self.centre:g} must be above 0 and at most 1, the shorter side of the photo.")

    def sample(self, rng: np.random.Generator, aspect: float) -> View:
        """Draw a box that fits into a photo of this aspect."""
        for _ in range(10):
            share = rng.uniform(*self.area)
            ratio = math.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            width, height = math.sqrt(share * ratio / aspect), math.sqrt(share * aspect / ratio)
            if width <= 1 and height <= 1:
                x, y = rng.uniform(0.0, 1.0 - width), rng.uniform(0.0, 1.0 - height)
                return _maybe_flip(rng, View.crop(x, y, x + width, y + height), self.flip)
        allowed = min(max(aspect, self.ratio[0]), self.ratio[1])
        return _maybe_flip(rng, _centred(min(1.0, allowed / aspect), min(1.0, aspect / allowed)), self.flip)

    def test_view(self, aspect: float) -> View:
        """The centre square."""
        return _centred(self.centre * min(1.0, 1 / aspect), self.centre * min(1.0, aspect))


@final
@dataclass(frozen=True)
class WholeImage:
    """The `none` policy: the whole photo, stretched to a square, never flipped."""

    size: int = 448

    def __post_init__(self) -> None:
        _check(self.size, (1.0, 1.0))

    def sample(self, rng: np.random.Generator, aspect: float) -> View:  # noqa: ARG002
        """The whole photo."""
        return View.identity()

    def test_view(self, aspect: float) -> View:  # noqa: ARG002
        """The whole photo."""
        return View.identity()


def _centred(width: float, height: float) -> View:
    return View.crop((1 - width) / 2, (1 - height) / 2, (1 + width) / 2, (1 + height) / 2)


@final
@dataclass(frozen=True)
class Jitter:
    """Random brightness, contrast and saturation, in this order, by factors uniform in 1 - strength .. 1 + strength.

    The strengths are in 0..1; 0 is off. Others are a `ConfigError`.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for name, strength in vars(self).items():
            if not 0 <= strength <= 1:
                raise ConfigError(f"{name} jitter {strength:g} must be within 0 (off) to 1.")

    def __call__(self, image: Pixels, rng: np.random.Generator) -> Pixels:
        """Return a changed copy of uint8 [h, w, 3]. Three factors are always drawn, so no switch changes the others."""
        changes = (adjust_brightness, adjust_contrast, adjust_saturation)
        for adjust, strength, draw in zip(changes, vars(self).values(), rng.uniform(-1.0, 1.0, 3), strict=True):
            if strength:
                image = adjust(image, 1.0 + strength * float(draw))
        return image


def adjust_brightness(image: Pixels, factor: float) -> Pixels:
    """Blend uint8 [h, w, 3] with black: 0 gives black, 1 the same image."""
    return _blend(image, np.float32(0.0), factor)


def adjust_contrast(image: Pixels, factor: float) -> Pixels:
    """Blend uint8 [h, w, 3] with its mean grey: 0 gives flat grey, 1 the same image."""
    return _blend(image, _grey(image).mean(dtype=np.float64).astype(np.float32), factor)


def adjust_saturation(image: Pixels, factor: float) -> Pixels:
    """Blend uint8 [h, w, 3] with its grey version: 0 gives grey, 1 the same image."""
    return _blend(image, _grey(image)[:, :, None], factor)


def adjust_hue(image: Pixels, shift: float) -> Pixels:
    """Rotate the hue of uint8 [h, w, 3] by a share of the colour circle: red becomes green at 1/3, cyan at 1/2.

    Value and saturation of HSV (Smith, 1978) do not change. With h in sixths of the circle,
    a channel is value - chroma * clip(2 - |(h + n) mod 6 - 2|, 0, 1), where n is 5 for red, 3 for green, 1 for blue.
    """
    red, green, blue = channels = np.ascontiguousarray(image.transpose(2, 0, 1)).astype(np.float32)
    value = channels.max(0)
    chroma = value - channels.min(0)
    divisor = np.maximum(chroma, 1)  # chroma is a whole number, and 0 for greys, which do not change
    not_red = np.where(value == green, blue - red + 2 * divisor, red - green + 4 * divisor)
    hue = np.where(value == red, green - blue, not_red) / divisor
    hue += np.float32(6 * shift)
    out = np.empty_like(image)
    for channel, start in enumerate((5, 3, 1)):
        place = hue + np.float32(start)
        place -= 6 * np.floor(place / 6)
        share = np.clip(2 - np.abs(place - 2), 0, 1)
        out[:, :, channel] = np.rint(value - chroma * share)
    return out


def _grey(image: Pixels) -> NDArray[np.float32]:
    return image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)  # luma of ITU-R BT.601


def _blend(image: Pixels, other: NDArray[np.float32] | np.float32, factor: float) -> Pixels:
    mixed = np.float32(factor) * image
    mixed += np.float32(1.0 - factor) * other
    np.rint(mixed, out=mixed)
    np.clip(mixed, 0, 255, out=mixed)
    return mixed.astype(np.uint8)
