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
from fewtags.labels import Label
from fewtags.losses import partial

GOLDEN = Path(__file__).parents[1] / "golden"
SCL = json.loads((GOLDEN / "scl.json").read_text())
STATE = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the encoding of the golden files
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


def from_golden(rows):
    return int8([[STATE[v] for v in row] for row in rows])


# --- derived by hand


def test_bce_by_hand():
    """f = 1/2, 3/4, 1/4 at logits 0, log 3, -log 3; z = positive, unknown, negative.

    -log(1/2) + 0 - log(3/4) = log 2 + log(4/3) = log(8/3); the mean runs over 3 cells.
    """
    logits = float64([[0, math.log(3), -math.log(3)]])
    assert partial.bce(logits, int8([[P, U, N]])).item() == pytest.approx(math.log(8 / 3) / 3, rel=1e-12)


def test_assume_negative_by_hand():
    """As above with the unknown cell negative: log 2 - log(1/4) + log(4/3) = log(2 * 4 * 4/3) = log(32/3)."""
    logits = float64([[0, math.log(3), -math.log(3)]])
    assert partial.assume_negative(logits, int8([[P, U, N]])).item() == pytest.approx(math.log(32 / 3) / 3, rel=1e-12)


def test_label_smoothing_by_hand():
    """e = .2, f = 3/4: positive -.8 log .75 - .2 log .25; negative and unknown -.8 log .25 - .2 log .75."""
    logits = float64([[math.log(3)] * 3])
    right, wrong = -math.log(0.75), -math.log(0.25)
    expected = (0.8 * right + 0.2 * wrong + 2 * (0.8 * wrong + 0.2 * right)) / 3
    assert partial.assume_negative(logits, int8([[P, N, U]]), smoothing=0.2).item() == pytest.approx(
        expected, rel=1e-12
    )


def test_weak_assume_negative_by_hand():
    """4 classes, so w = 1/3; f = 1/2 everywhere: positive 1, negative 1, two unknown 1/3 each, all times log 2."""
    logits, labels = float64([[0.0] * 4]), int8([[P, N, U, U]])
    assert partial.weak_assume_negative(logits, labels).item() == pytest.approx(math.log(2) * (8 / 3) / 4, rel=1e-12)
    given_weight = partial.weak_assume_negative(logits, labels, negative_weight=0.5).item()
    assert given_weight == pytest.approx(math.log(2) * 3 / 4, rel=1e-12)


def test_expected_negative_and_positive_by_hand():
    """Six cells, each state with and without an expected positive; f = 3/4, a = -log(3/4), b = -log(1/4).

    EN: positive a, a; negative b, b; unknown expected positive 0, else b. EP: the same with a instead of 0.
    """
    logits, labels = float64([[math.log(3)] * 6]), int8([[P, P, N, N, U, U]])
    expected = torch.tensor([[True, False, True, False, True, False]])
    a, b = -math.log(0.75), -math.log(0.25)
    assert partial.expected_negative(logits, labels, expected).item() == pytest.approx((2 * a + 3 * b) / 6, rel=1e-12)
    assert partial.expected_positive(logits, labels, expected).item() == pytest.approx((3 * a + 3 * b) / 6, rel=1e-12)


# --- golden values of the paper; those of peers are in test_golden.py


@pytest.mark.parametrize("reading", ["all_then_or", "fill", "unannotated_only"])
@pytest.mark.parametrize("setting", ["single_positive", "partial"])
@pytest.mark.parametrize("name", ["EN", "EP"])
def test_golden_values_of_the_paper_per_image(reading, setting, name):
    loss = {"EN": partial.expected_negative, "EP": partial.expected_positive}[name]
    labels = from_golden(SCL[f"labels_{setting}"])
    expected = torch.tensor(SCL["zhat"][f"{setting}_{reading}"], dtype=torch.bool)
    logits = float64(SCL["logits"])
    got = [loss(logits[[n]], labels[[n]], expected[[n]]).item() for n in range(len(logits))]
    np.testing.assert_allclose(got, SCL["losses_per_image"][f"{setting}_{reading}_{name}"], rtol=1e-12)


