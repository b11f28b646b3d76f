"""SimSiam: a step written out, and what stands still in it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from two_views import Cells, assert_gradients, batch_of, image_features, in_double, layer_by_layer, lengths_one, problem

from fewtags.errors import ConfigError
from fewtags.objectives.base import Progress
from fewtags.objectives.simsiam import SimSiam

AT = Progress(0, 0, 4)


def made(**options):
    net = Cells()
    method = SimSiam(**{"projection_dim": 6, "hidden_dim": 7, "predictor_dim": 3, **options})
    parts = method.setup(net, problem())
    in_double(parts)
    return net, method, parts


def test_a_step_written_out():
    net, method, parts = made()
    batch = batch_of([4, 1, 9, 7, 3], 0)
    z1, z2 = (
        layer_by_layer(parts["projector"], image_features(net, v)) for v in (batch.images, batch.second_view.images)
    )
    p1, p2 = (lengths_one(layer_by_layer(parts["predictor"], z)) for z in (z1, z2))
    still1, still2 = (lengths_one(z.detach()) for z in (z1, z2))
    expected = -((p1 * still2).sum(1).mean() + (p2 * still1).sum(1).mean()) / 2
    out = method.step(net, batch, AT)
    assert out.logs["positive"].item() == pytest.approx(-expected.item())
    assert out.logs["spread"].item() == pytest.approx(float(still1.std(0).mean()) * 6**0.5)
    assert_gradients(out, expected, net, *parts.values())


def test_heads_are_the_papers():
    """Three layers with BatchNorm on all, the last without weights; two layers with a narrow one that is normalised."""
    _, _, parts = made(hidden_dim=None)
    kinds = [type(layer) for layer in parts["projector"].layers]
    block = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*block, *block, nn.Linear, nn.BatchNorm1d]
    assert [layer.out_features for layer in parts["projector"].layers if isinstance(layer, nn.Linear)] == [5, 5, 6]
    assert not parts["projector"].layers[-1].affine
    assert [type(layer) for layer in parts["predictor"].layers] == [*block, nn.Linear]
    assert [layer.out_features for layer in parts["predictor"].layers if isinstance(layer, nn.Linear)] == [3, 6]


def test_heads_are_in_the_mode_of_the_net():
    """In eval mode a batch's statistics are not looked at, so that images do not depend on each other."""
    net, method, _ = made()
    net.eval()
    batch = batch_of([4, 1, 9], 0)
    rows = [method.step(net, one_of(batch, n), AT).loss.item() for n in range(3)]
    assert method.step(net, batch, AT).loss.item() == pytest.approx(sum(rows) / 3)
    net.train()
    assert method.step(net, batch, AT).loss.item() != pytest.approx(sum(rows) / 3)


def one_of(batch, n):
    here = slice(n, n + 1)
    second_view = batch.second_view._replace(images=batch.second_view.images[here])
    return replace(batch, images=batch.images[here], index=batch.index[here], second_view=second_view)


def test_the_net_is_called_once():
    """DDP must see one forward pass."""
    net, method, _ = made()
    calls = []
    net.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    method.step(net, batch_of([4, 1, 9], 0), AT)
    assert calls == [True]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError) as error:
        SimSiam(predictor_dim=0)
    assert str(error.value) == "predictor_dim must be at least 1, got 0."
    with pytest.raises(ConfigError) as error:
        SimSiam().setup(Cells(), problem(features_dim=0))
    assert str(error.value) == (
        "self-supervised methods need Problem.features_dim, the channels of the net's features."
    )
    net, method, _ = made()
    with pytest.raises(ConfigError, match=r"^SimSiam needs two views of every image"):
        method.step(net, replace(batch_of([1, 2], 0), second_view=None), AT)
