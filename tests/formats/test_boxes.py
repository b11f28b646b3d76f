import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.formats.boxes import (
    FAULTS,
    box_fractions,
    declared_frame,
    fault_text,
    regions_of,
)
from fewtags.formats.locate import ImageKeys
from fewtags.photos.decode import ImageInfo
from fewtags.table.table import Notes

X = float("nan")
BOX = np.array([False])
OK, NOT_NUMBERS, NO_SIZE, OUTSIDE, UNKNOWN_SIZE = range(len(FAULTS))


def boxes(*rows):
    return np.array(rows, np.float64).reshape(-1, 4)


@pytest.mark.parametrize(
    ("box", "location", "fault"),
    [
        ((20, 10, 60, 30), (0.1, 0.1, 0.3, 0.3), OK),  # of 200 x 100
        ((0, 0, 200, 100), (0, 0, 1, 1), OK),
        ((-20, 50, 60, 130), (0, 0.5, 0.3, 1), OK),  # cut
        ((60, 10, 60, 30), None, NO_SIZE),
        ((60, 10, 20, 30), None, NO_SIZE),
        ((200, 10, 260, 30), None, OUTSIDE),
        ((20, -30, 60, 0), None, OUTSIDE),
        ((20, X, 60, 30), None, NOT_NUMBERS),
        ((20, 10, np.inf, 30), None, NOT_NUMBERS),
    ],
)
def test_fractions_and_faults(box, location, fault):
    got, code, _ = box_fractions(boxes(box), np.array([[200.0, 100.0]]), BOX)
    np.testing.assert_allclose(got, [location or (X,) * 4])
    assert code.tolist() == [fault]


@pytest.mark.parametrize("size", [(X, 100), (200, 0), (-1, 100), (np.inf, 100)])
def test_a_box_without_the_size_of_its_photo(size):
    got, code, _ = box_fractions(boxes((20, 10, 60, 30)), np.array([size], np.float64), BOX)
    assert np.isnan(got).all()
    assert code.tolist() == [UNKNOWN_SIZE]


def test_only_what_reaches_out_by_more_than_a_pixel_counts_as_cut():
    """Annotation tools round: COCO itself has boxes that end half a pixel outside."""
    given = boxes((0, 0, 200.9, 100), (0, 0, 202, 100), (-1.5, 0, 5, 5), (300, 0, 310, 10))
    assert box_fractions(given, np.full((4, 2), (200.0, 100.0)), np.zeros(4, bool))[2] == 2


@given(
    st.lists(st.tuples(*[st.floats(-50, 150)] * 4), min_size=1, max_size=8),
    st.tuples(st.floats(1, 100), st.floats(1, 100)),
)
def test_usable_boxes_are_in_the_photo_and_agree_with_a_plain_loop(rows, size):
    got, code, _ = box_fractions(boxes(*rows), np.tile(size, (len(rows), 1)), np.zeros(len(rows), bool))
    for (x0, y0, x1, y1), location, fault in zip(rows, got, code, strict=True):
        clipped = [
            max(0, min(x0 / size[0], 1)),
            max(0, min(y0 / size[1], 1)),
            min(1, x1 / size[0]),
            min(1, y1 / size[1]),
        ]
        if x1 <= x0 or y1 <= y0:
            assert fault == NO_SIZE
        elif min(x1, size[0]) <= max(x0, 0) or min(y1, size[1]) <= max(y0, 0):
            assert fault == OUTSIDE
        else:
            assert fault == OK
            np.testing.assert_allclose(location, clipped, atol=1e-9)


@pytest.mark.parametrize(
    ("point", "location", "fault"),
    [
        ((50, 25), (0.25, 0.25), OK),  # of 200 x 100
        ((0, 100), (0, 1), OK),
        ((200.9, -1), (1, 0), OK),  # a pixel beyond is rounding
        ((201.1, 25), None, OUTSIDE),
        ((50, -2), None, OUTSIDE),
        ((X, 25), None, NOT_NUMBERS),
    ],
)
def test_points_have_no_size_to_lose(point, location, fault):
    got, code, cut = box_fractions(boxes(point * 2), np.array([[200.0, 100.0]]), np.array([True]))
    np.testing.assert_allclose(got, [(location or (X, X)) * 2])
    assert (code.tolist(), cut) == ([fault], 0)


