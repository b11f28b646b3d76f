"""`fewtags review` and `fewtags answers`: people answer questions about labels; the answers as a file."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import Complete, Covers, Cpu, ManyImages, ReadingSettings
from fewtags.cli.progress import echo, say
from fewtags.cli.reading import read_labels
from fewtags.errors import ConfigError
from fewtags.files import refuse_file

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

LOCAL_ONLY = ("127.0.0.1", "localhost", "::1")


def review(
    run: Annotated[Path, typer.Argument(help="Folder of a finished training run.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Labels of the photos to review; default: the training photos of the run."),
    ] = None,
    images: ManyImages = None,
    photos: Annotated[
        list[Path] | None, typer.Option("--photos", help="Photos without labels, or folders of them, instead of DATA.")
    ] = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
    order: Annotated[str | None, typer.Option(help="Order of the questions, as in `fewtags suggest`.")] = None,
    stop_below: Annotated[
        float,
        typer.Option(
            min=0, help="Advise to stop when an hour of answers is expected to buy fewer points of mAP than this."
        ),
    ] = 0.5,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. 0.0.0.0 lets everybody in your network who has the link see the photos and "
            "answer; the connection is not encrypted."
        ),
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8765 if it is free, else any.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    cpu: Cpu = False,
) -> None:
    """Answer questions about photos on a local web page.

    The model asks whether a photo shows a class, and shows where it sees it. Answers are saved in answers.sqlite in the
    run folder; your label files are not changed. `train --answers RUN` learns from them.

    \b
    Examples:
      fewtags review runs/first
      fewtags review runs/first --photos new/ --open
      fewtags review runs/first tags.csv --images photos/
    """  # noqa: D301
    from fewtags.review.serve import address, listen, needs_extra

    try:
        import fastapi  # noqa: F401 (said before the labels are read)
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    if data and photos:
        raise ConfigError("--photos is for photos without labels, instead of label files; give one of them.")
    if not data and (images or complete or covers or set_):
        raise ConfigError("--images, --complete, --covers and --set are for DATA; give the labels, or leave them out.")
    from fewtags.engine.places import model_path, refuse_missing_model

    refuse_missing_model(run)
    from fewtags.engine.model import read_info
    from fewtags.review.questions import unlabelled
    from fewtags.review.review import opened
    from fewtags.review.serve import serve

    table: LabelTable | None = None
    if photos:
        table, notes = unlabelled(photos, read_info(model_path(run)).classes)
        say(*notes)
    elif data:
        table = read_labels(data, images, complete, set_, covers=covers)
    with opened(run, table, order=order, cpu=cpu, stop_below=stop_below) as opened_review:
        bound = listen(host, port)
        link = address(bound, host, opened_review.token)
        if host not in LOCAL_ONLY:
            say(
                f"warning: --host {host} opens the page to everybody who reaches this machine and has the link; the "
                "connection is not encrypted."
            )

        def ready() -> None:
            if open_:
                webbrowser.open(link)

        echo(link)
        say("Ctrl-C ends the page; every answer is saved at once.")
        serve(opened_review, bound, ready=ready)


answers_app = typer.Typer(no_args_is_help=True, help="What people answered in `fewtags review`.")


@answers_app.command()
def export(
    runs: Annotated[list[Path], typer.Argument(help="Runs whose photos were reviewed, or their answers.sqlite.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv, or .json for coco and label-studio.")],
    to: Annotated[
        str | None, typer.Option(help="csv, coco or label-studio; default: csv if --out ends in .csv.")
    ] = None,
) -> None:
    """Write the answers to a file that other tools, and `fewtags train`, can read.

    Confirmed labels are positive, with their points and boxes; denied ones are negative. Disputed labels are left out.

    \b
    Examples:
      fewtags answers export runs/first --out answers.csv
      fewtags answers export runs/first --to coco --out answers.json
    """  # noqa: D301
    from fewtags.review.export import answers_table, export_answers

    if to is None and out.suffix.lower() != ".csv":
        raise ConfigError(f"--out {out}: give --to coco or --to label-studio, or a file that ends in .csv.")
    refuse_file(out, example="answers.csv", inputs=runs)
    table = answers_table(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    say(*table.notes.messages, *export_answers(table, out, to or "csv"))
    say(f"{len(table.facts):,} labels of {len(table):,} photos, whose names are relative to {table.root}")
    echo(out)
