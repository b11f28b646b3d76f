"""Class prototypes in feature space: PatchCluster of "PatchML", section 3.3.

A prototype is the mean of the unit features of annotated positive patches. (The paper says "an average of the
features"; unit features prevent a few large vectors from dominating.) An image with a patch near a prototype (cosine
distance <= d+) is a pseudo-positive of the class; an image with all patches far from it (> d-) is a pseudo-negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from fewtags.labels import Label
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state


@final
class PatchSum(NamedTuple):
    """Sums of the unit features [C, d] of a batch's annotated patches, and their numbers [C], both float32."""

    features: Tensor
    patches: Tensor


@final
class Prototypes:
    """One unit vector per class. Classes with fewer than `min_count` annotated patches have no prototype.

    Training sums up the patches that it sees, and `refresh` turns the sums into prototypes, so no extra pass over the
    images is needed. A class without enough patches since the last `refresh` keeps its prototype.

    Args:
        classes: C.
        dim: d, channels of the features.
        min_count: number of patches that a prototype needs.
        momentum: weight of the old prototype in `refresh`, 0..1: 0 replaces it, 1 keeps the first one.
        shard: this process among all; `refresh` adds the sums of all processes.
        device: of the prototypes.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        *,
        min_count: int = 1,
        momentum: float = 0.0,
        shard: Shard = SINGLE_PROCESS,
        device: torch.device | None = None,
    ) -> None:
        self.min_count, self.momentum, self.shard = min_count, momentum, shard
        self.vectors = torch.zeros(classes, dim, device=device)
        self.known = torch.zeros(classes, dtype=torch.bool, device=device)
        self.sums = torch.zeros(classes, dim, device=device)
        self.counts = torch.zeros(classes, device=device)

    def add(self, seen: PatchSum) -> None:
        """Add the annotated patches of a batch."""
        self.sums += seen.features
        self.counts += seen.patches

    def refresh(self) -> None:
        """Make prototypes of the patches added since the last call. Collective: every rank must call it."""
        sums, counts = self.shard.sum(self.sums), self.shard.sum(self.counts)
        enough = counts >= self.min_count
        fresh = F.normalize(sums, dim=1)
        momentum = torch.where(self.known, self.momentum, 0.0)[:, None]
        mixed = F.normalize(momentum * self.vectors + (1 - momentum) * fresh, dim=1)
        self.vectors.copy_(torch.where(enough[:, None], mixed, self.vectors))
        self.known |= enough
        self.sums.zero_()
        self.counts.zero_()

    def distances(self, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b c h w"]:
        """Cosine distance 0..2 of each patch to each prototype; meaningless without one."""
        with torch.autocast(features.device.type, enabled=False):
            return 1 - torch.einsum("cd,bdhw->bchw", self.vectors, unit(features))

    def distance(self, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b c"]:
        """The distance of the nearest patch of each image."""
        return self.distances(features).flatten(2).amin(2)

    def pseudo_labels(self, features: Float[Tensor, "b d h w"], near: float, far: float) -> Int8[Tensor, "b c"]:
        """Positive if the nearest patch is at most `near` (d+) away, negative if more than `far` (d-), else unknown.

        Classes without a prototype are unknown.
        """
        distance = self.distance(features)
        labels = torch.full_like(distance, Label.UNKNOWN, dtype=torch.int8)
        labels.masked_fill_(self.known & (distance <= near), Label.POSITIVE)
        return labels.masked_fill_(self.known & (distance > far), Label.NEGATIVE)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {"vectors": self.vectors, "known": self.known, "sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "prototypes")


def unit(features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
    """Features of length 1 in every cell, float32 (float64 stays float64)."""
    return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)


def sum_patches(features: Float[Tensor, "b d h w"], positive: Bool[Tensor, "b c h w"]) -> PatchSum:
    """Sums over the patches that are annotated positive for each class."""
    with torch.autocast(features.device.type, enabled=False):
        chosen = positive.flatten(2).to(torch.float32)
        sums = torch.einsum("bcn,bdn->cd", chosen, unit(features).flatten(2).float())
    return PatchSum(sums, chosen.sum((0, 2)))
