"""Masks of COCO: run lengths, polygons, and points drawn in them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.formats.masks import MOST_PIXELS, draw_mask, draws, point_in_box, point_of, run_lengths


def compressed(runs):
    """The other direction, number by number: what is written is the difference to the one before the previous one."""
    text = ""
    for i, run in enumerate(runs):
        rest, more = run - (runs[i - 2] if i > 2 else 0), True
        while more:
            group, rest = rest & 31, rest >> 5
            more = rest != (-1 if group & 16 else 0)
            text += chr(48 + (group | 32 * more))
    return text


def slow_polygon(polygon, height, width):
    """Even-odd rule at every pixel's centre, pixel by pixel."""
    mask = np.zeros((height, width), bool)
    corners = [*zip(polygon[::2], polygon[1::2], strict=True)]
    for row in range(height):
        for column in range(width):
            x, y = column + 0.5, row + 0.5
            for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True):
                if (y0 <= y) != (y1 <= y) and x0 + (y - y0) / (y1 - y0) * (x1 - x0) <= x:
                    mask[row, column] ^= True
    return mask


# ------------------------------------------------------------------------------------------ run lengths


def test_run_lengths_by_hand():
    """A 3 x 3 mask with the middle column: 3 outside, 3 inside, 3 outside.

    Compressed: "3" is 48 + 3; so are the second and third number, which are written as they are. A fourth would be a
    difference to the second: 1 after 3 is -2, in five bits 30 (its sign bit 16 is set), the character 48 + 30 = "N".
    40 is 8 + 32 x 1: groups 8 + 32 = 40 -> "X", and 1 -> "1".
    """
    assert run_lengths([3, 3, 3]).tolist() == run_lengths("333").tolist() == [3, 3, 3]
    assert run_lengths("333N").tolist() == [3, 3, 3, 1]
    assert run_lengths("X1").tolist() == [40]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_compressed_run_lengths_are_the_same(runs):
    assert run_lengths(compressed(runs)).tolist() == run_lengths(runs).tolist() == runs


@pytest.mark.parametrize(
    "counts",
    [None, 3, "", "é", "~", "33 3", "333n", "3O", [3, -1], [3, 1.5], [[3]], [MOST_PIXELS, 1], "o" * 20, {}],
)
def test_counts_that_are_none(counts):
    """ "333n": the last number is not at its end. "3O": -1 in a second place. "o": 63 - 48 and on, without end."""
    assert run_lengths(counts).tolist() == []


# ------------------------------------------------------------------------------------------ masks


def test_a_mask_of_run_lengths_runs_down_the_columns():
    """2 x 3 pixels: 1 outside, 2 inside, 3 outside: the lower left one and the upper middle one."""
    expected = [[0, 1, 0], [1, 0, 0]]
    assert draw_mask({"size": [2, 3], "counts": [1, 2, 3]}, 2, 3).astype(int).tolist() == expected
    assert draw_mask({"size": [2, 3], "counts": "123"}, 2, 3).astype(int).tolist() == expected


def test_a_polygon_by_hand():
    """A rectangle of x 1..3, y 1..2 in 4 x 3 pixels: centres 1.5 and 2.5 across, 1.5 down."""
    assert draw_mask([[1, 1, 3, 1, 3, 2, 1, 2]], 3, 4).astype(int).tolist() == [[0] * 4, [0, 1, 1, 0], [0] * 4]


def test_overlapping_polygons_are_one_object():
    """Inside both is inside, unlike inside one polygon that winds twice."""
    square, other = [0, 0, 2, 0, 2, 2, 0, 2], [1, 1, 3, 1, 3, 3, 1, 3]
    both = draw_mask([square, other], 3, 3).astype(int).tolist()
    assert both == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert draw_mask([square + square], 3, 3).sum() == 0


COORDINATES = st.floats(-3, 12).map(lambda v: round(v, 2))


