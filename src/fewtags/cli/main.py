"""Entry point: the app, its commands and error handling. Commands import torch only when they run."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any, final

import typer
from typer.core import TyperGroup

from fewtags.cli import (
    bench,
    calibrate,
    data,
    demo,
    expected,
    export,
    info,
    plan,
    pretrain,
    report,
    review,
    serve,
    suggest,
    teach,
    thresholds,
    train,
    transfer_dense,
    use,
)
from fewtags.cli.figure import figure_app
from fewtags.cli.help_pages import finish_help
from fewtags.cli.progress import echo
from fewtags.cli.transfer import transfer_app
from fewtags.errors import FewtagsError
from fewtags.files import with_home
from fewtags.photos.worker_failures import worker_failure
from fewtags.text import command_line


@final
class Commands(TyperGroup):
    """The commands. Errors of the user and the system become one message and exit code 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept `--debug` anywhere, so that it can be appended to a command that failed, and paths as in `--out=~/a`.

        A shell replaces a ~ at the start of a word only, and a folder that is called ~ is dangerous to remove.
        """
        parts = [word.partition("=") if word.startswith("--") else (word, "", "") for word in args]
        args = [name + equals + with_home(value) for name, equals, value in parts]
        if "--debug" in args:
            args = ["--debug", *(a for a in args if a != "--debug")]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help has plain words and 80 columns."""
        if (found := super().get_command(ctx, cmd_name)) is not None:
            finish_help(found)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Errors other than `FewtagsError` and `OSError` are bugs and keep their traceback."""
        try:
            with command_line():
                return super().invoke(ctx)
        except FewtagsError as error:
            _refuse(str(error), ctx, error)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader closed the pipe; typer exits silently
                raise
            _refuse(_system_message(error), ctx, error)
        except RuntimeError as error:
            if (reason := worker_failure(str(error))) is None:
                raise
            _refuse(reason, ctx, error)
        except KeyboardInterrupt:
            echo("interrupted.", err=True)
            raise typer.Exit(130) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the app; help and the version, which are printed before a command begins, may meet a full disk, too."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if "--debug" in sys.argv:
                raise
            echo(f"error: {_system_message(error)}", err=True)
            sys.exit(1)


def _system_message(error: OSError) -> str:
    """Return a system error as a message; one of printing names no file."""
    if error.filename is not None:
        return f"{error.strerror or error}: {error.filename}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return f"{error.strerror}: what the command prints cannot be written."
    return str(error)


def _refuse(message: str, ctx: Any, error: Exception) -> None:
    if ctx.params["debug"]:
        raise error
    echo(f"error: {message}", err=True)
    raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    name="fewtags",
    help="Train multi-label image classifiers with heatmaps from one label per photo, or from any labels you have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich boxes on a terminal, plain lines in a pipe.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    epilog="Start with `fewtags demo`, then `fewtags check photos/` and `fewtags train photos/`.",
)
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Data": (data.check, data.simulate, plan.plan, expected.estimate_k),
    "Training": (train.train, train.resume, pretrain.pretrain, teach.teach, report.report, bench.bench),
    "Use": (
        use.evaluate,
        use.predict,
        use.heatmap,
        thresholds.thresholds,
        calibrate.calibrate,
        export.export,
        serve.serve,
    ),
    "Labels from people": (suggest.suggest, review.review),
    "About": (demo.demo, info.methods, info.config, info.doctor),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("export-backbone", hidden=True)(export.export_backbone)
for command in (transfer_dense.detect, transfer_dense.segment):
    transfer_app.command()(command)
app.add_typer(transfer_app, name="transfer", rich_help_panel="Training")
app.add_typer(figure_app, name="figure", rich_help_panel="Training")
app.add_typer(review.answers_app, name="answers", rich_help_panel="Labels from people")


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        echo(version("fewtags"))
        raise typer.Exit


@app.callback()
def main(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of every command; `Commands` handles `--debug`."""


def run() -> None:
    """Run the command line; the console script and `python -m fewtags` start here."""
    app(prog_name="fewtags")
