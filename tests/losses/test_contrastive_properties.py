"""Contrastive losses of MLS: properties, and empty sets."""

import math

import numpy as np
import pytest
import torch
from contrastive_cases import ALL, READINGS, TAU, boolean, close, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.losses.contrastive import (
    byol_loss,
    dense_infonce,
    infonce,
    knn_softmax,
    mls_bce,
    negative_cosine,
    ntxent,
    similarity,
    top_k,
)

CASE = st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(0, 2**32 - 1))


def drawn(case):
    b, slots, seed = case
    rng = np.random.default_rng(seed)
    query, key, queue = (unit(torch.from_numpy(rng.normal(size=(n, 4)))) for n in (b, b, slots))
    labels, counted = (torch.from_numpy(rng.random((b, slots)) < share) for share in (0.4, 0.6))
    return rng, query, key, queue, labels, counted


@settings(max_examples=20)
@given(CASE)
def test_the_order_of_the_slots_does_not_matter(case):
    rng, query, key, queue, labels, counted = drawn(case)
    order = torch.from_numpy(rng.permutation(len(queue)))
    x = similarity(query, queue) / TAU
    close(similarity(query, queue[order]) / TAU, x[:, order])
    assert torch.equal(top_k(x[:, order], 3, counted[:, order]), top_k(x, 3, counted)[:, order])
    for loss in ALL.values():
        close(loss(x[:, order], labels[:, order], counted[:, order]), loss(x, labels, counted))
    turned = infonce(query, key, queue[order], TAU, counted=counted[:, order])
    close(turned, infonce(query, key, queue, TAU, counted=counted))


@settings(max_examples=20)
@given(CASE)
def test_slots_that_do_not_count_never_matter_and_get_no_gradient(case):
    rng, query, key, queue, labels, counted = drawn(case)
    garbage = torch.from_numpy(rng.choice([-1e9, 0.0, 1e9, np.inf, np.nan], counted.shape))
    x = similarity(query, queue) / TAU
    noisy = torch.where(counted, x, garbage)
    other = torch.where(counted, labels, ~labels)
    assert torch.equal(top_k(noisy, 3, counted), top_k(x, 3, counted))
    for loss in ALL.values():
        leaf = noisy.clone().requires_grad_()
        value = loss(leaf, other, counted)
        value.backward()
        assert torch.equal(value, loss(x, labels, counted))
        assert (leaf.grad[~counted] == 0).all()
        assert torch.isfinite(leaf.grad).all()
    never = ~counted.any(0)
    kept, mixed = queue.clone().requires_grad_(), queue.clone()
    mixed[never] = -1e9
    value = infonce(query, key, kept, TAU, counted=counted)
    value.backward()
    assert (kept.grad[never] == 0).all()
    assert torch.equal(infonce(query, key, mixed, TAU, counted=counted), value)


@settings(max_examples=20)
@given(CASE)
def test_the_loss_is_the_one_of_a_queue_of_the_counted_slots(case):
    """One mask for every row, given once; and None is the mask of all."""
    _, query, key, queue, labels, counted = drawn(case)
    mask = counted[:1]
    short, x = queue[mask[0]], similarity(query, queue) / TAU
    close(infonce(query, key, queue, TAU, counted=mask), infonce(query, key, short, TAU))
    assert torch.equal(top_k(x, 3, mask)[:, mask[0]], top_k(x[:, mask[0]], 3))
    for loss in ALL.values():
        close(loss(x, labels, mask), loss(x[:, mask[0]], labels[:, mask[0]], None))
        assert torch.equal(loss(x, labels, torch.ones_like(mask)), loss(x, labels, None))


@settings(max_examples=20)
@given(CASE)
def test_images_are_averaged(case):
    _, query, key, queue, labels, counted = drawn(case)
    x = similarity(query, queue) / TAU
    rows = [[n] for n in range(len(query))]
    for loss in ALL.values():
        close(loss(x, labels, counted), np.mean([loss(x[n], labels[n], counted[n]).item() for n in rows]))
    each = [infonce(query[n], key[n], queue, TAU, counted=counted[n]).item() for n in rows]
    close(infonce(query, key, queue, TAU, counted=counted), np.mean(each))


@settings(max_examples=20)
@given(CASE)
def test_the_losses_are_one_family(case):
    """With one positive all readings are one loss, and InfoNCE with the positive in the queue is that too."""
    _, query, _, queue, _, _ = drawn(case)
    x = similarity(query, queue) / TAU
    labels = top_k(x, 1)
    one, two, eleven = (knn_softmax(x, labels, reading=reading) for reading in READINGS)
    close(two, one)
    close(eleven, one)
    nearest = queue[labels.int().argmax(1)]
    close(infonce(query, nearest, queue, TAU, counted=~labels), one)
    close(ntxent(query, queue, labels.int().argmax(1), TAU), one)
    cells = [v[:, :, None] for v in (query, nearest)]
    close(dense_infonce(*cells, *cells, queue, TAU, counted=~labels), one)
    close(byol_loss(query, nearest), (query - nearest).square().sum(1).mean())
    close(mls_bce(x, labels, reduction="per_positive"), mls_bce(x, labels) * len(queue))


@pytest.mark.parametrize("name", ALL)
def test_nothing_to_learn_from_gives_zero_and_no_gradient(name):
    labels = boolean([[1, 0, 1], [0, 0, 0]])
    logits = torch.tensor([[4.0, -4.0, 90.0]] * 2, requires_grad=True)
    loss = ALL[name](logits, labels, torch.zeros_like(labels))
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()
    for shape in ((0, 3), (2, 0)):
        logits = torch.zeros(shape, requires_grad=True)
        loss = ALL[name](logits, torch.zeros(shape, dtype=torch.bool), None)
        loss.backward()
        assert loss.item() == 0


@pytest.mark.parametrize("name", READINGS)
def test_images_without_a_positive_or_without_a_negative(name):
    """No positive: 0. No negative: eq2 and eq11 are 0 and at rest; eq10 of equal logits is log D and at rest."""
    for labels, expected in ((boolean([[0, 0]]), 0.0), (boolean([[1, 1]]), math.log(2) if name == "eq10" else 0.0)):
        logits = torch.zeros(1, 2, requires_grad=True)
        loss = knn_softmax(logits, labels, reading=name)
        loss.backward()
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        assert (logits.grad == 0).all()


def test_contrasts_of_nothing_are_zero():
    none, some = torch.zeros(0, 4, requires_grad=True), unit(torch.ones(3, 4))
    for loss in (
        infonce(none, none, some, TAU),
        infonce(some, some, none, TAU),
        ntxent(none, some, torch.zeros(0, dtype=torch.int64), TAU),
        dense_infonce(none[:, :, None], none[:, :, None], none[:, :, None], none[:, :, None], some, TAU),
        negative_cosine(none, none),
        byol_loss(none, none),
    ):
        loss.backward()
        assert loss.item() == 0
    assert top_k(torch.zeros(2, 0), 3).shape == (2, 0)
    assert top_k(torch.zeros(0, 2), 3).shape == (0, 2)
