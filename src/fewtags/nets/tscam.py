"""Coupled attention maps of TS-CAM (Gao et al., ICCV 2021): class-token attention of a ViT times the class maps.

The classifier is a `SpatialHead` with a 3x3 kernel on the patch tokens; attention does not change its logits. The
class token's attention to each patch is averaged over heads and *summed* over all layers (no rollout, no residual).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.layers.attention import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fewtags.errors import ConfigError
from fewtags.nets.spatial import Output, SpatialNet, spatial_features


class Coupled(NamedTuple):
    """Result of `coupled_maps`.

    Attributes:
        output: output of the net.
        attention: [b, 1, h, w], sum over layers of the class token's attention to each patch.
        maps: [b, C, h, w], attention x `output.maps` (logits, not rectified).
    """

    output: Output
    attention: Tensor
    maps: Tensor


def coupled_maps(net: SpatialNet, images: Float[Tensor, "b 3 H W"]) -> Coupled:
    """Run the net once and multiply its maps by the class token's attention.

    Fused attention stays on: the class token's row is computed separately from the input of each layer. Raises
    ConfigError if the backbone is not a ViT with a class token.
    """
    attentions = attention_layers(net)
    rows: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, arguments: rows.append(_class_row(module, arguments[0])))
        for layer in attentions
    ]
    try:
        output: Output = net(images)
    finally:
        for hook in hooks:
            hook.remove()
    total, size = torch.stack(rows).sum(0)[:, :, None], (images.shape[2], images.shape[3])
    attention = spatial_features(total, "NLC", size, net.prefix_tokens)
    return Coupled(output, attention, attention * output.maps)


def attention_layers(net: SpatialNet) -> list[Attention]:
    """Self-attention layers of all blocks. Raises ConfigError if the backbone is not a ViT with a class token."""
    backbone = net.backbone
    if not isinstance(backbone, VisionTransformer) or backbone.cls_token is None:
        raise ConfigError(
            f"coupled attention maps need a ViT with a class token, and this backbone is a {type(backbone).__name__}. "
            "Use its class maps alone, or train deit_small_patch16_224 or another ViT."
        )
    blocks: Any = backbone.blocks  # torch types a module's children as tensors or modules
    layers: list[nn.Module] = [block.attn for block in blocks]
    if wrong := next((layer for layer in layers if not isinstance(layer, Attention)), None):
        raise ConfigError(f"coupled attention maps do not support a {type(wrong).__name__}; use the class maps.")
    return [layer for layer in layers if isinstance(layer, Attention)]


def _class_row(layer: nn.Module, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """Attention of the class token (the first) to all tokens, mean over heads, in float32."""
    assert isinstance(layer, Attention)
    width, heads = layer.num_heads * layer.head_dim, (layer.num_heads, layer.head_dim)
    query = _project(layer.qkv, tokens[:, :1], slice(0, width)).unflatten(2, heads).transpose(1, 2)
    key = _project(layer.qkv, tokens, slice(width, 2 * width)).unflatten(2, heads).transpose(1, 2)
    query, key = layer.q_norm(query), layer.k_norm(key)
    scores: Tensor = (query.float() * layer.scale) @ key.float().transpose(-2, -1)
    return scores.softmax(-1).mean(1)[:, 0]


def _project(linear: nn.Linear, tokens: Float[Tensor, "b n d"], outputs: slice) -> Float[Tensor, "b n k"]:
    """Selected outputs of a linear layer."""
    bias: Tensor | None = linear.bias
    return F.linear(tokens, linear.weight[outputs], None if bias is None else bias[outputs])
