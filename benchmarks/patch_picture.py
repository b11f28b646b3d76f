"""Heatmaps after tags, points and boxes that cost the same, like PatchML's figure 5, on the built-in digit scenes.

    python benchmarks/patch_picture.py docs/images/patchml_maps.png --work /tmp/patch_picture

One seed fixes the order in which (scene, class) pairs are asked for, of which tags buy the most and boxes the fewest,
so that what a box was bought for has a point and a tag in the other two runs. Each run trains the demo's small net from
nothing (features of photos, such as those of the EfficientNet-Lite0 in the wheel, do not tell digits apart). Rows are
chosen by number, before anything is trained. Other photos are not ours to show. About five minutes of CPU.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fewtags.budget.costs import CostModel
from fewtags.budget.purchase import simulate_budget
from fewtags.config.sections import StageConfig
from fewtags.demo_set import CLASSES, DemoSet, make_scenes
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.sources import CachePlan, StoredViews, ViewFeatures, fill_views
from fewtags.labels import Label
from fewtags.metrics.locate import LocateOptions, Region, locate_report
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.base import Problem
from fewtags.objectives.patchml import PatchML
from fewtags.photos.augment import SquareCrop
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.decode import read_image
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.report.overlay import overlay
from fewtags.table.table import LabelTable
from readme_picture import enlarge

SCENES = {"train": 1200, "val": 1, "test": 200, "size": 128}
SIZE, STRIDE, VIEWS, BATCH = 64, 8, 8, 16
EPOCHS, LR = 20, 5e-3
BUDGET = "30%"  # of the time that tagging every class in every training scene takes
TYPES = {"I": "tags", "SP": "points", "SB": "boxes"}
ROWS = 2  # training scenes of which a box was bought, and as many test scenes
COLOUR = "#00b4ff"


@final
@dataclass(frozen=True, eq=False)
class Trained:
    """One run: what it bought, its probability maps [n, C, h, w] by part of the scenes, and how good they are."""

    bought: LabelTable
    maps: Mapping[str, NDArray[np.float32]]
    quality: str


@final
@dataclass(frozen=True)
class Row:
    """A scene and the class whose heatmaps are drawn."""

    part: str
    scene: int
    class_: int


def train(scenes: DemoSet) -> dict[str, Trained]:
    """All runs, on the same cached views."""
    truth, policy = scenes.train_truth, SquareCrop(SIZE, (0.25, 1.0), flip=False)  # digits have a handedness
    wanted = _net().preprocessing
    collate, sampler = Collate(wanted.mean, wanted.std), EpochSampler(len(truth), BATCH)
    crops = TrainSet(photos=_photos(truth), labels=truth.matrix, policy=policy, views_cycle=VIEWS)
    pixels = SpatialNet(nn.Identity(), SpatialHead(3, 1))
    views = fill_views(pixels, TrainLoader(crops, sampler, collate), CachePlan(VIEWS, torch.float16, 0))
    whole = {
        name: [batch.images for batch in EvalLoader(EvalSet(_photos(t), t.matrix, policy), BATCH, collate)]
        for name, t in {"training": truth, "test": scenes.test}.items()
    }
    return {kind: _run(buy(truth, kind), views, whole, scenes.test) for kind in TYPES}


def buy(truth: LabelTable, kind: str) -> LabelTable:
    """What the budget buys."""
    return simulate_budget(truth, BUDGET, kind, 0, CostModel.measured(truth), mode="flat", points="uniform")


def _run(bought: LabelTable, views: ViewFeatures, whole: Mapping[str, Sequence[Tensor]], test: LabelTable) -> Trained:
    net = _net()
    rows, columns = net.grid((SIZE, SIZE))
    # A located patch pulls as hard as all patches of an absent class, as in budgets.toml.
    method = PatchML(patch_weight=3.0, patch_weights=(float(rows * columns), 1.0, 1.0))
    config = FitConfig(stages=(StageConfig(name="main", epochs=EPOCHS, lr=LR),))
    problem = Problem(labels=bought.matrix, grid=(rows, columns), epochs=EPOCHS, features_dim=net.head.features_dim)
    source = StoredViews(views, EpochSampler(len(bought), BATCH), bought.matrix, locations=bought.locations)
    for _ in Fit(net, method, source, config, problem, accelerator=make_accelerator(cpu=True)).run():
        pass
    net.eval()
    with torch.no_grad():
        found = {name: [net(images) for images in batches] for name, batches in whole.items()}
    maps = {name: torch.cat([out.maps for out in outs]).sigmoid().numpy() for name, outs in found.items()}
    return Trained(bought, maps, _quality(torch.cat([out.logits for out in found["test"]]).numpy(), maps["test"], test))


def _net() -> SpatialNet:
    """The demo's net; the same every time."""
    return create_net("test_resnet", len(CLASSES), weights="none", size=SIZE, output_stride=STRIDE)


