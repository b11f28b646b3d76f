"""Headers, traits and decodability of made-up photo files."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.errors import DataError
from fewtags.photos.decode import read_image
from fewtags.photos.scan import Trait, scan


def _pixels(height: int = 60, width: int = 90) -> np.ndarray:
    walk = np.random.default_rng(0).normal(0, 9, (height, width, 3)).cumsum(1) + 128
    return walk.clip(0, 255).astype(np.uint8)


def _encoded(kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(_pixels()).save(buffer, kind, **options)
    return buffer.getvalue()


def _rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _write_traits(folder: Path) -> dict[str, Trait]:
    """A file of each kind; the traits each should have."""
    photo = Image.fromarray(_pixels())
    photo.save(folder / "plain.jpg")
    photo.save(folder / "turned.jpg", exif=_rotated())
    Image.fromarray(_pixels()[:, :, 0].astype(np.uint16) * 257).save(folder / "deep.png")
    photo.convert("CMYK").save(folder / "print.jpg")
    photo.convert("P").save(folder / "palette.png")
    photo.convert("RGBA").save(folder / "alpha.png")
    photo.save(folder / "moving.webp", save_all=True, append_images=[photo.rotate(90)])
    photo.save(folder / "really_png.jpg", "PNG")
    return {
        "plain.jpg": Trait(0),
        "turned.jpg": Trait.ROTATED,
        "deep.png": Trait.DEEP,
        "print.jpg": Trait.CMYK,
        "palette.png": Trait.PALETTE,
        "alpha.png": Trait.ALPHA,
        "moving.webp": Trait.ANIMATED,
        "really_png.jpg": Trait.MISNAMED,
    }


@pytest.mark.parametrize("decode", [False, True])
def test_traits_and_displayed_sizes(tmp_path: Path, decode: bool) -> None:
    expected = _write_traits(tmp_path)
    seen = scan([str(tmp_path / name) for name in expected], decode=decode)
    assert {name: Trait(t) for name, t in zip(expected, seen.traits.tolist(), strict=True)} == expected
    # Orientation 6 turns the 90 x 60 photo by a quarter: 60 wide, 90 high.
    assert list(zip(seen.width.tolist(), seen.height.tolist(), strict=True)) == [(90, 60), (60, 90)] + [(90, 60)] * 6
    assert not seen.unusable


def test_missing_and_unreadable_files_have_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(_encoded("JPEG")[:-400])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "page.jpg").write_text("<!DOCTYPE html>")
    paths = [str(tmp_path / name) for name in ("cut.jpg", "empty.png", "page.jpg", "gone.jpg")]
    seen = scan(paths)
    assert seen.missing == {3}
    assert seen.unusable == {0, 1, 2, 3}
    assert seen.unreadable[0].startswith("truncated after ")
    assert seen.unreadable[0].endswith("% of the image; re-export or remove the file")
    assert seen.unreadable[1] == "is empty (0 bytes); copy it again, or remove it"
    assert seen.unreadable[2] == "is a web page or other markup, not a photo; download it again, or remove it"
    # Headers alone do not show that the end is missing.
    assert scan(paths, decode=False).unusable == {1, 2, 3}
    assert (seen.width.tolist(), seen.height.tolist()) == ([90, 0, 0, 0], [60, 0, 0, 0])


def test_a_name_that_no_file_can_have_is_missing() -> None:
    assert scan(["a\0.jpg"]).missing == {0}


def test_the_pixel_limit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(_encoded("PNG"))
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", str(90 * 60 - 1))
    assert list(scan([str(tmp_path / "a.png")], decode=False).unreadable) == [0]
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", str(90 * 60))
    assert not scan([str(tmp_path / "a.png")]).unreadable


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {})],
)
def test_the_small_decode_finds_exactly_what_the_full_decode_finds(tmp_path: Path, kind: str, options: dict) -> None:
    """Cut the file at 24 places, the last two bytes and none among them."""
    content = _encoded(kind, **options)
    cuts = [
        *np.linspace(30, len(content) - 3, 21).astype(int).tolist(),
        len(content) - 2,
        len(content) - 1,
        len(content),
    ]
    paths = [str(tmp_path / f"{cut}") for cut in cuts]
    for path, cut in zip(paths, cuts, strict=True):
        Path(path).write_bytes(content[:cut])
    unreadable = set()
    for n, path in enumerate(paths):
        try:
            read_image(path)
        except DataError:
            unreadable.add(n)
    assert scan(paths).unreadable.keys() == unreadable
    assert 15 < len(unreadable) < 24


def test_progress_counts_to_the_end_and_threads_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_encoded("PNG"))
    paths = [str(tmp_path / ("a.png" if n % 3 else "gone.png")) for n in range(130)]
    calls: list[tuple[int, int]] = []
    one, four = scan(paths, threads=1, progress=lambda *c: calls.append(c)), scan(paths, threads=4)
    assert calls == [(64, 130), (128, 130), (130, 130)]
    assert one.missing == four.missing == set(range(0, 130, 3))
    assert np.array_equal(one.width, four.width)


def test_no_files_at_all() -> None:
    seen = scan([])
    assert (len(seen.width), seen.unusable) == (0, set())