def test_boxes_and_points_side_by_side():
    """The same corners are a point, but not a box."""
    got, code, _ = box_fractions(boxes((5, 5, 5, 5), (5, 5, 5, 5)), np.full((2, 2), 10.0), np.array([False, True]))
    assert code.tolist() == [NO_SIZE, OK]
    np.testing.assert_allclose(got, [(X,) * 4, (0.5,) * 4])


def test_faults_name_what_they_are_of():
    assert fault_text(OUTSIDE, False) == "its box lies outside the photo"
    assert fault_text(OUTSIDE, True) == "its point lies outside the photo"
    assert fault_text(UNKNOWN_SIZE, True) == (
        "its point cannot be placed: the width and height of the photo are not known"
    )


def header(stored, orientation):
    displayed = stored[::-1] if orientation >= 5 else stored
    return ImageInfo(
        width=displayed[0],
        height=displayed[1],
        stored=stored,
        orientation=orientation,
        format="JPEG",
        mode="RGB",
        bits=8,
        animated=False,
        misnamed=False,
    )


@pytest.mark.parametrize(
    ("stored", "orientation", "declared", "frame"),
    [
        ((400, 300), 1, (400, 300), "displayed"),
        ((400, 300), 1, (800, 601), "displayed"),  # boxes made on a larger copy
        ((400, 300), 1, (300, 400), "neither"),
        ((400, 300), 6, (400, 300), "stored"),
        ((400, 300), 6, (300, 400), "displayed"),
        ((400, 300), 6, (1200, 901), "stored"),
        ((400, 300), 6, (500, 500), "neither"),
        ((400, 300), 3, (400, 300), "unclear"),
        ((400, 300), 2, (800, 600), "unclear"),
        ((400, 300), 3, (300, 400), "neither"),
        ((400, 400), 6, (400, 400), "unclear"),
        ((400, 390), 8, (400, 390), "stored"),  # nearly square: the nearer shape
        ((400, 390), 8, (390, 400), "displayed"),
    ],
)
def test_frame_that_the_declared_size_tells(stored, orientation, declared, frame):
    assert declared_frame(header(stored, orientation), *declared) == frame


def regions(tmp_path, keys, image, pixels, sizes, root=True):
    photos = ImageKeys(list(keys), np.arange(len(keys)), tmp_path if root else None, Notes())
    points = np.zeros(len(image), bool)
    sizes = np.array(sizes, np.float64)
    return regions_of(boxes(*pixels), "pixels", points, np.array(image, np.int64), sizes, photos, "x.json")


def test_boxes_of_turned_photos(tmp_path, make_photo):
    """All photos are stored 40 x 20 and have the box x 4..8, y 2..6, in fractions (.1, .1, .2, .3) of 40 x 20.

    "a" declares the stored size and is turned: orientation 6 has x' = 1 - y, y' = x, so (.7, .1, .9, .2). "b" declares
    the displayed size, 20 x 40: x 4..8 of 20 and y 2..6 of 40 stay (.2, .05, .4, .15). "c" is mirrored: as it is. "d"
    is not turned at all. "e" has another shape.
    """
    for key, orientation in zip("abcde", (6, 6, 2, 1, 1), strict=True):
        make_photo(key, size=(40, 20), orientation=orientation)
    sizes = [(40, 20), (20, 40), (40, 20), (40, 20), (40, 40)]
    found = regions(tmp_path, "abcde", [0, 1, 2, 3, 4], [(4, 2, 8, 6)] * 5, sizes)
    expected = [
        (0.7, 0.1, 0.9, 0.2),
        (0.2, 0.05, 0.4, 0.15),
        (0.1, 0.1, 0.2, 0.3),
        (0.1, 0.1, 0.2, 0.3),
        (0.1, 0.05, 0.2, 0.15),
    ]
    np.testing.assert_allclose(found.locations, expected, atol=1e-12)
    assert found.messages == (
        "1 photo is turned by EXIF, and the boxes with the photo",
        "1 photo is turned by EXIF; the boxes were in that frame already",
        "1 photo is turned or mirrored by EXIF; the file does not show the frame of the boxes, and the "
        "displayed one is assumed",
    )
    assert found.warnings == (
        "1 photo has another aspect ratio than the file says, so that boxes may be misplaced, for example 'e'",
    )


