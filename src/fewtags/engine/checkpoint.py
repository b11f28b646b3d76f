"""Checkpoints: everything that a run needs to go on, written so that a kill at any moment leaves a usable one.

A checkpoint is a folder `checkpoints/step-000000123/`, written under a temporary name, renamed when complete, and only
then named in `checkpoints/LAST`. Weights are safetensors; the optimiser's state is loaded with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewtags.errors import CheckpointError
from fewtags.files import replacing, write_text

FORMAT = 1
# Tensors above this many bytes are streamed to their own .npy file: safetensors would copy them in memory first.
STREAM_BYTES = 64 * 2**20


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write a .npy file atomically."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    with replacing(path) as temporary:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, dict(metadata or {}))


def publish_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The same for a file that is handed on: readable for whom the umask allows (safetensors: for the owner alone)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        save_tensors(temporary, tensors, metadata)
        temporary.chmod(mode)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, without its tensors.

    Raises:
        CheckpointError: it may not be read, or is no such file.
    """
    try:
        path.open("rb").close()  # safetensors says "no such file" of one that may not be read
        with safe_open(path, "pt") as file:
            found: dict[str, str] = file.metadata() or {}
    except PermissionError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; ask its owner for permission.") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a safetensors file ({error}).") from None
    return found


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: missing or damaged.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def load_pickled(path: Path) -> dict[str, Any]:
    """Read what `torch.save` wrote: tensors and plain values, nothing that could run code.

    Raises:
        CheckpointError: missing or damaged.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    # Damage shows in whatever reads it first: the zip file, the pickle, or torch.
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise _unreadable(path, error) from None
    return content


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CheckpointError(f"{path} cannot be read ({reason}); restore it, or start a new run.")


def save_part(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write one part's state: small tensors and numbers together, large tensors streamed to files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    small: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.nbytes > STREAM_BYTES:
            np.save(folder / f"{name}.{key}.npy", value.detach().cpu().numpy())
        else:
            small[key] = value.detach().cpu() if isinstance(value, Tensor) else value
    torch.save(small, folder / f"{name}.pt")


def load_part(folder: Path, name: str) -> dict[str, Any]:
    """Read what `save_part` wrote; large tensors come memory-mapped.

    Raises:
        CheckpointError: missing or damaged.
    """
    state = load_pickled(folder / f"{name}.pt")
    for path in folder.glob(f"{name}.*.npy"):
        try:
            # Copy on write: nothing may change a checkpoint.
            state[path.name[len(name) + 1 : -4]] = torch.from_numpy(np.load(path, mmap_mode="c"))
        except (OSError, ValueError, EOFError) as error:
            raise _unreadable(path, error) from None
    return state


class CheckpointFolder:
    """The `checkpoints` folder of a run, which holds the newest complete checkpoint.

    Args:
        root: the folder; made on the first save.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def last(self) -> Path | None:
        """The newest complete checkpoint, None if there is none yet.

        Raises:
            CheckpointError: it has gone.
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

    def begin(self, step: int) -> Path:
        """Make and return the temporary folder that the checkpoint at `step` is written into; stale ones go."""
        self.root.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.root.glob(".step-*.tmp"):
            shutil.rmtree(left_by_a_kill)
        temporary = self.root / f".step-{step:09d}.tmp"
        temporary.mkdir()
        return temporary

    def finish(self, step: int, progress: Mapping[str, Any]) -> Path:
        """Complete the checkpoint: progress last, rename, point LAST at it, then drop the others."""
        temporary, final = self.root / f".step-{step:09d}.tmp", self.root / f"step-{step:09d}"
        _flush(temporary)
        write_text(temporary / "progress.json", json.dumps({"format": FORMAT, **progress}, indent=1))
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        write_text(self.root / "LAST", final.name)
        for old in self.root.glob("step-*"):
            if old != final:
                shutil.rmtree(old)
        return final

    @staticmethod
    def progress(path: Path) -> dict[str, Any]:
        """What `finish` was told.

        Raises:
            CheckpointError: damaged, or written in another format.
        """
        file = path / "progress.json"
        try:
            progress = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise _unreadable(file, error) from None
        found = progress.get("format") if isinstance(progress, dict) else None
        if found != FORMAT:
            raise CheckpointError(
                f"{path} has checkpoint format {found}, this version reads {FORMAT}; "
                "go on with the version that wrote it, or start a new run."
            )
        content: dict[str, Any] = progress
        return content


def _flush(folder: Path) -> None:
    """Bring all files of a folder to the disk, so that a power cut after the rename finds them whole."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
