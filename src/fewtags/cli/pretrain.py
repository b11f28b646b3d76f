"""pretrain: a backbone from photos without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.train import Set
from fewtags.objectives.table import pretrain_method_help

if TYPE_CHECKING:
    from fewtags.engine.events import Event
    from fewtags.engine.pretrain import PretrainRun


def pretrain(
    data: Annotated[
        str | None,
        typer.Argument(help="Folder of photos; or a label file, whose images are meant; or a text file with paths."),
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that image names in a file are relative to.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder; must be new or empty.")] = Path("runs/pretrained"),
    method: Annotated[
        str | None,
        typer.Option(help=pretrain_method_help()),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper or small; default: paper with a GPU and 50,000 photos, else small.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Any timm model with a spatial feature map.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="What it starts from: none (the default), offline, hub, or a file.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings (see `fewtags config --pretrain`); flags and --set come on top."),
    ] = None,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything random; default 0.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look at the photos and say what would be done; write nothing.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
) -> None:
    """Pretrain a backbone on photos without labels.

    Two views of every photo, and the photos nearest to it, are all there is to learn from. The run folder gets
    encoder.safetensors, which `fewtags train --init FOLDER` starts from, and report.html.

    \b
    Examples:
      fewtags pretrain photos/
      fewtags pretrain photos/ --backbone resnet50 --out runs/mls --set train.epochs=400
      fewtags pretrain instances.json --images photos/ --method moco
      fewtags train tags.csv --images photos/ --init runs/pretrained
    """  # noqa: D301
    import os

    from fewtags.cli.progress import counting, leading, say
    from fewtags.config.parse import apply_overrides, load_toml
    from fewtags.engine.pretrain import PretrainRun, make_pretrain_plan, read_settings
    from fewtags.engine.record import refuse_used_folder
    from fewtags.errors import ConfigError

    flags = {
        "data.train": data,
        "data.images": None if images is None else str(images),
        "objective.name": method,
        "train.preset": preset,
        "train.seed": seed,
        "model.backbone": backbone,
        "model.weights": weights,
    }
    tree = load_toml(config) if config is not None else {}
    tree = apply_overrides(tree, {k: v for k, v in flags.items() if v is not None})
    tree = apply_overrides(tree, set_ or [])
    if "train" not in tree.get("data", {}):
        raise ConfigError("nothing to train on: give a folder of photos, for example `fewtags pretrain photos/`.")
    settings = read_settings(tree, "the configuration" if config is None else str(config))
    if leading() and not dry_run:
        refuse_used_folder(out)
    faster = "--set data.decode=false reads headers only, and a broken photo then stops training"
    with counting("looking at photos", faster=faster if settings.data.decode else "") as tick:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        plan = make_pretrain_plan(settings, cpu=cpu, processes=processes, progress=tick)
    for line in plan.lines():
        say(line)
    if dry_run:
        say("dry run: nothing was written.")
        return
    run = PretrainRun(plan, out, cpu=cpu)
    follow_pretraining(run, run.start, out, cpu)


def follow_pretraining(run: PretrainRun, start: Callable[[], Iterator[Event]], out: Path, cpu: bool) -> None:
    """Show a pretraining run to its end, then its report. A run that stops at a collapse gets its report, too.

    Args:
        run: whose notes are told first.
        start: begins or resumes it.
        out: the run folder.
        cpu: ignore GPUs.
    """
    from fewtags.cli.progress import leading, say, show
    from fewtags.errors import TrainingError

    for note in run.notes:
        say(note)
    try:
        show(start())
        if leading():
            finish_pretraining(out, cpu)
    except TrainingError:
        if leading() and (out / "metrics.jsonl").exists():
            say(f"its curves: {written_report(out, cpu)}")
        raise
    except KeyboardInterrupt:
        say(f"interrupted; {what_next(out)}.")
        raise typer.Exit(130) from None


def what_next(out: Path) -> str:
    """How an interrupted pretraining run goes on; only what its folder really allows."""
    resume = f"`fewtags resume {out}`"
    if (out / "encoder.safetensors").exists():
        missing = not (out / "report.html").exists()
        return f"the encoder is complete, and {resume} writes the report" if missing else "the run is complete"
    if not (out / "pretrain.toml").exists():
        return "nothing was written yet; the same command starts again"
    if (out / "checkpoints" / "LAST").exists():
        return f"{resume} goes on from the last checkpoint"
    return f"{resume} begins again, since no checkpoint was complete"


def written_report(out: Path, cpu: bool) -> Path:
    """Write the report of a pretraining run, with a count of the photos that it looks at."""
    from fewtags.cli.progress import counting
    from fewtags.engine.machine import torch_device
    from fewtags.report.pretraining import build_pretraining_report

    with counting("looking for the nearest photos") as tick:
        return build_pretraining_report(out, device=torch_device(cpu), tick=tick)


def finish_pretraining(out: Path, cpu: bool) -> None:
    """After pretraining: where things are on stdout, what to do next on stderr."""
    from fewtags.cli.progress import say

    typer.echo(f"encoder: {out / 'encoder.safetensors'}")
    typer.echo(f"report: {written_report(out, cpu)}")
    say("next:")
    say(f"  fewtags train LABELS --images PHOTOS --init {out}")
    say(f"  fewtags transfer knn {out} LABELS --images PHOTOS")
    say(f"  fewtags export-backbone {out} backbone.safetensors")


def resume_pretraining(run: Path, cpu: bool) -> bool:
    """Go on with a pretraining run, or write the missing report of a finished one; False if the folder holds none."""
    from fewtags.cli.progress import leading, say

    if not (run / "pretrain.toml").exists():
        return False
    if (run / "encoder.safetensors").exists() and not (run / "report.html").exists():
        say(f"{run} is finished, but its report is missing; it is written now.")
        if leading():
            finish_pretraining(run, cpu)
        return True
    from fewtags.engine.pretrain import open_pretrain_run

    opened = open_pretrain_run(run, cpu=cpu)
    follow_pretraining(opened, opened.resume, run, cpu)
    return True
