"""`fewtags review` and `fewtags answers`: people answer questions about labels; the answers as a file."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import Complete, Covers, Cpu, ManyImages, ReadingSettings
from fewtags.cli.progress import counting, echo, say
from fewtags.cli.reading import read_labels
from fewtags.errors import ConfigError

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

LOCAL_ONLY = ("127.0.0.1", "localhost", "::1")


def review(
    run: Annotated[Path, typer.Argument(help="Folder of a finished training run.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Photos to review, with labels or without; default: the training photos of the run."),
    ] = None,
    images: ManyImages = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
    order: Annotated[str | None, typer.Option(help="Order of the questions, as in `fewtags suggest`.")] = None,
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
      fewtags review runs/first new/ --open
      fewtags review runs/first tags.csv --images photos/
    """  # noqa: D301
    from fewtags.review.serve import address, listen, needs_extra

    try:
        import fastapi  # noqa: F401 (said before the labels are read)
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    table = None if not data else photos_to_review(data, images, complete, covers, set_)
    if table is None and (images or complete or covers or set_):
        raise ConfigError("--images, --complete, --covers and --set are for DATA; give the labels, or leave them out.")
    from fewtags.review.review import opened
    from fewtags.review.serve import serve

    with opened(run, table, order=order, cpu=cpu) as opened_review:
        bound = listen(host, port)
        link = address(bound, host, opened_review.token)
        if host not in LOCAL_ONLY:
            say(
                f"warning: --host {host} opens the page to everybody who reaches this machine and has the link; the "
                "connection is not encrypted."
            )
        echo(link)
        say("Ctrl-C ends the page; every answer is saved at once.")
        serve(opened_review, bound, ready=lambda: open_ and webbrowser.open(link))  # type: ignore[arg-type,return-value]


def photos_to_review(
    data: list[str],
    images: list[Path] | None,
    complete: bool,
    covers: list[str] | None,
    assignments: list[str] | None,
) -> LabelTable:
    """Read labels, or find photos without labels; photos that cannot be read are left out with a message."""
    from fewtags.formats.unlabelled import check_photos, unlabelled

    if len(data) == 1 and Path(data[0]).is_dir() and not (images or complete or covers or assignments):
        table = unlabelled(data[0])
        say(*table.notes.messages)
    else:
        table = read_labels(data, images, complete, assignments, covers=covers)
    with counting("checking photos") as tick:
        checked = check_photos(table, decode=False, progress=tick)
    if left_out := len(table) - len(checked):
        say(f"warning: {left_out:,} photos cannot be read and are left out.")
    return checked
