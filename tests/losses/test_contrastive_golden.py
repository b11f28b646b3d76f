"""Contrastive losses of MLS: golden values."""

import math

import numpy as np
import pytest
import torch
from contrastive_cases import GOLDEN, INPUTS, TAU, boolean, close, float64, unit

from fewtags.losses.contrastive import (
    bce_pos,
    fingerprint,
    infonce,
    knn_softmax,
    mls_bce,
    similarity,
    top_k,
)


def view():
    """Unit vectors of the golden case: z1, z2, g1, both queues."""
    z1, z2, g1 = (unit(float64(INPUTS[name])) for name in ("z1_raw", "z2_raw", "g1_raw"))
    return z1, z2, g1, float64(INPUTS["Qz"]), float64(INPUTS["Qg"])


def golden_labels(k=2):
    return boolean(GOLDEN["labels"][f"k{k}"]["y"])


VALID = boolean([GOLDEN["partial_queue"]["valid"]])


def of_logits(loss):
    def call(q, key, queue, labels):
        return loss(similarity(q, queue) / TAU, labels)

    return call


def partly(logits, labels):
    return mls_bce(logits, labels, counted=VALID)


GOLDEN_LOSSES = {
    "infonce": lambda q, key, queue, labels: infonce(q, key, queue, TAU),
    "mls_bce": of_logits(mls_bce),
    "bce_pos": of_logits(bce_pos),
    "knn_softmax_eq10": of_logits(knn_softmax),
    "knn_softmax_eq2": of_logits(lambda x, y: knn_softmax(x, y, reading="eq2")),
    "knn_softmax_eq11": of_logits(lambda x, y: knn_softmax(x, y, reading="eq11")),
    "qz_only": of_logits(mls_bce),
    "partial_queue": of_logits(partly),
}


def labels_of(name):
    z1, _, g1, qz, qg = view()
    if name == "qz_only":
        return top_k(similarity(z1, qz), 2)
    return top_k(similarity(g1, qg), 2, VALID if name == "partial_queue" else None)


@pytest.mark.parametrize("name", GOLDEN_LOSSES)
def test_golden_losses_and_their_gradients(name):
    loss, golden, labels = GOLDEN_LOSSES[name], GOLDEN[name], labels_of(name)
    _, key, _, queue, _ = view()
    raw = float64(INPUTS["z1_raw"]).requires_grad_()
    query = unit(raw)
    query.retain_grad()
    total = loss(query, key, queue, labels)
    total.backward()
    close(total, golden["loss"])
    close(query.grad, golden["grad_q_unit"])
    close(raw.grad, golden["grad_z1_raw"])
    each = [loss(query[[n]], key[[n]], queue, labels[[n]]).item() for n in range(3)]
    close(each, golden["per_sample"])


LOGIT_LOSSES = {
    "mls_bce": mls_bce,
    "bce_pos": bce_pos,
    "knn_softmax_eq10": knn_softmax,
    "knn_softmax_eq2": lambda x, y: knn_softmax(x, y, reading="eq2"),
    "knn_softmax_eq11": lambda x, y: knn_softmax(x, y, reading="eq11"),
    "qz_only": mls_bce,
    "partial_queue": partly,
}


@pytest.mark.parametrize("name", LOGIT_LOSSES)
def test_golden_gradients_of_logits(name):
    z1, _, _, queue, _ = view()
    logits = (similarity(z1, queue) / TAU).requires_grad_()
    close(logits, GOLDEN[name]["logits"])
    LOGIT_LOSSES[name](logits, labels_of(name)).backward()
    close(logits.grad, GOLDEN[name]["grad_logits"])


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_golden_labels(k):
    _, _, g1, _, qg = view()
    close(similarity(g1, qg), GOLDEN["labels"]["sim"])
    assert torch.equal(top_k(similarity(g1, qg), k), golden_labels(k))


@pytest.mark.parametrize("name", ["qz_only", "qg_only", "partial_queue"])
def test_golden_labels_of_other_queues(name):
    chosen = [set(row.nonzero()[:, 0].tolist()) for row in labels_of(name)]
    assert chosen == [set(row) for row in GOLDEN[name]["idx"]]


def test_golden_total():
    _, key, _, queue, _ = view()
    raw = float64(INPUTS["z1_raw"]).requires_grad_()
    query = unit(raw)
    total = infonce(query, key, queue, TAU) + INPUTS["lam"] * mls_bce(similarity(query, queue) / TAU, golden_labels())
    total.backward()
    close(total, GOLDEN["total"]["loss"])
    close(raw.grad, GOLDEN["total"]["grad_z1_raw"])


