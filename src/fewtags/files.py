"""Write files as a whole or not at all, and refuse output paths that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtags.errors import ConfigError, DataError

_TEMPORARY = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end, flush that file to disk and rename it to `path`.

    A reader of `path` sees the old file or the new one, never a part. After an error, `path` is unchanged and the
    temporary file is removed. Raises DataError if the folder of `path` does not exist.
    """
    if not path.parent.is_dir():
        raise DataError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not exist; make it first.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file with `replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files of killed processes in a folder and below; no other process may write there."""
    for path in folder.rglob(f".*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def refuse_file(
    out: Path, option: str = "--out", example: str = "tags.csv", inputs: Iterable[Path | str | None] = ()
) -> None:
    """Check early that a file can be written. Missing folders are allowed: they are made when the file is written.

    Args:
        out: the file.
        option: the command-line option that names it.
        example: a file name for the message.
        inputs: files that the command reads and must not overwrite.

    Raises:
        ConfigError: `out` is a folder or an input, or no folder above it can be written.
    """
    if out.exists() and any(path is not None and Path(path).exists() and out.samefile(path) for path in inputs):
        raise ConfigError(f"{option} {out} is an input of this command and would be lost; write to another file.")
    if out.is_dir():
        raise ConfigError(f"{option} {out} is a folder; give a file in it, for example {out / example}.")
    _refuse_below(out.parent, out, option)


def refuse_folder(out: Path, option: str = "--out") -> None:
    """Check that a folder can be made or written; raise ConfigError otherwise."""
    _refuse_below(out, out, option)


def _refuse_below(folder: Path, out: Path, option: str) -> None:
    folder = folder.absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise ConfigError(f"{option} {out} cannot be written: {existing} is not a folder; give another path.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {out} cannot be written: no permission to write in {existing}; give another path.")
