"""Print results; progress and messages are those of `engine.progress`, which the Python interface shows, too."""

from __future__ import annotations

import os

import typer

from fewtags.engine.progress import counting, epoch_line, is_main_process, say, show, watch
from fewtags.text import printable

__all__ = ["counting", "echo", "echo_finding", "epoch_line", "is_main_process", "say", "show", "watch"]


def echo(text: object, *, err: bool = False) -> None:
    """Print a result on stdout (or a line on stderr); control characters of names become escapes."""
    typer.echo(printable(str(text)), err=err)


def echo_finding(line: str) -> None:
    """Print a line of `check` on stdout; on a terminal, warnings are yellow and errors red, unless NO_COLOR is set."""
    colour = {"error": "red", "warning": "yellow"}.get(line.partition(":")[0])
    typer.secho(printable(line), fg=None if "NO_COLOR" in os.environ else colour)
