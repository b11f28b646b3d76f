"""Losses of self-supervised pretraining."""

import math

import numpy as np
import pytest
import torch
from contrastive_cases import ALL, READINGS, REDUCTIONS, TAU, boolean, close, float64, unit

from fewtags.errors import ConfigError
from fewtags.losses.contrastive import (
    bce_pos,
    byol_loss,
    collapse,
    dense_infonce,
    fingerprint,
    infonce,
    knn_softmax,
    mls_bce,
    negative_cosine,
    ntxent,
    similarity,
    top_k,
)


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng([seed, *shape]).normal(size=shape))


# --- derived by hand


def test_the_first_slots_of_equally_similar_ones_are_labels():
    """Row 0: .9 and, of three times .5, the first; row 1: all are equal, so slots 0 and 1."""
    rows = torch.tensor([[0.5, 0.9, 0.5, 0.1, 0.5], [0.3] * 5])
    assert top_k(rows, 2).int().tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert top_k(rows, 3).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
    assert top_k(rows, 9).all()


def test_only_counted_slots_are_labels_and_all_of_them_if_they_are_few():
    """Row 0 counts .5 (slot 2), .1; row 1 only .3; row 2 nothing."""
    rows = torch.tensor([[0.5, 0.9, 0.5, 0.1], [0.3] * 4, [0.3] * 4])
    counted = boolean([[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    assert top_k(rows, 1, counted).int().tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(top_k(rows, 2, counted), counted)
    assert torch.equal(top_k(rows, 2, counted[:1]), counted[:1].expand(3, -1))


def test_infonce_by_hand():
    """q = k = (1, 0), Q = (0, 1), (0, 1), t = 1 / log 2: exp(1/t) = 2 against exp(0) twice, so -log(2 / 4) = log 2.

    Without the last slot -log(2/3); without both 0.
    """
    axis, queue = float64([[1.0, 0.0]]), float64([[0.0, 1.0], [0.0, 1.0]])
    for counted, expected in (([[1, 1]], math.log(2)), ([[1, 0]], math.log(1.5)), ([[0, 0]], 0.0)):
        close(infonce(axis, axis, queue, 1 / math.log(2), counted=boolean(counted)), expected)


def test_reductions_by_hand():
    """s = 3/4, 1/2, 1/4, 1/2 at log 3, 0, -log 3, 0; positives the first two, the last slot does not count.

    P = log(4/3) + log 2 = log(8/3), N = log(4/3); 3 slots, 2 positives, 1 negative.
    """
    logits, labels = float64([[math.log(3), 0, -math.log(3), 0]]), boolean([[1, 1, 0, 1]])
    counted, p, n = boolean([[1, 1, 1, 0]]), math.log(8 / 3), math.log(4 / 3)
    for reduction, both, positives in (
        ("mean", (p + n) / 3, p / 3),
        ("per_positive", (p + n) / 2, p / 2),
        ("balanced", p / 4 + n / 2, p / 4),
    ):
        close(mls_bce(logits, labels, counted=counted, reduction=reduction), both)
        close(bce_pos(logits, labels, counted=counted, reduction=reduction), positives)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_bias_is_added_to_the_logits(reduction):
    logits, labels = draw(3, 7), draw(3, 7, seed=1) > 0
    for loss in (mls_bce, bce_pos):
        biased = loss(logits, labels, reduction=reduction, bias=-1.25)
        assert torch.equal(biased, loss(logits - 1.25, labels, reduction=reduction))


def test_the_base_rate_bias_starts_at_rest():
    """With x = log(k / (D - k)) everywhere s = k/D, so that the sum of the gradient (s - y) / D over D slots is 0."""
    labels = torch.arange(8)[None] < 2
    logits = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    mls_bce(logits, labels, bias=math.log(2 / 6)).backward()
    close(logits.grad.sum(), 0.0)
    close(logits.grad, [[(0.25 - 1) / 8] * 2 + [0.25 / 8] * 6])


def test_readings_of_the_softmax_by_hand():
    """exp(x) = 1, 3, 4; positives the first two: N = 2, S+ = 4, S- = 4.

    eq10: (log(8/1) + log(8/3)) / 2; eq2: (log(5/1) + log(7/3)) / 2; eq11: log(8/4) / 2.
    """
    logits, labels = float64([[0.0, math.log(3), math.log(4)]]), boolean([[1, 1, 0]])
    close(knn_softmax(logits, labels), math.log(64 / 3) / 2)
    close(knn_softmax(logits, labels, reading="eq2"), math.log(35 / 3) / 2)
    close(knn_softmax(logits, labels, reading="eq11"), math.log(2) / 2)


def test_cosine_losses_by_hand():
    """(3, 4) and (1, 0): cosine .6; (0, 2) and (0, -1): -1. Mean -.2; 2 + .4. A zero vector has the cosine 0."""
    one, other = float64([[3, 4], [0, 2]]), float64([[1, 0], [0, -1]])
    close(negative_cosine(one, other), 0.2)
    close(byol_loss(one, other), 2.4)
    assert negative_cosine(torch.zeros(1, 2), torch.ones(1, 2)).item() == 0


def test_only_the_prediction_gets_a_gradient():
    for loss in (negative_cosine, byol_loss):
        prediction, target = (draw(3, 4, seed=seed).requires_grad_() for seed in (0, 1))
        loss(prediction, target).backward()
        assert target.grad is None
        close((prediction.grad * prediction).sum(1), np.zeros(3))  # its length does not matter


def test_ntxent_by_hand():
    """Queries (1, 0), (0, 1); keys (0, 1), (1, 0), (1, 0); t = 1 / log 2. Right keys: 1 of 1, 2, 2; 0 of 2, 1, 1.

    -log(2/5) and -log(2/4).
    """
    query, key = float64([[1, 0], [0, 1]]), float64([[0, 1], [1, 0], [1, 0]])
    close(ntxent(query, key, torch.tensor([1, 0]), 1 / math.log(2)), (math.log(2.5) + math.log(2)) / 2)


def test_ntxent_pulls_on_both_sides():
    query, key = (unit(draw(3, 4, seed=seed)).requires_grad_() for seed in (0, 1))
    ntxent(query, key, torch.arange(3), 0.1).backward()
    assert query.grad.abs().sum() > 0
    assert key.grad.abs().sum() > 0


def test_dense_infonce_by_hand():
    """One image, two cells of the first view and three of the second, whose backbone features say 0 -> 1 and 1 -> 2.

    The longest feature, of cell 0, is nearest to neither. Products with the matched keys: 1 and 0; with the queue's
    only slot: 0 and 1. t = 1 / log 2: -log(2 / (2 + 1)) and -log(1 / (1 + 2)).
    """
    query, key = float64([[[1, 0], [0, 1]]]), float64([[[0, 1, 1], [1, 0, 0]]])
    query_features = float64([[[2, 0], [0, 5]]])
    key_features = float64([[[9, 1, 0], [9, 0, 1]]])
    loss = dense_infonce(query, key, query_features, key_features, float64([[0, 1]]), 1 / math.log(2))
    close(loss, (math.log(1.5) + math.log(3)) / 2)


def test_the_first_of_equal_cells_is_the_match():
    """Features are the same everywhere; the projected keys are not: cell 0 has the product 1, cell 1 has -1."""
    features = torch.ones(1, 3, 2)
    query, key = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[1.0, -1.0]]])
    loss = dense_infonce(query, key, features, features, torch.tensor([[1.0]]), 1.0)
    assert loss.item() == pytest.approx(math.log(2))


