import io
import json
import os
import re
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.batched_views import stack_views
from fewtags.errors import CheckpointError
from fewtags.geometry import View
from fewtags.labels import Label, LabelMatrix
from fewtags.stores.heatmap_size import HeatmapPlan, heatmap_bytes
from fewtags.stores.heatmaps import HeatmapStore
from fewtags.stores.rounding import tie_key
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import Shard

SPATIAL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())["spatial"]
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
WHOLE = View.identity()
FLOAT16_STEP = 2**-11  # between neighbours in 0.5..1, the coarsest in 0..1


def random_views(rng, number):
    """Crops of at least a quarter of the area, half of them flipped."""
    views = []
    for _ in range(number):
        width, height = rng.uniform(0.5, 1, 2)
        left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
        view = View.crop(left, top, left + width, top + height)
        views.append(view.then(View.flip()) if rng.random() < 0.5 else view)
    return views


def random_labels(rng, samples, classes):
    return torch.from_numpy(rng.choice(np.array([P, N, U], np.int8), size=(samples, classes)))


def random_maps(rng, samples, classes, grid):
    return torch.from_numpy(rng.random((samples, classes, *grid), np.float32))


def filled(store, values):
    """The store with its rows set, as if every row and cell had been visited before."""
    store.values.copy_(values)
    store.visits.fill_(1)
    return store


# --- slow reference: one sample, one class, one cell at a time


def sample(cells, x, y):
    """Bilinear value at (x, y) in 0..1, borders repeated."""
    height, width = cells.shape
    column, row = np.clip(x * width - 0.5, 0, width - 1), np.clip(y * height - 0.5, 0, height - 1)
    j, i = int(min(column, width - 2)) if width > 1 else 0, int(min(row, height - 2)) if height > 1 else 0
    right, down = (column - j, row - i)
    j1, i1 = min(j + 1, width - 1), min(i + 1, height - 1)
    top = (1 - right) * cells[i, j] + right * cells[i, j1]
    bottom = (1 - right) * cells[i1, j] + right * cells[i1, j1]
    return (1 - down) * top + down * bottom


def looked_at(cells, view, size):
    """What `cells` [H, W] look like through a view."""
    a, b, c, d, e, f = view.matrix
    out = np.zeros(size)
    for i in range(size[0]):
        for j in range(size[1]):
            u, v = (j + 0.5) / size[1], (i + 0.5) / size[0]
            out[i, j] = sample(cells, a * u + b * v + c, d * u + e * v + f)
    return out


def put_back(cells, view, size):
    """Where each cell of the image frame stands in the crop's `cells` [h, w]: values and visibility."""
    a, b, c, d, e, f = view.inverse().matrix
    values, visible = np.zeros(size), np.zeros(size, bool)
    for i in range(size[0]):
        for j in range(size[1]):
            x, y = (j + 0.5) / size[1], (i + 0.5) / size[0]
            u, v = a * x + b * y + c, d * x + e * y + f
            values[i, j], visible[i, j] = sample(cells, u, v), 0 <= u <= 1 and 0 <= v <= 1
    return values, visible


# --- derived by hand


def test_one_cell_by_hand():
    """Heatmap 2 x 2, the right half seen with F = .5: levels .8 * 255 + .2 * 127.5 = 229.5 -> 230 (to even)."""
    store = HeatmapStore(1, 2, (1, 1), HeatmapPlan())
    labels, index = torch.tensor([[P, U]], dtype=torch.int8), torch.tensor([0])
    views = stack_views([View.crop(0.5, 0.0, 1.0, 1.0)])
    store.update(index, labels, views, torch.full((1, 2, 1, 1), 0.5))
    assert store.values[0].tolist() == [[[255, 230], [255, 230]], [[0, 26], [0, 26]]]  # .2 * 127.5 = 25.5 -> 26 (even)


def test_rows_start_at_1_for_annotated_positives_and_0_elsewhere():
    for dtype in ("uint8", "float16"):
        store = HeatmapStore(3, 3, (2, 2), HeatmapPlan(dtype=dtype))
        labels = torch.tensor([[P, U, N], [U, P, P]], dtype=torch.int8)
        target, weight = store.read(torch.tensor([2, 0]), labels, stack_views([WHOLE] * 2), (2, 2))
        assert weight is None
        assert torch.equal(target, (labels == P).float()[:, :, None, None].expand(2, 3, 2, 2))


