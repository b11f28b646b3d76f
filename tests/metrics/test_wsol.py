import json
import math
from pathlib import Path

import numpy as np
import pytest
from box_reports import box_report
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pixel_reports import pxap
from sklearn.metrics import average_precision_score

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.localisation import resize_map
from fewtags.metrics.wsol import (
    PixelReport,
    average_precision_of_counts,
    best_overlaps,
    box_iou,
    component_boxes,
    pixel_counts,
    whole_image_overlap,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/patchml_wsol.json").read_text())
WSOL = GOLDEN["wsol"]
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def region(*rows):
    return np.array([[v == "x" for v in row] for row in rows])


def label_mask(*rows):
    return np.array([[{"x": P, ".": N, "?": U}[v] for v in row] for row in rows], np.int8)


# --- boxes of parts


def test_diagonal_neighbours_are_one_part():
    cut = region("x..x", ".x..", "....")
    assert sorted(component_boxes(cut, parts="outer").tolist()) == [[0, 0, 2, 2], [3, 0, 4, 1]]


def test_a_hole_has_an_outline_of_its_own_and_a_bay_has_none():
    """The ring reaches from (0, 0) to (4, 3); around the hole, pixels (1, 1) and (2, 1), its border is as large."""
    assert component_boxes(region("xxxx", "x..x", "xxxx"), parts="outer").tolist() == [[0, 0, 4, 3]]
    assert component_boxes(region("xxxx", "x..x", "xxxx")).tolist() == [[0, 0, 4, 3]] * 2
    assert component_boxes(region("xxxxx", "x.x.x", "xxxxx")).tolist() == [[0, 0, 5, 3], [0, 0, 3, 3], [2, 0, 5, 3]]
    assert component_boxes(region("xxxx", "x...", "xxxx")).tolist() == [[0, 0, 4, 3]]


def test_background_that_meets_diagonally_does_not_open_a_hole():
    """The four pixels around (1, 1) are one part; the corner (0, 0) touches the middle by a corner only."""
    cut = region(".x.", "x.x", ".x.")
    assert component_boxes(cut).tolist() == [[0, 0, 3, 3], [0, 0, 3, 3]]


def test_the_largest_part_encloses_most():
    """A 2 x 2 square encloses 1 between its centres; a line of six encloses nothing, a triangle a half."""
    cut = region("xxxxxx", "......", "x...xx", "xx..xx")
    assert component_boxes(cut, parts="largest").tolist() == [[4, 2, 6, 4]]
    cut = region("xxxxxx", "......", "x.....", "xx....")
    assert component_boxes(cut, parts="largest").tolist() == [[0, 2, 2, 4]]


def test_a_ring_encloses_its_hole_and_what_lies_in_it():
    """The ring of 16 pixels encloses 4 x 4 = 16, the square beside it 2 x 2 = 4 with nine pixels."""
    cut = region("xxxxx....", "x...x.xxx", "x.x.x.xxx", "x...x.xxx", "xxxxx....")
    assert component_boxes(cut, parts="largest").tolist() == [[0, 0, 5, 5]]


def test_of_equals_the_largest_is_the_one_that_begins_last():
    assert component_boxes(region("x.x", "...", "x.."), parts="largest").tolist() == [[0, 2, 1, 3]]


@pytest.mark.parametrize("parts", ["all", "outer", "largest"])
def test_nothing_has_no_box(parts):
    assert component_boxes(np.zeros((3, 4), bool), parts=parts).shape == (0, 4)


# Boxes that OpenCV 5.0 gives for these: findContours(RETR_TREE), boundingRect; the largest by contourArea.
OPENCV = [
    (
        region("xxx.x", "x.x..", "xxx.x", "....x"),
        [[0, 0, 3, 3], [0, 0, 3, 3], [4, 0, 5, 1], [4, 2, 5, 4]],
        [0, 0, 3, 3],
    ),
    (region("x.x.", ".x..", "...x", "..xx"), [[0, 0, 3, 2], [2, 2, 4, 4]], [2, 2, 4, 4]),
    (region("xxxxx", "x...x", "x.x.x", "x...x", "xxxxx"), [[0, 0, 5, 5], [0, 0, 5, 5], [2, 2, 3, 3]], [0, 0, 5, 5]),
    (region("xxxx..", "......", "..xx..", "..x..x"), [[0, 0, 4, 1], [2, 2, 4, 4], [5, 3, 6, 4]], [2, 2, 4, 4]),
]


@pytest.mark.parametrize(("cut", "every", "largest"), OPENCV)
def test_boxes_equal_opencv(cut, every, largest):
    assert sorted(component_boxes(cut).tolist()) == every
    assert component_boxes(cut, parts="largest").tolist() == [largest]


@pytest.mark.parametrize("name", ["unimodal", "multimodal"])
@pytest.mark.parametrize("parts", ["largest", "all"])
def test_golden_boxes(name, parts):
    """The public code cuts 255 x map above the whole part of 255 x threshold and pulls boxes in to the last pixel."""
    golden = WSOL[name]
    levels = np.floor(np.array(golden["scoremap"]) * 255)
    for t, expected, count in zip(golden["thresholds"], golden[parts], golden["n_contours"], strict=True):
        got = component_boxes(levels > int(t * 255), parts=parts)
        got = np.minimum(got, [5, 4, 4, 3])
        assert sorted(got.tolist()) == sorted(expected)
        assert len(component_boxes(levels > int(t * 255))) == count


@pytest.mark.parametrize("threshold", ["0.1", "0.2", "0.5"])
def test_golden_boxes_of_ts_cam(threshold):
    """TS-CAM resizes, cuts 255 x map above the whole part of 255 x threshold, and takes the largest part as it is."""
    golden = GOLDEN["tscam_loc"]
    resized = resize_map(np.array(golden["cam"]), (6, 6))
    resized = (resized - resized.min()) / (resized.max() - resized.min())
    np.testing.assert_allclose(resized, golden["resized_6x6"], atol=1e-6)
    levels = np.floor(np.array(golden["resized_6x6"]) * 255)
    got = component_boxes(levels > int(float(threshold) * 255), parts="largest")
    assert got.tolist() == [golden["bbox_thr"][threshold]]


CUTS = st.tuples(st.integers(1, 7), st.integers(1, 7)).flatmap(lambda s: hnp.arrays(np.bool_, s))


def flooded(cut, steps):
    """Boxes of the parts of a cut map, by walking from pixel to pixel."""
    left, boxes = {place for place in np.ndindex(cut.shape) if cut[place]}, []
    while left:
        part, ahead = set(), [min(left)]
        while ahead:
            y, x = ahead.pop()
            if (y, x) in left:
                left.discard((y, x))
                part.add((y, x))
                ahead += [(y + dy, x + dx) for dy, dx in steps]
        ys, xs = zip(*part, strict=True)
        boxes.append([min(xs), min(ys), max(xs) + 1, max(ys) + 1])
    return boxes


@given(CUTS)
def test_boxes_equal_a_walk_over_pixels(cut):
    eight = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    parts = flooded(cut, eight)
    assert sorted(component_boxes(cut, parts="outer").tolist()) == sorted(parts)
    around = flooded(np.pad(~cut, 1, constant_values=True), [(0, 1), (0, -1), (1, 0), (-1, 0)])
    h, w = cut.shape
    # In the padded frame everything is one further; a hole does not touch the frame.
    holes = [[x0 - 2, y0 - 2, x1, y1] for x0, y0, x1, y1 in around if (x0, y0, x1, y1) != (0, 0, w + 2, h + 2)]
    assert sorted(component_boxes(cut).tolist()) == sorted(parts + holes)
    largest = component_boxes(cut, parts="largest").tolist()
    assert len(largest) == min(1, len(parts))
    assert all(box in parts for box in largest)


@given(CUTS)
def test_boxes_flip_with_the_map(cut):
    w = cut.shape[1]
    flipped = [[w - x1, y0, w - x0, y1] for x0, y0, x1, y1 in component_boxes(cut[:, ::-1]).tolist()]
    assert sorted(flipped) == sorted(component_boxes(cut).tolist())


# --- intersection over union


def test_iou_by_hand():
    """Squares of side 2 that share a quarter: 1 / (4 + 4 - 1). With the last pixel counted sides are 3: 4 / 14."""
    a, b = np.array([[0.0, 0.0, 2.0, 2.0]]), np.array([[1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    np.testing.assert_allclose(box_iou(a, b), [[1 / 7, 0.0]])
    np.testing.assert_allclose(box_iou(a, b, last=1.0), [[4 / 14, 0.0]])
    assert box_iou(np.zeros((1, 4)), np.zeros((1, 4))).tolist() == [[0.0]]


def test_golden_iou():
    golden = WSOL["iou"]
    a, b = np.array(golden["a"], float), np.array(golden["b"], float)
    np.testing.assert_allclose(box_iou(a, b, last=1.0), golden["iou"], atol=1e-9)


# --- MaxBoxAccV2


def golden_pairs():
    """The golden boxes are in pixels of maps of 4 x 5."""
    true = WSOL["maxboxacc"]["gt_resized_to_5x5"]
    for name, key in (("unimodal", "a"), ("multimodal", "b")):
        yield np.array(WSOL[name]["scoremap"]), np.array(true[key]) / [5, 4, 5, 4]


@pytest.mark.parametrize(("parts", "key"), [("largest", "single"), ("all", "multi")])
def test_golden_max_box_accuracy(parts, key):
    golden = WSOL["maxboxacc"]
    report = box_report(
        golden_pairs(), size=None, cuts=WSOL["unimodal"]["thresholds"], parts=parts, rule="wsol", normalise="none"
    )
    np.testing.assert_allclose(100 * report.accuracy, golden[key])
    assert report.max_box_acc == pytest.approx(np.mean(golden[key]) / 100)
    if parts == "largest":
        assert report.correct.tolist() == [golden["num_correct_single"][k] for k in ("30", "50", "70")]


def test_box_report_by_hand():
    """Two pairs on 2 x 4, cut above 0 and above half.

    First: .4 .4 1 1 in both rows, object the right half. Above 0 the whole image, overlap 1/2; above half: 1.
    Second: 1 at the left, .1 beside it, rest 0, object the left quarter. Above 0: half, overlap 1/2; above half: 1.
    So at .3 and .5 both are right at every cut, at .7 only above half. Whole image: 1/2 and 1/4.
    """
    pairs = [
        (np.array([[0.4, 0.4, 1.0, 1.0]] * 2), np.array([[0.5, 0.0, 1.0, 1.0]])),
        (np.array([[1.0, 0.1, 0.0, 0.0]] * 2), np.array([[0.0, 0.0, 0.25, 1.0]])),
    ]
    report = box_report(iter(pairs), size=None, cuts=(0.0, 0.5), normalise="none")
    assert report.pairs == 2
    assert report.correct.tolist() == [[2, 2], [2, 2], [0, 2]]
    assert (report.accuracy.tolist(), report.max_box_acc) == ([1.0, 1.0, 1.0], 1.0)
    assert report.best_cuts.tolist() == [0.0, 0.0, 0.5]
    assert report.whole_image.tolist() == [1, 1, 0]
    assert report.chance == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)


def test_a_perfect_map_is_always_right_and_a_shifted_one_is_not():
    true = np.array([[0.25, 0.25, 0.75, 0.75]])
    heatmap = np.zeros((8, 8), np.float32)
    heatmap[2:6, 2:6] = 1
    assert box_report([(heatmap, true)], size=None).max_box_acc == 1.0
    # Moved by half its width the overlap is 1/3: right at .3 alone.
    assert box_report([(np.roll(heatmap, 2, 1), true)], size=None).max_box_acc == pytest.approx(1 / 3)
    assert box_report([(np.roll(heatmap, 4, 1), true)], size=None).max_box_acc == 0.0


def test_maps_are_resized_before_boxes_are_read_off():
    """Two cells become eight columns, .5 in the middle; above .25 + .125 columns 3 to 8 remain, above .9 two."""
    heatmap = np.array([[0.0, 1.0]])
    got = box_report([(heatmap, np.array([[0.75, 0.0, 1.0, 1.0]]))], size=(8, 8), overlaps=(0.99,), cuts=(0.3, 0.9))
    assert got.correct.tolist() == [[0, 1]]


def test_any_instance_may_be_hit():
    heatmap = np.zeros((4, 4))
    heatmap[0, 0] = 1
    two = np.array([[0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.25, 0.25]])
    assert best_overlaps(heatmap, two, cuts=(0.5,)).tolist() == [1.0]
    assert best_overlaps(heatmap, two[:1], cuts=(0.5,)).tolist() == [0.0]


def test_a_flat_map_has_no_box_but_the_first_pixel_in_the_public_code():
    """On 4 x 4, last pixel counted: the box of pixel 0 has side 1, the true box from 0 to 1 side 2."""
    flat, true = np.zeros((4, 4)), np.array([[0.0, 0.0, 0.25, 0.25]])
    assert best_overlaps(flat, true, cuts=(0.0, 0.5)).tolist() == [0.0, 0.0]
    assert best_overlaps(flat, true, cuts=(0.0, 0.5), rule="wsol").tolist() == [0.25, 0.25]


def test_the_public_code_cuts_in_256_levels():
    """.5 x 255 is cut to 127, .499 x 255 too: the second pixel is not above the cut at .5; exactly, it is not either.

    .5003 is above .5, but both are level 127.
    """
    heatmap, true = np.array([[0.0, 0.5003, 1.0, 0.0, 0.0]]), np.array([[0.2, 0.0, 0.6, 1.0]])
    assert best_overlaps(heatmap, true, cuts=(0.5,)).tolist() == [1.0]
    # The box is pixel 2 up to its far edge 3, the last row pulls y1 in to 0; true x 1 to 3, y 0 to 1: 2 / 6.
    assert best_overlaps(heatmap, true, cuts=(0.5,), rule="wsol").tolist() == [pytest.approx(2 / 6)]


def test_whole_image():
    """A quarter of 8 x 8. Last pixel counted: the image is 8 x 8, the box from 0 to 4 is 5 x 5."""
    true = np.array([[0.0, 0.0, 0.5, 0.5]])
    assert whole_image_overlap(true, (8, 8)) == 0.25
    assert whole_image_overlap(true, (8, 8), rule="wsol") == 25 / 64


MAPS = hnp.arrays(np.float64, (4, 5), elements=st.integers(0, 8).map(lambda k: k / 8))
BOXES = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 4)).map(
    lambda b: np.array([[b[0], b[1], min(b[0] + b[2], 4), min(b[1] + b[3], 4)]]) / 4
)


@given(st.lists(st.tuples(MAPS, BOXES), min_size=1, max_size=4), st.sampled_from(["all", "outer", "largest"]))
def test_box_report_is_the_mean_of_single_pairs_in_any_order_and_more_parts_are_never_worse(pairs, parts):
    cuts = (0.0, 0.3, 0.6)
    report = box_report(pairs, size=None, cuts=cuts, parts=parts)
    single = [box_report([p], size=None, cuts=cuts, parts=parts) for p in pairs]
    np.testing.assert_array_equal(report.correct, sum(s.correct for s in single))
    np.testing.assert_array_equal(report.whole_image, sum(s.whole_image for s in single))
    np.testing.assert_array_equal(box_report(pairs[::-1], size=None, cuts=cuts, parts=parts).correct, report.correct)
    assert (box_report(pairs, size=None, cuts=cuts).correct >= report.correct).all()


# --- PxAP


def golden_mask():
    mask = np.array(WSOL["pxap"]["mask_255_is_ignore"])
    return np.where(mask == 255, U, np.where(mask == 1, P, N)).astype(np.int8)


def test_golden_pxap():
    """The public code counts in bins of a tenth; the values are tenths, so exact and binned agree."""
    pair = (np.array(WSOL["pxap"]["scoremap"]), golden_mask())
    for bins in (10, 1000, None):
        assert 100 * pxap([pair], bins=bins, normalise="none") == pytest.approx(WSOL["pxap"]["pxap"])


def test_pxap_by_hand():
    """Pixels 1 (in), .75 (out), .5 (in), 0 (out): precision 1/1 and 2/3 at the two steps of recall: 5/6.

    In two bins and the one of 1, .75 and .5 enter together: (1 + 2/3) / 2 as well. Unknown, the .75 is left out: 1.
    """
    heatmap = np.array([[1.0, 0.75, 0.5, 0.0]])
    for bins in (2, 4, None):
        assert pxap([(heatmap, region("x.x."))], bins=bins) == pytest.approx(5 / 6)
        assert pxap([(heatmap, label_mask("x?x."))], bins=bins) == 1.0


def test_pixels_of_one_bin_enter_together():
    """Only .6 is inside. Exact: second of two, 1/2. In two bins .6 and .5 come in one: first of three, 1/3."""
    heatmap = np.array([[1.0, 0.6, 0.5, 0.0]])
    assert pxap([(heatmap, region(".x.."))], bins=None) == pytest.approx(1 / 2)
    assert pxap([(heatmap, region(".x.."))], bins=2) == pytest.approx(1 / 3)


def test_pixel_counts_by_hand():
    """Four pixels in quarters: 1 inside, .5 outside, .25 unknown, -1 counts as 0 outside."""
    got = pixel_counts(np.array([[1.0, 0.5, 0.25, -1.0]]), label_mask("x.?."), bins=2)
    assert got.tolist() == [[0, 0, 0.25], [0.25, 0.25, 0]]


def test_a_perfect_map_has_pxap_1_a_shifted_one_less_and_a_flat_one_chance():
    inside = np.zeros((6, 8), bool)
    inside[1:4, 2:5] = True
    for bins in (1000, None):
        assert pxap([(inside.astype(np.float32), inside)], bins=bins) == 1.0
        assert pxap([(np.roll(inside, 2, 1).astype(np.float32), inside)], bins=bins) < 0.5
        assert pxap([(np.full((2, 2), 0.3), inside)], bins=bins) == pytest.approx(inside.mean())


def test_each_image_has_the_same_weight_whatever_the_size_of_its_mask():
    """The same image with its mask in one row or in five, beside another that is all wrong."""
    heatmap, small, large = np.array([[1.0, 0.0]]), region("x."), region(*["x."] * 5)
    other = (np.array([[0.0, 1.0]]), region("x."))
    for bins in (1000, None):
        assert pxap([(heatmap, large), other], bins=bins) == pytest.approx(pxap([(heatmap, small), other], bins=bins))


LABELS = hnp.arrays(np.int8, (4, 5), elements=st.sampled_from([P, N, U]))


@given(st.lists(st.tuples(MAPS, LABELS), min_size=1, max_size=3))
def test_pxap_equals_scikit_learn_on_all_known_pixels_and_in_bins_when_values_are_eighths(pairs):
    values = np.concatenate([heatmap[mask != U] for heatmap, mask in pairs])
    truth = np.concatenate([mask[mask != U] == P for _, mask in pairs])
    if truth.any():
        expected = average_precision_score(truth, values)
        for bins in (8, 1000, None):
            assert pxap(pairs, bins=bins, normalise="none") == pytest.approx(expected)
        assert pxap(pairs[::-1], normalise="none") == pytest.approx(expected)


@pytest.mark.parametrize("bins", [1, 7, 1000])
def test_pxap_in_bins_is_the_exact_one_of_values_rounded_down(bins):
    rng = np.random.default_rng(bins)
    heatmap, mask = rng.random((9, 11)), rng.choice(np.array([P, N, U], np.int8), (9, 11))
    known = mask != U
    expected = average_precision_score(mask[known] == P, np.floor(heatmap[known] * bins))
    assert pxap([(heatmap, mask)], bins=bins, normalise="none") == pytest.approx(expected)


def test_pixel_report_pools_classes_and_keeps_them_apart():
    """Two bins. Class 0: one pixel in, above one out: 1. Class 1: one in below one out: 1/2. Class 2 has none.

    Pooled: above, one in and one out: precision 1/2 for half of the recall, then 2/4: 1/2. Half of all is inside.
    """
    report = PixelReport(np.array([[0.0, 1], [1, 0], [0, 0]]), np.array([[1.0, 0], [0, 1], [0, 0]]))
    np.testing.assert_array_equal(report.per_class, [1.0, 0.5, np.nan])
    assert (report.mean_pxap, report.pxap, report.chance) == (0.75, 0.5, 0.5)
    empty = PixelReport(np.zeros((1, 2)), np.zeros((1, 2)))
    assert all(math.isnan(v) for v in (empty.pxap, empty.mean_pxap, empty.chance))


def test_empty_counts_have_no_precision():
    assert math.isnan(average_precision_of_counts(np.zeros(0), np.zeros(0)))
    assert math.isnan(average_precision_of_counts(np.zeros(2), np.ones(2)))


# --- errors


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_maps_are_refused(bad):
    heatmap = np.array([[0.0, bad]])
    message = "the heatmap of pair 1 contains a value that is not finite; the model or its input is broken."
    fine = np.array([[0.0, 1.0]])
    with pytest.raises(DataError) as error:
        pxap([(fine, region(".x")), (heatmap, region(".x"))])
    assert str(error.value) == message
    boxes = np.array([[0.0, 0.0, 1.0, 1.0]])
    with pytest.raises(DataError) as error:
        box_report([(fine, boxes), (heatmap, boxes)])
    assert str(error.value) == message


def test_nothing_to_measure_against_is_refused():
    with pytest.raises(DataError) as error:
        pxap([(np.ones((1, 2)), region(".."))])
    assert str(error.value) == ("no pixel belongs to an object; PxAP needs boxes or masks of classes that are present.")
