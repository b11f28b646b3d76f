"""A simulated reviewer: what answers about unknown labels buy, by the order in which they are asked.

    OMP_NUM_THREADS=1 python benchmarks/review.py --out benchmarks/results/review.jsonl
    python benchmarks/review.py --out benchmarks/results/review.jsonl --table

EfficientNet-Lite0 at 224 pixels, frozen; linear heads that are solved to the end (EN; a solved head has one view of each
photo, so SCL is off, as in `fewtags train`). One random positive label per training photo. The reviewer answers in
rounds; after each the head is solved again, and the next questions are chosen with it. Answers come from the complete
labels; a share of them is wrong. Strengths of regularisation are chosen on the complete validation labels, for every run
alike. `--choose` runs label seeds 10 to 12, whose validation mAP chooses the default order; the table has seeds 0 to 4.

Every line is one set, order, share of wrong answers and seed, with validation and test mAP after every round. A line
that is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets import CACHE, DATA, NAMES, REPOSITORY, BenchmarkSet, load
from fewtags.budget.simulate import single_positive
from fewtags.engine.solve import ChannelStatistics, HeadSolver
from fewtags.labels import Label, LabelMatrix
from fewtags.losses.partial import cross_entropy
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.spatial import SpatialHead
from fewtags.review.calibrate import calibrate, expected_unknown
from fewtags.review.orders import ORDERS, Cells, choose
from fewtags.seeds import rng
from fewtags.stores.topk import ExpectedPositives
from frozen_heads import features
from protocol import read_lines

SEEDS, CHOICE_SEEDS = (0, 1, 2, 3, 4), (10, 11, 12)
SETS = ("camvid", "collages", "voc2", "ccp")
SIZE = 224
DIMENSIONS = 256  # of the rotated features
ROUNDS = (0.01, 0.02, 0.035, 0.05, 0.1)
"""Share of all cells that is answered after each round."""
ITERATIONS = 25  # of L-BFGS for each strength
MOMENTUM = 0.5
VARIANCES = (1.0, 3.0, 10.0, 30.0)
"""Strengths of regularisation: the weaker half of those of the preset `cpu`, and one more."""
Labels = NDArray[np.int8]


class Weights(NamedTuple):
    """Weights of cells in the loss: verified ones (by an answer), and unknown ones that are taken for negative."""

    verified: float = 1.0
    assumed: float = 1.0
    represent: float = 0.0


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


def open_photos(data: BenchmarkSet, cache: Path) -> Photos:
    """Return a set with its features, which are computed once."""
    file = cache / "review" / f"{data.name}-{SIZE}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **{split: found["mean"].numpy() for split, found in features(data, SIZE).items()})
    with np.load(file) as stored:
        pooled = {split: torch.from_numpy(stored[split]) for split in data.splits}
    mean, std = pooled["train"].mean(0), pooled["train"].std(0).clamp_min(1e-6)
    standard = {split: (x - mean) / std for split, x in pooled.items()}
    _, _, directions = torch.linalg.svd(standard["train"], full_matrices=False)
    directions = directions[:DIMENSIONS].T
    x = {split: (x @ directions).contiguous() for split, x in standard.items()}
    return Photos(data, x, directions.shape[1] / len(mean))


@final
class Trainer:
    """A linear head that learns again after every round, starting from where it is."""

    def __init__(self, photos: Photos, counts: NDArray[np.int64], weights: Weights) -> None:
        d, c = photos.x["train"].shape[1], len(counts)
        self.photos, self.weights = photos, weights
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

        The first time all strengths are tried, then the best and its neighbours. With `complete`, unknown cells are
        left out and nothing is assumed.
        """
        known, x = torch.from_numpy(labels), self.photos.x["train"]
        n, c = known.shape
        first = self.scores is None
        tried = range(len(VARIANCES)) if first else sorted({self.best, min(self.best + 1, len(VARIANCES) - 1), self.best - 1} - {-1})[-2:]
        scores = (known == Label.POSITIVE).float() if self.scores is None else self.scores
        checked = torch.from_numpy(verified) & (known != Label.UNKNOWN)
        found: list[tuple[float, int, dict[str, Tensor], Tensor]] = []
        for number, which in enumerate(tried):
            expected = known == Label.POSITIVE
            if not complete and (number or not first):
                counts = torch.minimum(self.counts, n - (known == Label.NEGATIVE).sum(0))
                counts = torch.maximum(counts, (known == Label.POSITIVE).sum(0))
                self.ranking.refresh(0, scores, known, counts)
                expected = self.ranking.mask(scores, known, torch.arange(n))
            assumed = (known == Label.UNKNOWN) & ~expected & (not complete)
            ignored = (known == Label.UNKNOWN) & expected
            certain = 1 + checked * (self.weights.verified - 1 + self.weights.represent * ignored.sum(0) / checked.sum(0).clamp_min(1))
            positive = (known == Label.POSITIVE) * certain
            negative = (known == Label.NEGATIVE) * certain + assumed * self.weights.assumed

            def loss(positive: Tensor = positive, negative: Tensor = negative) -> Tensor:
                value = c * cross_entropy(x @ self.head.weight.T + self.head.bias, positive, negative, 0.0)
                value.backward()
                return value.detach()

            self.solver.minimise(loss, VARIANCES[which] * self.photos.scale, n)
            logits = self.logits("train")
            scores = MOMENTUM * scores + (1 - MOMENTUM) * logits.sigmoid()
            state = {name: value.clone() for name, value in self.head.state_dict().items()}
            found.append((self.mean_ap("val"), which, state, scores))
        val, self.best, state, self.scores = max(found, key=lambda one: one[0])
        self.head.load_state_dict(state)
        return {"val": val, "test": self.mean_ap("test"), "variance": VARIANCES[self.best]}

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


def run(photos: Photos, order: str, wrong: float, seed: int, weights: Weights) -> dict[str, Any]:
    """One reviewer, from no answer to all rounds."""
    labels, share, counts = start(photos, seed)
    truth = photos.labels("train")
    asked = np.zeros(labels.shape, np.bool_)
    trainer = Trainer(photos, counts, weights)
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
    return Trainer(photos, counts, Weights()).fit(truth, np.zeros(truth.shape, np.bool_), complete=True)
