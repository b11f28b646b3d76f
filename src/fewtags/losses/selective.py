"""Class-aware selective loss: a focal loss with its own strength for positive, negative and unknown cells.

"CSL" is Ben-Baruch et al., "Multi-label Classification with Partial Annotations Using Class-aware Selective Loss" (CVPR
2022), which builds on the asymmetric loss (ASL; Ridnik et al., ICCV 2021). "PatchML" is "PatchML: Patch Based Learning
for Multi-label Image Classification"; its eq. (1) is CSL on image scores and its eq. (2) the same on patches. Eq. (3)
is a weighted sum of the two; the objective computes it.

Notation: f = sigmoid(logit), z the annotated label, F(t, g) = -(1 - t)^g log t. The factor (1 - t)^g gets no gradient,
as in CSL's code. The papers omit the minus sign.

Each unknown cell is assumed negative (omega of eq. (1) is 1) or ignored (0). `selectivity` and `patch_selectivity`
compute omega from the net's scores, without gradient.

Every loss is the *mean over all cells*, ignored ones included, as in `partial`; the papers write sums. An empty batch
gives 0. Logarithms are exact and in float32 (float64 logits stay float64), inside autocast too. CSL's code computes
log(max(t, 1e-8)), whose gradient vanishes in cells that are wrong by more than 18.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.losses.partial import cross_entropy, precise


@final
class PerLabel(NamedTuple):
    """One number for each kind of cell: focusing gammas (>= 0; 0 is plain cross-entropy), or weights (>= 0)."""

    positive: float
    negative: float
    unknown: float


EVEN = PerLabel(1.0, 1.0, 1.0)


def selective_loss(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    omega: Bool[Tensor, "b c"] | Float[Tensor, "b c"],
    *,
    gammas: PerLabel,
    weights: PerLabel = EVEN,
    clip: float | int = 0.0,
    image_weights: Float[Tensor, "b"] | None = None,
    attached: bool = False,
    floor: float | int = 0.0,
) -> Float[Tensor, ""]:
    """Class-aware selective loss (CSL; PatchML eq. 1).

    mean of: z positive -> w+ F(f, g+); z negative -> w- F(q, g-); z unknown -> omega wu F(q, gu),
    with q = min(1, 1 - f + clip).

    With gammas 0 it is `partial.bce` (omega 0) or `partial.assume_negative` (omega 1); with full labels it is ASL. CSL
    uses the gammas (0, 1, 2), and in its tables (0, 1, 4) or (0, 3, 4).

    Args:
        logits: any range.
        labels: values of `Label`.
        omega: of unknown cells, 0 (ignored: no loss, no gradient) to 1 (assumed negative); no effect elsewhere.
        gammas: g+, g-, gu.
        weights: w+, w-, wu; the alphas of CSL.
        clip: in 0..1; negative and unknown cells with f <= clip have no loss and no gradient. ASL: 0.05.
        image_weights: factor of all cells of an image; None for 1. See `annotation_weights`.
        attached: the factor (1 - t)^g has a gradient, as in the "optimised" code of ASL.
        floor: cells with t below this have a constant loss; 1e-8 reproduces the code of ASL and CSL. No method uses it.

    >>> logits, labels = torch.zeros(1, 2), torch.tensor([[Label.POSITIVE, Label.UNKNOWN]], dtype=torch.int8)
    >>> omega = selectivity(logits, labels, "negative")
    >>> round(float(selective_loss(logits, labels, omega, gammas=PerLabel(0.0, 1.0, 2.0))), 4)  # log(2) (1 + 1/4) / 2
    0.4332
    """
    loss = _focal_cells(logits, labels, omega, gammas, weights, clip=clip, attached=attached, floor=floor)
    if image_weights is not None:
        loss = loss * image_weights[:, None]
    return loss.sum() / max(logits.numel(), 1)


def annotation_weights(labels: Int8[Tensor, "b c"]) -> Float[Tensor, "b"]:
    """1 + 1 / (1 + n) for images with n known cells: CSL's mode "ignore_normalize_classes", float32."""
    return 1 + 1 / (1 + (labels != Label.UNKNOWN).sum(1).float())


