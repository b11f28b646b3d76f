import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewtags.errors import ConfigError
from fewtags.losses.consistency import consistency

SCL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())
BY_CELL = ["l1", "l2", "jsd"]
DISTANCES = [*BY_CELL, "l2_norm"]


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


# --- derived by hand


def test_l1_and_l2_by_hand():
    """f = 3/4, 1/4 against t = 1/4, 1: differences 1/2 and -3/4. l1: 5/8. l2 (squared): (1/4 + 9/16) / 2 = 13/32."""
    logits, target = float64([[math.log(3), -math.log(3)]]), float64([[0.25, 1.0]])
    assert consistency(logits, target).item() == pytest.approx(5 / 8, rel=1e-12)
    assert consistency(logits, target, distance="l2").item() == pytest.approx(13 / 32, rel=1e-12)


def test_the_l2_norm_by_hand():
    """Differences 1/2 and -3/4 in one image: the root of (1/4 + 9/16) / 2 = 13/32. With the second cell left out: 1/8.

    The gradient at the first cell is its share d / (2 norm sqrt(2)) of the slope f (1 - f) = 3/16, for the mean over
    two images; an image without a difference has none.
    """
    logits, target = float64([[math.log(3), -math.log(3)], [0.0, 0.0]]), float64([[0.25, 1.0], [0.5, 0.5]])
    logits.requires_grad_()
    loss = consistency(logits, target, distance="l2_norm")
    assert loss.item() == pytest.approx(math.sqrt(13 / 32) / 2, rel=1e-12)
    loss.backward()
    norm = math.sqrt(13 / 16)
    assert logits.grad[0, 0].item() == pytest.approx(0.5 / norm / math.sqrt(2) / 2 * 3 / 16, rel=1e-12)
    assert logits.grad[1].tolist() == [0, 0]
    masked = consistency(logits[:1], target[:1], distance="l2_norm", weight=torch.tensor([[True, False]]))
    assert masked.item() == pytest.approx(math.sqrt(1 / 8), rel=1e-12)


def test_jensen_shannon_by_hand():
    """f = 1/2 against t = 1: m = 3/4.

    KL(f || m) = 1/2 log(2/3) + 1/2 log 2 = 1/2 log(4/3); KL(t || m) = log(4/3); the half sum is 3/4 log(4/3).
    Against t = 1/2 it is 0; against t = 0 it is 3/4 log(4/3) again.
    """
    logits, target = float64([[0.0, 0.0, 0.0]]), float64([[1.0, 0.5, 0.0]])
    got = consistency(logits, target, distance="jsd").item()
    assert got == pytest.approx(2 * 0.75 * math.log(4 / 3) / 3, rel=1e-12)


def test_cells_of_weight_zero_add_nothing_and_stay_in_the_denominator():
    """|1/2 - 1| = 1/2 in each of 4 cells; the second image is masked: (1/2 + 1/2) / 4."""
    logits, target = float64([[0.0, 0.0], [0.0, 0.0]]), float64([[1.0, 0.0], [1.0, 0.0]])
    assert consistency(logits, target, weight=torch.tensor([[True], [False]])).item() == 0.25
    assert consistency(logits, target, weight=float64([[0.5]])).item() == 0.25


# --- golden values


def test_golden_consistency_per_image():
    logits, target = float64(SCL["logits"]), float64(SCL["scores_init"])
    got = [consistency(logits[[n]], target[[n]]).item() for n in range(len(logits))]
    np.testing.assert_allclose(got, SCL["losses_per_image"]["CL_mean_l1_against_scores_init"], rtol=1e-12)
    summed = [value * logits.shape[1] for value in got]
    np.testing.assert_allclose(summed, SCL["losses_per_image"]["CL_sum_l1_against_scores_init"], rtol=1e-12)


@pytest.mark.parametrize("case", SCL["spatial"]["cases"], ids=lambda c: str(c["crop_top_left_height_width_fraction"]))
def test_golden_spatial_consistency(case):
    logits, target = float64([SCL["spatial"]["score_logits"]]), float64([case["target_T_of_H_at_score_resolution"]])
    assert consistency(logits, target).item() == pytest.approx(case["scl_mean_l1"], rel=1e-12)


# --- a slow reference


def entropy(*p):
    return -sum(v * math.log(v) for v in p if v > 0)


