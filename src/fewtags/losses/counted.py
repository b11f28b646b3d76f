"""Losses of Cole et al. that need no negative label: a penalty on the expected number of classes, and ranking.

"Cole" is Cole et al., "Multi-Label Learning from Single Positive Labels" (CVPR 2021). Cole has positive and unknown
cells only; here a known negative adds -log(1 - f), as in `partial.bce`. Means, precision and `log_eps` are those of
`partial`. Notation: f = sigmoid(logit), z the annotated label, K the mean number of classes in an image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.losses.partial import bce, cross_entropy, precise

Total = Callable[[Tensor], Tensor]
"""Sums a tensor without a gradient over all processes."""


def count_penalty(
    logits: Float[Tensor, "b c"], positives_per_image: float | int, *, total: Total | None = None
) -> Float[Tensor, ""]:
    """((mean over the batch of the sum of f - K) / c)^2: the regulariser R of Cole, eq. (7).

    It penalises the mean of the batch, not each image, so its value depends on the batch.

    Args:
        logits: any range.
        positives_per_image: K.
        total: for several processes. The mean is then over the batches of all of them. If each process weights its
            loss by its share of the images, the mean of their gradients is the gradient of the penalty.
    """
    f = logits.to(precise(logits.dtype)).sigmoid()
    mean = f.sum() / max(len(f), 1)
    if total is not None:
        sums = total(torch.stack([f.detach().sum(), f.new_tensor(float(len(f)))]))
        mean = sums[0] / sums[1].clamp(min=1) + (mean - mean.detach())
    return ((mean - positives_per_image) / max(f.shape[1], 1)).square()


def expected_positive_regularisation(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    positives_per_image: float | int,
    *,
    total: Total | None = None,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """EPR: cross-entropy of the known cells, and `count_penalty` against predicting every class everywhere (Cole)."""
    return bce(logits, labels, log_eps=log_eps) + count_penalty(logits, positives_per_image, total=total)


def online_estimation(
    logits: Float[Tensor, "b c"],
    estimated: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    positives_per_image: float | int,
    *,
    total: Total | None = None,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """ROLE, regularised online label estimation (Cole, eq. 10): the net and estimated labels teach each other.

    With f of the net, q = sigmoid(estimated) and H(a, b) = -a log b - (1 - a) log(1 - b), averaged over all cells:
    (EPR of f + H(q, f), q without gradient) / 2 + (EPR of q + H(f, q), f without gradient) / 2.

    Args:
        logits: of the net.
        estimated: logits of the labels; they are learned, one per image and class.
        labels: values of `Label`.
        positives_per_image: K.
        total: see `count_penalty`.
        log_eps: see `partial`.
    """
    halves = []
    for own, other in ((logits, estimated), (estimated, logits)):
        target = other.detach().to(precise(other.dtype)).sigmoid()
        loss = expected_positive_regularisation(own, labels, positives_per_image, total=total, log_eps=log_eps)
        halves.append(loss + cross_entropy(own, target, 1 - target, log_eps))
    return (halves[0] + halves[1]) / 2


def pairwise_ranking(logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"]) -> Float[Tensor, ""]:
    """PR: positives should rank above all other classes of their image (Cole, appendix).

    Sum over images and pairs (i positive, j not) of max(0, 1 - f_i + f_j), divided by the number of cells. The
    difference of probabilities is at most 1, so the maximum never cuts, and the sum is computed without pairs. Known
    negatives are like unknown cells.
    """
    f = logits.to(precise(logits.dtype)).sigmoid()
    positive = (labels == Label.POSITIVE).to(f.dtype)
    present, rest = positive.sum(1), (1 - positive).sum(1)
    pairs = present * rest - rest * (positive * f).sum(1) + present * ((1 - positive) * f).sum(1)
    return pairs.sum() / max(f.numel(), 1)
