"""Files of tensors: weights as safetensors, and the state of an objective's parts.

Nothing here runs code from a file: pickles are loaded with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fewtags.engine.checkpoint import BAD_ARRAY, unreadable
from fewtags.errors import CheckpointError
from fewtags.files import Sink, replacing, writing

T = TypeVar("T")
# Tensors of more bytes than this are streamed to a .npy file of their own: safetensors would first copy them in memory.
STREAM_BYTES = 64 * 2**20
CHECKSUM = "sha256"
"""Metadata key of the checksum of a safetensors file."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    with replacing(path, _size(tensors)) as temporary:
        _save(temporary, tensors, metadata)


def _save(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> None:
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path, dict(metadata or {}))


def save_checked(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically, with a checksum that `load_tensors` compares."""
    save_tensors(path, tensors, {CHECKSUM: checksum(tensors)})


def checksum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return the SHA-256 checksum of a text and of the names, types, shapes and values of tensors, in hex."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"\n{name} {values.dtype} {list(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_damaged(path: Path, tensors: Mapping[str, Tensor], found: str | None, text: str = "") -> None:
    """Compare tensors with the checksum that was written with them; None is the checksum of an older version.

    Raises:
        CheckpointError: they differ.
    """
    if found is not None and found != checksum(tensors, text):
        raise CheckpointError(
            f"{path} is damaged: its content has changed since it was written; restore it, or train again."
        )


def publish_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file for other users, with the permissions of the umask.

    safetensors itself makes files that only their owner can read. The folder is made if it does not exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, _size(tensors)) as temporary:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        _save(temporary, tensors, metadata)
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
        content.pop(CHECKSUM, None)
        if content.pop("format", None) != number:
            raise CheckpointError(f"{path} was written by another version of fewtags ({content.get('version')}).")
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise CheckpointError(f"{path} has damaged metadata: {error.errors()[0]['msg']}. {remedy}") from None


def load_into(net: nn.Module, path: Path, backbone: str, key: str) -> None:
    """Load weights into a net; compare them and the metadata `key` with the checksum in it.

    Raises:
        CheckpointError: the file is missing or damaged, or does not fit the backbone.
    """
    try:
        tensors = load_tensors(path)
        content = json.loads(read_metadata(path)[key])
        refuse_damaged(path, tensors, content.pop(CHECKSUM, None), json.dumps(content))
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit backbone {backbone}: {error}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, and compare it with its checksum if `save_checked` wrote it.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from None
    refuse_damaged(path, tensors, read_metadata(path).get(CHECKSUM))
    return tensors


def save_pickled(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values with `torch.save`.

    Raises:
        DiskError: the file cannot be written.
    """
    with writing(path, _size(content)), path.open("wb", buffering=0) as file:
        target = Sink(file)
        try:
            torch.save(content, cast(IO[bytes], target))
        except RuntimeError:  # torch's own, about positions in the file
            if target.error is not None:
                raise target.error from None
            raise


def _size(content: Any) -> int:
    """Bytes of all tensors in nested containers."""
    if isinstance(content, Tensor):
        return content.nbytes
    values = content.values() if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ()
    return sum(map(_size, values))


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
            file = folder / f"{name}.{key}.npy"
            with writing(file, value.nbytes), file.open("wb", buffering=0) as stream:
                np.save(Sink(stream), value.detach().cpu().numpy())
        else:
            small[key] = value.detach().cpu() if isinstance(value, Tensor) else value
    save_pickled(folder / f"{name}.pt", small)


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
        except BAD_ARRAY as error:
            raise unreadable(path, error) from None
    return state
