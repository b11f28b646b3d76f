"""Refuse a place that cannot be written before time is spent on photos."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fewtags.errors import ConfigError


def refuse_file(
    out: Path, option: str = "--out", example: str = "tags.csv", inputs: Iterable[Path | str | None] = ()
) -> None:
    """Refuse a file that cannot be made; folders that are missing are made when it is written.

    Args:
        out: the file.
        option: that names it.
        example: what such a file might be called.
        inputs: what the command reads, and must not lose.

    Raises:
        ConfigError: it is a folder or an input, or there is none above it that can be written in.
    """
    if out.exists() and any(place is not None and Path(place).exists() and out.samefile(place) for place in inputs):
        raise ConfigError(f"{option} {out} is what is read here, and would be lost; write to another file.")
    if out.is_dir():
        raise ConfigError(f"{option} {out} is a folder; give a file in it, for example {out / example}.")
    _refuse_below(out.parent, out, option)


def refuse_folder(out: Path) -> None:
    """Refuse a folder that cannot be made or written in.

    Raises:
        ConfigError: it, or what is above it, is a file, or may not be written in.
    """
    _refuse_below(out, out, "--out")


def _refuse_below(folder: Path, out: Path, option: str) -> None:
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ConfigError(f"{option} {out} cannot be written: {there} is no folder; give another place.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {out} cannot be written: no permission to write in {there}; give another place.")
