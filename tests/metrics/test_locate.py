import json
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
from benchmark_regions import localisation_report
from box_reports import box_report
from hypothesis import given
from hypothesis import strategies as st
from pixel_reports import pxap

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.metrics.localisation import boxes_to_mask
from fewtags.metrics.locate import DEFAULT, LocateOptions, Region, locate_report
from fewtags.metrics.map_loc import map_loc_report

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
SMALL = LocateOptions(size=(8, 8), cuts=(0.0, 0.25, 0.5, 0.75), bins=100)


def boxes(*rows):
    return np.array(rows, np.float64).reshape(-1, 4)


def at(*rows):
    return Region(boxes(*rows))


def perfect(regions, classes, size=(8, 8)):
    """Maps that are 1 on the objects and 0 elsewhere, float32 [n, c, h, w]."""
    maps = np.zeros((len(regions), classes, *size), np.float32)
    for n, row in enumerate(regions):
        for c, region in row.items():
            maps[n, c] = boxes_to_mask(region.boxes, size)
    return maps


LEFT, MIDDLE, CORNER = (0.0, 0.0, 0.5, 1.0), (0.25, 0.25, 0.75, 0.75), (0.5, 0.5, 1.0, 1.0)
REGIONS = [{0: at(LEFT), 1: at(MIDDLE)}, {1: at(CORNER)}, {}, {0: at(MIDDLE)}]
LABELS = np.array([[P, P], [N, P], [N, N], [P, U]], np.int8)
LOGITS = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 2.0], [1.5, 9.0]])


# --- derived by hand


def test_perfect_maps_score_1_where_the_scores_allow_it():
    """Class 0 is ranked right, so its mAP-loc is 1; class 1 has + - + (the unknown 9 is left out): (1 + 2/3) / 2.

    Regions take 1/2, 1/4, 1/4, 1/4 of the image. Whole images as cuts: one of four reaches 1/2, that of class 0, at
    rank 1: (1/1) / 2; class 1 has none: mAP-loc 1/4. As boxes: overlaps 1/2, 1/4, 1/4, 1/4: one right at .3 and at .5.
    """
    report = locate_report(perfect(REGIONS, 2), LOGITS, LABELS, REGIONS, options=SMALL)
    assert report.images == 4
    assert (report.present.pairs, report.present.pointing, report.present.chance) == (4, 1.0, 5 / 16)
    assert report.present.ioa.tolist() == report.present.ioa_hits.tolist() == [1.0] * 4
    assert report.present.ioa_hits_chance == 0.25
    np.testing.assert_allclose(report.ranked.localised, [[1.0] * 4, [5 / 6] * 4])
    assert report.ranked.map_loc == report.ranked.map_cl == pytest.approx(11 / 12)
    assert report.ranked_chance == pytest.approx(1 / 4)
    assert (report.boxes.pairs, report.boxes.max_box_acc) == (4, 1.0)
    assert report.boxes.chance == pytest.approx((1 / 4 + 1 / 4 + 0) / 3)
    assert (report.pixels.pxap, report.pixels.mean_pxap) == (1.0, 1.0)
    assert report.pixels.chance == pytest.approx(5 / 16)


def test_exactly_half_of_the_image_is_chance_unless_strict():
    report = locate_report(perfect(REGIONS, 2), LOGITS, LABELS, REGIONS, options=replace(SMALL, strict=True))
    assert report.ranked_chance == report.present.ioa_hits_chance == 0.0


def test_maps_beside_their_objects_score_nothing():
    """Objects in the left and maps in the right half: no overlap anywhere, and object pixels come last: 1/2 at best."""
    regions = [{0: at(LEFT)}, {}]
    maps = np.roll(perfect(regions, 1), 4, 3)
    report = locate_report(maps, np.array([[1.0], [0.0]]), np.array([[P], [N]], np.int8), regions, options=SMALL)
    assert report.present.pointing == report.ranked.map_loc == report.boxes.max_box_acc == 0.0
    assert report.present.ioa.tolist() == [0.0] * 4
    assert report.ranked.map_cl == 1.0
    assert report.pixels.pxap == 0.5


