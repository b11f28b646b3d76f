"""Photo files -> RGB arrays: what every odd file is read as, and what is said about files that cannot be read."""

import io
import os
import re
import struct
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps, features

from fewtags.data.images import EXTENSIONS, ImageInfo, open_photo, probe, read_image
from fewtags.errors import DataError
from fewtags.geometry import View

ORIENTATION = 274


def colours(height=24, width=40):
    """A smooth colour picture without symmetry: red grows to the right, green down, blue along the diagonal."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([x, y, (x + 2 * y) / 3], -1).astype(np.uint8)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def with_orientation(value):
    exif = Image.Exif()
    exif[ORIENTATION] = value
    return exif


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour_type, rows, extra=b""):
    """A PNG written by hand, for what Pillow cannot write."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + header + extra + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")


def error_of(path, **options):
    with pytest.raises(DataError) as caught:
        read_image(path, **options)
    return str(caught.value)


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


# Colour modes


def test_grey_is_repeated(tmp_path):
    grey = colours()[:, :, 0]
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.png", grey)), np.stack([grey] * 3, -1))
    assert read_image(save(tmp_path / "b.png", grey), size=(6, 10)).shape == (6, 10, 3)


def test_one_bit(tmp_path):
    bits = colours()[:, :, 0] > 127
    path = tmp_path / "a.png"
    Image.fromarray(bits).save(path)
    np.testing.assert_array_equal(read_image(path), np.stack([bits * np.uint8(255)] * 3, -1))
    assert (probe(path).mode, probe(path).bits) == ("1", 1)


def test_palette(tmp_path):
    path = tmp_path / "a.png"
    image = Image.fromarray(colours()).quantize(16)
    image.save(path)
    np.testing.assert_array_equal(read_image(path), np.asarray(image.convert("RGB")))
    assert (probe(path).mode, probe(path).bits) == ("P", 4)


@pytest.mark.parametrize("transparency", [3, bytes([255] * 3 + [0] + [255] * 12)])
def test_transparent_palette_entries_become_white(tmp_path, transparency):
    path = tmp_path / "a.png"
    image = Image.fromarray(colours()).quantize(16)
    image.save(path, transparency=transparency)
    expected = np.asarray(image.convert("RGB")).copy()
    expected[np.asarray(image) == 3] = 255
    np.testing.assert_array_equal(read_image(path), expected)


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif"])
def test_alpha_is_put_on_white(tmp_path, name):
    """alpha c + (1 - alpha) 255, with whatever colour hides under full transparency."""
    alpha = np.broadcast_to(np.linspace(0, 255, 40).astype(np.uint8), (24, 40))
    options = {"lossless": True, "exact": True} if name == "a.webp" else {}
    path = save(tmp_path / name, np.dstack([colours(), alpha]), **options)
    share = alpha[:, :, None] / 255
    np.testing.assert_allclose(read_image(path), share * colours() + (1 - share) * 255, atol=1)


def test_alpha_edges_do_not_bleed(tmp_path):
    """A red disc on transparent black: reduced, it is red to white, never dark."""
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[16:48, 16:48] = (255, 0, 0, 255)
    assert read_image(save(tmp_path / "a.png", pixels), size=(7, 7))[:, :, 0].min() == 255


def test_grey_with_alpha(tmp_path):
    path = tmp_path / "a.png"
    grey, alpha = np.uint8([[0, 0, 100]]), np.uint8([[255, 0, 51]])
    Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]).save(path)
    assert read_image(path)[0, :, 0].tolist() == [0, 255, 224]  # 100 x .2 + 255 x .8


def test_transparent_colour_of_rgb(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.uint8([[[1, 2, 3], [4, 5, 6]]])).save(path, transparency=(4, 5, 6))
    assert read_image(path).tolist() == [[[1, 2, 3], [255, 255, 255]]]


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_cmyk(tmp_path, name):
    """No ink is white, full black is black, cyan takes red away."""
    inks = np.zeros((16, 48, 4), np.uint8)
    inks[:, 16:32, 3] = 255
    inks[:, 32:, 0] = 255
    path = tmp_path / name
    Image.fromarray(inks, "CMYK").save(path)
    np.testing.assert_allclose(read_image(path)[8, [4, 24, 44]], [[255] * 3, [0] * 3, [0, 255, 255]], atol=3)
    assert probe(path).mode == "CMYK"


