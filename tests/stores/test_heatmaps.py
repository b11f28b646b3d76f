"""The store of heatmaps: values by hand, golden values, a plain loop, and geometry."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from heatmap_maps import FLOAT16_STEP, WHOLE, N, P, U, filled, random_labels, random_maps
from hypothesis import given
from hypothesis import strategies as st
from views import random_views

from fewtags.batched_views import stack_views
from fewtags.geometry import View
from fewtags.stores.heatmap_size import HeatmapPlan, heatmap_bytes
from fewtags.stores.heatmaps import HeatmapStore

SPATIAL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())["spatial"]


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
