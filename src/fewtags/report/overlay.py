"""A heatmap over its photo."""

from __future__ import annotations

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

# The strongest cell covers the photo by this much; a cell at probability 0 leaves it as it is.
STRENGTH = 0.75


def overlay(photo: NDArray[np.uint8], probability: NDArray[np.floating], side: int | None = None) -> NDArray[np.uint8]:
    """The photo in grey, with colour where a class is seen: opacity and hue follow the probability, on a fixed scale.

    Args:
        photo: uint8 [H, W, 3].
        probability: [h, w] in 0..1, in the photo's frame; resized smoothly to the photo.
        side: longest side of the result in pixels; None keeps the photo's size.

    Returns:
        uint8 [H', W', 3].
    """
    picture = Image.fromarray(photo)
    if side is not None and max(picture.size) > side:
        scale = side / max(picture.size)
        picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    map_ = Image.fromarray(np.asarray(probability, np.float32)).resize(picture.size, Image.Resampling.BICUBIC)
    value = np.clip(np.asarray(map_), 0.0, 1.0)[:, :, None]
    grey = np.asarray(picture.convert("L"), np.float32)[:, :, None] * np.ones(3, np.float32)
    colour = matplotlib.colormaps["turbo"](value[:, :, 0])[:, :, :3].astype(np.float32) * 255
    weight = STRENGTH * value
    mixed: NDArray[np.uint8] = np.round((1 - weight) * grey + weight * colour).astype(np.uint8)
    return mixed