def test_flat_maps_reach_chance_where_a_flat_map_is_judged():
    report = locate_report(np.full((4, 2, 3, 3), 0.3), LOGITS, LABELS, REGIONS, options=SMALL)
    assert report.present.pointing == pytest.approx(report.present.chance)
    assert report.pixels.pxap == pytest.approx(report.pixels.chance)
    # Cut as they are, below their value, they are the whole image.
    options = replace(SMALL, normalise="none", thresholds=(0.2,))
    report = locate_report(np.full((4, 2, 3, 3), 0.3), LOGITS, LABELS, REGIONS, options=options)
    assert report.ranked.map_loc == pytest.approx(report.ranked_chance)
    assert report.present.ioa.tolist() == [pytest.approx(report.present.chance)]
    assert report.present.ioa_hits.tolist() == [report.present.ioa_hits_chance]


def test_positives_without_a_region_or_with_a_point_are_left_out_and_counted():
    regions = [{0: at(LEFT), 1: at((0.5, 0.5, 0.5, 0.5), CORNER)}, {}, {}, {0: at(MIDDLE)}]
    report = locate_report(perfect(regions, 2), LOGITS, LABELS, regions, options=SMALL)
    assert report.present.pairs == report.boxes.pairs == 2
    assert report.ranked.unlocated.tolist() == [0, 2]
    assert report.ranked.excluded == {1: "no located positive"}
    assert report.ranked.map_loc == 1.0
    assert np.isnan(report.pixels.per_class[1])


def test_options_are_passed_on():
    """A map of .4 on the left of an object's half and 1 on its right, 0 elsewhere; the object is the right half."""
    heatmap = np.zeros((1, 1, 8, 8))
    heatmap[..., 2:] = 0.4
    heatmap[..., 5:] = 0.8
    regions, labels, logits = [{0: at((0.5, 0.0, 1.0, 1.0))}, {}], np.array([[P], [N]], np.int8), np.array([[1.0], [0]])
    maps = np.concatenate([heatmap, heatmap])

    def report(**changes):
        return locate_report(maps, logits, labels, regions, options=replace(SMALL, **changes))

    # .4 / .8 reaches .5 but not .6: at .5, 6 columns of which 4 are inside; at .6, 3 of 3.
    assert report(thresholds=(0.5, 0.6)).present.ioa.tolist() == [pytest.approx(4 / 6), 1.0]
    assert report(thresholds=(0.3,), normalise="none").present.ioa.tolist() == [pytest.approx(4 / 6)]
    for hit, strict, expected in ((0.6, False, 1.0), (0.7, False, 0.0), (4 / 6, False, 1.0), (4 / 6, True, 0.0)):
        changed = report(thresholds=(0.5,), hit=hit, strict=strict)
        assert (changed.ranked.map_loc, changed.present.ioa_hits.tolist()) == (expected, [expected])
    # Boxes: 6 columns above 0, overlap 4/6; 3 above half, overlap 3/4.
    assert report(overlaps=(0.6, 0.7, 0.8)).boxes.correct.tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert report(overlaps=(0.7,), cuts=(0.0,)).boxes.max_box_acc == 0.0
    # With the last pixels counted, boxes are pulled in from 8 to 7: 5 to 7 of 4 to 8, times 8 of 9 rows.
    assert report(overlaps=(8 / 15,), cuts=(0.5,), rule="wsol").boxes.max_box_acc == 1.0
    assert report(overlaps=(8 / 15 + 0.01,), cuts=(0.5,), rule="wsol").boxes.max_box_acc == 0.0
    # One bin and that of exactly 1: three columns inside come first, the rest is one group.
    assert report(bins=1).pixels.pxap == pytest.approx(3 / 4 * 1 + 1 / 4 * 4 / 8)
    assert report(size=(4, 2)).pixels.inside.sum() == pytest.approx(0.5)


def test_only_the_largest_part_may_count():
    """A 2 x 2 square on the object and a 3 x 3 one elsewhere."""
    maps = np.zeros((1, 1, 8, 8))
    maps[0, 0, :2, :2] = maps[0, 0, 4:7, 4:7] = 1
    regions, labels, logits = [{0: at((0.0, 0.0, 0.25, 0.25))}], np.array([[P]], np.int8), np.zeros((1, 1))
    for parts, expected in (("all", 1.0), ("outer", 1.0), ("largest", 0.0)):
        options = replace(SMALL, parts=parts)
        assert locate_report(maps, logits, labels, regions, options=options).boxes.max_box_acc == expected


# --- regions


