"""Pools of class maps: values by hand, golden values, and what they have in common."""

import json
import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import ConfigError
from fewtags.nets.pool import Pool, PoolName
from fewtags.nets.spatial import HeadPlan, SpatialHead

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/patchml_nets.json").read_text())
NAMES = [name for name in get_args(PoolName) if name != "class_token"]  # its maps have one cell


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_by_hand():
    """Cells 0 and log 3. Probabilities 1/2 and 3/4. exp: 1 and 3, softmax 1/4 and 3/4.

    mean_prob: mean 5/8, logit log(5/3). lse: log((1 + 3) / 2). softmax: 3/4 log 3. csra: (1/2 + 0.1 x 3/4) log 3.
    boost: 5 log 3 / 2.
    """
    maps = torch.tensor([0.0, math.log(3)], dtype=torch.float64).view(1, 1, 1, 2)
    found = {name: Pool(name)(maps).item() for name in NAMES}
    third = math.log(3)
    expected = {
        "mean": third / 2,
        "mean_prob": math.log(5 / 3),
        "max": third,
        "lse": math.log(2),
        "softmax": 0.75 * third,
        "csra": 0.575 * third,
        "boost": 2.5 * third,
    }
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mean", "mean_logit"),
        ("mean_prob", "mean_prob"),
        ("max", "max_prob"),
        ("lse", "lse_prob"),
        ("softmax", "softmax_logit"),
    ],
)
def test_golden_pools(name, key):
    golden = GOLDEN["pool"]
    probability = Pool(name)(torch.tensor(golden["spatial_logits"])).sigmoid()
    np.testing.assert_allclose(probability, golden["image_prob"][key], atol=1e-6)


@pytest.mark.parametrize("case", GOLDEN["csra"]["cases"], ids=lambda case: f"T {case['T']}, lambda {case['lam']}")
def test_golden_residual_attention(case):
    """Their classifier is normalised to unit length; T = 99 stands for the maximum there. Values and gradients."""
    x = torch.tensor(GOLDEN["csra"]["x"], requires_grad=True)
    w = torch.tensor(GOLDEN["csra"]["w"], requires_grad=True)
    maps = torch.einsum("bdhw,cd->bchw", x, w / w.norm(dim=1, keepdim=True))
    logits = Pool("mean")(maps) + case["lam"] * Pool("max")(maps)
    if case["T"] != 99:
        logits = Pool("csra", float(case["T"]), float(case["lam"]))(maps)
    np.testing.assert_allclose(logits.detach(), case["logits"], atol=1e-6)
    logits.sum().backward()
    np.testing.assert_allclose(x.grad, case["grad_x"], atol=1e-5)
    np.testing.assert_allclose(w.grad, case["grad_w"], atol=1e-5)


def test_golden_boost():
    """The pool of the public code of BoostLU, recomputed with the same three operations."""
    golden = json.loads((Path(__file__).parents[1] / "golden/losses.json").read_text())["other"]["boostlu_head"]
    found = Pool("boost", boost=golden["alpha"])(torch.tensor(golden["cam_B_L_H_W"], dtype=torch.float64))
    np.testing.assert_allclose(found, golden["pooled_logits"], rtol=1e-12)


@given(
    st.sampled_from([name for name in NAMES if name not in ("csra", "boost")]), st.floats(0.1, 5), st.integers(0, 100)
)
def test_a_pool_lies_between_the_lowest_and_the_highest_cell(name, temperature, seed):
    maps = 4 * torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
    pooled = Pool(name, temperature)(maps)
    assert (pooled <= maps.amax((2, 3)) + 1e-4).all()
    assert (pooled >= maps.amin((2, 3)) - 1e-4).all()


@pytest.mark.parametrize("name", NAMES)
def test_cells_in_another_order_and_one_cell(name):
    maps = randn(2, 3, 4, 4).double()
    shuffled = maps.flatten(2)[:, :, torch.randperm(16, generator=torch.Generator().manual_seed(1))].view_as(maps)
    torch.testing.assert_close(Pool(name)(maps), Pool(name)(shuffled))
    one = Pool(name)(maps[:, :, :1, :1])
    cell = maps[:, :, 0, 0]
    expected = {"csra": 1.1 * cell, "boost": torch.where(cell > 0, 5 * cell, cell)}.get(name, cell)
    torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_stay_finite(name):
    maps = torch.tensor([-200.0, 200.0, 90.0, 0.0]).view(1, 1, 2, 2).requires_grad_()
    pooled = Pool(name)(maps)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


def test_temperature_leads_from_the_mean_to_the_maximum():
    maps = randn(1, 1, 4, 4).double()
    assert Pool("lse", 1e-6)(maps).item() == pytest.approx(maps.mean().item(), abs=1e-5)
    assert Pool("lse", 1e4)(maps).item() == pytest.approx(maps.max().item(), abs=1e-3)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_the_logits_of_training(name, kernel):
    head = SpatialHead(5, 3, plan=HeadPlan(kernel, Pool(name)))
    features = randn(2, 5, 4, 6)
    torch.testing.assert_close(head.predict_logits(features), head(features).logits, atol=1e-6, rtol=0)
    assert head.plan.commutes is (name == "mean" and kernel == 1)


def test_a_3x3_head_sees_its_neighbours():
    """Weight 1 at the right neighbour: every map cell is the feature to its right, and zero at the border."""
    head = SpatialHead(1, 1, plan=HeadPlan(kernel=3))
    with torch.no_grad():
        head.weight.zero_()[0, 0, 1, 2] = 1
    features = torch.arange(6.0).view(1, 1, 2, 3)
    assert head(features).maps.tolist() == [[[[1.0, 2.0, 0.0], [4.0, 5.0, 0.0]]]]


def test_a_3x3_head_starts_as_a_torch_convolution_does():
    """Uniform in +-1 / sqrt(9 d): standard deviation 1 / sqrt(27 d), 0.0069 for d = 768."""
    weight = SpatialHead(768, 80, plan=HeadPlan(kernel=3)).weight
    assert weight.std().item() == pytest.approx(0.0069, abs=1e-4)
    assert weight.abs().max().item() <= 1 / math.sqrt(9 * 768)


def renamed(name):
    """A pool of a name that the type checker of the tests would not let through."""
    pool = Pool()
    object.__setattr__(pool, "name", name)
    pool.__post_init__()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: renamed("sum"),
            "pool must be one of mean, mean_prob, max, lse, softmax, csra, boost, class_token, got 'sum'.",
        ),
        (lambda: Pool("lse", 0.0), "the pool's temperature must be above 0, got 0.0."),
        (lambda: HeadPlan(2), "the head's kernel must be 1 or 3, got 2."),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make()
