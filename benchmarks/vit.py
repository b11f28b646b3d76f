"""TS-CAM on a small ViT: tags, a point or a box at equal cost, and class maps against maps coupled with attention.

    python benchmarks/vit.py --out benchmarks/results/vit.jsonl
    python benchmarks/vit_table.py benchmarks/results/vit.jsonl

No pretrained ViT can be had offline, so that this one starts from nothing: it is pretrained once, with the tags of all
classes, on the VOC training photos that show one class. The annotations are bought on photos of two or more classes
(the set `voc2`), of which pretraining has seen none: the same photos, prices, purchases and test as in `budgets.py`,
by seed, so that only the net differs. Each run then trains the whole ViT with a fresh 3x3 head.

Both are the library's own loop; pixels of V views of every photo are cached in the place of features. The pretrained
weights lie in the cache folder, named by a digest of everything that decides them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from budget_protocol import BudgetJob, Budgets, read_budgets
from budgets import LOCATE, buy, located, receipt
from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.sources import CachePlan, StoredViews, ViewFeatures, fill_views
from fewtags.errors import FewtagsError
from fewtags.files import replacing
from fewtags.labels import Label
from fewtags.metrics.locate import locate_report
from fewtags.nets.spatial import HeadPlan, Preprocessing, SpatialHead, SpatialNet
from fewtags.nets.tscam import coupled_maps
from fewtags.objectives.base import Problem
from fewtags.photos.augment import SquareCrop
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.table.table import LabelTable
from photo_sets import CACHE, DATA, REPOSITORY, BenchmarkSet, Name, chance, load
from protocol import digest, other_settings, read_lines, seed_numbers
from single_positive import in_processes, metrics

Record = dict[str, Any]

BUDGETS = ("5%", "20%")
TYPES = ("I", "SP", "SB")
SET: Name = "voc2"
METHOD = "ignore"  # of budgets.toml: unknown cells count nowhere
BATCH = 64
SEEDS = 3
MAPS = ("class", "coupled", "probability")
"""Sigmoids of the class maps; TS-CAM's attention x class maps; attention x sigmoids of the class maps."""

MEASURES = ("mAP-loc", "mAP-loc_chance", "pointing", "pointing_chance", "IoA-P", "PxAP")


@final
@dataclass(frozen=True)
class Recipe:
    """Everything that decides a net and a run beside set, budget, type and seed.

    Attributes:
        size: of the photos in pixels, stretched to a square.
        patch: side of a patch in pixels.
        width: of a token.
        depth: blocks.
        heads: of the attention.
        views: of every training photo, cached; epoch e trains on view e mod `views`.
        min_area: smallest share of a photo that a view shows.
        batch_size: of all training.
        pretrain_epochs: on complete tags.
        pretrain_lr: at its start; cosine.
        epochs: of each run.
        lr: of each run, at its start; cosine.
        patch_weights: of the objective: a located patch pulls as hard as all patches of an absent class.
    """

    size: int = 96
    patch: int = 12
    width: int = 128
    depth: int = 4
    heads: int = 4
    views: int = 8
    min_area: float = 0.25
    batch_size: int = 16
    pretrain_epochs: int = 16
    pretrain_lr: float = 5e-4
    epochs: int = 6
    lr: float = 2e-4
    patch_weights: tuple[float, float, float] = (64.0, 1.0, 1.0)

    @property
    def grid(self) -> tuple[int, int]:
        """(height, width) of the maps."""
        return self.size // self.patch, self.size // self.patch


@final
@dataclass(frozen=True)
class Job:
    """One run."""

    budget: str
    annotation: str
    seed: int

    def __str__(self) -> str:
        return f"{SET} {self.budget} {self.annotation} seed {self.seed}"


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What all runs share: the photos, and the pretrained weights.

    Attributes:
        data: photos and complete labels.
        train: pixels of the views of the training photos.
        val: [n, 3, H, W] of the validation photos.
        test: likewise.
        trunk: weights of the pretrained backbone.
    """

    data: BenchmarkSet
    train: ViewFeatures
    val: Tensor
    test: Tensor
    trunk: Mapping[str, Tensor]


def make_net(recipe: Recipe, classes: int, seed: int) -> SpatialNet:
    """A ViT with a class token and TS-CAM's head, from the seed; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = VisionTransformer(
            img_size=recipe.size,
            patch_size=recipe.patch,
            embed_dim=recipe.width,
            depth=recipe.depth,
            num_heads=recipe.heads,
            num_classes=0,
            global_pool="",
        )
    head = SpatialHead(recipe.width, classes, plan=HeadPlan(3), generator=torch.Generator().manual_seed(seed))
    return SpatialNet(backbone, head, layout="NLC", prefix_tokens=1)


