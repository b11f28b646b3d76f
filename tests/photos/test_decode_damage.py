"""Photo files that cannot be read: what is said about them, word for word."""

import os
import re

import numpy as np
import pytest
from pictures import colours, error_of, png, save, with_orientation
from PIL import Image

from fewtags.errors import ConfigError, DataError
from fewtags.geometry import View
from fewtags.photos.decode import open_photo, probe, read_image
from fewtags.photos.in_memory import NamedImage, photo_in_memory

# Files that cannot be read: the exact words


def test_missing(tmp_path):
    path = tmp_path / "a.jpg"
    assert error_of(path) == f"{path}: no such file; check the path and the image folder."
    with pytest.raises(DataError, match="no such file"):
        probe(path)


def test_folder(tmp_path):
    assert error_of(tmp_path) == f"{tmp_path}: is a folder, not a photo; name the files in it."


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    assert error_of(tmp_path / "pipe.jpg").endswith("pipe.jpg: is not a regular file; copy the photo to one.")


def test_too_long_path(tmp_path):
    path = tmp_path / ("a" * 300 + ".jpg")
    assert error_of(path) == f"{path}: cannot be opened (File name too long); check the path and its permissions."


def test_no_path_at_all():
    assert error_of("a\0b.jpg") == r"'a\x00b.jpg': is not a path (embedded null byte); check the label file."


def test_undecodable_file_name_can_be_printed(tmp_path):
    message = error_of(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg"))
    assert message.endswith(r"caf\udce9.jpg: no such file; check the path and the image folder.")
    message.encode("utf-8")


def test_empty_file(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    assert error_of(path) == f"{path}: is empty (0 bytes); copy it again, or remove it."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello", r"is not a photo (its first bytes are b'hello'); remove it, or export it as JPEG or PNG."),
        (b"\n<!DOCTYPE html><p>404", "is a web page or other markup, not a photo; download it again, or remove it."),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "is a Git LFS pointer, not the photo itself; run `git lfs pull`.",
        ),
        (b"%PDF-1.7", "is a PDF, not a photo; export its pages as photos, or remove it."),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0",
            "is not a photo (its first bytes are b'%!PS-Ado'); remove it, or export it as JPEG or PNG.",
        ),
    ],
    ids=["text", "html", "lfs", "pdf", "eps"],
)
def test_not_a_photo(tmp_path, content, words):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    assert error_of(path) == f"{path}: {words}"


