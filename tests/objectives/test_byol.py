"""BYOL: steps written out, with the target following, and its momentum."""

import math
from dataclasses import replace

import pytest
import torch
from two_views import Cells, assert_gradients, batch_of, image_features, in_double, layer_by_layer, lengths_one, problem

from fewtags.errors import ConfigError
from fewtags.objectives.base import Progress
from fewtags.objectives.byol import BYOL


def made(epochs=2, **options):
    net = Cells()
    method = BYOL(**{"projection_dim": 6, "hidden_dim": 7, "predictor_dim": 8, "momentum": 0.9, **options})
    parts = method.setup(net, problem(epochs=epochs))
    in_double(parts)
    return net, method, parts


def test_steps_written_out():
    """Three of four steps of a run; the target is the mean of weights that the schedule says, not the net itself.

    K = 2 epochs of 2 steps; tau at step k is 1 - 0.1 (cos(pi k / 4) + 1) / 2: .9, .91464, .95.
    """
    net, method, parts = made()
    online = [net, parts["projector"]]
    target, projector = Cells(), made()[2]["projector"]
    optimizer = torch.optim.SGD([*net.parameters(), *parts["projector"].parameters()], lr=0.5)
    for k, tau in enumerate((0.9, 0.9146446609406726, 0.95)):
        batch = batch_of([4 + k, 1, 9, 17 - k], k)
        both = batch.images, batch.second_view.images
        q1, q2 = (
            lengths_one(layer_by_layer(parts["predictor"], layer_by_layer(parts["projector"], image_features(net, v))))
            for v in both
        )
        with torch.no_grad():
            t1, t2 = (lengths_one(layer_by_layer(projector, image_features(target, v))) for v in both)
        expected = ((q1 - t2).square().sum(1) + (q2 - t1).square().sum(1)).mean()
        out = method.step(net, batch, Progress(k // 2, k % 2, 2))
        assert out.logs["momentum"].item() == pytest.approx(tau)
        cosine = ((q1 * t2).sum(1) + (q2 * t1).sum(1)).mean() / 2
        assert out.logs["positive"].item() == pytest.approx(cosine.item())
        assert_gradients(out, expected, *online, parts["predictor"])
        optimizer.zero_grad()
        method.step(net, batch, Progress(k // 2, k % 2, 2)).loss.backward()
        optimizer.step()
        method.commit(net, batch, out)
        with torch.no_grad():
            mine = [*target.parameters(), *projector.parameters()]
            for slow, fast in zip(mine, (p for m in online for p in m.parameters()), strict=True):
                slow.copy_(tau * slow + (1 - tau) * fast)
        for slow, kept in zip(mine, parts["follower"].parameters(), strict=True):
            torch.testing.assert_close(kept, slow, rtol=0, atol=1e-14)


def test_momentum_is_a_function_of_progress():
    _, method, _ = made(epochs=10, momentum=0.996)
    assert method.momentum_at(Progress(0, 0, 5)) == pytest.approx(0.996)
    assert method.momentum_at(Progress(5, 0, 5)) == pytest.approx(0.998)
    assert method.momentum_at(Progress(9, 4, 5)) == pytest.approx(1 - 0.002 * (math.cos(math.pi * 0.98) + 1))
    _, constant, _ = made(momentum_schedule="constant")
    assert {constant.momentum_at(Progress(e, 1, 5)) for e in range(2)} == {0.9}


def test_the_target_has_no_gradient_and_the_net_is_called_once():
    net, method, parts = made()
    calls = []
    net.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    method.step(net, batch_of([4, 1, 9], 0), Progress(0, 0, 2)).loss.backward()
    assert calls == [True]
    assert all(p.grad is None and not p.requires_grad for p in parts["follower"].parameters())


def test_the_targets_batchnorm_sees_the_batch():
    """A frozen copy is in training mode as its original is, and its statistics are its own."""
    net = Cells(batchnorm=True)
    method = BYOL(projection_dim=6, hidden_dim=7, predictor_dim=8)
    parts = method.setup(net, problem())
    in_double(parts)
    method.step(net, batch_of([4, 1, 9], 0), Progress(0, 0, 2))
    copy = parts["follower"].get_submodule("encoder.layers.1")
    assert copy.training
    assert int(copy.num_batches_tracked) == 2
    torch.testing.assert_close(copy.running_mean, net.layers[1].running_mean)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError) as error:
        BYOL(momentum=-0.1)
    assert str(error.value) == "momentum must be from 0 to 1, got -0.1."
    net, method, _ = made()
    with pytest.raises(ConfigError, match=r"^BYOL needs two views of every image"):
        method.step(net, replace(batch_of([1, 2], 0), second_view=None), Progress(0, 0, 2))
