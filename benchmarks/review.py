"""A simulated reviewer: what answers about unknown labels buy, by the order in which they are asked.

    OMP_NUM_THREADS=1 python benchmarks/review.py --out benchmarks/results/review.jsonl
    python benchmarks/review.py --out benchmarks/results/review.jsonl --table

EfficientNet-Lite0 at 224 pixels, frozen, and linear heads that are solved to the end. One random positive label per
training photo. The method is EN; a solved head has one view of each photo, so SCL is off, as in `fewtags train`. The
reviewer answers in rounds. After each round the head is solved again, and the next questions are chosen with it.
Answers come from the complete labels; a share of them is wrong. An answer takes the seconds of a tag in the cost model
of `fewtags plan` (1 s). Strengths of regularisation are chosen on the complete validation labels, for every run alike.

The gap is that between EN without answers and the same head on full labels. Every line of the file is one set, order,
share of wrong answers and seed, with validation and test mAP after every round. A line that is there is not done again.
Answered cells have the default weight of `answer_weight`. With `--search`, the weight is chosen on validation, as in
`fewtags train --answers`; `--answer-weight` gives other weights.
`--choose` runs label seeds 10 to 12, whose validation mAP chooses the default order; the table has seeds 0 to 4.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.budget.costs import CostModel
from fewtags.budget.simulate import single_positive
from fewtags.config.presets import ANSWER_WEIGHTS
from fewtags.config.sections import solutions
from fewtags.engine.solve import ChannelStatistics, HeadSolver, Trial, next_trial
from fewtags.labels import Label
from fewtags.losses.partial import cross_entropy
from fewtags.metrics.calibration import calibrate, expected_unknown
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.spatial import SpatialHead
from fewtags.objectives.expected_negative import ANSWER_WEIGHT
from fewtags.review.orders import DEFAULT_ORDER, ORDERS, Cells, choose
from fewtags.seeds import rng
from fewtags.stores.topk import ExpectedPositives
from frozen_heads import features
from photo_sets import CACHE, DATA, NAMES, REPOSITORY, SPLITS, BenchmarkSet, Name, load
from protocol import read_lines
from table import paired, table_head, table_row

SEEDS, CHOICE_SEEDS = (0, 1, 2, 3, 4), (10, 11, 12)
SETS: tuple[Name, ...] = ("camvid", "collages", "voc2", "ccp")
SIZE = 224
DIMENSIONS = 256  # of the rotated features
ROUNDS = (0.01, 0.02, 0.035, 0.05, 0.1)
"""Share of all cells that is answered after each round."""
ITERATIONS = 25  # of L-BFGS for each strength
MOMENTUM = 0.5
VARIANCES = (1.0, 3.0, 10.0, 30.0)
"""Strengths of regularisation: the weaker half of those of the preset `cpu`, and one more."""
WRONG = 0.05
"""Share of wrong answers of the less careful reviewer."""
SECONDS = CostModel(classes=1, positives_per_image=1).tag
"""Seconds of an answer."""
Labels = NDArray[np.int8]


@final
@dataclass(frozen=True, eq=False)
class Photos:
    """A set with its features.

    Attributes:
        data: photos and complete labels.
        x: float32 [n, d] by split, rotated and cut to the directions in which training photos differ most.
        scale: how much smaller d is than the trunk's number of channels, for the strength of regularisation.
    """

    data: BenchmarkSet
    x: Mapping[str, Tensor]
    scale: float

    def labels(self, split: str) -> Labels:
        """Complete labels of a split, int8 [n, C]."""
        return self.data.splits[split].matrix.dense()


def pooled_features(data: BenchmarkSet, cache: Path) -> dict[str, Tensor]:
    """Return the pooled features of each split, float32 [n, 1280], which are computed once."""
    file = cache / "review" / f"{data.name}-{SIZE}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        made = features(data, SIZE)
        train, val, test = (made[split]["mean"].numpy() for split in SPLITS)
        np.savez(file, train=train, val=val, test=test)
    with np.load(file) as stored:
        return {split: torch.from_numpy(stored[split]) for split in data.splits}


def open_photos(data: BenchmarkSet, cache: Path) -> Photos:
    """Return a set with its features."""
    pooled = pooled_features(data, cache)
    mean, std = pooled["train"].mean(0), pooled["train"].std(0).clamp_min(1e-6)
    standard = {split: (x - mean) / std for split, x in pooled.items()}
    _, _, directions = torch.linalg.svd(standard["train"], full_matrices=False)
    directions = directions[:DIMENSIONS].T
    x = {split: (x @ directions).contiguous() for split, x in standard.items()}
    return Photos(data, x, directions.shape[1] / len(mean))


@final
class Trainer:
    """A linear head that learns again after every round, starting from where it is."""

    def __init__(self, photos: Photos, counts: NDArray[np.int64], answer_weights: Sequence[float]) -> None:
        d, c = photos.x["train"].shape[1], len(counts)
        self.photos, self.answer_weights = photos, answer_weights
        self.counts = torch.from_numpy(counts)
        self.head = SpatialHead(d, c)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.solver = HeadSolver(self.head, ChannelStatistics(torch.zeros(d), torch.ones(d)), max_iterations=ITERATIONS)
        self.ranking = ExpectedPositives(c, "all_then_or", torch.device("cpu"))
        self.scores: Tensor | None = None
        self.best = len(VARIANCES) // 2

    def fit(self, labels: Labels, verified: NDArray[np.bool_], *, complete: bool = False) -> dict[str, float]:
        """Solve the head for several strengths; keep the best on validation, and return its mAP.

        The first time all strengths are tried, then the best and the next weaker one, for every weight of answers, in
        the order of the search of `fewtags train --answers` (`next_trial`).
        With `complete`, unknown cells are left out and nothing is assumed.
        """
        known, x = torch.from_numpy(labels), self.photos.x["train"]
        n, c = known.shape
        first = self.scores is None
        low = min(self.best, len(VARIANCES) - 2)
        strengths = VARIANCES if first else VARIANCES[low : low + 2]
        weights = self.answer_weights[: 1 if first else None]
        scores = (known == Label.POSITIVE).float() if self.scores is None else self.scores
        checked = torch.from_numpy(verified) & (known != Label.UNKNOWN)
        found: list[tuple[float, Trial, dict[str, Tensor], Tensor]] = []
        for number in range(solutions(len(strengths), len(weights))):
            trial = next_trial(strengths, weights, [value for value, *_ in found])
            weight = trial.answer_weight or ANSWER_WEIGHT
            expected = known == Label.POSITIVE
            if not complete and (number or not first):
                counts = torch.minimum(self.counts, n - (known == Label.NEGATIVE).sum(0))
                counts = torch.maximum(counts, (known == Label.POSITIVE).sum(0))
                self.ranking.refresh(0, scores, known, counts)
                expected = self.ranking.mask(scores, known, torch.arange(n))
            assumed = (known == Label.UNKNOWN) & ~expected & (not complete)
            certain = 1 + checked * (weight - 1)
            positive = (known == Label.POSITIVE) * certain
            negative = (known == Label.NEGATIVE) * certain + assumed

            def loss(positive: Tensor = positive, negative: Tensor = negative) -> Tensor:
                value = c * cross_entropy(x @ self.head.weight.T + self.head.bias, positive, negative, 0.0)
                value.backward()
                return value.detach()

            self.solver.minimise(loss, trial.variance * self.photos.scale, n)
            logits = self.logits("train")
            scores = MOMENTUM * scores + (1 - MOMENTUM) * logits.sigmoid()
            state = {name: value.clone() for name, value in self.head.state_dict().items()}
            found.append((self.mean_ap("val"), trial, state, scores))
        val, trial, state, self.scores = max(found, key=lambda one: one[0])
        self.best = VARIANCES.index(trial.variance)
        self.head.load_state_dict(state)
        searched = not first and len(self.answer_weights) > 1
        chosen = {"weight": trial.answer_weight} if searched and trial.answer_weight is not None else {}
        return {"val": val, "test": self.mean_ap("test"), "variance": VARIANCES[self.best], **chosen}

    @torch.no_grad()
    def logits(self, split: str) -> Tensor:
        """float32 [n, C]."""
        return self.photos.x[split] @ self.head.weight.T + self.head.bias

    def mean_ap(self, split: str) -> float:
        """Mean AP over the scored classes, in percent."""
        scored = self.photos.data.scored_index
        scores, labels = self.logits(split).double().numpy()[:, scored], self.photos.labels(split)[:, scored]
        return round(100 * ranking_report(scores, labels).mean_average_precision, 3)


def start(photos: Photos, seed: int) -> tuple[Labels, NDArray[np.float64], NDArray[np.int64]]:
    """Return one positive per photo, the share of photos that contain each class, and EN's counts."""
    labels = single_positive(photos.data.train_truth, seed).matrix.dense()
    k = float(photos.data.val.matrix.image_counts(Label.POSITIVE).mean())
    annotated = (labels == Label.POSITIVE).sum(0) + 0.5
    share = np.minimum(k * annotated / annotated.sum(), 1.0)
    return labels, share, np.floor(share * len(labels) + 0.5).astype(np.int64)


