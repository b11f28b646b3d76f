"""Points and boxes as labels of patches, and pseudo-labels from what annotated patches look like: PatchML, complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix, suggest
from fewtags.losses.selective import PerLabel, patch_loss, patch_selectivity, selective_loss, selectivity
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step
from fewtags.patches import patch_labels
from fewtags.stores.prototypes import PatchSum, Prototypes, sum_patches
from fewtags.stores.pseudo import PseudoCount, PseudoLabels

Unknown = Literal["ignore", "negative", "selective"]
Cropped = Literal["unknown", "keep"]
Examples = Literal["patches", "images"]
Fill = Literal["unlabelled", "unknown"]
Triple = tuple[float, float, float]


class Seen(NamedTuple):
    """What `step` hands to `commit`: annotated patches, and pseudo-labels once there are any."""

    patches: PatchSum
    pseudo: Tensor | None


@final
@dataclass(eq=False)
class PatchML(Objective):
    """PatchML eqs. (1) to (4): L = w_image L_image + w_patch L_patch + w_pseudo L_pseudo.

    L_image is the class-aware selective loss (CSL-I) of image logits, L_patch the same of patches (CSL-P; `patches`
    says which are labelled), L_pseudo the focal loss of PatchCluster's pseudo-labels. All are means over all their
    cells (images x classes, and patches), where the paper writes sums. Plain tags, points and boxes may stand side by
    side, in one image, too; without any location L_patch sees nothing but image-level negatives.

    PatchCluster (`pseudo_weight` above 0): each epoch starts with new prototypes, made of the annotated patches that
    the epoch before has seen; from epoch `pseudo_from` on every batch is compared with them. Deviation: the paper
    compares with whole images, here it is the training views, which costs no extra pass.

    Args:
        image_unknown: unknown classes of images that have some label: "ignore" (the paper's, but for table 3),
            "negative", or "selective": CSL-I.
        patch_unknown: unknown patches: "ignore", "negative", or "selective": CSL-P.
        image_top_k: "selective": likely positives per image that stay ignored.
        patch_top_k: "selective": likely patches per located class that stay ignored.
        prior_threshold: "selective": classes in more than this share of the images asked about stay ignored; 1: none.
        image_gammas: focus on positive, negative and unknown classes.
        patch_gammas: likewise, of patches.
        image_weight: w_image.
        patch_weight: w_patch.
        patch_weights: of positive, negative and unknown patches; see `patch_loss` on their scale.
        coverage: share of a patch that a box must cover, see `cells_of_boxes`.
        min_visible: share of a box that a crop must show for it to count.
        cropped: a positive whose every known location is cropped away becomes "unknown" in that view, or is "keep".
        pseudo_weight: w_image of eq. (4); the paper found its w_patch best at 0, so there is none.
        pseudo_from: first epoch with pseudo-labels, warm-up included.
        pseudo_fill: images without any label ("unlabelled", the paper's), or all "unknown" classes.
        prototypes_of: located "patches"; or whole "images" that hold the class (the paper's I + PC).
        near: d+, cosine distance up to which a class is a pseudo-positive.
        far: d-, cosine distance beyond which it is a pseudo-negative.
        negative_below: guard: pseudo-negatives only where the net's probability is at most this; 1: no guard.
        min_count: annotated patches that a prototype needs.
        prototype_momentum: of the old prototype, 0 (made anew each epoch) to 1 (the first one is kept).

    Raises:
        ConfigError: a value that is out of range, or two that contradict each other.
    """

    image_unknown: Unknown = "ignore"
    patch_unknown: Unknown = "ignore"
    image_top_k: int = 5
    patch_top_k: int = 5
    prior_threshold: float = 1.0
    image_gammas: Triple = (0.0, 1.0, 2.0)
    patch_gammas: Triple = (0.0, 1.0, 2.0)
    image_weight: float = 1.0
    patch_weight: float = 1.0
    patch_weights: Triple = (1.0, 1.0, 1.0)
    coverage: float = 0.5
    min_visible: float = 0.1
    cropped: Cropped = "unknown"
    pseudo_weight: float = 0.0
    pseudo_from: int = 5
    pseudo_fill: Fill = "unlabelled"
    prototypes_of: Examples = "patches"
    near: float = 0.3
    far: float = 0.9
    negative_below: float = 1.0
    min_count: int = 1
    prototype_momentum: float = 0.0

    def __post_init__(self) -> None:
        for name, options in CHOICES.items():
            if (value := getattr(self, name)) not in options:
                raise ConfigError(
                    f"{name} must be one of {', '.join(options)}, got {value!r}{suggest(value, options)}."
                )
        for name in ("image_gammas", "patch_gammas", "patch_weights"):
            setattr(self, name, tuple(float(v) for v in getattr(self, name)))
            if len(value := getattr(self, name)) != 3 or not all(v >= 0 for v in value):
                raise ConfigError(
                    f"{name} must be three numbers of at least 0, for positive, negative and unknown; got {value}."
                )
        for name, (low, high) in RANGES.items():
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"{name} must be in {low:g}..{high:g}, got {value}.")
        if not self.near < self.far:
            raise ConfigError(f"near must be below far, got {self.near} and {self.far}.")

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Allocate prototypes and pseudo-labels, if there are to be any."""
        self._problem = problem
        samples, classes = problem.labels.shape
        self._prior = _shares(problem.labels).to(problem.device)
        self._prototypes: Prototypes | None = None
        if self.pseudo_weight == 0:
            return {}
        self._prototypes = Prototypes(
            classes,
            problem.features_dim,
            min_count=self.min_count,
            momentum=self.prototype_momentum,
            shard=problem.shard,
            device=problem.device,
        )
        self._pseudo = PseudoLabels(samples, classes, shard=problem.shard, device=problem.device)
        return {"prototypes": self._prototypes, "pseudo_labels": self._pseudo}

    def on_epoch_start(self, epoch: int) -> Mapping[str, float]:
        """Renew the prototypes and take stock of the pseudo-labels of the epoch before.

        Returns:
            `classes_with_prototype`; from `pseudo_from` + 1 on, pseudo-positives and -negatives per image, and, where
            the complete labels are known, the precision of both.
        """
        if self._prototypes is None or epoch == 0:
            return {}
        self._prototypes.refresh()
        found = {"classes_with_prototype": float(self._prototypes.known.sum())}
        if epoch > self.pseudo_from:
            found |= _diagnostics(self._pseudo.judge(self._problem.truth), self._problem.labels.shape[0])
        return found

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Eq. (3), and eq. (4) from `pseudo_from` on. Everything is read as it was before this batch."""
        out: Output = net(batch.images)
        logits, maps = out.logits.float(), out.maps.float()
        patches, labels = patch_labels(
            batch.labels,
            batch.places,
            batch.views,
            (maps.shape[2], maps.shape[3]),
            coverage=self.coverage,
            min_visible=self.min_visible,
            cropped=self.cropped,
        )
        labelled = (batch.labels != Label.UNKNOWN).any(1)
        image, patch = self._image_loss(logits, labels, labelled), self._patch_loss(maps, patches, labelled)
        loss = self.image_weight * image + self.patch_weight * patch
        logs = {"image": image.detach(), "patch": patch.detach()}
        if self._prototypes is None:
            return Step(loss, logs)
        pseudo = None
        if at.epoch >= self.pseudo_from:
            pseudo = self._pseudo_labels(out, batch.labels, labelled)
            nothing = torch.zeros_like(pseudo, dtype=torch.bool)
            extra = selective_loss(logits, pseudo, nothing, gammas=PerLabel(*self.image_gammas))
            loss, logs["pseudo"] = loss + self.pseudo_weight * extra, extra.detach()
        return Step(loss, logs, Seen(self._examples(out, patches, labels), pseudo))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Count the annotated patches in, and keep the pseudo-labels."""
        if self._prototypes is None:
            return
        seen: Seen = out.payload
        self._prototypes.add(seen.patches)
        if seen.pseudo is not None:
            self._pseudo.write(batch.index, seen.pseudo)

    def _image_loss(self, logits: Tensor, labels: Tensor, labelled: Tensor) -> Tensor:
        """Eq. (1), of labelled images."""
        omega = selectivity(
            logits,
            labels,
            self.image_unknown,
            top_k=self.image_top_k,
            prior=self._prior,
            prior_threshold=self.prior_threshold,
            among=labelled,
        )
        return selective_loss(logits, labels, omega, gammas=PerLabel(*self.image_gammas))

    def _patch_loss(self, maps: Tensor, patches: Tensor, labelled: Tensor) -> Tensor:
        """Eq. (2), of labelled images."""
        omega = patch_selectivity(maps, patches, self.patch_unknown, top_k=self.patch_top_k)
        return patch_loss(
            maps,
            patches,
            omega & labelled[:, None, None, None],
            gammas=PerLabel(*self.patch_gammas),
            weights=PerLabel(*self.patch_weights),
        )

    def _examples(self, out: Output, patches: Tensor, labels: Tensor) -> PatchSum:
        """Annotated patches, or with I + PC the mean features of images that hold a class, summed by class."""
        if self.prototypes_of == "patches":
            return sum_patches(out.features.detach(), patches == Label.POSITIVE)
        return sum_patches(_whole(out.features.detach()), (labels == Label.POSITIVE)[:, :, None, None])

    @torch.no_grad()
    def _pseudo_labels(self, out: Output, labels: Tensor, labelled: Tensor) -> Tensor:
        """What PatchCluster says about the cells it may fill, int8 [b, C]."""
        assert self._prototypes is not None
        features = out.features if self.prototypes_of == "patches" else _whole(out.features)
        pseudo = self._prototypes.pseudo_labels(features, self.near, self.far)
        if self.negative_below < 1:
            doubtful = (pseudo == Label.NEGATIVE) & (out.logits.float().sigmoid() > self.negative_below)
            pseudo = pseudo.masked_fill(doubtful, Label.UNKNOWN)
        taken = labels != Label.UNKNOWN if self.pseudo_fill == "unknown" else labelled[:, None].expand_as(labels)
        return pseudo.masked_fill(taken, Label.UNKNOWN)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "image_unknown": get_args(Unknown),
    "patch_unknown": get_args(Unknown),
    "cropped": get_args(Cropped),
    "pseudo_fill": get_args(Fill),
    "prototypes_of": get_args(Examples),
}

INFINITY = float("inf")
RANGES: Mapping[str, tuple[float, float]] = {
    "image_top_k": (0, INFINITY),
    "patch_top_k": (0, INFINITY),
    "prior_threshold": (0, 1),
    "image_weight": (0, INFINITY),
    "patch_weight": (0, INFINITY),
    "coverage": (1e-6, 1),
    "min_visible": (0, 1),
    "pseudo_weight": (0, INFINITY),
    "pseudo_from": (1, INFINITY),
    "near": (0, 2),
    "far": (0, 2),
    "negative_below": (0, 1),
    "min_count": (1, INFINITY),
    "prototype_momentum": (0, 1),
}


def _whole(features: Tensor) -> Tensor:
    """Mean features of each image, as a grid of one cell."""
    return features.mean((2, 3), keepdim=True)


def _shares(labels: LabelMatrix) -> Tensor:
    """float32 [C]: positives / (positives + negatives) of each class; 0 where nothing is known.

    Cells that are asked about at random make it unbiased; the public code of CSL trains a net to estimate it.
    """
    positives, negatives = (torch.from_numpy(labels.counts(s)).float() for s in (Label.POSITIVE, Label.NEGATIVE))
    return positives / (positives + negatives).clamp(min=1)


def _diagnostics(count: PseudoCount, samples: int) -> dict[str, float]:
    """What to log; ratios without a denominator are left out."""
    found = {
        "pseudo_positives_per_image": count.positive / samples,
        "pseudo_negatives_per_image": count.negative / samples,
    }
    if count.judged_positive:
        found["pseudo_positive_precision"] = count.right_positive / count.judged_positive
    if count.judged_negative:
        found["pseudo_negative_precision"] = count.right_negative / count.judged_negative
    return found
