"""Linear heads on a frozen trunk, each solved to the end: which features, losses and strengths of regularisation pay.

    OMP_NUM_THREADS=1 python benchmarks/frozen_heads.py --out benchmarks/results/heads.jsonl
    python benchmarks/frozen_heads.py --out benchmarks/results/heads.jsonl --table

EfficientNet-Lite0, one plain view of each photo, one random positive label per training photo; label seeds 10 to 12,
which no table in README uses. Strengths are those of the preset `cpu`, from strong to weak, and one more. The best on
the complete validation labels is taken, and test is measured at that one. A line that is there is not done again.

"EN, prototypes W" ranks expected positives with a second score of weight W (`objective.prototype_weight`); `val` and
`precision` of its lines are what docs/LOG.md compares.

The second table is that of `fewtags train --minutes`: expected negatives on photos of 288, 352 and 416 px, and the size
that validation chooses for each set and label seed. Development seeds are apart from seeds 0 to 4, which were run once
the sizes were fixed. Features of a set and size are kept in the folder `heads` of --cache.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
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
from fewtags.stores.second_score import PrototypeScores
from fewtags.stores.topk import ExpectedPositives, expected_counts
from photo_sets import NAMES, BenchmarkSet, load
from protocol import append_line, read_lines, script_arguments
from table import mean_over_sets, paired

SEEDS = (10, 11, 12)
SETS = ("camvid", "collages", "voc2", "ccp")
SIZES = (224, 288)
COMPARED = (288, 352, 416)  # those of `config.search.SIZES`
HELD_OUT = (0, 1, 2, 3, 4)
PROTOTYPE_WEIGHTS = (0.25, 0.5, 1.0)
"""Weights of the second score of `objective.prototype_weight`, here from the second strength on."""
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
LARGER: Mapping[str, tuple[tuple[int, str], ...]] = {f"mean {size}": ((size, "mean"),) for size in COMPARED}
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
    **{
        f"EN, prototypes {weight:g}": lambda z, task, expected: expected_negative(z, task.known, expected)
        for weight in PROTOTYPE_WEIGHTS
    },
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


def stored_features(data: BenchmarkSet, size: int, cache: Path) -> dict[str, dict[str, Tensor]]:
    """`features`, computed once."""
    path = cache / "heads" / f"{data.name}-{size}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(features(data, size), path)
    found: dict[str, dict[str, Tensor]] = torch.load(path, weights_only=True)
    return found


def runs(data: BenchmarkSet, done: set[tuple[str, str, str, int]], cache: Path) -> Iterator[dict[str, Any]]:
    """Every run of a set that is not done."""
    jobs = [(v, "AN", s) for v in VARIANTS for s in SEEDS]
    jobs += [(v, "full labels", SEEDS[0]) for v in VARIANTS]
    jobs += [("mean 288", loss, s) for loss in LOSSES if loss not in ("AN", "full labels") for s in SEEDS]
    jobs += [("mean 224", "EN", s) for s in SEEDS]
    jobs += [(v, "EN", s) for v in LARGER for s in (*SEEDS, *HELD_OUT)]
    jobs = [job for job in dict.fromkeys(jobs) if (data.name, *job) not in done]
    parts = {**VARIANTS, **LARGER}
    sizes = {size for variant, _, _ in jobs for size, _ in parts[variant]}
    every = {size: stored_features(data, size, cache) for size in sorted(sizes)}
    for variant, loss, seed in jobs:
        pooled = {
            split: torch.cat([every[size][split][pool] for size, pool in parts[variant]], 1) for split in data.splits
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
    scores = (task.known == Label.POSITIVE).float()
    results: list[dict[str, Any]] = []
    expected = torch.zeros_like(task.known, dtype=torch.bool)
    _, _, weight = name.partition("prototypes ")
    second = PrototypeScores(len(cells), known.shape[1], cells.shape[1], float(weight or 0))
    for _ in range(2):  # prototypes, then the distances from them
        second.update(index, cells, task.known)
        second.refresh()

    def loss() -> Tensor:
        value = known.shape[1] * LOSSES[name](head.predict_logits(cells), task, expected)
        value.backward()
        return value.detach()

    for number, variance in enumerate(VARIANCES):
        if number:
            ranked = second.balance(0, scores, second.scores.values, task.known) if weight else scores
            ranking.refresh(0, ranked, task.known, counts)
            expected = ranking.mask(ranked, task.known, index)
        solver.minimise(loss, variance, len(cells))
        with torch.no_grad():
            scores = MOMENTUM * scores + (1 - MOMENTUM) * head.predict_logits(cells).sigmoid()
        measured = {s: mean_ap(data, head, pooled[s], s) for s in ("val", "test")}
        results.append({"variance": variance, **measured, "precision": precision(expected, task)})
    best = max(results, key=lambda r: r["val"])
    return {**best, "path": results}


def precision(expected: Tensor, task: Task) -> float | None:
    """Share of the expected positives without a label that are right, in percent; None for none."""
    hidden = expected & (task.known == Label.UNKNOWN)
    right = hidden & (task.complete == Label.POSITIVE)
    return round(100 * float(right.sum() / hidden.sum()), 2) if hidden.any() else None


@torch.no_grad()
def mean_ap(data: BenchmarkSet, head: SpatialHead, x: Tensor, split: str) -> float:
    """Mean AP over the scored classes, in percent."""
    scores: NDArray[np.float64] = head.predict_logits(x[:, :, None, None]).double().numpy()[:, data.scored_index]
    labels = data.splits[split].matrix.dense()[:, data.scored_index]
    return round(100 * ranking_report(scores, labels).mean_average_precision, 2)


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: mean test mAP over seeds by features, loss and set."""
    rows: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in (r for r in records if r["seed"] in SEEDS):
        rows[record["features"], record["loss"]][record["set"]].append(record["test"])
    yield f"| features | loss | {' | '.join(SETS)} |"
    yield "|" + "---|" * (2 + len(SETS))
    for (features_, loss), found in rows.items():
        cells = (f"{statistics.mean(found[s]):.1f}" if found[s] else "–" for s in SETS)
        yield f"| {features_} | {loss} | {' | '.join(cells)} |"