def answer(truth: Labels, image: NDArray[np.int64], class_: NDArray[np.int64], wrong: float, seed: int) -> Labels:
    """Answers to questions; a share `wrong` of them is the opposite. The same cell gets the same answer in all runs."""
    flips = rng(seed, 0, 1).random(truth.shape)[image, class_] < wrong
    right = truth[image, class_]
    return np.where(flips, -right, right).astype(np.int8)


def run(photos: Photos, order: str, wrong: float, seed: int, answer_weights: Sequence[float]) -> dict[str, Any]:
    """One reviewer, from no answer to all rounds."""
    labels, share, counts = start(photos, seed)
    truth = photos.labels("train")
    asked = np.zeros(labels.shape, np.bool_)
    trainer = Trainer(photos, counts, answer_weights)
    rounds = [{"share": 0.0, **trainer.fit(labels, asked)}]
    for number, until in enumerate(ROUNDS):
        limit = round(until * labels.size) - int(asked.sum())
        logits = trainer.logits("train").numpy()
        expected = expected_unknown(labels, share)
        # A cell that nobody can vouch for was asked in vain.
        shown = np.where(asked & (labels == Label.UNKNOWN), np.int8(Label.NEGATIVE), labels)
        cells = Cells(
            logits=logits,
            labels=shown,
            prob=calibrate(logits, labels, expected),
            expected=expected,
            features=photos.x["train"].numpy(),
        )
        # Whole photos go on in the order of the first round.
        key = seed if order == "complete-images" else 1000 * seed + number
        image, class_ = choose(cells, ORDERS[order](cells, key), limit)
        answers = answer(truth, image, class_, wrong, seed)
        labels[image, class_], asked[image, class_] = answers, True
        positives = float((truth[image, class_] == Label.POSITIVE).mean())
        rounds.append({"share": until, **trainer.fit(labels, asked), "positive": round(positives, 3)})
    return {"rounds": rounds, "cells": labels.size}


