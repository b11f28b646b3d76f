"""Large-loss losses: unknown cells count as negative, except those with the largest losses of the batch.

"LL" is Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label Classification" (CVPR 2022). An unknown cell
whose loss as a negative is large is probably positive. LL-R ignores these cells, LL-Ct and LL-Cp take them as positive,
in this step or from then on. Means and precision are those of `partial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import cross_entropy, precise

Gather = Callable[[Tensor], Tensor]
"""Concatenates a vector without a gradient over all processes."""


@final
class LargeLoss(NamedTuple):
    """Attributes: loss: the mean over all cells. large: the unknown cells that are not taken as negative, [b, c]."""

    loss: Tensor
    large: Tensor


def large_loss(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    share: float | int,
    *,
    correct: bool = False,
    gather: Gather | None = None,
) -> LargeLoss:
    """LL-R, or LL-Ct and LL-Cp with `correct=True`.

    mean of: z positive -> -log f; z negative, or unknown with a small loss -> -log(1 - f); z unknown with one of the
    k largest losses -> 0 or, with `correct`, -log f. k is `share` of all cells of the batch, rounded up; all cells that
    tie with the k-th are large. Known cells are never changed; the public code also changes them if k exceeds the
    number of unknown cells.

    Args:
        logits: any range.
        labels: values of `Label`.
        share: of the cells of the batch, in 0..1.
        correct: take large unknown cells as positive.
        gather: for several processes; the batch is then that of all of them.
    """
    logits = logits.to(precise(logits.dtype))
    positive, unknown = labels == Label.POSITIVE, labels == Label.UNKNOWN
    large = _largest(logits.detach(), unknown, share, gather)
    positive, negative = (positive | large if correct else positive), ~positive & ~large
    return LargeLoss(cross_entropy(logits, positive, negative, 0.0), large)


def _largest(
    logits: Float[Tensor, "b c"], unknown: Bool[Tensor, "b c"], share: float | int, gather: Gather | None
) -> Bool[Tensor, "b c"]:
    """Mark the unknown cells with the largest losses. The loss of a negative grows with its logit, so logits rank."""
    ranked = logits.masked_fill(~unknown, -math.inf).flatten()
    everywhere = ranked if gather is None else gather(ranked)
    # 0.3 x 20 is 6.000000000000001 after some ways of computing 0.3; it must not become 7.
    count = min(math.ceil(round(share * everywhere.numel(), 6)), everywhere.numel())
    if not count:
        return torch.zeros_like(unknown)
    return unknown & (logits >= everywhere.topk(count).values[-1])