def view_pixels(recipe: Recipe, table: LabelTable) -> ViewFeatures:
    """Normalised pixels of V random views of every photo: what an identity makes of them."""
    policy = SquareCrop(recipe.size, (recipe.min_area, 1.0))
    views = TrainSet(photos=_photos(table), labels=table.matrix, policy=policy, views_cycle=recipe.views)
    loader = TrainLoader(views, EpochSampler(len(table), BATCH), _collate())
    return fill_views(SpatialNet(nn.Identity(), SpatialHead(3, 1)), loader, CachePlan(recipe.views, torch.float16, 0))


def test_pixels(recipe: Recipe, table: LabelTable) -> Tensor:
    """Normalised pixels [n, 3, H, W] of every photo, whole."""
    batches = EvalLoader(EvalSet(_photos(table), table.matrix, SquareCrop(recipe.size)), BATCH, _collate())
    return torch.cat([batch.images for batch in batches])


def _photos(table: LabelTable) -> PhotoFolder:
    assert table.root is not None
    return PhotoFolder(table.root, table.images)


def _collate() -> Collate:
    wanted = Preprocessing()
    return Collate(wanted.mean, wanted.std)


def single_class_photos(data: Path, cache: Path) -> LabelTable:
    """The VOC training photos of one class, completely tagged: none of them is in `voc2`."""
    table = load("voc", data, cache).train_truth
    return table.subset(table.matrix.image_counts(Label.POSITIVE) == 1)


@final
@dataclass(frozen=True, eq=False)
class Check:
    """What is measured after every epoch.

    Attributes:
        pixels: [n, 3, H, W].
        table: complete labels of the same photos.
        scored: numbers of the classes that count.
    """

    pixels: Tensor
    table: LabelTable
    scored: NDArray[np.int64]


