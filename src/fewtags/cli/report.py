"""`fewtags report`: the page of a run, or of two side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewtags.cli.follow import is_pretraining, write_report
from fewtags.cli.options import Complete, Covers, Cpu, ManyImages, ReadingSettings
from fewtags.cli.progress import echo, say
from fewtags.cli.reading import read_labels
from fewtags.cli.use import choose_split
from fewtags.errors import ConfigError


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    other: Annotated[Path | None, typer.Argument(help="A second run to compare with.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file; default: report.html (of two runs: compare.html) in the first run's folder."),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABELS",
            help="Labels to evaluate the runs on, as in `evaluate`; may be repeated. Runs with other validation photos "
            "can be compared only in this way.",
        ),
    ] = None,
    images: ManyImages = None,
    split: Annotated[
        str | None, typer.Option(help="With --on: the split of these labels, as in `evaluate`.", show_default=False)
    ] = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
    cpu: Cpu = False,
) -> None:
    """Write the report of a run, or of two side by side.

    The report is one HTML file without links to others. `train` writes the report of a single run itself. With --on,
    the models are evaluated on the given labels, and the difference of two runs on the same photos is printed, too.

    \b
    Examples:
      fewtags report runs/baseline runs/first --out compare.html
      fewtags report runs/baseline runs/first --on test.csv --images photos/
    """  # noqa: D301
    from fewtags.engine.places import refuse_unfinished_run
    from fewtags.engine.runfolder import run_folder

    reading = {"--images": images, "--split": split, "--complete": complete, "--covers": covers, "--set": set_}
    if on is None and (unused := [name for name, value in {**reading, "--cpu": cpu}.items() if value]):
        raise ConfigError(f"{unused[0]} is for --on; give --on LABELS as well, or leave it out.")
    folder = run_folder(run)
    if on is None and other is None and out is None and is_pretraining(folder):
        echo(write_report(folder, cpu=False))
        return
    runs, labels = [run] if other is None else [run, other], None
    for path in runs:
        refuse_unfinished_run(path)
    if on is not None:
        table, which = choose_split(read_labels(on, images, complete, set_, covers=covers), split)
        say(which)
        from fewtags.report.on_labels import OnLabels

        labels = OnLabels(table, ", ".join(Path(name).name for name in on), cpu)
    from fewtags.report.build import build_report

    echo(build_report(runs, out, labels, say))
