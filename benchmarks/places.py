"""Points and boxes on some photos: what each method makes of them, with the recipe of `fewtags train`.

    OMP_NUM_THREADS=1 python benchmarks/places.py --out benchmarks/results/places.jsonl
    python benchmarks/places.py --out benchmarks/results/places.jsonl --table > docs/places.md

150 training photos as somebody would export them from an annotation tool (`handful.draw`): one random tag on each photo
("none": nothing is known to be absent) or every class ("full"), a point on 60 photos and a box on 30 others. The trunk
is the frozen EfficientNet-Lite0 of the preset `cpu` at 288 px, and the head is solved for each of its strengths.
The best on complete validation labels is taken, and test is measured at that one. Pointing, mAP-loc and PxAP are
measured on the first 200 test photos with boxes. Methods with a loss of patches are run with each of its weights; a
table chooses among them, as among the strengths. `seconds` are the CPU seconds of the solver, all strengths together,
without features and measurements. Features are kept in the folder `places` of --cache. A line that is there is not done
again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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
from fewtags.objectives.assume_negative import AssumeNegative
from fewtags.objectives.base import Objective, Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.patchml import PatchML
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader
from fewtags.table.table import LabelTable
from handful import Labels, draw
from photo_sets import NAMES, BenchmarkSet, load
from places_table import page
from protocol import append_line, read_lines, script_arguments
from single_positive import positives_per_image

PRESET = PRESETS[SOLVED]
SETS = ("voc2", "collages", "ccp")
KNOWN = ("none", "full")
WEIGHTS = (1.0, 0.3, 3.0)
"""Weights of the loss of patches; `fewtags train` takes the first one."""
LOCATED_IMAGES, PART = 200, 64
LOCALISATION = ("pointing", "mAP-loc", "PxAP")
TAGS = ("EN, tags alone", "AN", "WAN", "EP", "EN")
"""Methods that learn from tags; but for the first one, places are tags as well."""
PATCHES = ("AN + patches", "EN + patches", "patchml", "patchml, unknown ignored")
"""Methods with a loss of patches, which has a weight."""
WHERE_COMPLETE = ("EN", "EN + patches", "patchml")
"""Methods that differ where every class is tagged: then AN, WAN, EP and EN have the same loss.