def test_bytes_by_hand():
    """3 images, 4 classes, grid 2 x 3, heatmap 4 x 6 = 24 cells; visits are 4 bytes a row, class ids 2."""
    assert heatmap_bytes(3, 4, (2, 3), HeatmapPlan()) == 3 * (4 * 24 + 4)
    assert heatmap_bytes(3, 4, (2, 3), HeatmapPlan(dtype="float16")) == 3 * (4 * 24 * 2 + 4)
    assert heatmap_bytes(3, 4, (2, 3), HeatmapPlan(top_k=2, corrected=True)) == 3 * (2 * 24 + 2 * 2 + 24 + 4)
    assert heatmap_bytes(3, 4, (2, 3), HeatmapPlan(top_k=4)) == heatmap_bytes(3, 4, (2, 3), HeatmapPlan())
    assert heatmap_bytes(1, 40_000, (1, 1), HeatmapPlan(top_k=1)) == 4 + 4 + 4  # ids beyond int16


@pytest.mark.parametrize("plan", [HeatmapPlan(), HeatmapPlan(top_k=3, corrected=True), HeatmapPlan(dtype="float16")])
def test_bytes_are_what_the_store_takes(plan):
    store = HeatmapStore(5, 7, (3, 2), plan)
    assert sum(t.nbytes for t in store.state_dict().values()) == heatmap_bytes(5, 7, (3, 2), plan)


# --- golden


def golden_view(case):
    top, left, height, width = (float(v) for v in case["crop_top_left_height_width_fraction"])
    view = View.crop(left, top, left + width, top + height)
    return stack_views([view.then(View.flip()) if case["hflip_after_crop"] else view])


@pytest.mark.parametrize("case", range(6))
def test_golden_float(case):
    """float16 stores H to half a step, 2^-12, and its update to .8 of that plus another half."""
    case = SPATIAL["cases"][case]
    store = HeatmapStore(1, 2, (4, 4), HeatmapPlan(momentum=0.8, dtype="float16"))
    filled(store, torch.tensor(SPATIAL["heatmap"])[None])
    index, labels, view = torch.tensor([0]), torch.zeros(1, 2, dtype=torch.int8), golden_view(case)
    target, _ = store.read(index, labels, view, (4, 4))
    expected = torch.tensor(case["target_T_of_H_at_score_resolution"])
    torch.testing.assert_close(target[0], expected, rtol=0, atol=FLOAT16_STEP / 2 + 1e-6)
    store.update(index, labels, view, torch.tensor(SPATIAL["score_logits"])[None].sigmoid())
    after = torch.tensor(case["heatmap_after_update_float"])
    torch.testing.assert_close(store.values[0].float(), after, rtol=0, atol=0.9 * FLOAT16_STEP + 1e-6)


@pytest.mark.parametrize("case", range(6))
def test_golden_uint8(case):
    case = SPATIAL["cases"][case]
    store = HeatmapStore(1, 2, (4, 4), HeatmapPlan(momentum=0.8))
    filled(store, torch.tensor(case["heatmap_uint8_before"], dtype=torch.uint8)[None])
    index, labels, view = torch.tensor([0]), torch.zeros(1, 2, dtype=torch.int8), golden_view(case)
    target, _ = store.read(index, labels, view, (4, 4))
    expected = torch.tensor(case["target_T_of_H_at_score_resolution"])
    torch.testing.assert_close(target[0], expected, rtol=0, atol=0.5 / 255 + 1e-6)
    maps = torch.tensor(SPATIAL["score_logits"])[None].sigmoid()
    scl = (maps - target).abs().mean().item()
    assert scl == pytest.approx(case["scl_mean_l1"], abs=0.5 / 255)
    store.update(index, labels, view, maps)
    assert store.values[0].tolist() == case["heatmap_uint8_after_round_nearest_even"]


