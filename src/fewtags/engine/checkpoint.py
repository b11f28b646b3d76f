"""Checkpoints: everything that a run needs to continue. A kill at any moment leaves a usable one.

A checkpoint is a folder `checkpoints/step-000000123/`. It is written under a temporary name and renamed when it is
complete. Then `checkpoints/LAST` is changed to name it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import CheckpointError
from fewtags.files import replacing, write_text

FORMAT = 1


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write a .npy file atomically."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)


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
        name = pointer.read_text("utf-8").strip()
        path = self.root / name
        if not name or not (path / "progress.json").exists():
            raise CheckpointError(
                f"{pointer} names {name!r}, which is missing or incomplete; restore it, or start a new run."
            )
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
        for path in temporary.rglob("*"):  # so that the files are whole after a power cut that follows the rename
            if path.is_file():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
        write_text(temporary / "progress.json", json.dumps({"format": FORMAT, **progress}, indent=1))
        if final_path.exists():
            shutil.rmtree(final_path)
        temporary.rename(final_path)
        write_text(self.root / "LAST", final_path.name)
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
