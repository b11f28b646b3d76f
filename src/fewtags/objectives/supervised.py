"""What PatchML and its rivals have in common: the loss of what is annotated, and the bookkeeping of pseudo-labels.

No objective of its own: objectives do not import each other, they share this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses.selective import EVEN, PerLabel, patch_loss, patch_selectivity, selective_loss, selectivity
from fewtags.nets.spatial import Output
from fewtags.patches import patch_labels
from fewtags.stores.pseudo import PseudoCount
from fewtags.text import suggest

Unknown = Literal["ignore", "negative", "selective"]
Cropped = Literal["unknown", "keep"]
Fill = Literal["unlabelled", "unknown"]
Triple = tuple[float, float, float]


@runtime_checkable
class Settings(Protocol):
    """How tags, points and boxes are learned from; `PatchML` says what each of them means."""

    image_unknown: Unknown | None
    patch_unknown: Unknown
    image_top_k: int
    patch_top_k: int
    prior_threshold: float
    image_gammas: Triple
    patch_gammas: Triple
    image_clip: float
    image_weight: float
    patch_weight: float
    patch_weights: Triple | None
    coverage: float
    min_visible: float
    cropped: Cropped


INFINITY = float("inf")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "patch_unknown": get_args(Unknown),
    "cropped": get_args(Cropped),
    "pseudo_fill": get_args(Fill),
}
RANGES: Mapping[str, tuple[float, float]] = {
    "image_top_k": (0.0, INFINITY),
    "patch_top_k": (0.0, INFINITY),
    "prior_threshold": (0.0, 1.0),
    "image_clip": (0.0, 1.0),
    "image_weight": (0.0, INFINITY),
    "patch_weight": (0.0, INFINITY),
    "coverage": (1e-6, 1.0),
    "min_visible": (0.0, 1.0),
    "pseudo_weight": (0.0, INFINITY),
}
TRIPLES = ("image_gammas", "patch_gammas", "patch_weights")


class Supervised(NamedTuple):
    """What annotated cells say about a batch.

    Attributes:
        loss: PatchML eq. (3).
        logs: its two terms, detached.
        patches: labels of the patches, int8 [b, C, h, w].
        labels: image labels that fit what the crops show, int8 [b, C].
        labelled: bool [b], images with some label.
    """

    loss: Tensor
    logs: dict[str, Tensor]
    patches: Tensor
    labels: Tensor
    labelled: Tensor


def check_settings(
    settings: Settings, choices: Mapping[str, tuple[str, ...]], ranges: Mapping[str, tuple[float, float]]
) -> None:
    """Refuse words and numbers that make no sense; triples become tuples of floats.

    Args:
        settings: an objective, from its `__post_init__`.
        choices: by name, the words that a setting may be.
        ranges: by name, the least and the most a setting may be.

    Raises:
        ConfigError: the first setting that makes no sense.
    """
    given = {} if settings.image_unknown is None else {"image_unknown": get_args(Unknown)}
    for name, options in {**given, **choices}.items():
        if (value := getattr(settings, name)) not in options:
            raise ConfigError(f"{name} must be one of {', '.join(options)}, got {value!r}{suggest(value, options)}.")
    for name in [name for name in TRIPLES if getattr(settings, name) is not None]:
        setattr(settings, name, tuple(float(v) for v in getattr(settings, name)))
        if len(triple := getattr(settings, name)) != 3 or not all(v >= 0 for v in triple):
            raise ConfigError(
                f"{name} must be three numbers of at least 0, for positive, negative and unknown; got {triple}."
            )
    for name, (low, high) in ranges.items():
        if not low <= (number := getattr(settings, name)) <= high:
            raise ConfigError(f"{name} must be in {low:g}..{high:g}, got {number}.")


def refuse_too_late(first: int, epochs: int, settings: str) -> None:
    """Pseudo-labels must begin within the training.

    Args:
        first: their first epoch, from 0.
        epochs: of the training.
        settings: what to lower.

    Raises:
        ConfigError: they would never begin.
    """
    if first >= epochs:
        raise ConfigError(
            f"pseudo-labels would begin with epoch {first + 1}, but training has {epochs}; lower {settings}, or train "
            "longer."
        )


def supervised_loss(settings: Settings, out: Output, batch: Batch, prior: Tensor) -> Supervised:
    """PatchML eq. (3): w_image L_image + w_patch L_patch of tags, points and boxes.

    Args:
        settings: the weights, and how unknown cells count.
        out: of `batch.images`.
        batch: labels, locations and views.
        prior: float [C], see `class_shares`.
    """
    logits, maps = out.logits.float(), out.maps.float()
    patches, labels = patch_labels(
        batch.labels,
        batch.places,
        batch.views,
        (maps.shape[2], maps.shape[3]),
        coverage=settings.coverage,
        min_visible=settings.min_visible,
        cropped=settings.cropped,
    )
    labelled = (batch.labels != Label.UNKNOWN).any(1)
    image = _image_loss(settings, logits, labels, batch.labels, prior)
    patch = _patch_loss(settings, maps, patches, labelled)
    loss = settings.image_weight * image + settings.patch_weight * patch
    return Supervised(loss, {"image": image.detach(), "patch": patch.detach()}, patches, labels, labelled)


def class_shares(labels: LabelMatrix) -> Tensor:
    """float32 [C]: positives / (positives + negatives) of each class; 0 where nothing is known.

    Cells that are asked about at random make it unbiased; the public code of CSL trains a net to estimate it.
    """
    positives, negatives = (torch.from_numpy(labels.counts(s)).float() for s in (Label.POSITIVE, Label.NEGATIVE))
    return positives / (positives + negatives).clamp(min=1)


def unknown_classes(labels: LabelMatrix) -> Unknown:
    """What a plan takes for `image_unknown` where nobody said: "ignore", or "negative".

    They are ignored where at least as many negatives as positives are known. With fewer, as in the export of an
    annotation tool, which names what is there, ignoring them would teach that every class is always there.
    """
    positives, negatives = (int(labels.counts(s).sum()) for s in (Label.POSITIVE, Label.NEGATIVE))
    return "ignore" if negatives >= positives else "negative"


def even_patches(grid: tuple[int, int]) -> Triple:
    """What a plan takes for `patch_weights` where nobody said: a located patch weighs as much as all patches of a map.

    A positive class with a point then pulls as hard as a negative class, all of whose patches are labelled; see the
    scale in `patch_loss`.

    Args:
        grid: (h, w) of the net's maps.
    """
    return float(grid[0] * grid[1]), 1.0, 1.0


def only_fillable(pseudo: Tensor, labels: Tensor, fill: Fill) -> Tensor:
    """Pseudo-labels int8 [b, C] without those of cells that are not to be filled.

    Args:
        pseudo: values of `Label`.
        labels: annotated ones, int8 [b, C].
        fill: images without any label ("unlabelled"), or all cells that are "unknown".
    """
    known = labels != Label.UNKNOWN
    return pseudo.masked_fill(known if fill == "unknown" else known.any(1, keepdim=True), Label.UNKNOWN)


def pseudo_diagnostics(count: PseudoCount, samples: int) -> dict[str, float]:
    """Pseudo-labels per image and their precision, to log; ratios without a denominator are left out."""
    found = {
        "pseudo_positives_per_image": count.positive / samples,
        "pseudo_negatives_per_image": count.negative / samples,
    }
    if count.judged_positive:
        found["pseudo_positive_precision"] = count.right_positive / count.judged_positive
    if count.judged_negative:
        found["pseudo_negative_precision"] = count.right_negative / count.judged_negative
    return found


def _image_loss(settings: Settings, logits: Tensor, labels: Tensor, annotated: Tensor, prior: Tensor) -> Tensor:
    """Eq. (1), of labelled images.

    "negative" is about classes that nobody named in the whole image (`annotated`): one that is positive there, and
    unknown in this view, is ignored. "selective" leaves that to the likely ones that it spares, as CSL has it.
    """
    unknown = settings.image_unknown or "ignore"
    omega = selectivity(
        logits,
        labels,
        unknown,
        top_k=settings.image_top_k,
        prior=prior,
        prior_threshold=settings.prior_threshold,
        among=(annotated != Label.UNKNOWN).any(1),
    )
    if unknown == "negative":
        omega = omega & (annotated == Label.UNKNOWN)
    return selective_loss(logits, labels, omega, gammas=PerLabel(*settings.image_gammas), clip=settings.image_clip)


def _patch_loss(settings: Settings, maps: Tensor, patches: Tensor, labelled: Tensor) -> Tensor:
    """Eq. (2), of labelled images."""
    omega = patch_selectivity(maps, patches, settings.patch_unknown, top_k=settings.patch_top_k)
    return patch_loss(
        maps,
        patches,
        omega & labelled[:, None, None, None],
        gammas=PerLabel(*settings.patch_gammas),
        weights=EVEN if settings.patch_weights is None else PerLabel(*settings.patch_weights),
    )