@pytest.mark.parametrize("setting", ["single_positive", "partial"])
def test_golden_assume_negative_of_the_paper_per_image(setting):
    labels, logits = from_golden(SCL[f"labels_{setting}"]), float64(SCL["logits"])
    got = [partial.assume_negative(logits[[n]], labels[[n]]).item() for n in range(len(logits))]
    np.testing.assert_allclose(got, SCL["losses_per_image"][f"{setting}_AN"], rtol=1e-12)


# --- a slow reference


def cell_weights(name, state, expected, classes):
    """(weight of -log f, weight of -log(1 - f)) of one cell, written as the sentences of the papers."""
    if name == "bce":
        return float(state == P), float(state == N)
    if name == "assume_negative":
        return (1.0, 0.0) if state == P else (0.0, 1.0)
    if name == "smoothed":
        return (0.9, 0.1) if state == P else (0.1, 0.9)
    if name == "weak_assume_negative":
        return {P: (1.0, 0.0), N: (0.0, 1.0), U: (0.0, 1 / (classes - 1))}[state]
    if state != U:
        return (1.0, 0.0) if state == P else (0.0, 1.0)
    if not expected:
        return 0.0, 1.0
    return (0.0, 0.0) if name == "expected_negative" else (1.0, 0.0)


def call(name, logits, labels, expected):
    if name == "smoothed":
        return partial.assume_negative(logits, labels, smoothing=0.1)
    if name in ("expected_negative", "expected_positive"):
        return getattr(partial, name)(logits, labels, expected)
    return getattr(partial, name)(logits, labels)


NAMES = ["bce", "assume_negative", "smoothed", "weak_assume_negative", "expected_negative", "expected_positive"]