@settings(max_examples=60)
@given(
    st.lists(st.lists(COORDINATES, min_size=6, max_size=12).map(lambda c: c[: len(c) // 2 * 2]), min_size=1, max_size=3)
)
def test_polygons_as_pixel_by_pixel(polygons):
    expected = np.any([slow_polygon(polygon, 7, 9) for polygon in polygons], 0)
    assert (draw_mask(polygons, 7, 9) == expected).all()


@pytest.mark.parametrize(
    "segmentation",
    [
        None,
        [],
        "polygon",
        [[0, 0, 4, 4]],
        [[0, 0, 4, 0, 4]],
        [[0, 0, 4, 0, 4, float("nan")]],
        [[0, 0, 4, 0, 4, 10**400]],
        [[0, 0, 4, 0, 4, 1e9]],
        [[[0, 0], [4, 0], [4, 4]]],
        [["a"] * 6],
        [[1.6, 0, 2.4, 0, 2.4, 4, 1.6, 4]],
        {"size": [4, 4], "counts": [16]},
        {"size": [4, 4], "counts": [0, 9]},
        {"size": [4], "counts": [0, 4]},
        {"size": [-4, -4], "counts": [0, 16]},
        {"counts": [0, 16]},
        {"size": [4, 4]},
    ],
)
def test_an_object_without_a_pixel(segmentation):
    """Among them a sliver between two centres (x from 1.6 to 2.4), and run lengths that do not fill their size."""
    assert not draw_mask(segmentation, 4, 4).any()
    assert point_of(segmentation, (0.5, 0.5, 0.5)) is None


def test_a_mask_of_another_size_is_none():
    assert not draw_mask({"size": [2, 3], "counts": [0, 6]}, 3, 2).any()


# ------------------------------------------------------------------------------------------ points


def test_a_point_by_hand():
    """Two pixels (column 0, row 1) and (column 1, row 0) of the mask above: the first half of numbers is the first.

    In polygons, pixels are numbered along rows: the rectangle of x 1..3, y 5..6 has (1, 5) and (2, 5).
    """
    runs = {"size": [2, 3], "counts": [1, 2, 3]}
    assert point_of(runs, (0.49, 0.25, 0.75)) == (0.25, 1.75)
    assert point_of(runs, (0.5, 0.25, 0.75)) == (1.25, 0.75)
    assert point_of([[1, 5, 3, 5, 3, 6, 1, 6]], (0.49, 0.25, 0.75)) == (1.25, 5.75)
    assert point_of([[1, 5, 3, 5, 3, 6, 1, 6]], (0.5, 0.25, 0.75)) == (2.25, 5.75)


@settings(max_examples=40)
@given(
    st.lists(st.lists(COORDINATES, min_size=6, max_size=10).map(lambda c: c[: len(c) // 2 * 2]), min_size=1, max_size=2)
)
def test_every_pixel_of_the_mask_has_its_equal_share(polygons):
    """Of 2 m numbers at the middle of 2 m equal parts, each of m pixels gets two; no other pixel gets any."""
    moved = [[v + 4 for v in polygon] for polygon in polygons]  # nothing is cut off at the frame of the reference
    mask = np.any([slow_polygon(polygon, 20, 20) for polygon in moved], 0)
    m = int(mask.sum())
    hits = np.zeros_like(mask, int)
    for k in range(2 * m):
        x, y = point_of(moved, ((k + 0.5) / (2 * m), 0.5, 0.5))
        hits[int(y), int(x)] += 1
    assert (hits == 2 * mask).all()
    assert m or point_of(moved, (0.5, 0.5, 0.5)) is None


def test_run_lengths_and_polygons_give_points_of_the_same_mask():
    mask = draw_mask([[1, 1, 6.3, 2, 4, 7.9], [6, 6, 8, 6, 8, 8]], 9, 9)
    flat = mask.T.ravel().astype(int)
    edges = np.flatnonzero(np.diff(flat, prepend=0, append=0))
    runs = np.diff([0, *edges.tolist(), 81]).tolist()
    runs = {"size": [9, 9], "counts": compressed(runs)}
    assert (draw_mask(runs, 9, 9) == mask).all()
    found = {tuple(map(int, point_of(runs, ((k + 0.5) / mask.sum(), 0, 0)))) for k in range(mask.sum())}
    assert found == {(x, y) for y, x in np.argwhere(mask).tolist()}


def test_points_in_boxes():
    """The part of the box that is in the photo; a side below a pixel becomes one around its middle."""
    assert point_in_box([10, 20, 30, 60], (100, 100), (0.9, 0.25, 0.5)) == (15, 40)
    assert point_in_box([-10, 20, 30, 160], (100, 100), (0.9, 0.5, 0.25)) == (15, 40)
    assert point_in_box([-10, 20, 30, 160], (np.nan, np.nan), (0.9, 0.5, 0.5)) == (10, 90)
    assert point_in_box([10, 20, 10.5, 60], (100, 100), (0.9, 0.0, 0.5)) == (9.75, 40)
    assert point_in_box([10, 0, 30, 0], (100, 100), (0.9, 0.0, 0.5)) == (10, 0.25)  # -0.5 to 0.5, cut at the edge
    assert point_in_box([110, 20, 120, 60], (100, 100), (0.9, 0.5, 0.5)) == (115, 40)  # outside stays outside


def test_draws_hang_on_seed_and_name_alone():
    assert draws(0, 17) == draws(0, 17) != draws(1, 17) != draws(0, 18)
    values = np.array([draws(0, key) for key in range(4000)])
    # The mean of 4,000 uniform numbers has a standard deviation of .29 / 63 = .0046, a correlation one of .016.
    assert np.abs(values.mean(0) - 0.5).max() < 0.025
    assert np.abs(np.corrcoef(values.T) - np.eye(3)).max() < 0.08
    assert ((values >= 0) & (values < 1)).all()
