import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmark_regions import localisation_report
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewtags.errors import DataError
from fewtags.metrics.localisation import (
    boxes_to_mask,
    ioa_p,
    normalise_map,
    pointing,
    reaches,
    resize_map,
    summarise_pairs,
)


def region(*rows):
    return np.array([[v == "x" for v in row] for row in rows])


# --- boxes


def test_boxes_become_the_pixels_whose_centre_they_hold():
    """4 x 4 pixels, centres at .125 .375 .625 .875; the box reaches from .3 to .9 across and from 0 to .2 down."""
    got = boxes_to_mask(np.array([[0.3, 0.0, 0.9, 0.2]]), (4, 4))
    np.testing.assert_array_equal(got, region(".xxx", "....", "....", "...."))


def test_several_boxes_are_united_and_none_is_nothing():
    boxes = np.array([[0.0, 0.0, 0.5, 0.5], [0.25, 0.25, 0.75, 1.0]])
    np.testing.assert_array_equal(boxes_to_mask(boxes, (4, 4)), region("xx..", "xxx.", ".xx.", ".xx."))
    assert not boxes_to_mask(np.zeros((0, 4)), (4, 4)).any()


def test_points_and_boxes_between_centres_keep_their_pixel():
    """A point at (.3, .99), a sliver from .4 to .6 across between two centres, a point on the far corner."""
    np.testing.assert_array_equal(boxes_to_mask(np.array([[0.3, 0.99, 0.3, 0.99]]), (2, 4)), region("....", ".x.."))
    np.testing.assert_array_equal(boxes_to_mask(np.array([[0.4, 0.0, 0.6, 1.0]]), (2, 4)), region("..x.", "..x."))
    np.testing.assert_array_equal(boxes_to_mask(np.array([[1.0, 1.0, 1.0, 1.0]]), (2, 4)), region("....", "...x"))


# --- resizing


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (6, 6), (17, 40), (2, 3)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (6, 6), (7, 2)])
def test_resizing_equals_torch(shape, size):
    heatmap = np.random.default_rng(shape).random(shape)
    oracle = F.interpolate(torch.tensor(heatmap)[None, None], size, mode="bilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(resize_map(heatmap, size), oracle, rtol=1e-12, atol=1e-14)


# --- pointing game


def test_pointing_by_hand():
    heatmap = np.array([[0.1, 0.9], [0.3, 0.2]])
    assert pointing(heatmap, region(".x", "..")) == 1.0
    assert pointing(heatmap, region("x.", "xx")) == 0.0


def test_the_peak_of_a_coarse_map_is_compared_with_a_fine_region():
    """The right of two cells is hot. Stretched to 4 columns, the last one, beyond the cell's centre, is highest."""
    heatmap = np.array([[0.0, 1.0]])
    assert pointing(heatmap, region("...x")) == 1.0
    assert pointing(heatmap, region("xxx.")) == 0.0


def test_equally_high_pixels_count_with_their_share_so_a_flat_map_gets_chance():
    assert pointing(np.array([[0.9, 0.1, 0.9, 0.9]]), region("x.x.")) == pytest.approx(2 / 3)
    wide = region("x.........", "x.........", "..........")
    assert pointing(np.full((7, 3), 0.1), wide) == pytest.approx(wide.mean())


# --- IoA-P


def test_ioa_by_hand():
    """Already 0..1: at .4 three pixels, one inside; at .8 one, inside; at 1 the same."""
    heatmap = np.array([[0.0, 0.5, 1.0, 0.4]])
    assert ioa_p(heatmap, region("..x."), thresholds=[0.4, 0.8, 1.0]).tolist() == [pytest.approx(1 / 3), 1.0, 1.0]


def test_normalisation_by_hand():
    """.1 .2 .3 become 0 .5 1. Without it nothing reaches .6, which is nan; at .2 two pixels of which one is inside."""
    heatmap = np.array([[0.1, 0.2, 0.3]])
    assert ioa_p(heatmap, region("..x"), thresholds=[0.5, 0.6]).tolist() == [0.5, 1.0]
    got = ioa_p(heatmap, region("..x"), thresholds=[0.2, 0.6], normalise="none")
    assert got[0] == 0.5
    assert math.isnan(got[1])


def test_division_by_the_highest_value_by_hand():
    """.1 .2 .25 become .4 .8 1: at .6 two pixels of which one is inside. With "minmax" they become 0 .67 1: the same.

    At .7 "minmax" has the last one only.
    """
    heatmap = np.array([[0.1, 0.2, 0.25]])
    assert ioa_p(heatmap, region("..x"), thresholds=[0.6, 0.7], normalise="max").tolist() == [0.5, 0.5]
    assert ioa_p(heatmap, region("..x"), thresholds=[0.6, 0.7]).tolist() == [0.5, 1.0]


def test_what_cannot_be_scaled_becomes_0():
    for heatmap, how in (([[-2.0, -1.0]], "max"), ([[0.0, 0.0]], "max"), ([[0.4, 0.4]], "minmax")):
        assert normalise_map(np.array(heatmap), how).tolist() == [[0.0, 0.0]]
    assert normalise_map(np.array([[-2.0, 3.0]]), "none").tolist() == [[-2.0, 3.0]]


def test_exactly_half_is_a_hit_unless_strict_and_nothing_never_is():
    ioa = np.array([[0.4, 0.5], [0.6, np.nan]])
    assert reaches(ioa).tolist() == [[False, True], [True, False]]
    assert reaches(ioa, strict=True).tolist() == [[False, False], [True, False]]
    assert reaches(ioa, 0.4).tolist() == [[True, True], [True, False]]
    report = summarise_pairs(np.ones(2), np.array([0.5, 0.9]), ioa, (0.6, 0.7), strict=True)
    assert (report.ioa_hits.tolist(), report.ioa_hits_chance) == ([0.5, 0.0], 0.5)
    np.testing.assert_allclose(report.ioa, [0.5, 0.25])


def test_a_flat_map_localises_nothing():
    assert np.isnan(ioa_p(np.full((3, 3), 0.7), region("x....", "....."))).all()


# "own.map_loc" of golden/patchml.json, the reading that DESIGN recommends: [image][class], None where it is absent.
GOLDEN_REGIONS = [
    [("xx.", "xx.", "..."), None],
    [("...", ".xx", ".xx"), ("x..", "x..", "x..")],
    [None, ("xxx", "xxx", "xxx")],
    [("xxx", "...", "..."), None],
]
GOLDEN_IOA = {
    0.6: [[0.2, None], [0.6, 0.6], [None, 1.0], [0.333333333, None]],
    0.7: [[0.2, None], [0.6, 0.6], [None, 1.0], [0.25, None]],
    0.8: [[0.25, None], [0.75, 0.666666667], [None, 1.0], [0.25, None]],
    0.9: [[0.0, None], [0.666666667, 1.0], [None, 1.0], [0.333333333, None]],
}


def golden_pairs():
    """Maps: |sin(.9 i)| rounded to 3 digits, in the order of images, classes, rows and columns."""
    maps = np.abs(np.sin(0.9 * np.arange(4 * 2 * 3 * 3))).round(3).reshape(4, 2, 3, 3)
    for n, row in enumerate(GOLDEN_REGIONS):
        for c, rows in enumerate(row):
            if rows is not None:
                yield n, c, maps[n, c], region(*rows)


def test_golden_ioa():
    for n, c, heatmap, inside in golden_pairs():
        expected = [GOLDEN_IOA[t][n][c] for t in (0.6, 0.7, 0.8, 0.9)]
        np.testing.assert_allclose(ioa_p(heatmap, inside), expected, atol=1e-9)


# --- a slow reference and properties

MAPS = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda s: st.tuples(
        hnp.arrays(np.float64, s, elements=st.integers(0, 8).map(lambda k: k / 8)),
        hnp.arrays(np.bool_, s),
        st.integers(0, 8).map(lambda k: k / 8),
    )
)