# --- against the reference


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (4, 4)])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_equals_a_plain_loop(grid, corrected, dtype):
    rng = np.random.default_rng(grid[1])
    samples, classes, size = 4, 2, (2 * grid[0], 2 * grid[1])
    labels = random_labels(rng, samples, classes)
    store = HeatmapStore(samples, classes, grid, HeatmapPlan(momentum=0.75, corrected=corrected, dtype=dtype))
    heat = np.broadcast_to((labels == P).double().numpy()[:, :, None, None], (samples, classes, *size)).copy()
    seen = np.zeros((samples, *size))
    for _ in range(6):
        index = rng.permutation(samples)[:3]
        views, maps = random_views(rng, 3), random_maps(rng, 3, classes, grid)
        target, weight = store.read(torch.from_numpy(index), labels[index], stack_views(views), grid)
        for row, n in enumerate(index):
            share = looked_at((seen[n] > 0).astype(float), views[row], grid) if corrected else np.ones(grid)
            if corrected:
                torch.testing.assert_close(weight[row, 0].double().numpy(), share, rtol=0, atol=1e-5)
            for c in range(classes):
                mean = looked_at(heat[n, c] * ((seen[n] > 0) if corrected else 1), views[row], grid)
                mean = np.where(share > 0.01, mean / np.maximum(share, 0.01), np.nan)
                kept = target[row, c].double().numpy()
                step = 1 / 255 if dtype == "uint8" else FLOAT16_STEP
                assert np.nanmax(np.abs(np.where(share > 0.01, kept - mean, 0))) < 6 * step  # rounding of 6 updates
        store.update(torch.from_numpy(index), labels[index], stack_views(views), maps)
        for row, n in enumerate(index):
            for c in range(classes):
                new, visible = put_back(maps[row, c].numpy(), views[row], size)
                mu = np.minimum(0.75, seen[n] / (seen[n] + 1)) if corrected else 0.75
                heat[n, c] = np.where(visible, mu * heat[n, c] + (1 - mu) * new, heat[n, c])
            seen[n] += visible
    if corrected:
        assert np.array_equal(store.cell_visits.numpy(), seen)
    assert store.visits.sum() == 18


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_one_update_is_rounded_once_and_to_the_nearest_level(seed, corrected):
    """Stored levels are within half a level of .6 h + .4 * 255 F, taken from the stored h."""
    rng = np.random.default_rng(seed)
    store = HeatmapStore(2, 2, (3, 2), HeatmapPlan(momentum=0.6, corrected=corrected))
    filled(store, torch.from_numpy(rng.integers(256, size=(2, 2, 6, 4), dtype=np.uint8)))
    if corrected:
        store.cell_visits.fill_(9)
    before, views, maps = store.values.clone().numpy(), random_views(rng, 2), random_maps(rng, 2, 2, (3, 2))
    store.update(torch.tensor([1, 0]), torch.zeros(2, 2, dtype=torch.int8), stack_views(views), maps)
    for row, n in enumerate([1, 0]):
        for c in range(2):
            new, visible = put_back(maps[row, c].numpy(), views[row], (6, 4))
            exact = 0.6 * before[n, c] + 0.4 * 255 * new
            after = store.values[n, c].numpy()
            assert (np.abs(after - exact)[visible] < 0.5 + 1e-3).all()
            assert np.array_equal(after[~visible], before[n, c][~visible])


# --- properties of geometry


@given(st.integers(0, 2**32 - 1))
def test_a_linear_ramp_is_read_as_the_analytic_ramp(seed):
    """H(x, y) = cell centre in x: exact in float16, and linear, so bilinear reading is exact away from the border."""
    rng = np.random.default_rng(seed)
    store = HeatmapStore(1, 1, (8, 8), HeatmapPlan(dtype="float16"))
    filled(store, ((torch.arange(16) + 0.5) / 16).half().expand(1, 1, 16, 16))
    (view,) = random_views(rng, 1)
    target, _ = store.read(torch.tensor([0]), torch.zeros(1, 1, dtype=torch.int8), stack_views([view]), (8, 8))
    u, v = np.meshgrid((np.arange(8) + 0.5) / 8, (np.arange(8) + 0.5) / 8)
    x = view.to_image(np.stack([u.ravel(), v.ravel()], 1))[:, 0].reshape(8, 8)
    np.testing.assert_allclose(target[0, 0].numpy(), x.clip(1 / 32, 31 / 32), rtol=0, atol=1e-5)


