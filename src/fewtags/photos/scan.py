"""Read the headers of many photo files in parallel, and check that the files decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import partial
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.photos.decode import ImageInfo, open_photo
from fewtags.shards.photos import photo_exists
from fewtags.table.content import each

Tick = Callable[[int, int], None]
"""Progress callback, called with (number done, total)."""

_REPORTED = 64
# Every byte of a JPEG is decoded at any scale, so truncation is found; the smallest scale is the fastest.
_SMALL = (8, 8)


class Trait(IntFlag):
    """Unusual properties of a photo file. Reading handles all of them."""

    ROTATED = 1
    DEEP = 2
    CMYK = 4
    PALETTE = 8
    ALPHA = 16
    ANIMATED = 32
    MISNAMED = 64
    UNENDED = 128


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """Sizes, traits and errors of N photo files.

    Attributes:
        width: int32 [N], displayed width in pixels, 0 if the header cannot be read.
        height: int32 [N], displayed height.
        traits: uint8 [N], a `Trait`.
        missing: positions of files that do not exist.
        unreadable: position -> why a file cannot be read, and what to do.
    """

    width: NDArray[np.int32]
    height: NDArray[np.int32]
    traits: NDArray[np.uint8]
    missing: frozenset[int]
    unreadable: dict[int, str]

    @property
    def unusable(self) -> set[int]:
        """Positions of all missing or unreadable files."""
        return set(self.missing) | self.unreadable.keys()


class _Look(NamedTuple):
    width: int = 0
    height: int = 0
    traits: int = 0
    problem: str = ""
    missing: bool = False


def scan(
    paths: Sequence[str], *, decode: bool = True, threads: int | None = None, progress: Tick | None = None
) -> Scan:
    """Read every file. `check.check` explains the arguments; `progress` is called in this thread."""
    looks = []
    for look in each(partial(_look, decode=decode), paths, threads=threads):
        looks.append(look)
        if progress and (len(looks) % _REPORTED == 0 or len(looks) == len(paths)):
            progress(len(looks), len(paths))
    width, height, traits = np.array([look[:3] for look in looks], np.int32).reshape(-1, 3).T
    return Scan(
        width,
        height,
        traits.astype(np.uint8),
        frozenset(n for n, look in enumerate(looks) if look.missing),
        {n: look.problem for n, look in enumerate(looks) if look.problem and not look.missing},
    )


def _look(path: str, decode: bool) -> _Look:
    seen = _Look()
    try:
        with open_photo(path) as photo:
            seen = _Look(photo.info.width, photo.info.height, _traits(photo.info))
            if decode:
                photo.read(size=_SMALL)
                if photo.unended:
                    seen = seen._replace(traits=seen.traits | Trait.UNENDED)
    except DataError as error:
        return seen._replace(problem=str(error).removeprefix(f"{path}: ").removesuffix("."), missing=_missing(path))
    return seen


def _missing(path: str) -> bool:
    return not photo_exists(path)


def _traits(info: ImageInfo) -> int:
    found = {
        Trait.ROTATED: info.orientation != 1,
        Trait.DEEP: info.bits > 8,
        Trait.CMYK: info.mode == "CMYK",
        Trait.PALETTE: info.mode in ("P", "PA"),
        Trait.ALPHA: info.mode in ("RGBA", "LA", "PA", "RGBa", "La"),
        Trait.ANIMATED: info.animated,
        Trait.MISNAMED: info.misnamed,
    }
    return sum(trait for trait, present in found.items() if present)