def size_table(records: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Iterator[str]:
    """Markdown: test mAP of EN by input size and of the size that validation chooses, with the difference to 288 px."""
    by_row: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record["features"] in LARGER and record["loss"] == "EN" and record["seed"] in seeds:
            by_row[record["features"].removeprefix("mean ") + " px"][record["set"]][record["seed"]] = record
    base = by_row[f"{COMPARED[0]} px"]
    chosen = by_row["the best on validation"]
    for name, found in base.items():
        for seed in found:
            every = [by_row[f"{size} px"][name][seed] for size in COMPARED if seed in by_row[f"{size} px"][name]]
            if len(every) == len(COMPARED):
                chosen[name][seed] = max(every, key=lambda r: r["val"])
    yield f"| EN, test mAP | {' | '.join(SETS)} | mean |"
    yield "|" + "---|" * (2 + len(SETS))
    for row in (*(f"{size} px" for size in COMPARED), "the best on validation"):
        values = {s: {n: r["test"] for n, r in by_row[row][s].items()} for s in SETS}
        plain = {s: {n: r["test"] for n, r in base[s].items()} for s in SETS}
        means = [mean_over_sets([found[s] for s in SETS]) for found in (values, plain)]
        cells = [_cell(values[s], plain[s], row) for s in SETS] + [_cell(means[0], means[1], row)]
        yield f"| {row} | {' | '.join(cells)} |"


def _cell(values: Mapping[int, float], base: Mapping[int, float], row: str) -> str:
    """The mean, and the paired difference to the base unless this is its row."""
    if not values:
        return "–"
    difference = "" if row == f"{COMPARED[0]} px" else f" ({paired(values, base)})"
    return f"{statistics.mean(values.values()):.1f}{difference}"


def main() -> None:
    parser = script_arguments(__doc__, NAMES, SETS)
    options = parser.parse_args()
    records = read_lines(options.out)
    if options.table:
        print("\n".join(table(records)))
        for seeds in (SEEDS, HELD_OUT):
            print(f"\nLabel seeds {seeds[0]} to {seeds[-1]}:\n")
            print("\n".join(size_table(records, seeds)))
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    done = {(r["set"], r["features"], r["loss"], r["seed"]) for r in records}
    for name in options.sets:
        for record in runs(load(name, options.data, options.cache), done, options.cache):
            append_line(options.out, record)


if __name__ == "__main__":
    main()
