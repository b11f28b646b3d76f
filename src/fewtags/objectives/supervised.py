"""Base of `PatchML` and `FixMatch`: their shared settings, the loss of annotated cells, and counts of pseudo-labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses.selective import EVEN, PerLabel, patch_loss, patch_selectivity, selective_loss, selectivity
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Derived, RunFacts
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.located import LocatedObjective, Triple, even_patches, refuse_wrong_triples
from fewtags.patches import patch_labels
from fewtags.stores.pseudo import PseudoCount
from fewtags.text import method_setting, setting

Unknown = Literal["ignore", "negative", "selective"]
Fill = Literal["unlabelled", "unknown"]


@dataclass(eq=False, kw_only=True)
class SupervisedObjective(LocatedObjective):
    """Base of methods that learn from tags, points and boxes, and fill unknown cells with pseudo-labels.

    Args:
        image_unknown: unknown classes of images that have some label: "ignore" (PatchML's, except in its table 3),
            "negative", or "selective": CSL-I. Default: "negative" if fewer negatives than positives are known, else
            "ignore".
        patch_unknown: unknown patches: "ignore", "negative", or "selective": CSL-P.
        image_top_k: with "selective", the number of likely positives per image that stay ignored.
        patch_top_k: with "selective", the number of likely patches per located class that stay ignored.
        prior_threshold: with "selective", classes that are present in more than this share of the images with a known
            label stay ignored; 1: none.
        image_gammas: focus on positive, negative and unknown classes.
        image_clip: negative and unknown classes with a probability up to this have no loss and no gradient (not in
            PatchML; ASL, Ridnik et al., ICCV 2021, uses 0.05); 0: none.
        image_weight: w_image.
        patch_weight: w_patch; 1 also without points and boxes.
        cropped: a positive all of whose known locations are cropped away becomes "unknown" in that view, or is "keep".
        pseudo_weight: w_pseudo, the weight of pseudo-labels.
        pseudo_from: first epoch with pseudo-labels, warm-up included.
        pseudo_fill: pseudo-labels for images without any label ("unlabelled"), or for all "unknown" classes.
    """

    image_unknown: Unknown | None = None
    patch_unknown: Unknown = "ignore"
    image_top_k: Annotated[int, Range()] = 5
    patch_top_k: Annotated[int, Range()] = 5
    prior_threshold: Annotated[float, Range(0, 1)] = 1.0
    image_gammas: Triple = (0.0, 1.0, 2.0)
    image_clip: Annotated[float, Range(0, 1)] = 0.0
    image_weight: Annotated[float, Range()] = 1.0
    patch_weight: Annotated[float, Range()] = 1.0
    cropped: Literal["unknown", "keep"] = "unknown"
    pseudo_weight: Annotated[float, Range()] = 0.0
    pseudo_from: Annotated[int, Range(1)] = 5
    pseudo_fill: Fill = "unlabelled"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_wrong_triples(self, "image_gammas")
        check_settings(self)

    @property
    def uses_locations(self) -> bool:
        """Also without a loss of patches: a crop without the known places of a class does not count for it."""
        return True

    @property
    def needs_maps(self) -> bool:
        """The loss of patches does."""
        return self.patch_weight > 0

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Derive how unknown classes count, and the weights of patches."""
        unknown = unknown_classes(facts.positives, facts.negatives)
        how = {"ignore": "ignored", "negative": "taken as negative"}[unknown]
        known = f"{facts.positives:,} positives and {facts.negatives:,} negatives are known"
        return {
            "image_unknown": Derived(
                unknown, f"unknown classes of labelled photos are {how}, since {known} (objective.image_unknown)"
            ),
            "patch_weights": even_patches(facts),
        }


class Supervised(NamedTuple):
    """The loss of the annotated cells of a batch.

    Attributes:
        loss: PatchML eq. (3).
        logs: its terms with a weight above 0, detached; that of images always.
        patches: labels of the patches, int8 [b, C, h, w].
        labels: image labels that fit what the crops show, int8 [b, C].
    """

    loss: Tensor
    logs: dict[str, Tensor]
    patches: Tensor
    labels: Tensor


def refuse_too_late(first: int, epochs: int, settings: str) -> None:
    """Raise a `ConfigError`, which names `settings`, if the first epoch with pseudo-labels is after the training."""
    if first >= epochs:
        raise ConfigError(
            f"pseudo-labels would begin with epoch {first + 1}, but training has {epochs}; lower {settings}, or train "
            "longer."
        )


def supervised_loss(settings: SupervisedObjective, out: Output, batch: Batch, prior: Tensor) -> Supervised:
    """Compute PatchML eq. (3): w_image L_image + w_patch L_patch of tags, points and boxes.

    Args:
        settings: the weights, and how unknown cells count.
        out: output of the net for `batch.images`.
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
    loss, logs = settings.image_weight * image, {"image": image.detach()}
    if settings.patch_weight > 0:
        selected = patch_selectivity(maps, patches, settings.patch_unknown, top_k=settings.patch_top_k)
        patch = patch_loss(
            maps,
            patches,
            selected & labelled[:, None, None, None],
            gammas=PerLabel(*settings.patch_gammas),
            weights=EVEN if settings.patch_weights is None else PerLabel(*settings.patch_weights),
        )
        loss, logs["patch"] = loss + settings.patch_weight * patch, patch.detach()
    return Supervised(loss, logs, patches, labels)


def class_shares(labels: LabelMatrix) -> Tensor:
    """Return positives / (positives + negatives) of each class, float32 [C]; 0 for classes without known labels.

    It is unbiased if the annotated cells were chosen at random; the public code of CSL trains a net to estimate it.
    """
    positives, negatives = (torch.from_numpy(labels.counts(s)).float() for s in (Label.POSITIVE, Label.NEGATIVE))
    return positives / (positives + negatives).clamp(min=1)


def refuse_without_negatives(settings: SupervisedObjective, labels: LabelMatrix) -> None:
    """Check that the loss of images has a negative cell if class shares decide which unknown cells count.

    Without a known negative every annotated class has the share 1, so `prior_threshold` ignores all its unknown cells.

    Raises:
        ConfigError: no negative is known, and `image_unknown` is "selective" with a `prior_threshold` below 1.
    """
    if settings.image_unknown != "selective" or settings.prior_threshold >= 1:
        return
    if not labels.counts(Label.NEGATIVE).any():
        raise ConfigError(
            f"objective.prior_threshold={settings.prior_threshold:g} with image_unknown='selective' needs known "
            "negatives, and no training image has one: every class would have the prior 1 and be predicted everywhere. "
            f"Leave prior_threshold out, or use {method_setting('image_unknown', 'negative')}; or, where what is not "
            f"named is absent, read the labels with {setting('complete', True)}."
        )


def unknown_classes(positives: int, negatives: int) -> Literal["ignore", "negative"]:
    """Return the default of `image_unknown`, from the numbers of known positive and negative labels.

    With fewer negatives than positives, ignoring unknown classes would teach that every class is always present.
    """
    return "ignore" if negatives >= positives else "negative"


def only_fillable(pseudo: Tensor, labels: Tensor, fill: Fill) -> Tensor:
    """Return pseudo-labels int8 [b, C], UNKNOWN in the cells that `fill` and the annotations [b, C] exclude."""
    known = labels != Label.UNKNOWN
    return pseudo.masked_fill(known if fill == "unknown" else known.any(1, keepdim=True), Label.UNKNOWN)


def pseudo_diagnostics(count: PseudoCount, samples: int) -> dict[str, float]:
    """Return pseudo-labels per image and their precision, to log, without ratios whose denominator is 0."""
    found = {
        "pseudo_positives_per_image": count.positive / samples,
        "pseudo_negatives_per_image": count.negative / samples,
    }
    if count.judged_positive:
        found["pseudo_positive_precision"] = count.right_positive / count.judged_positive
    if count.judged_negative:
        found["pseudo_negative_precision"] = count.right_negative / count.judged_negative
    return found


def _image_loss(
    settings: SupervisedObjective, logits: Tensor, labels: Tensor, annotated: Tensor, prior: Tensor
) -> Tensor:
    """Compute eq. (1) of labelled images.

    "negative" ignores a class that is annotated in the whole image and unknown in this view (`labels`).
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
