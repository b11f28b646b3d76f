"""Decode photo files to RGB arrays in the displayed frame, with Pillow.

Rules:

- The content decides the format, not the extension. Only the formats below are opened (Pillow would start Ghostscript
  for an EPS file). Animations and multi-page files give their first frame.
- EXIF orientation is applied. Colour profiles are not.
- Transparent pixels are composited on white, the usual background of logos, drawings and product photos.
- 16-bit grey is divided by 257, so that its full range maps to the 8-bit range (12-bit TIFF likewise); values are
  never clipped. 12-bit data in a 16-bit file is therefore dark: rescale such files first.
- Float pixels must lie in 0..1. Pixels without a known range (32-bit or signed integers) are an error.
- CMYK and YCCK JPEGs are read as Adobe writes them (inverted), like in every browser.
- A truncated file is an error, unless every pixel of a JPEG can be decoded: then only its end marker is missing.

Files are untrusted: pixels are counted before they are decoded, and any exception of a decoder becomes a
`DataError` with the file, the cause and the fix. Threads and processes may read at the same time.
"""

from __future__ import annotations

import math
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from io import SEEK_CUR
from pathlib import Path
from typing import BinaryIO, final

import numpy as np
from numpy.typing import NDArray
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from fewtags.errors import ConfigError, DataError
from fewtags.geometry import View
from fewtags.photos.color_modes import eight_bit
from fewtags.photos.orientation import orientation_view, swaps_axes
from fewtags.photos.pillow import DAMAGE, without_warnings
from fewtags.photos.unended import whole_jpeg
from fewtags.shards.photos import open_bytes, photo_status, shard_problem
from fewtags.shards.places import is_shard
from fewtags.text import quoted

PIXEL_LIMIT = 100_000_000
"""Default for the largest number of pixels of a photo: 10,000 x 10,000.

Reading takes up to 21 bytes a pixel for a moment, and up to 28 if the result keeps the size of the photo (lossless WebP
with transparency): 2.1 and 2.8 GB at the limit. `tests/stress/photo_memory.py` measures this for each format.
"""
LARGE = 10_000_000
"""A photo of more pixels is decoded alone: the threads of a process that read large photos wait for each other."""
PIXEL_LIMIT_VARIABLE = "FEWTAGS_PIXEL_LIMIT"
"""Environment variable that sets another limit, for all commands and processes."""

EXTENSIONS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"), "JPEG"),
    **dict.fromkeys((".png", ".apng"), "PNG"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".bmp", ".dib"), "BMP"),
    **dict.fromkeys((".jp2", ".j2k", ".j2c", ".jpc", ".jpx"), "JPEG2000"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm", ".pfm"), "PPM"),
    **dict.fromkeys((".heic", ".heif", ".hif"), "HEIF"),
    ".gif": "GIF",
    ".webp": "WEBP",
    ".avif": "AVIF",
}
"""Lower-case file name extension -> format, for all supported formats (HEIF needs the extra `heif`)."""

