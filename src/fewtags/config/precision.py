"""The arithmetic precision of a net, in training and in use."""

from __future__ import annotations

from typing import Literal, get_args

from fewtags.errors import ConfigError

Precision = Literal["no", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def choose_precision(wanted: Precision | None, device: str, bf16: bool, setting: str) -> Precision:
    """Return the wanted precision; without one, bf16 on a GPU that supports it, and else "no", which is float32.

    Args:
        wanted: what the user asks for.
        device: "cpu", "cuda" or "mps".
        bf16: whether it is a GPU that supports bf16.
        setting: the wanted precision as the user wrote it, for messages.

    Raises:
        ConfigError: fp16 on a CPU.
    """
    if wanted == "fp16" and device == "cpu":
        raise ConfigError(f"{setting} needs a GPU; use bf16 or no.")
    return wanted or ("bf16" if device == "cuda" and bf16 else "no")
