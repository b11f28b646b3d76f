"""What surrounds a step of training: mixed precision, random numbers of its own, and kernels that repeat themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from fewtags.nets.precision import mixed_precision
from fewtags.nets.spatial import Output

# What cuBLAS may use as scratch; it repeats itself with a fixed one only, and torch reads this to know.
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@final
class Autocast(nn.Module):
    """A net whose forward pass runs in mixed precision and whose outputs are float32 again.

    Accelerate can do this too, by patching `forward` of the module itself, which then also changes evaluation and does
    not survive a second stage.
    """

    def __init__(self, module: nn.Module, device_type: str, precision: str) -> None:
        super().__init__()
        self.module, self.device_type, self.precision = module, device_type, precision

    def forward(self, *inputs: Tensor) -> Output | tuple[Tensor, ...]:
        """The net's output, in float32: an `Output`, or of an encoder the features of every view."""
        with mixed_precision(self.device_type, self.precision):
            out: Output | tuple[Tensor, ...] = self.module(*inputs)
        if self.precision == "no":
            return out
        values = [value.float() for value in out]
        return Output(*values) if isinstance(out, Output) else tuple(values)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The global generators seeded for the length of a `with` block, and put back after it.

    Dropout and stochastic depth draw from nothing else.
    """
    # fork_rng knows no MPS, which has one generator and no device numbers.
    before = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # Not torch.manual_seed: it formats stack traces for devices that are not there, at every step.
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            if device.type == "mps":
                torch.mps.manual_seed(seed)
            yield
    finally:
        if before is not None:
            torch.mps.set_rng_state(before)


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """The same work gives the same bits on a CUDA device, for the length of a `with` block; settings are put back.

    cuDNN chooses its kernels by rule instead of by a race, and torch takes the deterministic one of its own where there
    is one. Where there is none it warns: such a net trains, but a resumed run may differ in the last bits. CPUs need
    none of this.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    told = (cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory)
    strict = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(WORKSPACE)
    try:
        # Filling memory before it is written would only take time.
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = True, False, False
        torch.use_deterministic_algorithms(True, warn_only=not strict or lenient)
        os.environ.setdefault(WORKSPACE, ":4096:8")
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = told
        torch.use_deterministic_algorithms(strict, warn_only=lenient)
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
