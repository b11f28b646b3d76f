"""Labels that a net gives itself, and the loss on them: FixMatch and UPS in multi-label form.

"FixMatch" is Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence" (NeurIPS
2020): a class that the net is sure of on a weak view is learned on a strong one. "UPS" is Rizve et al., "In Defense of
Pseudo-Labeling: An Uncertainty-Aware Pseudo-label Selection Framework" (ICLR 2021): several predictions must agree.

Both were written for one class per image, with a softmax and its highest class. Here every cell (image, class) stands
for itself: f = sigmoid(logit), positive where f >= tau+, negative where f <= tau-, else unknown. UPS's code for several
labels is not public; on its softmax scores the rules below choose what its code for one label does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import bce

Limit = float | Float[Tensor, "c"]
"""One number for all classes, or one for each."""


def confident(prob: Float[Tensor, "b c"], positive_from: Limit, negative_to: Limit) -> Int8[Tensor, "b c"]:
    """Pseudo-labels of confident cells (FixMatch): values of `Label`, UNKNOWN for all others.

    Both limits are reached by a cell that equals them. Where they overlap, the positive comes first.

    Args:
        prob: f, 0..1.
        positive_from: tau+, the least f of a pseudo-positive. FixMatch: 0.95; UPS: 0.7. Above 1: none.
        negative_to: tau-, the most f of a pseudo-negative. UPS: 0.05. Below 0: none.

    >>> confident(torch.tensor([[0.97, 0.5, 0.02]]), 0.95, 0.05).tolist()
    [[1, 0, -1]]
    """
    labels = torch.full_like(prob, Label.UNKNOWN, dtype=torch.int8)
    return labels.masked_fill(prob <= negative_to, Label.NEGATIVE).masked_fill(prob >= positive_from, Label.POSITIVE)


def certain(
    labels: Int8[Tensor, "b c"], uncertainty: Float[Tensor, "b c"], most_positive: float, most_negative: float
) -> Int8[Tensor, "b c"]:
    """The pseudo-labels whose predictions agree (UPS): the others become UNKNOWN.

    The code of UPS compares strictly; the limits here are reached by a cell that equals them, as those of `confident`.

    Args:
        labels: values of `Label`.
        uncertainty: u, see `spread`; NaN is never certain.
        most_positive: kappa+, the most u of a pseudo-positive. UPS: 0.05.
        most_negative: kappa-, the most u of a pseudo-negative. UPS: 0.005.
    """
    positive = (labels == Label.POSITIVE) & (uncertainty <= most_positive)
    negative = (labels == Label.NEGATIVE) & (uncertainty <= most_negative)
    return labels.masked_fill(~(positive | negative), Label.UNKNOWN)


def spread(probs: Float[Tensor, "k b c"]) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
    """Mean and unbiased standard deviation of k >= 2 predictions of the same images: what UPS calls uncertainty.

    UPS takes them from passes with dropout; predictions of several views of an image serve as well.

    >>> [values.tolist() for values in spread(torch.tensor([[[0.25]], [[0.75]], [[0.5]]]))]
    [[[0.5]], [[0.25]]]
    """
    return probs.mean(0), probs.std(0)


def pseudo_loss(
    logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], *, per_selected: bool = False
) -> Float[Tensor, ""]:
    """Cross-entropy of logits of a strong view with pseudo-labels; UNKNOWN cells get no loss and no gradient.

    The mean over all b x c cells, as everywhere (FixMatch: cells that are not selected stay in the denominator); an
    empty batch gives 0.

    Args:
        logits: any range.
        labels: values of `Label`.
        per_selected: mean over images of (sum over the selected cells of an image / their number), as UPS. The few
            cells that are selected early on then pull as hard as many do later. An image without any counts as 0.
    """
    if not per_selected:
        return bce(logits, labels)
    # Elementwise operations keep float32 inside autocast, so one cast at the door is enough.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_f, log_not_f = F.logsigmoid(logits), F.logsigmoid(-logits)
    loss = -((labels == Label.POSITIVE) * log_f + (labels == Label.NEGATIVE) * log_not_f).sum(1)
    return (loss / (labels != Label.UNKNOWN).sum(1).clamp(min=1)).sum() / max(len(logits), 1)
