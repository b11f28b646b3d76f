"""Points and boxes on some photos: what each method makes of them, with the recipe of `fewtags train`.

    OMP_NUM_THREADS=1 python benchmarks/places.py --out benchmarks/results/places.jsonl
    python benchmarks/places.py --out benchmarks/results/places.jsonl --table

150 training photos as somebody would export them from an annotation tool (`handful.draw`): one random tag on each photo
("none": nothing is known to be absent) or every class ("full"), a point on 60 photos and a box on 30 others. The trunk
is the frozen EfficientNet-Lite0 of the preset `cpu` at 288 px, and the head is solved for each of its strengths.
The best on complete validation labels is taken, and test is measured at that one. Pointing, mAP-loc and PxAP are
measured on the first 200 test photos with boxes. A line that is there is not done again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from budgets import LOCATE, located
from fewtags.config.presets import PRESETS, SOLVED
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import keep_freed_memory
from fewtags.engine.sources import StoredViews, ViewFeatures
from fewtags.labels import LabelMatrix
from fewtags.metrics.locate import locate_report
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.base import Objective, Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.patchml import PatchML
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader
from fewtags.table.table import LabelTable
from handful import Labels, draw
from photo_sets import NAMES, BenchmarkSet, load
from protocol import append_line, read_lines, script_arguments
from single_positive import positives_per_image

PRESET = PRESETS[SOLVED]
SETS = ("voc2", "collages", "ccp")
KNOWN = ("none", "full")
WEIGHTS = (0.1, 0.3, 1.0, 3.0)
LOCATED_IMAGES, PART = 200, 64
SHOWN = ("mAP", "pointing", "mAP-loc", "PxAP")


class Variant(NamedTuple):
    """A method, whether the classes of places count as tags, and whether the places themselves are given."""

    objective: Objective
    named: bool
    places: bool


class Features(NamedTuple):
    """Features float16 [n, d, h, w] of the photos that any seed draws, by number; pooled ones of val and test.

    `located` are the numbers of the test photos on which maps are measured, and `maps` their features.
    """

    train: Mapping[int, Tensor]
    val: Tensor
    test: Tensor
    located: Sequence[int]
    maps: Tensor


def variants(known: str, positives: float, grid: tuple[int, int]) -> dict[str, Variant]:
    """Return what is compared, by name."""
    cells = (float(grid[0] * grid[1]), 1.0, 1.0)
    unknown: Any = {} if known == "full" else {"image_unknown": "negative"}

    def expected(weight: float) -> ExpectedNegative:
        return ExpectedNegative(
            positives_per_image=positives,
            scl_weight=0.0,
            warmup_loss="expected_negative",
            patch_weight=weight,
            patch_weights=cells,
        )

    return {
        "EN, tags alone": Variant(expected(0.0), False, False),
        "EN, places as tags": Variant(expected(0.0), True, False),
        "patchml": Variant(PatchML(**unknown, patch_weights=cells), True, True),
        **{f"EN and patches, weight {weight:g}": Variant(expected(weight), True, True) for weight in WEIGHTS},
    }


METHODS = tuple(variants("none", 1.0, (1, 1)))
"""Names of what is compared."""


def make_net(classes: int, seed: int) -> SpatialNet:
    """Return the net of the preset."""
    net = create_net(PRESET.backbone, classes, weights="offline", size=PRESET.size, seed=seed)
    return net.eval()


@torch.inference_mode()
def features_of(net: SpatialNet, table: LabelTable, *, pooled: bool) -> Tensor:
    """Return the features of the photos of a table, float16 [n, d, h, w]; with `pooled`, their means [n, d, 1, 1]."""
    assert table.root is not None
    photos = EvalSet(PhotoFolder(table.root, table.images), table.matrix, WholeImage(PRESET.size))
    collate, pieces = Collate(net.preprocessing.mean, net.preprocessing.std), []
    for batch in EvalLoader(photos, 16, collate):
        cells = net.features(batch.images.to(memory_format=torch.channels_last))
        pieces.append((cells.mean((2, 3), keepdim=True) if pooled else cells).half())
    return torch.cat(pieces).clone()


def prepare(data: BenchmarkSet, draws: Sequence[Labels]) -> Features:
    """Compute all features of a set once."""
    net = make_net(len(data.train_truth.classes), 0)
    chosen = np.unique(np.concatenate([labels.photos for labels in draws]))
    train = features_of(net, data.train_truth.subset(chosen), pooled=False)
    boxed = [image for image in range(len(data.test)) if len(data.boxes("test", image)[0])][:LOCATED_IMAGES]
    return Features(
        dict(zip(chosen.tolist(), train, strict=True)),
        features_of(net, data.val, pooled=True),
        features_of(net, data.test, pooled=True),
        boxed,
        features_of(net, data.test.subset(np.array(boxed)), pooled=False),
    )


def run(data: BenchmarkSet, features: Features, labels: Labels, variant: Variant, seed: int) -> dict[str, Any]:
    """Solve the head for every strength; measure the one that is best on validation."""
    net = make_net(len(data.train_truth.classes), seed)
    cells = torch.stack([features.train[photo] for photo in labels.photos.tolist()])
    filled = ViewFeatures(cells[None], torch.eye(2, 3).expand(1, len(cells), 2, 3).contiguous())
    matrix = LabelMatrix.from_dense(labels.named if variant.named else labels.tags)
    places = labels.places if variant.places else None
    source = StoredViews(filled, EpochSampler(len(cells), PRESET.batch_size, seed), matrix, locations=places)
    config = FitConfig(stages=PRESET.stages, seed=seed)
    problem = Problem(
        labels=matrix,
        grid=(cells.shape[2], cells.shape[3]),
        epochs=config.epochs,
        seed=seed,
        features_dim=net.head.features_dim,
    )
    found: list[dict[str, Any]] = []

    def validate(module: nn.Module) -> Mapping[str, float]:
        assert isinstance(module, SpatialNet)
        strength = PRESET.stages[0].logit_variances[len(found)]
        measured = {
            s: mean_ap(data, module.head, part, s) for s, part in (("val", features.val), ("mAP", features.test))
        }
        found.append({"variance": strength, **measured, **localisation(data, module.head, features)})
        return {"mAP": measured["val"]}

    fit = Fit(
        net, variant.objective, source, config, problem, accelerator=make_accelerator(cpu=True), fixed=source,
        validate=validate,
    )  # fmt: skip
    for _ in fit.run():
        pass
    return max(found, key=lambda one: one["val"])


@torch.no_grad()
def mean_ap(data: BenchmarkSet, head: SpatialHead, pooled: Tensor, split: str) -> float:
    """Mean AP over the scored classes, in percent."""
    scores = head.predict_logits(pooled.float()).double().numpy()[:, data.scored_index]
    labels = data.splits["test" if split == "mAP" else split].matrix.dense()[:, data.scored_index]
    return round(100 * ranking_report(scores, labels).mean_average_precision, 2)


@torch.no_grad()
def localisation(data: BenchmarkSet, head: SpatialHead, features: Features) -> dict[str, float]:
    """Localisation on the test photos with boxes, in percent."""
    outputs = [head(part.float()) for part in features.maps.split(PART)]
    scored = data.scored_index
    logits = torch.cat([out.logits for out in outputs]).numpy()[:, scored]
    maps = torch.cat([out.maps.sigmoid() for out in outputs]).numpy()[:, scored]
    labels: NDArray[np.int8] = data.test.matrix.rows(np.array(features.located))[:, scored]
    places = (located(data, image) for image in features.located)
    found = locate_report(maps, logits, labels, places, options=LOCATE).to_dict()
    return {name: round(100 * found[name], 2) for name in (*SHOWN[1:], "pointing_chance")}


def lines(
    data: BenchmarkSet,
    seeds: Sequence[int],
    kinds: Sequence[str],
    done: set[tuple[Any, ...]],
    methods: Sequence[str] = METHODS,
) -> Iterator[dict[str, Any]]:
    """Yield a result for each seed, kind of labels and method that is not done."""
    draws = {(known, seed): draw(data, known, seed) for known in kinds for seed in seeds}
    positives = positives_per_image(data)
    names = [(known, seed, name) for known, seed in draws for name in methods]
    if all((data.name, *name) in done for name in names):
        return
    features = prepare(data, list(draws.values()))
    grid = (features.maps.shape[2], features.maps.shape[3])
    for known, seed, name in names:
        if (data.name, known, seed, name) in done:
            continue
        variant = variants(known, positives, grid)[name]
        result = run(data, features, draws[known, seed], variant, seed)
        yield {"set": data.name, "known": known, "seed": seed, "method": name, **result}


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield Markdown: means over seeds, by set, known labels and method."""
    rows: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for name in ("val", *SHOWN):
            rows[record["set"], record["known"], record["method"]][name].append(record[name])
    yield f"| set | known | method | seeds | val | {' | '.join(SHOWN)} |"
    yield "|" + "---|" * (5 + len(SHOWN))
    for key, found in rows.items():
        values = " | ".join(f"{statistics.mean(found[name]):.1f}" for name in ("val", *SHOWN))
        yield f"| {' | '.join(key)} | {len(found['val'])} | {values} |"


def main() -> None:
    parser = script_arguments(__doc__, NAMES, SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--known", nargs="+", choices=KNOWN, default=KNOWN)
    options = parser.parse_args()
    records = read_lines(options.out)
    if options.table:
        print("\n".join(table(records)))
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    done = {(r["set"], r["known"], r["seed"], r["method"]) for r in records}
    for name in options.sets:
        for record in lines(
            load(name, options.data, options.cache), options.seeds, options.known, done, options.methods
        ):
            append_line(options.out, record)


if __name__ == "__main__":
    main()
