"""Losses that treat unknown cells as uncertain: entropy maximisation (EM) and the generalised robust loss (GR).

With pseudo-labels of a teacher, EM is VLPL, and GR is GPR (without its count penalty); see `distillation`.

"EM" and "APL" are of Zhou et al., "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels"
(ECCV 2022); "GR" of Chen et al., "Boosting Single Positive Multi-label Classification with Generalized Robust Loss"
(IJCAI 2024). Both papers have no known negatives; here a known negative adds -log(1 - f), as in `partial.bce`. Means,
precision and `log_eps` are those of `partial`; the public code of EM has the `log_eps` 1e-5, that of GR 1e-7.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import bce, cross_entropy, precise


def entropy_maximisation(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    *,
    weight: float | int = 0.1,
    soft: Float[Tensor, "b c"] | None = None,
    soft_weight: float | int | Float[Tensor, "b c"] = 0.5,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """EM (eq. 3): the entropy of unknown cells is maximised; and APL (eq. 6): some of them have a soft label.

    mean of: z positive -> -log f; z negative -> -log(1 - f); z unknown -> -weight H(f, f); z unknown with a soft label
    s -> soft_weight H(s, f), with H(a, b) = -a log b - (1 - a) log(1 - b). The loss can be negative.

    Args:
        logits: any range.
        labels: values of `Label`.
        weight: alpha of the paper, 0.01 to 0.2 there.
        soft: probabilities s without a gradient; NaN where there is no soft label. Known cells ignore it.
        soft_weight: beta of the paper, 0.02 to 0.9 there; one for all cells, or one for each.
        log_eps: see `partial`.
    """
    logits = logits.to(precise(logits.dtype))
    unknown, f = (labels == Label.UNKNOWN).to(logits.dtype), logits.sigmoid()
    loss = bce(logits, labels, log_eps=log_eps)
    if soft is not None:
        has_soft = unknown * ~soft.isnan()
        soft, unknown = soft.detach().to(logits.dtype).nan_to_num(), unknown - has_soft
        if isinstance(soft_weight, Tensor):
            has_soft, soft_weight = has_soft * soft_weight, 1.0
        loss = loss + soft_weight * cross_entropy(logits, has_soft * soft, has_soft * (1 - soft), log_eps)
    return loss - weight * cross_entropy(logits, unknown * f, unknown * (1 - f), log_eps)


def generalised_robust(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    *,
    slope: float | int,
    offset: float | int,
    centre: float | int,
    width: float | int,
    positive_power: float = 0.01,
    negative_power: float = 1.0,
    pseudo: Int8[Tensor, "b c"] | None = None,
    pseudo_weights: tuple[float, float] = (0.3, 0.8),
    smoothing: float = 0.1,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """GR (eq. 6): unknown cells have a soft label k and a weight v that depend on their score.

    mean of: z positive -> -log f; z negative -> -log(1 - f); z unknown -> v (k (1 - f^p) / p + (1 - k)(1 - (1 - f)^n) /
    n), with k = sigmoid(slope f + offset) and v = exp(-((f - centre) / width)^2 / 2), both without gradient, p =
    `positive_power` and n = `negative_power` in (0, 1]. A power near 0 is near cross-entropy, 1 is the mean absolute
    error, which wrong labels hardly move.

    GPR (AEVLP): unknown cells may have a pseudo-label. pseudo positive -> u (-(1 - e) log f - e log(1 - f)), with u =
    1 - v cut to `pseudo_weights` and e = `smoothing`; pseudo negative -> -v log(1 - f).

    Args:
        logits: any range.
        labels: values of `Label`.
        slope: of k.
        offset: of k.
        centre: of v.
        width: of v.
        positive_power: p.
        negative_power: n.
        pseudo: values of `Label`; UNKNOWN for no pseudo-label. Known cells ignore it.
        pseudo_weights: lowest and highest weight u; (0.3, 0.8) in the public code.
        smoothing: e; 0.1 in the public code.
        log_eps: see `partial`.
    """
    logits = logits.to(precise(logits.dtype))
    unknown, f = (labels == Label.UNKNOWN).to(logits.dtype), logits.detach().sigmoid()
    soft = (slope * f + offset).sigmoid()
    weight = unknown * torch.exp(-(((f - centre) / width) ** 2) / 2)
    as_positive = -torch.expm1(positive_power * F.logsigmoid(logits)) / positive_power
    as_negative = -torch.expm1(negative_power * F.logsigmoid(-logits)) / negative_power
    robust = weight * (soft * as_positive + (1 - soft) * as_negative)
    loss = bce(logits, labels, log_eps=log_eps)
    if pseudo is not None:
        robust = robust.masked_fill(pseudo != Label.UNKNOWN, 0.0)
        as_pseudo = unknown * (pseudo == Label.POSITIVE) * (1 - weight).clamp(*pseudo_weights)
        not_pseudo = weight * (pseudo == Label.NEGATIVE)
        loss = loss + cross_entropy(logits, as_pseudo * (1 - smoothing), as_pseudo * smoothing + not_pseudo, log_eps)
    return loss + robust.sum() / max(logits.numel(), 1)
