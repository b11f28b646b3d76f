"""Large-loss modification (LL-R, LL-Ct, LL-Cp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from torch import Tensor, nn

from fewtags.labels import Batch, Label
from fewtags.losses.large_loss import large_loss
from fewtags.objectives.base import Part, Problem, Progress, RunFacts, Step, StoreMemory
from fewtags.objectives.checks import Range, check_settings
from fewtags.objectives.logits import ImageLoss, LogitObjective
from fewtags.stores.cells import MarkedCells


@final
@dataclass(eq=False, kw_only=True)
class LargeLoss(LogitObjective):
    """Unknown labels count as negative, except those with the largest losses of the batch, which are suspect.

    Kim et al., "Large Loss Matters in Weakly Supervised Multi-Label Classification" (CVPR 2022). The first epoch after
    the warm-up is assume-negative. With "reject" and "correct", epoch t after it changes the share t x `share` of all
    cells; with "correct_for_good", every epoch changes the share `share`, and what was changed stays positive.

    Args:
        mode: "reject" ignores suspect cells (LL-R), "correct" takes them as positive in this step (LL-Ct), and
            "correct_for_good" from then on (LL-Cp).
        share: delta of the paper, 0.001 to 0.004 there.
    """

    mode: Literal["reject", "correct", "correct_for_good"] = "reject"
    share: Annotated[float, Range(0, 1)] = 0.002

    def __post_init__(self) -> None:
        check_settings(self)

    def memory(self, facts: RunFacts) -> Sequence[StoreMemory]:
        """Return the memory of the cells that are corrected for good."""
        remedy = 'objective.mode = "correct" keeps no marks.'

        store = StoreMemory(
            name="corrected labels", size=lambda images: images * facts.classes, remedy=lambda *_: remedy
        )
        return (store,) if self.mode == "correct_for_good" else ()

    def setup(self, net: nn.Module, problem: Problem) -> Mapping[str, Part]:
        """Make the set of cells that are corrected for good."""
        self._warmup_epochs = problem.warmup_epochs
        shard = problem.shard
        self._gather = None if shard.world == 1 else lambda vector: shard.concatenate(vector)[0]
        self._corrected: MarkedCells | None = None
        if self.mode != "correct_for_good":
            return {}
        self._corrected = MarkedCells(*problem.labels.shape, shard=shard, device=problem.device)
        return {"corrected_labels": self._corrected}

    def image_loss(self, logits: Tensor, batch: Batch, at: Progress) -> ImageLoss:
        """Compute the loss; the payload is the cells to correct for good."""
        labels = batch.labels
        if self._corrected is not None:
            labels = labels.masked_fill(self._corrected.read(batch.index) & (labels == Label.UNKNOWN), Label.POSITIVE)
        epoch = max(at.epoch - self._warmup_epochs, 0)
        share = min(1.0, self.share * (min(epoch, 1) if self._corrected is not None else epoch))
        correct = self.mode != "reject"
        loss, large = large_loss(logits, labels, share, correct=correct, gather=self._gather)
        logs = {"large_loss": loss.detach(), "changed_labels": large.float().sum(1).mean()}
        return ImageLoss(loss, logs, large if self._corrected is not None else None)

    @torch.no_grad()
    def commit(self, net: nn.Module, batch: Batch, out: Step) -> None:
        """Remember the corrected cells."""
        if self._corrected is not None:
            self._corrected.add(batch.index, out.payload)
