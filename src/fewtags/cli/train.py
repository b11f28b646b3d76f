"""train, resume, report, demo."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for example train.lr=1e-4.")
]


def train(
    data: Annotated[
        str | None, typer.Argument(help="Folder of class folders, CSV, COCO JSON, VOC folder or Parquet table.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    val: Annotated[
        str | None, typer.Option(help="Labels to validate on; none: a share of the images is held out.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Labels to test on, once.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder; must be new or empty.")] = Path("runs/first"),
    method: Annotated[str | None, typer.Option(help="See `fewtags methods`.")] = None,
    preset: Annotated[str | None, typer.Option(help="cpu, finetune, paper, paper_scratch or paper_imagenet.")] = None,
    weights: Annotated[str | None, typer.Option(help="hub, offline, none, or a file.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; flags and --set come on top.")] = None,
    set_: Set = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    seed: Annotated[int | None, typer.Option(help="Decides everything random.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read, check and say what would be done.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
) -> None:
    """Train a multi-label model from whatever labels there are.

    Examples:
      fewtags train photos/
      fewtags train tags.csv --images photos/ --out runs/tags
      fewtags train instances.json --images photos/ --complete --method bce
      fewtags train photos/ --set objective.scl_weight=1 --set train.epochs=20
    """
    from fewtags.cli.progress import counting, show
    from fewtags.engine.plan import make_plan
    from fewtags.engine.run import Run

    flags = {
        "data.train": data,
        "data.images": None if images is None else str(images),
        "data.val": val,
        "data.test": test,
        "data.complete": True if complete else None,
        "objective.name": method,
        "train.preset": preset,
        "train.seed": seed,
        "model.weights": weights,
    }
    settings = read_settings(config, {k: v for k, v in flags.items() if v is not None}, set_ or [])
    with counting("looking at photos") as tick:
        plan = make_plan(settings, cpu=cpu, progress=tick)
    for line in plan.lines():
        typer.echo(line, err=True)
    if dry_run:
        typer.echo("dry run: nothing was written.", err=True)
        return
    with counting("caching views") as tick:
        run = Run(plan, out, cpu=cpu, tick=tick)
        events = run.start()
        first = next(events)  # the views are cached before the first event
    show(chain([first], events))
    finish(out)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
) -> None:
    """Go on with an interrupted run; the result is the same, bit for bit, as without the interruption."""
    from fewtags.cli.progress import show
    from fewtags.engine.run import open_run

    show(open_run(run, cpu=cpu).resume())
    finish(run)


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    other: Annotated[Path | None, typer.Argument(help="A second run to show beside it.")] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file; default: report.html in the run folder.")] = None,
) -> None:
    """Write what is known of a run, or of two side by side, to one HTML file."""
    from fewtags.report.build import build_report

    typer.echo(build_report([run] if other is None else [run, other], out))


def demo(
    out: Annotated[Path, typer.Option(help="Folder for photos, runs and the report; made if need be.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed, other scenes and another training.")] = 0,
) -> None:
    """Show the whole thing in three minutes: handwritten digits, one label per scene, AN against EN + SCL, a report."""
    from fewtags.cli.demo import run_demo

    run_demo(out, seed)


def read_settings(config: Path | None, flags: dict[str, Any], assignments: list[str]) -> Any:
    """The settings of a TOML file, flags and `--set`, in rising precedence.

    Raises:
        ConfigError: see `config.parse`; or there is nothing to train on.
    """
    from fewtags.config import apply_overrides, load_toml, parse
    from fewtags.engine.methods import settings_models
    from fewtags.errors import ConfigError

    tree = load_toml(config) if config is not None else {}
    tree = apply_overrides(apply_overrides(tree, flags), assignments)
    if "train" not in tree.get("data", {}):
        raise ConfigError("nothing to train on: give a folder or label file, for example `fewtags train photos/`.")
    return parse(tree, settings_models(), "the configuration" if config is None else str(config))


def finish(run: Path) -> None:
    """After training: the report, the numbers, and what to do next."""
    import json

    from fewtags.report.build import build_report

    page = build_report([run], None)
    for split in ("val", "test"):
        path = run / "evaluation" / f"{split}.json"
        if path.exists():
            typer.echo(headline(split, json.loads(path.read_text("utf-8"))))
    typer.echo(f"report: {page}")
    typer.echo("next:")
    typer.echo(f"  fewtags predict {run} PHOTOS --out tags.csv")
    typer.echo(f"  fewtags heatmap {run} PHOTO.jpg --out heatmaps/")
    typer.echo(f"  fewtags evaluate {run} LABELS --images FOLDER")


def headline(split: str, result: dict[str, Any]) -> str:
    """One line about an evaluation."""
    if result["mAP"] is not None:
        low, high = result["mAP_interval"]
        return (
            f"{split}: mAP {100 * result['mAP']:.1f} (95 % interval {100 * low:.1f} .. {100 * high:.1f}), "
            f"{result['classes_counted']} classes, {result['images']:,} images, {result['known_cells']:,} known cells"
        )
    only = result["positive_only"]
    return (
        f"{split}: no negative is known, so AP has no meaning; hit@1 {100 * only['hit@1']:.1f} %, "
        f"mean rank of the known label {only['mean_rank']:.2f} over {only['images']:,} images"
    )
