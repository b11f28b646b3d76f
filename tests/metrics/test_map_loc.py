import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.localisation import ioa_p
from fewtags.metrics.map_loc import map_loc_report
from fewtags.metrics.ranking import average_precision

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/patchml_wsol.json").read_text())["map_loc"]
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def column(*values, dtype=np.float64):
    return np.array(values, dtype)[:, None]


def cells(*pairs):
    return np.array(pairs, np.int64).reshape(-1, 2)


def golden_problem():
    """A class is present where its mask has a pixel, and negative elsewhere; maps follow the stated rule."""
    masks = np.array(GOLDEN["gt"], bool)
    count = masks[..., 0, 0].size * 9
    maps = np.abs(np.sin(0.9 * np.arange(count))).round(3).reshape(masks.shape)
    labels = np.where(masks.any((2, 3)), np.int8(P), np.int8(N))
    regions = np.argwhere(labels == P)
    ioa = np.stack([ioa_p(maps[n, c], masks[n, c]) for n, c in regions])
    return np.array(GOLDEN["scores"]), labels, regions, ioa


# --- derived by hand


def test_by_hand():
    """Ranking + - + + with IoA-P .6, -, .4, .5 at the first threshold and 0, -, 1, empty at the second.

    First: hits at ranks 1 and 4, the third place is one more wrong prediction: (1/1 + 2/4) / 3 = 1/2. Second: a hit at
    rank 3 alone: (1/3) / 3 = 1/9. Without regard to the maps: (1/1 + 2/3 + 3/4) / 3 = 29/36.
    """
    ioa = np.array([[0.6, 0.0], [0.4, 1.0], [0.5, np.nan]])
    labels = column(P, N, P, P, dtype=np.int8)
    report = map_loc_report(column(4, 3, 2, 1), labels, cells((0, 0), (2, 0), (3, 0)), ioa, thresholds=(0.6, 0.9))
    np.testing.assert_allclose(report.localised, [[1 / 2, 1 / 9]])
    np.testing.assert_allclose(report.by_threshold, [1 / 2, 1 / 9])
    assert report.map_loc == pytest.approx(11 / 36)
    assert report.best_map_loc == pytest.approx(1 / 2)
    assert report.map_cl == pytest.approx(29 / 36)
    assert report.thresholds == (0.6, 0.9)
    assert report.excluded == {}


def test_strict_leaves_out_exactly_one_half():
    """As above at the first threshold, but .5 is a miss: a hit at rank 1 alone, (1/1) / 3. From .4 on all are hits."""
    ioa = column(0.6, 0.4, 0.5)
    problem = (column(4, 3, 2, 1), column(P, N, P, P, dtype=np.int8), cells((0, 0), (2, 0), (3, 0)), ioa)
    assert map_loc_report(*problem, thresholds=(0.6,), strict=True).map_loc == pytest.approx(1 / 3)
    assert map_loc_report(*problem, thresholds=(0.6,), hit=0.4).map_loc == pytest.approx(29 / 36)


def test_tied_cells_enter_together():
    """A hit, a miss and a negative of one score: one right of three, of two positives: (1/3) / 2."""
    labels = column(P, P, N, dtype=np.int8)
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        where = cells(*((n, 0) for n in np.flatnonzero(labels[order, 0] == P)))
        ioa = column(*(1.0 if order[n] == 0 else 0.0 for n, _ in where))
        report = map_loc_report(np.ones((3, 1)), labels[order], where, ioa, thresholds=(0.6,))
        assert report.map_loc == pytest.approx(1 / 6)


def test_unknown_cells_and_positives_without_a_region_are_left_out():
    """Ranking unknown, unlocated +, located +, -: only the last two count, so AP is 1 either way."""
    labels = column(U, P, P, N, dtype=np.int8)
    report = map_loc_report(column(4, 3, 2, 1), labels, cells((2, 0)), column(0.9), thresholds=(0.6,))
    assert (report.map_loc, report.map_cl) == (1.0, 1.0)
    counts = (report.positives, report.negatives, report.unlocated, report.unknown)
    assert [v.tolist() for v in counts] == [[1], [1], [1], [1]]


def test_report_says_which_classes_are_left_out_and_why():
    labels = np.array([[P, P, N, U, P], [N, P, N, U, N]], np.int8)
    scores = np.random.default_rng(0).random(labels.shape)
    ioa = np.ones((3, 1))
    report = map_loc_report(scores, labels, cells((0, 0), (0, 1), (1, 1)), ioa, thresholds=(0.6,))
    assert report.excluded == {
        1: "no known negative",
        2: "no known positive",
        3: "nothing known",
        4: "no located positive",
    }
    assert np.isnan(report.localised[1:]).all()
    assert report.map_loc == pytest.approx(report.localised[0, 0])


def test_nothing_counted_is_nan():
    report = map_loc_report(np.ones((1, 1)), column(U, dtype=np.int8), cells(), np.ones((0, 4)))
    assert math.isnan(report.map_loc)
    assert math.isnan(report.map_cl)
    assert math.isnan(report.best_map_loc)
    assert np.isnan(report.by_threshold).all()


