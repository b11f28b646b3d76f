"""Entry point: the app, its commands, and what happens to errors. Torch is imported inside commands only."""

from __future__ import annotations

import sys

import typer

from fewtags.cli import data, info, train, use
from fewtags.errors import FewtagsError

app = typer.Typer(
    name="fewtags",
    help="Train multi-label image classifiers, with heatmaps, from one label per photo or whatever labels there are.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with: fewtags demo. Then: fewtags check photos/ and fewtags train photos/",
)
app.command()(train.demo)
app.command()(data.check)
app.command()(data.simulate)
app.command(name="train")(train.train)
app.command()(train.resume)
app.command()(use.evaluate)
app.command()(use.predict)
app.command()(use.heatmap)
app.command()(train.report)
app.command()(info.methods)
app.command()(info.config)
app.command()(info.doctor)


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(version("fewtags"))
        raise typer.Exit


@app.callback()
def main(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options before the command (`--debug` is read by `run`, which sees the errors)."""


def run() -> None:
    """Run the app; one of our errors is one message and exit code 1, an interrupted run says how to go on (130)."""
    try:
        app()
    except FewtagsError as error:
        if "--debug" in sys.argv[1:3]:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted; `fewtags resume RUN` goes on from the last checkpoint.", err=True)
        sys.exit(130)
