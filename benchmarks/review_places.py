"""A simulated reviewer who also shows where things are: what points and boxes buy, in mAP and pointing, by minutes.

    OMP_NUM_THREADS=1 python benchmarks/review_places.py --out benchmarks/results/review_places.jsonl
    python benchmarks/review_places.py --out benchmarks/results/review_places.jsonl --table

The start is one random positive label per training photo. Three reviewers answer the same questions of `fewtags review`
(default order): one says yes or no, one also sets a point on what is there, one draws a box. Answers cost the seconds
of `fewtags plan`, so the second and the third answer fewer questions in the same time. Beside them are the purchases of
`plan` at the same cost: random cells with tags, points or boxes. Points are anywhere in the box of a random object.

Heads are solved on maps of a frozen trunk as `fewtags train` does it, with its strengths and its weights of answers,
and chosen on the complete validation labels. The methods are EN, the default, and patchml, both with a loss of patches
where places are known. All reviewers start with the questions of EN. Every line of the file is one set, arm, method and
seed, with test mAP and pointing after every round. A line that is there is not done again. `--photos 150` takes the
first 150 photos of each split only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from budgets import LOCATE, located
from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.purchase import simulate_budget
from fewtags.budget.simulate import single_positive
from fewtags.config.presets import ANSWER_WEIGHTS, LOGIT_VARIANCES
from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import epoch_metrics
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.methods import derive_objective, settings_models
from fewtags.engine.sources import CachePlan, StoredViews, ViewFeatures, fill_fixed
from fewtags.labels import Label
from fewtags.metrics.calibration import calibrate, expected_unknown
from fewtags.metrics.locate import locate_report
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.base import Problem, RunFacts
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader
from fewtags.review.orders import DEFAULT_ORDER, ORDERS, Cells, choose
from fewtags.seeds import rng
from fewtags.table.answered import answered, with_answers
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable
from photo_sets import SPLITS, BenchmarkSet, Name, load
from protocol import append_line, read_lines, script_arguments
from table import table_head, table_row

SETS: tuple[Name, ...] = ("collages", "voc2", "ccp")
"""Those with boxes."""
SEEDS = (0, 1, 2)
SIZE = 224
SHARES = (0.02, 0.05, 0.1)
"""Time after each round, as a share of the time of a tag for every cell."""
EN, PATCHML = "expected_negative", "patchml"
METHODS = (EN, PATCHML)
KINDS = {"yes or no": Annotation.TAGS, "points": Annotation.ONE_POINT, "boxes": Annotation.ONE_BOX}
Who = Literal["review", "plan"]
Job = tuple[Name, Who, str, str, int]
"""Set, who asks, kind of answer, method, label seed."""


@final
class Photos:
    """A set with the maps of its photos from the frozen trunk, float16 [1, n, d, h, w] by split."""

    def __init__(self, data: BenchmarkSet, cache: Path) -> None:
        self.data = data
        folder = cache / "review_places" / f"{data.name}-{SIZE}-{len(data.train_truth)}"
        for split in SPLITS:
            if not (folder / split / "done").exists():
                _fill(data.splits[split], folder / split)
        self.views = {split: ViewFeatures.load(folder / split) for split in SPLITS}
        self.pooled = {split: _pooled(views.features) for split, views in self.views.items()}
        self.positives = float(data.val.matrix.image_counts(Label.POSITIVE).mean())

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the maps."""
        h, w = self.views["train"].features.shape[3:]
        return h, w


def _fill(table: LabelTable, folder: Path) -> None:
    net = create_net("tf_efficientnet_lite0", len(table.classes), weights="offline", size=SIZE)
    collate = Collate(net.preprocessing.mean, net.preprocessing.std)
    photos = EvalSet(PhotoFolder(table.require_root(), table.images), table.matrix, WholeImage(SIZE))
    plan = CachePlan(1, torch.float16, 0)
    fill_fixed(net, EvalLoader(photos, 16, collate), plan, len(table), device=torch.device("cpu")).save(folder)
    (folder / "done").touch()


def _pooled(features: Tensor) -> Tensor:
    """Mean over the cells, float32 [1, n, d, 1, 1]."""
    return features.float().mean((3, 4), keepdim=True)


def first(data: BenchmarkSet, photos: int) -> BenchmarkSet:
    """Return the set with the first photos of each split."""
    cut = {split: table.subset(np.arange(min(photos, len(table)))) for split, table in data.splits.items()}
    return replace(data, train_truth=cut["train"], val=cut["val"], test=cut["test"])