def test_spread_by_hand():
    """(1, 0), (-1, 0): deviations sqrt(2), 0 (b - 1 = 1); their mean sqrt(2) / 2 times sqrt(2) is 1."""
    assert collapse(float64([[3, 0], [-5, 0]])).item() == pytest.approx(1.0)
    assert collapse(float64([[1, 2], [2, 4], [3, 6]])).item() == pytest.approx(0.0, abs=1e-12)
    assert collapse(draw(1, 8)).item() == 0
    assert collapse(draw(20_000, 16)).item() == pytest.approx(1.0, abs=0.01)
    assert not collapse(draw(3, 4).requires_grad_()).requires_grad


# --- a slow reference

SIZES = [(1, 1, 1), (1, 5, 3), (3, 1, 2), (4, 7, 5), (2, 33, 3)]


def log_sum(values):
    return math.log(sum(math.exp(v) for v in values))


def slow_softmax(x, y, cell, reading):
    positives = [j for j in range(len(x)) if cell[j] and y[j]]
    negatives = [j for j in range(len(x)) if cell[j] and not y[j]]
    if not positives:
        return 0.0
    everything = sum(math.exp(x[j]) for j in positives + negatives)
    rest = sum(math.exp(x[j]) for j in negatives)
    if reading == "eq11":
        return -math.log(sum(math.exp(x[j]) for j in positives) / everything) / len(positives)
    below = [everything if reading == "eq10" else math.exp(x[j]) + rest for j in positives]
    terms = [-math.log(math.exp(x[j]) / total) for j, total in zip(positives, below, strict=True)]
    return sum(terms) / len(positives)


