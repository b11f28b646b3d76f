"""JPEGs without their last bytes are read if every pixel is there."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.errors import DataError
from fewtags.photos.decode import open_photo
from fewtags.photos.scan import Trait, scan


def _jpeg(seed: int, progressive: bool) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 255, (40, 56, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "JPEG", progressive=progressive)
    return stream.getvalue()


def _pixels(path: Path) -> np.ndarray:
    with open_photo(path) as photo:
        return photo.read()


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("tail", ["-1", "-2", "zeros", "newline"])
def test_all_pixels_are_there(tmp_path: Path, progressive: bool, tail: str) -> None:
    for seed in range(8):
        whole = _jpeg(seed, progressive)
        cut = {"-1": whole[:-1], "-2": whole[:-2], "zeros": whole[:-2] + bytes(200), "newline": whole[:-2] + b"\r\n"}[
            tail
        ]
        (tmp_path / "whole.jpg").write_bytes(whole)
        (tmp_path / "cut.jpg").write_bytes(cut)
        assert np.array_equal(_pixels(tmp_path / "cut.jpg"), _pixels(tmp_path / "whole.jpg"))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("lost", [6, 40, 400])
def test_pixels_are_missing(tmp_path: Path, progressive: bool, lost: int) -> None:
    for seed in range(8):
        (tmp_path / "cut.jpg").write_bytes(_jpeg(seed, progressive)[:-lost])
        with pytest.raises(DataError, match="truncated"):
            _pixels(tmp_path / "cut.jpg")


def test_damaged_exif_beside_the_missing_end(tmp_path: Path) -> None:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8)
    Image.fromarray(noise).save(
        stream, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05"
    )  # five entries, and none is there
    (tmp_path / "whole.jpg").write_bytes(stream.getvalue())
    (tmp_path / "cut.jpg").write_bytes(stream.getvalue()[:-2])
    assert np.array_equal(_pixels(tmp_path / "cut.jpg"), _pixels(tmp_path / "whole.jpg"))


def test_check_notes_it(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(_jpeg(0, False)[:-2])
    seen = scan([str(tmp_path / "cut.jpg")])
    assert not seen.unusable
    assert seen.traits[0] & Trait.UNENDED