@given(st.integers(0, 2**32 - 1))
def test_a_flipped_crop_with_flipped_maps_leaves_the_same_heatmap(seed):
    rng = np.random.default_rng(seed)
    labels, index, maps = random_labels(rng, 2, 3), torch.arange(2), random_maps(rng, 2, 3, (3, 4))
    views = random_views(rng, 2)
    plain, flipped = (HeatmapStore(2, 3, (3, 4), HeatmapPlan(dtype="float16")) for _ in range(2))
    plain.update(index, labels, stack_views(views), maps)
    flipped.update(index, labels, stack_views([v.then(View.flip()) for v in views]), maps.flip(3))
    torch.testing.assert_close(plain.values, flipped.values, rtol=0, atol=2 * FLOAT16_STEP)


def test_full_crop_reads_2x2_means_and_an_aligned_half_crop_reads_cells():
    rng = np.random.default_rng(5)
    store = filled(HeatmapStore(1, 2, (4, 4), HeatmapPlan()), torch.from_numpy(rng.integers(256, size=(1, 2, 8, 8))))
    cells, index, labels = store.values.float() / 255, torch.tensor([0]), torch.zeros(1, 2, dtype=torch.int8)
    target, _ = store.read(index, labels, stack_views([WHOLE]), (4, 4))
    torch.testing.assert_close(target, cells.view(1, 2, 4, 2, 4, 2).mean((3, 5)), rtol=0, atol=1e-5)
    target, _ = store.read(index, labels, stack_views([View.crop(0.5, 0.25, 1.0, 0.75)]), (4, 4))
    torch.testing.assert_close(target, cells[:, :, 2:6, 4:8], rtol=0, atol=1e-5)


# --- rounding of uint8: small differences between old and new values are lost


@pytest.mark.parametrize("prob", [0.0, 0.004, 0.0097, 0.0101, 0.3003, 0.5, 0.7777, 0.9903, 0.996, 1.0])
def test_uint8_moves_only_when_the_target_is_more_than_2_5_levels_away(prob):
    """.8 h + .2 * 255 F is at least half a level from h if and only if |255 F - h| >= 2.5: all 256 levels at once."""
    store = HeatmapStore(256, 1, (1, 1), HeatmapPlan(momentum=0.8))
    levels = torch.arange(256)
    filled(store, levels.view(256, 1, 1, 1).expand(256, 1, 2, 2))
    labels = torch.zeros(256, 1, dtype=torch.int8)
    store.update(levels, labels, stack_views([WHOLE] * 256), torch.full((256, 1, 1, 1), prob))
    moved = store.values[:, 0, 0, 0] != levels
    away = (255 * prob - levels.double()).abs()
    assert not moved[away < 2.5 - 1e-3].any()
    assert moved[away > 2.5 + 1e-3].all()


def test_uint8_rests_within_1_percent_of_a_constant_target_from_both_sides():
    """Fixed points are at most 2.5 levels = .98 % away; a cast instead of rounding would rest up to 5 levels below."""
    probs = torch.linspace(0.02, 0.98, 97)
    store = HeatmapStore(194, 1, (1, 1), HeatmapPlan(momentum=0.8))
    labels = torch.tensor([[P]] * 97 + [[U]] * 97, dtype=torch.int8)  # from above and from below
    for _ in range(60):
        store.update(torch.arange(194), labels, stack_views([WHOLE] * 194), probs.repeat(2).view(194, 1, 1, 1))
    error = store.values[:, 0, 0, 0] / 255 - probs.repeat(2)
    assert error.abs().max() <= 2.5 / 255 + 1e-4
    assert (error[:97] > 0).all()
    assert (error[97:] < 0).all()


def test_faint_targets_are_lost_by_nearest_and_kept_in_the_mean_by_stochastic_rounding():
    """F = .004 is one level: nearest stays at 0 for ever; stochastic gets there in the mean."""
    labels, index, faint = torch.zeros(400, 1, dtype=torch.int8), torch.arange(400), torch.full((400, 1, 1, 1), 0.004)
    means = {}
    for rounding in ("nearest", "stochastic"):
        store = HeatmapStore(400, 1, (1, 1), HeatmapPlan(rounding=rounding))
        for _ in range(40):
            store.update(index, labels, stack_views([WHOLE] * 400), faint)
        means[rounding] = store.values.float().mean().item() / 255
    assert means["nearest"] == 0
    # 1600 cells of sd at most .0020 (research 6.2): sd of the mean 5e-5; five of them.
    assert means["stochastic"] == pytest.approx(0.004, abs=2.5e-4)


