"""Losses of self-supervised pretraining: MLS, the methods it builds on, and the methods it is compared with.

"MLS" is Zhu, Fu, Wu, "Multi-Label Self-Supervised Learning with Scene Images" (ICCV 2023). Its main paper and its
supplement number their equations separately and two numbers collide, so each equation is cited with its place.
"MoCo" is He et al., CVPR 2020 and its version 2, "DenseCL" Wang et al., CVPR 2021, "SimSiam" Chen and He, CVPR 2021,
"BYOL" Grill et al., NeurIPS 2020, "NNCLR" Dwibedi et al., ICCV 2021.

Notation: t = temperature; D = slots of a queue; y = the labels, True for the k slots that `top_k` chooses; s = sigmoid.
`query`, `key` and `queue` must contain unit vectors (not checked); logits are their products divided by t. `counted`
marks the used slots of a queue (None: all; a first axis of 1: the same slots for every row). Unused slots do not change
a loss and get no gradient.

A loss is the mean over the batch; an empty batch gives 0, and so does an image without any used slot. Products and
logarithms are computed in float32 (float64 stays float64), inside autocast too. Only `negative_cosine` and `byol_loss`
stop a gradient; the caller detaches all other inputs that must not get one.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.losses.partial import precise

Reduction = Literal["mean", "per_positive", "balanced"]
Reading = Literal["eq10", "eq2", "eq11"]


def similarity(features: Float[Tensor, "b d"], queue: Float[Tensor, "D d"]) -> Float[Tensor, "b D"]:
    """Products of every row with every slot (MLS main eq. 7 and 8, without the top k): cosines of unit vectors.

    In bfloat16 only 3 % of a row's values would be distinct, and the 20 largest would change.
    """
    dtype = torch.promote_types(precise(features.dtype), queue.dtype)
    with torch.autocast(features.device.type, enabled=False):
        return features.to(dtype) @ queue.to(dtype).T


def top_k(similarity: Float[Tensor, "b D"], k: int, counted: Bool[Tensor, "#b D"] | None = None) -> Bool[Tensor, "b D"]:
    """Mark the k (at least 1; MLS: 20) most similar slots of each row: the labels y of MLS main eq. 7. No gradient.

    If fewer than k slots are used, all of them are marked. Of equally similar slots the first are marked, on every
    device; `torch.topk` does not guarantee this, and ReLU features do produce ties. Raises ConfigError if k < 1.

    >>> top_k(torch.tensor([[0.5, 0.9, 0.5, 0.1]]), 2).tolist()
    [[True, True, False, False]]
    """
    _check_k(k)
    with torch.no_grad():
        similarity = _without(similarity.to(precise(similarity.dtype)), counted, -math.inf)
        least = similarity.topk(min(k, similarity.shape[1]), dim=1).values[:, -1:]
        above, level = similarity > least, similarity == least
        wanted = k - above.sum(1, keepdim=True)
        chosen = above | (level & (level.cumsum(1) <= wanted))
        return chosen if counted is None else chosen & counted


def infonce(
    query: Float[Tensor, "b d"],
    key: Float[Tensor, "b d"],
    queue: Float[Tensor, "D d"],
    temperature: float,
    *,
    counted: Bool[Tensor, "#b D"] | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of the second view of an image against the images in the queue (MoCo; MLS main eq. 1).

    mean over b of: -log [ exp(q.k/t) / (exp(q.k/t) + sum over counted slots j of exp(q.Q_j/t)) ].

    If all vectors are equal it is log(D + 1). Without a used slot it is 0. `query` is of the first view, `key` of the
    second view, and the queue has keys of earlier images. MoCo-v2 and MLS: t = 0.2. Raises ConfigError unless t > 0.
    """
    _check_temperature(temperature)
    return _first_among(_agreement(query, key), similarity(query, queue), temperature, counted)