def slow_bce(x, y, cell, reduction, both):
    p = [-math.log(1 / (1 + math.exp(-v))) for v, label, c in zip(x, y, cell, strict=True) if c and label]
    n = [-math.log(1 - 1 / (1 + math.exp(-v))) for v, label, c in zip(x, y, cell, strict=True) if c and not label]
    if not p and not n:
        return 0.0
    if reduction == "balanced":
        halves = [sum(side) / len(side) / 2 if side else 0.0 for side in (p, n)]
        return halves[0] + (halves[1] if both else 0.0)
    divisor = len(p) + len(n) if reduction == "mean" else max(len(p), 1)
    return (sum(p) + (sum(n) if both else 0.0)) / divisor


def random_case(b, slots, d, *, all_count):
    rng = np.random.default_rng([b, slots, d, all_count])
    logits, labels = rng.normal(0, 3, (b, slots)), rng.random((b, slots)) < 0.4
    counted = np.ones((b, slots), bool) if all_count else rng.random((b, slots)) < 0.6
    return logits, labels, counted


@pytest.mark.parametrize("all_count", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_equals_a_loop_over_slots(size, all_count):
    logits, labels, counted = random_case(*size, all_count=all_count)
    rows = list(zip(logits, labels, counted, strict=True))
    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    cell = None if all_count else torch.from_numpy(counted)
    for reading in READINGS:
        expected = np.mean([slow_softmax(*row, reading) for row in rows])
        close(knn_softmax(x, y, counted=cell, reading=reading), expected)
    for reduction in REDUCTIONS:
        expected = np.mean([slow_bce(*row, reduction, True) for row in rows])
        close(mls_bce(x, y, counted=cell, reduction=reduction), expected)
        expected = np.mean([slow_bce(*row, reduction, False) for row in rows])
        close(bce_pos(x, y, counted=cell, reduction=reduction), expected)


@pytest.mark.parametrize("all_count", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_contrasts_equal_a_loop_over_slots(size, all_count):
    b, slots, d = size
    counted = random_case(b, slots, d, all_count=all_count)[2]
    query, key, queue = unit(draw(b, d, seed=1)), unit(draw(b, d, seed=2)), unit(draw(slots, d, seed=3))
    q, k, rest = query.numpy(), key.numpy(), queue.numpy()
    expected = []
    for n in range(b):
        own = q[n] @ k[n] / 0.3
        expected.append(log_sum([own] + [q[n] @ rest[j] / 0.3 for j in range(slots) if counted[n, j]]) - own)
    cell = None if all_count else torch.from_numpy(counted)
    close(infonce(query, key, queue, 0.3, counted=cell), np.mean(expected))
    right = torch.from_numpy(np.random.default_rng(b).integers(0, slots, b))
    expected = [log_sum(rest @ q[n] / 0.3) - q[n] @ rest[right[n]] / 0.3 for n in range(b)]
    close(ntxent(query, queue, right, 0.3), np.mean(expected))


@pytest.mark.parametrize("all_count", [True, False])
@pytest.mark.parametrize("cells", [(1, 1), (4, 9), (9, 4), (3, 3)])
@pytest.mark.parametrize("size", SIZES)
def test_dense_contrast_equals_a_loop_over_cells(size, cells, all_count):
    (b, slots, d), (s, u) = size, cells
    counted = random_case(b, slots, d, all_count=all_count)[2]
    query, key = unit(draw(b, d, s, seed=1)), unit(draw(b, d, u, seed=2))
    features, others, queue = draw(b, 5, s, seed=3), draw(b, 5, u, seed=4), unit(draw(slots, d, seed=5))
    total = 0.0
    for n in range(b):
        for i in range(s):
            f = features[n, :, i].numpy()
            cosines = [f @ g / np.linalg.norm(f) / np.linalg.norm(g) for g in others[n].numpy().T]
            q = query[n, :, i].numpy()
            own = q @ key[n, :, int(np.argmax(cosines))].numpy() / 0.2
            rest = [q @ queue[j].numpy() / 0.2 for j in range(slots) if counted[n, j]]
            total += log_sum([own, *rest]) - own
    cell = None if all_count else torch.from_numpy(counted)
    close(dense_infonce(query, key, features, others, queue, 0.2, counted=cell), total / (b * s))


@pytest.mark.parametrize("k", [1, 2, 5, 40])
@pytest.mark.parametrize("size", SIZES)
def test_labels_equal_a_stable_sort(size, k):
    """Similarities of one decimal: ties everywhere."""
    b, slots, _ = size
    rows, counted = draw(b, slots).round(decimals=0) / 10, torch.from_numpy(random_case(*size, all_count=False)[2])
    chosen = top_k(rows, k, counted)
    for n in range(b):
        ranked = sorted((-rows[n, j].item(), j) for j in range(slots) if counted[n, j])
        assert chosen[n].nonzero()[:, 0].tolist() == sorted(j for _, j in ranked[:k])


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_those_of_the_value(name):
    logits, labels, counted = (torch.from_numpy(a) for a in random_case(3, 6, 2, all_count=False))
    assert torch.autograd.gradcheck(lambda x: ALL[name](x, labels, counted), logits.requires_grad_())


def test_gradients_of_contrasts_are_those_of_the_value():
    query, key, queue = (unit(draw(3, 4, seed=seed)).requires_grad_() for seed in range(3))
    assert torch.autograd.gradcheck(lambda q, k, r: infonce(q, k, r, 0.5), (query, key, queue))
    assert torch.autograd.gradcheck(lambda q, k: ntxent(q, k, torch.tensor([2, 0, 2]), 0.5), (query, key))
    assert torch.autograd.gradcheck(lambda q: byol_loss(q, key), query)
    features = draw(2, 3, 5)
    cells = [unit(draw(2, 4, 5, seed=seed)).requires_grad_() for seed in (3, 4)]
    assert torch.autograd.gradcheck(
        lambda q, k, r: dense_infonce(q, k, features, features.flip(2), r, 0.5), (*cells, queue)
    )


# --- numerics and errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_half_precision_are_computed_in_float32(dtype):
    """Inside autocast a product of matrices would be bfloat16; here all is what it is outside, bit by bit."""
    query, key, queue = (unit(draw(n, 16, seed=n)).to(dtype) for n in (5, 5, 70))
    cells = [unit(draw(2, 16, 9, seed=seed)).to(dtype) for seed in range(4)]
    x, labels = similarity(query.float(), queue.float()) / TAU, draw(5, 70) > 1

    def everything(query, key, queue, cells, x):
        return [
            similarity(query, queue),
            infonce(query, key, queue, TAU),
            ntxent(query, queue, torch.arange(5), TAU),
            dense_infonce(*cells, queue, TAU),
            negative_cosine(query, key),
            byol_loss(query, key),
            collapse(query),
            *(loss(x, labels, None) for loss in ALL.values()),
        ]

    x = x.to(dtype)
    outside = everything(query.float(), key.float(), queue.float(), [c.float() for c in cells], x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = everything(query, key, queue, cells, x)
        full = everything(query.float(), key.float(), queue.float(), [c.float() for c in cells], x.float())
    for got, same, expected in zip(inside, full, outside, strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)
        assert torch.equal(same, expected)


def test_cells_are_matched_in_float32_inside_autocast():
    """Cosines cos(.02) = .9998 and 1, both 1 in bfloat16. Products: -1 with cell 0, 1 with cell 1 and with the slot."""
    features, others = torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[math.cos(0.02), 1.0], [math.sin(0.02), 0.0]]])
    query, key = torch.tensor([[[1.0]]]), torch.tensor([[[-1.0, 1.0]]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = dense_infonce(query, key, features, others, torch.tensor([[1.0]]), 1.0)
    assert loss.item() == pytest.approx(math.log(2))


def test_float64_vectors_meet_a_float32_queue_in_float64():
    query, key, queue = unit(draw(3, 4)), unit(draw(3, 4, seed=1)).float(), unit(draw(6, 4)).float()
    assert similarity(query, queue).dtype == torch.float64
    assert infonce(query, key, queue, TAU).dtype == torch.float64
    assert torch.equal(infonce(query, key, queue, TAU), infonce(query, key.double(), queue.double(), TAU))


def test_tiny_temperatures_stay_finite():
    query, queue = unit(draw(3, 4)).float().requires_grad_(), unit(draw(6, 4)).float()
    loss = infonce(query, unit(draw(3, 4, seed=1)).float(), queue, 1e-6)
    loss.backward()
    assert loss.isfinite()
    assert query.grad.isfinite().all()


def test_labels_have_no_gradient():
    rows = draw(2, 5).requires_grad_()
    assert not top_k(rows, 2).requires_grad


@pytest.mark.parametrize("k", [0, -3])
def test_labels_need_a_positive_number(k):
    expected = f"k, the number of positive slots of an image, must be at least 1, got {k}."
    for call in (lambda: top_k(torch.zeros(1, 4), k), lambda: fingerprint(k, 4096, 0.2)):
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value) == expected


@pytest.mark.parametrize("t", [0.0, -0.2, math.nan])
def test_a_temperature_is_above_zero(t):
    rows, cells = torch.ones(2, 3), torch.ones(2, 3, 1)
    for call in (
        lambda: infonce(rows, rows, rows, t),
        lambda: ntxent(rows, rows, torch.arange(2), t),
        lambda: dense_infonce(cells, cells, cells, cells, rows, t),
        lambda: fingerprint(20, 4096, t),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value) == f"the temperature must be above 0 (MoCo-v2 and MLS use 0.2), got {t}."
