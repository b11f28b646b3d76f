"""EN's ranking at the start of an epoch beside one read of the running averages it ranks.

    OMP_NUM_THREADS=1 python benchmarks/ranking.py                     # as ImageNet: 1,281,167 photos, 1,000 classes
    OMP_NUM_THREADS=1 python benchmarks/ranking.py --photos 100000 --dtype float32

Each photo has one positive label, and K is 3. The averages are made in code: few are high, as after some epochs. "One
read" is the sum of the 64-bit words of the memory by numpy, which is as fast as a core reads; "one sum" is the sum of
the averages as numbers, by torch and in parts that stay in the cache. They take turns; medians are printed. Memory is
the peak of the process beyond what it had before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from fewtags.labels import ClassNames, Label
from fewtags.nets.backbones import create_net
from fewtags.objectives.base import Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.stores.rows import ScoreStore
from fewtags.table.table import LabelTable
from tables import peak


def made(photos: int, classes: int, dtype: Literal["float16", "float32"]) -> tuple[ExpectedNegative, ScoreStore]:
    """Return an objective that has seen every photo."""
    rng = np.random.default_rng(0)
    image, class_ = np.arange(photos), rng.integers(0, classes, photos)
    names, keys = ClassNames.of(f"{c:05}" for c in range(classes)), [f"{n:07}" for n in range(photos)]
    state = np.full(photos, Label.POSITIVE)
    labels = LabelTable.build(keys, names, image=image, class_=class_, state=state).matrix
    objective = ExpectedNegative(positives_per_image=3.0, scl_weight=0.0, score_dtype=dtype)
    problem = Problem(
        labels=labels, grid=(1, 1), warmup_epochs=0, epochs=10, device=torch.device("cpu"), features_dim=1
    )
    net = create_net("test_resnet", 2, weights="none", size=32)
    store = objective.setup(net, problem)["scores"]
    assert isinstance(store, ScoreStore)
    for rows in store.values.split(10_000):
        rows.copy_(torch.from_numpy(rng.standard_normal(rows.shape, np.float32)).mul_(2).sub_(5).sigmoid_())
    store.visits += 1
    return objective, store


def seconds(action: Callable[[], object]) -> float:
    """Time a call."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=1_281_167)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--dtype", default="float16", choices=("float16", "float32"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    objective, store = made(options.photos, options.classes, options.dtype)
    words = store.values.numpy().reshape(-1).view(np.uint64)
    before = peak()
    took: dict[str, list[float]] = {"read": [], "sum": [], "ranking": []}
    for _ in range(options.rounds):
        took["read"].append(seconds(lambda: np.add.reduce(words)))
        took["sum"].append(seconds(lambda: sum(float(part.float().sum()) for part in store.values.split(1000))))
        took["ranking"].append(seconds(lambda: objective.on_epoch_start(5)))
    read, total, ranking = (statistics.median(times) for times in took.values())
    print(
        f"{options.photos:,} photos, {options.classes:,} classes, {options.dtype}, {words.nbytes / 1e9:.2f} GB: "
        f"one read {read:.3f} s ({words.nbytes / 1e9 / read:.1f} GB/s), one sum {total:.3f} s, ranking {ranking:.2f} s "
        f"({ranking / read:.1f} reads, {ranking / total:.1f} sums), {peak() - before:.2f} GB more memory"
    )


if __name__ == "__main__":
    main()
