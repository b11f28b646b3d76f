"""Export a trained model as a timm model: a folder for `timm.create_model("local-dir:FOLDER", pretrained=True)`.

The mean over cells and a 1x1 convolution commute, so the head is timm's linear classifier behind an average pool. Other
pools, the 3x3 head of TS-CAM, and backbones with layers between pool and classifier cannot be expressed in timm.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, final

import timm
import torch
from torch import Tensor, nn

from fewtags.engine.model import ModelInfo
from fewtags.engine.tensor_files import publish_tensors
from fewtags.errors import ConfigError
from fewtags.files import write_text
from fewtags.nets.backbones import has_fixed_size
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.augment import ResizedCrop

LIMIT = 1e-5
"""Largest difference of a logit from fewtags', as a share of the largest logit. Rounding is about 1e-6; a norm after
the pool instead of before it can be as little as 3e-4 in a net with random weights."""
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
# Arguments of timm that make its pool the mean of all cells, tried in this order.
_POOLS: tuple[dict[str, Any], ...] = ({}, {"global_pool": "avg"}, {"global_pool": "avg", "fc_norm": False})


@final
@dataclass(frozen=True)
class TimmExport:
    """A folder that timm loads, and the largest difference of a logit."""

    folder: Path
    gap: float


def export_timm(net: SpatialNet, info: ModelInfo, folder: Path) -> TimmExport:
    """Write `config.json` and `model.safetensors`, after timm's model gave the same logits.

    Raises:
        ConfigError: timm cannot express the model; the message says why.
    """
    refuse_other_heads(info)
    images = torch.randn(2, 3, info.size, info.size, generator=torch.Generator().manual_seed(0))
    images[:, :, :, : info.size // 2] = -2.0  # so that cells differ, and the order of norm and pool shows
    net = net.to("cpu").eval()
    with torch.no_grad():
        wanted = net.predict_logits(images)
    model, arguments = _timm_model(net, info, images, wanted)
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    config = json.dumps(_config(model, info, arguments), indent=2, ensure_ascii=False)
    with tempfile.TemporaryDirectory() as trial:
        publish_tensors(Path(trial) / WEIGHTS_FILE, tensors, {"format": "pt"})
        write_text(Path(trial) / CONFIG_FILE, config)
        loaded = timm.create_model(f"local-dir:{trial}", pretrained=True).eval()
    gap = _gap(loaded, images, wanted)
    if gap > LIMIT:
        raise ConfigError(
            f"timm loads {info.backbone} in another way than it makes it: logits differ by {gap:.2g} of the largest. "
            "Use --to onnx."
        )
    folder.mkdir(parents=True, exist_ok=True)
    publish_tensors(folder / WEIGHTS_FILE, tensors, {"format": "pt"})
    write_text(folder / CONFIG_FILE, config)
    return TimmExport(folder, gap)


def _gap(model: nn.Module, images: Tensor, wanted: Tensor) -> float:
    """Return the largest difference of a logit, as a share of the largest logit."""
    with torch.no_grad():
        return float((model(images) - wanted).abs().max() / wanted.abs().max())


def _own_size(net: SpatialNet) -> tuple[int, int] | None:
    """Return the image size of a transformer's position embeddings, (height, width), if it has any."""
    size: tuple[int, int] | None = getattr(getattr(net.backbone, "patch_embed", None), "img_size", None)
    return size


def refuse_other_heads(info: ModelInfo) -> None:
    """Raise ConfigError if the head is not a linear classifier of the mean of all cells, or of the class token."""
    head = info.head
    if head.commutes:
        return
    what = f"the pool {head.pool.name}" if head.pool.name != "mean" else f"a {head.kernel} x {head.kernel} head"
    raise ConfigError(
        f"this model has {what}, which timm does not have: its classifiers are linear behind a mean pool. Use --to "
        "onnx, or train with model.pool = mean and model.head_kernel = 1."
    )


