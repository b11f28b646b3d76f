"""Ensembles of the predictions of all epochs so far: temporal ensembling (Laine & Aila, ICLR 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state, lazy_zeros


@final
class Ensemble:
    """Z <- a Z + (1 - a) f of every (sample, class), float32 [rows, C], which starts at 0.

    Z / (1 - a^t) after t visits is a weighted mean of the t predictions, without a start value.

    Args:
        samples: N, over all processes.
        classes: C.
        momentum: a, in 0..1 (1 excluded).
        shard: the rows that this process owns and stores.
        device: of the rows; inputs and outputs stay on the caller's device.
    """

    def __init__(
        self,
        samples: int,
        classes: int,
        *,
        momentum: float = 0.6,
        shard: Shard = SINGLE_PROCESS,
        device: torch.device | None = None,
    ) -> None:
        self.momentum, self.shard = momentum, shard
        rows = shard.rows(samples)
        self.values = lazy_zeros((rows, classes), torch.float32, device)
        self.visits = torch.zeros(rows, dtype=torch.int32, device=device)

    def read(self, index: Int64[Tensor, "b"]) -> tuple[Float[Tensor, "b c"], Bool[Tensor, "b"]]:
        """Return the ensembles of samples `index` (global, owned by this process), and which have any prediction."""
        rows = self.shard.local(index).to(self.values.device)
        values, visits = self.values[rows].to(index.device), self.visits[rows].to(index.device)
        weight = 1 - self.momentum ** visits.float()
        return values / weight.clamp(min=torch.finfo(weight.dtype).tiny)[:, None], visits > 0

    def update(self, index: Int64[Tensor, "b"], prob: Float[Tensor, "b c"]) -> None:
        """Add the probabilities of samples `index`, which must not repeat one."""
        rows = self.shard.local(index).to(self.values.device)
        self.values[rows] = self.momentum * self.values[rows] + (1 - self.momentum) * prob.to(self.values)
        self.visits[rows] += 1

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {"values": self.values, "visits": self.visits}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "ensemble")
