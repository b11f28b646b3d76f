"""Regions in another unit than the format has."""

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.formats.units import check_unit

BOXES = np.array([[0.1, 0.1, 0.5, 0.6], [0.2, 0.3, 0.9, 0.95]] * 4)


def check(corners, unit, size=640, where="a.json"):
    corners = np.asarray(corners, float)
    points = (corners[:, :2] == corners[:, 2:]).all(1)
    return check_unit(corners, points, np.full((len(corners), 2), float(size)), unit, where)


@pytest.mark.parametrize(
    ("corners", "unit", "size", "text"),
    [
        (BOXES, "pixels", 640, "within the first pixel.*look like fractions.*Multiply x by the width"),
        ([[0, 0, 1, 1]], "pixels", 640, "within the first pixel"),
        ([[0.5, 0.5, 0.5, 0.5]], "pixels", 640, "within the first pixel"),
        (BOXES * 100, "fractions", 1, "reach far beyond.*look like pixels or per cent"),
        (BOXES * 640, "fractions", 1, "reach far beyond.*Divide x by the width"),
        (BOXES / 100, "percent", 1, "first per cent.*look like fractions.*Multiply them by 100"),
        (BOXES * 6.4, "percent", 1, "reach far beyond"),
    ],
)
def test_another_unit_is_refused(corners, unit, size, text):
    with pytest.raises(DataError, match=text):
        check(corners, unit, size)


def test_a_csv_names_the_setting():
    with pytest.raises(DataError, match=r"data\.points"):
        check(BOXES, "pixels", where="a.csv")


@pytest.mark.parametrize(
    ("corners", "text"),
    [
        (BOXES * 100, "per cent of the photo"),
        ([*BOXES * 600, [0.1, 0.1, 0.5, 0.5]], "1 box is smaller than a pixel"),
        (BOXES * 3000, "reach far beyond"),
    ],
)
def test_doubts_are_warnings(corners, text):
    assert text in check(corners, "pixels")[0]


def test_what_is_right_passes():
    assert check(BOXES * 640, "pixels") == check(BOXES, "fractions", 1) == check(BOXES, "percent", 1) == ()
    assert check([[0, 0, 0, 0], [1, 0, 1, 0]], "pixels") == ()  # points at single pixels
    assert check(np.full((1, 4), np.nan), "pixels") == ()


@pytest.mark.parametrize("unit", ["pixels", "fractions"])
def test_numbers_in_another_order_are_a_warning(unit):
    """x0, y0, x1, y1 read as x, y, width, height: 5 of 8 boxes end beyond the photo, 2 of 8 are no reason to ask."""
    boxes = np.tile(BOXES[1], (8, 1))
    boxes[:5, 2:] = 1.12
    size = 640 if unit == "pixels" else 1
    (warning,) = check(boxes * size, unit, size)
    assert "5 of 8 boxes reach beyond their photo" in warning
    assert (
        "the numbers in the order of the format: corners, or a corner or a centre with a width and a height" in warning
    )
    boxes[:3] = BOXES[1]
    assert not check(boxes * size, unit, size)


def test_a_box_whose_corners_are_swapped_is_not_smaller_than_a_pixel():
    assert not check([[30, 40, 10, 20], [10, 20, 30, 40]], "pixels")
