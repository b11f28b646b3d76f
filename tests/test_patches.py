"""Points, boxes and masks become labels of patches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from views import random_views

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.labels import Label, Places
from fewtags.patches import SLACK, cells_of_boxes, cells_of_masks, locations_to_crop, patch_labels

GOLDEN = json.loads((Path(__file__).parent / "golden" / "patch_losses.json").read_text())["own"]
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
WHOLE = View.identity()
RIGHT_HALF = View.crop(0.5, 0.0, 1.0, 1.0)

seeds = st.integers(0, 2**32 - 1)
grids = st.tuples(st.integers(1, 7), st.integers(1, 7))


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def places_of(*objects):
    """(row, class, (x0, y0, x1, y1)) each."""
    rows, classes, boxes = zip(*objects, strict=True)
    return Places(torch.tensor(rows), torch.tensor(classes), torch.tensor(boxes, dtype=torch.float32))


def random_objects(rng, number):
    """Boxes of all sizes, a third of them points; float32 [number, 4]."""
    ends = np.sort(rng.random((number, 2, 2)), 1)
    boxes = ends.reshape(number, 4)
    point = rng.random(number) < 1 / 3
    boxes[point, 2:] = boxes[point, :2]
    return boxes.astype(np.float32)


# --- derived by hand


def test_a_box_fills_the_cells_it_covers_to_half():
    """Grid 2 x 4, box x .125..0.75, y 0..0.75: columns 1/2, 1, 1, 0 of a cell, rows 1, 1/2.

    Row 0: .5, 1, 1, 0. Row 1: .25, .5, .5, 0. A half is enough.
    """
    cells = cells_of_boxes(torch.tensor([[0.125, 0.0, 0.75, 0.75]]), (2, 4))
    assert cells.int().tolist() == [[[1, 1, 1, 0], [0, 1, 1, 0]]]
    cells = cells_of_boxes(torch.tensor([[0.125, 0.0, 0.75, 0.75]]), (2, 4), coverage=0.51)
    assert cells.int().tolist() == [[[0, 1, 1, 0], [0, 0, 0, 0]]]


def test_a_small_box_fills_the_cell_it_covers_most_and_the_first_of_several_alike():
    """Grid 4 x 4. A box of .25 cells about x = 2, y = 2 covers four cells to 1/16; a shifted one more of (2, 1)."""
    boxes = torch.tensor([[0.4375, 0.4375, 0.5625, 0.5625], [0.40, 0.45, 0.55, 0.60]])
    assert cells_of_boxes(boxes, (4, 4)).nonzero().tolist() == [[0, 1, 1], [1, 2, 1]]


def test_points_and_boxes_without_area_fill_the_cell_of_their_centre():
    """Grid 2 x 4: (.5, .5) belongs to the cell that begins there, (1, 1) to the last; the line's centre is (.6, .2)."""
    boxes = torch.tensor([[0.5, 0.5, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.3, 0.2, 0.9, 0.2]])
    assert cells_of_boxes(boxes, (2, 4)).nonzero().tolist() == [[0, 1, 2], [1, 1, 3], [2, 0, 0], [3, 0, 2]]


def test_masks_fill_cells_by_area():
    """3 x 3 pixels on a 2 x 2 grid: a cell spans 1.5 pixels, so the centre pixel counts for each to a quarter.

    A cell is 2.25 pixels. The first mask's top row covers 1.5 x 1 of (0, 0): 2/3. The second, the centre pixel, covers
    .25 / 2.25 = 1/9 of each cell: the first one. The third is empty.
    """
    top, centre, empty = torch.zeros(3, 3, 3, dtype=torch.bool)
    top[0], centre[1, 1] = True, True
    masks = torch.stack([top, centre, empty])
    expected = [[[1, 1], [0, 0]], [[1, 0], [0, 0]], [[0, 0], [0, 0]]]
    assert cells_of_masks(masks, (2, 2)).int().tolist() == expected
    assert cells_of_masks(masks.float() * 0.7, (2, 2)).int()[0].tolist() == [[1, 0], [0, 0]]  # 2/3 of .7 is under .5
    assert cells_of_masks(masks, (2, 2), coverage=0.1)[1].all()


