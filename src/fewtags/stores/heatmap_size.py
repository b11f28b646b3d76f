"""Settings and size of stored heatmaps. Torch is not imported: `check` compares the size with the free memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

Precision = Literal["uint8", "float16"]
Rounding = Literal["nearest", "stochastic"]

# Each cell of the net's maps is 2 x 2 cells of a heatmap (W = 2 G, section 3.5). With crops of at least a quarter of
# the image, a cell of the net then covers one to two cells of the heatmap, so bilinear needs no antialiasing.
FINER = 2
VALUE_BYTES: Mapping[Precision, int] = {"uint8": 1, "float16": 2}
VISIT_BYTES = 4
"""Bytes of the number of visits of an image."""


@final
@dataclass(frozen=True, kw_only=True)
class HeatmapPlan:
    """Settings of a `HeatmapStore`.

    Attributes:
        momentum: mu, in 0..1; at most 0.996 with `corrected`, because visits are counted up to 255.
        top_k: heatmaps per image; None (or at least C) for all classes. The other classes read as 0.
        dtype: "uint8" (levels of 1/255) or "float16".
        rounding: of uint8. "nearest" ignores changes below half a level, so a cell can stop up to 1 % short of a
            constant target. "stochastic" is correct on average.
        corrected: use mu = min(mu, n / (n + 1)) in a cell that was seen n times, and leave out cells never seen. Not in
            the paper, where the start value 1 of annotated classes lasts long in cells that crops rarely show: after
            25 epochs of crops of area U(.25, 1) about .4 of it remains at an edge, .64 in a corner.
        seed: of the stochastic rounding.
    """

    momentum: float = 0.8
    top_k: int | None = None
    dtype: Precision = "uint8"
    rounding: Rounding = "nearest"
    corrected: bool = False
    seed: int = 0

    def kept(self, classes: int) -> int:
        """K: heatmaps per image."""
        return classes if self.top_k is None else min(self.top_k, classes)


def heatmap_bytes(samples: int, classes: int, grid: tuple[int, int], plan: HeatmapPlan) -> int:
    """Return the bytes of a `HeatmapStore` for `samples` images, over all processes.

    >>> round(heatmap_bytes(65_665, 80, (14, 14), HeatmapPlan()) / 1e9, 2)  # COCO, single-positive training set
    4.12
    >>> round(heatmap_bytes(1_281_167, 1000, (7, 7), HeatmapPlan(top_k=10)) / 1e9, 2)  # ImageNet: the paper's 2.5 GB
    2.54
    """
    kept, cells = plan.kept(classes), FINER * grid[0] * FINER * grid[1]
    maps = kept * cells * VALUE_BYTES[plan.dtype]
    ids = kept * id_bytes(classes) if kept < classes else 0
    return samples * (maps + ids + (cells if plan.corrected else 0) + VISIT_BYTES)


def id_bytes(classes: int) -> int:
    """Bytes of the number of a class: 2 up to 32,768 classes, else 4."""
    return 2 if classes <= 2**15 else 4
