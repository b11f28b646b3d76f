"""Losses that give wrong-looking unknown cells a small gradient: Hill and SPLC.

Both are of Zhang et al., "Simple and Robust Loss Design for Multi-Label Learning with Missing Labels" (2021). Unknown
cells count as negative. Focal loss and ASL are special cases of `selective.selective_loss`.

The paper and its code add up the cells; here every loss is the mean over all cells, as in `partial`. Its code has no
known negatives; here they have the loss of an unknown cell, and SPLC never takes them as positive.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import precise


def hill(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    *,
    gamma: float | int = 2.0,
    margin: float | int = 1.0,
    peak: float | int = 1.5,
) -> Float[Tensor, ""]:
    """Hill loss (eqs. 7 and 8 of the paper).

    mean of: z positive -> -(1 - g)^gamma log g with g = sigmoid(logit - margin); else -> (peak - f) f^2.

    The loss of a negative falls again, and its gradient vanishes, as f comes near to 1: such a cell is probably a
    missing positive. The largest gradient with respect to f is at f = peak / 3.

    Args:
        logits: any range.
        labels: values of `Label`.
        gamma: focus on positives.
        margin: added to the decision of positives (focal margin loss, eq. 10).
        peak: lambda of the paper.
    """
    logits = logits.to(precise(logits.dtype))
    f, positive = logits.sigmoid(), (labels == Label.POSITIVE).to(precise(logits.dtype))
    loss = positive * _focal_positive(logits - margin, gamma) + (1 - positive) * (peak - f) * f.square()
    return loss.sum() / max(loss.numel(), 1)


def corrected_labels(
    logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], *, positive_above: float | int
) -> Bool[Tensor, "b c"]:
    """Mark the unknown cells with f above `positive_above`, which self-paced loss correction takes as positive."""
    return (labels == Label.UNKNOWN) & (logits.detach().to(precise(logits.dtype)).sigmoid() > positive_above)


def self_paced_correction(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    corrected: Bool[Tensor, "b c"],
    *,
    gamma: float | int = 2.0,
    margin: float | int = 1.0,
) -> Float[Tensor, ""]:
    """SPLC with focal margin (eqs. 10 and 12): unknown cells in `corrected` count as positive.

    mean of: z positive or corrected -> -(1 - g)^gamma log g; else -> -f^gamma log(1 - f), with g = sigmoid(logit -
    margin) of annotated positives and g = f of corrected cells. With gamma 0 and margin 0 it is SPLC on cross-entropy.

    Args:
        logits: any range.
        labels: values of `Label`.
        corrected: see `corrected_labels`.
        gamma: focus on hard cells; the factor has a gradient.
        margin: see `hill`.
    """
    logits = logits.to(precise(logits.dtype))
    annotated = (labels == Label.POSITIVE).to(logits.dtype)
    positive = ((labels == Label.POSITIVE) | corrected).to(logits.dtype)
    # log(1 - f) of a logit is log f of its negative, and so are the factors.
    loss = positive * _focal_positive(logits - margin * annotated, gamma)
    loss = loss + (1 - positive) * _focal_positive(-logits, gamma)
    return loss.sum() / max(loss.numel(), 1)


def _focal_positive(logits: Float[Tensor, "b c"], gamma: float | int) -> Float[Tensor, "b c"]:
    """-(1 - g)^gamma log g with g = sigmoid(logits), with the gradient of the factor, finite for any logit."""
    return -(gamma * F.logsigmoid(-logits)).exp() * F.logsigmoid(logits)
