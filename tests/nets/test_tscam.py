"""TS-CAM: parity with its own code on a tiny net, and coupled maps with fused attention left on."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from fewtags.errors import ConfigError
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan, SpatialHead, SpatialNet
from fewtags.nets.tscam import attention_layers, coupled_maps

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/patchml_nets.json").read_text())["tscam"]


@pytest.fixture
def tiny():
    """The golden file's net: 12 pixels, patches of 4, width 4, 2 blocks of 2 heads, 2 classes.

    Its one input channel is the first of three here; the others have zero weights.
    """
    backbone = VisionTransformer(
        img_size=12,
        patch_size=4,
        in_chans=3,
        embed_dim=4,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        num_classes=0,
        global_pool="",
    )
    net = SpatialNet(backbone, SpatialHead(4, 2, plan=HeadPlan(kernel=3)), layout="NLC", prefix_tokens=1)
    params = {name: torch.tensor(value) for name, value in GOLDEN["params"].items()}
    embed = params["patch_embed.proj.weight"]
    params["patch_embed.proj.weight"] = torch.cat([embed, torch.zeros_like(embed), torch.zeros_like(embed)], 1)
    heads = {name: value for name, value in params.items() if name.startswith("head.")}
    backbone.load_state_dict({name: value for name, value in params.items() if name not in heads})
    net.load_state_dict(heads, strict=False)
    return net.eval()


@pytest.fixture
def images():
    """round(sin(0.37 i), 3), i row-major over (2, 1, 12, 12), in the first of three channels."""
    grey = torch.from_numpy(np.round(np.sin(0.37 * np.arange(288)), 3).reshape(2, 1, 12, 12)).float()
    return torch.cat([grey, torch.ones_like(grey), torch.ones_like(grey)], 1)


def test_golden_values(tiny, images):
    """The tolerance is that of float32 through two blocks; the port of the research page agreed to 4e-7."""
    found = coupled_maps(tiny, images)
    expected = {
        "spatial_logits": found.output.maps,
        "logits_eval": found.output.logits,
        "cams": found.maps,
        "attn_sum_cls_to_patch": found.attention[:, 0],
    }
    for name, value in expected.items():
        np.testing.assert_allclose(value.detach(), np.array(GOLDEN[name]).reshape(value.shape), atol=2e-6, err_msg=name)


def test_golden_gradients(tiny, images):
    """Of the sum of the logits. The class token's gradient comes through the first block only."""
    tiny(images).logits.sum().backward()
    np.testing.assert_allclose(tiny.head.weight.grad, GOLDEN["grad_head_weight"], atol=1e-5)
    np.testing.assert_allclose(tiny.backbone.cls_token.grad, GOLDEN["grad_cls_token"], atol=1e-5)


def test_coupling_changes_nothing_else(tiny, images):
    before = tiny(images)
    coupled_maps(tiny, images)
    after = tiny(images)
    assert torch.equal(before.maps, after.maps)
    assert all(not layer._forward_pre_hooks for layer in attention_layers(tiny))


def test_against_full_attention_matrices(images):
    """With fused attention off, the dropout behind the softmax sees the whole matrix; sum its class rows."""
    net = create_net("test_vit", 3, weights="none", size=64, head=HeadPlan(kernel=3)).eval()
    photos = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    found = coupled_maps(net, photos)
    rows = []
    for layer in attention_layers(net):
        layer.fused_attn = False
        layer.attn_drop.register_forward_pre_hook(lambda _, args: rows.append(args[0].mean(1)[:, 0, 1:]))
    with torch.no_grad():
        net(photos)
    expected = torch.stack(rows).sum(0).view(found.attention.shape)
    torch.testing.assert_close(found.attention, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.maps, expected * found.output.maps, atol=1e-6, rtol=0)


def test_a_cnn_has_no_class_token():
    net = create_net("test_resnet", 3, weights="none", size=64)
    message = (
        "coupled attention maps need a ViT with a class token, and this backbone is a ResNet. Use its class maps "
        "alone, or train deit_small_patch16_224 or another ViT."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        coupled_maps(net, torch.zeros(1, 3, 64, 64))