def patch_loss(
    maps: Float[Tensor, "b c h w"],
    patch_labels: Int8[Tensor, "b c h w"],
    omega: Bool[Tensor, "b c h w"] | Float[Tensor, "b c h w"],
    *,
    gammas: PerLabel,
    weights: PerLabel = EVEN,
) -> Float[Tensor, ""]:
    """Focal loss of patches (PatchML eq. 2).

    mean over b x c x h x w of: z positive -> w+ F(f, g+); z negative -> w- F(1 - f, g-); z unknown -> omega wu
    F(1 - f, gu). Eq. (2) writes the set of positive patches under all three sums; here the second sum is over the
    negative patches and the third over the unknown ones.

    Scale: if the image logit is the mean of its map, the gradient of the image loss is (f_image - z) / (b c h w) in
    every cell, and that of this loss with gammas 0 is w (f - z) / (b c h w) in an annotated cell. In the paper's sums,
    w = 1 is 1 / (h w), near 1/196. A negative class is annotated in all h w cells, but a point is in one cell: w+
    between 1 and h w compensates for it.

    Args:
        maps: logits per patch, any range.
        patch_labels: values of `Label`, see `patches.patch_labels`.
        omega: of unknown patches, see `patch_selectivity`.
        gammas: g+, g-, gu.
        weights: w+, w-, wu.
    """
    return _focal_cells(maps, patch_labels, omega, gammas, weights).sum() / max(maps.numel(), 1)


def soft_patch_loss(
    maps: Float[Tensor, "b c h w"], targets: Float[Tensor, "b c h w"], weight: Float[Tensor, "b c h w"]
) -> Float[Tensor, ""]:
    """Cross-entropy of patches with soft labels (not in a paper); it has the scale of `patch_loss`.

    mean over b x c x h x w of weight (-t log f - (1 - t) log(1 - f)), with t in `targets`, 0..1.
    """
    flat = maps.flatten(1)
    target, factor = targets.flatten(1), weight.flatten(1)
    return cross_entropy(flat, factor * target, factor * (1 - target), 0.0)


def selectivity(
    logits: Float[Tensor, "b c"],
    labels: Int8[Tensor, "b c"],
    mode: str,
    *,
    top_k: int = 0,
    prior: Float[Tensor, "c"] | None = None,
    prior_threshold: float = 1.0,
    among: Bool[Tensor, "b"] | None = None,
) -> Bool[Tensor, "b c"]:
    """Choose the unknown cells to assume negative: omega of PatchML eq. (1). False at known cells.

    `ignore`: none. `negative`: all. `selective`: all except those of frequent classes (prior above `prior_threshold`)
    and the `top_k` x b cells with the highest logits. As in CSL's code, these are the highest of all unknown cells of
    the batch (of one process), and include cells that the prior excludes. Ties are broken arbitrarily.

    Args:
        logits: any range; only their order matters.
        labels: values of `Label`.
        mode: "ignore", "negative" or "selective", see above; only "selective" uses the top k and the prior.
        top_k: likely positives per image, as a mean over the batch; 0 for none. CSL: 5.
        prior: share of the images that contain each class, 0..1; None (or the threshold 1) for no limit by class.
        prior_threshold: in 0..1. CSL: 0.05 in the code, 0.5 in its tables.
        among: images to use, None for all; cells of the others are ignored in every mode, and b above is the number of
            used images. PatchML eq. (1) uses images with a known label.

    Raises:
        ConfigError: an unknown mode.
    """
    unknown = labels == Label.UNKNOWN if among is None else (labels == Label.UNKNOWN) & among[:, None]
    if mode != "selective":
        return _all_or_none(unknown, mode)
    limit = None if among is None else top_k * among.sum()
    likely = _highest(logits.reshape(1, -1), unknown.reshape(1, -1), top_k * len(logits), limit)
    kept = unknown & ~likely.view_as(unknown)
    return kept if prior is None else kept & ~(prior > prior_threshold)


