"""Print results; progress and messages are those of `engine.progress`, which the Python interface shows, too."""

from __future__ import annotations

import typer

from fewtags.engine.progress import counting, epoch_line, is_main_process, say, show, watch
from fewtags.text import printable

__all__ = ["counting", "echo", "epoch_line", "is_main_process", "say", "show", "watch"]


def echo(text: object, *, err: bool = False) -> None:
    """Print a result on stdout (or a line on stderr); control characters of names become escapes."""
    typer.echo(printable(str(text)), err=err)
