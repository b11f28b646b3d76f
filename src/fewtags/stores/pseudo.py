"""Pseudo-labels that a method generates; they never enter the label table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

import torch
from jaxtyping import Int8, Int64
from torch import Tensor

from fewtags.labels import Label, LabelMatrix
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state, lazy_zeros

ROWS_AT_ONCE = 4096


@final
class PseudoCount(NamedTuple):
    """Counts of `PseudoLabels.judge`: all pseudo-labels, those with a known truth, and those that are true."""

    positive: int
    judged_positive: int
    right_positive: int
    negative: int
    judged_negative: int
    right_negative: int


@final
class PseudoLabels:
    """The last pseudo-label of every (sample, class), int8 [rows, C], values of `Label`; UNKNOWN for none.

    Args:
        samples: N, over all processes.
        classes: C.
        shard: the rows that this process owns and stores.
        device: of the rows.
    """

    def __init__(
        self, samples: int, classes: int, *, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        self.samples, self.shard = samples, shard
        self.values = lazy_zeros((shard.rows(samples), classes), torch.int8, device)

    def write(self, index: Int64[Tensor, "b"], labels: Int8[Tensor, "b c"]) -> None:
        """Replace the labels of samples `index` (global, owned by this process)."""
        self.values[self.shard.local(index).to(self.values.device)] = labels.to(self.values.device)

    def read(self, index: Int64[Tensor, "b"]) -> Int8[Tensor, "b c"]:
        """Return the labels of samples `index` (global, owned by this process)."""
        return self.values[self.shard.local(index).to(self.values.device)].to(index.device)

    def judge(self, truth: LabelMatrix | None) -> PseudoCount:
        """Count pseudo-labels and compare them with known complete labels. Collective: every rank must call it."""
        owned = self.shard.owned(self.samples)
        total = torch.zeros(len(PseudoCount._fields), dtype=torch.int64)
        for first in range(0, len(owned), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            values = self.values[rows].cpu()
            true = torch.zeros_like(values) if truth is None else torch.from_numpy(truth.rows(owned[rows].numpy()))
            for i, state in enumerate((Label.POSITIVE, Label.NEGATIVE)):
                given = values == state
                counts = [given.sum(), (given & (true != Label.UNKNOWN)).sum(), (given & (true == state)).sum()]
                total[3 * i : 3 * i + 3] += torch.stack(counts)
        return PseudoCount(*self.shard.sum(total.to(self.values.device)).tolist())

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensor itself, not a copy."""
        return {"values": self.values}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "pseudo-labels")
