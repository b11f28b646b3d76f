"""Make a store's tensors, and restore them from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewtags.errors import CheckpointError

NUMPY = {torch.int8: np.int8, torch.uint8: np.uint8, torch.float16: np.float16, torch.float32: np.float32}


def lazy_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None, path: Path | None = None
) -> Tensor:
    """Make a tensor of zeros (int8, uint8, float16 or float32); on the CPU, memory is only allocated as it is written.

    `path` is a new file to memory-map (sparse); only on the CPU.
    """
    on_cpu = device is None or device.type == "cpu"
    assert on_cpu or path is None, f"a file cannot be mapped to {device}"
    if not on_cpu:
        return torch.zeros(shape, dtype=dtype, device=device)
    if path is None or 0 in shape:  # an empty file cannot be mapped
        return torch.from_numpy(np.zeros(shape, NUMPY[dtype]))  # torch.zeros writes every page
    path.parent.mkdir(parents=True, exist_ok=True)
    return torch.from_numpy(np.memmap(path, dtype=NUMPY[dtype], mode="w+", shape=shape))


def copy_state(own: Mapping[str, Tensor], given: Mapping[str, Tensor], owner: str) -> None:
    """Copy `given` into the tensors `own`, in place, so that memory maps stay memory maps.

    Raises CheckpointError, before anything is copied, if names, shapes or dtypes differ.
    """
    if own.keys() != given.keys():
        raise CheckpointError(
            f"the checkpoint contains {sorted(given)} for {owner}, this run keeps {sorted(own)}. "
            "Resume with the settings the checkpoint was written with."
        )
    for name, mine in own.items():
        theirs = given[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise CheckpointError(
                f"{owner}.{name} is {_kind(theirs)} in the checkpoint and {_kind(mine)} in this run. "
                "Resume with the settings, data and number of processes the checkpoint was written with."
            )
    for name, mine in own.items():
        mine.copy_(given[name])


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
