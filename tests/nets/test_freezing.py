import re

import pytest
import torch
import torchvision
from torch import nn

from fewtags.errors import ConfigError
from fewtags.nets.backbones import create_net
from fewtags.nets.freezing import blocks, freeze
from fewtags.nets.spatial import SpatialHead, SpatialNet

MOBILENET_BLOCKS = (
    "conv_stem+bn1",
    "blocks.0.0",
    "blocks.1.0",
    "blocks.1.1",
    *(f"blocks.2.{i}" for i in range(3)),
    *(f"blocks.3.{i}" for i in range(4)),
    *(f"blocks.4.{i}" for i in range(3)),
    *(f"blocks.5.{i}" for i in range(3)),
    "blocks.6.0+conv_head+bn2",
)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def net_of(backbone: str = "test_resnet", size: int = 64) -> SpatialNet:
    return create_net(backbone, 3, weights="none", size=size).train()


def trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# The prototype's splits of MobileNetV2, counted with torchvision's own model as the oracle


@pytest.mark.parametrize(("k", "first"), [(4, 14), (11, 7), (1, 17), (18, 0)])
def test_the_last_blocks_of_mobilenet_v2_are_torchvisions(k, first):
    """k timm blocks from the end are torchvision's features[first:], whose last 1x1 convolution counts by itself."""
    net = net_of("mobilenetv2_100")
    freeze(net, k)
    features = torchvision.models.mobilenet_v2().features
    assert sum(p.numel() for p in net.backbone.parameters() if p.requires_grad) == parameters(features[first:])
    assert trained(net.head) == {"weight", "bias"}


def test_names_of_blocks():
    assert blocks(net_of("mobilenetv2_100").backbone) == MOBILENET_BLOCKS
    assert blocks(net_of("test_resnet").backbone) == ("conv1+bn1", "layer1.0", "layer2.0", "layer3.0", "layer4.0")
    assert blocks(net_of("test_vit").backbone) == (
        "cls_token+pos_embed+patch_embed.proj",
        *(f"blocks.{i}" for i in range(5)),
        "blocks.5+norm",
    )


@pytest.mark.parametrize(
    "backbone", ["test_resnet", "test_vit2", "test_convnext", "test_mambaout", "test_efficientnet"]
)
def test_blocks_nest_and_cover_the_backbone(backbone):
    """One more block trains strictly more, all blocks train everything, and a last norm never stands alone."""
    net, before = net_of(backbone, 160), set()
    for k in range(1, len(blocks(net.backbone)) + 1):
        freeze(net, k)
        now = trained(net.backbone)
        assert before < now
        before = now
    freeze(net, "all")
    assert trained(net.backbone) == before
    freeze(net, 1)
    assert any(p.ndim > 1 for p in net.backbone.parameters() if p.requires_grad)


# Modes


def batchnorm_modes(module: nn.Module) -> dict[str, bool]:
    return {name: m.training for name, m in module.named_modules() if isinstance(m, nn.BatchNorm2d)}


def test_a_frozen_backbone_is_in_eval_mode_always():
    net = net_of()
    freeze(net, "head")
    wrapper = nn.Sequential(net)  # as data-parallel wrappers do, which pass the mode on to their children
    for _ in range(2):
        wrapper.train()
        assert not any(module.training for module in net.backbone.modules())
        assert net.training
        assert net.head.training
        wrapper.eval()
        assert not any(module.training for module in net.modules())
    freeze(net, "all")
    assert not net.training, "freezing keeps the mode"
    assert all(module.training for module in net.train().modules())


def test_batchnorm_follows_its_block():
    net = net_of()
    freeze(net, 2)
    modes = batchnorm_modes(net.backbone)
    assert {name.split(".")[0] for name, training in modes.items() if training} == {"layer3", "layer4"}
    assert {name.split(".")[0] for name, training in modes.items() if not training} == {
        "conv1", "bn1", "layer1", "layer2",
    }  # fmt: skip
    freeze(net, 2, batchnorm_eval=True)
    assert not any(batchnorm_modes(net.train()).values())
    assert "layer4.0.bn1.weight" in trained(net.backbone)
    assert net.backbone.layer4.training
    freeze(net, 2)
    assert batchnorm_modes(net.backbone) == modes


def test_a_part_frozen_by_hand_is_held_too():
    net = net_of()
    net.backbone.layer2.requires_grad_(False)
    net.train()
    assert {name.split(".")[0] for name, training in batchnorm_modes(net.backbone).items() if not training} == {
        "layer2"
    }


def test_dropout_goes_with_what_is_around_it():
    """Between frozen and trained layers it is held: it may feed the frozen part."""
    inner = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5))
    outer = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(0.5))
    net = SpatialNet(nn.Sequential(inner, nn.Dropout(0.5), outer), SpatialHead(4, 2))
    inner.requires_grad_(False)
    net.train()
    assert [m.training for m in net.modules() if isinstance(m, nn.Dropout)] == [False, False, True]
    inner.requires_grad_(True)
    net.train()
    assert [m.training for m in net.modules() if isinstance(m, nn.Dropout)] == [True, True, True]


def test_training_moves_what_is_trained_and_nothing_else():
    net = net_of()
    freeze(net, 1)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        net.train()
        optimiser.zero_grad()
        net(randn(4, 3, 64, 64)).logits.square().sum().backward()
        optimiser.step()
    moved = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[1] for name in moved if name.startswith("backbone")} == {"layer4"}
    assert "backbone.layer4.0.bn1.running_mean" in moved
    assert {"head.weight", "head.bias"} <= moved
    assert net.backbone.layer1[0].conv1.weight.grad is None


def test_frozen_features_can_be_cached():
    """Training with features that were computed once gives the same output, bit for bit."""
    net = net_of("test_vit")
    freeze(net, "head")
    images = randn(2, 3, 64, 64)
    with torch.no_grad():
        cached = net.eval().features(images)
    out = net.train()(images)
    assert torch.equal(out.features, cached)
    assert torch.equal(net.head(cached).logits, out.logits)
    assert not out.features.requires_grad


# Errors


@pytest.mark.parametrize("k", [0, -1, 6])
def test_a_number_out_of_range(k):
    message = (
        f"trainable={k}, but the backbone has blocks 1 to 5, counted from the end: "
        "layer4.0, layer3.0, layer2.0, layer1.0, conv1+bn1. Use a number in that range, or 'head' or 'all'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        freeze(net_of(), k)


def test_a_backbone_that_does_not_name_its_blocks():
    net = SpatialNet(nn.Sequential(nn.Conv2d(3, 4, 1)), SpatialHead(4, 2))
    message = "a Sequential does not name its blocks; use trainable='head' or 'all', or another backbone."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        freeze(net, 1)
    freeze(net, "head")
    assert trained(net) == {"head.weight", "head.bias"}