def test_stochastic_rounding_is_a_function_of_seed_sample_and_visit():
    rng = np.random.default_rng(7)
    labels, maps, index = random_labels(rng, 6, 2), random_maps(rng, 6, 2, (2, 2)), torch.arange(6)
    views = stack_views(random_views(rng, 6))

    def run(seed, pieces):
        store = HeatmapStore(6, 2, (2, 2), HeatmapPlan(rounding="stochastic", seed=seed))
        for _ in range(2):
            for piece in pieces:
                store.update(index[piece], labels[piece], views[piece], maps[piece])
        return store.values

    torch.manual_seed(0)
    state = torch.get_rng_state()
    whole = run(1, [torch.arange(6)])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(whole, run(1, [torch.tensor([5, 0]), torch.tensor([3, 4, 1, 2])]))
    assert not torch.equal(whole, run(2, [torch.arange(6)]))


# --- borders, which few crops show


def test_start_value_stays_long_at_the_border():
    """25 epochs of square crops of area U(.25, 1): what is left of the start value, on average.

    A cell of 28 x 28 covered with probability q keeps (1 - .2 q)^25 for a fixed q: q = .999 in the middle, .18 at an
    edge, .09 in a corner. A simulation with varying q gave .004, .40 and .64.
    """
    rng, rows = np.random.default_rng(0), 300
    store = HeatmapStore(rows, 1, (14, 14), HeatmapPlan(dtype="float16"))
    labels, nothing = torch.full((rows, 1), P, dtype=torch.int8), torch.zeros(rows, 1, 14, 14)
    for _ in range(25):
        side = np.sqrt(rng.uniform(0.25, 1, rows))
        left, top = (rng.uniform(0, 1 - side) for _ in range(2))
        crops = zip(left, top, left + side, top + side, strict=True)
        store.update(torch.arange(rows), labels, stack_views([View.crop(*crop) for crop in crops]), nothing)
    rest = store.values[:, 0].float().mean(0)
    assert rest[13:15, 13:15].mean().item() == pytest.approx(0.004, abs=0.002)
    edges = torch.cat([rest[0, 8:20], rest[-1, 8:20], rest[8:20, 0], rest[8:20, -1]])
    assert edges.mean().item() == pytest.approx(0.40, abs=0.03)
    corners = torch.stack([rest[0, 0], rest[0, -1], rest[-1, 0], rest[-1, -1]])
    assert corners.mean().item() == pytest.approx(0.64, abs=0.03)


def test_corrected_forgets_the_start_value_and_leaves_out_cells_never_seen():
    """Right half seen twice, .2 then .6: mean .4 there. The left half has weight 0 whatever its bits are."""
    store = HeatmapStore(1, 1, (2, 2), HeatmapPlan(corrected=True, dtype="float16"))
    index, labels, right = torch.tensor([0]), torch.tensor([[P]], dtype=torch.int8), View.crop(0.5, 0.0, 1.0, 1.0)
    for prob in (0.2, 0.6):
        store.update(index, labels, stack_views([right]), torch.full((1, 1, 2, 2), prob))
    store.values[..., :2] = 0.9
    target, weight = store.read(index, labels, stack_views([WHOLE]), (2, 2))
    assert weight[0, 0].tolist() == [[0, 1], [0, 1]]
    torch.testing.assert_close(target[0, 0, :, 1], torch.full((2,), 0.4), rtol=0, atol=FLOAT16_STEP)
    # A crop whose cells lie half in the seen part: weight 1/2, the target is the seen part's mean, not a mixture.
    target, weight = store.read(index, labels, stack_views([View.crop(0.25, 0.0, 0.75, 1.0)]), (1, 1))
    assert weight.item() == pytest.approx(0.5)
    assert target.item() == pytest.approx(0.4, abs=FLOAT16_STEP)


def test_nothing_seen_means_no_weight_at_all():
    store = HeatmapStore(1, 1, (2, 2), HeatmapPlan(corrected=True))
    labels = torch.tensor([[P]], dtype=torch.int8)
    target, weight = store.read(torch.tensor([0]), labels, stack_views([WHOLE]), (2, 2))
    assert not weight.any()
    assert target.isfinite().all()


