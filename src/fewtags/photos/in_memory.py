"""Photos that are already in memory, read as those in files are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from PIL import Image, ImageOps

from fewtags.errors import DataError
from fewtags.photos.decode import ImageInfo, Photo
from fewtags.photos.pillow import DAMAGE, without_warnings


@final
@dataclass(frozen=True, eq=False)
class NamedImage:
    """An image in memory, and what messages call it."""

    image: Image.Image
    name: str

    def __str__(self) -> str:
        return self.name


def photo_in_memory(named: NamedImage) -> Photo:
    """Return a photo of a PIL image, which stays as it is.

    EXIF orientation is applied. A JPEG is not decoded at a reduced scale, so results may differ slightly from those of
    its file.

    Raises:
        DataError: the pixels cannot be decoded.
    """
    name = named.name
    try:
        with without_warnings():
            named.image.getexif()  # kept by the image: what follows does not parse it again
        shown = ImageOps.exif_transpose(named.image)
    except DAMAGE as error:
        raise DataError(f"{name}: cannot be decoded ({error}); load the photo again.") from error
    width, height = shown.size
    if not width or not height:
        raise DataError(f"{name}: has {width} x {height} pixels; pass an image with pixels.")
    info = ImageInfo(
        width=width,
        height=height,
        stored=shown.size,
        orientation=1,
        format="memory",
        mode=shown.mode,
        bits=16 if shown.mode.startswith("I;16") else {"1": 1, "I": 32, "F": 32}.get(shown.mode, 8),
        animated=False,
        misnamed=False,
    )
    return Photo(name, info, shown)
