"""PatchML: points and boxes as labels of patches, and pseudo-labels from prototypes of annotated patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.selective import EVEN, PerLabel, patch_loss, selective_loss
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Part, Problem, Progress, Step
from fewtags.objectives.checks import Range
from fewtags.objectives.supervised import (
    SupervisedObjective,
    class_shares,
    only_fillable,
    pseudo_diagnostics,
    refuse_too_late,
    refuse_without_negatives,
    supervised_loss,
)
from fewtags.stores.prototypes import PatchSum, Prototypes, sum_patches
from fewtags.stores.pseudo import PseudoLabels


class Seen(NamedTuple):
    """Payload of a step: features of annotated patches (or images), and pseudo-labels from `pseudo_from` on."""

    patches: PatchSum
    pseudo: Tensor | None


@final
@dataclass(eq=False, kw_only=True)
class PatchML(SupervisedObjective):
    """PatchML eqs. (1) to (4): L = w_image L_image + w_patch L_patch + w_pseudo L_pseudo.

    L_image is the class-aware selective loss (CSL-I) of image logits, L_patch the same loss of patches (CSL-P; module
    `patches` labels them), L_pseudo the focal loss of PatchCluster's pseudo-labels. All are means over all their cells
    (images x classes, and patches); the paper writes sums. Plain tags, points and boxes can be mixed, also in one
    image; without any location L_patch uses image-level negatives only.

    PatchCluster (`pseudo_weight` above 0): each epoch starts with new prototypes, made from the annotated patches of
    the previous epoch; from epoch `pseudo_from` on every batch is compared with them. Deviation: the paper compares
    whole images; here training views are compared, which costs no extra pass.

    `pseudo_weight` is w_image of eq. (4), and `pseudo_patch_weight` its w_patch, which adds a loss of patches. Settings
    that are not listed here are those of `SupervisedObjective`.

    Args:
        pseudo_patch_weight: w_patch of eq. (4), which the paper found best at 0: weight of the loss of pseudo-labelled
            patches. In a pseudo-positive image these are the patches up to `near` from the prototype, in a
            pseudo-negative one all of them.
        prototypes_of: located "patches", or whole "images" that contain the class (the paper's I + PC).
        near: d+, cosine distance up to which a class is a pseudo-positive.
        far: d-, cosine distance beyond which it is a pseudo-negative.
        negative_below: largest probability of a pseudo-negative; 1: no limit.
        min_count: number of annotated patches that a prototype needs.
        prototype_momentum: weight of the old prototype, from 0 (new each epoch) to 1 (the first one stays).
    """

    pseudo_patch_weight: Annotated[float, Range()] = 0.0
    prototypes_of: Literal["patches", "images"] = "patches"
    near: Annotated[float, Range(0, 2)] = 0.3
    far: Annotated[float, Range(0, 2)] = 0.9
    negative_below: Annotated[float, Range(0, 1)] = 1.0
    min_count: Annotated[int, Range(1)] = 1
    prototype_momentum: Annotated[float, Range(0, 1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.near < self.far:
            raise ConfigError(f"near must be below far, got {self.near} and {self.far}.")
        if self.pseudo_patch_weight > 0 and (self.pseudo_weight == 0 or self.prototypes_of == "images"):
            raise ConfigError(
                'pseudo_patch_weight needs pseudo_weight above 0 and prototypes_of = "patches"; leave it out.'
            )

    @property
    def needs_maps(self) -> bool:
        """The loss of patches and their prototypes do; prototypes of whole images do not."""
        return super().needs_maps or (self.pseudo_weight > 0 and self.prototypes_of == "patches")

    @property
    def solvable(self) -> bool:
        """Without pseudo-labels and selected cells, which change with the weights.

        The focal factor has no gradient, so the solver's direction differs slightly from the gradient of the loss. The
        result was still better than training in steps in mAP, pointing and mAP-loc (docs/LOG.md).
        """
        return self.pseudo_weight == 0 and "selective" not in (self.image_unknown, self.patch_unknown)

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Allocate prototypes and pseudo-labels if `pseudo_weight` is above 0."""
        self._problem = problem
        refuse_without_negatives(self, problem.labels)
        samples, classes = problem.labels.shape
        self._prior = class_shares(problem.labels).to(problem.device)
        self._prototypes: Prototypes | None = None
        if self.pseudo_weight == 0:
            return {}
        refuse_too_late(self.pseudo_from, problem.epochs, "objective.pseudo_from")
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
        """Update the prototypes; return their number, and counts of the previous epoch's pseudo-labels."""
        if self._prototypes is None or epoch == 0:
            return {}
        self._prototypes.refresh()
        found = {"classes_with_prototype": float(self._prototypes.known.sum())}
        if epoch > self.pseudo_from:
            found |= pseudo_diagnostics(self._pseudo.judge(self._problem.truth), self._problem.labels.shape[0])
        return found

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute eq. (3), and eq. (4) from `pseudo_from` on, with the state before this batch."""
        out: Output = net(batch.images)
        known = supervised_loss(self, out, batch, self._prior)
        loss, logs = known.loss, known.logs
        if self._prototypes is None:
            return Step(loss, logs)
        pseudo = None
        if at.epoch >= self.pseudo_from:
            pseudo = self._pseudo_labels(out, batch.labels)
            nothing = torch.zeros_like(pseudo, dtype=torch.bool)
            extra = selective_loss(out.logits.float(), pseudo, nothing, gammas=PerLabel(*self.image_gammas))
            loss, logs["pseudo"] = loss + self.pseudo_weight * extra, extra.detach()
            if self.pseudo_patch_weight > 0:
                patch = self._pseudo_patch_loss(out, pseudo)
                loss, logs["pseudo_patch"] = loss + self.pseudo_patch_weight * patch, patch.detach()
        if self.prototypes_of == "patches":
            patches = sum_patches(out.features.detach(), known.patches == Label.POSITIVE)
        else:
            patches = sum_patches(_whole(out.features.detach()), (known.labels == Label.POSITIVE)[:, :, None, None])
        return Step(loss, logs, Seen(patches, pseudo))

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Add the annotated patches to the prototypes, and store the pseudo-labels."""
        if self._prototypes is None:
            return
        seen: Seen = out.payload
        self._prototypes.add(seen.patches)
        if seen.pseudo is not None:
            self._pseudo.write(batch.index, seen.pseudo)

    @torch.no_grad()
    def _pseudo_labels(self, out: Output, labels: Tensor) -> Tensor:
        """Return PatchCluster's pseudo-labels of the cells that it may fill, int8 [b, C]."""
        assert self._prototypes is not None
        features = out.features if self.prototypes_of == "patches" else _whole(out.features)
        pseudo = self._prototypes.pseudo_labels(features, self.near, self.far)
        if self.negative_below < 1:
            doubtful = (pseudo == Label.NEGATIVE) & (out.logits.float().sigmoid() > self.negative_below)
            pseudo = pseudo.masked_fill(doubtful, Label.UNKNOWN)
        return only_fillable(pseudo, labels, self.pseudo_fill)

    def _pseudo_patch_loss(self, out: Output, pseudo: Tensor) -> Tensor:
        """Return the loss of the patches of pseudo-labelled images: L_patch of eq. (4)."""
        assert self._prototypes is not None
        with torch.no_grad():
            near, image = self._prototypes.distances(out.features) <= self.near, pseudo[:, :, None, None]
            labels = torch.full_like(near, Label.UNKNOWN, dtype=torch.int8)
            labels.masked_fill_(near & (image == Label.POSITIVE), Label.POSITIVE)
            labels.masked_fill_((image == Label.NEGATIVE).expand_as(near), Label.NEGATIVE)
        nothing = torch.zeros_like(near)
        gammas = PerLabel(*self.patch_gammas)
        weights = EVEN if self.patch_weights is None else PerLabel(*self.patch_weights)
        return patch_loss(out.maps.float(), labels, nothing, gammas=gammas, weights=weights)


def _whole(features: Tensor) -> Tensor:
    """Return the mean features of each image, as a grid of one cell."""
    return features.mean((2, 3), keepdim=True)