def mls_bce(
    logits: Float[Tensor, "b D"],
    labels: Bool[Tensor, "b D"],
    *,
    counted: Bool[Tensor, "#b D"] | None = None,
    reduction: Reduction = "mean",
    bias: float = 0.0,
) -> Float[Tensor, ""]:
    """Multi-label classification of an image, with each slot of the queue as a class (MLS main eq. 9).

    Per image, with the sums over counted slots j: P = sum of -y_j log s(x_j), N = sum of -(1 - y_j) log(1 - s(x_j));
    x = logits + bias. Reductions:
        `mean`: (P + N) / counted slots, as in the paper. At its scale (D = 4096, k = 20) the gradient of the
            negatives at x = 0 is 204 times that of the positives.
        `per_positive`: (P + N) / positives; a positive has the weight 1 for any D, and so has a negative.
        `balanced`: half the mean over positives plus half the mean over negatives, so that x = 0 gives log 2 as in
            `mean`; a missing half adds 0.

    If all vectors become equal, every x is 1/t and `mean` equals `fingerprint`.

    Args:
        logits: similarity divided by the temperature, [-1/t, 1/t] for unit vectors.
        labels: y; ignored at unused slots.
        counted: see the module.
        reduction: see above.
        bias: added to the logits (not in the paper). The base rate corresponds to log(k / (D - k)): -5.3 at paper
            scale, which cosines divided by t = 0.2 cannot reach.

    >>> logits, labels = torch.zeros(1, 4), torch.tensor([[True, False, False, False]])
    >>> [round(float(mls_bce(logits, labels, reduction=r)), 4) for r in ("mean", "per_positive", "balanced")]
    [0.6931, 2.7726, 0.6931]
    """
    cell = _all_if_none(counted, labels)
    negative = _over(~labels & cell, labels & cell, cell, reduction, -F.logsigmoid(-_biased(logits, cell, bias)))
    return bce_pos(logits, labels, counted=counted, reduction=reduction, bias=bias) + negative


def bce_pos(
    logits: Float[Tensor, "b D"],
    labels: Bool[Tensor, "b D"],
    *,
    counted: Bool[Tensor, "#b D"] | None = None,
    reduction: Reduction = "mean",
    bias: float = 0.0,
) -> Float[Tensor, ""]:
    """Only the positive terms of `mls_bce`, with the same arguments (MLS supplement eq. 15, "BCE-pos").

    Per image: sum over counted positives of -log s(x_j), divided by the counted slots (`mean`, as in the paper), by the
    positives (`per_positive`), or by twice the positives (`balanced`). At paper scale the gradient of `mean` is at
    most 0.2 % of that of `infonce`.
    """
    cell = _all_if_none(counted, labels)
    positive = labels & cell
    return _over(positive, positive, cell, reduction, -F.logsigmoid(_biased(logits, cell, bias)))


def knn_softmax(
    logits: Float[Tensor, "b D"],
    labels: Bool[Tensor, "b D"],
    *,
    counted: Bool[Tensor, "#b D"] | None = None,
    reading: Reading = "eq10",
) -> Float[Tensor, ""]:
    """Softmax over the queue with several positives, which MLS replaces (Van Gansbeke et al., NeurIPS 2021).

    Per image, with N positives i, S+ the sum of exp(x) over them and S- the sum over the other counted slots, by
    `reading`:
        `eq10`: (1/N) sum_i -log [ exp(x_i) / (S+ + S-) ]: MLS supplement eq. 10, cross-entropy with the target y / N.
            Its gradient is p_j - 1/N, p the softmax: it makes positives equal and repels those with p_j > 1/N.
        `eq2`: (1/N) sum_i -log [ exp(x_i) / (exp(x_i) + S-) ]: MLS main eq. 2 as printed, without the other
            positives in the denominator.
        `eq11`: -(1/N) log [ S+ / (S+ + S-) ]: MLS supplement eq. 11, the logarithm outside the sum, although it is
            derived from eq. 10. It never repels a positive, but ignores weak ones.

    An image without a counted positive adds 0. Logits, labels and `counted` are those of `mls_bce`.
    """
    cell = _all_if_none(counted, labels)
    logits = _biased(logits, cell, 0.0)
    positive, negative = labels & cell, ~labels & cell
    each = positive.sum(1).clamp(min=1)
    if reading == "eq11":
        log_share = _log_sum(logits, positive) - _log_sum(logits, cell)
        return _mean(-log_share.masked_fill(~positive.any(1), 0.0) / each)
    if reading == "eq2":
        log_p = F.logsigmoid(logits - _log_sum(logits, negative)[:, None])
    else:
        assert reading == "eq10", reading
        log_p = _without(logits, cell, _lowest(logits)).log_softmax(1)
    return _mean(-log_p.masked_fill(~positive, 0.0).sum(1) / each)