def test_visit_counts_saturate():
    store = HeatmapStore(1, 1, (1, 1), HeatmapPlan(corrected=True))
    store.cell_visits.fill_(254)
    for _ in range(3):
        labels = torch.zeros(1, 1, dtype=torch.int8)
        store.update(torch.tensor([0]), labels, stack_views([WHOLE]), torch.ones(1, 1, 1, 1))
    assert (store.cell_visits == 255).all()


# --- top-k


def scores_of(values):
    """A score store that holds `values`."""
    store = ScoreStore(*values.shape)
    store.values.copy_(values)
    store.visits.fill_(1)
    return store


def test_choice_of_classes_by_hand():
    """Annotated first whatever its score, then the highest scores; ties go to the smallest key."""
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.8], [0.3, 0.3, 0.3, 0.3], [0.0, 0.2, 0.9, 0.1]])
    labels = np.array([[P, U, U, N], [U, U, U, P], [U, P, U, P]], np.int8)
    store = HeatmapStore(3, 4, (1, 1), HeatmapPlan(top_k=2))
    store.choose(scores_of(scores), LabelMatrix.from_dense(labels))
    tied = int(tie_key(torch.tensor([1]), torch.arange(3)).argmin())
    assert store.class_ids.tolist() == [[0, 1], [tied, 3], [1, 3]]
    assert store.class_ids.dtype == torch.int16


def test_many_tied_scores_go_to_the_smallest_keys():
    """Sorting is stable by chance for a few numbers only. Images do not all get the first classes of the file."""
    store = HeatmapStore(2, 3000, (1, 1), HeatmapPlan(top_k=4))
    labels = np.zeros((2, 3000), np.int8)
    labels[0, 2999] = P
    store.choose(scores_of(torch.full((2, 3000), 0.5)), LabelMatrix.from_dense(labels))
    keys = tie_key(torch.arange(2)[:, None], torch.arange(3000)).argsort(1).tolist()
    assert store.class_ids.tolist() == [sorted([*keys[0][:3], 2999]), sorted(keys[1][:4])]
    assert keys[0][:4] != keys[1][:4]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 4]))
def test_top_k_is_the_dense_store_restricted_to_the_chosen_classes(seed, top_k):
    rng = np.random.default_rng(seed)
    labels = torch.full((4, 5), U, dtype=torch.int8)
    labels[torch.arange(4), torch.from_numpy(rng.integers(5, size=4))] = P
    dense, few = HeatmapStore(4, 5, (2, 2), HeatmapPlan()), HeatmapStore(4, 5, (2, 2), HeatmapPlan(top_k=top_k))
    few.choose(scores_of(torch.from_numpy(rng.random((4, 5), np.float32))), LabelMatrix.from_dense(labels.numpy()))
    for _ in range(3):
        index = torch.from_numpy(rng.permutation(4)[:3])
        views, maps = stack_views(random_views(rng, 3)), random_maps(rng, 3, 5, (2, 2))
        chosen = torch.zeros(3, 5, dtype=torch.bool).scatter(1, few.class_ids[index].long(), True)
        assert (chosen | (labels[index] != P)).all()
        target, expected = (s.read(index, labels[index], views, (2, 2))[0] for s in (few, dense))
        assert torch.equal(target, torch.where(chosen[:, :, None, None], expected, 0.0))
        for store in (few, dense):
            store.update(index, labels[index], views, maps)


def test_k_of_at_least_the_number_of_classes_keeps_them_all():
    store = HeatmapStore(2, 3, (1, 1), HeatmapPlan(top_k=3))
    assert store.class_ids is None
    assert store.values.shape == (2, 3, 2, 2)
    store.choose(ScoreStore(2, 3), LabelMatrix.from_dense(np.zeros((2, 3), np.int8)))
    assert store.class_ids is None


# --- storage


@given(st.integers(0, 2**32 - 1))
def test_batches_split_freely_and_inputs_stay_as_they_are(seed):
    rng = np.random.default_rng(seed)
    labels, maps = random_labels(rng, 3, 2), random_maps(rng, 3, 2, (2, 3))
    views, index = stack_views(random_views(rng, 3)), torch.tensor([2, 0, 1])
    inputs = [t.clone() for t in (index, labels, views, maps)]
    whole, parted = HeatmapStore(3, 2, (2, 3), HeatmapPlan()), HeatmapStore(3, 2, (2, 3), HeatmapPlan())
    whole.update(index, labels, views, maps)
    for piece in (slice(0, 2), slice(2, 3)):
        parted.update(index[piece], labels[piece], views[piece], maps[piece])
    assert torch.equal(whole.values, parted.values)
    assert all(torch.equal(a, b) for a, b in zip(inputs, (index, labels, views, maps), strict=True))