def test_objects_move_into_the_crop():
    """The right half, doubled in x: half a box, nothing, a whole box, a point, a point outside; then flipped."""
    boxes = torch.tensor(
        [
            [0.25, 0.2, 0.75, 0.4],
            [0.0, 0.0, 0.4, 1.0],
            [0.6, 0.5, 0.8, 1.0],
            [0.75, 0.5, 0.75, 0.5],
            [0.1, 0.5, 0.1, 0.5],
        ]
    )
    moved, visible = locations_to_crop(boxes, stack_views([RIGHT_HALF] * 5), 0.5)
    assert visible.tolist() == [True, False, True, True, False]
    expected = [[0.0, 0.2, 0.5, 0.4], [0.2, 0.5, 0.6, 1.0], [0.5, 0.5, 0.5, 0.5]]
    np.testing.assert_allclose(moved[visible], expected, atol=1e-6)
    _, visible = locations_to_crop(boxes, stack_views([RIGHT_HALF] * 5), 0.51)
    assert visible.tolist() == [False, False, True, True, False]
    moved, _ = locations_to_crop(boxes[2:3], stack_views([RIGHT_HALF.then(View.flip())]), 0.5)
    np.testing.assert_allclose(moved, [[0.4, 0.5, 0.8, 1.0]], atol=1e-6)


def test_a_box_beside_the_crop_is_not_visible_even_where_nothing_is_asked_of_it():
    boxes = torch.tensor([[0.2, 0.2, 0.5, 0.4], [0.2, 0.2, 0.51, 0.4]])
    _, visible = locations_to_crop(boxes, stack_views([RIGHT_HALF] * 2), 0.0)
    assert visible.tolist() == [False, True]


def test_patch_labels_by_hand():
    """One image through its right half, flipped, on a 1 x 2 grid: crop cell 0 is x .75..1, cell 1 is x .5..0.75.

    Class 0: points at .9 and .1, the first is seen in cell 0. Class 1: a point at .1, cropped away. Class 2: positive
    without a place. Class 3: negative. Class 4: unknown. Class 5: negative, and class 6: unknown, with a point: the
    image label holds.
    """
    labels = int8([[P, P, P, N, U, N, U]])
    spots = [(0, 0.9), (0, 0.1), (1, 0.1), (5, 0.9), (6, 0.9)]
    places = places_of(*[(0, class_, (x, 0.5, x, 0.5)) for class_, x in spots])
    views = stack_views([RIGHT_HALF.then(View.flip())])
    expected = [[[P, U]], [[U, U]], [[U, U]], [[N, N]], [[U, U]], [[N, N]], [[U, U]]]
    for cropped, of_class_1 in [("unknown", U), ("keep", P)]:
        patches, seen = patch_labels(labels, places, views, (1, 2), coverage=0.5, min_visible=0.5, cropped=cropped)
        assert patches.dtype == seen.dtype == torch.int8
        assert patches.tolist() == [expected]
        assert seen.tolist() == [[P, of_class_1, P, N, U, N, U]]
    assert labels.tolist() == [[P, P, P, N, U, N, U]]


def test_objects_of_a_class_fill_cells_together_and_images_stay_apart():
    """Two points and a box of class 1 in image 1, one point of class 0 in image 0; grid 2 x 2."""
    places = places_of(
        (1, 1, (0.1, 0.1, 0.1, 0.1)),
        (0, 0, (0.9, 0.1, 0.9, 0.1)),
        (1, 1, (0.1, 0.1, 0.1, 0.1)),
        (1, 1, (0.5, 0.5, 1.0, 1.0)),
    )
    views = stack_views([WHOLE] * 2)
    patches, seen = patch_labels(
        int8([[P, N], [P, P]]), places, views, (2, 2), coverage=0.5, min_visible=0.5, cropped="unknown"
    )
    assert patches.tolist() == [[[[U, P], [U, U]], [[N, N], [N, N]]], [[[U, U], [U, U]], [[P, U], [U, P]]]]
    assert seen.tolist() == [[P, N], [P, P]]


