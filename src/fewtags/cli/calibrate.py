"""`fewtags calibrate`: probabilities of a trained model that agree with frequencies."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fewtags.cli.options import Complete, Covers, Cpu, Json, ManyImages, ReadingSettings
from fewtags.cli.progress import echo, say
from fewtags.cli.reading import read_labels
from fewtags.cli.use import Model, choose_split
from fewtags.errors import ConfigError


def calibrate(
    model: Model,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LABELS]...", help="Labels to calibrate on; default: the validation photos of the run."
        ),
    ] = None,
    images: ManyImages = None,
    split: Annotated[
        str | None, typer.Option(help="Split to calibrate on, if the labels have splits; or all; as in evaluate.")
    ] = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
    store: Annotated[bool, typer.Option("--store", help="Store the calibration in the model.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the probabilities of the trained model.")] = False,
    as_json: Json = False,
    cpu: Cpu = False,
) -> None:
    """Make the probabilities of a model agree with frequencies.

    Of the tags with a probability of 0.8, eight of ten should be right. Models that learn from few labels are off,
    often by a factor. One slope and an offset for each class are fitted to the known labels, or to the expected number
    of positives where fewer than half of the labels of a class are known. AP and tags do not change, because the
    thresholds move with the probabilities; the order of the tags of a photo, and what --max-tags keeps of them, may.

    Shows the calibration error (expected calibration error, 15 bins) before and after; with --store, all commands and
    exports use the new probabilities.

    \b
    Examples:
      fewtags calibrate runs/first
      fewtags calibrate runs/first --store
      fewtags calibrate runs/first checked.csv --images photos/ --complete --store
      fewtags calibrate runs/first --undo
    """  # noqa: D301
    from fewtags.engine.places import model_path, refuse_missing_model

    reading = {"--images": images, "--split": split, "--covers": covers, "--set": set_, "--complete": complete or None}
    useless = [option for option, value in reading.items() if value]
    if undo and (store or data or useless):
        named = ", ".join(["LABELS"] * bool(data) + ["--store"] * store + useless)
        raise ConfigError(f"--undo restores the trained model and takes nothing else; leave {named} out.")
    if useless and not data:
        raise ConfigError(f"{', '.join(useless)}: there are no LABELS to read; give them, or leave this out.")
    refuse_missing_model(model)
    table = None
    if data:
        table, which = choose_split(read_labels(data, images, complete, set_, covers=covers), split, "calibrating")
        say(which)
    from fewtags.engine.calibration import fit_to_run, fit_to_table, refuse_exported, store_calibration
    from fewtags.engine.model import load_model, read_info
    from fewtags.engine.runfolder import MODEL_FILE

    path = model_path(model)
    refuse_exported(path)
    # The evaluations of a run belong to its model, whether the folder or the file is named.
    is_of_run = path.name == MODEL_FILE and (path.parent / "evaluation").is_dir()
    place = path.parent if is_of_run else path
    if undo:
        say(*store_calibration(place, None))
        return
    if table is not None:
        net, info = load_model(path)
        fitted, notes = fit_to_table(net, info, table, cpu=cpu)
        say(*notes)
    else:
        fitted = fit_to_run(read_info(path), path.parent)
    if as_json:
        echo(json.dumps(fitted.to_dict(), ensure_ascii=False))
    else:
        echo(str(fitted))
    say(*(store_calibration(place, fitted) if store else ["nothing is stored; --store writes it into the model"]))
