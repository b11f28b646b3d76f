"""What surrounds one forward pass of training: mixed precision, and random numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from fewtags.nets.spatial import Output


@final
class Autocast(nn.Module):
    """A net whose forward pass runs in mixed precision and whose outputs are float32 again.

    Accelerate can do this too, by patching `forward` of the module itself, which then also changes evaluation and does
    not survive a second stage.
    """

    def __init__(self, module: nn.Module, device_type: str, precision: str) -> None:
        super().__init__()
        self.module, self.device_type = module, device_type
        self.dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    def forward(self, images: Tensor) -> Output:
        """The net's output, in float32."""
        if self.dtype is None:
            out: Output = self.module(images)
            return out
        with torch.autocast(self.device_type, self.dtype):
            out = self.module(images)
        return Output(*(value.float() for value in out))


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The global generators seeded for the length of a `with` block, and put back after it.

    Dropout and stochastic depth draw from nothing else.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Not torch.manual_seed: it formats stack traces for devices that are not there, at every step.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