_PLUGINS: dict[str, Callable[[BinaryIO, str], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "JPEG2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
}

_MAGIC = (
    ("JPEG", re.compile(rb"\xff\xd8\xff")),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("GIF", re.compile(rb"GIF8[79]a")),
    ("WEBP", re.compile(rb"RIFF....WEBP", re.DOTALL)),
    ("TIFF", re.compile(rb"II[*+]\0|MM\0[*+]")),
    ("AVIF", re.compile(rb"....ftyp(?:avi[fs]|m(?:if|sf)1.*avi[fs])", re.DOTALL)),
    ("HEIF", re.compile(rb"....ftyp(?:hei[cxms]|hev[cxms]|m(?:if|sf)1)", re.DOTALL)),
    ("JPEG2000", re.compile(rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n")),
    ("BMP", re.compile(rb"BM")),
    ("PPM", re.compile(rb"P[1-7fF]\s")),
)

_OTHERS = (
    (re.compile(rb"version https://git-lfs"), "is a Git LFS pointer, not the photo itself", "run `git lfs pull`"),
    (re.compile(rb"\s*<"), "is a web page or other markup, not a photo", "download it again, or remove it"),
    (re.compile(rb"%PDF"), "is a PDF, not a photo", "export its pages as photos, or remove it"),
    (re.compile(rb"PK\x03\x04|\x1f\x8b|7z\xbc"), "is an archive, not a photo", "unpack it first"),
)

# A JPEG is decoded at 1/2, 1/4 or 1/8 scale if at least this many decoded pixels remain per pixel of the result.
_DRAFT_GAP = 1.5
# (axes exchanged, columns reversed, rows reversed) of the stored crop -> operation that gives the displayed crop.
_TURNS = {
    (False, False, False): None,
    (False, True, False): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, False, True): Image.Transpose.FLIP_TOP_BOTTOM,
    (False, True, True): Image.Transpose.ROTATE_180,
    (True, False, False): Image.Transpose.TRANSPOSE,
    (True, True, False): Image.Transpose.ROTATE_90,
    (True, False, True): Image.Transpose.ROTATE_270,
    (True, True, True): Image.Transpose.TRANSVERSE,
}
# Views come from float arithmetic, so the edge of a whole image may be slightly outside.
_TOLERANCE = 1e-6


@final
@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """Content of the header of a photo file.

    Attributes:
        width: displayed width in pixels, after the EXIF orientation.
        height: displayed height in pixels.
        stored: (width, height) of the pixel grid in the file.
        orientation: EXIF orientation, 1..8; 1 if it is missing or damaged.
        format: a value of `EXTENSIONS`, decided by the content.
        mode: Pillow's colour mode: "L", "RGB", "CMYK", "P", "RGBA", "I;16", ...
        bits: bits per sample in the file.
        animated: the file has several frames or pages; the first one is read.
        misnamed: the extension belongs to another format.
    """

    width: int
    height: int
    stored: tuple[int, int]
    orientation: int
    format: str
    mode: str
    bits: int
    animated: bool
    misnamed: bool

    @property
    def aspect(self) -> float:
        """Displayed width / height."""
        return self.width / self.height


@final
@dataclass
class Photo:
    """A photo file after its header was read. `open_photo` makes it; its pixels can be read once."""

    path: str
    info: ImageInfo
    _image: Image.Image = field(repr=False)
    _was_read: bool = field(default=False, init=False, repr=False)
    _wanted: tuple[int, int] | None = field(default=None, init=False, repr=False)
    unended: bool = field(default=False, init=False, repr=False)
    """Whether the photo was read although the end of its file is missing."""

    def read(self, view: View | None = None, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Decode the photo through a view: crop, flip, quarter turn and resize in one pass over the needed pixels.

        The filter is bilinear and widens with the reduction (no aliasing). Near the edges of the box it uses the
        pixels of the photo outside the box. The result is RGB, uint8 [h, w, 3], contiguous and writable.

        Args:
            view: crop frame -> displayed frame, axis-aligned; None: the whole photo.
            size: (height, width) of the result; None: keep the scale.

        Raises:
            DataError: the pixels cannot be decoded or have no known range.
            ValueError: the view reaches outside the photo or has no area.
            NotImplementedError: the view is not axis-aligned.
        """
        assert not self._was_read, "a photo is read once: what is decoded may be a fraction of its size"
        self._was_read = True
        turned = self.info.orientation if self.info.format != "TIFF" else 1  # Pillow turns TIFF pixels itself
        total = orientation_view(turned).then(view or View.identity())
        a, b, c, d, e, f = total.matrix
        if swapped := abs(a) < abs(b):
            a, b, d, e = b, a, e, d
        if max(abs(b), abs(d)) > _TOLERANCE:
            raise NotImplementedError(f"only axis-aligned views can be read, not {total.matrix}")
        x, y = _interval(c, a), _interval(f, e)
        width, height = self._image.size
        if size is None:
            across, down = max(1, round((x[1] - x[0]) * width)), max(1, round((y[1] - y[0]) * height))
        else:
            across, down = size if swapped else size[::-1]
        scaled = self._draft(across / (x[1] - x[0]), down / (y[1] - y[0]))
        image = eight_bit(self._load(), self.path, self.info.bits)
        extent = scaled or image.size
        box = (x[0] * extent[0], y[0] * extent[1], x[1] * extent[0], y[1] * extent[1])
        small = image.resize((across, down), Image.Resampling.BILINEAR, box=box)
        # After the exchange of axes, a and e are the signs along the columns and the rows of the stored crop.
        if (turn := _TURNS[swapped, a < 0, e < 0]) is not None:
            small = small.transpose(turn)  # ten times faster than a numpy view that is copied
        return np.array(small.convert("RGB"))

    def _draft(self, width: float, height: float) -> tuple[float, float] | None:
        """Ask the JPEG decoder for fewer pixels. Return the scaled size, or None for other formats.

        The size is fractional: the decoder rounds it up, and the photo covers only a part of the last row and column.
        """
        if self.info.format != "JPEG" or not isinstance(self._image, ImageFile.ImageFile):
            return None  # for HEIF it would mean the embedded thumbnail
        if not self._image.tile:  # the header ends without a scan
            raise DataError(f"{self.path}: has a JPEG header but no image data; re-export or remove the file.")
        wanted = (math.ceil(width * _DRAFT_GAP), math.ceil(height * _DRAFT_GAP))
        self._wanted = wanted
        scaled = self._image.draft("", wanted)
        return None if scaled is None else scaled[1][2:]

    def _load(self) -> Image.Image:
        try:
            self._image.load()
        except DAMAGE as error:
            truncated = "truncated" in str(error).lower()
            if truncated and self.info.format == "JPEG" and (whole := whole_jpeg(self.path, self._wanted)):
                self.unended = True
                return whole
            problem = _truncation(self._image) if truncated else f"cannot be decoded ({error})"
            raise DataError(f"{self.path}: {problem}; re-export or remove the file.") from error
        return self._image


@contextmanager
def open_photo(path: Path | str) -> Iterator[Photo]:
    """Open a photo file: read and check the header, but not the pixels.

    The pixel limit is FEWTAGS_PIXEL_LIMIT if set, else `PIXEL_LIMIT`. Pillow's own global limit is neither used nor
    changed (but Pillow refuses TIFF and WebP above twice `Image.MAX_IMAGE_PIXELS`).

    Raises:
        DataError: no such file, not a photo, a damaged header, or more pixels than the limit.
        ConfigError: FEWTAGS_PIXEL_LIMIT is not a number above 0.
    """
    with _open_any_size(path) as photo:
        text = os.environ.get(PIXEL_LIMIT_VARIABLE, str(PIXEL_LIMIT))
        if not text.isdecimal() or not int(text):
            raise ConfigError(f"{PIXEL_LIMIT_VARIABLE}={text!r}: expected a number of pixels, for example 200000000.")
        width, height = photo.info.stored
        if width * height > int(text):
            raise DataError(
                f"{photo.path}: has {width:,} x {height:,} = {width * height / 1e6:,.1f} million pixels, more than the "
                f"limit of {int(text) / 1e6:,.1f} million; shrink the photo, or set the environment variable "
                f"{PIXEL_LIMIT_VARIABLE}={width * height} if that is its size."
            )
        with _LARGE_LOCKS.setdefault(os.getpid(), threading.RLock()) if width * height > LARGE else nullcontext():
            yield photo


def probe(path: Path | str) -> ImageInfo:
    """Read the header of a photo file of any size; a file that is not a readable photo is a `DataError`."""
    with _open_any_size(path) as photo:
        return photo.info


def read_image(
    path: Path | str, *, box: tuple[float, float, float, float] | None = None, size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Read a photo, or a box of it (x0, y0, x1, y1 in 0..1 of the displayed frame): uint8 [h, w, 3], RGB.

    `size` is the (height, width) of the result; None keeps the scale.

    Raises:
        DataError: the file cannot be read.
        ValueError: the box reaches outside 0..1 or has no area.
    """
    with open_photo(path) as photo:
        return photo.read(None if box is None else View.crop(*map(float, box)), size)


@contextmanager
def _open_any_size(path: Path | str) -> Iterator[Photo]:
    shown = os.fspath(path).encode("utf-8", "backslashreplace").decode()
    try:
        with _open_file(Path(path), shown) as file:
            yield _read_header(file, Path(path), shown)
    except MemoryError as error:  # of the header, the decoder, the conversion of colours or the resize
        raise DataError(f"{shown}: does not fit into memory once it is decoded; shrink the photo.") from error


def _interval(start: float, length: float) -> tuple[float, float]:
    """The part of 0..1 that one axis of a view covers."""
    low, high = sorted((start, start + length))
    if low < -_TOLERANCE or high > 1 + _TOLERANCE or high - low < _TOLERANCE:
        raise ValueError(f"a view must cover a part of the photo, not {low:.6g} to {high:.6g} of 0 to 1")
    return max(low, 0.0), min(high, 1.0)


def _open_file(path: Path, shown: str) -> BinaryIO:
    try:
        status = photo_status(path)
        if status.is_folder:
            raise DataError(f"{shown}: is a folder, not a photo; name the files in it.")
        if not status.is_file:  # opening a named pipe would wait for ever
            raise DataError(f"{shown}: is not a regular file; copy the photo to one.")
        if status.size == 0:
            raise DataError(f"{shown}: is empty (0 bytes); copy it again, or remove it.")
        return open_bytes(path)
    except FileNotFoundError as error:
        raise DataError(f"{shown}: no such file; check the path and the image folder.") from error
    except OSError as error:
        raise DataError(f"{shown}: cannot be opened ({error.strerror}); check the path and its permissions.") from error
    except ValueError as error:
        raise DataError(f"{quoted(shown)}: is not a path ({error}); check the label file.") from error


def _read_header(file: BinaryIO, path: Path, shown: str) -> Photo:
    head = file.read(64)
    kind = next((name for name, magic in _MAGIC if magic.match(head)), None)
    if kind is None:
        unknown = f"is not a photo (its first bytes are {head[:8]!r}); remove it, or export it as JPEG or PNG"
        problem = next((f"{what}; {cure}" for magic, what, cure in _OTHERS if magic.match(head)), unknown)
        if is_shard(shown):
            problem = shard_problem(path)
        raise DataError(f"{shown}: {problem}.")
    plugin = _heif_plugin(shown) if kind == "HEIF" else _PLUGINS[kind]
    file.seek(0)
    try:
        with without_warnings():
            image = plugin(file, "")
            if kind == "PNG" and "exif" not in image.info:
                image.info["exif"] = _late_exif(file)
            orientation = _orientation(image)
            animated = bool(getattr(image, "is_animated", False))  # only formats that may hold frames define it
    except DAMAGE as error:
        raise DataError(
            f"{shown}: its {kind} header is damaged or of an unknown kind ({error}); re-export or remove the file."
        ) from error
    swapped = swaps_axes(orientation)
    width, height = image.size
    stored = (height, width) if swapped and kind == "TIFF" else (width, height)  # Pillow turns TIFF itself
    info = ImageInfo(
        width=stored[swapped],
        height=stored[not swapped],
        stored=stored,
        orientation=orientation,
        format=kind,
        mode=image.mode,
        bits=_bits(image, kind, head),
        animated=animated,
        misnamed=EXTENSIONS.get(path.suffix.lower(), kind) != kind,
    )
    return Photo(shown, info, image)


def _heif_plugin(shown: str) -> Callable[[BinaryIO, str], ImageFile.ImageFile]:
    try:
        from pillow_heif import HeifImageFile
    except ImportError as error:
        cure = "pip install 'fewtags[heif]', or export it as JPEG"
        raise DataError(f"{shown}: is a HEIF photo, which needs pillow-heif; {cure}.") from error
    plugin: Callable[[BinaryIO, str], ImageFile.ImageFile] = HeifImageFile
    return plugin


def _late_exif(file: BinaryIO) -> bytes | None:
    """EXIF of a PNG that is stored after its pixels; Pillow would decode the pixels to find it."""
    before, exif = file.tell(), b""
    file.seek(8)
    while len(start := file.read(8)) == 8:
        length, chunk = struct.unpack(">I4s", start)
        if chunk == b"eXIf":
            exif = file.read(min(length, 1 << 20))
            break
        file.seek(length + 4, SEEK_CUR)
    file.seek(before)
    return exif or None


def _orientation(image: Image.Image) -> int:
    """EXIF orientation; 1 for damaged EXIF blocks, which are common."""
    try:
        # Not `image.getexif()`, which for a PNG decodes the pixels.
        value = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except DAMAGE:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _bits(image: Image.Image, kind: str, head: bytes) -> int:
    if kind == "PNG":
        return head[24]
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return int(max(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))))
    if image.mode.startswith("I;16") or (kind == "PPM" and image.mode == "I"):
        return 16
    return int(image.info.get("bit_depth", {"1": 1, "I": 32, "F": 32}.get(image.mode, 8)))


# One per process: a fork may copy a held lock.
_LARGE_LOCKS: dict[int, threading.RLock] = {}


def _truncation(image: Image.Image) -> str:
    """Describe how much of a truncated photo was decoded, if known: the other rows are black."""
    image.tile = []  # type: ignore[attr-defined]  # nothing more to decode: keep what there is
    try:
        filled = image.getbbox()
    except DAMAGE:
        filled = None
    if filled is None or filled[3] == image.height:
        return "truncated, its data end before the image does"
    return f"truncated after {filled[3] / image.height:.0%} of the image"