def test_shards_hold_every_row_once():
    rng = np.random.default_rng(11)
    labels, maps, views = random_labels(rng, 5, 2), random_maps(rng, 5, 2, (2, 2)), stack_views(random_views(rng, 5))
    plan, whole = HeatmapPlan(rounding="stochastic"), HeatmapStore(5, 2, (2, 2), HeatmapPlan(rounding="stochastic"))
    whole.update(torch.arange(5), labels, views, maps)
    for rank in range(2):
        shard = Shard(rank, 2)
        part, own = HeatmapStore(5, 2, (2, 2), plan, shard=shard), shard.owned(5)
        part.update(own, labels[own], views[own], maps[own])
        assert torch.equal(part.values, whole.values[own])


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_a_memory_map_has_its_room_on_disk_and_equals_memory(tmp_path, dtype):
    rng = np.random.default_rng(13)
    labels, maps, views = random_labels(rng, 2, 3), random_maps(rng, 2, 3, (7, 7)), stack_views(random_views(rng, 2))
    plan, path = HeatmapPlan(dtype=dtype), tmp_path / "new" / "heatmaps.bin"
    memory, disk = HeatmapStore(2000, 3, (7, 7), plan), HeatmapStore(2000, 3, (7, 7), plan, path=path)
    for store in (memory, disk):
        store.update(torch.tensor([1999, 3]), labels, views, maps)
    assert torch.equal(memory.values, disk.values)
    stat = path.stat()
    assert stat.st_size == memory.values.nbytes
    # A mapped page that finds a full disk kills the process, so the room is reserved.
    assert stat.st_blocks * 512 >= stat.st_size
    kind = np.uint8 if dtype == "uint8" else np.float16
    on_disk = np.fromfile(path, kind).reshape(2000, 3, 14, 14)
    assert np.array_equal(on_disk, memory.values.numpy())


def test_a_store_takes_memory_as_it_is_written():
    before = psutil.Process().memory_info().rss
    store = HeatmapStore(1000, 80, (28, 28), HeatmapPlan(corrected=True))
    assert store.values.nbytes == 250_880_000
    assert psutil.Process().memory_info().rss - before < 50_000_000


def test_a_new_store_forgets_what_an_old_file_held(tmp_path):
    path = tmp_path / "heatmaps.bin"
    path.write_bytes(b"\xff" * 10_000)
    assert not HeatmapStore(2, 1, (1, 1), HeatmapPlan(), path=path).values.any()


def test_a_process_without_rows_needs_no_file(tmp_path):
    path = tmp_path / "heatmaps.bin"
    store = HeatmapStore(1, 2, (1, 1), HeatmapPlan(), shard=Shard(1, 2), path=path)
    assert store.values.shape == (0, 2, 2, 2)
    assert not path.exists()


