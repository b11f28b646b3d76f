"""Photo files -> RGB arrays: grey, palettes, transparency, CMYK, and more than eight bits."""

import io
import re
import struct

import numpy as np
import pytest
from pictures import colours, error_of, png, png_chunk, save
from PIL import Image, ImageCms, ImageOps

from fewtags.photos.decode import probe, read_image

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
