"""Scores of a teacher for the training images. They never change, so they are not a part of an objective's state."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from fewtags.stores.shard import SINGLE_PROCESS, Shard

NO_SCORE = torch.nan
"""The score of a cell that the teacher says nothing about."""


def teacher_bytes(samples: int, classes: int) -> int:
    """Return the bytes of the `TeacherScores` of all images."""
    return 2 * samples * classes


@final
class TeacherScores:
    """A score in 0..1 for every (sample, class), float16 [rows, C]; NaN for none.

    Args:
        values: float16 [N, C], of all samples, on the CPU; may be a memory map.
        shard: the rows that this process owns and stores.
        device: of the rows; "meta" stores nothing.
    """

    def __init__(
        self, values: NDArray[np.float16], *, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        self.shard = shard
        if device is not None and device.type == "meta":
            self.values = torch.empty((shard.rows(len(values)), values.shape[1]), dtype=torch.float16, device=device)
            return
        own = np.array(values[shard.rank :: shard.world], np.float16)
        self.values = torch.from_numpy(own).to(device or torch.device("cpu"))

    def read(self, index: Int64[Tensor, "b"]) -> Float[Tensor, "b c"]:
        """Return the scores of samples `index` (global, owned by this process), float32."""
        return self.values[self.shard.local(index).to(self.values.device)].to(index.device).float()
