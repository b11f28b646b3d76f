"""Softmax cross-entropy for transfer sets with one class per photo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step


@final
@dataclass(frozen=True)
class Softmax(Objective):
    """Softmax cross-entropy over the classes, mean over the photos; every photo has exactly one class."""

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:  # noqa: ARG002
        """Check that every photo has exactly one class.

        Raises:
            ConfigError: a photo has no class or several.
        """
        counts = problem.labels.image_counts(Label.POSITIVE)
        if wrong := int((counts != 1).sum()):
            raise ConfigError(
                f"a softmax needs one class per photo; {wrong:,} of {len(counts):,} have none or several."
            )
        return {}

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:  # noqa: ARG002
        """Compute -log softmax(logits) at the photo's class."""
        out: Output = net(batch.images)
        logits = out.logits.float()
        target = (batch.labels == Label.POSITIVE).int().argmax(1)
        loss = F.cross_entropy(logits, target)
        right = (logits.detach().argmax(1) == target).float().mean()
        return Step(loss, {"cross_entropy": loss.detach(), "accuracy": right})
