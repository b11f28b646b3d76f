"""Files of tensors: weights as safetensors, and the state of an objective's parts.

Nothing here runs code from a file: pickles are loaded with `weights_only=True`.
"""

from __future__ import annotations

import pickle
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fewtags.engine.checkpoint import unreadable
from fewtags.errors import CheckpointError
from fewtags.files import replacing

T = TypeVar("T")
# Tensors of more bytes than this are streamed to a .npy file of their own: safetensors would first copy them in memory.
STREAM_BYTES = 64 * 2**20


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    with replacing(path) as temporary:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary, dict(metadata or {}))


def publish_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file for other users, with the permissions of the umask.

    safetensors itself makes files that only their owner can read. The folder is made if it does not exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        save_tensors(temporary, tensors, metadata)
        temporary.chmod(mode)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file without its tensors.

    Raises:
        CheckpointError: the file cannot be read, or is not a safetensors file.
    """
    try:
        path.open("rb").close()  # safetensors reports a file without read permission as missing
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except PermissionError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; ask its owner for permission.") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a safetensors file ({error}).") from None
    return metadata


def parse_metadata(path: Path, text: str, kind: type[T], number: int, remedy: str) -> T:
    """Make the metadata of a model or encoder from JSON of format `number`.

    Raises:
        CheckpointError: it is damaged (`remedy` ends the message), or has another format.
    """
    try:
        content = TypeAdapter(dict[str, Any]).validate_json(text)
        if content.pop("format", None) != number:
            raise CheckpointError(f"{path} was written by another version of fewtags ({content.get('version')}).")
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise CheckpointError(f"{path} has damaged metadata: {error.errors()[0]['msg']}. {remedy}") from None


def load_into(net: nn.Module, path: Path, backbone: str) -> None:
    """Load weights into a net.

    Raises:
        CheckpointError: the file is missing or damaged, or does not fit the backbone.
    """
    try:
        net.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit backbone {backbone}: {error}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from None


def load_pickled(path: Path) -> dict[str, Any]:
    """Read tensors and plain values that `torch.save` wrote.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    # The zip reader, the unpickler or torch may be the first to find the damage.
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise unreadable(path, error) from None
    return content


def save_part(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write the state of one part: small tensors and numbers in one file, each large tensor in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    small: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.nbytes > STREAM_BYTES:
            np.save(folder / f"{name}.{key}.npy", value.detach().cpu().numpy())
        else:
            small[key] = value.detach().cpu() if isinstance(value, Tensor) else value
    torch.save(small, folder / f"{name}.pt")


def load_part(folder: Path, name: str) -> dict[str, Any]:
    """Read what `save_part` wrote; large tensors are memory-mapped.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    state = load_pickled(folder / f"{name}.pt")
    for path in folder.glob(f"{name}.*.npy"):
        try:
            # Copy on write, so that training does not change the checkpoint.
            state[path.name[len(name) + 1 : -4]] = torch.from_numpy(np.load(path, mmap_mode="c"))
        except (OSError, ValueError, EOFError) as error:
            raise unreadable(path, error) from None
    return state