def test_a_mask_counts_as_it_is_and_its_parts_give_the_boxes():
    """Two parts on 4 x 8; the hole of the ring is no box."""
    mask = np.zeros((4, 8), bool)
    mask[0:3, 0:3] = True
    mask[1, 1] = False
    mask[3, 6:8] = True
    region = Region.from_mask(mask)
    assert sorted(region.boxes.tolist()) == [[0.0, 0.0, 0.375, 0.75], [0.75, 0.75, 1.0, 1.0]]
    problem = (mask[None, None].astype(np.float32), np.zeros((1, 1)), np.array([[P]], np.int8), [{0: region}])
    report = locate_report(*problem, options=replace(SMALL, size=(4, 8)))
    assert report.present.chance == report.pixels.chance == 10 / 32
    assert report.pixels.pxap == report.boxes.max_box_acc == report.present.pointing == 1.0
    # Boxes are read off at one size, whatever the mask's; pixels are compared at the mask's.
    coarse = locate_report(*problem, options=replace(SMALL, size=(2, 2), overlaps=(0.9,)))
    assert (coarse.pixels.pxap, coarse.boxes.max_box_acc) == (1.0, 0.0)


def test_unknown_pixels_are_never_counted():
    """Half of the hot pixels lie where it is not known: without them the map is perfect, the object 1 of 3 known."""
    mask = np.array([[P, U, N, N]], np.int8)
    maps = np.array([[[[1.0, 1.0, 0.0, 0.0]]]])
    report = locate_report(maps, np.zeros((1, 1)), np.array([[P]], np.int8), [{0: Region.from_mask(mask)}])
    assert report.present.ioa.tolist() == [1.0] * 4
    assert report.present.pointing == report.pixels.pxap == 1.0
    assert report.present.chance == report.pixels.chance == pytest.approx(1 / 3)
    all_known = Region.from_mask(np.where(mask == U, N, mask).astype(np.int8))
    report = locate_report(maps, np.zeros((1, 1)), np.array([[P]], np.int8), [{0: all_known}])
    assert report.present.ioa.tolist() == [0.5] * 4


def test_points_have_no_extent():
    assert not at((0.5, 0.5, 0.5, 0.5)).has_extent
    assert not at(LEFT, (0.5, 0.5, 0.5, 0.6)).has_extent
    assert at(LEFT).has_extent
    assert Region.from_mask(np.ones((1, 1), bool)).has_extent


# --- the parts it is made of, and properties


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    n, c = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    labels = rng.choice(np.array([P, N, U], np.int8), (n, c))
    labels[0, 0] = P
    regions: list[dict[int, Region]] = [{} for _ in range(n)]
    for image, class_ in np.argwhere(labels == P).tolist():
        if (image, class_) == (0, 0) or rng.random() < 0.8:
            corners = np.sort(rng.integers(0, 7, (rng.integers(1, 3), 2, 2)), 1)
            corners[:, 1] += 1
            regions[image][class_] = Region(corners.reshape(-1, 4) / 8)
    return rng.random((n, c, 3, 4)), rng.integers(0, 4, (n, c)).astype(np.float64), labels, regions


@given(problems())
def test_equals_the_single_metrics(problem):
    maps, logits, labels, regions = problem
    report = locate_report(maps, logits, labels, regions, options=SMALL)
    located = [(n, c, region) for n, row in enumerate(regions) for c, region in row.items()]
    pairs = [(maps[n, c], boxes_to_mask(region.boxes, (8, 8))) for n, c, region in located]
    single = localisation_report(pairs)
    assert (report.present.pairs, report.present.pointing) == (single.pairs, pytest.approx(single.pointing))
    np.testing.assert_allclose(report.present.ioa, single.ioa)
    np.testing.assert_allclose(report.present.ioa_hits, single.ioa_hits)
    assert report.pixels.pxap == pytest.approx(pxap(pairs, bins=100))
    for c, value in enumerate(report.pixels.per_class):
        own = [pair for pair, (_, k, _) in zip(pairs, located, strict=True) if k == c]
        assert np.isnan(value) if not own else value == pytest.approx(pxap(own, bins=100))
    rows = [(maps[n, c], region.boxes) for n, c, region in located]
    boxes_ = box_report(rows, size=(8, 8), cuts=SMALL.cuts)
    np.testing.assert_array_equal(report.boxes.correct, boxes_.correct)
    np.testing.assert_array_equal(report.boxes.whole_image, boxes_.whole_image)
    assert not np.nan_to_num(report.ranked.map_loc - report.ranked.map_cl) > 1e-12


