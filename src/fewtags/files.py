"""Write files as a whole or not at all, refuse output paths that cannot be written, and paths in the home folder."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from typing import Any, final

from fewtags.errors import ConfigError, DiskError

_TEMPORARY = ".part"


_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust end the text of an error of the system."""


def with_home(path: str) -> str:
    """Return a path with the home folder in place of a leading ~, as a shell writes it; ~name is left as it is."""
    return os.path.expanduser(path) if path == "~" or path.startswith("~/") else path  # noqa: PTH111


def disk_error(path: Path, error: OSError, size: int | None = None) -> DiskError:
    """Return the error to raise for a file that cannot be written.

    Args:
        path: the file.
        error: of the system.
        size: bytes that the file needs, if they are known.
    """
    reason, cure = error.strerror or str(error) or type(error).__name__, "check the disk"
    folder = next((above for above in path.parents if above.is_dir()), Path())
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = "" if size is None else f"it needs {_megabytes(size)}, "
        cure = f"{needed}{_megabytes(shutil.disk_usage(folder).free)} are free; make room"
    elif error.errno == errno.EROFS:
        cure = "make the disk writable again"
    elif error.errno in (errno.EACCES, errno.EPERM):
        cure = f"make {path.parent} writable"
    elif not path.parent.is_dir():
        reason, cure = f"the folder {path.parent} does not exist", "make the folder, or restore it"
    return DiskError(f"cannot write {path}: {reason}; {cure}.")


@contextmanager
def writing(path: Path, size: int | None = None) -> Iterator[None]:
    """Turn the errors of the system that occur while a file is written into a `DiskError` with its name.

    Libraries with writers of their own (safetensors) raise other types, with the system's error number in the text.

    Args:
        path: the file.
        size: bytes that it needs, if they are known.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(path, error, size) from error
    except Exception as error:
        if (number := _SYSTEM_ERROR.search(str(error))) is None:
            raise
        system = OSError(int(number[1]), os.strerror(int(number[1])))
        raise disk_error(path, system, size) from error


@final
class Sink(BufferedIOBase):
    """Writes to an unbuffered file, and remembers the error of the system.

    `torch.save` replaces that error by one about positions in the file, and `np.save` by one without a number, because
    it writes to ordinary files itself.
    """

    def __init__(self, file: RawIOBase) -> None:
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write all bytes."""
        view, done = memoryview(data).cast("B"), 0
        try:
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            self.error = error
            raise
        return done


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"


@contextmanager
def replacing(path: Path, size: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end, flush that file to disk and rename it to `path`.

    A reader of `path` sees the old file or the new one, never a part. After an error, `path` is unchanged and the
    temporary file is removed. A symbolic link stays, and the file that it names is replaced. `size` is the number of
    bytes, if it is known, for the message about a full disk.

    Raises:
        DiskError: the folder of `path` does not exist, `path` is a device or a pipe, or the file cannot be written.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise DiskError(f"cannot write '{path}': it is not a regular file; give the path of a file.")
    if not path.parent.is_dir():
        raise DiskError(f"cannot write '{path}': the folder '{path.parent}' does not exist; make it first.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        with writing(path, size):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with suppress(OSError):  # on a read-only disk there is nothing to remove
            temporary.unlink()


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
        ConfigError: `out` is a folder, a device or an input, or no folder above it can be written.
    """
    if out.exists() and any(path is not None and Path(path).exists() and out.samefile(path) for path in inputs):
        raise ConfigError(f"{option} {out} is an input of this command and would be lost; write to another file.")
    if out.is_dir():
        raise ConfigError(f"{option} {out} is a folder; give a file in it, for example {out / example}.")
    if out.exists() and not out.is_file():  # a rename would replace the device itself
        raise ConfigError(f"{option} {out} is a device or a pipe; give the path of a file, for example {example}.")
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