# --- golden values


def test_golden_point_cells():
    """1/14 and 2/14 are written with nine digits, which float32 rounds back."""
    uv = torch.tensor(GOLDEN["point_cell"]["uv"], dtype=torch.float32)
    cells = cells_of_boxes(uv.repeat(1, 2), tuple(GOLDEN["point_cell"]["grid"]))
    assert cells.nonzero()[:, 1:].tolist() == GOLDEN["point_cell"]["row_col"]


@pytest.fixture
def golden_boxes():
    """In float64: the second box lies evenly on four cells, and its value is what float64 rounding made of the tie."""
    centre, size = torch.tensor(GOLDEN["box_cells"]["boxes_cxcywh"], dtype=torch.float64).split(2, 1)
    return torch.cat([centre - size / 2, centre + size / 2], 1)


def test_golden_box_cells(golden_boxes):
    expected = GOLDEN["box_cells"]
    assert cells_of_boxes(golden_boxes, (4, 4), 0.5).int().tolist() == expected["coverage_0_5"]
    assert cells_of_boxes(golden_boxes, (4, 4), 0.01).int().tolist() == expected["any"]


@pytest.mark.parametrize("coverage", [0.03, 0.09, 0.2, 0.6, 0.85, 1.0])
def test_golden_overlaps(golden_boxes, coverage):
    overlap = np.array(GOLDEN["box_cells"]["overlap_in_cells"])
    cells = cells_of_boxes(golden_boxes, (4, 4), coverage).numpy()
    for filled, share in zip(cells, overlap, strict=True):
        if (share >= coverage).any():
            np.testing.assert_array_equal(filled, share >= coverage)
        else:
            assert filled.sum() == 1
            assert share[filled] == share.max()


def test_golden_crop_of_points():
    for (u, v, x0, y0, w, h, flip), expected in zip(
        GOLDEN["crop_point"]["cases"], GOLDEN["crop_point"]["out"], strict=True
    ):
        view = View.crop(x0, y0, x0 + w, y0 + h)
        views = stack_views([view.then(View.flip()) if flip else view])
        moved, visible = locations_to_crop(torch.tensor([[u, v, u, v]]), views, 0.5)
        assert visible.item() == (expected is not None)
        if expected is not None:
            np.testing.assert_allclose(moved[0], expected * 2, atol=1e-6)


def overlaps(boxes, grid):
    """Share of each cell in each box: intersection of two rectangles, in cell units."""
    h, w = grid
    share = np.zeros((len(boxes), h, w))
    for m, i, j in np.ndindex(*share.shape):
        x0, y0, x1, y1 = boxes[m] * [w, h, w, h]
        share[m, i, j] = max(0, min(x1, j + 1) - max(x0, j)) * max(0, min(y1, i + 1) - max(y0, i))
    return share


@pytest.mark.parametrize("row", GOLDEN["box_rule_statistics"]["rows"], ids=lambda r: f"{r['side_cells']} cells")
@pytest.mark.parametrize(("rule", "coverage"), [("any", 1e-4), ("cov .25", 0.25), ("cov .5", 0.5), ("cov 1", 1.0)])
def test_golden_statistics_of_the_box_rule(row, rule, coverage):
    """Squares at all offsets within a cell; the golden means are of 1500 random ones, so with a few percent of error.

    Not compared: the second number, of boxes without a cell before the fall-back.
    """
    offsets, side, grid = (np.arange(12) + 0.5) / 12, row["side_cells"], 7
    x, y = (axis.ravel() for axis in np.meshgrid(1 + offsets, 1 + offsets))
    boxes = np.stack([x, y, x + side, y + side], 1) / grid
    cells = cells_of_boxes(torch.tensor(boxes), (grid, grid), coverage).numpy()
    mean_cells, _, mean_background = row[rule]
    count = cells.sum((1, 2))
    background = 1 - (overlaps(boxes, (grid, grid)) * cells).sum((1, 2)) / count
    assert count.mean() == pytest.approx(mean_cells, rel=0.04)
    assert background.mean() == pytest.approx(mean_background, abs=0.02)