# --- golden


def test_golden():
    scores, labels, regions, ioa = golden_problem()
    report = map_loc_report(scores, labels, regions, ioa)
    expected = [[GOLDEN["ioa_by_threshold"][str(t)][n][c] for t in report.thresholds] for n, c in regions]
    np.testing.assert_allclose(ioa, expected, atol=1e-9)
    np.testing.assert_allclose(report.localised, GOLDEN["ap_class_x_threshold"], atol=1e-9)
    assert report.map_loc == pytest.approx(GOLDEN["mAP_loc"])
    assert report.map_cl == pytest.approx(GOLDEN["mAP_cls"])


# --- a slow reference and properties


@st.composite
def problems(draw):
    n, c = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    scores = draw(hnp.arrays(np.float64, (n, c), elements=st.integers(0, 3).map(float)))
    labels = draw(hnp.arrays(np.int8, (n, c), elements=st.sampled_from([P, N, U])))
    positive = np.argwhere(labels == P)
    located = draw(hnp.arrays(np.bool_, len(positive)))
    quarters = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, np.nan])
    ioa = draw(hnp.arrays(np.float64, (int(located.sum()), 2), elements=quarters))
    return scores, labels, positive[located], ioa


def slowly(scores, labels, regions, ioa, t, c):
    """Precision at every score that a hit has, times the hits with that score."""
    hits = {n for (n, k), row in zip(regions.tolist(), ioa, strict=True) if k == c and row[t] >= 0.5}
    located = {n for n, k in regions.tolist() if k == c}
    counted = [n for n in range(len(scores)) if labels[n, c] == N or n in located]
    if not located or len(counted) == len(located):
        return np.nan
    total = 0.0
    for hit in hits:
        above = [n for n in counted if scores[n, c] >= scores[hit, c]]
        total += sum(n in hits for n in above) / len(above)
    return total / len(located)


@given(problems())
def test_equals_a_loop_over_hits(problem):
    got = map_loc_report(*problem, thresholds=(0.6, 0.9)).localised
    expected = [[slowly(*problem, t, c) for t in range(2)] for c in range(len(got))]
    np.testing.assert_allclose(got, expected)


@given(problems(), st.randoms(use_true_random=False))
def test_never_above_the_map_of_the_same_cells_and_the_order_of_images_and_of_located_cells_is_irrelevant(
    problem, random
):
    scores, labels, regions, ioa = problem
    report = map_loc_report(*problem, thresholds=(0.6, 0.9))
    counted = ~np.isnan(report.classified)
    assert (report.localised[counted] <= report.classified[counted, None] + 1e-12).all()
    assert (np.isnan(report.localised) == ~counted[:, None]).all()
    order, turn = (random.sample(range(k), k) for k in (len(scores), len(regions)))
    moved = regions[turn].copy()
    moved[:, 0] = np.argsort(order)[moved[:, 0]]
    again = map_loc_report(scores[order], labels[order], moved, ioa[turn], thresholds=(0.6, 0.9))
    np.testing.assert_allclose(again.localised, report.localised)


@given(problems())
def test_with_nothing_but_hits_it_is_average_precision(problem):
    scores, labels, regions, ioa = problem
    report = map_loc_report(scores, labels, regions, np.ones_like(ioa), thresholds=(0.6, 0.9))
    cells = np.where(labels == N, np.int8(N), np.int8(U))
    cells[regions[:, 0], regions[:, 1]] = P
    expected = np.where((cells == N).any(0), average_precision(scores, cells), np.nan)
    np.testing.assert_allclose(report.localised, np.stack([expected] * 2, 1))


# --- errors


def test_located_cells_that_do_not_fit_the_labels_are_refused():
    labels, scores = np.array([[P, N], [P, U]], np.int8), np.zeros((2, 2))
    for where, message in {
        (
            (0, 0),
            (0, 1),
        ): "class 1 has a region in image 0, but its label there is not positive; drop the region or set the label.",
        ((1, 0), (0, 0), (1, 0)): "class 0 is listed more than once in image 1; unite the regions of a class first.",
        ((0, 2),): "class number 2 has a region in image number 0, but there are 2 classes and 2 images, counted from "
        "0.",
        (
            (-1, 0),
        ): "class number 0 has a region in image number -1, but there are 2 classes and 2 images, counted from 0.",
    }.items():
        with pytest.raises(DataError) as error:
            map_loc_report(scores, labels, cells(*where), np.ones((len(where), 1)), thresholds=(0.6,))
        assert str(error.value) == message


def test_a_nan_score_is_refused():
    with pytest.raises(DataError) as error:
        map_loc_report(column(0.0, np.nan), column(P, N, dtype=np.int8), cells((0, 0)), np.ones((1, 4)))
    assert str(error.value) == "the score of image 1, class 0 is not a number; the model or its input is broken."
