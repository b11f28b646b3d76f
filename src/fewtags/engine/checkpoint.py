"""Checkpoints: everything that a run needs to continue. A kill at any moment leaves a usable one.

A checkpoint is a folder `checkpoints/step-000000123/`. It is written under a temporary name and renamed when it is
complete. Then `checkpoints/LAST` is changed to name it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import CheckpointError, FewtagsError
from fewtags.files import Sink, replacing, write_text

FORMAT = 1
BAD_ARRAY = (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error, KeyError)
"""What `np.load` and the arrays of an .npz file raise if a file is damaged."""


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write a .npy file atomically."""
    with replacing(path, values.nbytes) as temporary, temporary.open("wb", buffering=0) as file:
        np.save(Sink(file), values)


RESTORE = "restore it, or start a new run"
"""What to do about a damaged file without which a run cannot go on."""


@contextmanager
def reading_record(path: Path, cure: str = RESTORE) -> Iterator[None]:
    """Turn whatever a damaged file of a run folder raises while it is read into an error with its name.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {cure}.") from None
    except CheckpointError:
        raise
    except (*BAD_ARRAY, FewtagsError, TypeError, AttributeError, IndexError, RecursionError, csv.Error) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).strip() or type(error).__name__
        raise CheckpointError(f"{path} is damaged ({reason.splitlines()[0]}); {cure}.") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: its content has changed since it was written; restore it, or start a new run."
    )


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """Return the error to raise for a file of a checkpoint that cannot be read."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointError(f"{path} cannot be read ({reason}); restore it, or start a new run.")


@final
class CheckpointFolder:
    """The `checkpoints` folder of a run, made by the first save; it keeps the newest complete checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def last(self) -> Path | None:
        """Return the newest complete checkpoint, None if there is none yet.

        Raises:
            CheckpointError: `LAST` names a checkpoint that is missing or incomplete.
        """
        pointer = self.root / "LAST"
        if not pointer.exists():
            return None
        try:
            name, _, digest = pointer.read_text("utf-8").strip().partition(" ")
            path = self.root / name
            if not name or not (path / "progress.json").exists():
                raise CheckpointError(
                    f"{pointer} names {name!r}, which is missing or incomplete; restore it, or start a new run."
                )
            if digest not in ("", sha256_of(path / "progress.json")):  # older versions wrote no digest
                raise _changed(path / "progress.json")
        except (OSError, ValueError) as error:
            raise unreadable(pointer, error) from None
        return path

    def temporary(self, step: int) -> Path:
        """Return the folder that the checkpoint at `step` is written into."""
        return self.root / f".step-{step:09d}.tmp"

    def begin(self, step: int) -> Path:
        """Make the temporary folder for `step`, and remove those of killed processes."""
        self.root.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.root.glob(".step-*.tmp"):
            shutil.rmtree(left_by_a_kill)
        self.temporary(step).mkdir()
        return self.temporary(step)

    def finish(self, step: int, progress: Mapping[str, Any]) -> Path:
        """Complete the checkpoint: write `progress.json`, rename the folder, update `LAST`, remove older ones."""
        temporary, final_path = self.temporary(step), self.root / f"step-{step:09d}"
        _flush(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        digests = {path.relative_to(temporary).as_posix(): sha256_of(path) for path in files}
        record = temporary / "progress.json"
        write_text(record, json.dumps({"format": FORMAT, "sha256": digests, **progress}, indent=1))
        digest = sha256_of(record)
        if final_path.exists():
            shutil.rmtree(final_path)
        temporary.rename(final_path)
        write_text(self.root / "LAST", f"{final_path.name} {digest}")
        for old in self.root.glob("step-*"):
            if old != final_path:
                shutil.rmtree(old)
        return final_path

    @staticmethod
    def progress(path: Path) -> dict[str, Any]:
        """Read the `progress.json` of a checkpoint.

        Raises:
            CheckpointError: it is damaged, or has another format.
        """
        file = path / "progress.json"
        try:
            progress = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise unreadable(file, error) from None
        found = progress.get("format") if isinstance(progress, dict) else None
        if found != FORMAT:
            raise CheckpointError(
                f"{path} has checkpoint format {found}, this version reads {FORMAT}; "
                "resume it with the version that wrote it, or start a new run."
            )
        content: dict[str, Any] = progress
        return content

    @staticmethod
    def verify(path: Path, progress: Mapping[str, Any], skip: Callable[[str], bool]) -> None:
        """Compare the files of a checkpoint with the checksums in its `progress.json`.

        Args:
            path: the checkpoint.
            progress: what `progress` returned.
            skip: whether a file, given by its path in the checkpoint, is not needed by this process.

        Raises:
            CheckpointError: a file is missing or has changed.
        """
        for name, digest in progress.get("sha256", {}).items():  # older versions wrote none
            if not skip(name):
                try:
                    found = sha256_of(path / name)
                except OSError as error:
                    raise unreadable(path / name, error) from None
                if found != digest:
                    raise _changed(path / name)


def _flush(folder: Path) -> None:
    """Write all files of a folder to the disk, so that they are whole after a power cut that follows the rename."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
