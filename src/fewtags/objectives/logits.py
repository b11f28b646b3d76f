"""Base of methods whose loss needs the image logits only."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple, final

from torch import Tensor, nn

from fewtags.labels import Batch
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Objective, Progress, Step


@final
class ImageLoss(NamedTuple):
    """The loss of a batch, with further scalars to log and the payload of `Step`."""

    loss: Tensor
    logs: dict[str, Tensor]
    payload: Any = None


class LogitObjective(Objective):
    """Base of methods whose loss is a function of the image logits."""

    @property
    def needs_maps(self) -> bool:
        """The loss uses the logits only."""
        return False

    @abstractmethod
    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute the loss of the logits float32 [b, C] of a batch; as pure as `step`."""

    def absent(self, batch: Batch) -> Tensor | None:
        """Return the unknown labels that the loss takes as negative, bool [b, C]; None for none."""
        return None

    def with_patches(
        self, loss: Tensor, logs: dict[str, Tensor], out: Output, batch: Batch, absent: Tensor | None = None
    ) -> Tensor:
        """Return the loss; a method that is also a `LocatedObjective` adds a loss of patches."""
        return loss

    def step(self, net: nn.Module, batch: Batch, at: Progress) -> Step:
        """Compute `image_loss` on the pooled logits."""
        out: Output = net(batch.images)
        logits = out.logits.float()
        loss, logs, payload = self.image_loss(logits, batch, at)
        loss = self.with_patches(loss, logs, out, batch, self.absent(batch))
        return Step(loss, logs | {"sum_of_probabilities": logits.detach().sigmoid().sum(1).mean()}, payload)
