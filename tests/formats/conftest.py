from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import ExifTags, Image

PhotoMaker = Callable[..., None]


@pytest.fixture
def make_photo(tmp_path: Path) -> PhotoMaker:
    """Writes a small JPEG below tmp_path; photos of equal `content` and size are equal byte by byte."""

    def make(key: str, content: int = 0, size: tuple[int, int] = (8, 6), orientation: int = 1) -> None:
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        Image.new("L", size, content).save(file, "JPEG", exif=exif)

    return make
