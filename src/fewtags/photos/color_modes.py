"""Convert the colour modes of photo files to 8 bits, grey or RGB; `decode` lists the rules."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fewtags.errors import DataError


def eight_bit(image: Image.Image, path: str, bits: int) -> Image.Image:
    """Return a loaded image of any mode in mode L or RGB. Pixels without a known range are a `DataError` with `path`.

    `bits`, the number of bits per sample in the file, distinguishes 12 bits in a 16-bit mode from 16.
    """
    # Pillow stretches deep PPM files to 16 bits, whatever their own maximum.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        values = np.asarray(image).astype(np.uint32)
        brightest = 4095 if bits == 12 else 65535
        grey = ((values * 255 + brightest // 2) // brightest).astype(np.uint8)
        if (transparent := image.info.get("transparency")) is not None:
            grey[values == transparent] = 255
        return Image.fromarray(grey)
    if image.mode == "F":
        pixels = np.asarray(image)
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"{path}: float pixels must lie in 0..1, but they go from {low:.4g} to {high:.4g}; "
                "rescale the file, or save it with 8 or 16 bits."
            )
        return Image.fromarray(np.round(pixels * 255).astype(np.uint8))
    if image.mode == "I":
        cure = "save the file with 8 or 16 bits"
        raise DataError(f"{path}: 32-bit or signed integer pixels have no known range; {cure}.")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")
