"""Running averages of image scores: s of the SCL paper (Verelst et al., WACV 2023), eq. (4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from fewtags.labels import Label, LabelMatrix
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state, lazy_zeros

VISIT_BYTES = 4  # of the update count of a row
_SUMMED = 2**20  # cells that are added up at a time


def score_bytes(samples: int, classes: int, dtype: str) -> int:
    """Return the bytes of a `ScoreStore`: a "float32" or "float16" per image and class, and a count per image.

    >>> score_bytes(1_281_167, 1000, "float32") / 1e9  # ImageNet
    5.129792668
    """
    return samples * (classes * (4 if dtype == "float32" else 2) + VISIT_BYTES)


@final
class ScoreStore:
    """One running average per (sample, class): s <- mu s + (1 - mu) f, with mu the momentum and f in 0..1.

    A row that was never updated reads as the paper's start value: 1 for annotated positives, 0 elsewhere. It is made
    from the labels when the row is read.

    With `corrected=True` (not in the paper) mu becomes min(mu, n / (n + 1)) after n updates, so the first update
    replaces the start value. Without it, the start value 0 of a class that is present but not annotated keeps the
    weight mu^n (a third after five epochs with mu = 0.8), and consistency losses pull the predictions towards it.

    Args:
        samples: N, over all processes.
        classes: C.
        momentum: mu, in 0..1.
        dtype: float32, or float16 if N x C is large; averages are computed in float32.
        corrected: see above.
        shard: the rows that this process owns and stores.
        device: of the rows; inputs and outputs stay on the caller's device.
    """

    def __init__(
        self,
        samples: int,
        classes: int,
        *,
        momentum: float = 0.8,
        dtype: torch.dtype = torch.float32,
        corrected: bool = False,
        shard: Shard = SINGLE_PROCESS,
        device: torch.device | None = None,
    ) -> None:
        self.samples, self.classes = samples, classes
        self.momentum, self.corrected, self.shard = momentum, corrected, shard
        rows = shard.rows(samples)
        self.values = lazy_zeros((rows, classes), dtype, device)
        self.visits = torch.zeros(rows, dtype=torch.int32, device=device)

    @torch.no_grad()
    def start_with(self, scores: Float[Tensor, "rows c"]) -> None:
        """Set other start values than 0 for the cells that are not annotated positives; NaN keeps 0.

        `scores` are those of this process's samples, in the order of `Shard.owned`. Call it before any update.
        """
        self.values.copy_(scores.to(self.values.device).nan_to_num(0.0))

    def read(self, index: Int64[Tensor, "b"], labels: Int8[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        """Averages of the samples `index` (global, owned by this process), float32."""
        rows = self.shard.local(index).to(self.values.device)
        kept, visits = self.values[rows].to(labels.device), self.visits[rows].to(labels.device)
        return _or_start(kept, visits, labels)

    def seen(self, index: Int64[Tensor, "b"]) -> Bool[Tensor, "b"]:
        """Mask of the samples that have been updated at least once."""
        return (self.visits[self.shard.local(index).to(self.values.device)] > 0).to(index.device)

    def update(self, index: Int64[Tensor, "b"], prob: Float[Tensor, "b c"], labels: Int8[Tensor, "b c"]) -> None:
        """Average in the probabilities `prob`; `index` must not repeat a sample."""
        rows = self.shard.local(index).to(self.values.device)
        old = self.read(index, labels)
        momentum: float | Tensor = self.momentum
        if self.corrected:
            visits = self.visits[rows].to(old.device).float()[:, None]
            momentum = (visits / (visits + 1)).clamp(max=self.momentum)
        new = momentum * old + (1 - momentum) * prob.float()
        self.values[rows] = new.to(self.values)
        self.visits[rows] += 1

    def columns(self, first: int, last: int, labels: LabelMatrix, *, to: int = 0) -> Float[Tensor, "n k"] | None:
        """Averages of *all* samples for the classes first..last - 1, float32. Collective: every rank must call it.

        Only rank `to` gets them, on the store's device; the others get None. `labels` are those of all N samples.
        """
        own = self.values[:, first:last].float().contiguous()
        if not self.visits.all():
            dense = torch.from_numpy(labels.columns(first, last)[self.shard.rank :: self.shard.world])
            own = _or_start(own, self.visits, dense.to(own.device))
        return self.shard.collect(own, self.samples, to)

    def total(self, labels: LabelMatrix) -> float:
        """Sum of the averages of all samples of this process; `labels` are those of all N samples."""
        rows = max(1, _SUMMED // max(1, self.classes))
        total = sum(float(part.float().sum(0).cpu().double().sum()) for part in self.values.split(rows))
        if bool(self.visits.all()):
            return total
        new = (self.visits == 0).cpu().numpy()
        row, class_ = map(torch.from_numpy, labels.positives(self.shard.owned(self.samples).numpy()[new]))
        kept = self.values[torch.from_numpy(np.flatnonzero(new)).to(self.values.device)[row], class_]
        return total + len(kept) - float(kept.cpu().double().sum())

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {"values": self.values, "visits": self.visits}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "scores")


def _or_start(kept: Tensor, visits: Tensor, labels: Tensor) -> Tensor:
    """Rows in float32; in rows that were never updated, annotated positives have the start value 1."""
    return torch.where((visits == 0)[:, None] & (labels == Label.POSITIVE), 1.0, kept.float())
