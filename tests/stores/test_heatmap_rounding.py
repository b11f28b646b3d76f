"""Rounding of heatmaps of one byte a cell, and what few crops show."""

import numpy as np
import pytest
import torch
from heatmap_maps import FLOAT16_STEP, WHOLE, P, U, filled, random_labels, random_maps
from views import random_views

from fewtags.batched_views import stack_views
from fewtags.geometry import View
from fewtags.stores.heatmap_size import HeatmapPlan
from fewtags.stores.heatmaps import HeatmapStore

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
