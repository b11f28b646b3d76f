"""Projectors, and copies that follow."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from two_views import layer_by_layer

from fewtags.nets.projection import MLP, Follower, parameters_of, unit

EMA = json.loads((Path(__file__).parents[1] / "golden" / "mls.json").read_text("utf-8"))["ema"]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- MLP


def test_by_hand():
    """(1, -2) -> hidden (1, -2) W1 + b1 = (1 + 0, -2 + 1) = (1, -1), ReLU (1, 0) -> 3 * 1 + 5 * 0 - 1 = 2."""
    mlp = MLP((2, 2, 1))
    first, _, last = mlp.layers
    first.weight.data, first.bias.data = torch.eye(2), torch.tensor([0.0, 1.0])
    last.weight.data, last.bias.data = torch.tensor([[3.0, 5.0]]), torch.tensor([-1.0])
    assert mlp(torch.tensor([[1.0, -2.0]])).tolist() == [[2.0]]


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("normalised_output", [False, True])
def test_layers_written_out(normalised, normalised_output):
    mlp = MLP((5, 7, 6, 4), normalised=normalised, normalised_output=normalised_output).double()
    rows = draw(9, 5)
    torch.testing.assert_close(mlp(rows), layer_by_layer(mlp, rows))
    norms = [layer for layer in mlp.layers if isinstance(layer, nn.BatchNorm1d)]
    assert [norm.affine for norm in norms] == [True] * 2 * normalised + [False] * normalised_output
    linear = [layer for layer in mlp.layers if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(5, 7), (7, 6), (6, 4)]
    # A bias in front of BatchNorm would do nothing.
    assert [layer.bias is None for layer in linear] == [normalised, normalised, normalised_output]
    assert not isinstance(mlp.layers[-1], nn.ReLU)


def test_the_seed_alone_decides():
    state = torch.get_rng_state()
    one, same, other = (MLP((3, 4, 2), seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_even_inside_autocast(dtype):
    mlp, rows = MLP((3, 4, 2)), draw(5, 3).to(dtype)
    outside = mlp(rows.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mlp(rows)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


# --- Follower


def test_golden_average():
    layer = nn.Linear(2, 3, bias=False).double()
    layer.weight.data = torch.tensor(EMA["theta_k"][0], dtype=torch.float64).view(3, 2)
    follower = Follower(layer=layer)
    layer.weight.data = torch.tensor(EMA["theta_q"], dtype=torch.float64).view(3, 2)
    for expected in EMA["theta_k"][1:]:
        follower.follow(layer.parameters(), EMA["m"])
        mine = follower.get_submodule("layer").weight
        torch.testing.assert_close(mine.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)
    assert len(EMA["theta_k"]) == 4


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 5.0), (1.0, 1.0), (0.75, 2.0)])
def test_from_1_towards_5(momentum, expected):
    """.75 * 1 + .25 * 5 = 2; buffers stay where they are."""
    norm = nn.BatchNorm1d(2)
    follower = Follower(norm=norm)
    norm.weight.data, norm.bias.data = torch.tensor([5.0, 5.0]), torch.tensor([4.0, 4.0])
    norm.running_mean += 9
    follower.follow(norm.parameters(), momentum)
    copy = follower.get_submodule("norm")
    assert copy.weight.tolist() == [expected] * 2
    assert copy.bias.tolist() == [4 * (1 - momentum)] * 2
    assert copy.running_mean.tolist() == [0, 0]


def test_copies_are_copies_without_a_gradient():
    layers = nn.Linear(2, 2), nn.Linear(2, 1)
    follower = Follower(one=layers[0], two=layers[1])
    mine = [*follower.parameters()]
    for copy, original in zip(mine, parameters_of(*layers), strict=True):
        assert torch.equal(copy, original)
        assert copy.data_ptr() != original.data_ptr()
        assert not copy.requires_grad
        assert original.requires_grad
    with pytest.raises(AssertionError, match=r"\(4, 2\)"):
        follower.follow(layers[0].parameters(), 0.5)


def test_modes_are_taken_module_by_module():
    """Also out of wrappers; one layer of the original is held in eval mode, and so is that of the copy."""
    net, head = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.BatchNorm1d(2)), nn.BatchNorm1d(1)
    follower = Follower(net=net, head=head).eval()
    net.train()
    net[2].eval()
    head.eval()
    follower.take_modes(nn.Sequential(nn.Sequential(net)), head)
    copy = follower.get_submodule("net")
    assert [module.training for module in (copy, *copy)] == [True, True, True, False]
    assert not follower.get_submodule("head").training
    head.train()
    net.eval()
    follower.take_modes(net, head)
    assert [module.training for module in (copy, *copy)] == [False] * 4
    assert follower.get_submodule("head").training


# --- unit


def test_unit_by_hand():
    """(3, 4) has length 5; zeros stay."""
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(unit(rows), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    torch.testing.assert_close(unit(rows.T, 0), torch.tensor([[0.6, 0.0], [0.8, 0.0]]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32,) * 2, (torch.float64,) * 2],
)
def test_unit_is_float32_or_better(dtype, expected):
    rows = draw(4, 6, 3).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = unit(rows, 1)
    assert got.dtype == expected
    tolerance = torch.finfo(expected).eps * 8
    torch.testing.assert_close(got.norm(dim=1), torch.ones(4, 3, dtype=expected), rtol=0, atol=tolerance)
