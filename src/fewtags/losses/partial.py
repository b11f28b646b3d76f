"""Binary cross-entropies for partially known labels.

Every loss takes logits [b, c] and labels [b, c] (values of `Label`) and returns the *mean over all b x c cells*: an
ignored cell adds zero and counts in the denominator, so the gradient of an annotated cell does not depend on the number
of other annotated cells. An empty batch gives 0. Logarithms are computed in float32 (float64 logits stay float64),
inside autocast too.

Notation: f = sigmoid(logit), z the annotated label. "SCL" is Verelst et al., "Spatial Consistency Loss for Training
Multi-Label Classifiers from Single-Label Annotations" (WACV 2023); "Cole" is Cole et al., "Multi-Label Learning from
Single Positive Labels" (CVPR 2021).

`log_eps` reproduces Cole's code, which computes log(f + 1e-5): the loss of a cell is at most 11.5, and the gradient of
confidently wrong cells vanishes. No method uses it. The default 0 is the exact logarithm.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Label


def bce(logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], *, log_eps: float = 0.0) -> Float[Tensor, ""]:
    """Cross-entropy of the known cells; unknown cells are ignored and get no gradient (SCL eq. 1; "IU" in Cole).

    mean of: z positive -> -log f; z negative -> -log(1 - f); z unknown -> 0.

    >>> logits, labels = torch.zeros(1, 2), torch.tensor([[Label.POSITIVE, Label.UNKNOWN]], dtype=torch.int8)
    >>> round(float(bce(logits, labels)), 4)  # log(2) / 2
    0.3466
    """
    return cross_entropy(logits, labels == Label.POSITIVE, labels == Label.NEGATIVE, log_eps)


def assume_negative(
    logits: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"], *, smoothing: float = 0.0, log_eps: float = 0.0
) -> Float[Tensor, ""]:
    """AN: unknown cells are assumed negative (SCL eq. 2), with optional label smoothing.

    mean of: z positive -> -(1 - e) log f - e log(1 - f); else -> -(1 - e) log(1 - f) - e log f, with e = `smoothing`
    in 0..0.5. As in Cole's code (AN-LS), e (not e / 2) is used on positives and negatives.
    """
    positive = (labels == Label.POSITIVE).to(precise(logits.dtype))
    target = positive * (1 - smoothing) + (1 - positive) * smoothing
    return cross_entropy(logits, target, 1 - target, log_eps)


def weak_assume_negative(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    *,
    negative_weight: float | None = None,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """WAN: unknown cells are assumed negative, with a small weight (Cole).

    mean of: z positive -> -log f; z negative -> -log(1 - f); z unknown -> -w log(1 - f), with w = `negative_weight`,
    by default 1 / (c - 1): one positive weighs as much as all other classes together. Cole has no annotated negatives;
    here they have the weight 1. Raises ConfigError for one class without `negative_weight`.
    """
    classes = logits.shape[1]
    if negative_weight is None and classes < 2:
        raise ConfigError("the default weight 1 / (classes - 1) needs at least 2 classes; give negative_weight.")
    weight = 1 / (classes - 1) if negative_weight is None else negative_weight
    # The cast comes before the product: a weight times a boolean would be rounded to float32.
    unknown = (labels == Label.UNKNOWN).to(precise(logits.dtype))
    return cross_entropy(logits, labels == Label.POSITIVE, (labels == Label.NEGATIVE) + weight * unknown, log_eps)


def expected_negative(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    expected_positive: Bool[Tensor, "b c"],
    *,
    weight: Float[Tensor, "b c"] | None = None,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """EN: unknown cells are assumed negative, except expected positives, which are ignored (SCL eq. 5).

    mean of: z positive -> -log f; z negative -> -log(1 - f); z unknown -> 0 where expected positive, else -log(1 - f).

    As printed, eq. 5 adds -log(1 - f) to an annotated positive that is not an expected positive, and ignores a known
    negative that is one. Both contradict the annotation, so here the annotation has priority. `weight` (not in the
    paper) multiplies the loss of each cell; the mean is still over all cells.
    """
    positive = labels == Label.POSITIVE
    negative = (labels == Label.NEGATIVE) | ((labels == Label.UNKNOWN) & ~expected_positive)
    if weight is None:
        return cross_entropy(logits, positive, negative, log_eps)
    return cross_entropy(logits, positive * weight, negative * weight, log_eps)


def expected_positive(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    expected_positive: Bool[Tensor, "b c"],
    *,
    log_eps: float = 0.0,
) -> Float[Tensor, ""]:
    """EP: unknown cells are assumed positive if expected positive, else negative (SCL section 4.2).

    mean of: z positive, or unknown and expected positive -> -log f; else -> -log(1 - f). The annotation has priority,
    as in `expected_negative`. For comparison only: the paper shows that this variant drifts.
    """
    positive = (labels == Label.POSITIVE) | ((labels == Label.UNKNOWN) & expected_positive)
    return cross_entropy(logits, positive, ~positive, log_eps)


def precise(dtype: torch.dtype) -> torch.dtype:
    """The precision of a loss: float32, or better if the input is."""
    return torch.promote_types(dtype, torch.float32)


def cross_entropy(
    logits: Float[Tensor, "b c"],
    positive: Bool[Tensor, "b c"] | Float[Tensor, "b c"],
    negative: Bool[Tensor, "b c"] | Float[Tensor, "b c"],
    log_eps: float,
) -> Float[Tensor, ""]:
    """Mean over all cells of -positive * log(f + log_eps) - negative * log(1 - f + log_eps)."""
    # Elementwise operations keep float32 inside autocast, so one cast is enough.
    logits = logits.to(precise(logits.dtype))
    # log(f + e) = logaddexp(log f, log e); with e = 0 that is log f exactly, in value and gradient.
    floor = logits.new_full((), math.log(log_eps) if log_eps else -math.inf)
    log_f = torch.logaddexp(F.logsigmoid(logits), floor)
    log_not_f = torch.logaddexp(F.logsigmoid(-logits), floor)
    return -(positive * log_f + negative * log_not_f).sum() / max(logits.numel(), 1)
