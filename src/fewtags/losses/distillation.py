"""Learning from the scores of a teacher: distillation, and pseudo-labels of its scores.

A teacher gives a score t in 0..1 to cells; NaN is "no score". Known cells are never changed by it. "VLPL" is Xing et
al., "Vision-Language Pseudo-Labels for Single-Positive Multi-Label Learning" (CVPR workshops 2024); "AEVLP" is Tran et
al., "More Reliable Pseudo-labels, Better Performance: A Generalized Approach to Single Positive Multi-label Learning"
(ICCV 2025). Means and precision are those of `partial`.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import cross_entropy, precise


def distillation(
    logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], teacher: Float[Tensor, "b c"]
) -> Float[Tensor, ""]:
    """D: unknown cells with a score of the teacher have it as a soft label.

    mean of: z unknown with a score t -> -t log f - (1 - t) log(1 - f); else -> 0. It is smallest at f = t, where it is
    the entropy of t.

    Args:
        logits: any range.
        labels: values of `Label`.
        teacher: t in 0..1 without a gradient; NaN for no score.

    >>> labels = torch.tensor([[Label.UNKNOWN, Label.POSITIVE]], dtype=torch.int8)
    >>> round(float(distillation(torch.zeros(1, 2), labels, torch.ones(1, 2))), 4)  # log(2) / 2
    0.3466
    """
    taught = ((labels == Label.UNKNOWN) & ~teacher.isnan()).to(precise(logits.dtype))
    soft = teacher.detach().to(taught.dtype).nan_to_num()
    return cross_entropy(logits, taught * soft, taught * (1 - soft), 0.0)


def likely_positive(
    teacher: Float[Tensor, "b c"], above: float | int, *, top_k: int | None = None
) -> Bool[Tensor, "b c"]:
    """Cells with a score above `above` (VLPL) that are among the `top_k` highest of their image (AEVLP); ties count."""
    scores = teacher.nan_to_num(-torch.inf)
    if top_k is None or top_k >= scores.shape[1]:
        return scores > above
    return (scores > above) & (scores >= scores.topk(top_k, dim=1).values[:, -1:])


def likely_negative(teacher: Float[Tensor, "b c"], share: float | int) -> Bool[Tensor, "b c"]:
    """The lowest scores of each image: int(`share` x number of scores) cells, and those that tie with them (AEVLP)."""
    scores = teacher.nan_to_num(torch.inf)
    count = (share * (~teacher.isnan()).sum(1, keepdim=True) + 1e-6).long()
    cut = scores.sort(1).values.gather(1, (count - 1).clamp(min=0))
    return (count > 0) & (scores <= cut)
