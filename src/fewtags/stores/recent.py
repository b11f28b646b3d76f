"""The last predictions of every image, one per training view, from which the spread is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state, lazy_zeros


@final
class RecentScores:
    """The `depth` newest probabilities of every (sample, class), float16 [rows, depth, C].

    Args:
        samples: N, over all processes.
        classes: C.
        depth: number of predictions, at least 1.
        shard: the rows that this process owns and stores.
        device: of the rows.
    """

    def __init__(
        self,
        samples: int,
        classes: int,
        depth: int,
        *,
        shard: Shard = SINGLE_PROCESS,
        device: torch.device | None = None,
    ) -> None:
        self.shard, self.depth = shard, depth
        rows = shard.rows(samples)
        self.values = lazy_zeros((rows, depth, classes), torch.float16, device)
        self.visits = torch.zeros(rows, dtype=torch.int32, device=device)

    def read(self, index: Int64[Tensor, "b"]) -> tuple[Float[Tensor, "k b c"], Bool[Tensor, "b"]]:
        """Return the probabilities of samples `index` (global, owned by this process), float32, in no order of age.

        The mask says which samples were written at least `depth` times; missing probabilities of the others are 0.
        """
        rows = self.shard.local(index).to(self.values.device)
        kept, complete = self.values[rows].float().transpose(0, 1), self.visits[rows] >= self.depth
        return kept.to(index.device), complete.to(index.device)

    def write(self, index: Int64[Tensor, "b"], prob: Float[Tensor, "b c"]) -> None:
        """Replace the oldest probabilities of samples `index`, which must not repeat one."""
        rows = self.shard.local(index).to(self.values.device)
        slot = (self.visits[rows] % self.depth).long()
        self.values[rows, slot] = prob.to(self.values)
        self.visits[rows] += 1

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {"values": self.values, "visits": self.visits}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "recent scores")
