"""The running averages of score maps (H of Verelst et al., WACV 2023): of a running training, and of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.engine.checkpoint import CheckpointFolder, reading_record
from fewtags.engine.tensor_files import load_part
from fewtags.errors import CheckpointError
from fewtags.labels import Label, LabelMatrix
from fewtags.objectives.base import Part
from fewtags.stores.heatmaps import HeatmapStore

PART = "heatmaps"
"""Name of the part, and of its files in a checkpoint."""


def store_of(parts: Mapping[str, Part]) -> HeatmapStore | None:
    """The running averages of a training; None if its method keeps none."""
    return next((part for part in parts.values() if isinstance(part, HeatmapStore)), None)


def averages_of(store: HeatmapStore, index: int, labels: LabelMatrix) -> NDArray[np.float32] | None:
    """The averages [C, H, W] of a training photo, in the photo's frame; None if another process keeps them."""
    if index % store.shard.world != store.shard.rank:
        return None
    device = store.values.device
    whole = torch.eye(2, 3, device=device)[None]
    known = torch.from_numpy(labels.rows([index])).to(device)
    maps, _ = store.read(torch.tensor([index], device=device), known, whole, store.size)
    found: NDArray[np.float32] = maps[0].cpu().numpy()
    return found


def saved_averages(run: Path, index: Sequence[int], labels: LabelMatrix) -> list[NDArray[np.float32]]:
    """The averages [C, H, W] of training photos in the last checkpoint of a run; 0 for classes without a heatmap.

    A photo that no average was taken of has the start values: 1 for its annotated classes, 0 for the others.

    Raises:
        CheckpointError: there is no checkpoint, its method keeps no averages, or a file is damaged.
    """
    checkpoint = CheckpointFolder(run / "checkpoints").last()
    folders = [] if checkpoint is None else sorted(checkpoint.glob("parts-*"), key=lambda path: int(path.name[6:]))
    if not folders:
        raise CheckpointError(f"{run} has no checkpoint, which would have its running averages.")
    if not (folders[0] / f"{PART}.pt").exists():
        raise CheckpointError(
            f"{run} keeps no running averages of maps: its method has none, or objective.scl_weight is 0 (a weight of "
            "1e-9 keeps them and changes nothing else)."
        )
    states = [load_part(folder, PART) for folder in folders]
    found = []
    with reading_record(folders[0]):
        for number in index:
            state, row = states[number % len(states)], number // len(states)
            values, known = state["values"][row], labels.rows([number])[0]
            ids = np.arange(labels.shape[1]) if "class_ids" not in state else state["class_ids"][row].numpy()
            maps = np.zeros((labels.shape[1], *values.shape[1:]), np.float32)
            if state["visits"][row] > 0:
                maps[ids] = values.numpy().astype(np.float32) / (255 if values.dtype == torch.uint8 else 1)
            else:
                maps[ids[known[ids] == Label.POSITIVE]] = 1.0
            found.append(maps)
    return found