# --- slow references


def reference_cells(box, grid, coverage):
    """Cells (row, column) of one box or point, in plain Python."""
    h, w = grid
    share = overlaps(box[None].astype(np.float64), grid)[0]
    if (share >= coverage - SLACK).any():
        return {tuple(cell) for cell in np.argwhere(share >= coverage - SLACK)}
    if share.max() > 0:
        return {np.unravel_index(share.argmax(), share.shape)}
    x, y = (box[:2] + box[2:]) / 2
    return {(min(int(y * h), h - 1), min(int(x * w), w - 1))}


@pytest.mark.parametrize("grid", [(1, 1), (4, 3), (1, 6), (14, 14)])
@pytest.mark.parametrize("coverage", [0.1, 0.5, 1.0])
def test_cells_equal_a_loop(grid, coverage):
    boxes = random_objects(np.random.default_rng(grid), 40)
    boxes[20:, 2:] = boxes[20:, :2] + (boxes[20:, 2:] - boxes[20:, :2]) / 8  # small ones
    cells = cells_of_boxes(torch.tensor(boxes), grid, coverage)
    for box, filled in zip(boxes, cells, strict=True):
        assert {tuple(cell) for cell in filled.nonzero().tolist()} == reference_cells(box, grid, coverage)


@pytest.mark.parametrize(("pixels", "grid"), [((6, 8), (3, 4)), ((5, 7), (3, 2)), ((3, 2), (5, 5)), ((1, 1), (2, 2))])
def test_masks_equal_a_loop_over_pixels(pixels, grid):
    """Each pixel is a small box: what it covers of a cell, summed over the mask."""
    masks = np.random.default_rng(0).random((6, *pixels)) < 0.4
    masks[0] = True
    squares = [[j / pixels[1], i / pixels[0], (j + 1) / pixels[1], (i + 1) / pixels[0]] for i, j in np.ndindex(*pixels)]
    of_pixels = overlaps(np.array(squares), grid)
    cells = cells_of_masks(torch.tensor(masks), grid, 0.45).numpy()
    for mask, filled in zip(masks, cells, strict=True):
        share = of_pixels[mask.ravel()].sum(0)
        enough = share >= 0.45 - SLACK
        if enough.any():
            np.testing.assert_array_equal(filled, enough)
        else:
            assert filled.sum() == min(1, mask.sum())
            assert share[filled].tolist() == pytest.approx([share.max()] * filled.sum())


@pytest.mark.parametrize("cropped", ["unknown", "keep"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 3), (2, 9)])
def test_patch_labels_equal_a_loop_over_images_classes_and_objects(cropped, shape):
    """With the numpy geometry of `View`, one object after the other."""
    rng = np.random.default_rng(shape)
    grid, coverage, min_visible = (3, 5), 0.4, 0.3
    labels = rng.integers(-1, 2, shape).astype(np.int8)
    labels[0, 0] = P
    views, boxes = random_views(rng, shape[0]), random_objects(rng, 25)
    row, classes = rng.integers(0, shape[0], 25), rng.integers(0, shape[1], 25)
    expected, expected_labels = np.full((*shape, *grid), U), labels.copy()
    for n, c in np.ndindex(*shape):
        if labels[n, c] != P:
            expected[n, c] = labels[n, c]
            continue
        moved, share = views[n].boxes_to_crop(boxes[(row == n) & (classes == c)].astype(np.float64))
        for box in moved[(share > 0) & (share >= min_visible)]:
            for cell in reference_cells(box, grid, coverage):
                expected[n, c][cell] = P
        if cropped == "unknown" and len(share) and not ((share > 0) & (share >= min_visible)).any():
            expected_labels[n, c] = U
    places = Places(torch.tensor(row), torch.tensor(classes), torch.tensor(boxes))
    patches, seen = patch_labels(
        torch.tensor(labels),
        places,
        stack_views(views),
        grid,
        coverage=coverage,
        min_visible=min_visible,
        cropped=cropped,
    )
    np.testing.assert_array_equal(patches, expected)
    np.testing.assert_array_equal(seen, expected_labels)


