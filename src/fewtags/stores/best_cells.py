"""Cells that may be among the best of their class, found in one pass over the rows of running averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.labels import Label, LabelMatrix
from fewtags.stores.rows import ScoreStore

SAMPLE = 8192
"""Rows, of all processes, whose scores say where to look."""
LARGEST_SHARE = 1 / 8
"""A class is not searched if more of its cells would be found."""
_CPU_CHUNK, _GPU_CHUNK = 2**19, 2**26
"""Cells that are compared at a time; on a CPU, they stay in the cache."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class BestCells:
    """The cells of some classes whose score is at least a floor of the class, in the order of the classes.

    Attributes:
        image: int64 [m], global index.
        class_: int64 [m], ascending.
        score: float32 [m].
        label: int8 [m].
        searched: bool [C], the classes whose cells are here.
    """

    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    score: NDArray[np.float32]
    label: NDArray[np.int8]
    searched: NDArray[np.bool_]

    def parts(self) -> NDArray[np.int64]:
        """The place of the first cell of each class, and of the end, int64 [C + 1]."""
        return np.searchsorted(self.class_, np.arange(len(self.searched) + 1))


def best_cells(store: ScoreStore, labels: LabelMatrix, counts: NDArray[np.int64]) -> BestCells:
    """Return cells of which those of the first `counts` images of each class, [C], most likely are a part.

    The floor of a class is a quantile of a sample, low enough that in about 1 of 1,000 cases fewer cells than wanted
    are above it. Who needs all of the best must count them. Collective: every rank must call it.
    """
    floor = _floors(store, counts)
    flat = _at_least(store, floor)
    local, class_ = np.divmod(flat, store.classes)
    score = _scores_at(store.values, flat)
    owned = store.shard.owned(store.samples).numpy()
    image = owned[local]
    label = labels.at(image, class_)
    if not store.visits.all():  # annotated positives start with the score 1
        new = (store.visits == 0).cpu().numpy()
        kept = ~(new[local] & (label == Label.POSITIVE))
        row, started = labels.positives(owned[new])
        image = np.concatenate([image[kept], owned[new][row]])
        class_ = np.concatenate([class_[kept], started])
        score = np.concatenate([score[kept], np.ones(len(row), np.float32)])
        label = np.concatenate([label[kept], np.full(len(row), Label.POSITIVE, np.int8)])
    image, class_, score, label = (_of_all(store, column) for column in (image, class_, score, label))
    small = class_.astype(np.uint16) if store.classes <= 1 << 16 else class_  # sorted by radix
    order = np.argsort(small, kind="stable")
    columns = {"image": image[order], "class_": class_[order], "score": score[order], "label": label[order]}
    return BestCells(**columns, searched=floor < np.inf)


def _floors(store: ScoreStore, counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """The lowest score that is looked for in each class, float32 [C]; infinity for classes that are not searched."""
    own = store.values[:: max(1, store.samples // SAMPLE)]
    sample = store.shard.concatenate(own)[0].cpu().numpy()
    # The bits of numbers from 0 on have the order of the numbers, and are sorted by radix.
    ordered = np.sort(sample.view(np.int16), 0, kind="stable").view(np.float16) if _half(sample) else np.sort(sample, 0)
    expected = counts * (len(sample) / max(1, store.samples))
    place = np.ceil(expected + 3 * np.sqrt(expected) + 3).astype(np.int64)
    few = (counts > 0) & (place <= len(sample) * LARGEST_SHARE)
    floor = ordered[len(sample) - np.minimum(place, len(sample)), np.arange(store.classes)].astype(np.float32)
    few &= (sample >= floor.astype(sample.dtype)).mean(0) <= LARGEST_SHARE  # equal scores
    return np.where(few, floor, np.float32(np.inf))


def _at_least(store: ScoreStore, floor: NDArray[np.float32]) -> NDArray[np.int64]:
    """The cells of this process whose score is at least the floor of their class: positions in its rows, ascending."""
    values, classes, found = store.values, store.classes, [np.empty(0, np.int64)]
    if np.isinf(floor).all():
        return found[0]
    on_cpu = values.device.type == "cpu"
    step = max(1, (_CPU_CHUNK if on_cpu else _GPU_CHUNK) // classes)
    if on_cpu:
        array, low = values.numpy(), floor.astype(values.numpy().dtype)
        if _half(array):
            array, low = array.view(np.int16), low.view(np.int16)
        firsts = range(0, len(array), step)
        found.extend(np.flatnonzero(array[first : first + step] >= low) + first * classes for first in firsts)
        return np.concatenate(found)
    lowest = torch.from_numpy(floor).to(values)
    for first in range(0, len(values), step):
        above = (values[first : first + step] >= lowest).flatten().nonzero()[:, 0]
        found.append(above.cpu().numpy() + first * classes)
    return np.concatenate(found)


def _scores_at(values: Tensor, flat: NDArray[np.int64]) -> NDArray[np.float32]:
    if values.device.type == "cpu":  # a third of torch's time
        return np.take(values.numpy().reshape(-1), flat).astype(np.float32)
    found: NDArray[np.float32] = values.view(-1)[torch.from_numpy(flat).to(values.device)].float().cpu().numpy()
    return found


def _half(array: NDArray[np.floating]) -> bool:
    return array.dtype == np.float16


def _of_all(store: ScoreStore, own: NDArray[Any]) -> NDArray[Any]:
    """The values of all processes."""
    if store.shard.world == 1:
        return own
    gathered: Tensor = store.shard.concatenate(torch.from_numpy(own).to(store.values.device))[0]
    everything: NDArray[Any] = gathered.cpu().numpy()
    return everything
