"""The nearest images of every image, as training last saw them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Int64
from torch import Tensor

from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state

NOBODY = -1


@final
class Neighbours:
    """k image numbers per image, int32 [rows, k], nearest first; -1 where there is none.

    Args:
        samples: N, over all processes.
        k: how many are kept.
        shard: the rows kept here are those this process owns.
        device: where they live.
    """

    def __init__(
        self, samples: int, k: int, *, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        self.shard = shard
        self.ids = torch.full((shard.rows(samples), k), NOBODY, dtype=torch.int32, device=device)

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
        """Take a state back, in place.

        Raises:
            CheckpointError: the state has another shape or dtype.
        """
        copy_state(self.state_dict(), state_dict, "neighbours")


def agreement(
    before: Int64[Tensor, "b k"], now: Int64[Tensor, "b m"], there: Int64[Tensor, "D"]
) -> tuple[Tensor, Tensor]:
    """How many of the neighbours from before could be chosen again, and how many were; means per image.

    Args:
        before: earlier neighbours, -1 for none.
        now: those chosen now, -1 for none.
        there: images among which they were chosen, -1 for none.
    """
    known = before != NOBODY
    # torch.isin would wait for a GPU. Nobody is added so that there is always something to look at.
    ordered = torch.cat([there, there.new_full((1,), NOBODY)]).sort().values
    place = torch.searchsorted(ordered, before).clamp(max=len(there))
    possible = known & (ordered[place] == before)
    again = known & (before[:, :, None] == now[:, None, :]).any(2)
    return possible.float().sum(1).mean(), again.float().sum(1).mean()