# --- properties

entries = st.floats(-2.0, 2.0)
affine = st.builds(lambda *m: View(m), *[entries] * 6).filter(
    lambda v: abs(v.matrix[0] * v.matrix[4] - v.matrix[1] * v.matrix[3]) > 0.05
)


@given(seeds, st.lists(affine, min_size=1, max_size=3), st.floats(0, 1))
def test_the_geometry_is_that_of_views(seed, turned, min_visible):
    """Crops, flips, and any other affine view; where a float32 rounding cannot decide."""
    rng = np.random.default_rng(seed)
    views = [*random_views(rng, 6), *turned]
    boxes = random_objects(rng, len(views))
    moved, visible = locations_to_crop(torch.tensor(boxes), stack_views(views), min_visible)
    for n, view in enumerate(views):
        expected, share = view.boxes_to_crop(boxes[n : n + 1].astype(np.float64))
        np.testing.assert_allclose(moved[n], expected[0], atol=2e-4)
        corner = view.to_crop(boxes[n : n + 1, :2].astype(np.float64))
        point = (boxes[n, :2] == boxes[n, 2:]).all()
        distance = np.abs(np.abs(corner - 0.5) - 0.5).min() if point else min(abs(share[0] - min_visible), share[0])
        if distance > 1e-3 or (not point and share[0] == 0):
            assert visible[n] == ((share[0] > 0) and (point or share[0] >= min_visible))


@given(seeds, grids)
def test_the_crop_of_a_flip_is_the_flip_of_the_crop(seed, grid):
    """Of small boxes that cover several cells alike the first cell counts, which is another one in the mirror."""
    rng = np.random.default_rng(seed)
    views, labels = random_views(rng, 3), torch.tensor(rng.integers(-1, 2, (3, 2)).astype(np.int8))
    places = Places(
        torch.tensor(rng.integers(0, 3, 8)), torch.tensor(rng.integers(0, 2, 8)), torch.tensor(random_objects(rng, 8))
    )
    options = {"coverage": 0.001, "min_visible": 0.25, "cropped": "unknown"}
    patches, seen = patch_labels(labels, places, stack_views(views), grid, **options)
    flipped = stack_views([view.then(View.flip()) for view in views])
    mirrored, still_seen = patch_labels(labels, places, flipped, grid, **options)
    assert torch.equal(mirrored, patches.flip(3))
    assert torch.equal(still_seen, seen)


@given(seeds, grids)
def test_the_order_of_objects_does_not_matter_and_batches_can_be_split(seed, grid):
    rng = np.random.default_rng(seed)
    views, labels = stack_views(random_views(rng, 3)), torch.tensor(rng.integers(-1, 2, (3, 4)).astype(np.int8))
    places = Places(
        torch.tensor(rng.integers(0, 3, 12)),
        torch.tensor(rng.integers(0, 4, 12)),
        torch.tensor(random_objects(rng, 12)),
    )
    options = {"coverage": 0.5, "min_visible": 0.25, "cropped": "unknown"}
    patches, seen = patch_labels(labels, places, views, grid, **options)
    order = torch.tensor(rng.permutation(12))
    shuffled, also_seen = patch_labels(labels, Places(*(part[order] for part in places)), views, grid, **options)
    assert torch.equal(shuffled, patches)
    assert torch.equal(also_seen, seen)
    for n in range(3):
        own = places.row == n
        alone = Places(places.row[own] - n, places.classes[own], places.boxes[own])
        one, one_seen = patch_labels(labels[[n]], alone, views[[n]], grid, **options)
        assert torch.equal(one, patches[[n]])
        assert torch.equal(one_seen, seen[[n]])