def test_adobe_ycck_jpeg(tmp_path):
    """Photoshop writes CMYK JPEGs as YCCK with an Adobe marker whose last byte is 2, inks inverted.

    A plain CMYK JPEG whose channels hold YCC of the inks and K becomes one by that byte.
    """
    inks = Image.new("CMYK", (32, 32), (0, 255, 255, 0))  # red
    cyan, magenta, yellow, black = inks.split()
    # libjpeg takes C, M, Y for 255 - R, G, B, and Adobe stores 255 - ink: the inks play R, G, B. Pillow's writer
    # inverts.
    y, cb, cr = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    buffer = io.BytesIO()
    Image.merge("CMYK", [ImageOps.invert(b) for b in (y, cb, cr)] + [black]).save(buffer, "JPEG", quality=95)
    data = bytearray(buffer.getvalue())
    marker = data.index(b"Adobe")
    assert data[marker + 11] == 0
    data[marker + 11] = 2
    path = tmp_path / "ycck.jpg"
    path.write_bytes(data)
    np.testing.assert_allclose(read_image(path)[16, 16], [255, 0, 0], atol=3)


# Deep pixels


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bit_grey_is_scaled(tmp_path, name):
    """Pillow's own conversion to RGB makes everything above 255 white."""
    values = np.array([[0, 128, 129, 257, 32768, 65020, 65535]], np.uint16)
    path = save(tmp_path / name, values)
    assert read_image(path)[0, :, 1].tolist() == [0, 0, 1, 1, 128, 253, 255]
    assert probe(path).bits == 16


def test_16_bit_big_endian_tiff(tmp_path):
    path = tmp_path / "a.tif"
    Image.frombytes("I;16B", (3, 1), struct.pack(">3H", 0, 32768, 65535)).save(path)
    assert read_image(path)[0, :, 0].tolist() == [0, 128, 255]


def test_16_bit_grey_png_with_a_transparent_value(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png(3, 1, 16, 0, [struct.pack(">3H", 0, 300, 65535)], png_chunk(b"tRNS", struct.pack(">H", 300))))
    assert read_image(path)[0, :, 0].tolist() == [0, 255, 255]


@pytest.mark.parametrize(("colour_type", "channels"), [(2, 3), (6, 4)])
def test_16_bit_rgb_png_is_scaled(tmp_path, colour_type, channels):
    path = tmp_path / "a.png"
    values = [0, 32768, 65535, 65535][:channels]
    path.write_bytes(png(1, 1, 16, colour_type, [struct.pack(f">{channels}H", *values)]))
    assert read_image(path).tolist() == [[[0, 128, 255]]]
    assert probe(path).bits == 16


def test_16_bit_grey_alpha_png(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png(2, 1, 16, 4, [struct.pack(">4H", 32768, 65535, 32768, 0)]))
    assert read_image(path)[0, :, 0].tolist() == [128, 255]


def tiff(width, pixels, *, bits, sample_format=1, photometric=1, samples=1):
    """A one-row little-endian TIFF written by hand."""
    tags = [
        (256, 4, 1, width),
        (257, 4, 1, 1),
        (258, 3, 1, bits),
        (259, 3, 1, 1),
        (262, 3, 1, photometric),
        (273, 4, 1, 0),
        (277, 3, 1, samples),
        (278, 4, 1, 1),
        (279, 4, 1, len(pixels)),
        (339, 3, 1, sample_format),
    ]
    offset = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", *tag[:3], offset if tag[0] == 273 else tag[3]) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + pixels


