"""Placeholder while the net is being written."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """What a net says about a batch.

    Attributes:
        logits: [b, C], mean of `maps` over the grid.
        maps: [b, C, h, w], class logits per cell.
        features: [b, d, h, w], what the head saw.
    """

    logits: Tensor
    maps: Tensor
    features: Tensor
