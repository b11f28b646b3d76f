"""Show a run until it ends, and print its results and the next steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fewtags.cli.progress import counting, echo, is_main_process, say, watch
from fewtags.errors import DiskError, FewtagsError, TrainingError

if TYPE_CHECKING:
    from fewtags.engine.events import Event
    from fewtags.engine.runfolder import RunFolder
    from fewtags.photos.scan import Tick


def follow(folder: RunFolder, start: Callable[[Tick], Iterator[Event]], cpu: bool, track: str | None = None) -> None:
    """Show a run until it ends, then write its report and print its results.

    `start` starts or resumes the run; its argument shows progress before training. A pretraining run that collapses
    also gets its report. `track` names a tracker.
    """

    def begin(tick: Tick) -> Iterator[Event]:
        from fewtags.engine.tracking import tracked

        events = start(tick)
        return events if track is None else tracked(events, track, folder.path, folder.kind.settings)

    try:
        for _ in watch(begin, features=not is_pretraining(folder)):
            pass
        if is_main_process():
            _finish_or_say_how(folder, cpu)
    except TrainingError:
        if is_main_process() and is_pretraining(folder) and (folder.path / "metrics.jsonl").exists():
            say(f"its curves: {write_report(folder, cpu)}")
        raise
    except KeyboardInterrupt:
        say(f"interrupted; {folder.what_next()}.")
        raise typer.Exit(130) from None


def _finish_or_say_how(folder: RunFolder, cpu: bool) -> None:
    """Finish; if the report cannot be written, say that the result is complete."""
    try:
        finish(folder, cpu)
    except DiskError as error:
        raise DiskError(f"{error} After that: {folder.what_next()}.") from error


def is_pretraining(folder: RunFolder) -> bool:
    """Whether a folder belongs to a pretraining run."""
    return folder.kind.settings == "pretrain.toml"


NOTICED_ERROR = 0.05
"""Calibration error on validation from which on the next steps name `fewtags calibrate`."""


def write_report(folder: RunFolder, cpu: bool) -> Path:
    """Write the report of a run; return its path."""
    if not is_pretraining(folder):
        from fewtags.report.build import build_report

        return build_report([folder.path], None)
    from fewtags.engine.machine import torch_device
    from fewtags.report.pretraining import build_pretraining_report

    with counting("looking for the nearest photos") as tick:
        return build_pretraining_report(folder.path, device=torch_device(cpu), tick=tick)


def _unknown_cells(run: Path) -> int:
    """Return how many labels of the training photos are unknown; 0 without a record of them."""
    from fewtags.labels import Label
    from fewtags.table.storage import load

    record = run / "tables" / "train.parquet"
    with suppress(FewtagsError, OSError):  # `fewtags review` says what is wrong with it
        return int(load(record).matrix.counts(Label.UNKNOWN).sum()) if record.exists() else 0
    return 0


def finish(folder: RunFolder, cpu: bool) -> None:
    """Write the report of a finished run; print results on stdout, and the next steps on stderr."""
    run = folder.path
    if is_pretraining(folder):
        echo(f"encoder: {run / folder.kind.result}")
        echo(f"report: {write_report(folder, cpu)}")
        say("next:")
        say(f"  fewtags train LABELS --images PHOTOS --init {run}")
        say(f"  fewtags train LABELS --images PHOTOS --init preset --init {run}    (takes what validation prefers)")
        say(f"  fewtags transfer knn {run} LABELS --images PHOTOS")
        say(f"  fewtags export {run} --to backbone --out backbone.safetensors")
        return
    from fewtags.engine.clock import clock_line
    from fewtags.engine.evaluate import result_lines
    from fewtags.engine.model import read_info
    from fewtags.report.load import load_baseline, load_clock, load_evaluations

    page = write_report(folder, cpu)
    evaluations = load_evaluations(run)
    for line in result_lines(evaluations):
        echo(line)
    for line in load_baseline(run, evaluations):
        echo(line)
    info = read_info(run / folder.kind.result)
    say(*info.lines())
    echo(f"report: {page}")
    if seconds := load_clock(run):
        say(clock_line(seconds))
    say("next:")
    say(f"  fewtags predict {run} PHOTOS --out tags.csv")
    if info.head.has_maps:
        say(f"  fewtags heatmap {run} PHOTO.jpg --out heatmaps/")
    say(f"  fewtags evaluate {run} LABELS --images FOLDER")
    if unknown := _unknown_cells(run):
        say(f"  fewtags review {run}    (asks you about {unknown:,} labels that nobody gave)")
    error = evaluations.get("val", {}).get("calibration", {}).get("error")
    if error is not None and error >= NOTICED_ERROR:
        points = f"{100 * error:.0f} points off in the mean on validation"
        say(f"  fewtags calibrate {run} --store    (probabilities are {points})")
