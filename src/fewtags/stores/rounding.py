"""Rounding of probabilities to stored numbers, and the order of ties, with keyed random numbers (`fewtags.seeds`)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

_WORD = 0xFFFFFFFF


def round_nearest(level: Float[Tensor, "*s"]) -> UInt8[Tensor, "*s"]:
    """Round levels 0..255 to the nearest integer, halves to even.

    A plain cast would truncate, and an average of stored levels would end up to 5/255 too low.
    """
    return level.round().clamp(0, 255).to(torch.uint8)


def round_stochastic(level: Float[Tensor, "b *s"], key: Int64[Tensor, "b"]) -> UInt8[Tensor, "b *s"]:
    """Round levels 0..255 up or down at random, so that the expected value is the level.

    Each of the b items has a key; the same key and shape give the same result on any device.
    """
    cells = torch.arange(level[0].numel() if len(level) else 0, device=level.device)
    draw = _scramble(_scramble(key)[:, None] ^ cells).view(level.shape)
    # 24 bits are exact in float32. Adding the draw to the level instead could round up to the next integer.
    uniform = (draw >> 8).float() / 2**24
    whole = level.floor()
    return (whole + (uniform >= 1 - (level - whole))).clamp(0, 255).to(torch.uint8)


def sample_key(seed: int, index: Int64[Tensor, "b"], visit: Int64[Tensor, "b"]) -> Int64[Tensor, "b"]:
    """Return a key for each (seed, sample, visit of that sample)."""
    start = torch.full_like(index, seed & _WORD)
    return _scramble(_scramble(_scramble(start) ^ (index & _WORD)) ^ visit)


def tie_key(index: Int64[Tensor, "*#s"], class_: Int64[Tensor, "*#s"]) -> Int64[Tensor, "*#s"]:
    """Return a hash of (image, class) that orders equal scores, 0..2^32 - 1; the shapes are broadcast.

    Two images (below 2^32) have different keys in a class, and two classes have different keys in an image. Without a
    hash, the first images of a file would win all ties.
    """
    return _scramble(_scramble(class_ + 1) ^ index)  # 0 is hashed to 0


def _scramble(word: Int64[Tensor, "*#s"]) -> Int64[Tensor, "*#s"]:
    """A 32-bit integer hash (xorshift-multiply, three rounds) in int64.

    Both multipliers are below 2^31, so no product overflows and every device gives the same result.
    """
    word = word & _WORD
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & _WORD
    word = ((word ^ (word >> 15)) * 0x735A2D97) & _WORD
    return word ^ (word >> 15)