def solve(photos: Photos, table: LabelTable, method: str) -> SpatialNet:
    """Return the head that `fewtags train` would choose on the validation photos."""
    answers, (samples, classes) = answered(table), table.matrix.shape
    facts = RunFacts(
        samples=samples,
        classes=classes,
        grid=photos.grid,
        boxes=len(table.locations),
        positives_per_image=photos.positives,
        head_solved=True,
        answer_weights=answers is not None,
    )
    objective, _ = derive_objective(settings_models()[method].model_validate({"name": method}), facts)
    weights = ANSWER_WEIGHTS if answers is not None and objective.open_answer_weight else ()
    stage = StageConfig.model_validate(
        {"name": "solve", "logit_variances": LOGIT_VARIANCES, "answer_weights": weights, "trainable": "head"}
    )
    views = photos.views["train"]
    features = views.features if objective.needs_maps else photos.pooled["train"]
    source = StoredViews(
        ViewFeatures(features, views.views),
        EpochSampler(samples, 16, 0),
        table.matrix,
        locations=table.locations if len(table.locations) else None,
    )
    net = SpatialNet(nn.Identity(), SpatialHead(features.shape[2], classes))
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    problem = Problem(
        labels=table.matrix,
        grid=photos.grid,
        epochs=stage.epochs,
        features_dim=features.shape[2],
        answered=answers,
    )
    labels = photos.data.val.matrix.dense()

    def validate(_: nn.Module) -> Mapping[str, float]:
        return epoch_metrics(predict(net, photos, "val"), labels)

    fit = Fit(
        net,
        objective,
        source,
        FitConfig(stages=(stage,)),
        problem,
        accelerator=make_accelerator(cpu=True),
        model=net.head,
        fixed=source,
        validate=validate,
    )
    best = net.head.state_dict()
    for event in fit.run():
        if isinstance(event, EpochEnded) and event.best:
            best = {name: value.clone() for name, value in net.head.state_dict().items()}
    net.head.load_state_dict(best)
    return net


@torch.no_grad()
def predict(net: SpatialNet, photos: Photos, split: str) -> NDArray[np.float32]:
    """Logits [n, C] of a split."""
    logits: NDArray[np.float32] = net.head.predict_logits(photos.pooled[split][0]).numpy()
    return logits


@torch.no_grad()
def measure(net: SpatialNet, photos: Photos) -> dict[str, float]:
    """Test mAP and pointing of the scored classes, in percent."""
    data, scored = photos.data, photos.data.scored_index
    logits, labels = predict(net, photos, "test")[:, scored], data.test.matrix.dense()[:, scored]
    maps = (net.head(x[None].float()).maps[0, scored].sigmoid().numpy() for x in photos.views["test"].features[0])
    places = (located(data, image) for image in range(len(data.test)))
    report = locate_report(maps, logits, labels, places, options=LOCATE).to_dict()
    ranking = ranking_report(logits.astype(np.float64), labels)
    found = {"mAP": ranking.mean_average_precision, **{key: report[key] for key in ("pointing", "pointing_chance")}}
    return {key: round(100 * float(value), 3) for key, value in found.items()}


@final
class Reviewer:
    """Answers questions about the training photos, and shows the place of what is there if the kind asks for it."""

    def __init__(self, photos: Photos, start: LabelTable, kind: Annotation, seed: int) -> None:
        self.photos, self.start, self.kind, self.seed = photos, start, kind, seed
        data = photos.data
        self.truth = data.train_truth.matrix.dense()
        self.boxes = {image: data.boxes("train", image) for image in range(len(start))}
        self.cost = CostModel.measured(data.train_truth)
        self.asked = np.zeros(self.truth.shape, np.bool_)
        self.seconds = 0.0
        self.answers: list[tuple[int, int, int, NDArray[np.float64]]] = []
        given = (start.matrix.dense() == Label.POSITIVE).sum(0) + 0.5
        self.share = np.minimum(photos.positives * given / given.sum(), 1.0)

    def table(self) -> LabelTable:
        """Return the labels with all answers so far, as `fewtags train --answers` reads them."""
        image, class_, state, places = zip(*self.answers, strict=True)
        answers = LabelTable.build(
            self.start.images,
            self.start.classes,
            image=np.array(image),
            class_=np.array(class_),
            state=np.array(state),
            locations=np.stack(places),
            source="answers of first",
            root=self.start.root,
        )
        return with_answers({"train": self.start}, [answers])["train"]

    def answer(self, net: SpatialNet, until: float, number: int) -> None:
        """Answer the questions of a model until so many seconds are spent in all; `number` is that of the round."""
        table = self.table() if self.answers else self.start
        labels, expected = table.matrix.dense(), expected_unknown(table.matrix.dense(), self.share)
        logits = predict(net, self.photos, "train")
        # A cell that nobody can vouch for was asked in vain.
        shown = np.where(self.asked & (labels == Label.UNKNOWN), np.int8(Label.NEGATIVE), labels)
        cells = Cells(
            logits=logits,
            labels=shown,
            prob=calibrate(logits, labels, expected),
            expected=expected,
            features=self.photos.pooled["train"][0, :, :, 0, 0].numpy(),
        )
        values = ORDERS[DEFAULT_ORDER](cells, 1000 * self.seed + number)
        for image, class_ in zip(*choose(cells, values, labels.size), strict=True):
            objects = self._objects(image, class_)
            seconds = float(self.cost.exact_seconds(self.kind, np.array([len(objects)]))[0])
            if self.seconds + seconds > until:
                return
            self.seconds += seconds
            self.asked[image, class_] = True
            state = int(self.truth[image, class_])
            if state != Label.UNKNOWN:
                self.answers.append((image, class_, state, self._place(objects, image, class_)))

    def _objects(self, image: int, class_: int) -> NDArray[np.float32]:
        classes, boxes = self.boxes[image]
        found: NDArray[np.float32] = boxes[(classes == class_) & (self.truth[image, class_] == Label.POSITIVE)]
        return found

    def _place(self, objects: NDArray[np.float32], image: int, class_: int) -> NDArray[np.float64]:
        """The box of a random object, or a point in it; NaN for none."""
        if not len(objects) or self.kind is Annotation.TAGS:
            return np.full(4, np.nan)
        draw = rng(self.seed, image, class_)
        box = objects[draw.integers(len(objects))].astype(np.float64)
        return box if self.kind.boxed else np.tile(box[:2] + draw.random(2) * (box[2:] - box[:2]), 2)


