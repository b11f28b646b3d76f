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

    MLS takes labels from one queue and logits from another. One pointer and one `enqueue` for all kinds keep the queues
    aligned; read all of them before `enqueue`. Empty slots contain zeros and are never used. No operation waits for a
    GPU. With several processes, all of them must enqueue the same rows in the same order, gathered from all.

    Args:
        size: D, slots of each queue, at least 1.
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
        """Return the queue itself, float32, in no order of age. The next `enqueue` changes it."""
        return self.rows[name]

    def counted(self) -> Bool[Tensor, "D"]:
        """Mask of the filled slots."""
        return torch.arange(self.size, device=self.ids.device) < self.filled

    def others(self, index: Int64[Tensor, "b"]) -> Bool[Tensor, "b D"]:
        """Mask of the filled slots of other images, for each of the images `index` (numbers as in `enqueue`)."""
        return self.counted() & (self.ids != index.to(self.ids)[:, None])

    def enqueue(self, ids: Int64[Tensor, "n"], rows: Mapping[str, Tensor]) -> None:
        """Replace the oldest rows. Of more than `size` rows only the last `size` are stored, without gradient.

        Raises:
            ValueError: kinds, numbers or lengths of the rows do not fit these queues; nothing has been written then.
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
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "queues")