@given(seeds, grids)
def test_image_labels_and_patches_never_contradict_each_other(seed, grid):
    """Negatives survive every crop, nothing becomes known that was not, and what is seen stays positive."""
    rng = np.random.default_rng(seed)
    labels = torch.tensor(rng.integers(-1, 2, (4, 3)).astype(np.int8))
    places = Places(
        torch.tensor(rng.integers(0, 4, 9)), torch.tensor(rng.integers(0, 3, 9)), torch.tensor(random_objects(rng, 9))
    )
    patches, seen = patch_labels(
        labels, places, stack_views(random_views(rng, 4)), grid, coverage=0.5, min_visible=0.5, cropped="unknown"
    )
    assert torch.equal(seen == N, labels == N)
    assert torch.equal((patches == N).flatten(2).all(2), labels == N)
    assert ((seen == labels) | (labels == P) & (seen == U)).all()
    assert (seen[(patches == P).flatten(2).any(2)] == P).all()


@given(st.floats(0.01, 1), st.floats(0, 1), st.booleans(), grids)
def test_what_lies_on_the_edge_of_the_image_is_seen_at_the_edge_of_the_crop(side, y, flip, grid):
    """Crops that reach the left or the right edge, in float32: 0 and 1 may come out a rounding beyond."""
    for left, x in ((0.0, 0.0), (1 - side, 1.0)):
        view = View.crop(left, 0.0, left + side, 1.0)
        views = stack_views([view.then(View.flip()) if flip else view])
        boxes, visible = locations_to_crop(torch.tensor([[x, y, x, y]], dtype=torch.float32), views, 1.0)
        assert visible.all()
        column = cells_of_boxes(boxes, grid).nonzero()[0, 2]
        assert column == (0 if (x == 0) != flip else grid[1] - 1)


@given(st.integers(0, 90), st.integers(10, 100), st.booleans())
def test_a_box_that_the_crop_just_holds_is_wholly_visible(left, width, flip):
    """Crops have a tenth of the photo's width or more: float32 exceeds the tolerance in narrower ones."""
    box = np.array([left, 20, min(left + width, 100), 70]) / 100
    view = View.crop(*box)
    views = stack_views([view.then(View.flip()) if flip else view])
    moved, visible = locations_to_crop(torch.tensor(box[None], dtype=torch.float32), views, 1.0)
    assert visible.all()
    assert cells_of_boxes(moved, (3, 4), coverage=1.0).all()


@given(seeds, grids, st.sampled_from([0.25, 0.5, 1.0]))
def test_a_drawn_box_fills_the_same_cells_as_the_box(seed, grid, coverage):
    """Boxes along pixel borders, so that drawing them as masks loses nothing."""
    rng = np.random.default_rng(seed)
    rows, columns = (np.sort(rng.choice(21, 2, replace=False)) for _ in range(2))
    mask = torch.zeros(1, 20, 20, dtype=torch.bool)
    mask[0, rows[0] : rows[1], columns[0] : columns[1]] = True
    box = np.array([[columns[0], rows[0], columns[1], rows[1]]]) / 20
    share = overlaps(box, grid)[0]
    assume((np.abs(share - coverage) > 1e-4).all() or (share > coverage + 1e-4).any())
    best = np.sort(share.ravel())[::-1]
    assume(share.max() > coverage or len(best) < 2 or best[0] - best[1] > 1e-4)
    drawn = cells_of_masks(mask, grid, coverage)
    same = cells_of_boxes(torch.tensor(box, dtype=torch.float32), grid, coverage)
    undecided = torch.tensor(np.abs(share - coverage) <= 1e-4)
    assert torch.equal(drawn[0] & ~undecided, same[0] & ~undecided)


