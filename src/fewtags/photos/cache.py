"""Shrunken copies of photos on disk, from which training views are read: the photo is decoded once, not in every epoch.

A copy has the RGB pixels of the displayed frame, as they are in memory: nothing is decoded. It covers the whole photo,
so that views, which are fractions of the photo, are those without a cache; their edges are rounded to whole pixels of
the copy, as torchvision rounds its crops to pixels of the photo. A copy is a file of its own, named by a digest of the
path, size and time of the photo: a changed photo gets another copy. It is written under a temporary name and renamed,
so that processes and runs can share a folder. The pixels of a view do not depend on whether the copy was there before.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional

from fewtags.errors import DiskError
from fewtags.files import disk_error, replacing
from fewtags.geometry import View
from fewtags.photos.decode import ImageInfo, open_photo, probe
from fewtags.shards.photos import photo_status
from fewtags.shards.places import is_url

SIDE = 1.5
"""Shorter side of a copy over the side of the crops; the SCL paper resizes to 672 px before it crops 448."""
KEPT_FREE = 10**9
"""Bytes of the disk that copies leave free, for checkpoints and other programs."""

_VERSION = 1
"""Of the content of a copy; another number gives copies other names."""
_HEAD = struct.Struct("<8s16s4I")  # magic, digest, width and height of the photo, width and height of the copy
_MAGIC = b"fewtags\n"


class ViewRead(NamedTuple):
    """A photo read through a view: pixels uint8 [size, size, 3], the view, and why no copy could be written, or ""."""

    pixels: NDArray[np.uint8]
    view: View
    problem: str = ""


class _Shape(NamedTuple):
    """Width and height of a photo, and of its copy."""

    width: int
    height: int
    across: int
    down: int

    @property
    def bytes(self) -> int:
        return 3 * self.across * self.down


@final
@dataclass(frozen=True)
class PhotoCache:
    """A folder of shrunken copies.

    Attributes:
        folder: it is made when the first copy is written.
        side: pixels of the shorter side of a copy, unless the photo is smaller.
    """

    folder: Path
    side: int

    @classmethod
    def for_crops(cls, folder: Path, size: int) -> Self:
        """Return the cache for square crops of `size` pixels."""
        return cls(folder, math.ceil(SIDE * size))

    def read_through(self, path: Path, view_of: Callable[[float], View], size: int) -> ViewRead:
        """Read a photo through a view, a crop with or without flips; a missing or damaged copy is written first.

        `view_of` maps an aspect (displayed width / height) to a view; the result has the view with its edges rounded.

        Raises:
            DataError: the photo cannot be read.
        """
        digest = self._digest(path)
        if digest is not None and (found := self._read(digest, view_of, size)) is not None:
            return found
        shape, pixels = self._shrink(path)
        problem = "" if digest is None else self._write(digest, shape, pixels)
        return _read_part(pixels, view_of(shape.width / shape.height), size, problem)

    def size_of(self, path: Path) -> tuple[int, bool]:
        """Return the bytes of the copy of a photo, and whether it is there; only the header of the photo is read.

        Raises:
            DataError: the photo cannot be read.
        """
        digest = self._digest(path)
        there = digest is not None and self._file(digest).is_file()
        return _HEAD.size + self._shape(probe(path)).bytes, there

    def _digest(self, path: Path) -> bytes | None:
        """Return what names the copy of a photo; None if there is no such photo."""
        try:
            status = photo_status(path)
        except (OSError, ValueError):
            return None
        if not status.is_file:
            return None
        text = os.fspath(path)
        place = text if is_url(text) else os.path.abspath(text)  # noqa: PTH100  # links are not followed
        key = f"{_VERSION} {self.side} {status.size} {status.changed} {place}"
        return blake2b(os.fsencode(key), digest_size=16).digest()

    def _file(self, digest: bytes) -> Path:
        name = digest.hex()
        return self.folder / f"{self.side}px" / name[:2] / f"{name[2:]}.rgb"

    def _read(self, digest: bytes, view_of: Callable[[float], View], size: int) -> ViewRead | None:
        """Read a view from a copy; None if the copy is missing or damaged."""
        try:
            with open(self._file(digest), "rb", buffering=0) as file:  # noqa: PTH123
                content = file.read()
        except OSError:
            return None
        if len(content) < _HEAD.size:
            return None
        magic, named, *numbers = _HEAD.unpack_from(content)
        shape = _Shape(*numbers)
        if (magic, named) != (_MAGIC, digest) or len(content) != _HEAD.size + shape.bytes or not min(shape):
            return None
        pixels = np.frombuffer(content, np.uint8, offset=_HEAD.size).reshape(shape.down, shape.across, 3)
        return _read_part(pixels, view_of(shape.width / shape.height), size)

    def _shape(self, info: ImageInfo) -> _Shape:
        scale = min(1.0, self.side / min(info.width, info.height))
        across, down = (max(1, round(scale * length)) for length in (info.width, info.height))
        return _Shape(info.width, info.height, across, down)

    def _shrink(self, path: Path) -> tuple[_Shape, NDArray[np.uint8]]:
        with open_photo(path) as photo:
            shape = self._shape(photo.info)
            return shape, photo.read(size=(shape.down, shape.across))

    def _write(self, digest: bytes, shape: _Shape, pixels: NDArray[np.uint8]) -> str:
        """Write a copy; return why it cannot be written, or ""."""
        file, head = self._file(digest), _HEAD.pack(_MAGIC, digest, *shape)
        try:
            if not file.parent.is_dir():
                file.parent.mkdir(parents=True, exist_ok=True)
            if (free := shutil.disk_usage(file.parent).free) < KEPT_FREE + shape.bytes:
                return f"{free / 1e9:.1f} GB of its disk are free, and {KEPT_FREE / 1e9:g} GB are kept free"
            with replacing(file, _HEAD.size + shape.bytes) as part, part.open("wb") as out:
                out.write(head)
                out.write(pixels.data)
        except DiskError as error:
            return str(error).rstrip(".")
        except OSError as error:
            return str(disk_error(file, error)).rstrip(".")
        return ""


def _read_part(pixels: NDArray[np.uint8], view: View, size: int, problem: str = "") -> ViewRead:
    """Resize the part of a copy, uint8 [h, w, 3], that a view shows; the view of the result has rounded edges."""
    a, b, c, d, e, f = view.matrix
    if b or d:
        raise NotImplementedError(f"only crops and flips of copies can be read, not {view.matrix}")
    height, width, _ = pixels.shape
    left, right = _rounded(c, a, width)
    top, bottom = _rounded(f, e, height)
    shown = View.crop(left / width, top / height, right / width, bottom / height)
    image = _resize(np.array(pixels[top:bottom, left:right]), size)
    if flipped := [axis for axis, sign in ((1, a), (0, e)) if sign < 0]:
        shown = shown.then(View((math.copysign(1, a), 0.0, float(a < 0), 0.0, math.copysign(1, e), float(e < 0))))
        image = image.flip(flipped)
    return ViewRead(image.numpy(), shown, problem)


def _rounded(start: float, length: float, pixels: int) -> tuple[int, int]:
    """The pixels that one axis of a view covers: at least one.

    >>> _rounded(0.26, 0.5, 10), _rounded(1.0, -0.5, 10), _rounded(0.96, 0.01, 10)
    ((3, 8), (5, 10), (9, 10))
    """
    low, high = sorted((start, start + length))
    first = min(max(0, round(low * pixels)), pixels - 1)
    return first, min(max(first + 1, round(high * pixels)), pixels)


def _resize(pixels: NDArray[np.uint8], size: int) -> torch.Tensor:
    """Resize uint8 [h, w, 3] to [size, size, 3] with Pillow's bilinear filter.

    With AVX2, torch is five times as fast as Pillow, and the results differ by at most 1; without it, torch is slower.
    """
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return torch.from_numpy(np.array(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)))
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # channels last, with the strides of a batch
    return functional.interpolate(image, (size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