@pytest.mark.parametrize("plan", [HeatmapPlan(), HeatmapPlan(top_k=2, corrected=True)])
def test_state_goes_through_a_file_into_a_memory_map(tmp_path, plan):
    rng = np.random.default_rng(17)
    labels, maps, views = random_labels(rng, 3, 4), random_maps(rng, 3, 4, (2, 2)), stack_views(random_views(rng, 3))
    store = HeatmapStore(3, 4, (2, 2), plan)
    store.choose(scores_of(torch.rand(3, 4)), LabelMatrix.from_dense(labels.numpy()))
    store.update(torch.arange(3), labels, views, maps)
    assert all(tensor is store.state_dict()[name] for name, tensor in store.state_dict().items())
    file = io.BytesIO()
    torch.save(dict(store.state_dict()), file)
    file.seek(0)
    other = HeatmapStore(3, 4, (2, 2), plan, path=tmp_path / "heatmaps.bin")
    other.load_state_dict(torch.load(file, weights_only=True))
    for mine, theirs in zip(store.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert np.fromfile(tmp_path / "heatmaps.bin", np.uint8).tolist() == store.values.flatten().tolist()


def test_a_state_of_another_kind_is_refused():
    message = (
        "the checkpoint contains ['cell_visits', 'values', 'visits'] for heatmaps, this run keeps ['values', 'visits']."
        " Resume with the settings the checkpoint was written with."
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        HeatmapStore(1, 1, (1, 1), HeatmapPlan()).load_state_dict(
            HeatmapStore(1, 1, (1, 1), HeatmapPlan(corrected=True)).state_dict()
        )


def test_targets_are_probabilities_to_the_last_bit():
    """Seen through turned crops, interpolation weights add up to 1 + 1.2e-7 here and there: log(1 - t) would be NaN."""
    store = filled(HeatmapStore(5000, 1, (3, 3), HeatmapPlan()), torch.full((5000, 1, 6, 6), 255))
    views = torch.rand(5000, 2, 3, generator=torch.Generator().manual_seed(0)) - 0.5
    target, _ = store.read(torch.arange(5000), torch.zeros(5000, 1, dtype=torch.int8), views, (3, 3))
    assert target.max() == 1
    assert target.min().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("top_k", [None, 2])
def test_stretched_heatmaps_go_from_0_to_1(top_k):
    """Levels .2 to .6 become 0 to 1. No weight: what is not chosen, a flat heatmap, a row that was never updated."""
    labels = torch.zeros(2, 3, dtype=torch.int8)
    plan = HeatmapPlan(dtype="float16", top_k=top_k)
    store = filled(HeatmapStore(2, 3, (1, 2), plan), torch.full((2, top_k or 3, 2, 4), 0.25))
    store.values[0, 0] = torch.tensor([0.2, 0.2, 0.6, 0.6])
    store.values[1, 0] = store.values[0, 0]
    store.visits[1] = 0
    if store.class_ids is not None:
        store.class_ids.copy_(torch.tensor([[1, 2], [1, 2]]))
    index, first = torch.arange(2), 0 if top_k is None else 1
    target, weight = store.read(index, labels, stack_views([WHOLE] * 2), (2, 4))
    chosen = torch.ones(2, 3, dtype=torch.bool)
    found, factor = store.stretched(target, weight, chosen, index, labels)
    torch.testing.assert_close(found[0, first], torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2), rtol=0, atol=1e-3)
    assert factor[0, first].min() == 1
    assert factor.sum() == 8
    assert store.stretched(target, weight, ~chosen, index, labels)[1].sum() == 0


def test_cells_that_no_crop_has_shown_do_not_stretch_a_heatmap():
    """The left half was seen with levels .4 and .8; the right half has the start value 0, and no weight."""
    store = HeatmapStore(1, 1, (1, 2), HeatmapPlan(dtype="float16", corrected=True))
    filled(store, torch.tensor([0.4, 0.8, 0.0, 0.0]).half())
    store.cell_visits[:, :, :2] = 1
    labels, index = torch.zeros(1, 1, dtype=torch.int8), torch.zeros(1, dtype=torch.int64)
    target, weight = store.read(index, labels, stack_views([WHOLE]), (2, 4))
    found, factor = store.stretched(target, weight, torch.ones(1, 1, dtype=torch.bool), index, labels)
    torch.testing.assert_close(found[0, 0, :, :2], torch.tensor([[0.0, 1.0]] * 2), rtol=0, atol=2e-3)
    assert factor[0, 0].tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_rows_on_disk_are_asked_for_ahead(tmp_path, monkeypatch):
    """Rows 1 and 2 of the second of two processes are samples 3 and 5; a row has 2 x 8 x 8 bytes."""
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, __: asked.append((start, length)))
    shard, path = Shard(1, 2), tmp_path / "heatmaps.bin"
    HeatmapStore(7, 2, (4, 4), HeatmapPlan(), shard=shard, path=path).expect(torch.tensor([5, 3]))
    assert asked == [(256, 128), (128, 128)]
    HeatmapStore(7, 2, (4, 4), HeatmapPlan(), shard=shard).expect(torch.tensor([5, 3]))
    assert len(asked) == 2


def test_asking_ahead_changes_nothing(tmp_path):
    store = HeatmapStore(3, 2, (2, 2), HeatmapPlan(), path=tmp_path / "heatmaps.bin")
    store.values.fill_(7)
    store.expect(torch.tensor([2, 0]))
    assert bool((store.values == 7).all())