def negative_cosine(prediction: Float[Tensor, "b d"], target: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Mean over b of -cos(prediction, target), -1 to 1 (SimSiam eq. 1 and 3). The target gets no gradient.

    Vectors may have any length; a zero vector has the cosine 0.
    """
    return _mean(-_cosine(prediction, target.detach()))


def byol_loss(prediction: Float[Tensor, "b d"], target: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Mean over b of 2 - 2 cos(prediction, target), 0 to 4 (BYOL eq. 2): the squared distance of the unit vectors.

    Vectors may have any length; the target gets no gradient.
    """
    return _mean(2 - 2 * _cosine(prediction, target.detach()))


def ntxent(
    query: Float[Tensor, "b d"], key: Float[Tensor, "n d"], positive: Int64[Tensor, "b"], temperature: float
) -> Float[Tensor, ""]:
    """Cross-entropy of the correct key against the others of a batch (NT-Xent).

    mean over b of: -log [ exp(q.k_p/t) / sum over j of exp(q.k_j/t) ], p = `positive`, the correct row of `key`.

    With neighbours from a queue as queries it is NNCLR eq. 2, with t = 0.1. Both sides get a gradient. Raises
    ConfigError if the temperature is not above 0.
    """
    _check_temperature(temperature)
    logits = similarity(query, key) / temperature
    return F.cross_entropy(logits, positive, reduction="sum") / max(len(query), 1)


def dense_infonce(
    query: Float[Tensor, "b d s"],
    key: Float[Tensor, "b d u"],
    query_features: Float[Tensor, "b e s"],
    key_features: Float[Tensor, "b e u"],
    queue: Float[Tensor, "D d"],
    temperature: float,
    *,
    counted: Bool[Tensor, "#b D"] | None = None,
) -> Float[Tensor, ""]:
    """`infonce` for every cell of a map, with the best matching cell of the other view as key (DenseCL eq. 2 and 4).

    mean over b x s of: -log [ exp(q_i.k_c/t) / (exp(q_i.k_c/t) + sum over counted slots j of exp(q_i.Q_j/t)) ], with
    c = argmax over the u cells of cos(query_features_i, key_features_c), the first of equal ones. Matching uses the
    backbone's features, not the projected ones, and has no gradient. The logits have b x s x D elements.

    Args:
        query: projected cells of the first view, unit vectors along d.
        key: the same of the second view, whose map may have a different number of cells.
        query_features: the backbone's features in the same cells, of any length.
        key_features: the same of the second view.
        queue: keys of earlier images, each pooled over its cells and of length 1.
        temperature: t above 0. DenseCL: 0.2.
        counted: see the module; the same for all cells of an image.

    Raises:
        ConfigError: a temperature that is not above 0.
    """
    _check_temperature(temperature)
    match = _best_cell(query_features, key_features)
    matched = key.gather(2, match[:, None].expand(-1, key.shape[1], -1))
    flat = query.transpose(1, 2).flatten(0, 1)
    if counted is not None:
        counted = counted.expand(len(query), -1).repeat_interleave(query.shape[2], 0)
    return _first_among(_agreement(query, matched).flatten(), similarity(flat, queue), temperature, counted)


def collapse(z: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Spread of vectors: sqrt(d) times the mean over dimensions of the standard deviation of the unit vectors.

    1 for a uniform distribution on the sphere; 0 if all are equal: the net has collapsed (SimSiam section 4.1). The
    denominator is b - 1; fewer than two vectors give 0. No gradient.
    """
    with torch.no_grad():
        z = F.normalize(z.to(precise(z.dtype)), dim=1)
        return z.std(0).mean() * math.sqrt(z.shape[1]) if len(z) > 1 else z.new_zeros(())


def fingerprint(k: int, slots: int, temperature: float) -> float:
    """Value of `mls_bce` for equal vectors, k positives and D `slots`: softplus(1/t) - (min(k, D)/D)/t.

    Raises ConfigError if k is below 1, or the temperature not above 0.

    >>> round(fingerprint(20, 4096, 0.2), 4)
    4.9823
    """
    _check_k(k)
    _check_temperature(temperature)
    return math.log1p(math.exp(-1 / temperature)) + (1 - min(k, slots) / slots) / temperature


def _check_k(k: int) -> None:
    if k < 1:
        raise ConfigError(f"k, the number of positive slots of an image, must be at least 1, got {k}.")


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ConfigError(f"the temperature must be above 0 (MoCo-v2 and MLS use 0.2), got {temperature}.")


def _lowest(logits: Tensor) -> float:
    """A finite number with exp 0: unlike minus infinity, it keeps gradients finite if a row contains nothing else."""
    return torch.finfo(logits.dtype).min


def _without(values: Float[Tensor, "b D"], counted: Bool[Tensor, "#b D"] | None, fill: float) -> Float[Tensor, "b D"]:
    return values if counted is None else values.masked_fill(~counted, fill)


def _all_if_none(counted: Bool[Tensor, "#b D"] | None, labels: Bool[Tensor, "b D"]) -> Bool[Tensor, "b D"]:
    return torch.ones_like(labels) if counted is None else counted.expand_as(labels)


def _mean(per_image: Float[Tensor, "b"]) -> Float[Tensor, ""]:
    return per_image.sum() / max(len(per_image), 1)


def _agreement(one: Float[Tensor, "b d *s"], other: Float[Tensor, "b d *s"]) -> Float[Tensor, "b *s"]:
    """Products of pairs of vectors, in float32 or better."""
    dtype = torch.promote_types(precise(one.dtype), other.dtype)
    return (one.to(dtype) * other.to(dtype)).sum(1)


def _cosine(one: Float[Tensor, "b d"], other: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
    return _agreement(*(F.normalize(v.to(precise(v.dtype)), dim=1) for v in (one, other)))


def _first_among(
    first: Float[Tensor, "n"], others: Float[Tensor, "n D"], temperature: float, counted: Bool[Tensor, "#n D"] | None
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the first candidate against the used others."""
    others = _without(others / temperature, counted, -math.inf)
    return _mean(-torch.cat([first[:, None] / temperature, others], 1).log_softmax(1)[:, 0])


def _biased(logits: Float[Tensor, "b D"], cell: Bool[Tensor, "b D"], bias: float) -> Float[Tensor, "b D"]:
    """Logits in float32 or better plus the bias; unused slots are masked."""
    return logits.to(precise(logits.dtype)).masked_fill(~cell, 0.0) + bias


def _over(
    mask: Bool[Tensor, "b D"],
    positive: Bool[Tensor, "b D"],
    cell: Bool[Tensor, "b D"],
    reduction: Reduction,
    loss: Float[Tensor, "b D"],
) -> Float[Tensor, ""]:
    """Mean over the batch of the sum over the mask's slots, divided according to the reduction."""
    if reduction == "mean":
        weight = cell.sum(1)
    elif reduction == "per_positive":
        weight = positive.sum(1)
    else:
        assert reduction == "balanced", reduction
        weight = 2 * mask.sum(1)
    return _mean(loss.masked_fill(~mask, 0.0).sum(1) / weight.clamp(min=1))


def _log_sum(logits: Float[Tensor, "b D"], mask: Bool[Tensor, "b D"]) -> Float[Tensor, "b"]:
    """Logarithm of the sum of exp over the mask's slots; the lowest number for an empty mask."""
    return logits.masked_fill(~mask, _lowest(logits)).logsumexp(1)


def _best_cell(query: Float[Tensor, "b e s"], key: Float[Tensor, "b e u"]) -> Int64[Tensor, "b s"]:
    """Most similar cell of `key` for each cell of `query`. The length of a query has no effect."""
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        dtype = torch.promote_types(precise(query.dtype), key.dtype)
        return torch.bmm(query.to(dtype).transpose(1, 2), F.normalize(key.to(dtype), dim=1)).argmax(2)
