"""The demo: the same scenes, the same net, the same seed; once assume-negative, once EN + SCL, and a report of both."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import typer

# A small net from scratch, since the demo must work without any download. Crops of 48 pixels keep digits about as
# big as they were written; no flips: digits have a handedness. Both methods start with the same assume-negative epochs:
# expected negatives need a ranking that is worth something.
RECIPE: dict[str, Any] = {
    "data": {"train": "(tables in memory)"},
    "model": {"backbone": "test_resnet", "weights": "none", "output_stride": 8},
    "augment": {"policy": "coco", "size": 48, "flip": False},
    "train": {
        "preset": "cpu",
        "batch_size": 16,
        "workers": 0,
        "cached_views": 0,
        "batchnorm_eval": False,
        "stages": [
            {
                "name": "assume negative",
                "epochs": 14,
                "lr": 5e-3,
                "trainable": "all",
                "schedule": "constant",
                "warmup": True,
            },
            {"name": "main", "epochs": 8, "lr": 5e-3, "trainable": "all"},
        ],
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "assume_negative": {"name": "assume_negative"},
    "en_scl": {"name": "expected_negative", "scl_weight": 0.1},
}
SCENES = {"train": 1000, "val": 250, "test": 250, "size": 128}


def run_demo(out: Path, seed: int) -> None:
    """Make scenes, train both methods, and write the comparison."""
    from fewtags.cli.progress import show
    from fewtags.config import apply_overrides, parse
    from fewtags.data.demo import make_scenes
    from fewtags.engine.methods import settings_models
    from fewtags.engine.plan import Tables, make_plan
    from fewtags.engine.run import Run
    from fewtags.report.build import build_report

    began = time.perf_counter()
    say("Scenes of handwritten digits: 2 to 4 digits each, one of them labelled in the training set.")
    scenes = make_scenes(out / "scenes", **SCENES, seed=seed)
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    say(
        f"{len(scenes.train):,} training, {len(scenes.val):,} validation, {len(scenes.test):,} test scenes "
        f"in {out / 'scenes'}"
    )
    runs = []
    for name, objective in METHODS.items():
        run = out / name
        if run.exists():
            shutil.rmtree(run)
        config = parse(
            apply_overrides(RECIPE, {"objective": objective, "train.seed": seed}), settings_models(), "the demo"
        )
        say(f"\ntraining {name}")
        show(Run(make_plan(config, tables=tables, cpu=True), run, cpu=True).start(), f"{name}: ")
        build_report([run], None)
        runs.append(run)
    page = build_report(runs, out / "report.html")
    summary(runs, page, out, time.perf_counter() - began)


def summary(runs: list[Path], page: Path, out: Path, seconds: float) -> None:
    """What came out, and what to do next."""
    import json

    typer.echo("")
    for run in runs:
        result = json.loads((run / "evaluation" / "test.json").read_text("utf-8"))
        low, high = result["mAP_interval"]
        typer.echo(
            f"{run.name}: test mAP {100 * result['mAP']:.1f} "
            f"(95 % interval over images {100 * low:.1f} .. {100 * high:.1f}); it expects "
            f"{result['cardinality']['expected']:.1f} digits per scene, {result['cardinality']['known']:.1f} are there"
        )
    typer.echo(
        f"{seconds:.0f} s in all. Open {page} to see both side by side, with heatmaps of digits nobody labelled."
    )
    typer.echo("next:")
    typer.echo(f"  fewtags predict {runs[-1]} {out / 'scenes' / 'images' / 'test'} --out tags.csv")
    typer.echo("  fewtags check YOUR_PHOTOS/     (a folder per class, a CSV, COCO or VOC files)")
    typer.echo("  fewtags train YOUR_PHOTOS/ --out runs/first")


def say(text: str) -> None:
    """Progress for people, on stderr."""
    typer.echo(text, err=True)