def test_16_bit_rgb_tiff_is_scaled(tmp_path):
    """Three BitsPerSample values do not fit into the tag itself, so they stand behind the directory."""
    path = tmp_path / "a.tif"
    header = struct.pack("<IH", 8, 9)
    bits_at = 8 + 2 + 12 * 9 + 4
    tags = [
        (256, 4, 1, 1),
        (257, 4, 1, 1),
        (258, 3, 3, bits_at),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, bits_at + 6),
    ]
    tags += [(277, 3, 1, 3), (278, 4, 1, 1), (279, 4, 1, 6)]
    body = b"".join(struct.pack("<HHII", *tag) for tag in tags) + struct.pack("<I", 0)
    path.write_bytes(b"II*\0" + header + body + struct.pack("<3H", 16, 16, 16) + struct.pack("<3H", 0, 32768, 65535))
    assert read_image(path).tolist() == [[[0, 128, 255]]]
    assert probe(path).bits == 16


def test_12_bit_tiff_is_scaled_by_its_own_range(tmp_path):
    """Two 12-bit samples in three bytes: 0xfff and 0x800."""
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(2, b"\xff\xf8\x00", bits=12))
    assert read_image(path)[0, :, 0].tolist() == [255, 128]
    assert probe(path).bits == 12


def test_float_tiff_in_0_to_1_is_scaled(tmp_path):
    path = save(tmp_path / "a.tif", np.array([[0.0, 0.5, 1.0]], np.float32))
    assert read_image(path)[0, :, 0].tolist() == [0, 128, 255]
    assert probe(path).bits == 32


@pytest.mark.parametrize(("high", "shown"), [(1.5, "1.5"), (np.nan, "nan"), (3000.0, "3000")])
def test_float_tiff_of_unknown_range_is_an_error(tmp_path, high, shown):
    path = save(tmp_path / "a.tif", np.array([[0.0, high]], np.float32))
    assert re.fullmatch(
        rf"{re.escape(str(path))}: float pixels must lie in 0\.\.1, but they go from .+ to {shown}; "
        r"rescale the file, or save it with 8 or 16 bits\.",
        error_of(path),
    )


def test_32_bit_and_signed_integers_are_an_error(tmp_path):
    path = tmp_path / "a.tif"
    Image.fromarray(np.array([[0, 70000]], np.int32)).save(path)
    assert error_of(path) == (
        f"{path}: 32-bit or signed integer pixels have no known range; save the file with 8 or 16 bits."
    )
    path.write_bytes(tiff(2, struct.pack("<2h", -5, 7), bits=16, sample_format=2))
    assert "signed integer pixels have no known range" in error_of(path)


def test_lab_tiff(tmp_path):
    path = tmp_path / "a.tif"
    lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    converted = ImageCms.applyTransform(Image.fromarray(np.uint8([[[200, 30, 60], [255, 255, 255]]])), lab)
    assert converted is not None
    converted.save(path)
    np.testing.assert_allclose(read_image(path)[0], [[200, 30, 60], [255, 255, 255]], atol=4)


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
    assert info == ImageInfo(24, 40, (40, 24), 6, "JPEG", "RGB", 8, animated=False, misnamed=False)
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
        rf"{re.escape(str(path))}: truncated after (\d+)% of the picture; re-export or remove the file\.",
        error_of(path),
    )
    assert found, error_of(path)
    assert 50 <= int(found[1]) <= 62


def test_truncated_png(tmp_path):
    noise = np.random.default_rng(0).integers(1, 256, (320, 64, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", noise)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert re.search(
        r"a\.png: truncated after (4\d|50)% of the picture; re-export or remove the file\.", error_of(path)
    )


def test_truncated_progressive_jpeg(tmp_path):
    """No row is finished before the whole file is read, so no share can be told."""
    path = save(tmp_path / "a.jpg", colours(200, 200), progressive=True)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert error_of(path) == f"{path}: truncated, its data end before the picture does; re-export or remove the file."


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
        "shrink the photo, or raise the limit if that is its size."
    )


def test_the_limit_is_per_call_and_counts_the_stored_pixels(tmp_path, monkeypatch):
    """Pillow's own limit, here 100 pixels, does not come into it, and is left alone."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    path = save(tmp_path / "a.jpg", colours(), exif=with_orientation(6))
    assert read_image(path, pixel_limit=960).shape == (40, 24, 3)
    assert "has 40 x 24 = 0.0 million pixels" in error_of(path, pixel_limit=959)
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
