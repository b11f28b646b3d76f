"""Refuse an `--out` that cannot be written before time is spent on photos."""

from __future__ import annotations

import os
from pathlib import Path

from fewtags.errors import ConfigError


def refuse_file(out: Path) -> None:
    """Refuse a file that cannot be made; folders that are missing are made when it is written.

    Raises:
        ConfigError: it is a folder, or there is none above it that can be written in.
    """
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; give a file in it, for example {out / 'tags.csv'}.")
    _refuse_below(out.parent, out)


def refuse_folder(out: Path) -> None:
    """Refuse a folder that cannot be made or written in.

    Raises:
        ConfigError: it, or what is above it, is a file, or may not be written in.
    """
    _refuse_below(out, out)


def _refuse_below(folder: Path, out: Path) -> None:
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ConfigError(f"--out {out} cannot be written: {there} is no folder; give another place.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out} cannot be written: no permission to write in {there}; give another place.")