def test_truncated_jpeg_says_how_much_is_there(tmp_path):
    """Noise, so that bytes are spread evenly over rows: at 60 % of the bytes about 60 % of the rows are there."""
    noise = np.random.default_rng(0).integers(1, 256, (320, 64, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", noise, quality=90)
    data = path.read_bytes()
    path.write_bytes(data[: int(0.6 * len(data))])
    found = re.fullmatch(
        rf"{re.escape(str(path))}: truncated after (\d+)% of the image; re-export or remove the file\.",
        error_of(path),
    )
    assert found, error_of(path)
    assert 50 <= int(found[1]) <= 62


def test_truncated_png(tmp_path):
    noise = np.random.default_rng(0).integers(1, 256, (320, 64, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", noise)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert re.search(r"a\.png: truncated after (4\d|50)% of the image; re-export or remove the file\.", error_of(path))


def test_truncated_progressive_jpeg(tmp_path):
    """No row is finished before the whole file is read, so no share can be told."""
    path = save(tmp_path / "a.jpg", colours(200, 200), progressive=True)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert error_of(path) == f"{path}: truncated, its data end before the image does; re-export or remove the file."


@pytest.mark.parametrize("size", [None, (8, 8)])
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.webp", "a.tif", "a.bmp", "a.jp2", "a.ppm"])
def test_no_format_lets_a_truncated_file_pass(tmp_path, name, size):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / name, noise)
    data = path.read_bytes()
    for share in (0.02, 0.3, 0.9):
        path.write_bytes(data[: max(1, int(share * len(data)))])
        assert error_of(path, size=size).startswith(f"{path}: ")


def test_damaged_header(tmp_path):
    path = save(tmp_path / "a.png", colours())
    data = bytearray(path.read_bytes())
    data[24] = 77  # bits per sample, and with it the checksum
    path.write_bytes(data)
    message = (
        f"{path}: its PNG header is damaged or of an unknown kind (broken PNG file (bad header checksum in b'IHDR')); "
    )
    assert error_of(path) == message + "re-export or remove the file."


def test_damaged_pixels(tmp_path):
    path = save(tmp_path / "a.png", colours())
    data = bytearray(path.read_bytes())
    at = data.index(b"IDAT") + 4
    data[at : at + 8] = bytes(8)
    path.write_bytes(data)
    assert re.search(r"a\.png: cannot be decoded \(.+\); re-export or remove the file\.", error_of(path))


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_read_or_refused_and_nothing_else(tmp_path, seed):
    """Flipped bytes and cut ends, in every format: an array or a DataError, no other exception, no warning."""
    rng = np.random.default_rng(seed)
    shapes = set()
    for name in ("a.jpg", "b.png", "c.gif", "d.webp", "e.tif", "f.bmp", "g.jp2", "h.ppm"):
        data, refused = save(tmp_path / name, colours()).read_bytes(), []
        for _ in range(12):
            broken = bytearray(data[: rng.integers(1, len(data))] if rng.random() < 0.3 else data)
            for _ in range(rng.integers(1, 6)):
                broken[rng.integers(len(broken) if rng.random() < 0.5 else min(len(broken), 100))] = rng.integers(256)
            (tmp_path / name).write_bytes(broken)
            try:
                shapes.add(read_image(tmp_path / name, size=(5, 6)).shape)
            except DataError as error:
                refused.append(str(error))
        assert all(message.startswith(f"{tmp_path / name}: ") for message in refused)
    assert shapes == {(5, 6, 3)}


def test_decompression_bomb_is_refused_before_it_is_decoded(tmp_path):
    """65,000 x 65,000 pixels in a header of a file of a few bytes; 12 GB once decoded. Looking at it is harmless."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png(65000, 65000, 8, 2, []))
    assert probe(path).width == 65000
    assert error_of(path) == (
        f"{path}: has 65,000 x 65,000 = 4,225.0 million pixels, more than the limit of 100.0 million; "
        "shrink the photo, or set the environment variable FEWTAGS_PIXEL_LIMIT=4225000000 if that is its size."
    )


def test_the_environment_sets_the_pixel_limit(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(png(40, 24, 8, 2, []))
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "959")
    assert "more than the limit of 0.0 million" in error_of(path)
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "960")
    assert "more than the limit" not in error_of(path)
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "1e9")
    with pytest.raises(ConfigError, match=r"FEWTAGS_PIXEL_LIMIT='1e9': expected a number of pixels"):
        read_image(path)


def test_the_limit_counts_the_stored_pixels(tmp_path, monkeypatch):
    """Pillow's own limit, here 100 pixels, does not come into it, and is left alone."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    path = save(tmp_path / "a.jpg", colours(), exif=with_orientation(6))
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "960")
    assert read_image(path).shape == (40, 24, 3)
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "959")
    assert "has 40 x 24 = 0.0 million pixels" in error_of(path)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("box", [(-0.1, 0, 1, 1), (0, 0, 1.1, 1), (0.5, 0, 0.5, 1), (0, 0.2, 1, 0.2)])
def test_boxes_outside_the_photo_or_without_area(tmp_path, box):
    path = save(tmp_path / "a.png", colours())
    with pytest.raises(ValueError, match="a view must cover a part of the photo, not "):
        read_image(path, box=box)


def test_a_hair_outside_is_rounding(tmp_path):
    path = save(tmp_path / "a.jpg", colours(100, 100))
    nearly = read_image(path, box=(-1e-12, 0, 1 + 1e-12, 1 + 1e-12), size=(11, 13))
    np.testing.assert_array_equal(nearly, read_image(path, size=(11, 13)))


def test_rotated_views_are_refused(tmp_path):
    path = save(tmp_path / "a.png", colours())
    with (
        open_photo(path) as photo,
        pytest.raises(NotImplementedError, match="only axis-aligned views can be read, not"),
    ):
        photo.read(View((0.5, 0.1, 0.2, -0.1, 0.5, 0.3)))


def test_a_jpeg_that_ends_after_its_header_is_damaged(tmp_path):
    """A frame header, no scan, an end marker: Pillow opens it with nothing to decode."""
    path = tmp_path / "a.jpg"
    path.write_bytes(bytes.fromhex("ffd8ffc0000b080008000801011100ffd9"))
    with pytest.raises(DataError) as error:
        read_image(path)
    assert str(error.value) == f"{path}: has a JPEG header but no image data; re-export or remove the file."


def test_a_photo_is_read_once(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (64, 64)).save(path)
    with open_photo(path) as photo:
        photo.read()
        with pytest.raises(AssertionError, match="a photo is read once"):
            photo.read()


def test_damaged_exif_of_an_image_in_memory() -> None:
    image = Image.new("RGB", (8, 6), "red")
    image.info["exif"] = b"Exif\0\0MM\0*\0\0\0\x08\0\x05"  # five entries, and none is there
    assert photo_in_memory(NamedImage(image, "photo 0")).read().shape == (6, 8, 3)
