"""Consistency losses with running averages: one function for image scores (CL) and heatmaps (SCL)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.losses.partial import precise


def consistency(
    logits: Float[Tensor, "b c *s"],
    target: Float[Tensor, "b c *s"],
    *,
    distance: str = "l1",
    weight: Bool[Tensor, "#b #c *#s"] | Float[Tensor, "#b #c *#s"] | None = None,
) -> Float[Tensor, ""]:
    """Mean distance between predicted probabilities f = sigmoid(logits) and target probabilities t.

    With logits [b, c] and running averages of scores this is CL (SCL paper, Verelst et al., WACV 2023, eq. 6); with
    logits [b, c, h, w] and crop-frame heatmaps it is SCL (eq. 7). The paper writes a norm without a denominator; here
    it is the mean over *all* cells, so that one loss weight suits both and the classification loss; 0 without cells.

    Distances per cell (appendix E compares them):
        `l1`: |f - t|, in 0..1.
        `l2`: the *squared* difference (f - t)^2, in 0..1.
        `l2_norm`: the root of the mean of (f - t)^2 over the cells of an image: its Euclidean norm over the root of the
            number of cells, in 0..1. Its gradient has the same length however small the difference is.
        `jsd`: Jensen-Shannon divergence of the Bernoulli distributions f and t, in nats, in 0..log 2.

    Args:
        logits: any range; computed in float32 (float64 stays float64), inside autocast too.
        target: probabilities in 0..1; no gradient.
        distance: see above; ConfigError if unknown.
        weight: broadcasts to the logits. A cell of weight 0 adds nothing but counts in the denominator.

    >>> round(float(consistency(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.5]]))), 4)  # (|.5 - 1| + 0) / 2
    0.25
    """
    logits = logits.to(precise(logits.dtype))
    target = target.detach().to(logits.dtype)
    match distance:
        case "l1":
            cell = (logits.sigmoid() - target).abs()
        case "l2":
            cell = (logits.sigmoid() - target).square()
        case "l2_norm":
            return _root_mean_square(logits.sigmoid() - target, weight)
        case "jsd":
            cell = _jensen_shannon(logits, target)
        case _:
            raise ConfigError(f"distance {distance!r} is not one of l1, l2, l2_norm, jsd.")
    if weight is not None:
        cell = cell * weight
    return cell.sum() / max(cell.numel(), 1)


def _root_mean_square(
    difference: Float[Tensor, "b c *s"], weight: Bool[Tensor, "#b #c *#s"] | Float[Tensor, "#b #c *#s"] | None
) -> Float[Tensor, ""]:
    """Mean over images of the root of the mean weighted square; where all differences are 0, the gradient is 0."""
    weighted = difference if weight is None else difference * weight.to(difference.dtype).sqrt()
    flat = weighted.flatten(1)
    # A square of small numbers is 0 in float32; the norm scales them first.
    largest = flat.detach().abs().amax(1, keepdim=True) if flat.numel() else flat.new_zeros(len(flat), 1)
    scale = torch.where(largest > 0, largest, 1)
    norm = torch.linalg.vector_norm(flat / scale, dim=1) * scale[:, 0]
    mean: Tensor = norm.sum() / (max(len(flat), 1) * math.sqrt(max(flat.shape[1], 1)))
    return mean


def _jensen_shannon(logits: Float[Tensor, "*cells"], target: Float[Tensor, "*cells"]) -> Float[Tensor, "*cells"]:
    """Half the sum of KL(f || m) and KL(t || m) with m = (f + t) / 2; finite if f rounds to 0 or 1, or t is 0 or 1."""
    halves = []
    for sign, t in ((1.0, target), (-1.0, 1 - target)):
        log_f = F.logsigmoid(sign * logits)
        log_m = torch.logaddexp(log_f, t.log()) - math.log(2)
        halves.append(log_f.exp() * (log_f - log_m) + torch.xlogy(t, t) - t * log_m)
    return (halves[0] + halves[1]) / 2