def bounds(photos: Photos, seed: int) -> dict[str, float]:
    """Full labels: the upper end of the gap."""
    _, _, counts = start(photos, seed)
    truth = photos.labels("train")
    return Trainer(photos, counts, (1.0,)).fit(truth, np.zeros(truth.shape, np.bool_), complete=True)


FULL = "full labels"
Job = tuple[Name, str, float, int]
"""Set, order, share of wrong answers, label seed."""


def jobs(sets: Sequence[Name], orders: Sequence[str], wrong: Sequence[str], seeds: Sequence[int]) -> Iterator[Job]:
    """Every run: all orders with right answers, and the orders `wrong` with 5 % wrong ones, seed by seed."""
    for seed in seeds:
        for name in sets:
            yield name, FULL, 0.0, seed
            for order in orders:
                yield name, order, 0.0, seed
            for order in wrong:
                yield name, order, WRONG, seed


def key_of(record: Mapping[str, Any]) -> Job:
    return record["set"], record["order"], record["wrong"], record["seed"]


def report(records: Sequence[Mapping[str, Any]], split: str) -> Iterator[str]:
    """Markdown: share of the gap that is closed after each round, by order and set; then mAP against minutes."""
    found = {key_of(record): record for record in records}
    sets = [name for name in SETS if any(job[0] == name for job in found)]
    arms = list(dict.fromkeys((job[1], job[2]) for job in found if job[1] != FULL))
    shares = [f"{100 * share:g}" for share in ROUNDS]
    yield f"Share of the gap that answers on {' / '.join(shares)} % of all cells close, {split} mAP."
    yield ""
    yield from table_head(["order", *sets])
    for order, wrong in arms:
        name = f"{order}, {100 * wrong:g} % wrong" if wrong else order
        yield table_row([name, *(" / ".join(_closed(found, s, order, wrong, split)) or "–" for s in sets)])
    yield ""
    yield from table_head(["5 % of the cells", *sets])
    base = {s: paired(*_gains(found, s, DEFAULT_ORDER, 0.0, "random", split)) for s in sets}
    yield table_row([f"{DEFAULT_ORDER} - random, mAP", *(str(base[s] or "–") for s in sets)])
    base = {s: paired(*_gains(found, s, DEFAULT_ORDER, 0.0, "complete-images", split)) for s in sets}
    yield table_row([f"{DEFAULT_ORDER} - complete images, mAP", *(str(base[s] or "–") for s in sets)])
    yield ""
    yield from table_head(["minutes", *(f"{s}: minutes, EN, {DEFAULT_ORDER}, random, full" for s in sets)])
    for n, share in enumerate(ROUNDS, 1):
        yield table_row([f"{100 * share:g} % of the cells", *(_minutes(found, s, n, split) for s in sets)])


