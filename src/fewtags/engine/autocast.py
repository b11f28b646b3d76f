"""Mixed precision, seeded random numbers and deterministic kernels around a training step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from fewtags.nets.precision import mixed_precision
from fewtags.nets.spatial import Output

# Sets cuBLAS's scratch memory. cuBLAS is deterministic only with a fixed size; torch checks this variable.
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@final
class Autocast(nn.Module):
    """A net whose forward pass runs in mixed precision and whose outputs are float32 again.

    Accelerate would patch `forward` of the module itself, which would also change evaluation and fail in a second
    stage.
    """

    def __init__(self, module: nn.Module, device_type: str, precision: str) -> None:
        super().__init__()
        self.module, self.device_type, self.precision = module, device_type, precision

    def forward(self, *inputs: Tensor) -> Output | tuple[Tensor, ...]:
        """Return the net's output in float32: an `Output`, or the features of every view from an encoder."""
        with mixed_precision(self.device_type, self.precision):
            out: Output | tuple[Tensor, ...] = self.module(*inputs)
        if self.precision == "no":
            return out
        values = [value.float() for value in out]
        return Output(*values) if isinstance(out, Output) else tuple(values)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global generators inside a `with` block and restore them after it.

    Dropout and stochastic depth use no other generators.
    """
    # fork_rng does not support MPS, which has one generator and no device numbers.
    before = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # torch.manual_seed is slow: at every step it formats stack traces for devices that do not exist.
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
    """Make a CUDA device deterministic inside a `with` block; the previous settings are restored after it.

    cuDNN chooses kernels by rule instead of by timing, and torch uses its deterministic kernels. torch warns if an
    operation has none: then a resumed run may differ in the last bits. CPUs are deterministic already.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    before = (cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory)
    strict = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(WORKSPACE)
    try:
        # Filling memory that is overwritten anyway only takes time.
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = True, False, False
        torch.use_deterministic_algorithms(True, warn_only=not strict or lenient)
        os.environ.setdefault(WORKSPACE, ":4096:8")
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(strict, warn_only=lenient)
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
