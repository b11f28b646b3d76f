"""CPU time of a pretraining step: MoCo and MLS against MoCo-v2 of the library lightly, side by side in one run.

    pip install --target .lightly --no-deps lightly lightly_utils   # beside the project's own torch, never into it
    PYTHONPATH=.lightly python benchmarks/pretraining_speed.py

Every method has a copy of the same net with the same initial weights, the same projector, queue, optimiser and random
images. Rounds are interleaved: in each, every method takes one step, in an order drawn anew; a ratio compares steps of
the same round, so that whatever else the machine does hits both. Printed is the geometric mean of the ratios with its
Student interval (95 %) over rounds. A step is: both forward passes, the loss, the backward pass, SGD, the moving
average, and the queue. What lightly is not asked for here it does not do: loading photos, logs, checkpoints.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, pretrain_settings_models
from fewtags.labels import Batch, LabelMatrix, SecondView
from fewtags.nets.encoder import Encoder, create_encoder, pooled
from fewtags.objectives.base import Problem, Progress

MISSING = """\
lightly is not installed (%s). This comparison alone needs it; install it beside the project, without its own torch:
    pip install --target .lightly --no-deps lightly lightly_utils
    PYTHONPATH=.lightly python benchmarks/pretraining_speed.py"""

SHARED: Mapping[str, Any] = {"queue_size": 4096, "projection_dim": 128, "momentum": 0.99, "temperature": 0.2}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "MoCo": {"name": "moco"},
    "MLS (BCE, k 20)": {"name": "mls"},
    "MLS, k 1": {"name": "mls", "k": 1},
    "kNN softmax, k 20": {"name": "mls", "neighbour_loss": "knn_eq10"},
}
NETS = (("test_resnet", 48), ("resnet10t", 48))
BATCH, LR, PHOTOS, WARMUP = 64, 0.03, 4096, 3

Take = Callable[[Tensor, Tensor, int], None]
"""One training step on two views; the number says which."""


@final
class Ours:
    """A method of this library."""

    def __init__(self, encoder: Encoder, size: int, settings: Mapping[str, Any]) -> None:
        model = pretrain_settings_models()[settings["name"]].model_validate({**SHARED, **settings})
        self.objective, self.encoder = make_objective(model), encoder
        labels = LabelMatrix(
            np.zeros(PHOTOS + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int8),
            np.full(PHOTOS, -1, np.int16), np.zeros((0, 0), np.bool_),
        )  # fmt: skip
        problem = Problem(labels=labels, grid=encoder.grid((size, size)), features_dim=encoder.features_dim)
        parts = self.objective.setup(encoder, problem)
        trained = [p for m in (encoder, *parts.values()) if isinstance(m, nn.Module) for p in m.parameters()]
        self.optimizer = torch.optim.SGD([p for p in trained if p.requires_grad], lr=LR, momentum=0.9)

    def __call__(self, first: Tensor, second: Tensor, number: int) -> None:
        """One step."""
        index = (torch.arange(BATCH) + number * BATCH) % PHOTOS
        nowhere = torch.zeros(BATCH, 2, 3)
        batch = Batch(
            images=first,
            labels=torch.zeros(BATCH, 0, dtype=torch.int8),
            index=index,
            views=nowhere,
            places=None,
            second_view=SecondView(second, nowhere),
        )
        out = self.objective.step(self.encoder, batch, Progress(0, number, PHOTOS // BATCH))
        self.optimizer.zero_grad()
        out.loss.backward()
        self.optimizer.step()
        self.objective.commit(self.encoder, batch, out)


@final
class Lightly:
    """MoCo-v2 of lightly's building blocks, in the order of its own example."""

    def __init__(self, encoder: Encoder, size: int) -> None:
        from lightly.loss import NTXentLoss  # type: ignore[import-not-found, unused-ignore]
        from lightly.models.modules import MoCoProjectionHead  # type: ignore[import-not-found, unused-ignore]
        from lightly.models.utils import (  # type: ignore[import-not-found, unused-ignore]
            deactivate_requires_grad,
            update_momentum,
        )

        del size
        wide, out = encoder.features_dim, SHARED["projection_dim"]
        self.encoder, self.head = encoder, MoCoProjectionHead(wide, wide, out)
        self.slow_encoder, self.slow_head = copy.deepcopy(encoder), copy.deepcopy(self.head)
        deactivate_requires_grad(self.slow_encoder)
        deactivate_requires_grad(self.slow_head)
        self.update = update_momentum
        self.loss = NTXentLoss(SHARED["temperature"], memory_bank_size=(SHARED["queue_size"], out))
        self.optimizer = torch.optim.SGD([*encoder.parameters(), *self.head.parameters()], lr=LR, momentum=0.9)

    def __call__(self, first: Tensor, second: Tensor, number: int) -> None:
        """One step."""
        del number
        self.update(self.encoder, self.slow_encoder, SHARED["momentum"])
        self.update(self.head, self.slow_head, SHARED["momentum"])
        query = self.head(pooled(self.encoder.features(first)))
        with torch.no_grad():
            key = self.slow_head(pooled(self.slow_encoder.features(second)))
        loss = self.loss(query, key)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure(contenders: Mapping[str, Take], size: int, rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of every method's steps, round by round."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARMUP + rounds):
        first, second = (torch.randn(BATCH, 3, size, size, generator=generator) for _ in range(2))
        first, second = (x.contiguous(memory_format=torch.channels_last) for x in (first, second))
        for name in rng.permutation(list(contenders)).tolist():
            begun = time.process_time()
            contenders[name](first, second, number)
            if number >= WARMUP:
                taken[name].append(1000 * (time.process_time() - begun))
    return taken


def ratio(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of values / reference, pair by pair, and its 95 % interval."""
    logs = [math.log(a / b) for a, b in zip(values, reference, strict=True)]
    mean, half = statistics.fmean(logs), float("nan")
    if len(logs) > 1:
        half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def contenders_for(backbone: str, size: int) -> dict[str, Take]:
    """All methods, each with its copy of the net."""
    encoder = create_encoder(backbone, weights="none", size=size).to(memory_format=torch.channels_last)
    encoder.train()
    ours = {name: Ours(copy.deepcopy(encoder), size, settings) for name, settings in METHODS.items()}
    return {"lightly": Lightly(copy.deepcopy(encoder), size), **ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="steps of every method (default 30)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON per method, for a record")
    options = parser.parse_args()
    try:
        import lightly  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        sys.exit(MISSING % error)
    torch.set_num_threads(1)
    print(
        f"lightly {lightly.__version__}, torch {torch.__version__}, {cores()} cores, one thread; batch {BATCH}, "
        f"{SHARED}"
    )
    for backbone, size in NETS:
        taken = measure(contenders_for(backbone, size), size, options.rounds)
        print(f"\n{backbone}, {size} px, {options.rounds} rounds\n")
        print("| method | CPU ms per step (median) | ratio to lightly | 95 % interval |\n| --- | --- | --- | --- |")
        for name, values in taken.items():
            mean, low, high = ratio(values, taken["lightly"])
            print(f"| {name} | {statistics.median(values):.1f} | {mean:.2f} | {low:.2f} to {high:.2f} |")
            if options.json:
                print(json.dumps({"net": backbone, "size": size, "method": name, "ms": [round(v, 2) for v in values]}))


if __name__ == "__main__":
    main()
