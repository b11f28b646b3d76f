"""Linear heads on a frozen trunk, each solved to the end: which features, losses and strengths of regularisation pay.

    OMP_NUM_THREADS=1 python benchmarks/frozen_heads.py --out benchmarks/results/heads.jsonl
    python benchmarks/frozen_heads.py --out benchmarks/results/heads.jsonl --table

EfficientNet-Lite0, one plain view of each photo, one random positive label per training photo; label seeds 10 to 12,
which no table in README uses. Strengths are those of the preset `cpu`, from strong to weak, and one more. The best on
the complete validation labels is taken, and test is measured at that one. A line that is there is not done again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fewtags.budget.simulate import single_positive
from fewtags.config.presets import LOGIT_VARIANCES
from fewtags.engine.machine import keep_freed_memory
from fewtags.engine.solve import HeadSolver, channel_statistics
from fewtags.labels import Label
from fewtags.losses.partial import assume_negative, bce, expected_negative, expected_positive, weak_assume_negative
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialHead
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.stores.topk import ExpectedPositives, expected_counts
from photo_sets import NAMES, BenchmarkSet, load
from protocol import append_line, read_lines, script_arguments

SEEDS = (10, 11, 12)
SETS = ("camvid", "collages", "voc2", "ccp")
SIZES = (224, 288)
VARIANCES = (*LOGIT_VARIANCES, 30.0)
MOMENTUM = 0.8  # of the scores that rank expected positives

Pooled = Mapping[str, Tensor]
"""Pooled features [n, d] by split."""
POOLS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean((2, 3)),
    "sqrt": lambda x: x.clamp_min(0).sqrt().mean((2, 3)),
    "max": lambda x: x.amax((2, 3)),
}
VARIANTS: Mapping[str, tuple[tuple[int, str], ...]] = {
    **{f"{pool} {size}": ((size, pool),) for size in SIZES for pool in ("mean", "sqrt")},
    "max 224": ((224, "max"),),
    "stages 224": ((224, "stages"),),
    "mean and stages 224": ((224, "mean"), (224, "stages")),
}
"""Features side by side, each of a size and a pool; "stages": the means of the three stages before the last layer."""


class Task(NamedTuple):
    """Labels of one set and seed: int8 [n, C] each, and what is known of K."""

    known: Tensor
    complete: Tensor
    counts: Tensor


Loss = Callable[[Tensor, Task, Tensor], Tensor]
"""Logits, labels, and the mask of expected positives -> the mean over cells."""
LOSSES: Mapping[str, Loss] = {
    "full labels": lambda z, task, _: bce(z, task.complete),
    "AN": lambda z, task, _: assume_negative(z, task.known),
    "WAN": lambda z, task, _: weak_assume_negative(z, task.known),
    "EN": lambda z, task, expected: expected_negative(z, task.known, expected),
    "EP": lambda z, task, expected: expected_positive(z, task.known, expected),
    "softmax": lambda z, task, _: F.cross_entropy(z, (task.known == Label.POSITIVE).int().argmax(1)) / z.shape[1],
}


@torch.inference_mode()
def features(data: BenchmarkSet, size: int) -> dict[str, dict[str, Tensor]]:
    """Every pool of every photo: split -> pool -> [n, d]."""
    net = create_net("tf_efficientnet_lite0", 1, weights="offline", size=size).eval()
    backbone: Any = net.backbone.to(memory_format=torch.channels_last)
    collate = Collate(net.preprocessing.mean, net.preprocessing.std)
    found: dict[str, dict[str, Tensor]] = {}
    for split, table in data.splits.items():
        assert table.root is not None
        pieces: dict[str, list[Tensor]] = defaultdict(list)
        for batch in EvalLoader(
            EvalSet(PhotoFolder(table.root, table.images), table.matrix, WholeImage(size)), 16, collate
        ):
            x, stages = backbone.bn1(backbone.conv_stem(batch.images)), []
            for block in backbone.blocks:
                x = block(x)
                stages.append(x.mean((2, 3)))
            cells = backbone.bn2(backbone.conv_head(x))
            pieces["stages"].append(torch.cat(stages[-3:], 1))
            for name, pool in POOLS.items():
                pieces[name].append(pool(cells))
        found[split] = {name: torch.cat(parts).clone() for name, parts in pieces.items()}
    return found


def runs(data: BenchmarkSet, done: set[tuple[str, str, str, int]]) -> Iterator[dict[str, Any]]:
    """Every run of a set that is not done."""
    jobs = [(v, "AN", s) for v in VARIANTS for s in SEEDS]
    jobs += [(v, "full labels", SEEDS[0]) for v in VARIANTS]
    jobs += [("mean 288", loss, s) for loss in LOSSES if loss not in ("AN", "full labels") for s in SEEDS]
    jobs += [("mean 224", "EN", s) for s in SEEDS]
    jobs = [job for job in jobs if (data.name, *job) not in done]
    if not jobs:
        return
    every = {size: features(data, size) for size in SIZES}
    for variant, loss, seed in jobs:
        pooled = {
            split: torch.cat([every[size][split][pool] for size, pool in VARIANTS[variant]], 1) for split in data.splits
        }
        yield {"set": data.name, "features": variant, "loss": loss, "seed": seed, **solve(data, pooled, loss, seed)}


def solve(data: BenchmarkSet, pooled: Pooled, name: str, seed: int) -> dict[str, Any]:
    """All strengths, one from the other; what the best on validation reaches."""
    known = single_positive(data.train_truth, seed).matrix
    positives = float(data.val.matrix.image_counts(Label.POSITIVE).mean())
    counts = torch.from_numpy(expected_counts(known, positives, None))
    task = Task(torch.from_numpy(known.dense()), torch.from_numpy(data.train_truth.matrix.dense()), counts)
    cells = pooled["train"][:, :, None, None]
    head = SpatialHead(cells.shape[1], known.shape[1])
    solver = HeadSolver(head, channel_statistics(cells[None], len(cells)))
    ranking, index = ExpectedPositives(known.shape[1], "all_then_or", torch.device("cpu")), torch.arange(len(cells))
    scores, results = (task.known == Label.POSITIVE).float(), []
    expected = torch.zeros_like(task.known, dtype=torch.bool)

    def loss() -> Tensor:
        value = known.shape[1] * LOSSES[name](head.predict_logits(cells), task, expected)
        value.backward()
        return value.detach()

    for number, variance in enumerate(VARIANCES):
        if number:
            ranking.refresh(0, scores, task.known, counts)
            expected = ranking.mask(scores, task.known, index)
        solver.minimise(loss, variance, len(cells))
        with torch.no_grad():
            scores = MOMENTUM * scores + (1 - MOMENTUM) * head.predict_logits(cells).sigmoid()
        results.append({"variance": variance, **{s: mean_ap(data, head, pooled[s], s) for s in ("val", "test")}})
    best = max(results, key=lambda r: r["val"])
    return {**best, "path": results}


@torch.no_grad()
def mean_ap(data: BenchmarkSet, head: SpatialHead, x: Tensor, split: str) -> float:
    """Mean AP over the scored classes, in percent."""
    scores: NDArray[np.float64] = head.predict_logits(x[:, :, None, None]).double().numpy()[:, data.scored_index]
    labels = data.splits[split].matrix.dense()[:, data.scored_index]
    return round(100 * ranking_report(scores, labels).mean_average_precision, 2)


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: mean test mAP over seeds by features, loss and set."""
    rows: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        rows[record["features"], record["loss"]][record["set"]].append(record["test"])
    yield f"| features | loss | {' | '.join(SETS)} |"
    yield "|" + "---|" * (2 + len(SETS))
    for (features_, loss), found in rows.items():
        cells = (f"{statistics.mean(found[s]):.1f}" if found[s] else "–" for s in SETS)
        yield f"| {features_} | {loss} | {' | '.join(cells)} |"


def main() -> None:
    parser = script_arguments(__doc__, NAMES, SETS)
    options = parser.parse_args()
    records = read_lines(options.out)
    if options.table:
        print("\n".join(table(records)))
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    done = {(r["set"], r["features"], r["loss"], r["seed"]) for r in records}
    for name in options.sets:
        for record in runs(load(name, options.data, options.cache), done):
            append_line(options.out, record)


if __name__ == "__main__":
    main()