def test_boxes_of_one_turned_photo_among_others_in_any_order(tmp_path, make_photo):
    make_photo("a", size=(40, 20))
    make_photo("b", size=(40, 20), orientation=3)
    make_photo("c", size=(40, 20), orientation=8)
    pixels = [(0, 0, 20, 10), (0, 0, 4, 4), (20, 10, 40, 20), (X, X, X, X), (4, 4, 8, 8)]
    found = regions(tmp_path, "abc", [2, 0, 2, 2, 1], pixels, [(40, 20)] * 3)
    # Orientation 8: x' = y, y' = 1 - x. The upper left quarter comes to the lower left, lower right to upper right.
    expected = [(0, 0.5, 0.5, 1), (0, 0, 0.1, 0.2), (0.5, 0, 1, 0.5), (X,) * 4, (0.1, 0.2, 0.2, 0.4)]
    np.testing.assert_allclose(found.locations, expected, atol=1e-12)
    assert found.fault.tolist() == [OK, OK, OK, NOT_NUMBERS, OK]


def test_the_displayed_size_stands_in_for_one_that_is_not_declared(tmp_path, make_photo):
    make_photo("a", size=(40, 20), orientation=6)
    found = regions(tmp_path, "a", [0], [(4, 2, 8, 6)], [(X, X)])
    np.testing.assert_allclose(found.locations, [(0.2, 0.05, 0.4, 0.15)])
    assert found.messages == (
        "1 photo is turned or mirrored by EXIF; the file does not show the frame of the boxes, and the "
        "displayed one is assumed",
    )


def test_fractions_are_turned_like_pixels(tmp_path, make_photo):
    """As in `test_boxes_of_turned_photos`: "a" declares the stored size, "b" the displayed one, "c" nothing."""
    for key in "abc":
        make_photo(key, size=(40, 20), orientation=6)
    photos = ImageKeys([*"abc"], np.arange(3), tmp_path, Notes())
    fractions = boxes(*[(0.1, 0.1, 0.2, 0.3)] * 3, (0.1, 0.2, 0.1, 0.2), (0, 0, 1.0015, 1.01))
    image, point = np.array([0, 1, 2, 0, 1]), np.array([False, False, False, True, False])
    sizes = np.array([(40, 20), (20, 40), (X, X)])
    found = regions_of(fractions, "fractions", point, image, sizes, photos, "x.json")
    expected = [(0.7, 0.1, 0.9, 0.2), (0.1, 0.1, 0.2, 0.3), (0.1, 0.1, 0.2, 0.3), (0.8, 0.1, 0.8, 0.1), (0, 0, 1, 1)]
    np.testing.assert_allclose(found.locations, expected, atol=1e-12)
    assert found.messages == (
        "1 box reached beyond the photo and cut at its edge",
        "1 photo is turned by EXIF, and the boxes and points with the photo",
        "1 photo is turned by EXIF; the boxes and points were in that frame already",
        "1 photo is turned or mirrored by EXIF; the file does not show the frame of the boxes and points, and the "
        "displayed one is assumed",
    )


def test_without_photos_declared_sizes_are_taken_as_they_are(tmp_path):
    found = regions(tmp_path, "ab", [0, 1], [(4, 2, 8, 6)] * 2, [(40, 20), (X, X)], root=False)
    np.testing.assert_allclose(found.locations, [(0.1, 0.1, 0.2, 0.3), (X,) * 4])
    assert found.fault.tolist() == [OK, UNKNOWN_SIZE]
    assert found.messages == ()


def test_photos_that_cannot_be_opened_are_counted(tmp_path, make_photo):
    (tmp_path / "a").write_bytes(b"not a photo")
    found = regions(tmp_path, "a", [0], [(4, 2, 8, 6)], [(40, 20)])
    np.testing.assert_allclose(found.locations, [(0.1, 0.1, 0.2, 0.3)])
    assert found.messages == ("1 photo has a header that cannot be read; the boxes are taken as they are",)


def test_no_boxes(tmp_path):
    found = regions(tmp_path, "", [], [], np.zeros((0, 2)))
    assert found.locations.shape == (0, 4)
