"""Base of `PatchML` and `FixMatch`: their shared settings, the loss of annotated cells, and counts of pseudo-labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses.selective import EVEN, PerLabel, patch_loss, patch_selectivity, selective_loss, selectivity
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Derived, Objective, RunFacts
from fewtags.objectives.checks import Range, check_settings
from fewtags.patches import patch_labels
from fewtags.stores.pseudo import PseudoCount

Unknown = Literal["ignore", "negative", "selective"]
Cropped = Literal["unknown", "keep"]
Fill = Literal["unlabelled", "unknown"]
Triple = tuple[float, float, float]


TRIPLES = ("image_gammas", "patch_gammas", "patch_weights")


@dataclass(eq=False, kw_only=True)
class SupervisedObjective(Objective):
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
        patch_gammas: focus on positive, negative and unknown patches.
        image_clip: negative and unknown classes with a probability up to this have no loss and no gradient (not in
            PatchML; ASL, Ridnik et al., ICCV 2021, uses 0.05); 0: none.
        image_weight: w_image.
        patch_weight: w_patch.
        patch_weights: weights of positive, negative and unknown patches; see `patch_loss` on their scale. Default: the
            number of patches, 1, 1.
        coverage: share of a patch that a box must cover, see `cells_of_boxes`.
        min_visible: share of a box that a crop must show for the box to count.
        cropped: a positive all of whose known locations are cropped away becomes "unknown" in that view, or is "keep".
        pseudo_weight: w_pseudo, the weight of pseudo-labels.
        pseudo_from: first epoch with pseudo-labels, warm-up included.
        pseudo_fill: pseudo-labels for images without any label ("unlabelled"), or for all "unknown" classes.

    Raises:
        ConfigError: a value that is out of range, or two that contradict each other.
    """

    uses_locations: ClassVar[bool] = True

    image_unknown: Unknown | None = None
    patch_unknown: Unknown = "ignore"
    image_top_k: Annotated[int, Range()] = 5
    patch_top_k: Annotated[int, Range()] = 5
    prior_threshold: Annotated[float, Range(0, 1)] = 1.0
    image_gammas: Triple = (0.0, 1.0, 2.0)
    patch_gammas: Triple = (0.0, 1.0, 2.0)
    image_clip: Annotated[float, Range(0, 1)] = 0.0
    image_weight: Annotated[float, Range()] = 1.0
    patch_weight: Annotated[float, Range()] = 1.0
    patch_weights: Triple | None = None
    coverage: Annotated[float, Range(1e-6, 1)] = 0.5
    min_visible: Annotated[float, Range(0, 1)] = 0.1
    cropped: Cropped = "unknown"
    pseudo_weight: Annotated[float, Range()] = 0.0
    pseudo_from: Annotated[int, Range(1)] = 5
    pseudo_fill: Fill = "unlabelled"

    def __post_init__(self) -> None:
        for name in [name for name in TRIPLES if getattr(self, name) is not None]:
            setattr(self, name, tuple(float(v) for v in getattr(self, name)))
            if len(triple := getattr(self, name)) != 3 or not all(v >= 0 for v in triple):
                raise ConfigError(
                    f"{name} must be three numbers of at least 0, for positive, negative and unknown; got {triple}."
                )
        check_settings(self)

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """How unknown classes count, and how much a located patch weighs."""
        unknown, weights = unknown_classes(facts.positives, facts.negatives), even_patches(facts.grid)
        how = {"ignore": "ignored", "negative": "taken as negative"}[unknown]
        known = f"{facts.positives:,} positives and {facts.negatives:,} negatives are known"
        why = f"a located patch weighs {weights[0]:g}, as all of a map (objective.patch_weights)"
        return {
            "image_unknown": Derived(
                unknown, f"unknown classes of labelled photos are {how}, since {known} (objective.image_unknown)"
            ),
            "patch_weights": Derived(weights, why if facts.points or facts.boxes else ""),
        }


class Supervised(NamedTuple):
    """The loss of the annotated cells of a batch.

    Attributes:
        loss: PatchML eq. (3).
        logs: its two terms, detached.
        patches: labels of the patches, int8 [b, C, h, w].
        labels: image labels that fit what the crops show, int8 [b, C].
        labelled: bool [b], images with at least one label.
    """

    loss: Tensor
    logs: dict[str, Tensor]
    patches: Tensor
    labels: Tensor
    labelled: Tensor


def refuse_too_late(first: int, epochs: int, settings: str) -> None:
    """Check that pseudo-labels begin before the training ends.

    Args:
        first: the first epoch with pseudo-labels, from 0.
        epochs: number of epochs.
        settings: the settings to lower.

    Raises:
        ConfigError: they would never begin.
    """
    if first >= epochs:
        raise ConfigError(
            f"pseudo-labels would begin with epoch {first + 1}, but training has {epochs}; lower {settings}, or train "
            "longer."
        )


def supervised_loss(settings: SupervisedObjective, out: Output, batch: Batch, prior: Tensor) -> Supervised:
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
    """float32 [C]: positives / (positives + negatives) of each class; 0 for classes without known labels.

    It is unbiased if the annotated cells were chosen at random; the public code of CSL trains a net to estimate it.
    """
    positives, negatives = (torch.from_numpy(labels.counts(s)).float() for s in (Label.POSITIVE, Label.NEGATIVE))
    return positives / (positives + negatives).clamp(min=1)


def unknown_classes(positives: int, negatives: int) -> Literal["ignore", "negative"]:
    """Return the default of `image_unknown`, from the numbers of known positive and negative labels.

    Unknown classes are ignored if at least as many negatives as positives are known. Otherwise ignoring them would
    teach that every class is always present: annotation tools, for example, export only what is present.
    """
    return "ignore" if negatives >= positives else "negative"


def even_patches(grid: tuple[int, int]) -> Triple:
    """Return the default of `patch_weights`: a located patch weighs as much as all patches of a map.

    A positive class with a point then pulls as hard as a negative class, all of whose patches are labelled; see
    `patch_loss` on the scale.

    Args:
        grid: (h, w) of the net's maps.
    """
    return float(grid[0] * grid[1]), 1.0, 1.0


def only_fillable(pseudo: Tensor, labels: Tensor, fill: Fill) -> Tensor:
    """Return pseudo-labels int8 [b, C], UNKNOWN in cells that must not be filled.

    Args:
        pseudo: values of `Label`.
        labels: annotations, int8 [b, C].
        fill: fill images without any label ("unlabelled"), or all cells that are "unknown".
    """
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


def _patch_loss(settings: SupervisedObjective, maps: Tensor, patches: Tensor, labelled: Tensor) -> Tensor:
    """Eq. (2), of labelled images."""
    omega = patch_selectivity(maps, patches, settings.patch_unknown, top_k=settings.patch_top_k)
    return patch_loss(
        maps,
        patches,
        omega & labelled[:, None, None, None],
        gammas=PerLabel(*settings.patch_gammas),
        weights=EVEN if settings.patch_weights is None else PerLabel(*settings.patch_weights),
    )