def _runs(found: Mapping[Job, Mapping[str, Any]], name: str, order: str, wrong: float) -> dict[int, Mapping[str, Any]]:
    return {job[3]: record for job, record in found.items() if job[:3] == (name, order, wrong)}


def _closed(found: Mapping[Job, Mapping[str, Any]], name: str, order: str, wrong: float, split: str) -> list[str]:
    """Mean gain over mean gap, after each round."""
    runs, full = _runs(found, name, order, wrong), _runs(found, name, FULL, 0.0)
    seeds = [seed for seed in runs if seed in full]
    if not seeds:
        return []
    start = statistics.fmean(runs[s]["rounds"][0][split] for s in seeds)
    gap = statistics.fmean(full[s][split] for s in seeds) - start
    means = [statistics.fmean(runs[s]["rounds"][n][split] for s in seeds) for n in range(1, len(ROUNDS) + 1)]
    return [f"{(mean - start) / gap:.2f}".replace("0.", ".") for mean in means]


def _gains(
    found: Mapping[Job, Mapping[str, Any]], name: str, order: str, wrong: float, other: str, split: str
) -> tuple[dict[int, float], dict[int, float]]:
    at = ROUNDS.index(0.05) + 1
    one, two = _runs(found, name, order, wrong), _runs(found, name, other, wrong)
    return ({s: r["rounds"][at][split] for s, r in one.items()}, {s: r["rounds"][at][split] for s, r in two.items()})


def _minutes(found: Mapping[Job, Mapping[str, Any]], name: str, n: int, split: str) -> str:
    own, rest = _runs(found, name, DEFAULT_ORDER, 0.0), _runs(found, name, "random", 0.0)
    full = _runs(found, name, FULL, 0.0)
    seeds = [seed for seed in own if seed in rest and seed in full]
    if not seeds:
        return "–"
    minutes = ROUNDS[n - 1] * own[seeds[0]]["cells"] * SECONDS / 60
    values = [
        *(statistics.fmean(own[s]["rounds"][k][split] for s in seeds) for k in (0, n)),
        statistics.fmean(rest[s]["rounds"][n][split] for s in seeds),
        statistics.fmean(full[s][split] for s in seeds),
    ]
    return f"{minutes:.1f} min: " + " / ".join(f"{value:.1f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; what is in it is not done again")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=SETS)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=[*ORDERS])
    parser.add_argument(
        "--wrong", nargs="*", choices=ORDERS, default=[DEFAULT_ORDER], help="orders with 5 %% wrong answers"
    )
    parser.add_argument(
        "--answer-weight",
        nargs="+",
        type=float,
        default=[ANSWER_WEIGHT],
        help="of answered cells in the loss; of several, validation chooses after every round",
    )
    parser.add_argument("--search", action="store_true", help="the weights that `train` chooses from")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--choose", action="store_true", help="seeds 10 to 12 and validation mAP")
    parser.add_argument("--table", action="store_true", help="print what is there, and do nothing")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made (default {CACHE})")
    options = parser.parse_args()
    weights: Sequence[float] = ANSWER_WEIGHTS if options.search else options.answer_weight
    records = read_lines(options.out)
    if options.table:
        print("\n".join(report(records, "val" if options.choose else "test")))
        return
    torch.set_num_threads(1)
    done = {key_of(record) for record in records}
    photos: dict[str, Photos] = {}
    seeds = CHOICE_SEEDS if options.choose else options.seeds
    for name, order, wrong, seed in jobs(options.sets, options.orders, options.wrong, seeds):
        weighted = order != FULL and [*weights] != [ANSWER_WEIGHT]
        label = f"{order}, weight {' or '.join(f'{w:g}' for w in sorted(weights))}" if weighted else order
        if (name, label, wrong, seed) in done:
            continue
        if name not in photos:
            photos[name] = open_photos(load(name, options.data, options.cache), options.cache)
        own = photos[name]
        found = bounds(own, seed) if order == FULL else run(own, order, wrong, seed, weights)
        line = {"set": name, "order": label, "wrong": wrong, "seed": seed, **found}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
