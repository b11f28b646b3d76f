"""Heatmaps on the disk beside heatmaps in memory: what a batch costs while its pages are not in memory.

    OMP_NUM_THREADS=1 python benchmarks/heatmaps_on_disk.py FOLDER           # 3.2 GB in FOLDER; a minute

100,000 photos, 80 classes and heatmaps of 20 x 20; batches of 64 photos in random order are read through a crop and
updated, as in a step of EN + SCL. "cold": the system was asked to forget the file before. "ahead": the rows are asked
for before the time that a net takes (`--net-ms`), as training does, and read after it. Wall time without that of the
net, milliseconds a batch. The competitors take turns, a batch each, of photos that no other batch has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from fewtags.batched_views import stack_views
from fewtags.geometry import View
from fewtags.stores.heatmap_size import HeatmapPlan
from fewtags.stores.heatmaps import HeatmapStore

SAMPLES, CLASSES, GRID, BATCH = 100_000, 80, (10, 10), 64


def step(store: HeatmapStore, index: torch.Tensor, ahead: bool, net_ms: float) -> float:
    """Read and update a batch; return its milliseconds."""
    views, labels = stack_views([View.crop(0.1, 0.1, 0.9, 0.9)] * BATCH), torch.zeros(BATCH, CLASSES, dtype=torch.int8)
    prob = torch.full((BATCH, CLASSES, *GRID), 0.3)
    begun = time.perf_counter()
    if ahead:
        store.expect(index)
    asked = time.perf_counter() - begun
    time.sleep(net_ms / 1000)
    begun = time.perf_counter()
    store.read(index, labels, views, GRID)
    store.update(index, labels, views, prob)
    return 1000 * (asked + time.perf_counter() - begun)


def forget(path: Path) -> None:
    """Write a file to the disk, and ask the system to drop it from memory."""
    os.sync()
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--net-ms", type=float, default=30.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "heatmaps.bin"
    disk = HeatmapStore(SAMPLES, CLASSES, GRID, HeatmapPlan(), path=path)
    for rows in disk.values.split(1000):
        rows.fill_(1)
    memory = HeatmapStore(SAMPLES, CLASSES, GRID, HeatmapPlan())
    memory.values.copy_(disk.values)
    for store in (disk, memory):
        store.visits += 1
    os.sync()
    # A page that a process has mapped is not dropped, so the file is mapped anew.
    disk.values = torch.empty(0)
    forget(path)
    disk.values = torch.from_numpy(np.memmap(path, np.uint8, "r+", shape=memory.values.shape))
    order = np.random.default_rng(0).permutation(SAMPLES)[: 4 * options.batches * BATCH].reshape(-1, 4, BATCH)
    took: dict[str, list[float]] = {"memory": [], "disk, cold": [], "disk, cold, ahead": [], "disk, again": []}
    for batch in torch.from_numpy(order):
        took["memory"].append(step(memory, batch[0], False, options.net_ms))
        took["disk, cold"].append(step(disk, batch[1], False, options.net_ms))
        took["disk, cold, ahead"].append(step(disk, batch[2], True, options.net_ms))
        took["disk, again"].append(step(disk, batch[1], False, options.net_ms))
    for name, times in took.items():
        late = np.percentile(times, 95)
        print(
            f"{name:20} {statistics.median(times):6.1f} median {statistics.mean(times):6.1f} mean {late:6.1f} 95 %, ms"
        )
    path.unlink()


if __name__ == "__main__":
    main()
