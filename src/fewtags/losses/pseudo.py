"""Pseudo-labels from a net's own predictions, and the loss on them: FixMatch and UPS for several labels per image.

"FixMatch" is Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence" (NeurIPS
2020): confident predictions of a weak view are the labels of a strong one. "UPS" is Rizve et al., "In Defense of
Pseudo-Labeling: An Uncertainty-Aware Pseudo-label Selection Framework" (ICLR 2021): several predictions must agree.

Both use the highest class of a softmax. Here every cell (image, class) has its own label, with f = sigmoid(logit):
positive if f >= tau+, negative if f <= tau-, else unknown. UPS's code for several labels is not public; on its softmax
scores the rules below give the labels of its code for one label.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import bce, precise

Limit = float | Float[Tensor, "c"]
"""One number for all classes, or one for each."""


def confident(prob: Float[Tensor, "b c"], positive_from: Limit, negative_to: Limit) -> Int8[Tensor, "b c"]:
    """Pseudo-labels of confident cells (FixMatch): values of `Label`, UNKNOWN for all others.

    Args:
        prob: f, 0..1.
        positive_from: tau+, the minimum f of a pseudo-positive (has priority). FixMatch: 0.95; UPS: 0.7. Above 1: none.
        negative_to: tau-, the maximum f of a pseudo-negative. UPS: 0.05. Below 0: none.

    >>> confident(torch.tensor([[0.97, 0.5, 0.02]]), 0.95, 0.05).tolist()
    [[1, 0, -1]]
    """
    labels = torch.full_like(prob, Label.UNKNOWN, dtype=torch.int8)
    return labels.masked_fill(prob <= negative_to, Label.NEGATIVE).masked_fill(prob >= positive_from, Label.POSITIVE)


def certain(
    labels: Int8[Tensor, "b c"], uncertainty: Float[Tensor, "b c"], most_positive: float, most_negative: float
) -> Int8[Tensor, "b c"]:
    """The pseudo-labels whose predictions agree (UPS): the others become UNKNOWN. The code of UPS compares strictly.

    Args:
        labels: values of `Label`.
        uncertainty: u, see `spread`; NaN is never certain.
        most_positive: kappa+, the maximum u of a pseudo-positive. UPS: 0.05.
        most_negative: kappa-, the maximum u of a pseudo-negative. UPS: 0.005.
    """
    positive = (labels == Label.POSITIVE) & (uncertainty <= most_positive)
    negative = (labels == Label.NEGATIVE) & (uncertainty <= most_negative)
    return labels.masked_fill(~(positive | negative), Label.UNKNOWN)


def spread(probs: Float[Tensor, "k b c"]) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
    """Mean and unbiased standard deviation (the uncertainty of UPS) of k >= 2 predictions of the same images.

    UPS predicts with dropout; predictions of several views can be used as well.

    >>> [values.tolist() for values in spread(torch.tensor([[[0.25]], [[0.75]], [[0.5]]]))]
    [[[0.5]], [[0.25]]]
    """
    return probs.mean(0), probs.std(0)


def pseudo_loss(
    logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], *, per_selected: bool = False
) -> Float[Tensor, ""]:
    """Cross-entropy of logits of a strong view with pseudo-labels; UNKNOWN cells get no loss and no gradient.

    The mean over all b x c cells (as in FixMatch, cells that are not selected count in the denominator), or, if
    `per_selected`, the mean over images of (sum over the selected cells of an image / their number), as in UPS; an
    image without a selected cell counts as 0. An empty batch gives 0.
    """
    if not per_selected:
        return bce(logits, labels)
    # Elementwise operations keep float32 inside autocast, so one cast is enough.
    logits = logits.to(precise(logits.dtype))
    log_f, log_not_f = F.logsigmoid(logits), F.logsigmoid(-logits)
    loss = -((labels == Label.POSITIVE) * log_f + (labels == Label.NEGATIVE) * log_not_f).sum(1)
    return (loss / (labels != Label.UNKNOWN).sum(1).clamp(min=1)).sum() / max(len(logits), 1)