def patch_selectivity(
    maps: Float[Tensor, "b c h w"], patch_labels: Int8[Tensor, "b c h w"], mode: str, *, top_k: int = 0
) -> Bool[Tensor, "b c h w"]:
    """Choose the unknown patches to assume negative: omega for PatchML eq. (2). False at known patches.

    `ignore`: none. `negative`: all, also of classes that are unknown in the image. `selective` (CSL-P): for each image
    and class with a located positive, all except the `top_k` with the highest logits. The paper says only "ignores the
    top k unknowns and treats the rest as negatives"; the choice of image, class and located positives is ours.

    Args:
        maps: logits per patch; only their order matters. Ties are broken arbitrarily.
        patch_labels: values of `Label`.
        mode: "ignore", "negative" or "selective", see above.
        top_k: patches that may still belong to the object, for "selective"; 0 for none.

    Raises:
        ConfigError: an unknown mode.
    """
    unknown = patch_labels == Label.UNKNOWN
    if mode != "selective":
        return _all_or_none(unknown, mode)
    located = (patch_labels == Label.POSITIVE).flatten(2).any(2)[:, :, None, None]
    likely = _highest(maps.flatten(2).flatten(0, 1), unknown.flatten(2).flatten(0, 1), top_k)
    return unknown & located & ~likely.view_as(unknown)


def _all_or_none(unknown: Bool[Tensor, "*cells"], mode: str) -> Bool[Tensor, "*cells"]:
    match mode:
        case "ignore":
            return torch.zeros_like(unknown)
        case "negative":
            return unknown
    raise ConfigError(f"mode {mode!r} is not one of ignore, negative, selective.")


def _highest(
    scores: Float[Tensor, "n m"], among: Bool[Tensor, "n m"], count: int, limit: Int64[Tensor, ""] | None = None
) -> Bool[Tensor, "n m"]:
    """Mark the min(`count`, `limit`) highest scores of each row within `among`, without waiting for the device."""
    allowed = scores.detach().masked_fill(~among, -math.inf)
    count = min(count, allowed.shape[1])
    best = allowed.topk(count, dim=1, sorted=limit is not None).indices
    within = torch.ones_like(best, dtype=torch.bool)
    if limit is not None:
        within &= torch.arange(count, device=best.device) < limit
    return torch.zeros_like(among).scatter(1, best, within) & among


def _focal_cells(
    logits: Float[Tensor, "*cells"],
    labels: Int8[Tensor, "*cells"],
    omega: Bool[Tensor, "*cells"] | Float[Tensor, "*cells"],
    gammas: PerLabel,
    weights: PerLabel,
    *,
    clip: float | int = 0.0,
    attached: bool = False,
    floor: float | int = 0.0,
) -> Float[Tensor, "*cells"]:
    # Elementwise operations keep float32 inside autocast, so one cast is enough.
    logits = logits.to(precise(logits.dtype))
    # log q = log(1 - f + clip), at most 0; with clip = 0 that is log(1 - f) exactly, in value and gradient.
    shift = logits.new_full((), math.log(clip) if clip else -math.inf)
    log_f, log_q = F.logsigmoid(logits), torch.logaddexp(F.logsigmoid(-logits), shift).clamp(max=0.0)
    least = math.log(floor) if floor else -math.inf
    positive = weights.positive * (labels == Label.POSITIVE).to(logits.dtype)
    negative = weights.negative * (labels == Label.NEGATIVE).to(logits.dtype)
    unknown = weights.unknown * (labels == Label.UNKNOWN).to(logits.dtype) * omega
    loss = positive * _focal(log_f, gammas.positive, attached, least)
    loss = loss + negative * _focal(log_q, gammas.negative, attached, least)
    return loss + unknown * _focal(log_q, gammas.unknown, attached, least)


def _focal(log_t: Float[Tensor, "*cells"], gamma: float | int, attached: bool, least: float) -> Float[Tensor, "*cells"]:
    """F(t, g) of the module from log t <= 0; 1 - t = -expm1(log t) stays precise if t is close to 1."""
    wrong = -torch.expm1(log_t if attached else log_t.detach())
    # The power of 0 has no finite gradient.
    factor = wrong.clamp(min=torch.finfo(wrong.dtype).tiny) ** gamma if attached else wrong**gamma
    return -factor * (log_t.clamp(min=least) if least > -math.inf else log_t)
