"""One value for every (sample, class): marks, soft labels, and labels that are learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fewtags.labels import Label, LabelMatrix
from fewtags.seeds import seed_of
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state, lazy_zeros

ROWS_AT_ONCE = 4096
SMALLEST = 2.0**-24  # of float16; a soft label of 0 is stored as this, because 0 means that there is none


@final
class MarkedCells:
    """A set of cells, int8 [rows, C], 1 for a cell that is in it.

    Args:
        samples: N, over all processes.
        classes: C.
        shard: the rows that this process owns and stores.
        device: of the rows; inputs and outputs stay on the caller's device.
    """

    def __init__(
        self, samples: int, classes: int, *, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        self.shard = shard
        self.values = lazy_zeros((shard.rows(samples), classes), torch.int8, device)

    def read(self, index: Int64[Tensor, "b"]) -> Bool[Tensor, "b c"]:
        """Return which cells of samples `index` (global, owned by this process) are in the set."""
        return self.values[self.shard.local(index).to(self.values.device)].to(index.device) != 0

    def add(self, index: Int64[Tensor, "b"], cells: Bool[Tensor, "b c"]) -> None:
        """Add cells of samples `index`, which must not repeat one."""
        rows = self.shard.local(index).to(self.values.device)
        self.values[rows] |= cells.to(self.values)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensor itself, not a copy."""
        return {"values": self.values}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "marked cells")


@final
class SoftLabels:
    """Probabilities of some cells, float16 [rows, C]; 0 means that there is none. Arguments as of `MarkedCells`."""

    def __init__(
        self, samples: int, classes: int, *, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        self.shard = shard
        self.values = lazy_zeros((shard.rows(samples), classes), torch.float16, device)

    def read(self, index: Int64[Tensor, "b"]) -> Float[Tensor, "b c"]:
        """Return the soft labels of samples `index` (global, owned by this process), float32; NaN for none."""
        values = self.values[self.shard.local(index).to(self.values.device)].to(index.device).float()
        return values.masked_fill(values == 0, torch.nan)

    def write(self, columns: slice, prob: Float[Tensor, "rows k"], cells: Bool[Tensor, "rows k"]) -> None:
        """Set the soft labels of own `cells` in a block of classes to `prob`."""
        new = prob.to(self.values.device).clamp(min=SMALLEST).half()
        block = self.values[:, columns]
        block.copy_(torch.where(cells.to(self.values.device), new, block))

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensor itself, not a copy."""
        return {"values": self.values}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "soft labels")


@final
class EstimatedLabels:
    """Logits of labels that are learned, one for every (sample, class): the estimator of ROLE (Cole et al., CVPR 2021).

    Each logit starts at random, between those of the probabilities 0.4 and 0.6; that of a known positive at the logit
    of 0.995, that of a known negative at the logit of 0.005. Adam moves all rows in every step, also those without a
    gradient, as in the public code.

    Args:
        labels: the training labels.
        seed: of the start values.
        shard: the rows that this process owns and stores.
        device: of the rows; inputs and outputs stay on the caller's device.
    """

    def __init__(
        self, labels: LabelMatrix, *, seed: int = 0, shard: Shard = SINGLE_PROCESS, device: torch.device | None = None
    ) -> None:
        samples, classes = labels.shape
        self.shard = shard
        self.values = torch.zeros(shard.rows(samples), classes, device=device)
        self._adam = torch.optim.Adam([self.values], foreach=False)
        moments = {name: torch.zeros_like(self.values) for name in ("exp_avg", "exp_avg_sq")}
        self._adam.state[self.values] = {"step": torch.zeros(()), **moments}
        if self.values.device.type != "meta":
            self._start(labels, seed)

    def _start(self, labels: LabelMatrix, seed: int) -> None:
        samples, classes = labels.shape
        known, spread = _logit(0.995), _logit(0.6)
        for first in range(0, samples, ROWS_AT_ONCE):
            index = torch.arange(first, min(first + ROWS_AT_ONCE, samples))
            generator = torch.Generator().manual_seed(seed_of(seed, first))
            start = spread * (2 * torch.rand(len(index), classes, generator=generator) - 1)
            mine = index % self.shard.world == self.shard.rank
            index, start = index[mine], start[mine]
            rows = torch.from_numpy(labels.rows(index.numpy()))
            start[rows == Label.POSITIVE], start[rows == Label.NEGATIVE] = known, -known
            self.values[self.shard.local(index).to(self.values.device)] = start.to(self.values)

    def read(self, index: Int64[Tensor, "b"]) -> Float[Tensor, "b c"]:
        """Return the logits of samples `index` (global, owned by this process), a copy."""
        return self.values[self.shard.local(index).to(self.values.device)].to(index.device)

    def update(self, index: Int64[Tensor, "b"], gradient: Float[Tensor, "b c"], lr: float) -> None:
        """Take a step of Adam with the gradient of samples `index`, which must not repeat one; 0 for all others."""
        self.values.grad = torch.zeros_like(self.values)
        self.values.grad[self.shard.local(index).to(self.values.device)] = gradient.to(self.values)
        self._adam.param_groups[0]["lr"] = lr
        self._adam.step()
        self.values.grad = None

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves, not copies."""
        return {"values": self.values, **self._adam.state[self.values]}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "estimated labels")


def _logit(probability: float) -> float:
    return float(torch.tensor(probability, dtype=torch.float64).logit())


def lowest(
    scores: Float[Tensor, "rows k"],
    among: Bool[Tensor, "rows k"],
    counts: Int64[Tensor, "k"],
    samples: int,
    shard: Shard = SINGLE_PROCESS,
) -> Bool[Tensor, "rows k"]:
    """Mark the own cells among the `counts` lowest scores of each class over all processes. Collective.

    Cells that tie with the last one are marked, too. `counts` may be larger than the number of cells `among`.
    """
    masked = scores.masked_fill(~among, torch.inf)
    everywhere = shard.collect(masked.contiguous(), samples, 0)
    cut = torch.zeros(scores.shape[1], dtype=scores.dtype, device=scores.device)
    if everywhere is not None:
        place = (counts.to(scores.device) - 1).clamp(0, samples - 1)
        cut = everywhere.sort(0).values.gather(0, place[None])[0]
        cut = torch.where(counts.to(scores.device) > 0, cut, -torch.inf)
    # Only process 0 has a cut; the others add 0.
    cut = shard.sum(cut) if shard.world > 1 else cut
    return among & (masked <= cut)
