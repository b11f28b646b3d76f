"""Small pictures in files, also such that no library writes."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fewtags.errors import DataError
from fewtags.photos.decode import read_image

ORIENTATION = 274


def colours(height=24, width=40):
    """A smooth colour picture without symmetry: red grows to the right, green down, blue along the diagonal."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([x, y, (x + 2 * y) / 3], -1).astype(np.uint8)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def with_orientation(value):
    exif = Image.Exif()
    exif[ORIENTATION] = value
    return exif


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour_type, rows, extra=b""):
    """A PNG written by hand, for what Pillow cannot write."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + header + extra + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")


def error_of(path, **options):
    with pytest.raises(DataError) as caught:
        read_image(path, **options)
    return str(caught.value)
