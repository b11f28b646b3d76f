"""JPEG files that lack only their last bytes, the marker of the end: every pixel can be decoded."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from fewtags.errors import DataError
from fewtags.photos.pillow import DAMAGE, open_picture
from fewtags.shards.photos import open_bytes, photo_status

_END = b"\xff\xd9"
_FILLS = (b"\x00" * 64, b"\xaa" * 64)
_MOST_BYTES = 1 << 28


def whole_jpeg(path: str, wanted: tuple[int, int] | None) -> Image.Image | None:
    """Return the decoded photo of a JPEG file without an end marker; None if data of pixels are missing as well.

    The file is decoded twice in full size, with different bytes in place of those after its end. If both pictures are
    equal, no pixel depends on them. Without its last three bytes they must differ: otherwise the end is not data of
    pixels, as in a progressive JPEG whose last scan is missing. Zeros and line ends after the data are not data.

    Args:
        path: the file.
        wanted: (width, height) that the decoder may reduce the photo to; None: the full size.
    """
    try:
        status = photo_status(path)
        if not status.is_file or status.size > _MOST_BYTES:
            return None
        with open_bytes(path) as file:
            content = file.read()
    except (OSError, DataError):
        return None
    data = content.rstrip(b"\x00\r\n")
    # A single byte of this kind may belong to the data.
    for end in [data, *([content] if len(content) == len(data) + 1 else [])]:
        end = end.removesuffix(b"\xff")
        if _scans_are_there(end) and _is_whole(end) and not _is_whole(end[:-3]):
            return _decoded(end, _FILLS[0], wanted)
    return None


def _scans_are_there(data: bytes) -> bool:
    """Return whether a progressive JPEG has the usual number of scans (colour: ten, grey: six), or is baseline."""
    try:
        with open_picture(io.BytesIO(data + _END), ("JPEG",)) as image:
            usual = 6 if image.mode == "L" else 10
            return not image.info.get("progressive") or data.count(b"\xff\xda") >= usual
    except DAMAGE:
        return False


def _is_whole(data: bytes) -> bool:
    """Return whether no pixel depends on what comes after the data."""
    first, second = (_decoded(data, fill, None) for fill in _FILLS)
    return first is not None and second is not None and np.array_equal(np.asarray(first), np.asarray(second))


def _decoded(data: bytes, fill: bytes, wanted: tuple[int, int] | None) -> Image.Image | None:
    try:
        with open_picture(io.BytesIO(data + fill + _END), ("JPEG",)) as image:
            if wanted is not None:
                image.draft("", wanted)
            image.load()
    except DAMAGE:
        return None
    return image
