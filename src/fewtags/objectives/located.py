"""Base of methods that can learn from points and boxes beside the labels of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.losses.selective import EVEN, PerLabel, patch_loss
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Derived, Objective, RunFacts
from fewtags.objectives.checks import Range
from fewtags.patches import patch_labels

Triple = tuple[float, float, float]


@dataclass(eq=False, kw_only=True)
class LocatedObjective(Objective):
    """With points or boxes, the loss is L + patch_weight L_patch.

    L is the loss of the method, and L_patch that of PatchML, eq. (2): a focal loss of the known patches. Patches on an
    annotated object are positive, all patches of a class that is known to be absent are negative, and all others have
    no loss. In images with a place, classes that L takes as absent are absent in L_patch as well (not in PatchML):
    without any negative, it would teach that each class is everywhere. It is a mean over all patches; see
    `losses.selective.patch_loss`.

    Args:
        patch_weight: weight of L_patch, w_patch of PatchML eq. (3). Default: 1 with points or boxes, else 0.
        patch_weights: weights of positive, negative and unknown patches; see `patch_loss` on their scale. Default: the
            number of patches, 1, 1.
        patch_gammas: focus on positive, negative and unknown patches.
        coverage: share of a patch that a box must cover, see `cells_of_boxes`.
        min_visible: share of a box that a crop must show for the box to count.
    """

    patch_weight: Annotated[float | None, Range()] = None
    patch_weights: Triple | None = None
    patch_gammas: Triple = (0.0, 1.0, 2.0)
    coverage: Annotated[float, Range(1e-6, 1)] = 0.5
    min_visible: Annotated[float, Range(0, 1)] = 0.1

    def __post_init__(self) -> None:
        refuse_wrong_triples(self, "patch_gammas", "patch_weights")

    @property
    def uses_locations(self) -> bool:
        """Unless `patch_weight` is 0."""
        return self.patch_weight != 0

    @property
    def needs_maps(self) -> bool:
        """The loss of patches does."""
        return bool(self.patch_weight)

    def derived(self, facts: RunFacts) -> Mapping[str, Derived]:
        """Use points and boxes, if there are some."""
        places, weights = bool(facts.points or facts.boxes), even_patches(facts)
        if self.patch_weight == 0:
            weights = Derived(weights.value)  # without L_patch, a note about its weights would mislead
        return {**super().derived(facts), "patch_weight": Derived(float(places)), "patch_weights": weights}

    def with_patches(
        self, loss: Tensor, logs: dict[str, Tensor], out: Output, batch: Batch, absent: Tensor | None = None
    ) -> Tensor:
        """Return the loss with the term L_patch, which is added to the logs.

        `absent`, bool [b, C], are the unknown labels that L takes as negative.
        """
        if not self.patch_weight:
            return loss
        maps, labels = out.maps.float(), batch.labels
        if absent is not None and batch.places is not None:
            located = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
            located = located.index_fill(0, batch.places.row, True)
            labels = labels.masked_fill(absent & located[:, None], Label.NEGATIVE)
        patches, _ = patch_labels(
            labels,
            batch.places,
            batch.views,
            (maps.shape[2], maps.shape[3]),
            coverage=self.coverage,
            min_visible=self.min_visible,
            cropped="keep",
        )
        weights = EVEN if self.patch_weights is None else PerLabel(*self.patch_weights)
        nowhere = torch.zeros_like(patches, dtype=torch.bool)
        term = patch_loss(maps, patches, nowhere, gammas=PerLabel(*self.patch_gammas), weights=weights)
        logs["patch"] = term.detach()
        return loss + self.patch_weight * term


def even_patches(facts: RunFacts) -> Derived:
    """Return the default of `patch_weights`: a located patch weighs as much as all patches of a map.

    A positive class with one point then weighs as much as a negative class, all of whose patches are labelled.
    """
    weights = (float(facts.grid[0] * facts.grid[1]), 1.0, 1.0)
    why = f"a located patch weighs {weights[0]:g}, as all of a map (objective.patch_weights)"
    return Derived(weights, why if facts.points or facts.boxes else "")


def refuse_wrong_triples(objective: Objective, *names: str) -> None:
    """Turn settings that are three numbers into floats; None is left as it is.

    Raises:
        ConfigError: a setting does not have three numbers of at least 0.
    """
    for name in names:
        if (given := getattr(objective, name)) is None:
            continue
        setattr(objective, name, triple := tuple(float(v) for v in given))
        if len(triple) != 3 or not all(v >= 0 for v in triple):
            raise ConfigError(
                f"{name} must be three numbers of at least 0, for positive, negative and unknown; got {triple}."
            )
