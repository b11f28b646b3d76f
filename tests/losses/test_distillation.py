"""Losses with a teacher: by hand, and against plain loops written from the papers' formulas."""

import math

import numpy as np
import pytest
import torch

from fewtags.labels import Label
from fewtags.losses.distillation import distillation, likely_negative, likely_positive
from fewtags.losses.uncertain import entropy_maximisation, generalised_robust

P, U, N = int(Label.POSITIVE), int(Label.UNKNOWN), int(Label.NEGATIVE)


def test_distillation_by_hand():
    """f = 1/2 everywhere: each unknown cell with a score costs log 2, whatever the score; 2 of 6 cells, mean over 6."""
    labels = torch.tensor([[P, U, U], [N, U, P]], dtype=torch.int8)
    teacher = torch.tensor([[0.9, 0.2, math.nan], [0.9, 1.0, 0.1]])
    assert distillation(torch.zeros(2, 3), labels, teacher).item() == pytest.approx(2 * math.log(2) / 6)


def test_the_slope_of_distillation_is_the_difference_of_probabilities():
    """d/dx of -t log f - (1 - t) log(1 - f) is f - t; 0 for known cells and cells without a score."""
    labels = torch.tensor([[P, U, U, U]], dtype=torch.int8)
    teacher = torch.tensor([[0.0, 0.25, 1.0, math.nan]], dtype=torch.float64)
    logits = torch.tensor([[1.0, 2.0, -40.0, 3.0]], dtype=torch.float64, requires_grad=True)
    distillation(logits, labels, teacher).backward()
    f = logits.detach().sigmoid()
    expected = torch.tensor([[0.0, f[0, 1].item() - 0.25, f[0, 2].item() - 1, 0.0]]) / 4
    torch.testing.assert_close(logits.grad, expected.double(), rtol=1e-6, atol=0)


def test_likely_positives_and_negatives_by_hand():
    """Above .3, among the two best of the image; the lowest half of the scores, rounded down, and what ties with it."""
    teacher = torch.tensor([[0.9, 0.4, 0.35, 0.1], [0.2, math.nan, 0.8, 0.2]])
    assert likely_positive(teacher, 0.3).tolist() == [[True, True, True, False], [False, False, True, False]]
    assert likely_positive(teacher, 0.3, top_k=2).tolist() == [[True, True, False, False], [False, False, True, False]]
    assert likely_negative(teacher, 0.5).tolist() == [[False, False, True, True], [True, False, False, True]]
    assert not likely_negative(teacher, 0.2).any()


def cells(seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice([P, U, U, U, N], (5, 7)).astype(np.int8)
    teacher = np.where(rng.random((5, 7)) < 0.2, np.nan, rng.random((5, 7)))
    return rng.normal(0, 3, (5, 7)), labels, teacher


@pytest.mark.parametrize("seed", range(3))
def test_vlpl_against_a_loop(seed):
    """Unknown: -alpha H(f), or .7 (-.9 log f - .1 log(1 - f)) where the teacher is above .3."""
    logits, labels, teacher = cells(seed)
    total = 0.0
    for x, z, t in zip(logits.flat, labels.flat, teacher.flat, strict=True):
        f = 1 / (1 + math.exp(-x))
        if z == P:
            total -= math.log(f)
        elif z == N:
            total -= math.log(1 - f)
        elif t > 0.3:
            total += 0.7 * (-0.9 * math.log(f) - 0.1 * math.log(1 - f))
        else:
            total -= 0.2 * (-f * math.log(f) - (1 - f) * math.log(1 - f))
    scores = torch.from_numpy(teacher)
    soft = torch.full_like(scores, math.nan).masked_fill(likely_positive(scores, 0.3), 0.9)
    weight = torch.full_like(soft, 0.7)
    found = entropy_maximisation(
        torch.from_numpy(logits), torch.from_numpy(labels), weight=0.2, soft=soft, soft_weight=weight
    )
    assert found.item() == pytest.approx(total / 35, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_gpr_against_a_loop(seed):
    """GR; u (-.9 log f - .1 log(1 - f)) with u = 1 - v in .3 to .8 where pseudo positive, -v log(1 - f) if negative."""
    logits, labels, _ = cells(seed)
    pseudo = np.random.default_rng(seed).choice([P, U, N], labels.shape).astype(np.int8)
    settings = {
        "slope": 1.0,
        "offset": -2.0,
        "centre": 0.6,
        "width": 0.4,
        "positive_power": 0.01,
        "negative_power": 1.0,
    }
    total = 0.0
    for x, z, q in zip(logits.flat, labels.flat, pseudo.flat, strict=True):
        f = 1 / (1 + math.exp(-x))
        v = math.exp(-(((f - 0.6) / 0.4) ** 2) / 2)
        k = 1 / (1 + math.exp(-(f - 2)))
        if z == P:
            total -= math.log(f)
        elif z == N:
            total -= math.log(1 - f)
        elif q == P:
            total += min(max(1 - v, 0.3), 0.8) * (-0.9 * math.log(f) - 0.1 * math.log(1 - f))
        elif q == N:
            total -= v * math.log(1 - f)
        else:
            total += v * (k * (1 - f**0.01) / 0.01 + (1 - k) * (1 - (1 - f)))
    given = torch.from_numpy(logits), torch.from_numpy(labels)
    found = generalised_robust(*given, **settings, pseudo=torch.from_numpy(pseudo))
    assert found.item() == pytest.approx(total / 35, rel=1e-9)
    nothing = torch.zeros_like(given[1])
    assert generalised_robust(*given, **settings, pseudo=nothing).item() == pytest.approx(
        generalised_robust(*given, **settings).item(), rel=1e-12
    )


def test_a_pseudo_label_has_no_gradient_through_its_weight():
    """The slope of u (-log f) at f = 1/2 is -u / 2, with u = 1 - v = 1 - exp(-1/2) fixed."""
    logits = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[U]], dtype=torch.int8)
    settings = {"slope": 0.0, "offset": 0.0, "centre": 0.0, "width": 0.5}
    generalised_robust(
        logits,
        labels,
        **settings,
        pseudo=torch.tensor([[P]], dtype=torch.int8),
        pseudo_weights=(0.0, 1.0),
        smoothing=0.0,
    ).backward()
    assert logits.grad.item() == pytest.approx(-(1 - math.exp(-0.5)) / 2)
