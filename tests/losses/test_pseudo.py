"""Pseudo-labels that a net gives itself: who is chosen, and what they cost."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.labels import Label
from fewtags.losses.partial import bce
from fewtags.losses.pseudo import certain, confident, pseudo_loss, spread

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "pseudo.json").read_text())
OWN, UPS = GOLDEN["multilabel_selection"], GOLDEN["ups"]
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
STATE = {1: P, 0: N, -1: U}  # the encoding of the golden file


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def from_golden(rows):
    return int8([[STATE[v] for v in row] for row in rows])


# --- derived by hand


def test_choosing_by_hand():
    """tau+ 0.75 and tau- 0.25, both reached by equality; then kappa+ 0.1 and kappa- 0.01, likewise."""
    prob = torch.tensor([[0.75, 0.74, 0.5, 0.26, 0.25], [0.9, 0.8, 0.1, 0.2, 0.5]])
    chosen = confident(prob, 0.75, 0.25)
    assert chosen.tolist() == [[P, U, U, U, N], [P, P, N, N, U]]
    agreeing = torch.tensor([[0.0, 0.0, 0.0, 0.0, math.nan], [0.1, 0.11, 0.01, 0.011, 0.0]])
    assert certain(chosen, agreeing, agreeing[1, 0].item(), agreeing[1, 2].item()).tolist() == [
        [P, U, U, U, U],
        [P, U, N, U, U],
    ]


def test_every_class_may_have_limits_of_its_own():
    prob = torch.tensor([[0.6, 0.6, 0.6], [0.3, 0.3, 0.3]])
    chosen = confident(prob, torch.tensor([0.5, 0.7, 0.6]), torch.tensor([0.2, 0.4, 0.3]))
    assert chosen.tolist() == [[P, U, P], [U, N, N]]


def test_limits_out_of_reach_choose_nothing_and_a_positive_comes_before_a_negative():
    prob = torch.tensor([[0.0, 0.5, 1.0]])
    assert confident(prob, 1.1, -0.1).tolist() == [[U, U, U]]
    assert confident(prob, 0.5, 0.5).tolist() == [[N, P, P]]


def test_the_loss_by_hand():
    """f = 3/4. Image 0: positive, unknown, unknown: log 4/3. Image 1: negative, negative, positive: log 16 + log 4/3.

    Image 2: nothing. Over all nine cells; or image by image over 1, 3 and no selected ones, and over three images.
    """
    logits = torch.full((3, 3), math.log(3), dtype=torch.float64, requires_grad=True)
    labels = int8([[P, U, U], [N, N, P], [U, U, U]])
    one, other = math.log(4 / 3), math.log(16 * 4 / 3)
    assert pseudo_loss(logits, labels).item() == pytest.approx((one + other) / 9, rel=1e-12)
    loss = pseudo_loss(logits, labels, per_selected=True)
    assert loss.item() == pytest.approx((one + other / 3) / 3, rel=1e-12)
    (grad,) = torch.autograd.grad(loss, logits)
    assert grad[0].tolist() == pytest.approx([-1 / 12, 0, 0])
    assert grad[1].tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 36])
    assert grad[2].tolist() == [0, 0, 0]


# --- golden


def test_golden_choice_of_fixmatch_and_ups():
    weak, uncertainty = torch.tensor(OWN["weak_prob"]), torch.tensor(OWN["uncertainty"])
    assert torch.equal(confident(weak, 0.95, 0.05), from_golden(OWN["fixmatch_tp_95_tn_05"]))
    chosen = certain(confident(weak, 0.7, 0.05), uncertainty, 0.05, 0.005)
    assert torch.equal(chosen, from_golden(OWN["ups_tp_70_tn_05_kp_05_kn_005"]))


def test_golden_loss_in_both_normalisations():
    logits = torch.tensor(OWN["strong_prob"], dtype=torch.float64).logit()
    labels = from_golden(OWN["fixmatch_tp_95_tn_05"])
    assert pseudo_loss(logits, labels).item() == pytest.approx(OWN["loss_mean_over_all"], abs=1e-7)
    by_image = np.mean(OWN["loss_sum_over_selected_div_count"])
    assert pseudo_loss(logits, labels, per_selected=True).item() == pytest.approx(by_image, abs=1e-7)


def test_golden_code_of_ups_for_one_label():
    """Its softmax scores, cell by cell: the same positives; and in images without any, the same negatives."""
    logits, limits = torch.tensor(UPS["passes"]), UPS["args"]
    mean, deviation = spread(logits.softmax(2))
    torch.testing.assert_close(mean, torch.tensor(UPS["mean"]), rtol=0, atol=1e-6)
    torch.testing.assert_close(deviation, torch.tensor(UPS["std_unbiased"]), rtol=0, atol=1e-6)
    positive = certain(confident(mean, limits["tau_p"], -1.0), deviation, limits["kappa_p"], 0.0)
    image, target = (positive == P).nonzero().unbind(1)
    assert image.tolist() == UPS["result"]["pseudo_idx"]
    assert target.tolist() == UPS["result"]["pseudo_target"]
    mean, deviation = spread((logits / limits["temp_nl"]).softmax(2))
    negative = certain(confident(mean, 2.0, limits["tau_n"]), deviation, 0.0, limits["kappa_n"]) == N
    negative[image] = False
    assert negative.any(1).nonzero()[:, 0].tolist() == UPS["result"]["nl_idx"]
    assert negative[UPS["result"]["nl_idx"]].int().tolist() == UPS["result"]["nl_mask"]


# --- slow reference and properties


@pytest.mark.parametrize(("k", "b", "c"), [(2, 1, 1), (3, 2, 4), (10, 5, 3)])
def test_spread_is_that_of_numpy(k, b, c):
    probs = np.random.default_rng(k).random((k, b, c))
    mean, deviation = spread(torch.from_numpy(probs))
    np.testing.assert_allclose(mean.numpy(), probs.mean(0), rtol=1e-12)
    np.testing.assert_allclose(deviation.numpy(), probs.std(0, ddof=1), rtol=1e-9, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(1, 6))
def test_the_loss_is_that_of_a_slow_loop(seed, b, c):
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(b, c)) * 4, rng.integers(-1, 2, (b, c)).astype(np.int8)
    cells, images = [], []
    for row, states in zip(x, z, strict=True):
        losses = [np.logaddexp(0, -v if s == P else v) for v, s in zip(row, states, strict=True) if s != U]
        cells += losses
        images.append(np.mean(losses) if losses else 0.0)
    logits, labels = torch.from_numpy(x), torch.from_numpy(z)
    assert pseudo_loss(logits, labels).item() == pytest.approx(sum(cells) / max(b * c, 1), rel=1e-9)
    per_image = pseudo_loss(logits, labels, per_selected=True)
    assert per_image.item() == pytest.approx(sum(images) / max(b, 1), rel=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_the_normalisations_agree_where_everything_is_selected_and_order_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(4, 5)))
    labels = torch.from_numpy(rng.choice([N, P], (4, 5)).astype(np.int8))
    whole = bce(logits, labels).item()
    assert pseudo_loss(logits, labels, per_selected=True).item() == pytest.approx(whole, rel=1e-9)
    order = torch.from_numpy(rng.permutation(5))
    assert pseudo_loss(logits[:, order], labels[:, order], per_selected=True).item() == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("per_selected", [False, True])
def test_half_precision_logits_are_summed_in_float32(per_selected):
    """A sum of 300 cells of log 2 in bfloat16 would stop growing at 128 + 1."""
    logits, labels = torch.zeros(1, 300, dtype=torch.bfloat16), torch.full((1, 300), P, dtype=torch.int8)
    loss = pseudo_loss(logits, labels, per_selected=per_selected)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
