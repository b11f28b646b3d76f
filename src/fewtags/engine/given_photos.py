"""Photos as Python users give them: paths, folders, PIL images, arrays, a label table, or a list of these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from PIL import Image

from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.photos.in_memory import NamedImage
from fewtags.shards.places import Url, expand, is_shard, place
from fewtags.table.table import LabelTable

EXPECTED = "expected paths of photos or folders, PIL images, or arrays uint8 [h, w, 3] or [h, w]"


@final
@dataclass(frozen=True)
class GivenPhotos:
    """Photos in the order in which they are given.

    Attributes:
        photos: a path or an image each.
        names: paths as text; an image in memory is called "image-0001" by its place in the list.
        notes: messages about files in folders that are skipped.
    """

    photos: tuple[Path | NamedImage, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: object) -> GivenPhotos:
        """Collect photos; folders are searched as `fewtags predict` does.

        Raises:
            DataError: something else than photos, a folder without photos, or an array of another shape or dtype.
        """
        photos: list[Path | NamedImage] = []
        names: list[str] = []
        notes: list[str] = []
        for n, one in enumerate(_items(given), 1):
            if isinstance(one, str | os.PathLike):
                path = place(os.fspath(one))
                several = isinstance(path, Url) or path.is_dir() or (not path.exists() and [path] != expand(path))
                several = several or (is_shard(path.name) and path.is_file())
                found, skipped = find_photos([path]) if several else ([path], [])
                photos += found
                names += map(str, found)
                notes += skipped
            else:
                names.append(f"image-{n:04d}")
                photos.append(NamedImage(_image(one, names[-1]), names[-1]))
        return cls(tuple(photos), tuple(names), tuple(notes))


def _items(given: object) -> Iterator[Any]:
    """Yield the photos of a single one, of a list, or of a table."""
    if isinstance(given, LabelTable):
        root = given.require_root()
        yield from (root / key for key in given.images.to_pylist())
    elif isinstance(given, str | os.PathLike | Image.Image) or (isinstance(given, np.ndarray) and given.ndim in (2, 3)):
        yield given
    elif hasattr(given, "columns") and hasattr(given, "iloc"):
        raise DataError("expected photos, got a DataFrame; pass its column of paths, for example frame['image'].")
    elif isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise DataError(f"{_kind(given)} cannot be read as photos; {EXPECTED}.")
    else:
        yield from given


def _image(given: object, name: str) -> Image.Image:
    """Return a PIL image of one that is given in memory."""
    if isinstance(given, Image.Image):
        return given
    if not isinstance(given, np.ndarray):
        how = "; make an array with .permute(1, 2, 0).numpy()" if hasattr(given, "permute") else ""
        raise DataError(f"{name}: {_kind(given)} cannot be read as a photo{how}; {EXPECTED}.")
    shape = " x ".join(map(str, given.shape)) or "no"
    if given.dtype != np.uint8:
        cure = "(array * 255).round().astype('uint8') for values in 0..1" if given.dtype.kind == "f" else "uint8"
        raise DataError(f"{name}: the array has the dtype {given.dtype}; expected uint8 with values 0..255: {cure}.")
    if given.ndim == 3 and given.shape[2] != 3 and given.shape[0] in (1, 3):
        cure = "array.transpose(1, 2, 0)" if given.shape[0] == 3 else "array[0]"
        raise DataError(f"{name}: the array has the shape {shape}, channels first; expected h x w x 3: {cure}.")
    if given.ndim == 3 and given.shape[2] == 4:
        raise DataError(f"{name}: the array has the shape {shape} with an alpha channel; drop it: array[:, :, :3].")
    if given.ndim == 3 and given.shape[2] == 1:
        given = given[:, :, 0]
    if given.ndim not in (2, 3) or (given.ndim == 3 and given.shape[2] != 3) or not given.size:
        raise DataError(f"{name}: the array has the shape {shape}; expected h x w x 3, or h x w for grey.")
    return Image.fromarray(np.ascontiguousarray(given))


def _kind(given: object) -> str:
    return "None" if given is None else f"an object of the type {type(given).__name__}"
