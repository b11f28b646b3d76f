"""Arithmetic precision of a forward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

DTYPES = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def mixed_precision(device_type: str, precision: str) -> AbstractContextManager[Any]:
    """Autocast for "bf16" and "fp16"; nothing for "no"."""
    dtype = DTYPES[precision]
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype)
