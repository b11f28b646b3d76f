"""A handful of points and boxes: what they add to one tag per photo, and how much a located patch should weigh.

    python benchmarks/handful.py --out handful.jsonl

150 of the VOC photos with two or more labels, as somebody would export them from an annotation tool: one random tag on
each photo ("none": nothing is known to be absent) or every class ("full"), a point on 60 photos and a box on 30 others,
each on one random object. The frozen trunk and its cached views are those of `budgets.toml`. Nothing is chosen: test
measures are those of the last epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from budget_protocol import Budgets, read_budgets
from budgets import LOCATE, located
from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.sources import StoredViews, ViewFeatures
from fewtags.labels import Label, LabelMatrix, Locations
from fewtags.metrics.locate import locate_report
from fewtags.objectives.base import Objective, Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.patchml import PatchML
from fewtags.photos.loader import EpochSampler
from frozen import EVAL_BATCH, Above, features_folder, fill, make_net
from photo_sets import REPOSITORY, BenchmarkSet, load
from single_positive import metrics, positives_per_image, predict

PHOTOS, POINTS, BOXES = 150, 60, 30
LOCATED_IMAGES = 120
CELLS = 36.0  # of the maps
STAGES = (
    StageConfig(name="warmup", epochs=5, lr=3e-3, trainable="head", schedule="constant", warmup=True),
    StageConfig(name="main", epochs=12, lr=1e-3, trainable="head"),
)


class Labels(NamedTuple):
    """Of the chosen photos: their numbers, tags alone, the same with the classes of all places, and the places."""

    photos: NDArray[np.int64]
    tags: NDArray[np.int8]
    named: NDArray[np.int8]
    places: Locations


class Variant(NamedTuple):
    """A method, whether the classes of places count, and whether where they are does."""

    objective: Objective
    named: bool
    places: bool


def draw(data: BenchmarkSet, known: str, seed: int) -> Labels:
    """Photos, tags, points and boxes of a seed; `known` is "none" or "full"."""
    rng, truth = np.random.default_rng(seed), data.train_truth
    complete = truth.matrix.dense()
    photos = np.sort(rng.permutation(len(truth))[:PHOTOS])
    order = rng.permutation(PHOTOS).tolist()
    pointed, boxed = set(order[:POINTS]), set(order[POINTS : POINTS + BOXES])
    tags = np.zeros((PHOTOS, complete.shape[1]), np.int8)
    facts: list[tuple[int, int, tuple[float, ...]]] = []
    for n, photo in enumerate(photos):
        if known == "full":
            tags[n] = complete[photo]
        else:
            tags[n, rng.choice(np.flatnonzero(complete[photo] == Label.POSITIVE))] = Label.POSITIVE
        _, classes, boxes = truth.locations.rows([photo])
        if len(classes) and (n in pointed or n in boxed):
            chosen = rng.integers(len(classes))
            x0, y0, x1, y1 = boxes[chosen]
            if n in pointed:
                x, y = x0 + (x1 - x0) * rng.uniform(0.3, 0.7), y0 + (y1 - y0) * rng.uniform(0.3, 0.7)
                x0, y0, x1, y1 = x, y, x, y
            facts.append((n, int(classes[chosen]), (x0, y0, x1, y1)))
    named = tags.copy()
    for n, class_, _ in facts:
        named[n, class_] = Label.POSITIVE
    counts = np.bincount([n for n, *_ in facts], minlength=PHOTOS)
    places = Locations(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array([class_ for _, class_, _ in facts], np.int32),
        np.array([box for *_, box in facts], np.float32),
    )
    return Labels(photos, tags, named, places)


def variants(known: str, positives: float) -> dict[str, Variant]:
    """What is compared, by name."""
    unknown: Any = {} if known == "full" else {"image_unknown": "negative"}
    points = {
        name: PatchML(**unknown, patch_weight=weight, patch_weights=(located_weight, 1.0, 1.0))
        for name, weight, located_weight in (
            ("patchml, located patch 36", 1.0, CELLS),
            ("patchml, located patch 1", 1.0, 1.0),
            ("patchml without L_patch", 0.0, 1.0),
        )
    }
    found = {name: Variant(objective, True, True) for name, objective in points.items()}
    found["EN, places as tags"] = Variant(ExpectedNegative(positives_per_image=positives), True, False)
    if known == "none":
        found["EN, tags alone"] = Variant(ExpectedNegative(positives_per_image=positives), False, False)
    return found


def run(benchmark: Budgets, data: BenchmarkSet, folder: Path, labels: Labels, variant: Variant, seed: int) -> Above:
    """Train the head on the chosen photos, through the library's own loop."""
    net = make_net(benchmark, len(data.train_truth.classes), seed)
    above = Above(net, benchmark.trained_blocks)
    views = ViewFeatures.load(folder)
    chosen = ViewFeatures(views.features[:, labels.photos].clone(), views.views[:, labels.photos].clone())
    matrix = LabelMatrix.from_dense(labels.named if variant.named else labels.tags)
    source = StoredViews(
        chosen, EpochSampler(PHOTOS, benchmark.batch_size, seed), matrix,
        locations=labels.places if variant.places else None,
    )  # fmt: skip
    config = FitConfig(stages=STAGES, seed=seed, batchnorm_eval=True)
    problem = Problem(
        labels=matrix,
        grid=net.grid((benchmark.size, benchmark.size)),
        warmup_epochs=config.warmup_epochs,
        epochs=config.epochs,
        seed=seed,
        features_dim=net.head.features_dim,
    )
    fit = Fit(net, variant.objective, source, config, problem, accelerator=make_accelerator(cpu=True), model=above)
    for _ in fit.run():
        pass
    return above


@torch.no_grad()
def measure(above: Above, data: BenchmarkSet, folder: Path) -> Mapping[str, float]:
    """Test mAP, and localisation on the first test images, in percent."""
    test = torch.from_numpy(np.load(folder / "test.npy")).permute(0, 3, 1, 2)
    scored, labels = data.scored_index, data.test.matrix.dense()
    mean = metrics(predict(above, test), data.test, scored)["mAP"]
    outputs = [above(part) for part in test[:LOCATED_IMAGES].split(EVAL_BATCH)]
    logits = torch.cat([out.logits for out in outputs]).numpy()[:, scored]
    maps = torch.cat([out.maps.sigmoid() for out in outputs]).numpy()[:, scored]
    places = (located(data, image) for image in range(len(maps)))
    found = locate_report(maps, logits, labels[: len(maps)][:, scored], places, options=LOCATE).to_dict()
    return {"mAP": round(100 * mean, 2)} | {k: round(100 * found[k], 2) for k in ("mAP-loc", "pointing", "PxAP")}


def lines(seeds: int) -> Iterator[Mapping[str, Any]]:
    """A result for each seed, kind of labels and method."""
    benchmark = read_budgets(REPOSITORY / "benchmarks/budgets.toml")
    data = load("voc2", REPOSITORY.parent / "shared/data")
    folder = features_folder(benchmark, data, REPOSITORY / "benchmarks/cache")
    if not folder.exists():
        fill(benchmark, data, folder)
    for seed in range(seeds):
        for known in ("none", "full"):
            labels = draw(data, known, seed)
            for name, variant in variants(known, positives_per_image(data)).items():
                above = run(benchmark, data, folder, labels, variant, seed)
                yield {"known": known, "seed": seed, "method": name, **measure(above, data, folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with options.out.open("w", encoding="utf-8") as file:
        for line in lines(options.seeds):
            print(json.dumps(line), file=file, flush=True)
            print(json.dumps(line), file=sys.stderr)


if __name__ == "__main__":
    main()
