"""Measure the memory that reading a photo takes, in bytes a pixel, for each format: `photo_memory.py [MEGAPIXELS]`.

Each photo of noise is read in a process of its own, once to a small size (as `check` does) and once as a whole. The
figure is the rise of the peak resident memory over that of reading a photo of 64 x 64 pixels in the same format.
Linux only.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from fewtags.photos.decode import open_photo

SIDE = 64
LIMIT_BYTES = 28
"""What `fewtags.photos.decode` and docs/reliability.md state."""


def write(folder: Path, width: int, height: int) -> Iterator[tuple[str, Path]]:
    """Write a photo of noise in every format and mode; yield the description and the file of each."""
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (height, width), np.uint8)
    rgb = np.repeat(grey[:, :, None], 3, 2)
    images = {
        "grey": Image.fromarray(grey),
        "RGB": Image.fromarray(rgb),
        "RGBA": Image.fromarray(np.dstack([rgb, grey])),
        "grey with alpha": Image.fromarray(np.dstack([grey, grey]), "LA"),
        "palette": Image.fromarray(grey).convert("P"),
        "16 bit": Image.fromarray(grey.astype(np.uint16) * 257),
        "CMYK": Image.fromarray(rgb).convert("CMYK"),
        "1 bit": Image.fromarray(grey > 127),
    }
    see_through = images["palette"].copy()
    see_through.info["transparency"] = 7
    kinds = [
        *(("PNG", mode, "png", {"compress_level": 1}) for mode in images if mode != "CMYK"),
        *(("JPEG", mode, "jpg", {}) for mode in ("grey", "RGB", "CMYK")),
        ("JPEG progressive", "RGB", "jpg", {"progressive": True}),
        *(("TIFF", mode, "tif", {}) for mode in ("grey", "RGB", "RGBA", "16 bit", "CMYK")),
        ("TIFF deflate", "RGBA", "tif", {"compression": "tiff_deflate"}),
        ("TIFF deflate", "RGB", "tif", {"compression": "tiff_deflate"}),
        *(("WebP lossless", mode, "webp", {"lossless": True, "method": 0}) for mode in ("RGB", "RGBA")),
        ("WebP", "RGB", "webp", {"method": 0}),
        *(("BMP", mode, "bmp", {}) for mode in ("grey", "RGB", "RGBA")),
        ("GIF", "palette", "gif", {}),
        ("PPM", "RGB", "ppm", {}),
        ("JPEG 2000", "RGB", "jp2", {}),
        ("AVIF", "RGB", "avif", {"speed": 10}),
    ]
    for number, (kind, mode, ending, options) in enumerate(kinds):
        path = folder / f"{number}-{width}.{ending}"
        images[mode].save(path, **options)
        yield f"{kind}, {mode}", path
    path = folder / f"see-through-{width}.png"
    see_through.save(path, compress_level=1)
    yield "PNG, palette with transparency", path
    turned = Image.Exif()
    turned[0x0112] = 6
    path = folder / f"turned-{width}.png"
    images["RGBA"].save(path, compress_level=1, exif=turned)
    yield "PNG, RGBA, turned by EXIF", path


def resident() -> int:
    """Return the peak resident memory of this process in bytes (Linux)."""
    return int(Path("/proc/self/status").read_text("utf-8").split("VmHWM:")[1].split()[0]) * 1024


def peak(path: Path, whole: bool) -> int:
    """Return by how many bytes the peak memory of a forked process rises that reads a photo."""
    reading, writing = os.pipe()
    if not os.fork():
        try:
            before = resident()
            with open_photo(path) as photo:
                photo.read(size=None if whole else (8, 8))
            os.write(writing, str(resident() - before).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    os.wait()
    return int(found)


def main() -> None:
    """Print a line for each format; fail if one needs more than the limit."""
    megapixels = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    width = int((megapixels * 1e6) ** 0.5)
    most = 0.0
    with tempfile.TemporaryDirectory() as name:
        print(f"bytes a pixel at {width} x {width}: read small, read whole", flush=True)
        pairs = zip(write(Path(name), width, width), write(Path(name), SIDE, SIDE), strict=True)
        for (kind, path), (_, small) in pairs:
            found = [(peak(path, whole) - peak(small, whole)) / width**2 for whole in (False, True)]
            most = max(most, *found)
            print(f"{kind:34}{found[0]:8.1f}{found[1]:8.1f}", flush=True)
    print(f"most: {most:.1f} bytes a pixel; stated: {LIMIT_BYTES}")
    sys.exit(most > LIMIT_BYTES)


if __name__ == "__main__":
    main()
