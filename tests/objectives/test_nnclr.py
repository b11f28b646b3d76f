"""NNCLR: steps written out over a queue that fills and wraps."""

from dataclasses import replace

import pytest
import torch
from two_views import Cells, assert_gradients, batch_of, image_features, in_double, layer_by_layer, lengths_one, problem

from fewtags.errors import ConfigError
from fewtags.objectives.base import Progress
from fewtags.objectives.nnclr import NNCLR

T = 0.3


def made(**options):
    net = Cells()
    options = {"projection_dim": 6, "hidden_dim": 7, "predictor_dim": 8, "queue_size": 7, "temperature": T, **options}
    method = NNCLR(**options)
    parts = method.setup(net, problem())
    in_double(parts)
    return net, method, parts


def by_hand(near, predictions):
    """Row by row, candidate by candidate."""
    losses = []
    for i, row in enumerate(near):
        scores = torch.stack([(row * candidate).sum() / T for candidate in predictions])
        losses.append(scores.exp().sum().log() - scores[i])
    return torch.stack(losses).mean()


def nearest(rows, kept):
    """Of each row the most similar one that is kept; the row itself where nothing is."""
    return torch.stack([max(kept, key=lambda q: float(q @ row)) if kept else row for row in rows])


def test_steps_written_out():
    """Four batches of 3 in a queue of 7: at first nothing is in it and a view is its own neighbour; then it wraps."""
    net, method, parts = made()
    weights = [p for part in (net, parts["projector"], parts["predictor"]) for p in part.parameters()]
    optimizer, listed = torch.optim.SGD(weights, lr=0.2), []
    for k in range(4):
        batch, at = batch_of([3 * k, 3 * k + 1, 3 * k + 2], k), Progress(0, k, 4)
        z1, z2 = (
            layer_by_layer(parts["projector"], image_features(net, v)) for v in (batch.images, batch.second_view.images)
        )
        p1, p2 = (lengths_one(layer_by_layer(parts["predictor"], z)) for z in (z1, z2))
        near = [nearest(lengths_one(z.detach()), [kept for _, kept in listed]) for z in (z1, z2)]
        expected = (by_hand(near[0], p2) + by_hand(near[1], p1)) / 2
        out = method.step(net, batch, at)
        assert out.logs["positive"].item() == pytest.approx((near[0] * p2.detach()).sum(1).mean().item(), abs=1e-6)
        assert_gradients(out, expected, net, parts["projector"], parts["predictor"])
        optimizer.zero_grad()
        method.step(net, batch, at).loss.backward()
        optimizer.step()
        method.commit(net, batch, out)
        rows = lengths_one(z1.detach()).float().double()
        listed = [*listed, *zip(batch.index.tolist(), rows, strict=True)][-7:]
        stored = {int(i): row for i, row in zip(parts["queue"].ids, parts["queue"].read("projections"), strict=True)}
        assert stored.keys() - {-1} == {i for i, _ in listed}
        for i, row in listed:
            torch.testing.assert_close(stored[i].double(), row, rtol=0, atol=1e-7)
    assert len(listed) == 7


def test_empty_slots_are_nobodys_neighbour():
    """All that is in the queue is opposite of every view: still nearer than zeros, which do not count."""
    net, method, parts = made()
    batch = batch_of([1, 2, 3], 0)
    z1 = lengths_one(layer_by_layer(parts["projector"], image_features(net, batch.images)).detach())
    parts["queue"].enqueue(batch.index, {"projections": -z1.mean(0).expand(3, -1)})
    out = method.step(net, batch, Progress(0, 0, 4))
    p2 = lengths_one(
        layer_by_layer(
            parts["predictor"], layer_by_layer(parts["projector"], image_features(net, batch.second_view.images))
        )
    )
    expected = (-z1.mean(0) * p2).sum(1).mean().item()
    assert out.logs["positive"].item() == pytest.approx(expected, abs=1e-6)
    assert expected != 0


def test_the_net_is_called_once():
    net, method, _ = made()
    calls = []
    net.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    method.step(net, batch_of([4, 1, 9], 0), Progress(0, 0, 4))
    assert calls == [True]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError) as error:
        NNCLR(temperature=0.0)
    assert str(error.value) == "temperature must be at least 0.001, got 0.0."
    net, method, _ = made()
    with pytest.raises(ConfigError, match=r"^NNCLR needs two views of every image"):
        method.step(net, replace(batch_of([1, 2], 0), second_view=None), Progress(0, 0, 4))
