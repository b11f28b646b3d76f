import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps

from fewtags.photos.orientation import boxes_to_displayed, orientation_view, swaps_axes

# Where the displayed top-left and top-right corners are stored, by the definition of the tag: "row 0 is the visual ...,
# column 0 is the visual ..." (Exif 2.32, 4.6.4 A). For 6, row 0 is at the right and column 0 at the top: the displayed
# top right is row 0, column 0, the stored (0, 0); the displayed top left is the last row, column 0, the stored (0, 1).
CORNERS = {
    1: ((0, 0), (1, 0)),
    2: ((1, 0), (0, 0)),
    3: ((1, 1), (0, 1)),
    4: ((0, 1), (1, 1)),
    5: ((0, 0), (0, 1)),
    6: ((0, 1), (0, 0)),
    7: ((1, 1), (1, 0)),
    8: ((1, 0), (1, 1)),
}


@pytest.mark.parametrize(("orientation", "stored"), CORNERS.items())
def test_corners_are_where_the_standard_puts_them(orientation, stored):
    displayed = np.array([[0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(orientation_view(orientation).to_image(displayed), stored)


# The stored box x 0.1..0.3, y 0.2..0.6, turned by hand: mirrored x is 0.7..0.9, mirrored y is 0.4..0.8.
BOXES = {
    1: (0.1, 0.2, 0.3, 0.6),
    2: (0.7, 0.2, 0.9, 0.6),
    3: (0.7, 0.4, 0.9, 0.8),
    4: (0.1, 0.4, 0.3, 0.8),
    5: (0.2, 0.1, 0.6, 0.3),
    6: (0.4, 0.1, 0.8, 0.3),
    7: (0.4, 0.7, 0.8, 0.9),
    8: (0.2, 0.7, 0.6, 0.9),
}


@pytest.mark.parametrize(("orientation", "displayed"), BOXES.items())
def test_boxes_by_hand(orientation, displayed):
    stored = np.array([[0.1, 0.2, 0.3, 0.6]])
    np.testing.assert_allclose(boxes_to_displayed(stored, orientation), [displayed], atol=1e-12)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_follow_the_pixels_that_pillow_turns(orientation):
    """Paint a box, let Pillow apply the tag, and find the paint again."""
    pixels = np.zeros((30, 20), np.uint8)
    pixels[3:9, 2:12] = 255
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    rows, columns = np.nonzero(turned)
    height, width = turned.shape
    painted = [columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height]
    got = boxes_to_displayed(np.array([[2 / 20, 3 / 30, 12 / 20, 9 / 30]]), orientation)
    np.testing.assert_allclose(got, [painted], atol=1e-12)
    assert swaps_axes(orientation) == (turned.shape == (20, 30))


@given(orientation=st.integers(1, 8), x=st.floats(0, 1), y=st.floats(0, 1))
def test_there_and_back(orientation, x, y):
    view = orientation_view(orientation)
    there = view.to_image(np.array([[x, y]]))
    assert ((there >= 0) & (there <= 1)).all()
    np.testing.assert_allclose(view.to_crop(there), [[x, y]], atol=1e-12)


@pytest.mark.parametrize("nonsense", [0, 9, -1, 65535])
def test_values_out_of_range_mean_as_stored(nonsense):
    assert orientation_view(nonsense) == orientation_view(1)
    assert not swaps_axes(nonsense)