@given(problems(), st.randoms(use_true_random=False))
def test_images_may_come_in_any_order_and_as_generators(problem, random):
    maps, logits, labels, regions = problem
    report = locate_report(maps, logits, labels, regions, options=SMALL)
    order = random.sample(range(len(labels)), len(labels))
    again = locate_report(
        (maps[n] for n in order), logits[order], labels[order], (regions[n] for n in order), options=SMALL
    )
    for key, value in report.to_dict().items():
        if isinstance(value, float):
            assert again.to_dict()[key] == pytest.approx(value)
    np.testing.assert_allclose(again.ranked.localised, report.ranked.localised)
    np.testing.assert_allclose(again.pixels.per_class, report.pixels.per_class)


@given(problems())
def test_maps_and_scores_of_cells_that_are_not_positive_enter_as_labelled_only(problem):
    """Maps of cells without a region are never looked at; scores of unknown cells neither."""
    maps, logits, labels, regions = problem
    report = locate_report(maps, logits, labels, regions, options=SMALL)
    other, scores = maps.copy(), logits.copy()
    for n, c in np.ndindex(labels.shape):
        if c not in regions[n]:
            other[n, c] = np.nan
            if labels[n, c] != N:
                scores[n, c] = 99.0
    assert locate_report(other, scores, labels, regions, options=SMALL).to_dict() == report.to_dict()


def test_the_ranked_part_is_map_loc_of_the_ioa():
    rng = np.random.default_rng(3)
    maps = rng.random((4, 2, 4, 4))
    report = locate_report(maps, LOGITS, LABELS, REGIONS, options=SMALL)
    where = np.array([(n, c) for n, row in enumerate(REGIONS) for c in row])
    ioa = [localisation_report([(maps[n, c], boxes_to_mask(REGIONS[n][c].boxes, (8, 8)))]).ioa for n, c in where]
    expected = map_loc_report(LOGITS, LABELS, where, np.stack(ioa))
    np.testing.assert_allclose(report.ranked.localised, expected.localised)


# --- plain values


def test_to_dict():
    regions = [{0: at(LEFT)}, {}, {}, {0: at(MIDDLE)}]
    report = locate_report(perfect(regions, 2), LOGITS, LABELS, regions, options=replace(SMALL, thresholds=(0.6,)))
    result = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert all(result[metric["key"]] == metric["value"] for metric in result.pop("metrics"))
    assert result == {
        "images": 4,
        "located": 2,
        "not_located": 2,
        "pointing": 1.0,
        "pointing_chance": 0.375,
        "IoA-P": 1.0,
        "IoA-P_chance": 0.375,
        "IoA-P_hits": 1.0,
        "IoA-P_hits_chance": 0.5,
        "mAP-loc": 1.0,
        "mAP-loc_chance": 0.5,
        "mAP-loc_best_threshold": 1.0,
        "mAP-cl_same_cells": 1.0,
        "mAP-cl_same_cells_chance": 0.5,
        "MaxBoxAccV2": 1.0,
        "MaxBoxAccV2_chance": pytest.approx(1 / 3),
        "PxAP": 1.0,
        "PxAP_chance": 0.375,
        "mean_PxAP": 1.0,
        "by_threshold": [{"threshold": 0.6, "IoA-P": 1.0, "IoA-P_hits": 1.0, "mAP-loc": 1.0}],
        "by_overlap": [{"overlap": o, "accuracy": 1.0, "best_cut": 0.0} for o in (0.3, 0.5, 0.7)],
        "per_class": [
            {
                "mAP-loc": 1.0,
                "mAP-cl_same_cells": 1.0,
                "PxAP": 1.0,
                "located": 2,
                "not_located": 0,
                "negatives": 2,
                "excluded": None,
            },
            {
                "mAP-loc": None,
                "mAP-cl_same_cells": None,
                "PxAP": None,
                "located": 0,
                "not_located": 2,
                "negatives": 1,
                "excluded": "no located positive",
            },
        ],
    }


# --- errors


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ((0.2, 0.0, 0.1, 1.0), "[0.2, 0.0, 0.1, 1.0]"),
        ((0.0, 0.0, 30.0, 40.0), "[0.0, 0.0, 30.0, 40.0]"),
        ((-0.1, 0.0, 0.1, 1.0), "[-0.1, 0.0, 0.1, 1.0]"),
        ((np.nan, 0.0, 0.1, 1.0), "[nan, 0.0, 0.1, 1.0]"),
    ],
)
def test_broken_boxes_are_refused(row, got):
    with pytest.raises(DataError) as error:
        at(LEFT, row)
    expected = f"a box is x0 <= x1, y0 <= y1 in 0..1 of the image, got {got}; divide by width and height."
    assert str(error.value) == expected