`fewtags train` has the loss of patchml there (`ExpectedNegative.negative_gamma`).
"""


class Variant(NamedTuple):
    """A method, whether the classes of places count as tags, and whether the places themselves are given."""

    objective: Objective
    named: bool
    places: bool


class Job(NamedTuple):
    """One run on a set; `weight` is that of the loss of patches, None for methods without one."""

    known: str
    seed: int
    method: str
    weight: float | None


class Features(NamedTuple):
    """Features float16 [n, d, h, w] of the training photos, and pooled ones of val and test.

    `located` are the numbers of the test photos on which maps are measured, and `maps` their features.
    """

    train: Tensor
    val: Tensor
    test: Tensor
    located: Sequence[int]
    maps: Tensor


def variant(method: str, weight: float | None, positives: float, grid: tuple[int, int]) -> Variant:
    """Return a method with its weight of the loss of patches."""
    cells = (float(grid[0] * grid[1]), 1.0, 1.0)
    patches: Any = {"patch_weight": weight or 0.0, "patch_weights": cells}
    expected: Any = {"positives_per_image": positives, "scl_weight": 0.0, "warmup_loss": "expected_negative"}
    objectives: Mapping[str, Objective] = {
        "AN": AssumeNegative(**patches),
        "WAN": AssumeNegative(**patches, negative_weight="weak"),
        "EP": ExpectedNegative(**expected, **patches, expected_positives="positive"),
        "EN": ExpectedNegative(**expected, **patches),
        "patchml": PatchML(**patches, image_unknown="negative"),
        "patchml, unknown ignored": PatchML(**patches, image_unknown="ignore"),
    }
    name = method.removesuffix(" + patches").removesuffix(", tags alone")
    return Variant(objectives[name], method != TAGS[0], method in PATCHES)


def jobs(kinds: Sequence[str], seeds: Sequence[int], methods: Sequence[str], weights: Sequence[float]) -> list[Job]:
    """Return the runs on a set: methods without a weight first, then weight by weight."""
    rounds: list[tuple[Sequence[str], float | None]] = [(TAGS, None), *((PATCHES, weight) for weight in weights)]
    return [
        Job(known, seed, method, weight)
        for known in kinds
        for among, weight in rounds
        for seed in seeds
        for method in among
        if method in methods and (known != "full" or method in WHERE_COMPLETE)
    ]


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


def prepare(data: BenchmarkSet, cache: Path) -> Features:
    """Compute all features of a set, once."""
    path = cache / "places" / f"{data.name}.pt"
    boxed = [image for image in range(len(data.test)) if len(data.boxes("test", image)[0])][:LOCATED_IMAGES]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        net = make_net(len(data.train_truth.classes), 0)
        found = {
            "train": features_of(net, data.train_truth, pooled=False),
            "val": features_of(net, data.val, pooled=True),
            "test": features_of(net, data.test, pooled=True),
            "maps": features_of(net, data.test.subset(np.array(boxed)), pooled=False),
        }
        torch.save(found, path)
    return Features(located=boxed, **torch.load(path, weights_only=True, mmap=True))


def run(data: BenchmarkSet, features: Features, labels: Labels, method: Variant, seed: int) -> dict[str, Any]:
    """Solve the head for every strength; measure the one that is best on validation."""
    net = make_net(len(data.train_truth.classes), seed)
    cells = features.train[torch.from_numpy(labels.photos)].float()
    grid = (cells.shape[2], cells.shape[3])
    cells = cells.contiguous(memory_format=torch.channels_last)
    if not method.objective.needs_maps:  # as `train` does
        cells = cells.mean((2, 3), keepdim=True)
    filled = ViewFeatures(cells[None], torch.eye(2, 3).expand(1, len(cells), 2, 3).contiguous())
    matrix = LabelMatrix.from_dense(labels.named if method.named else labels.tags)
    places = labels.places if method.places else None
    source = StoredViews(filled, EpochSampler(len(cells), PRESET.batch_size, seed), matrix, locations=places)
    config = FitConfig(stages=PRESET.stages, seed=seed)
    problem = Problem(
        labels=matrix,
        grid=grid,
        epochs=config.epochs,
        seed=seed,
        features_dim=net.head.features_dim,
    )
    best: dict[str, Any] = {"val": -1.0}
    weights: dict[str, Tensor] = {}
    tried, measuring = 0, 0.0

    def validate(module: nn.Module) -> Mapping[str, float]:
        nonlocal best, weights, tried, measuring
        assert isinstance(module, SpatialNet)
        began = time.process_time()
        value = mean_ap(data, module.head, features.val, "val")
        if value > best["val"]:
            best = {"variance": PRESET.stages[0].logit_variances[tried], "val": value}
            weights = {name: tensor.clone() for name, tensor in module.head.state_dict().items()}
        tried += 1
        measuring += time.process_time() - began
        return {"mAP": value}

    fit = Fit(
        net, method.objective, source, config, problem, accelerator=make_accelerator(cpu=True), fixed=source,
        validate=validate,
    )  # fmt: skip
    began = time.process_time()
    for _ in fit.run():
        pass
    seconds = round(time.process_time() - began - measuring, 2)
    net.head.load_state_dict(weights)
    measured = {"mAP": mean_ap(data, net.head, features.test, "test"), **localisation(data, net.head, features)}
    return {**best, **measured, "seconds": seconds}


@torch.no_grad()
def mean_ap(data: BenchmarkSet, head: SpatialHead, pooled: Tensor, split: str) -> float:
    """Mean AP over the scored classes, in percent."""
    scores = head.predict_logits(pooled.float()).double().numpy()[:, data.scored_index]
    labels = data.splits[split].matrix.dense()[:, data.scored_index]
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
    return {name: round(100 * found[name], 2) for name in (*LOCALISATION, "pointing_chance")}


def lines(
    data: BenchmarkSet, wanted: Sequence[Job], done: set[tuple[Any, ...]], cache: Path
) -> Iterator[dict[str, Any]]:
    """Yield a result for each run on a set that is not done."""
    left = [job for job in wanted if (data.name, *job) not in done]
    if not left:
        return
    features, positives = prepare(data, cache), positives_per_image(data)
    grid = (features.maps.shape[2], features.maps.shape[3])
    for job in left:
        labels = draw(data, job.known, job.seed)
        result = run(data, features, labels, variant(job.method, job.weight, positives, grid), job.seed)
        yield {"set": data.name, **job._asdict(), **result}


def main() -> None:
    parser = script_arguments(__doc__, NAMES, SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--methods", nargs="+", choices=(*TAGS, *PATCHES), default=(*TAGS, *PATCHES))
    parser.add_argument("--known", nargs="+", choices=KNOWN, default=KNOWN)
    parser.add_argument("--weights", nargs="+", type=float, default=WEIGHTS, help="of the loss of patches")
    options = parser.parse_args()
    records = read_lines(options.out)
    if options.table:
        print("\n".join(page(records)))
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    done = {(r["set"], *(r[name] for name in Job._fields)) for r in records}
    wanted = jobs(options.known, options.seeds, options.methods, options.weights)
    for name in options.sets:
        for record in lines(load(name, options.data, options.cache), wanted, done, options.cache):
            append_line(options.out, record)


if __name__ == "__main__":
    main()
