"""The rows that each process owns: sample i belongs to rank i mod world, so every row has exactly one writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
import torch.distributed as dist
from torch import Tensor


@final
@dataclass(frozen=True)
class Shard:
    """One process among `world`.

    >>> Shard(1, 2).rows(5)
    2
    """

    rank: int = 0
    world: int = 1

    def rows(self, samples: int) -> int:
        """Number of rows, of `samples`, that this process owns."""
        return (samples - self.rank + self.world - 1) // self.world

    def owned(self, samples: int) -> Tensor:
        """Global indices of the rows this process owns, int64 [rows], ascending: the order of its stores.

        >>> Shard(1, 2).owned(5).tolist()
        [1, 3]
        """
        return self.rank + self.world * torch.arange(self.rows(samples))

    def local(self, index: Tensor) -> Tensor:
        """Convert global sample indices that this process owns to rows of its stores."""
        if self.world == 1:
            return index
        # An index of another rank would silently give a wrong row. On a GPU the check would cost a synchronisation.
        assert index.device.type != "cpu" or bool((index % self.world == self.rank).all()), (self, index)
        return torch.div(index, self.world, rounding_mode="floor")

    def gather(self, local: Tensor, samples: int) -> Tensor:
        """The rows [samples, ...] of all processes in global order. Collective: every rank must call it."""
        if self.world == 1:
            return local
        padded = self._padded(local, -(-samples // self.world))
        pieces = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(pieces, padded)
        return torch.stack(pieces, 1).flatten(0, 1)[:samples]

    def collect(self, local: Tensor, samples: int, to: int) -> Tensor | None:
        """As `gather`, on rank `to` only; None on the others. Collective: every rank must call it."""
        if self.world == 1:
            return local
        padded = self._padded(local, -(-samples // self.world))
        pieces = [torch.empty_like(padded) for _ in range(self.world)] if self.rank == to else None
        dist.gather(padded, pieces, dst=to)
        return None if pieces is None else torch.stack(pieces, 1).flatten(0, 1)[:samples]

    def _padded(self, local: Tensor, rows: int) -> Tensor:
        """Own rows followed by zeros, `rows` in all: collectives need equal sizes."""
        padded = local.new_zeros((rows, *local.shape[1:]))
        padded[: len(local)] = local
        return padded

    def sizes(self, local: Tensor) -> list[int]:
        """Number of rows of each process. On a GPU the host waits for it. Collective: every rank must call it."""
        if self.world == 1:
            return [len(local)]
        own = torch.tensor([len(local)], device=local.device)
        counts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(counts, own)
        found: list[int] = torch.cat(counts).tolist()
        return found

    def concatenate(self, local: Tensor, sizes: list[int] | None = None) -> tuple[Tensor, int]:
        """The rows of all processes in the order of their ranks, and the position of this process's first row.

        `sizes` is the result of `self.sizes`, to reuse it for several tensors. Collective: every rank must call it.
        """
        if self.world == 1:
            return local, 0
        sizes = self.sizes(local) if sizes is None else sizes
        padded = self._padded(local, max(sizes))
        pieces = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(pieces, padded)
        rows = [piece[:size] for piece, size in zip(pieces, sizes, strict=True)]
        return torch.cat(rows), sum(sizes[: self.rank])

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of all processes' tensors. Collective: every rank must call it."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total


SINGLE_PROCESS: Final = Shard()
