"""MoCo: steps written out over a queue that fills and wraps."""

from dataclasses import replace

import pytest
import torch
from two_views import Cells, assert_gradients, batch_of, image_features, in_double, layer_by_layer, lengths_one, problem

from fewtags.errors import ConfigError
from fewtags.objectives.base import Progress
from fewtags.objectives.moco import MoCo

TAU, M = 0.3, 0.9


def made(**options):
    net = Cells()
    options = {"projection_dim": 6, "hidden_dim": 7, "queue_size": 7, "temperature": TAU, "momentum": M, **options}
    method = MoCo(**options)
    parts = method.setup(net, problem())
    in_double(parts)
    return net, method, parts


def infonce(query, key, queue):
    losses = []
    for row, right in zip(query, key, strict=True):
        scores = torch.stack([(row * other).sum() / TAU for other in (right, *queue)])
        losses.append(scores.exp().sum().log() - scores[0])
    return torch.stack(losses).mean()


def test_a_run_written_out():
    """Six batches of 3 in a queue of 7, as a list; the momentum encoder as the published code moves it: before keys."""
    net, method, parts = made()
    slow = Cells(), made()[2]["projector"]
    online = [net, parts["projector"]]
    weights = [p for m in online for p in m.parameters()]
    optimizer, listed = torch.optim.SGD(weights, lr=0.3, momentum=0.9), []
    for k in range(6):
        batch, at = batch_of([3 * k, 3 * k + 1, 3 * k + 2], k), Progress(0, k, 6)
        query = lengths_one(layer_by_layer(parts["projector"], image_features(net, batch.images)))
        with torch.no_grad():
            for mine, fast in zip((p for m in slow for p in m.parameters()), weights, strict=True):
                mine.copy_(M * mine + (1 - M) * fast)
            key = lengths_one(layer_by_layer(slow[1], image_features(slow[0], batch.second_view.images)))
        queue = torch.stack([row for _, row in listed]) if listed else torch.zeros(0, 6)
        out = method.step(net, batch, at)
        if listed:
            assert_gradients(out, infonce(query, key, queue), *online)
            assert out.logs["mean_key"].item() == pytest.approx(queue.mean(0).norm().item(), abs=1e-6)
        else:
            assert (out.loss.item(), out.logs["mean_key"].item()) == (0, 0)
        assert out.logs["positive"].item() == pytest.approx((query.detach() * key).sum(1).mean().item(), abs=1e-12)
        assert out.logs["spread"].item() == pytest.approx(query.detach().std(0).mean().item() * 6**0.5)
        optimizer.zero_grad()
        method.step(net, batch, at).loss.backward()
        optimizer.step()
        method.commit(net, batch, out)
        listed = [*listed, *zip(batch.index.tolist(), key.float(), strict=True)][-7:]
        ids, rows = parts["queue"].ids, parts["queue"].read("projections")
        stored = {int(i): row for i, row in zip(ids, rows, strict=True) if i >= 0}
        assert stored.keys() == {i for i, _ in listed}
        for i, row in listed:
            torch.testing.assert_close(stored[i], row, rtol=0, atol=1e-7)
    assert len(listed) == 7


def test_queue_size_follows_from_the_images():
    method = MoCo()
    parts = method.setup(Cells(), problem(samples=5000))
    assert parts["queue"].size == 512
    assert parts["queue"].read("projections").shape == (512, 128)
    assert [tuple(p.shape) for p in parts["projector"].parameters()] == [(5, 5), (5,), (128, 5), (128,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue_size": 0}, "queue_size must be at least 1, got 0."),
        ({"momentum": 1.01}, "momentum must be in 0..1, got 1.01."),
        ({"temperature": float("nan")}, "temperature must be at least 0.001, got nan."),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        MoCo(**options)
    assert str(error.value) == message


def test_a_batch_of_one_view_is_refused():
    net, method, _ = made()
    with pytest.raises(ConfigError, match=r"^MoCo needs two views of every image"):
        method.step(net, replace(batch_of([1, 2], 0), second_view=None), Progress(0, 0, 4))


def test_an_own_older_key_is_no_negative():
    """Images 0..2 are in the queue; as other images, 7..9, they meet all keys, and the loss is the unmasked one."""
    net, method, parts = made()
    first, at = batch_of([0, 1, 2], 0), Progress(0, 0, 6)
    method.commit(net, first, method.step(net, first, at))
    again = batch_of([0, 1, 2], 1)
    query = lengths_one(layer_by_layer(parts["projector"], image_features(net, again.images))).detach()
    key = method.step(net, again, at).payload[1]["projections"]
    queue = parts["queue"].read("projections")[:3].double()
    kept = [queue[torch.arange(3) != row] for row in range(3)]
    expected = torch.stack([infonce(query[n : n + 1], key[n : n + 1], kept[n]) for n in range(3)]).mean()
    assert method.step(net, again, at).loss.item() == pytest.approx(expected.item(), abs=1e-6)
    others = method.step(net, replace(again, index=torch.tensor([7, 8, 9])), at).loss
    assert others.item() == pytest.approx(infonce(query, key, queue).item(), abs=1e-6)
