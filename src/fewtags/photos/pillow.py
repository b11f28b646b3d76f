"""Open pictures with Pillow: which of its exceptions mean a broken file, and without its warnings about metadata."""

from __future__ import annotations

import os
import struct
import threading
import warnings
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image

# Found with thousands of truncated and damaged files.
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RuntimeError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""Exceptions of Pillow's decoders for broken files."""

# One per process: a fork may copy a held lock.
_LOCKS: dict[int, threading.Lock] = {}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence Pillow's warnings about damaged metadata and large pictures, which the callers handle per file.

    Warning filters are global to the process, so a lock is needed.
    """
    with _LOCKS.setdefault(os.getpid(), threading.Lock()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


@contextmanager
def open_picture(source: Path | BinaryIO, formats: Collection[str] | None = None) -> Iterator[Image.Image]:
    """Open a picture by its header, in one of Pillow's `formats` (None: in any); its pixels are decoded when used.

    Raises:
        DAMAGE: one of these exceptions, for a broken file.
    """
    with without_warnings():
        image = Image.open(source, formats=None if formats is None else tuple(formats))
    with image:
        yield image