def tags(table: LabelTable) -> LabelTable:
    """Return the positive labels of a table without their places."""
    image, class_ = np.nonzero(table.matrix.dense() == Label.POSITIVE)
    state = np.full(len(image), int(Label.POSITIVE))
    return LabelTable.build(table.images, table.classes, image=image, class_=class_, state=state, root=table.root)


def run(photos: Photos, who: Who, kind: Annotation, method: str, seed: int) -> dict[str, Any]:
    """One reviewer or buyer, from no answer to all rounds."""
    truth = photos.data.train_truth
    start = tags(single_positive(truth, seed))
    reviewer = Reviewer(photos, start, kind, seed)
    net, cells = solve(photos, start, EN), truth.matrix.shape[0] * truth.matrix.shape[1]
    rounds: list[dict[str, Any]] = [{"minutes": 0.0, **measure(net, photos)}]
    for number, share in enumerate(SHARES):
        seconds = share * cells * reviewer.cost.tag
        if who == "plan":
            bought = simulate_budget(truth, seconds, kind, seed, reviewer.cost, mode="exact", points="uniform")
            table = merge([start, bought])
        else:
            reviewer.answer(net, seconds, number)
            table = reviewer.table()
        net = solve(photos, table, method)
        known = int((table.matrix.dense() != Label.UNKNOWN).sum()) - len(start)
        counts = {"minutes": round(seconds / 60, 2), "cells": known, "places": len(table.locations)}
        rounds.append({**counts, **measure(net, photos)})
    return {"rounds": rounds}


def jobs(sets: Sequence[Name], seeds: Sequence[int], methods: Sequence[str] = METHODS) -> Iterator[Job]:
    """Every run, seed by seed."""
    for seed in seeds:
        for name in sets:
            for who in ("review", "plan"):
                for kind in KINDS:
                    for method in methods:
                        yield name, who, kind, method, seed


def report(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: test mAP and pointing at the start and after each round, means over the seeds."""
    for name, photos in sorted(
        {(r["set"], r["photos"]) for r in records}, key=lambda one: (SETS.index(one[0]), one[1])
    ):
        own = [r for r in records if (r["set"], r["photos"]) == (name, photos)]
        minutes = [f"{one['minutes']:g} min" for one in own[0]["rounds"]]
        chance = own[0]["rounds"][0]["pointing_chance"]
        yield from table_head([f"{name}, {photos} photos: mAP, pointing (chance {chance:.1f})", *minutes])
        for arm in dict.fromkeys((r["who"], r["kind"], r["method"]) for r in own):
            runs = [r["rounds"] for r in own if (r["who"], r["kind"], r["method"]) == arm]
            means = [
                [statistics.fmean(run[n][key] for run in runs) for key in ("mAP", "pointing")]
                for n in range(len(runs[0]))
            ]
            yield table_row([f"{arm[0]}, {arm[1]}, {arm[2]} ({len(runs)})", *(f"{a:.1f}, {b:.1f}" for a, b in means)])
        yield ""


def main() -> None:
    parser = script_arguments(__doc__, SETS, SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--photos", type=int, help="only so many photos of each split, to try it")
    options = parser.parse_args()
    records = read_lines(options.out)
    if options.table:
        print("\n".join(report(records)))
        return
    torch.set_num_threads(1)
    done = {(r["set"], r["who"], r["kind"], r["method"], r["seed"], r["photos"]) for r in records}
    opened: dict[str, Photos] = {}
    for job in jobs(options.sets, options.seeds, options.methods):
        name, who, kind, method, seed = job
        if name not in opened:
            data = load(name, options.data, options.cache)
            opened[name] = Photos(data if options.photos is None else first(data, options.photos), options.cache)
        photos = len(opened[name].data.train_truth)
        if (*job, photos) in done:
            continue
        found = run(opened[name], who, KINDS[kind], method, seed)
        line = {"set": name, "who": who, "kind": kind, "method": method, "seed": seed, "photos": photos, **found}
        append_line(options.out, line)


if __name__ == "__main__":
    main()