# --- edges


@pytest.mark.parametrize("empty", [None, Places(torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0, 4))])
def test_no_objects_at_all(empty):
    labels = int8([[P, N, U]])
    patches, seen = patch_labels(
        labels, empty, stack_views([RIGHT_HALF]), (2, 2), coverage=0.5, min_visible=0.5, cropped="unknown"
    )
    assert patches[0, :, 0, 0].tolist() == [U, N, U]
    assert (patches == patches[:, :, :1, :1]).all()
    assert seen.tolist() == labels.tolist()
    assert cells_of_boxes(torch.zeros(0, 4), (2, 3)).shape == (0, 2, 3)
    assert cells_of_masks(torch.zeros(0, 5, 5, dtype=torch.bool), (2, 3)).shape == (0, 2, 3)


def test_an_empty_batch():
    patches, seen = patch_labels(
        torch.zeros(0, 3, dtype=torch.int8),
        Places(torch.zeros(0).long(), torch.zeros(0).long(), torch.zeros(0, 4)),
        stack_views([]),
        (2, 2),
        coverage=0.5,
        min_visible=0.5,
        cropped="unknown",
    )
    assert patches.shape == (0, 3, 2, 2)
    assert seen.shape == (0, 3)


def test_autocast_changes_nothing():
    rng = np.random.default_rng(0)
    boxes, views = torch.tensor(random_objects(rng, 50)), stack_views(random_views(rng, 50))
    masks = torch.rand(5, 30, 30, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        moved, visible = locations_to_crop(boxes, views, 0.3)
        cells, drawn = cells_of_boxes(moved, (14, 14)), cells_of_masks(masks, (14, 14))
    outside, visible_outside = locations_to_crop(boxes, views, 0.3)
    assert torch.equal(moved, outside)
    assert torch.equal(visible, visible_outside)
    assert torch.equal(cells, cells_of_boxes(outside, (14, 14)))
    assert torch.equal(drawn, cells_of_masks(masks, (14, 14)))


def test_nothing_waits_for_the_device():
    """A tensor on the meta device has no values: reading one, or a shape that depends on one, is an error."""
    ids = torch.empty(6, dtype=torch.int64, device="meta")
    places = Places(ids, ids, torch.empty(6, 4, device="meta"))
    labels, views = torch.empty(2, 3, dtype=torch.int8, device="meta"), torch.empty(2, 2, 3, device="meta")
    patches, seen = patch_labels(labels, places, views, (4, 5), coverage=0.5, min_visible=0.2, cropped="unknown")
    assert patches.shape == (2, 3, 4, 5)
    assert seen.device.type == "meta"


# --- errors


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.5, float("nan")])
def test_coverage_out_of_range(coverage):
    for call in (
        lambda: cells_of_boxes(torch.zeros(1, 4), (2, 2), coverage),
        lambda: cells_of_masks(torch.zeros(1, 2, 2), (2, 2), coverage),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value) == f"coverage is a share of a cell's area, above 0 and up to 1; got {coverage}."


@pytest.mark.parametrize("min_visible", [-0.1, 1.5, float("nan")])
def test_min_visible_out_of_range(min_visible):
    with pytest.raises(ConfigError) as error:
        locations_to_crop(torch.zeros(1, 4), stack_views([WHOLE]), min_visible)
    assert str(error.value) == f"min_visible is a share of a box's area, 0 to 1; got {min_visible}."


def test_an_unknown_word_for_cropped_objects():
    with pytest.raises(ConfigError) as error:
        patch_labels(int8([[P]]), None, stack_views([WHOLE]), (1, 1), coverage=0.5, min_visible=0.5, cropped="negative")
    assert str(error.value) == "cropped 'negative' is not one of unknown, keep."
