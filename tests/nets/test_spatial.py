import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fewtags.errors import ConfigError
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialHead, SpatialNet, spatial_features

CNN, VIT, NHWC = "test_resnet", "test_vit", "test_mambaout"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed))


def net_of(backbone: str, classes: int = 3, size: int | tuple[int, int] = 64) -> SpatialNet:
    return create_net(backbone, classes, weights="none", size=size).eval()


# Values by hand


def test_head_by_hand():
    """Two channels, one row of two cells: x = (1, 2), y = (10, 20); w = (2, 0.5), bias 1.

    Maps: 2*1 + .5*10 + 1 = 8 and 2*2 + .5*20 + 1 = 15. Logit: (8 + 15) / 2 = 11.5.
    """
    head = SpatialHead(2, 1)
    head.load_state_dict({"weight": torch.tensor([[2.0, 0.5]]), "bias": torch.tensor([1.0])})
    features = torch.tensor([[[[1.0, 2.0]], [[10.0, 20.0]]]])
    out = head(features)
    assert out.maps.tolist() == [[[[8.0, 15.0]]]]
    assert out.logits.tolist() == [[11.5]]
    assert out.features is features
    assert head.predict_logits(features).tolist() == [[11.5]]


def test_tokens_are_row_major_behind_the_prefix():
    """2 prefix tokens, then cell (r, c) holds 10 r + c on a 2 x 3 grid, for an image of 32 x 48."""
    cells = [10.0 * r + c for r in range(2) for c in range(3)]
    tokens = torch.tensor([-1.0, -2.0, *cells]).view(1, 8, 1)
    features = spatial_features(tokens, "NLC", (32, 48), prefix_tokens=2)
    assert features.tolist() == [[[[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]]]


# A slow reference


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 3, 1, 1, 5), (3, 1, 4, 5, 1), (2, 7, 5, 3, 4)])
def test_head_against_loops(shape):
    b, d, classes, h, w = shape
    head = SpatialHead(d, classes, generator=generator())
    torch.nn.init.normal_(head.bias, generator=generator(2))
    features = randn(b, d, h, w, seed=1)
    weight, bias, x = (t.detach().double().numpy() for t in (head.weight, head.bias, features))
    maps = np.zeros((b, classes, h, w))
    for i, c, r, k in np.ndindex(maps.shape):
        maps[i, c, r, k] = sum(weight[c, j] * x[i, j, r, k] for j in range(d)) + bias[c]
    out = head(features)
    np.testing.assert_allclose(out.maps.detach(), maps, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out.logits.detach(), maps.mean((2, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(head.predict_logits(features).detach(), maps.mean((2, 3)), rtol=1e-5, atol=1e-6)


# Properties


@pytest.mark.parametrize("backbone", [CNN, VIT, NHWC])
@pytest.mark.parametrize("size", [(64, 64), (32, 96)])
def test_pooling_first_gives_the_same_logits(backbone, size):
    net = net_of(backbone, size=size)
    nn.init.normal_(net.head.weight, generator=generator(2))
    images = randn(2, 3, *size)
    out = net(images)
    assert torch.equal(out.logits, out.maps.mean((2, 3)))
    assert out.maps.std((2, 3)).min() > 1e-4, "maps without contrast would make the comparison empty"
    torch.testing.assert_close(net.predict_logits(images), out.logits, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from([8, 14, 16]), st.integers(0, 5))
def test_any_tiling_of_square_patches_is_found(rows, columns, patch, prefix):
    tokens = torch.arange(prefix + rows * columns, dtype=torch.float32).view(1, -1, 1)
    features = spatial_features(tokens, "NLC", (rows * patch, columns * patch), prefix)
    assert features.shape == (1, 1, rows, columns)
    assert features.flatten().tolist() == list(range(prefix, prefix + rows * columns))


@pytest.mark.parametrize(
    ("backbone", "size", "slack"),
    [(CNN, (96, 160), 0), (VIT, (64, 96), 0), ("test_convnext", (96, 160), 0), (NHWC, (96, 160), 1)],
)
def test_a_cell_sees_its_own_place(backbone, size, slack):
    """Noise put into the patch of one cell moves the features most in that cell, on a grid that is not square.

    The large, strided kernels of the NHWC model may move a neighbour more.
    """
    net = net_of(backbone, size=size)
    rows, columns = net.grid(size)
    high, wide = size[0] // rows, size[1] // columns
    still = randn(1, 3, *size)
    for r, c in [(0, columns - 1), (rows - 1, 0), (rows // 2, columns // 2)]:
        moved = still.clone()
        moved[:, :, r * high : (r + 1) * high, c * wide : (c + 1) * wide] = 3 * randn(1, 3, high, wide, seed=5)
        change = (net.features(moved) - net.features(still)).norm(dim=1)[0]
        found = divmod(int(change.argmax()), columns)
        assert max(abs(found[0] - r), abs(found[1] - c)) <= slack


def test_class_permutation_permutes_the_result():
    head = SpatialHead(5, 4, generator=generator())
    features, order = randn(2, 5, 3, 3), torch.tensor([2, 0, 3, 1])
    permuted = SpatialHead(5, 4)
    permuted.load_state_dict({"weight": head.weight[order], "bias": head.bias[order]})
    torch.testing.assert_close(permuted(features).logits, head(features).logits[:, order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backbone", [CNN, VIT])
def test_batches_can_be_split(backbone):
    net, images = net_of(backbone), randn(4, 3, 64, 64)
    halves = torch.cat([net(part).logits for part in images.split([1, 3])])
    torch.testing.assert_close(halves, net(images).logits, rtol=1e-5, atol=1e-6)


def test_flipped_features_have_flipped_maps_and_the_same_logits():
    head, features = SpatialHead(5, 4, generator=generator()), randn(2, 5, 3, 4)
    out, flipped = head(features), head(features.flip(3))
    torch.testing.assert_close(flipped.maps, out.maps.flip(3), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(flipped.logits, out.logits, rtol=1e-6, atol=1e-7)


# Precision and memory formats


def test_head_is_float32_inside_autocast():
    net, images = net_of(CNN), randn(2, 3, 64, 64)
    nn.init.normal_(net.head.weight, generator=generator(2))
    with torch.autocast("cpu", torch.bfloat16):
        out, pooled = net(images), net.predict_logits(images)
    assert out.features.dtype == torch.bfloat16
    assert out.logits.dtype == out.maps.dtype == pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, out.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_head_keeps_double_and_lifts_half_precision(dtype, expected):
    head = SpatialHead(3, 2).to(dtype)
    features = randn(1, 3, 2, 2).to(dtype)
    assert head(features).logits.dtype == head.predict_logits(features).dtype == expected


@pytest.mark.parametrize("backbone", [CNN, VIT, NHWC])
def test_channels_last_changes_nothing(backbone):
    net, images = net_of(backbone), randn(2, 3, 64, 64)
    before = net(images)
    after = net.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(after.logits, before.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after.maps, before.maps, rtol=1e-4, atol=1e-5)


# Grid


def test_grid_of_any_size():
    net = net_of(CNN, size=64)
    assert net.grid((64, 64)) == (2, 2)
    assert net.grid((96, 160)) == (3, 5)
    assert net.grid((100, 64)) == (4, 2)
    vit = net_of(VIT, size=64)
    assert (vit.grid((64, 64)), vit.grid((32, 96))) == ((4, 4), (2, 6))


def test_grid_leaves_no_trace():
    net = net_of(CNN).train()
    net.backbone.layer1.eval()
    modes = [module.training for module in net.modules()]
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random_state = torch.get_rng_state()
    net.grid((64, 96))
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    with pytest.raises(ConfigError):
        net.grid((0, 0))
    assert [module.training for module in net.modules()] == modes


def test_a_size_that_the_backbone_cannot_take():
    with pytest.raises(ConfigError) as error:
        net_of(VIT).grid((64, 70))
    assert str(error.value) == (
        "the backbone cannot take images of 64 x 70 pixels: Input width (70) should be divisible by patch size (16).. "
        "Use a height and width that are multiples of its stride (multiples of 32 suit most)."
    )


# Parameters and state


def test_head_draws_from_its_generator_only():
    random_state = torch.get_rng_state()
    one, same, other = (SpatialHead(64, 50, generator=generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert one.bias.tolist() == [0.0] * 50


def test_tokens_without_a_map():
    with pytest.raises(ConfigError) as error:
        spatial_features(torch.zeros(1, 197, 8), "NLC", (224, 224))
    assert str(error.value) == (
        "197 tokens do not tile an image of 224 x 224 pixels in square cells, so that this backbone has no spatial "
        "map. Choose another, for example resnet50, convnext_tiny or vit_small_patch16_224."
    )


def test_all_state_is_in_the_state_dict():
    """A net of another seed that takes the state is the same net; so is a deep copy (weight averaging makes one)."""
    net = create_net(CNN, 3, weights="none", size=64, seed=1)
    net(randn(4, 3, 64, 64))  # in training mode: BatchNorm statistics move
    other = create_net(CNN, 3, weights="none", size=64, seed=2)
    images = randn(2, 3, 64, 64, seed=9)
    assert not torch.equal(other.eval()(images).logits, net.eval()(images).logits)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(images).logits, net(images).logits)
    assert torch.equal(copy.deepcopy(net)(images).logits, net(images).logits)
    assert {name.split(".")[0] for name in net.state_dict()} == {"backbone", "head"}
    assert {name for name in net.state_dict() if name.startswith("head")} == {"head.weight", "head.bias"}


def test_gradients_reach_every_parameter():
    for backbone in (CNN, VIT, NHWC):
        net = net_of(backbone).train()
        net(randn(2, 3, 64, 64)).logits.square().sum().backward()
        assert [name for name, p in net.named_parameters() if p.grad is None] == [], backbone


def test_works_under_data_parallel_training(tmp_path):
    net, images = create_net(CNN, 3, weights="none", size=64), randn(2, 3, 64, 64)
    twin = copy.deepcopy(net)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(net)
        out = wrapped(images)
        out.logits.sum().backward()
    finally:
        dist.destroy_process_group()
    expected = twin(images)
    expected.logits.sum().backward()
    assert torch.equal(out.maps, expected.maps)
    assert torch.equal(net.backbone.conv1[0].weight.grad, twin.backbone.conv1[0].weight.grad)
