"""`fewtags demo`: train assume-negative and EN + SCL on the same scenes with the same seed, and compare them."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from fewtags.cli.progress import echo, epoch_line, say

# A small network from scratch, because the demo must work without a download. Crops of 48 pixels keep the size of the
# digits; no flips, because mirrored digits are wrong. Both methods start with the same assume-negative epochs, because
# expected negatives need a useful ranking.
RECIPE: dict[str, Any] = {
    "data": {"train": "(tables in memory)"},
    "model": {"backbone": "test_resnet", "weights": "none", "output_stride": 8},
    "augment": {"policy": "coco", "size": 48, "flip": False},
    "train": {
        "preset": "views",
        "batch_size": 16,
        "workers": 0,
        "cached_views": 0,
        "batchnorm_eval": False,
        "stages": [
            {
                "name": "assume negative",
                "epochs": 8,
                "warmup": True,
                "schedule": "constant",
                "lr": 5e-3,
                "trainable": "all",
            },
            {"name": "main", "epochs": 6, "lr": 5e-3, "trainable": "all"},
        ],
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "assume_negative": {"name": "assume_negative"},
    "en_scl": {"name": "expected_negative", "scl_weight": 0.3, "corrected_averages": True},
}
SCENES = {"train": 1200, "val": 200, "test": 200, "size": 128}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for photos, runs and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the scenes and the training.")] = 0,
) -> None:
    """Train two methods on handwritten digits and compare them.

    Each scene contains several digits, and one of them is labelled. The demo compares assume-negative with EN + SCL in
    one to three minutes and downloads nothing.
    """
    run_demo(out, seed)


def run_demo(out: Path, seed: int) -> None:
    """Make the scenes, train both methods in parallel, and write the comparison."""
    from fewtags.config.parse import apply_overrides
    from fewtags.demo_set import make_scenes
    from fewtags.engine.runfolder import refuse_used_folder
    from fewtags.report.build import build_report

    runs = [out / name for name in METHODS]
    if not (out / "scenes/demo.json").exists():  # a second demo replaces the first
        refuse_used_folder(out)
    began = time.perf_counter()
    say("Scenes of 2 to 4 handwritten digits; in the training set, one digit of each scene is labelled.")
    scenes = make_scenes(out / "scenes", **SCENES, seed=seed)
    sizes = f"{len(scenes.train):,} training, {len(scenes.val):,} validation, {len(scenes.test):,} test scenes"
    say(f"{sizes} in {out / 'scenes'}")
    for run in runs:
        shutil.rmtree(run, ignore_errors=True)
    # One process and one thread per method: a network this small gains nothing from more threads.
    with ProcessPoolExecutor(len(METHODS), multiprocessing.get_context("spawn")) as pool:
        jobs = []
        for name, objective in METHODS.items():
            settings = apply_overrides(RECIPE, {"objective": objective, "train.seed": seed})
            jobs.append(pool.submit(train_one, name, settings, SCENES, out))
        for job in jobs:
            job.result()
    for run in runs:
        build_report([run], None)
    summary(runs, build_report(runs, out / "report.html"), out, time.perf_counter() - began)


def train_one(name: str, settings: dict[str, Any], counts: dict[str, int], out: Path) -> None:
    """Train one method on the scenes in `out / "scenes"`; runs in a separate process."""
    import torch

    from fewtags.config.parse import parse
    from fewtags.demo_set import make_scenes
    from fewtags.engine.events import EpochEnded
    from fewtags.engine.methods import settings_models
    from fewtags.engine.planning import make_plan
    from fewtags.engine.tables import Tables
    from fewtags.engine.train_run import TrainRun

    torch.set_num_threads(1)
    config = parse(settings, settings_models(), "the demo")
    scenes = make_scenes(out / "scenes", **counts, seed=config.train.seed)
    plan = make_plan(config, tables=Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth), cpu=True)
    epochs = sum(stage.epochs for stage in plan.resolved.stages)
    for event in TrainRun(plan, out / name, cpu=True).start():
        if isinstance(event, EpochEnded):
            say(f"{name:<15}  {epoch_line(event.record, epochs, event.best)}")


def summary(runs: list[Path], page: Path, out: Path, seconds: float) -> None:
    """Print the results and the next steps."""
    echo("")
    for run in runs:
        result = json.loads((run / "evaluation" / "test.json").read_text("utf-8"))
        low, high = result["mAP_interval"]
        echo(
            f"{run.name}: test mAP {100 * result['mAP']:.1f} "
            f"(95 % interval over images {100 * low:.1f} .. {100 * high:.1f}); it predicts "
            f"{result['cardinality']['expected']:.1f} digits per scene; the true number is "
            f"{result['cardinality']['known']:.1f}"
        )
    echo(f"{seconds:.0f} s in total. Open {page} to compare both methods, with heatmaps of digits without a label.")
    echo("next:")
    echo(f"  fewtags predict {runs[-1]} {out / 'scenes' / 'images' / 'test'} --out tags.csv")
    echo("  fewtags check YOUR_PHOTOS/     (a folder per class, a CSV, COCO or VOC files)")
    echo("  fewtags train YOUR_PHOTOS/ --out runs/first")
