"""Running averages of score maps in the image frame: H of the SCL paper (Verelst et al., WACV 2023), section 3.5."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from fewtags.batched_views import maps_to_crop, maps_to_image
from fewtags.labels import Label, LabelMatrix
from fewtags.stores.heatmap_size import FINER, HeatmapPlan, id_bytes
from fewtags.stores.rounding import round_nearest, round_stochastic, sample_key, tie_key
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.stores.state import copy_state, lazy_zeros


@final
class HeatmapStore:
    """One heatmap per (sample, class), or per (sample, one of its k best classes): the average over the crops seen.

    `update` moves the crop's score maps into the image frame and averages them into the cells that the crop shows;
    other cells do not change. `read` resamples the heatmaps to another crop. A row that was never updated reads as the
    paper's start value: 1 for annotated positives, 0 elsewhere.

    Args:
        samples: N, over all processes.
        classes: C.
        grid: (h, w) of the net's maps; heatmaps are (2 h, 2 w).
        plan: momentum, precision, dense or top-k.
        shard: the rows that this process owns and stores.
        device: of the rows; inputs and outputs stay on the caller's device. No operation waits for the net's own GPU.
        path: a new file to memory-map the heatmaps from; its space on the disk is reserved. Only on the CPU.
    """

    def __init__(
        self,
        samples: int,
        classes: int,
        grid: tuple[int, int],
        plan: HeatmapPlan,
        *,
        shard: Shard = SINGLE_PROCESS,
        device: torch.device | None = None,
        path: Path | None = None,
    ) -> None:
        self.samples, self.classes, self.plan, self.shard = samples, classes, plan, shard
        self.size = (FINER * grid[0], FINER * grid[1])
        rows, kept = shard.rows(samples), plan.kept(classes)
        self.values = lazy_zeros((rows, kept, *self.size), _dtype(plan), device, path)
        self._file: int | None = None
        if path is not None and path.exists() and hasattr(os, "posix_fadvise"):
            self._file = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)
        self.visits = torch.zeros(rows, dtype=torch.int32, device=device)
        self.class_ids = torch.zeros(rows, kept, dtype=_id_dtype(classes), device=device) if kept < classes else None
        self.cell_visits = lazy_zeros((rows, *self.size), torch.uint8, device) if plan.corrected else None

    def choose(self, scores: ScoreStore, labels: LabelMatrix) -> None:
        """Choose the k classes of each image that have heatmaps: annotated positives, then the highest scores.

        Equal scores are ordered by `tie_key`. Appendix G takes the ten highest scores after the warm-up, which need not
        include the annotated class. `labels` are those of all N images; none may have more than k positives.
        """
        if self.class_ids is None:
            return
        owned, kept = self.shard.owned(self.samples), self.class_ids.shape[1]
        done = 0
        for index in owned.split(max(1, 2**22 // self.classes)):
            known = torch.from_numpy(labels.rows(index.numpy())).to(scores.values.device)
            rank = scores.read(index, known) + 2 * (known == Label.POSITIVE)
            every = torch.arange(self.classes, device=rank.device)
            order = tie_key(index.to(rank.device)[:, None], every).argsort(1)
            place = torch.sort(rank.gather(1, order), dim=1, descending=True, stable=True).indices[:, :kept]
            best = order.gather(1, place)
            self.class_ids[done : done + len(index)] = best.sort(1).values.to(self.class_ids)
            done += len(index)

    def expect(self, index: Int64[Tensor, "b"]) -> None:
        """Ask the system to read the rows of these samples from the disk, without waiting; nothing in memory.

        What was written goes to the disk later, when the system likes.
        """
        if self._file is None or not len(self.values):
            return
        length = self.values[0].nbytes
        for row in self._rows(index).tolist():
            os.posix_fadvise(self._file, row * length, length, os.POSIX_FADV_WILLNEED)

    def read(
        self,
        index: Int64[Tensor, "b"],
        labels: Int8[Tensor, "b c"],
        views: Float[Tensor, "b 2 3"],
        size: tuple[int, int],
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b 1 h w"] | None]:
        """Resample the heatmaps to each view: resize(T(H)) of eq. (7), float32; 0 for classes without a heatmap.

        With `corrected`, the second result is the share of each cell that has been seen, as a weight of its loss; the
        first is the mean over that share.
        """
        rows = self._rows(index)
        ids = self._ids(rows, labels)
        maps = self._raw(rows, labels, ids).float() / _top(self.plan)
        if self.cell_visits is None:
            target, weight = maps_to_crop(maps, views, size), None
        else:
            seen = (self.cell_visits[rows].to(labels.device) > 0)[:, None].float()
            weight = maps_to_crop(seen, views, size)
            target = maps_to_crop(maps * seen, views, size) / weight.clamp(min=torch.finfo(weight.dtype).tiny)
        target = target.clamp(0, 1)  # interpolation weights may add up to a rounding error more than 1
        if ids is not None:
            everywhere = target.new_zeros(len(target), self.classes, *size)
            target = everywhere.scatter(1, ids[:, :, None, None].expand_as(target), target)
        return target, weight

    def stretched(
        self,
        target: Float[Tensor, "b c h w"],
        weight: Float[Tensor, "b 1 h w"] | None,
        chosen: Bool[Tensor, "b c"],
        index: Int64[Tensor, "b"],
        labels: Int8[Tensor, "b c"],
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h w"]]:
        """Stretch what `read` returned, so that each whole heatmap goes from 0 to 1; and the weight of each cell.

        The weight is that of `read` for the `chosen` cells of the label matrix, and 0 for the others, for rows that
        were never updated, and for heatmaps that are the same everywhere.
        """
        rows = self._rows(index)
        ids = self._ids(rows, labels)
        maps = (self._raw(rows, labels, ids).float() / _top(self.plan)).flatten(2)
        lowest, highest = maps, maps
        if self.cell_visits is not None:  # cells that no crop has shown have their start value
            unseen = (self.cell_visits[rows].to(labels.device) == 0).flatten(1)[:, None]
            lowest, highest = maps.masked_fill(unseen, torch.inf), maps.masked_fill(unseen, -torch.inf)
        low, high = lowest.amin(2), highest.amax(2)
        if ids is not None:
            low, high = (torch.zeros_like(chosen, dtype=low.dtype).scatter(1, ids, edge) for edge in (low, high))
        usable = chosen & (high > low) & (self.visits[rows] > 0).to(labels.device)[:, None]
        span, low = torch.where(usable, high - low, 1.0), torch.where(usable, low, 0.0)
        found = ((target - low[:, :, None, None]) / span[:, :, None, None]).clamp(0, 1)
        factor = usable[:, :, None, None].to(found.dtype).expand_as(found)
        return found, factor if weight is None else factor * weight

    def update(
        self,
        index: Int64[Tensor, "b"],
        labels: Int8[Tensor, "b c"],
        views: Float[Tensor, "b 2 3"],
        prob_maps: Float[Tensor, "b c h w"],
    ) -> None:
        """Average the probabilities F into the cells that each view shows; `index` must not repeat a sample."""
        rows = self._rows(index)
        ids = self._ids(rows, labels)
        prob_maps = prob_maps.float()
        if ids is not None:
            prob_maps = prob_maps.gather(1, ids[:, :, None, None].expand(-1, -1, *prob_maps.shape[2:]))
        new, visible = maps_to_image(prob_maps, views, self.size)
        raw = self._raw(rows, labels, ids)
        momentum: float | Tensor = self.plan.momentum
        if self.cell_visits is not None:
            seen = self.cell_visits[rows].to(labels.device)
            momentum = (seen.float() / (seen.float() + 1)).clamp(max=self.plan.momentum)[:, None]
            more = torch.where(visible[:, 0] & (seen < 255), seen + 1, seen)
            self.cell_visits[rows] = more.to(self.cell_visits.device)
        mixed = momentum * raw.float() + (1 - momentum) * (new * _top(self.plan))
        self.values[rows] = torch.where(visible, self._encode(mixed, index, rows), raw).to(self.values.device)
        self.visits[rows] += 1

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors themselves (possibly memory-mapped), not copies."""
        optional = {"class_ids": self.class_ids, "cell_visits": self.cell_visits}
        return {"values": self.values, "visits": self.visits} | {k: v for k, v in optional.items() if v is not None}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], /) -> None:
        """Copy a state in place. Raises CheckpointError if its names, shapes or dtypes differ."""
        copy_state(self.state_dict(), state_dict, "heatmaps")

    def _rows(self, index: Tensor) -> Tensor:
        return self.shard.local(index).to(self.values.device)

    def _ids(self, rows: Tensor, labels: Tensor) -> Tensor | None:
        """Classes [b, k] that have a heatmap, int64 on the caller's device; None for all classes."""
        return None if self.class_ids is None else self.class_ids[rows].to(labels.device).long()

    def _raw(self, rows: Tensor, labels: Tensor, ids: Tensor | None) -> Tensor:
        """Stored numbers [b, K, H, W] on the caller's device, with start values in rows that were never updated."""
        labels = labels if ids is None else labels.gather(1, ids)
        raw = self.values[rows].to(labels.device)
        fresh = (self.visits[rows] == 0).to(labels.device)
        start = (labels == Label.POSITIVE).to(raw.dtype) * _top(self.plan)
        return torch.where(fresh[:, None, None, None], start[:, :, None, None], raw)

    def _encode(self, level: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        if self.plan.dtype == "float16":
            return level.half()
        if self.plan.rounding == "nearest":
            return round_nearest(level)
        visits = self.visits[rows].to(index.device).long()
        return round_stochastic(level, sample_key(self.plan.seed, index, visits))


def _top(plan: HeatmapPlan) -> int:
    """The stored number of probability 1."""
    return 255 if plan.dtype == "uint8" else 1


def _dtype(plan: HeatmapPlan) -> torch.dtype:
    return torch.uint8 if plan.dtype == "uint8" else torch.float16


def _id_dtype(classes: int) -> torch.dtype:
    return torch.int16 if id_bytes(classes) == torch.int16.itemsize else torch.int32
