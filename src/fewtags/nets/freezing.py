"""Freeze a net except its head, its last blocks, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, takewhile
from typing import Any, Literal, Protocol, runtime_checkable

from timm.models import group_parameters
from torch import nn

from fewtags.errors import ConfigError
from fewtags.nets.encoder import Encoder
from fewtags.nets.spatial import SpatialNet

WITH_PREVIOUS = (99999,)  # timm's number for layers that belong to the previous block


@runtime_checkable
class _Grouped(Protocol):
    """A timm model with patterns that separate its blocks, in order."""

    def group_matcher(self, coarse: bool = False) -> Any: ...


def freeze(net: SpatialNet | Encoder, trainable: Literal["head", "all"] | int, *, batchnorm_eval: bool = False) -> None:
    """Freeze all but the trainable part: frozen layers get no gradient and stay in eval mode.

    Args:
        net: `requires_grad` is changed in place; the net's own mode (training or eval) stays.
        trainable: "head", "all", or a number k: the head and the last k of `blocks(net.backbone)`. The head, if there
            is one, is always trained.
        batchnorm_eval: keep BatchNorm of trained blocks in eval mode (its weight and bias are still trained).

    Raises:
        ConfigError: k is out of range, or the backbone does not name its blocks.
    """
    if trainable == "head":
        trained: set[str] = set()
    elif trainable == "all":
        trained = {name for name, _ in net.backbone.named_parameters()}
    else:
        groups = _groups(net.backbone)
        if not 1 <= trainable <= len(groups):
            raise ConfigError(
                f"trainable={trainable}, but the backbone has blocks 1 to {len(groups)}, counted from the end: "
                f"{', '.join(reversed(blocks(net.backbone)))}. Use a number in that range, or 'head' or 'all'."
            )
        trained = {name for group in groups[-trainable:] for name in group}
    for name, parameter in net.backbone.named_parameters():
        parameter.requires_grad_(name in trained)
    if isinstance(net, SpatialNet):
        net.head.requires_grad_(True)
    net.batchnorm_eval = batchnorm_eval
    net.train(net.training)


def blocks(backbone: nn.Module) -> tuple[str, ...]:
    """Names of a backbone's blocks, from the stem to the end.

    Blocks are the finest units that timm distinguishes (residual blocks, inverted residual blocks, transformer layers).
    The stem is the first block; a final 1x1 convolution or norm belongs to the last. timm's MobileNetV2 has 18 blocks:
    the last 4 are torchvision's features[14..18], and all but the last 11 are features[0..6]. Raises ConfigError if
    the backbone does not name its blocks; nearly all of timm's do.
    """
    return tuple(_block_name(group) for group in _groups(backbone))


def _groups(backbone: nn.Module) -> list[list[str]]:
    """Parameter names of each block, in order."""
    if not isinstance(backbone, _Grouped):
        raise ConfigError(
            f"a {type(backbone).__name__} does not name its blocks; use trainable='head' or 'all', or another backbone."
        )
    matcher = backbone.group_matcher(coarse=False)
    if isinstance(matcher, Mapping):
        # Parameters without a pattern (a neck or a last norm) would be one more block.
        matcher = {**matcher, "tail": [(r".*", WITH_PREVIOUS)]}
    return list(group_parameters(backbone, matcher).values())


def _block_name(parameters: list[str]) -> str:
    """Name a block by the modules of its parameters.

    >>> _block_name(["blocks.6.0.conv_pw.weight", "blocks.6.0.bn1.bias", "conv_head.weight"])
    'blocks.6.0+conv_head'
    """
    modules = [name.split(".")[:-1] or [name] for name in parameters]
    parts = (list(paths) for _, paths in groupby(modules, key=lambda path: path[0]))
    return "+".join(".".join(_common_start(paths)) for paths in parts)


def _common_start(paths: list[list[str]]) -> list[str]:
    levels = zip(*paths, strict=False)
    return [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