def pretrain(recipe: Recipe, table: LabelTable, val: Check, folder: Path) -> Mapping[str, Tensor]:
    """The backbone after training on complete tags; once, and read from the folder from then on."""
    wanted = {k: v for k, v in asdict(recipe).items() if k not in ("epochs", "lr", "patch_weights")}
    path = folder / f"vit-{digest([wanted, table.fingerprint])}.safetensors"
    if not path.exists():
        net = make_net(recipe, len(table.classes), 0)
        stage = StageConfig(name="pretrain", epochs=recipe.pretrain_epochs, lr=recipe.pretrain_lr)
        source = StoredViews(view_pixels(recipe, table), EpochSampler(len(table), recipe.batch_size, 0), table.matrix)
        for record in epochs(make_fit(recipe, net, {"name": "bce"}, source, stage, 0, val)):
            epoch, found, seconds = (record[name] for name in ("epoch", "val/mAP", "cpu_seconds"))
            print(f"pretraining: epoch {epoch}, val mAP {100 * found:.1f}, {seconds:.0f} s of CPU", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            save_file({name: value.contiguous() for name, value in net.backbone.state_dict().items()}, temporary)
    return load_file(path)


def epochs(fit: Fit) -> Iterator[Mapping[str, Any]]:
    """Train; the record of every epoch."""
    return (event.record for event in fit.run() if isinstance(event, EpochEnded))


def make_fit(
    recipe: Recipe,
    net: SpatialNet,
    settings: Mapping[str, Any],
    source: StoredViews,
    stage: StageConfig,
    seed: int,
    val: Check,
) -> Fit:
    """The library's loop, over the whole net."""
    objective = make_objective(settings_models()[settings["name"]].model_validate(settings))
    config = FitConfig(stages=(stage,), seed=seed, clip_norm=1.0)
    problem = Problem(
        labels=source.labels, grid=recipe.grid, epochs=config.epochs, seed=seed, features_dim=recipe.width
    )

    def validate(_: nn.Module) -> Mapping[str, float]:
        return metrics(predict(net, val.pixels), val.table, val.scored)

    return Fit(net, objective, source, config, problem, accelerator=make_accelerator(cpu=True), validate=validate)


@torch.no_grad()
def predict(net: SpatialNet, pixels: Tensor) -> NDArray[np.float32]:
    """Logits [n, C] of pixels [n, 3, H, W]."""
    net.eval()
    logits: NDArray[np.float32] = torch.cat([net.predict_logits(batch) for batch in pixels.split(BATCH)]).numpy()
    return logits


def run(recipe: Recipe, budgets: Budgets, job: Job, material: Material) -> Record:
    """Buy, train the whole net once, and measure after the last epoch."""
    data, bought = material.data, buy(budgets, _like(job), material.data)
    net = make_net(recipe, len(bought.classes), job.seed)
    net.backbone.load_state_dict(dict(material.trunk))
    settings = {**budgets.settings(METHOD, job.annotation), "patch_weights": recipe.patch_weights}
    sampler = EpochSampler(len(bought), recipe.batch_size, job.seed)
    source = StoredViews(material.train, sampler, bought.matrix, locations=bought.locations)
    stage = StageConfig(name="main", epochs=recipe.epochs, lr=recipe.lr)
    check = Check(material.val, data.val, data.scored_index)
    records = [*epochs(make_fit(recipe, net, settings, source, stage, job.seed, check))]
    logits = predict(net, material.test)
    return {
        "benchmark": "vit",
        "set": SET,
        "budget": job.budget,
        "annotation": job.annotation,
        "seed": job.seed,
        "order": [BUDGETS.index(job.budget), TYPES.index(job.annotation)],
        "protocol": protocol(recipe, budgets, job),
        "recipe": asdict(recipe),
        "bought": receipt(bought),
        "images": len(bought),
        "scored": len(data.scored),
        "chance_mAP": _percent(chance(data.test, data.scored_index)),
        "last": {"mAP": _percent(metrics(logits, data.test, data.scored_index)["mAP"])},
        "val_mAP_by_epoch": [_percent(r["val/mAP"]) for r in records],
        "localisation": localise(net, material),
        "cpu_seconds_per_epoch": round(statistics.median(r["cpu_seconds"] for r in records), 2),
        "machine": f"{cores()} cores, torch {torch.__version__}",
    }


@torch.no_grad()
def localise(net: SpatialNet, material: Material) -> Record:
    """mAP-loc by IoA-P, pointing game and PxAP, in percent, of the three kinds of maps of the scored classes."""
    net.eval()
    data, scored = material.data, material.data.scored_index
    found = [coupled_maps(net, batch) for batch in material.test.split(BATCH)]
    logits = torch.cat([one.output.logits for one in found]).numpy()[:, scored]
    prob = torch.cat([one.output.maps.sigmoid() for one in found])
    attention, coupled = (torch.cat([one.attention for one in found]), torch.cat([one.maps for one in found]))
    labels = data.test.matrix.dense()[:, scored]
    result = {}
    for name, maps in zip(MAPS, (prob, coupled, attention * prob), strict=True):
        places = (located(data, image) for image in range(len(data.test)))
        values = locate_report(maps.numpy()[:, scored], logits, labels, places, options=LOCATE).to_dict()
        result[name] = {measure: _percent(values[measure]) for measure in MEASURES}
    return result


def protocol(recipe: Recipe, budgets: Budgets, job: Job) -> str:
    """A digest of everything that decides a run beside its seed."""
    return digest([asdict(recipe), budgets.protocol(_like(job))])


def _like(job: Job) -> BudgetJob:
    """The run of `budgets.py` that buys the same."""
    return BudgetJob(SET, job.budget, job.annotation, METHOD, job.seed)


def _percent(value: float) -> float:
    return round(100 * float(value), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; what is in it is not done again")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, each with one thread (default 2)")
    parser.add_argument("--seeds", help="0-2, or 0,2")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument(
        "--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made once (default {CACHE})"
    )
    options = parser.parse_args()
    try:
        _train(options)
    except FewtagsError as error:
        sys.exit(str(error))


def _train(options: argparse.Namespace) -> None:
    """Do the runs that are not done, and add a line for each to the file."""
    torch.set_num_threads(1)
    recipe, budgets = Recipe(), read_budgets(REPOSITORY / "benchmarks/budgets.toml")
    jobs = [Job(b, t, seed) for seed in seed_numbers(options.seeds, SEEDS) for b in BUDGETS for t in TYPES]
    done = set()
    for number, record in enumerate(read_lines(options.out), 1):
        done.add(job := Job(record["budget"], record["annotation"], record["seed"]))
        if record["protocol"] != protocol(recipe, budgets, job):
            raise other_settings(options.out, number, job)
    material = prepare(recipe, options.data, options.cache)
    make_accelerator(cpu=True)  # what it imports on first use is then imported once, and not in every run
    todo = [(str(job), _running(recipe, budgets, job, material)) for job in jobs if job not in done]
    left = len(todo)
    with options.out.open("a", encoding="utf-8") as file:
        for name, result in in_processes(todo, options.processes, math.inf):
            said = result if isinstance(result, str) else f"test mAP {result['last']['mAP']:.1f}"
            print(f"{name}: {said}", file=sys.stderr)
            if not isinstance(result, str):
                file.write(json.dumps(result) + "\n")
                file.flush()
                left -= 1
    if left:
        sys.exit(f"{left} runs are left")


def _running(recipe: Recipe, budgets: Budgets, job: Job, material: Material) -> Callable[[], Record]:
    return lambda: run(recipe, budgets, job, material)


def prepare(recipe: Recipe, data: Path, cache: Path) -> Material:
    """Photos in memory, and the pretrained weights."""
    photos = load(SET, data, cache)
    val = Check(test_pixels(recipe, photos.val), photos.val, photos.scored_index)
    trunk = pretrain(recipe, single_class_photos(data, cache), val, cache)
    train, test = view_pixels(recipe, photos.train_truth), test_pixels(recipe, photos.test)
    return Material(photos, train, val.pixels, test, trunk)


if __name__ == "__main__":
    main()