@pytest.mark.parametrize("shape", [(1, 2), (3, 5), (2, 17), (9, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_equals_a_loop_over_cells(name, shape):
    rng = np.random.default_rng(shape)
    logits, labels, expected = rng.normal(0, 4, shape), rng.integers(-1, 2, shape), rng.random(shape) < 0.5
    total, gradient = 0.0, np.zeros(shape)
    for n, c in np.ndindex(shape):
        positive, negative = cell_weights(name, labels[n, c], expected[n, c], shape[1])
        f = 1 / (1 + math.exp(-logits[n, c]))
        total += -positive * math.log(f) - negative * math.log(1 - f)
        gradient[n, c] = -positive * (1 - f) + negative * f
    given_logits = torch.tensor(logits, requires_grad=True)
    loss = call(name, given_logits, int8(labels.tolist()), torch.tensor(expected))
    loss.backward()
    assert loss.item() == pytest.approx(total / logits.size, rel=1e-11)
    np.testing.assert_allclose(given_logits.grad, gradient / logits.size, rtol=1e-11, atol=1e-16)


def test_log_eps_equals_its_formula_at_any_logit():
    """-log(f + e) has the derivative -f (1 - f) / (f + e), with 1 - f = sigmoid(-x) free of cancellation."""
    logits = float64([[-40.0, -20.0, -3.0, 0.0, 3.0, 20.0, 40.0]]).requires_grad_()
    e = 1e-5
    f = [1 / (1 + math.exp(-x)) for x in logits[0].tolist()]
    rest = [1 / (1 + math.exp(x)) for x in logits[0].tolist()]
    loss = partial.bce(logits, int8([[P] * 7]), log_eps=e)
    loss.backward()
    assert loss.item() == pytest.approx(-sum(math.log(a + e) for a in f) / 7, rel=1e-12)
    expected = [[-a * b / (a + e) / 7 for a, b in zip(f, rest, strict=True)]]
    np.testing.assert_allclose(logits.grad, expected, rtol=1e-11)


# --- properties

SHAPE = st.tuples(st.integers(1, 4), st.integers(2, 6))
BATCH = SHAPE.flatmap(
    lambda s: st.tuples(
        hnp.arrays(np.float64, s, elements=st.floats(-30, 30)),
        hnp.arrays(np.int8, s, elements=st.integers(-1, 1)),
        hnp.arrays(np.bool_, s),
    )
)


@given(BATCH)
def test_unknown_cells_get_no_gradient_from_bce_and_expected_positives_none_from_expected_negative(batch):
    logits, labels, expected = (torch.tensor(a) for a in batch)
    logits.requires_grad_()
    unknown = labels == U
    (gradient,) = torch.autograd.grad(partial.bce(logits, labels), logits)
    assert (gradient[unknown] == 0).all()
    (gradient,) = torch.autograd.grad(partial.expected_negative(logits, labels, expected), logits)
    assert (gradient[unknown & expected] == 0).all()
    assert (gradient[unknown & ~expected] > 0).all()


@given(BATCH)
def test_a_permutation_of_the_classes_changes_nothing_and_images_are_averaged(batch):
    logits, labels, expected = (torch.tensor(a) for a in batch)
    for name in NAMES:
        loss = call(name, logits, labels, expected).item()
        turned = call(name, logits.flip(1), labels.flip(1), expected.flip(1)).item()
        assert turned == pytest.approx(loss, rel=1e-12)
        rows = [call(name, logits[[n]], labels[[n]], expected[[n]]).item() for n in range(len(logits))]
        assert np.mean(rows) == pytest.approx(loss, rel=1e-12)


@given(BATCH)
def test_the_losses_are_one_family(batch):
    """EN without expected positives is AN, EN with every cell expected is BCE; AN-LS 0 and WAN 1 are AN."""
    logits, labels, expected = (torch.tensor(a) for a in batch)
    assumed = partial.assume_negative(logits, labels)
    assert torch.equal(partial.expected_negative(logits, labels, torch.zeros_like(expected)), assumed)
    assert torch.equal(
        partial.expected_negative(logits, labels, torch.ones_like(expected)), partial.bce(logits, labels)
    )
    assert torch.equal(partial.weak_assume_negative(logits, labels, negative_weight=1.0), assumed)


# --- numerics and errors


@pytest.mark.parametrize("name", NAMES)
def test_confidently_wrong_cells_keep_a_finite_value_and_the_full_gradient(name):
    """At |logit| 200 sigmoid is 0 or 1 in float32, yet -log f = 200 and its derivative is -1 (per cell: / 2)."""
    logits = torch.tensor([[-200.0, 200.0]], requires_grad=True)
    loss = call(name, logits, int8([[P, N]]), torch.zeros(1, 2, dtype=torch.bool))
    loss.backward()
    smoothed = 0.9 if name == "smoothed" else 1.0
    assert loss.item() == pytest.approx(200 * smoothed, rel=1e-6)
    np.testing.assert_allclose(logits.grad, [[-smoothed / 2, smoothed / 2]], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_computed_in_float32_inside_autocast(name, dtype):
    logits = torch.linspace(-9, 9, 12).view(2, 6).to(dtype)
    labels = int8([[P, N, U, P, N, U], [U, U, P, N, N, P]])
    expected = torch.tensor([[True, False] * 3] * 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = call(name, logits, labels, expected)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, call(name, logits.float(), labels, expected))


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_and_a_batch_of_unknowns_can_be_differentiated(name):
    empty = torch.zeros(0, 3, requires_grad=True)
    loss = call(name, empty, int8([]).view(0, 3), torch.zeros(0, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    logits = torch.ones(2, 3, requires_grad=True)
    loss = call(name, logits, torch.full((2, 3), U, dtype=torch.int8), torch.zeros(2, 3, dtype=torch.bool))
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    assert (loss.item() == 0) == (name == "bce")


def test_the_default_weak_weight_needs_two_classes():
    with pytest.raises(ConfigError) as error:
        partial.weak_assume_negative(torch.zeros(2, 1), int8([[P], [U]]))
    assert str(error.value) == "the default weight 1 / (classes - 1) needs at least 2 classes; give negative_weight."
    one = partial.weak_assume_negative(torch.zeros(2, 1), int8([[P], [U]]), negative_weight=0.5)
    assert one.item() == pytest.approx(math.log(2) * 0.75)
