"""Aligned queues of the newest vectors of several kinds.

MoCo (He et al., CVPR 2020) keeps one; MLS (Zhu, Fu, Wu, ICCV 2023, main eq. 6) keeps two "in the same order".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fewtags.errors import ConfigError
from fewtags.stores.state import copy_state


@final
class AlignedQueues:
    """The newest `size` rows of every kind; slot j of every queue belongs to the image with number `ids[j]`.

    MLS takes labels from one queue and logits from another: both must be read before `enqueue`, and both be written by
    it. One pointer and one call for all kinds keep them aligned.

    Empty slots contain zeros and are never used. No operation waits for a GPU. With several processes, all of them must
    enqueue the same rows in the same order, gathered from all.

    Args:
        size: D, slots of each queue, at least 1. Any number of rows can be enqueued, the size need not divide by it.
        dims: length of the rows of each kind, by its name.
        device: of the queues.

    Raises:
        ConfigError: a size below 1.
    """

    def __init__(self, size: int, dims: Mapping[str, int], *, device: torch.device | None = None) -> None:
        if size < 1:
            raise ConfigError(f"a queue must have at least 1 slot, got {size}.")
        self.size = size
        self.rows = {name: torch.zeros(size, dim, device=device) for name, dim in dims.items()}
        self.ids = torch.full((size,), -1, dtype=torch.int64, device=device)
        self.pointer = torch.zeros((), dtype=torch.int64, device=device)
        self.filled = torch.zeros((), dtype=torch.int64, device=device)

    def read(self, name: str) -> Float[Tensor, "D d"]:
        """The queue itself, float32, in no order of age. The next `enqueue` writes into it: clone what must last."""
        return self.rows[name]

    def counted(self) -> Bool[Tensor, "D"]:
        """Which slots are filled."""
        return torch.arange(self.size, device=self.ids.device) < self.filled

    def enqueue(self, ids: Int64[Tensor, "n"], rows: Mapping[str, Tensor]) -> None:
        """Put rows in the place of the oldest ones. Of more than `size` the last `size` stay, as if put in singly.

        Args:
            ids: number of each row's image.
            rows: for every kind, [n, length of its rows]; cast to float32, and what is kept has no gradient.

        Raises:
            ValueError: other kinds, numbers or lengths of rows than these queues have; nothing has been written then.
        """
        expected = {name: (len(ids), mine.shape[1]) for name, mine in self.rows.items()}
        given = {name: tuple(theirs.shape) for name, theirs in rows.items()}
        if given != expected:
            raise ValueError(f"rows to enqueue must be {expected}, got {given}")
        new = torch.arange(max(len(ids) - self.size, 0), len(ids), device=self.ids.device)
        slots = (self.pointer + new) % self.size
        for name, mine in self.rows.items():
            mine.index_copy_(0, slots, rows[name].detach()[-self.size :].to(mine))
        self.ids.index_copy_(0, slots, ids[-self.size :].to(self.ids))
        self.pointer.add_(len(ids)).remainder_(self.size)
        self.filled.add_(len(ids)).clamp_(max=self.size)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        rows = {f"rows.{name}": mine for name, mine in self.rows.items()}
        return {"ids": self.ids, "pointer": self.pointer, "filled": self.filled, **rows}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Take a state back, in place.

        Raises:
            CheckpointError: the state has other names, shapes or dtypes.
        """
        copy_state(self.state_dict(), state_dict, "queues")