@given(MAPS)
def test_equals_a_loop_over_pixels(problem):
    heatmap, inside, threshold = problem
    hot = [place for place in np.ndindex(heatmap.shape) if heatmap[place] >= threshold]
    got = ioa_p(heatmap, inside, thresholds=[threshold], normalise="none")[0]
    assert math.isnan(got) if not hot else got == pytest.approx(sum(inside[p] for p in hot) / len(hot))
    top = [place for place in np.ndindex(heatmap.shape) if heatmap[place] == heatmap.max()]
    assert pointing(heatmap, inside) == pytest.approx(sum(inside[p] for p in top) / len(top))


@given(MAPS)
def test_a_flip_and_a_rising_line_change_nothing_and_a_region_and_its_complement_share_the_map(problem):
    heatmap, inside, threshold = problem
    got = ioa_p(heatmap, inside, thresholds=[threshold])
    np.testing.assert_array_equal(ioa_p(heatmap[:, ::-1], inside[:, ::-1], thresholds=[threshold]), got)
    np.testing.assert_array_equal(ioa_p(4 * heatmap + 2, inside, thresholds=[threshold]), got)
    np.testing.assert_allclose(ioa_p(heatmap, ~inside, thresholds=[threshold]), 1 - got)
    assert pointing(heatmap, inside) + pointing(heatmap, ~inside) == pytest.approx(1)


# --- report


def test_report_by_hand():
    """Two pairs on 2 x 2.

    First: peak inside, region a quarter; at .6 only the peak (.9 -> 1, .1 -> 0): IoA-P 1. Second: a flat map, region
    half: points right with its chance 1/2, IoA-P counts 0. Chance: (1/4 + 1/2) / 2; one region in two is >= half.
    """
    pairs = [
        (np.array([[0.9, 0.1], [0.1, 0.1]]), region("x.", "..")),
        (np.full((2, 2), 0.4), region("xx", "..")),
    ]
    report = localisation_report(iter(pairs), thresholds=[0.6])
    assert (report.pairs, report.pointing, report.chance) == (2, 0.75, 0.375)
    assert (report.thresholds, report.ioa.tolist(), report.ioa_hits.tolist()) == ((0.6,), [0.5], [0.5])
    assert report.ioa_hits_chance == 0.5


def test_report_on_the_golden_pairs():
    """Of five pairs three reach IoA-P .5 at every threshold: at .6 with .6, .6, 1, at .8 with .75, .667, 1."""
    report = localisation_report((heatmap, inside) for _, _, heatmap, inside in golden_pairs())
    assert report.pairs == 5
    assert report.ioa_hits.tolist() == [0.6] * 4
    expected = [np.mean([v for row in GOLDEN_IOA[t] for v in row if v is not None]) for t in report.thresholds]
    np.testing.assert_allclose(report.ioa, expected, atol=1e-9)


# --- errors


def test_absent_objects_no_objects_and_broken_maps_are_refused():
    with pytest.raises(DataError) as error:
        localisation_report([(np.ones((2, 2)), region("x.")), (np.ones((2, 2)), region(".."))])
    assert str(error.value) == "the region of pair 1 is empty; give only classes that are present and located."
    with pytest.raises(DataError) as error:
        localisation_report([])
    assert str(error.value) == "no located object to measure against; localisation needs boxes, points or masks."
    for measure in (pointing, ioa_p):
        with pytest.raises(DataError) as error:
            measure(np.array([[0.5, np.nan]]), region("x."))
        message = "the heatmap contains a value that is not a number; the model or its input is broken."
        assert str(error.value) == message