def test_golden_labels_and_logits_from_features_alone():
    golden, queue = GOLDEN["qg_only"], view()[4]
    raw = float64(INPUTS["g1_raw"]).requires_grad_()
    features = unit(raw)
    features.retain_grad()
    logits = similarity(features, queue) / TAU
    close(logits, golden["logits"])
    loss = mls_bce(logits, top_k(similarity(features, queue), 2))
    loss.backward()
    close(loss, golden["loss"])
    close(features.grad, golden["grad_g1_unit"])
    close(raw.grad, golden["grad_g1_raw"])
    each = [mls_bce(logits[[n]], labels_of("qg_only")[[n]]).item() for n in range(3)]
    close(each, golden["per_sample"])


def test_golden_stability():
    """At +-1000 the sigmoid is 0 or 1 in every precision; values and gradients (times 4 slots) stay exact."""
    golden = GOLDEN["stability"]
    labels = float64(golden["y"]) == 1
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        logits = torch.tensor(golden["logits"], dtype=dtype, requires_grad=True)
        loss = mls_bce(logits, labels)
        loss.backward()
        close(loss * 4, np.sum(golden["elementwise"]), tolerance)
        close(logits.grad * 4, golden["grad"], tolerance)
    wrong = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    loss = mls_bce(wrong, boolean([[0, 1]]))
    loss.backward()
    assert loss.item() == 1000
    assert wrong.grad.tolist() == [[0.5, -0.5]]


def test_golden_anchors():
    """Queries across all keys and slots: logits of 0."""
    anchors = GOLDEN["anchors"]
    for slots in (8, 4096):
        query, rest = float64([[1.0, 0.0]]), float64([[0.0, 1.0]])
        found = infonce(query, rest, rest.expand(slots, -1), TAU)
        close(found, anchors[f"infonce_zero_logits_D{slots}"])
    logits, labels = torch.zeros(1, 4096, dtype=torch.float64), torch.arange(4096)[None] < 20
    for reduction in ("mean", "balanced"):
        close(mls_bce(logits, labels, reduction=reduction), anchors["bce_zero_logits"])
    close(bce_pos(logits, labels), anchors["bce_pos_zero_logits_D4096_k20"])
    for reading in ("eq10", "eq2"):
        expected = math.log(4096 if reading == "eq10" else 4096 - 20 + 1)
        close(knn_softmax(logits, labels, reading=reading), expected)
    close(knn_softmax(logits, labels), anchors["knn_softmax_zero_logits_D4096"])
    close(knn_softmax(logits, labels, reading="eq11"), math.log(4096 / 20) / 20)
    base = anchors["base_rate_logit_D4096_k20"]
    close(mls_bce(logits + base, labels), mls_bce(logits, labels, bias=math.log(20 / 4076)))


def test_the_fingerprint_of_collapse_is_the_loss_of_equal_vectors():
    vector = torch.full((1, 4), 0.5, dtype=torch.float64)
    for k, slots, t in ((20, 4096, 0.2), (1, 3, 0.07), (7, 5, 1.0)):
        queue = vector.expand(slots, -1)
        labels = top_k(similarity(vector, queue), k)
        assert labels.sum() == min(k, slots)
        close(mls_bce(similarity(vector, queue) / t, labels), fingerprint(k, slots, t))
        close(infonce(vector, vector, queue, t), math.log(slots + 1))
    assert fingerprint(20, 4096, 0.2) == pytest.approx(4.9823, abs=5e-5)
    assert fingerprint(1, 2, 1e-4) == pytest.approx(5000.0)


@pytest.mark.parametrize("case", ["balanced", "one_strong", "flip"])
def test_golden_terms_that_contradict_each_other(case):
    """Term i of eq. 10 is the softmax with positive i alone, over N = 2: it pushes the other positive away."""
    golden = GOLDEN["contradiction"][case]

    def gradient(loss, positives):
        logits = (float64([golden["cos"]]) / TAU).requires_grad_()
        labels = torch.zeros(1, 8, dtype=torch.bool)
        labels[0, positives] = True
        loss(logits, labels).backward()
        return logits.grad[0, :2]

    close(gradient(knn_softmax, [0]) / 2, golden["term1"])
    close(gradient(knn_softmax, [1]) / 2, golden["term2"])
    close(gradient(knn_softmax, [0, 1]), golden["net"])
    close(gradient(mls_bce, [0, 1]), golden["bce"])
    outside = gradient(lambda x, y: knn_softmax(x, y, reading="eq11"), [0, 1])
    p = np.array(golden["p"])
    close(outside, (p - p / p.sum()) / 2)
    assert (outside < 0).all()


def test_golden_values_in_float32():
    z1, z2, g1, qz, qg = (v.float() for v in view())
    labels = top_k(similarity(g1, qg), 2)
    assert torch.equal(labels, golden_labels())
    for name, loss in GOLDEN_LOSSES.items():
        if name not in ("qz_only", "partial_queue"):
            got = loss(z1, z2, qz, labels)
            assert got.dtype == torch.float32
            assert got.item() == pytest.approx(GOLDEN[name]["loss"], abs=1e-6)
