"""The nearest images of every image, from its last training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Int64
from torch import Tensor

from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state

NO_NEIGHBOUR = -1


@final
class Neighbours:
    """k image numbers per image, int32 [rows, k], nearest first; -1 for none.

    Args:
        samples: N, over all processes.
        k: number of neighbours.
        shard: the rows that this process owns and stores.
        device: of the rows.
    """

    def __init__(
        self, samples: int, k: int, *, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        self.shard = shard
        self.ids = torch.full((shard.rows(samples), k), NO_NEIGHBOUR, dtype=torch.int32, device=device)

    def read(self, index: Int64[Tensor, "b"]) -> Int64[Tensor, "b k"]:
        """Neighbours of samples `index` (global, owned by this process)."""
        rows = self.shard.local(index).to(self.ids.device)
        return self.ids[rows].long().to(index.device)

    def write(self, index: Int64[Tensor, "b"], ids: Int64[Tensor, "b k"]) -> None:
        """Replace the neighbours of samples `index`, which must not repeat one."""
        rows = self.shard.local(index).to(self.ids.device)
        self.ids[rows] = ids.to(self.ids)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensor itself, not a copy."""
        return {"ids": self.ids}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "neighbours")


def agreement(
    before: Int64[Tensor, "b k"], now: Int64[Tensor, "b m"], candidates: Int64[Tensor, "D"]
) -> tuple[Tensor, Tensor]:
    """Return how many earlier neighbours are among the candidates, and how many were chosen again; means per image.

    In all arguments -1 means none.
    """
    known = before != NO_NEIGHBOUR
    # torch.isin would wait for a GPU. A sentinel is appended so that the tensor is never empty.
    ordered = torch.cat([candidates, candidates.new_full((1,), NO_NEIGHBOUR)]).sort().values
    place = torch.searchsorted(ordered, before).clamp(max=len(candidates))
    possible = known & (ordered[place] == before)
    again = known & (before[:, :, None] == now[:, None, :]).any(2)
    return possible.float().sum(1).mean(), again.float().sum(1).mean()
