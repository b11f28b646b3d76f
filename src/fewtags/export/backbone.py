"""Export a backbone to the formats of other libraries."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torchvision
from torch import Tensor

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.engine.tensor_files import publish_tensors
from fewtags.errors import CheckpointError, ConfigError
from fewtags.files import replacing
from fewtags.nets.encoder import Encoder
from fewtags.nets.weights import match_weights
from fewtags.text import suggest

Format = Literal["timm", "torchvision", "detectron2"]
FORMATS: tuple[str, ...] = get_args(Format)
# timm's name -> torchvision's name of architectures with the same layers in the same order.
TORCHVISION = {"mobilenetv2_100": "mobilenet_v2"}


def export_backbone(encoder: Encoder, info: EncoderInfo, out: Path, format: Format) -> str:
    """Write a backbone without classifier for another library.

    The file ends in .safetensors for timm and torchvision, .pkl for detectron2, which supports only ResNets.

    Returns:
        a sentence that says how to load the file.

    Raises:
        ConfigError: the ending is wrong, or the other library does not have the architecture.
    """
    ending = ".pkl" if format == "detectron2" else ".safetensors"
    if out.suffix != ending:
        raise ConfigError(f"{out}: {format} weights need a file that ends in {ending}; choose another name.")
    tensors = {name: tensor.detach().cpu() for name, tensor in encoder.backbone.state_dict().items()}
    about = f"{info.backbone}, {info.method.get('name', '')}, {info.images} images, {info.epochs} epochs"
    if format == "timm":
        publish_tensors(out, tensors, {"architecture": info.backbone, "made_by": f"fewtags ({about})"})
        return f'timm.create_model("{info.backbone}", num_classes=0), then load_state_dict of {out}'
    if format == "torchvision":
        name, renamed = torchvision_tensors(tensors, info.backbone)
        publish_tensors(out, renamed, {"architecture": name, "made_by": f"fewtags ({about})"})
        return f"torchvision.models.{name}(), then load_state_dict(..., strict=False) of {out}"
    content = {
        "model": {name: tensor.numpy() for name, tensor in detectron2_tensors(tensors, info.backbone).items()},
        # detectron2 matches names by their endings only if these two entries are set.
        "__author__": "fewtags",
        "matching_heuristics": True,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary, temporary.open("wb") as file:
        pickle.dump(content, file)
    return f"MODEL.WEIGHTS {out} with PIXEL_MEAN, PIXEL_STD in RGB and RESNETS.STRIDE_IN_1X1 False"


def torchvision_tensors(tensors: Mapping[str, Tensor], backbone: str) -> tuple[str, dict[str, Tensor]]:
    """Return torchvision's name of an architecture, and the tensors under torchvision's names.

    Raises ConfigError if torchvision does not have the architecture, or has other layers.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    architecture = backbone.partition(".")[0]
    name = TORCHVISION.get(architecture, architecture)
    if name not in known:
        raise ConfigError(f"torchvision has no {backbone}{suggest(name, known)}; use --format timm.")
    target = torchvision.models.get_model(name, weights=None).state_dict()
    prefixes = ("fc.", "classifier.", "heads.", "head.")
    trunk = {key: value for key, value in target.items() if not key.startswith(prefixes)}
    try:
        match = match_weights(tensors, trunk, f"{backbone} of timm")
    except CheckpointError as error:
        raise ConfigError(f"torchvision's {name} has other layers than timm's {backbone}: {error}") from None
    return name, match.tensors


def detectron2_tensors(tensors: Mapping[str, Tensor], backbone: str) -> dict[str, Tensor]:
    """Return the tensors of a ResNet under detectron2's names. Raises ConfigError for other architectures.

    >>> import torch
    >>> list(detectron2_tensors({"layer1.0.bn2.weight": torch.zeros(1), "bn1.bias": torch.zeros(1)}, "resnet50"))
    ['res2.0.conv2.norm.weight', 'stem.conv1.norm.bias']
    """
    if not re.fullmatch(r"resnet(18|34|50|101|152)(\..*)?", backbone):
        raise ConfigError(f"detectron2's ResNets are resnet18, 34, 50, 101 and 152, not {backbone}; use --format timm.")
    renamed = {}
    for name, tensor in tensors.items():
        if name.endswith("num_batches_tracked"):
            continue
        new = name if name.startswith("layer") else f"stem.{name}"
        new = re.sub(r"layer(\d)", lambda found: f"res{int(found[1]) + 1}", new)
        new = re.sub(r"bn(\d)", r"conv\1.norm", new)
        new = new.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
        renamed[new] = tensor
    return renamed


def as_format(word: str) -> Any:
    """Return a format by name. Raises ConfigError if it is unknown."""
    if word not in FORMATS:
        raise ConfigError(f"--format {word}: expected one of {', '.join(FORMATS)}{suggest(word, FORMATS)}.")
    return word
