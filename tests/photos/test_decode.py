"""Photo files -> RGB arrays: the displayed frame, boxes and sizes, and every format."""

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import ORIENTATION, colours, error_of, png, png_chunk, save, with_orientation
from PIL import Image, ImageOps, features

from fewtags.geometry import View
from fewtags.photos.decode import EXTENSIONS, ImageInfo, open_photo, probe, read_image

# The displayed frame


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif", "b.tif"])
def test_exif_orientation_is_applied(tmp_path, name, orientation):
    """Pillow's own `exif_transpose` says what is displayed; b.tif goes through libtiff, a.tif does not."""
    options = {"compression": "tiff_lzw"} if name == "b.tif" else {}
    path = save(tmp_path / name, colours(), exif=with_orientation(orientation), **options)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(read_image(path), expected)
    info = probe(path)
    assert (info.height, info.width) == expected.shape[:2]
    assert (info.stored, info.orientation) == ((40, 24), orientation)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_a_box_and_size_mean_the_displayed_frame(tmp_path, name, orientation):
    """The box of the turned file equals the box of the same photo stored upright."""
    turned = save(tmp_path / name, colours(), exif=with_orientation(orientation))
    upright = save(tmp_path / f"upright-{name}", read_image(turned))
    box = (0.1, 0.35, 0.6, 0.9)
    np.testing.assert_allclose(
        read_image(turned, box=box, size=(9, 7)).astype(int), read_image(upright, box=box, size=(9, 7)), atol=1
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_exif_of_a_png_may_stand_before_or_behind_the_pixels(tmp_path, place):
    exif = png_chunk(b"eXIf", with_orientation(6).tobytes()[6:])
    data = png(2, 1, 8, 0, [b"\x01\x02"], exif if place == "before" else b"")
    path = tmp_path / "a.png"
    path.write_bytes(data if place == "before" else data[:-12] + exif + data[-12:])
    assert (probe(path).width, probe(path).height, probe(path).orientation) == (1, 2, 6)
    assert read_image(path)[:, 0, 0].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.tif", "a.bmp", "a.ppm"])
def test_probing_reads_the_header_only(tmp_path, name):
    """Most of the pixels are missing. Reading finds that; probing does not look."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / name, noise)
    if name == "a.tif":
        path.write_bytes(path.read_bytes().replace(noise.tobytes(), b""))
    else:
        path.write_bytes(path.read_bytes()[: 3 * path.stat().st_size // 4])
    assert (probe(path).width, probe(path).height) == (64, 64)
    assert error_of(path)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_orientations_that_do_not_exist_mean_as_stored(tmp_path, value):
    path = save(tmp_path / "a.png", colours(), exif=with_orientation(value))
    assert probe(path).orientation == 1
    np.testing.assert_array_equal(read_image(path), colours())


@pytest.mark.parametrize("cut", [12, 20])
def test_a_damaged_exif_block_does_not_spoil_the_photo(tmp_path, cut):
    """Pillow would warn (an error in these tests) or raise."""
    exif = with_orientation(6).tobytes()[:cut]
    path = save(tmp_path / "a.jpg", colours(), exif=exif)
    assert probe(path).orientation == 1
    assert read_image(path).shape == (24, 40, 3)


# Boxes and sizes


def test_whole_photo_is_returned_pixel_by_pixel(tmp_path):
    array = read_image(save(tmp_path / "a.png", colours()))
    np.testing.assert_array_equal(array, colours())
    assert array.dtype == np.uint8
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_aligned_box_is_a_crop(tmp_path):
    """Of 40 x 24 pixels, x .25...75 and y .5..1 are columns 10 to 30 and rows 12 to 24."""
    path = save(tmp_path / "a.png", colours())
    np.testing.assert_array_equal(read_image(path, box=(0.25, 0.5, 0.75, 1.0)), colours()[12:24, 10:30])


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 3), (24, 40), (50, 90)])
@pytest.mark.parametrize("box", [(0.0, 0.0, 1.0, 1.0), (0.12, 0.3, 0.77, 0.95), (0.4, 0.0, 0.45, 0.1)])
def test_boxes_follow_the_plain_formula(tmp_path, box, size):
    """Bilinear resampling by its definition: a triangle filter as wide as the larger of a source and a target pixel."""
    path = save(tmp_path / "a.png", colours())
    x, y = (box[0] * 40, box[2] * 40), (box[1] * 24, box[3] * 24)
    across, down = triangle_weights(40, *x, size[1]), triangle_weights(24, *y, size[0])
    expected = np.einsum("ij,jkc,lk->ilc", down, colours().astype(float), across)
    np.testing.assert_allclose(read_image(path, box=box, size=size), expected, atol=1.01)  # 8-bit in between


def triangle_weights(source, start, stop, target):
    """[target, source] weights for pixels whose centres are at i + .5, between two positions of the source."""
    scale = (stop - start) / target
    centres = start + (np.arange(target) + 0.5) * scale
    distance = np.abs((np.arange(source) + 0.5)[None] - centres[:, None]) / max(scale, 1.0)
    weights = np.maximum(0, 1 - distance)
    return weights / weights.sum(1, keepdims=True)


@given(
    st.integers(1, 8),
    st.tuples(st.floats(0, 0.6), st.floats(0, 0.6), st.floats(0.1, 0.4), st.floats(0.1, 0.4)),
    st.booleans(),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_a_ramp_is_seen_where_the_view_says(tmp_path_factory, orientation, box, flip, size):
    """Red is 255 x, green 255 y in the displayed frame: each pixel of the result tells where it came from."""
    x0, y0, w, h = box
    path = tmp_path_factory.getbasetemp() / f"ramp-{orientation}.png"
    if not path.exists():
        x, y = np.meshgrid((np.arange(200) + 0.5) / 200, (np.arange(120) + 0.5) / 120)
        displayed = Image.fromarray(np.rint(np.stack([255 * x, 255 * y, 0 * x], -1)).astype(np.uint8))
        undo = {6: 8, 8: 6}.get(orientation, orientation)  # the other orientations are their own inverse
        stored = ImageOps.exif_transpose(_tagged(displayed, undo))
        stored.save(path, exif=with_orientation(orientation))
    view = View.crop(x0, y0, x0 + w, y0 + h)
    view = view.then(View.flip()) if flip else view
    with open_photo(path) as photo:
        assert (photo.info.width, photo.info.height) == (200, 120)
        seen = photo.read(view, size)
    rows, columns = np.mgrid[: size[0], : size[1]]
    where = view.to_image(np.stack([(columns + 0.5) / size[1], (rows + 0.5) / size[0]], -1).reshape(-1, 2))
    # The ramp bends at the edge of the photo, by at most half the width of the filter.
    blur = np.array([w / size[1] + 1 / 200, h / size[0] + 1 / 120])
    inner = (where > blur).all(1) & (where < 1 - blur).all(1)
    np.testing.assert_allclose(seen.reshape(-1, 3)[inner][:, :2], 255 * where[inner], atol=2)


def _tagged(image, orientation):
    image.getexif()[ORIENTATION] = orientation
    return image


def test_quarter_turn_view(tmp_path):
    """x = v, y = 1 - u: the crop's left edge is the photo's bottom. The photo turned clockwise."""
    path = save(tmp_path / "a.png", colours())
    with open_photo(path) as photo:
        turned = photo.read(View((0.0, 1.0, 0.0, -1.0, 0.0, 1.0)))
    np.testing.assert_array_equal(turned, np.rot90(colours(), -1))


@pytest.mark.parametrize("size", [(60, 60), (30, 50)])
def test_draft_decoding_looks_the_same(tmp_path, size):
    """A JPEG decoded at a fraction of its size differs from one decoded in full by rounding, not by place."""
    rng = np.random.default_rng(0)
    rough = rng.integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(rough).resize((603, 361), Image.Resampling.BILINEAR).save(tmp_path / "a.jpg", quality=95)
    full = save(tmp_path / "a.bmp", read_image(tmp_path / "a.jpg"))
    quick = read_image(tmp_path / "a.jpg", box=(0.05, 0.1, 0.95, 0.85), size=size).astype(int)
    difference = np.abs(quick - read_image(full, box=(0.05, 0.1, 0.95, 0.85), size=size))
    assert 0 < difference.max() <= 6
    assert difference.mean() < 0.6
    shifted = np.abs(quick - read_image(full, box=(0.052, 0.1, 0.952, 0.85), size=size))
    assert shifted.mean() > 1.5 * difference.mean(), "a shift by 1.2 of 603 pixels would be seen"


def test_draft_decoding_happens(tmp_path):
    path = save(tmp_path / "a.jpg", colours(800, 800))
    with open_photo(path) as photo:
        photo.read(size=(100, 100))
        assert photo._image.size == (200, 200), (
            "a quarter: the next smaller one would leave less than 1.5 pixels for one"
        )


def test_a_photo_is_read_once(tmp_path):
    """A second, larger view would be made of the pixels that were enough for the first one."""
    with open_photo(save(tmp_path / "a.jpg", colours(800, 800))) as photo:
        photo.read(size=(100, 100))
        with pytest.raises(AssertionError, match="a photo is read once"):
            photo.read(size=(400, 400))


# Formats


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_animations_give_their_first_frame(tmp_path, name):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
    path = tmp_path / name
    options = {"lossless": True} if name == "a.webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(read_image(path), np.asarray(frames[0]))
    assert probe(path).animated
    frames[1].save(path, **options)
    assert not probe(path).animated


@pytest.mark.parametrize(
    "extension", sorted(set(EXTENSIONS) - {".heic", ".heif", ".hif", ".pbm", ".pgm", ".pfm", ".avif"})
)
def test_every_extension(tmp_path, extension):
    path = tmp_path / f"a{extension.upper()}"
    Image.fromarray(colours()).save(path, format=EXTENSIONS[extension])
    info = probe(path)
    assert (info.format, info.misnamed) == (EXTENSIONS[extension], False)
    assert np.abs(read_image(path).astype(int) - colours()).mean() < 8


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot write AVIF")
@pytest.mark.parametrize("orientation", [1, 6])
def test_avif(tmp_path, orientation):
    path = tmp_path / "a.avif"
    Image.fromarray(colours()).save(path, quality=90, exif=with_orientation(orientation))
    expected = colours() if orientation == 1 else np.rot90(colours(), -1)
    assert np.abs(read_image(path).astype(int) - expected).mean() < 4
    assert probe(path).format == "AVIF"


@pytest.mark.parametrize("orientation", [1, 6])
def test_heif(tmp_path, orientation):
    pillow_heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "IMG_1.HEIC"
    heif = pillow_heif.from_pillow(Image.fromarray(colours()))
    heif.info["exif"] = with_orientation(orientation).tobytes()
    heif.save(path, quality=95)
    expected = colours() if orientation == 1 else np.rot90(colours(), -1)
    assert np.abs(read_image(path).astype(int) - expected).mean() < 4
    assert (probe(path).width, probe(path).height, probe(path).format) == (*expected.shape[1::-1], "HEIF")


def test_heif_without_pillow_heif(tmp_path, monkeypatch):
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert error_of(path) == (
        f"{path}: is a HEIF photo, which needs pillow-heif; pip install 'fewtags[heif]', or export it as JPEG."
    )


def test_content_decides_not_the_extension(tmp_path):
    path = tmp_path / "a.jpg"
    Image.fromarray(colours()).save(path, format="PNG")
    np.testing.assert_array_equal(read_image(path), colours())
    assert (probe(path).format, probe(path).misnamed) == ("PNG", True)
    other = path.rename(tmp_path / "a.photo")
    assert not probe(other).misnamed, "an extension that belongs to no format says nothing"


def test_info(tmp_path):
    path = save(tmp_path / "a.jpg", colours(), exif=with_orientation(6))
    info = probe(path)
    assert info == ImageInfo(
        width=24,
        height=40,
        stored=(40, 24),
        orientation=6,
        format="JPEG",
        mode="RGB",
        bits=8,
        animated=False,
        misnamed=False,
    )
    assert info.aspect == 0.6


@pytest.mark.parametrize(
    "name", ["žluťoučký kůň 🐎.png", "with space, comma;.png", "new\nline.png", "日本語" * 20 + ".png"]
)
def test_odd_paths(tmp_path, name):
    path = save(tmp_path / name, colours())
    np.testing.assert_array_equal(read_image(path), colours())
    np.testing.assert_array_equal(read_image(str(path)), colours())


def test_deep_paths(tmp_path):
    folder = tmp_path
    for _ in range(10):
        folder = folder / ("d" * 100)
    folder.mkdir(parents=True)
    np.testing.assert_array_equal(read_image(save(folder / "a.png", colours())), colours())


# Threads


def test_threads_read_the_same_and_leave_warnings_as_they_were(tmp_path):
    damaged = save(tmp_path / "a.jpg", colours(), exif=with_orientation(6).tobytes()[:20])
    turned = save(tmp_path / "b.jpg", colours(), exif=with_orientation(6))
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(read_image, [damaged, turned] * 40))
    assert warnings.filters == before
    for array in arrays[::2]:
        np.testing.assert_array_equal(array, arrays[0])
    for array in arrays[1::2]:
        np.testing.assert_array_equal(array, np.rot90(arrays[0], -1))