def reference(distance, x, t):
    f = 1 / (1 + math.exp(-x))
    if distance == "jsd":  # entropy of the mixture minus the mean entropy
        m = (f + t) / 2
        return entropy(m, 1 - m) - (entropy(f, 1 - f) + entropy(t, 1 - t)) / 2
    return abs(f - t) if distance == "l1" else (f - t) ** 2


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 4, 5), (1, 2, 1, 1)])
@pytest.mark.parametrize("distance", BY_CELL)
def test_equals_a_loop_over_cells_in_value_and_gradient(distance, shape):
    rng = np.random.default_rng(shape)
    x, t = rng.normal(0, 2, shape), rng.random(shape)
    t.flat[0] = 0.0
    logits = torch.tensor(x, requires_grad=True)
    loss = consistency(logits, torch.tensor(t), distance=distance)
    loss.backward()
    cells = list(zip(x.flat, t.flat, strict=True))
    assert loss.item() == pytest.approx(np.mean([reference(distance, a, b) for a, b in cells]), rel=1e-10)
    h = 1e-5
    slope = [(reference(distance, a + h, b) - reference(distance, a - h, b)) / (2 * h) / len(cells) for a, b in cells]
    np.testing.assert_allclose(logits.grad.flatten(), slope, rtol=1e-6, atol=1e-10)


# --- properties

SHAPE = st.one_of(st.tuples(st.integers(1, 3), st.integers(1, 4)), st.tuples(*[st.integers(1, 3)] * 4))
PAIR = SHAPE.flatmap(
    lambda s: st.tuples(
        hnp.arrays(np.float32, s, elements=st.floats(-300, 300, width=32)),
        hnp.arrays(np.float32, s, elements=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))),
    )
)


@pytest.mark.parametrize("distance", DISTANCES)
@given(pair=PAIR)
def test_values_stay_in_range_and_gradients_are_finite_up_to_saturation(distance, pair):
    logits, target = (torch.tensor(a) for a in pair)
    logits.requires_grad_()
    loss = consistency(logits, target, distance=distance)
    loss.backward()
    top = math.log(2) if distance == "jsd" else 1.0
    assert -1e-6 <= loss.item() <= top * (1 + 1e-6)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("distance", DISTANCES)
@given(pair=PAIR)
def test_presence_and_absence_are_treated_alike_and_images_are_averaged(distance, pair):
    logits, target = (torch.tensor(a, dtype=torch.float64) for a in pair)
    loss = consistency(logits, target, distance=distance).item()
    assert consistency(-logits, 1 - target, distance=distance).item() == pytest.approx(loss, rel=1e-9, abs=1e-12)
    rows = [consistency(logits[[n]], target[[n]], distance=distance).item() for n in range(len(logits))]
    assert np.mean(rows) == pytest.approx(loss, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_net_that_agrees_has_no_loss_and_any_other_is_pulled_towards_the_target(distance):
    x = torch.linspace(-6, 6, 25, dtype=torch.float64)[None]
    assert consistency(x, x.sigmoid(), distance=distance).item() == pytest.approx(0, abs=1e-15)
    logits = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    consistency(logits, float64([[0.0, 0.3, 0.7, 1.0]]), distance=distance).backward()
    assert logits.grad[0].sign().tolist() == [1, 1, -1, -1]


# --- numerics and errors


@pytest.mark.parametrize("distance", DISTANCES)
def test_low_precision_logits_are_computed_in_float32_inside_autocast(distance):
    logits = torch.linspace(-9, 9, 12).view(1, 3, 2, 2).to(torch.bfloat16)
    target = torch.linspace(0, 1, 12).view(1, 3, 2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = consistency(logits, target, distance=distance)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, consistency(logits.float(), target, distance=distance))


def test_the_target_gets_no_gradient_and_an_empty_batch_gives_zero():
    target = torch.full((2, 3), 0.5, requires_grad=True)
    logits = torch.ones(2, 3, requires_grad=True)
    consistency(logits, target, distance="jsd").backward()
    assert target.grad is None
    assert consistency(torch.zeros(0, 3), torch.zeros(0, 3)).item() == 0


def test_an_unknown_distance_is_named():
    with pytest.raises(ConfigError) as error:
        consistency(torch.zeros(1, 1), torch.zeros(1, 1), distance="l3")
    assert str(error.value) == "distance 'l3' is not one of l1, l2, l2_norm, jsd."