def _photos(table: LabelTable) -> PhotoFolder:
    assert table.root is not None
    return PhotoFolder(table.root, table.images)


def _quality(logits: NDArray[np.float32], maps: NDArray[np.float32], test: LabelTable) -> str:
    """mAP-cl, and how often a map is highest in its object."""
    labels = test.matrix.dense()
    places = (
        {int(c): Region(boxes(test, n, int(c))) for c in np.flatnonzero(row == Label.POSITIVE)}
        for n, row in enumerate(labels)
    )
    report = locate_report(maps, logits, labels, places, options=LocateOptions(size=(48, 48), cuts=(0.5,)))
    mean = ranking_report(logits.astype(np.float64), labels).mean_average_precision
    return f"mAP {100 * mean:.0f}, pointing {100 * report.present.pointing:.0f} %"


def boxes(table: LabelTable, scene: int, class_: int) -> NDArray[np.float32]:
    """Boxes or points [k, 4] of a class in a scene, in 0..1."""
    facts = table.facts
    mine = facts.filter((np.asarray(facts["image"]) == scene) & (np.asarray(facts["class"]) == class_)).drop_null()
    return np.stack([mine[name].to_numpy() for name in ("x0", "y0", "x1", "y1")], 1).astype(np.float32)


def choose(bought: LabelTable, test: LabelTable) -> list[Row]:
    """The first training scenes of which a box was bought, and the first test scenes, each with another class.

    Nothing but numbers decides: no map has been seen.
    """
    rows: list[Row] = []
    for part, table in (("training", bought), ("test", test)):
        for scene in range(len(table)):
            fresh = [
                c for c in range(len(CLASSES)) if len(boxes(table, scene, c)) and c not in {r.class_ for r in rows}
            ]
            if fresh and sum(row.part == part for row in rows) < ROWS:
                rows.append(Row(part, scene, fresh[0]))
    return rows


def draw(scenes: DemoSet, runs: Mapping[str, Trained]) -> Figure:
    """Rows of scenes: what was bought, or the truth of a test scene; then the maps of one class under each type."""
    rows = choose(runs["SB"].bought, scenes.test)
    figure = Figure(figsize=(2.3 * (1 + len(TYPES)), 2.3 * len(rows) + 0.7), layout="constrained")
    panels = figure.subplots(len(rows), 1 + len(TYPES), squeeze=False)
    for line, row in zip(panels, rows, strict=True):
        table = scenes.train_truth if row.part == "training" else scenes.test
        photo = enlarge(read_image(_photos(table).path(row.scene)))
        line[0].imshow(photo)
        _mark(line[0], row, scenes, runs, photo.shape[0])
        line[0].set_ylabel(f"{row.part}: {CLASSES.ids[row.class_]}", fontsize=12)
        for axes, kind in zip(line[1:], TYPES, strict=True):
            axes.imshow(overlay(photo, runs[kind].maps[row.part][row.scene, row.class_]))
        for axes in line:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
    panels[0, 0].set_title("bought point and box;\ntrue box of a test scene", fontsize=11)
    for axes, (kind, name) in zip(panels[0, 1:], TYPES.items(), strict=True):
        axes.set_title(f"{kind}: {name}\n{runs[kind].quality}", fontsize=11)
    return figure


def save(figure: Figure, out: Path) -> None:
    """Write a figure in 128 colours: noise in the scenes would take megabytes in all of them."""
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=80)
    out.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(written) as picture:
        picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)


def _mark(axes: Axes, row: Row, scenes: DemoSet, runs: Mapping[str, Trained], side: int) -> None:
    """Draw what was bought of the class; of a test scene, where it is, dashed."""
    told = row.part == "training"
    for x0, y0, x1, y1 in side * boxes(runs["SB"].bought if told else scenes.test, row.scene, row.class_):
        line = "-" if told else "--"
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, ec=COLOUR, fc="none", lw=2.5, ls=line))
    if told:
        points = side * boxes(runs["SP"].bought, row.scene, row.class_)
        axes.plot(points[:, 0], points[:, 1], "o", color=COLOUR, markersize=9, markeredgecolor="white")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="PNG file")
    parser.add_argument("--work", type=Path, required=True, help="folder for the scenes; new, or of an earlier call")
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenes = make_scenes(options.work, **SCENES, seed=0)
    runs = train(scenes)
    save(draw(scenes, runs), options.out)
    for kind, run in runs.items():
        print(f"{kind}: {run.bought.matrix.counts(Label.POSITIVE).sum()} positives; {run.quality}")


if __name__ == "__main__":
    main()
