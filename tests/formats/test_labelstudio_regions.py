import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.formats.labelstudio_regions import Region, region_of

SIZE = (1000.0, 500.0)
ITEM = {"original_width": 1000, "original_height": 500, "image_rotation": 0}


def rectangle(rotation, item=ITEM):
    """20 % 20 % and 30 % x 20 %: of 1000 x 500 pixels, (200, 100) and 300 x 100."""
    value = {"x": 20, "y": 20, "width": 30, "height": 20, "rotation": rotation}
    return region_of("rectanglelabels", item, value)


@pytest.mark.parametrize(
    ("rotation", "box"),
    [
        (0, (0.2, 0.2, 0.5, 0.4)),
        # (200, 100) stays; the 300 to the right go down, the 100 down go left: x 100 to 200, y 100 to 400. The
        # percentages of the sides do not stay: 30 % of the width are 60 % of the height.
        (90, (0.1, 0.2, 0.2, 0.8)),
        (180, (-0.1, 0.0, 0.2, 0.2)),
        (-90, (0.2, -0.4, 0.3, 0.2)),
        (360, (0.2, 0.2, 0.5, 0.4)),
    ],
)
def test_a_rectangle_turns_about_its_top_left_corner(rotation, box):
    place = rectangle(rotation)
    np.testing.assert_allclose(place.box, box, atol=1e-12)
    assert place.size == SIZE
    assert place.meaning == (", with its bounding box" if rotation else ", with its box")


@given(*[st.floats(0, 100)] * 2, *[st.floats(1, 60)] * 2, st.floats(-400, 400), st.tuples(*[st.integers(1, 4000)] * 2))
def test_rectangles_agree_with_corners_turned_in_pixels(x, y, w, h, rotation, size):
    item = {"original_width": size[0], "original_height": size[1]}
    value = {"x": x, "y": y, "width": w, "height": h, "rotation": rotation}
    a = math.radians(rotation)
    corners = np.array([[0, 0], [w, 0], [w, h], [0, h]]) / 100 * size
    turned = corners @ np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    expected = (turned + np.array([x, y]) / 100 * size) / size
    got = region_of("rectanglelabels", item, value).box
    np.testing.assert_allclose(got, [*expected.min(0), *expected.max(0)], rtol=1e-9, atol=1e-9)


@given(*[st.floats(1, 60)] * 2, st.floats(-400, 400))
def test_ellipses_agree_with_many_points_of_them(rx, ry, rotation):
    """4,000 points of an outline miss its extremes by less than (pi / 4000)^2 / 2 of the larger half axis."""
    value = {"x": 50, "y": 40, "radiusX": rx, "radiusY": ry, "rotation": rotation}
    a, t = math.radians(rotation), np.linspace(0, 2 * np.pi, 4001)
    x, y = rx / 100 * SIZE[0] * np.cos(t), ry / 100 * SIZE[1] * np.sin(t)
    across, down = x * math.cos(a) - y * math.sin(a), x * math.sin(a) + y * math.cos(a)
    points = np.stack([0.5 + across / SIZE[0], 0.4 + down / SIZE[1]], 1)
    got = region_of("ellipselabels", ITEM, value).box
    np.testing.assert_allclose(got, [*points.min(0), *points.max(0)], atol=1e-5)


def test_points_polygons_and_no_place():
    assert region_of("keypointlabels", ITEM, {"x": 50, "y": 25, "width": 1}) == Region(
        point=(0.5, 0.25), size=SIZE, meaning=", with its point"
    )
    assert region_of("keypointlabels", ITEM, {"x": 50, "y": 25, "width": 2, "height": 2}).point == (0.5, 0.25)
    assert region_of("keypointlabels", ITEM, {"keypointlabels": ["a"]}) == Region()
    assert region_of("polygonlabels", ITEM, {"points": [[50, 25], [75, 50], [60, 75]]}).box == (0.5, 0.25, 0.75, 0.75)
    assert region_of("choices", ITEM, {"choices": ["a"]}) == Region()


@pytest.mark.parametrize(
    ("item", "value", "why"),
    [
        (
            ITEM | {"image_rotation": 90},
            {"x": 1, "y": 1, "width": 1, "height": 1},
            "its photo was rotated by 90 degrees in Label Studio, which is not supported",
        ),
        (
            {},
            {"x": 1, "y": 1, "width": 1, "height": 1, "rotation": 3},
            "it is rotated, and original_width and original_height are not given",
        ),
        (
            ITEM,
            {"format": "rle", "x": 1, "y": 1},
            "its brush mask cannot be read: draw a rectangle, polygon or keypoint to locate it",
        ),
    ],
)
def test_places_that_are_not_read(item, value, why):
    assert region_of("labels", item, value) == Region(unread=why, meaning=", its region is not read")


def test_a_size_is_not_needed_for_what_is_not_turned():
    assert rectangle(0, {}) == Region(box=(0.2, 0.2, 0.5, 0.4), meaning=", with its box")
    assert rectangle(0, {"original_width": 0, "original_height": "x"}).size is None


@pytest.mark.parametrize(
    "value",
    [
        {"points": []},
        {"points": "a"},
        {"points": [[1, 2], [3]]},
        {"points": [[1, 2], ["a", 3]]},
        {"x": 1, "y": 1, "width": "a", "height": 1},
        {"x": 1, "y": None, "width": 1, "height": 1},
        {"x": 1, "y": 1, "width": 1, "height": 10**400},
        {"x": 1, "y": 1, "width": 1, "height": 1, "rotation": float("inf")},
        {"x": 1, "y": 1, "radiusX": 1},
    ],
)
def test_broken_numbers_are_not_numbers(value):
    """So that the reader says so; none of them is taken for something else."""
    box = region_of("labels", ITEM, value).box
    assert np.isnan(box).any()


def test_an_ellipse_of_a_negative_radius_is_none():
    value = {"x": 50, "y": 40, "radiusX": -10, "radiusY": 5, "rotation": 0}
    assert np.isnan(region_of("ellipselabels", ITEM, value).box).all()
