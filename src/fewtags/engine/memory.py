"""Refuse a run whose stores do not fit into memory or on the disk, before they are allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fewtags.check.check import HeatmapNeed
from fewtags.engine.machine import free_disk, free_memory, share_of_images, torch_device
from fewtags.errors import ConfigError
from fewtags.stores.heatmap_size import HeatmapPlan, heatmap_bytes

if TYPE_CHECKING:
    from fewtags.objectives.base import StoreMemory


def refuse_large_stores(
    stores: Sequence[StoreMemory], samples: int, classes: int, *, out: Path | None = None, cpu: bool = False
) -> None:
    """Compare the stores of an objective (`Objective.memory`) with the free memory.

    The stores may use half of the free memory, in their order: of each GPU for the images of its process, of main
    memory for the images of all processes on the machine. On the disk of `out` they may use a third of the free space:
    while a checkpoint is written, the previous one still exists.

    Raises:
        ConfigError: a store does not fit; its remedy is named.
    """
    if not stores:
        return
    device = torch_device(cpu)
    share = share_of_images(device)
    owned = math.ceil(samples * share)
    owner = "" if share == 1 else f" of this {'GPU' if device.type == 'cuda' else 'machine'}"
    free, beside = free_memory(device) // 2, ""
    for store in stores:
        if store.on_disk:
            images, limit, whose, where = samples, free_disk(out or Path.cwd()) // 3, "", " of the disk"
        else:
            images, limit, whose, where = owned, free, owner, beside
        needed = store.size(images)
        if needed > limit:
            raise ConfigError(
                f"{store.name} of {images:,} images{whose} and {classes:,} classes take {needed / 1e9:.1f} GB, and "
                f"{limit / 1e9:.1f} GB{where} may be used: {store.remedy(images, limit)}"
            )
        if not store.on_disk:
            free -= needed
            beside = f"{beside} and" if beside else " beside"
            beside += f" {needed / 1e9:.1f} GB of {store.name}"


def heatmap_need(grid: tuple[int, int]) -> HeatmapNeed:
    """Return for `check` the size of dense or top-k heatmaps, and half of the free memory as the limit."""

    def needed(samples: int, classes: int, top_k: int | None) -> int:
        return heatmap_bytes(samples, classes, grid, HeatmapPlan(top_k=top_k))

    return HeatmapNeed(needed, free_memory() // 2)
