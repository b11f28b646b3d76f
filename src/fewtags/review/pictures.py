"""Pictures for the page: photos and crops as JPEG files, made when they are asked for and kept on disk."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from PIL import Image

from fewtags.errors import DataError
from fewtags.files import replacing
from fewtags.geometry import View
from fewtags.photos.decode import open_photo
from fewtags.shards.photos import photo_status
from fewtags.table.table import LabelTable

Box = tuple[float, float, float, float]
SIDES = (320, 800, 1600, 3200)
"""Longest sides of pictures in pixels; others are not made, so that the cache stays small."""
CROP_SIDE = 256
"""Sides of a crop in pixels."""
CROP_MARGIN = 0.6
"""What a crop shows on each side of its box, as a share of the longer side of the box."""
SMALLEST_CROP = 0.6
"""A crop covers at least this share of the shorter side of the photo. Where the class is absent, the evidence is some
patch of the photo, and less shows a piece of cloth without what is around it."""


@final
@dataclass(frozen=True)
class PhotoId:
    """Where a photo is: its folder, and its key relative to it."""

    folder: str
    image: str

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.folder) / self.image

    @property
    def id(self) -> str:
        """A short name for addresses; it depends on folder and key only."""
        return hashlib.blake2b(f"{self.folder}\0{self.image}".encode(), digest_size=9).hexdigest()


@final
class PhotoSet:
    """The photos that may be shown; a page can ask for no other file.

    Ids take seconds for a million photos, so those of the table are made when the first unknown one is asked for: by a
    page that was open before the server started again.

    Args:
        table: photos that may be shown; it has a folder.
    """

    def __init__(self, table: LabelTable) -> None:
        self._folder, self._keys = str(table.require_root().absolute()), table.images
        self._all = False
        self._known: dict[str, PhotoId] = {}
        self._lock = threading.Lock()

    def show(self, photo: PhotoId) -> str:
        """Return the id of a photo that a page will ask for."""
        self._known[photo.id] = photo
        return photo.id

    def __len__(self) -> int:
        """The number of photos of the table."""
        return len(self._keys)

    def find(self, id: str) -> PhotoId | None:
        """Return the photo with an id; None if it may not be shown."""
        if (found := self._known.get(id)) is not None:
            return found
        with self._lock:
            if not self._all:
                for key in self._keys.to_pylist():
                    self.show(PhotoId(self._folder, key))
                self._all = True
        return self._known.get(id)


@final
@dataclass(frozen=True)
class Pictures:
    """Makes pictures in a cache folder, which may be deleted at any time."""

    cache: Path
    _locks: tuple[threading.Lock, ...] = field(default_factory=lambda: tuple(threading.Lock() for _ in range(64)))

    def photo(self, path: Path, side: int) -> Path:
        """Return a JPEG file of a photo, upright, at most `side` pixels high and wide; it is never enlarged.

        Raises:
            DataError: the photo cannot be read.
        """
        place = self._place(path, f"photo {side}")
        with self._making(place) as missing:
            if not missing:
                return place
            with open_photo(path) as photo:
                scale = min(1.0, side / max(photo.info.width, photo.info.height))
                size = (max(1, round(photo.info.height * scale)), max(1, round(photo.info.width * scale)))
                self._write(place, Image.fromarray(photo.read(size=size)))
        return place

    def crop(self, path: Path, box: Box | None) -> Path:
        """Return a JPEG file of the surroundings of a box, `CROP_SIDE` pixels at most; None: of the whole photo.

        Raises:
            DataError: the photo cannot be read.
        """
        # Their rules are part of the name, so that a review that goes on has no crops of an older version.
        rules = f"crop {CROP_SIDE} {CROP_MARGIN} {SMALLEST_CROP}"
        place = self._place(path, rules if box is None else f"{rules} {' '.join(f'{v:.3f}' for v in box)}")
        with self._making(place) as missing:
            if not missing:
                return place
            with open_photo(path) as photo:
                x0, y0, x1, y1 = around(box, photo.info.aspect)
                width, height = (x1 - x0) * photo.info.width, (y1 - y0) * photo.info.height
                scale = CROP_SIDE / max(width, height)
                size = (max(1, round(height * scale)), max(1, round(width * scale)))
                self._write(place, Image.fromarray(photo.read(View.crop(x0, y0, x1, y1), size)))
        return place

    def _place(self, path: Path, what: str) -> Path:
        try:
            status = photo_status(path)
            content = f"{status.changed} {status.size}"
        except (OSError, DataError):
            content = "missing"  # reading it says why
        name = hashlib.blake2b(os.fsencode(path) + f"\0{content}\0{what}".encode(), digest_size=16).hexdigest()
        return self.cache / name[:2] / f"{name}.jpg"

    @contextmanager
    def _making(self, place: Path) -> Iterator[bool]:
        """Yield whether a picture is missing; other threads that want the same one wait."""
        if place.exists():
            yield False
            return
        with self._locks[hash(place) % len(self._locks)]:
            yield not place.exists()

    @staticmethod
    def _write(place: Path, picture: Image.Image) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as temporary:
            picture.save(temporary, "JPEG", quality=87)


def around(box: Box | None, aspect: float) -> Box:
    """Return what a crop shows of a photo with an aspect (width / height): a square around a box, where it fits.

    >>> around((0.35, 0.35, 0.65, 0.65), 1.0)
    (0.17, 0.17, 0.83, 0.83)
    >>> around((0.4, 0.4, 0.6, 0.6), 1.0)  # not less than `SMALLEST_CROP`
    (0.2, 0.2, 0.8, 0.8)
    >>> around(None, 2.0)
    (0.0, 0.0, 1.0, 1.0)
    """
    if box is None:
        return (0.0, 0.0, 1.0, 1.0)
    # In units of the shorter side of the photo.
    wide, high = max(aspect, 1.0), max(1 / aspect, 1.0)
    x0, y0, x1, y1 = box[0] * wide, box[1] * high, box[2] * wide, box[3] * high
    side = max(max(x1 - x0, y1 - y0) * (1 + 2 * CROP_MARGIN), SMALLEST_CROP)
    left, right = _span((x0 + x1) / 2, side, wide)
    top, bottom = _span((y0 + y1) / 2, side, high)
    return (round(left / wide, 6), round(top / high, 6), round(right / wide, 6), round(bottom / high, 6))


def _span(middle: float, side: float, limit: float) -> tuple[float, float]:
    """Return an interval of a length around a point, moved into 0..limit."""
    side = min(side, limit)
    start = min(max(0.0, middle - side / 2), limit - side)
    return start, start + side