def test_empty_regions_are_refused():
    with pytest.raises(DataError) as error:
        at()
    expected = "a region needs at least one box; leave out classes that are absent or not located."
    assert str(error.value) == expected
    for mask in (np.zeros((2, 2), bool), np.full((2, 2), U, np.int8)):
        with pytest.raises(DataError) as error:
            Region.from_mask(mask)
        assert str(error.value) == "the mask of a region is empty; leave out classes that are absent."
        with pytest.raises(DataError) as error:
            Region(boxes(LEFT), mask)
        assert str(error.value) == "the mask of a region is empty; leave out classes that are absent."


def test_masks_of_another_type_are_refused(monkeypatch):
    """With 0 and 1 for absent and present a uint8 mask would have unknown pixels outside, and with 255 no object.

    Users run without the shape checks of the tests, which would be the first to refuse it.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for make in (Region.from_mask, lambda mask: Region(boxes(LEFT), mask)):
        for mask in (np.full((2, 2), 255, np.uint8), np.ones((2, 2), np.uint8)):
            with pytest.raises(DataError) as error:
                make(mask)
            assert str(error.value) == (
                "a mask is bool, or int8 values of Label, got uint8; use mask > 0 where it is 0 outside of the object."
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thresholds": ()}, "thresholds is empty; give at least one number from 0 to 1."),
        ({"overlaps": ()}, "overlaps is empty; give at least one number from 0 to 1."),
        ({"cuts": ()}, "cuts is empty; give at least one number from 0 to 1."),
        ({"bins": 0}, "bins is 0 and size (8, 8); expected 1 or more of each."),
        ({"size": (8, 0)}, "bins is 100 and size (8, 0); expected 1 or more of each."),
    ],
)
def test_options_that_leave_nothing_to_judge_by_are_refused(change, message):
    with pytest.raises(ConfigError) as error:
        replace(SMALL, **change)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"logits": LOGITS[:3]},
            "logits are (3, 2) and labels (4, 2); give one row an image, a column a class.",
        ),
        (
            {"maps": np.ones((3, 2, 2, 2))},
            "there are maps of 3 images, but labels of 4; give one entry an image, in order.",
        ),
        (
            {"maps": np.ones((5, 2, 2, 2))},
            "there are maps of more than 4 images, but labels of 4; give one entry an image, in order.",
        ),
        (
            {"regions": REGIONS[:3]},
            "there are regions of 3 images, but labels of 4; give one entry an image, in order.",
        ),
        (
            {"regions": [*REGIONS, {}]},
            "there are regions of more than 4 images, but labels of 4; give one entry an image, in order.",
        ),
        ({"maps": np.ones((4, 3, 2, 2))}, "image 0 has 3 maps for 2 classes; give one map a class."),
        (
            {"regions": [{}, {0: at(LEFT)}, {}, {}]},
            "class 0 has a region in image 1, but its label there is not positive; drop the region or set the label.",
        ),
        (
            {"regions": [{2: at(LEFT)}, {}, {}, {}]},
            "class number 2 has a region in image number 0, but there are 2 classes and 4 images, counted from 0.",
        ),
        (
            {"regions": [{0: at((0.5, 0.5, 0.5, 0.5))}, {}, {}, {}]},
            "no located object to measure against; localisation needs boxes or masks of positive classes.",
        ),
        (
            {"maps": np.full((4, 2, 2, 2), np.nan)},
            "the heatmap of image 0, class 0 contains a value that is not finite; the model or its input is broken.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    problem = {"maps": np.ones((4, 2, 2, 2)), "logits": LOGITS, "labels": LABELS, "regions": REGIONS, **change}
    with pytest.raises(DataError) as error:
        locate_report(**problem, options=SMALL)
    assert str(error.value) == message


def test_default_options_are_those_of_the_papers():
    """PatchML section 4; Choe et al. 2020, section 4."""
    assert (DEFAULT.thresholds, DEFAULT.hit, DEFAULT.overlaps) == ((0.6, 0.7, 0.8, 0.9), 0.5, (0.3, 0.5, 0.7))
