"""Make a store's tensors, and restore them from a checkpoint."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from fewtags.errors import CheckpointError
from fewtags.files import writing

NUMPY = {torch.int8: np.int8, torch.uint8: np.uint8, torch.float16: np.float16, torch.float32: np.float32}


def lazy_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None, path: Path | None = None
) -> Tensor:
    """Make a tensor of zeros (int8, uint8, float16 or float32); on the CPU, memory is only allocated as it is written.

    `path` is a new file to memory-map; only on the CPU. Its space on the disk is reserved: if the disk were full when a
    page is written, the system would end the process without an error.

    Raises:
        DiskError: there is no space for the file.
    """
    on_cpu = device is None or device.type == "cpu"
    assert on_cpu or path is None, f"a file cannot be mapped to {device}"
    if not on_cpu:
        return torch.zeros(shape, dtype=dtype, device=device)
    if path is None or 0 in shape:  # an empty file cannot be mapped
        return torch.from_numpy(np.zeros(shape, NUMPY[dtype]))  # torch.zeros writes every page
    with writing(path, size := math.prod(shape) * dtype.itemsize):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb") as file:
                _reserve(file, size)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return torch.from_numpy(np.memmap(path, dtype=NUMPY[dtype], mode="r+", shape=shape))


def _reserve(file: BinaryIO, size: int) -> None:
    """Fill a new file with zeros that have room on the disk."""
    if sys.platform == "linux":
        os.posix_fallocate(file.fileno(), 0, size)
        return
    block = bytes(1 << 20)
    for start in range(0, size, len(block)):
        file.write(block[: size - start])


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