def _timm_model(net: SpatialNet, info: ModelInfo, images: Tensor, wanted: Tensor) -> tuple[nn.Module, dict[str, Any]]:
    """Return timm's model with the weights, and the arguments that make it."""
    stride = {"output_stride": info.output_stride} if info.output_stride else {}
    sizes: tuple[dict[str, Any], ...] = ({},)
    if has_fixed_size(info.backbone):  # as in `create_backbone`
        sizes = ({"dynamic_img_size": True, "img_size": _own_size(net)}, {"img_size": info.size})
    reasons = []
    for pool, size in product(_POOLS, sizes):
        arguments = {**pool, **stride, **size}
        try:
            model = _filled(net, info, arguments)
        except (TypeError, RuntimeError, AssertionError, ValueError) as error:
            reasons.append(str(error).strip().splitlines()[0])
            continue
        if (gap := _gap(model, images, wanted)) <= LIMIT:
            return model, arguments
        reasons.append(f"its logits differ by up to {gap:.2g} of the largest")
    raise ConfigError(
        f"timm's {info.backbone} cannot give the logits of this model: it has other layers between pool and "
        f"classifier, or another pool ({reasons[0]}). Use --to onnx for the model, or --to backbone for its trunk."
    )


def _filled(net: SpatialNet, info: ModelInfo, arguments: Mapping[str, Any]) -> nn.Module:
    """Return timm's model with the weights of a net. Raises RuntimeError if a tensor has no place."""
    name = info.backbone.partition(".")[0]
    own: dict[str, Tensor] = dict(net.backbone.state_dict())
    with torch.random.fork_rng(devices=[]):  # timm draws initial weights, which are replaced
        model = timm.create_model(name, num_classes=len(info.class_ids), **arguments)
    classifier = _classifier(model)
    missing, unexpected = model.load_state_dict(own, strict=False)
    head = {id(classifier.weight), id(classifier.bias)}
    rest = [key for key, value in model.named_parameters() if key in missing and id(value) not in head]
    if unexpected or rest:
        raise RuntimeError(f"timm's model has other tensors, for example {[*unexpected, *rest][0]}")
    with torch.no_grad():
        classifier.weight.copy_(net.head.weight.reshape(classifier.weight.shape))
        assert classifier.bias is not None
        classifier.bias.copy_(net.head.bias)
    return model.eval()


def _classifier(model: Any) -> nn.Linear | nn.Conv2d:
    """Return timm's classifier. Raises RuntimeError if it is not one linear layer."""
    found = model.get_classifier()
    if not isinstance(found, nn.Linear | nn.Conv2d) or found.bias is None:
        raise RuntimeError(f"timm's classifier is {type(found).__name__}")
    return found


def _config(model: Any, info: ModelInfo, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of timm's config.json; fewtags' own facts are in the entry `fewtags`."""
    pretrained = model.pretrained_cfg
    centre = ResizedCrop(info.size).centre if info.policy == "imagenet" else 1.0
    return {
        "architecture": info.backbone.partition(".")[0],
        "num_classes": len(info.class_ids),
        "num_features": model.num_features,
        "global_pool": arguments.get("global_pool", "avg"),
        "label_names": list(info.class_ids),
        "label_descriptions": dict(zip(info.class_ids, info.classes.display, strict=True)),
        "model_args": dict(arguments),
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [3, info.size, info.size],
            "fixed_input_size": bool(pretrained.get("fixed_input_size", False)),
            "interpolation": "bilinear",
            "crop_pct": centre,
            "crop_mode": "center" if info.policy == "imagenet" else "squash",
            "mean": list(info.mean),
            "std": list(info.std),
            "num_classes": len(info.class_ids),
            "pool_size": pretrained.get("pool_size"),
            "first_conv": pretrained.get("first_conv"),
            "classifier": pretrained.get("classifier"),
        },
        "fewtags": {
            "activation": "sigmoid",
            "thresholds": dict(zip(info.class_ids, info.thresholds, strict=True)),
            "exactly_one": [list(group) for group in info.exactly_one],
            "at_most_one": [list(group) for group in info.at_most_one],
        },
    }
