"""DenseCL: steps written out cell by cell, both queues in step, and grids that come back in order."""

from dataclasses import replace

import pytest
import torch
from two_views import (
    Cells,
    assert_gradients,
    batch_of,
    cell_features,
    image_features,
    in_double,
    layer_by_layer,
    lengths_one,
    problem,
)

from fewtags.errors import ConfigError
from fewtags.objectives.base import Progress
from fewtags.objectives.densecl import DenseCL

TAU, M = 0.3, 0.9


def made(net=None, **options):
    net = net or Cells()
    options = {"projection_dim": 6, "hidden_dim": 7, "queue_size": 7, "temperature": TAU, "momentum": M, **options}
    method = DenseCL(**options)
    parts = method.setup(net, problem())
    in_double(parts)
    return net, method, parts


def contrast(query, key, queue):
    """One vector against its key and a list of others."""
    scores = torch.stack([(query * other).sum() / TAU for other in (key, *queue)])
    return scores.exp().sum().log() - scores[0]


def dense(mlp, cells):
    """A head on every cell [b, d, s]: [b, s, p], one cell after the other."""
    return torch.stack([layer_by_layer(mlp, cells[:, :, s]) for s in range(cells.shape[2])], 1)


def test_steps_written_out():
    """Four batches of 3 in queues of 7, weight .3; the second batch is the first with anything to compare with."""
    net, method, parts = made(weight=0.3)
    slow = Cells(), *(made()[2][name] for name in ("projector", "dense"))
    online = [net, parts["projector"], parts["dense"]]
    optimizer, listed = torch.optim.SGD([p for m in online for p in m.parameters()], lr=0.3), []
    for k in range(4):
        batch, at = batch_of([3 * k, 3 * k + 1, 3 * k + 2], k), Progress(0, k, 4)
        query = lengths_one(layer_by_layer(parts["projector"], image_features(net, batch.images)))
        grid = cell_features(net, batch.images)
        cells = lengths_one(dense(parts["dense"], grid), 2)
        with torch.no_grad():
            key = lengths_one(layer_by_layer(slow[1], image_features(slow[0], batch.second_view.images)))
            key_grid = cell_features(slow[0], batch.second_view.images)
            projected = dense(slow[2], key_grid)
            key_cells, mean_cells = lengths_one(projected, 2), lengths_one(projected.mean(1))
        image_loss = cell_loss = 0
        for b in range(3):
            image_loss = image_loss + contrast(query[b], key[b], [z for _, z, _ in listed]) / 3
            for s in range(4):
                match = max(range(4), key=lambda u: float(grid[b, :, s].detach() @ lengths_one(key_grid[b, :, u], 0)))
                others = [c for _, _, c in listed]
                cell_loss = cell_loss + contrast(cells[b, s], key_cells[b, match], others) / 12
        out = method.step(net, batch, at)
        assert out.logs["infonce"].item() == pytest.approx(image_loss.item(), abs=1e-6)
        assert out.logs["dense_infonce"].item() == pytest.approx(cell_loss.item(), abs=1e-6)
        if k:
            assert_gradients(out, 0.7 * image_loss + 0.3 * cell_loss, *online)
        else:
            assert out.loss.item() == 0
        optimizer.zero_grad()
        method.step(net, batch, at).loss.backward()
        optimizer.step()
        method.commit(net, batch, out)
        with torch.no_grad():
            for mine, fast in zip((p for m in slow for p in m.parameters()), weights(online), strict=True):
                mine.copy_(M * mine + (1 - M) * fast)
        for mine, kept in zip((p for m in slow for p in m.parameters()), parts["follower"].parameters(), strict=True):
            torch.testing.assert_close(kept, mine, rtol=0, atol=1e-14)
        rows = zip(batch.index.tolist(), key.float().double(), mean_cells.float().double(), strict=True)
        listed = [*listed, *rows][-7:]
        queues = parts["queues"]
        held = zip(queues.ids.tolist(), queues.read("projections"), queues.read("cells"), strict=True)
        stored = {i: (z.double(), c.double()) for i, z, c in held if i >= 0}
        assert stored.keys() == {i for i, _, _ in listed}
        for i, z, c in listed:
            torch.testing.assert_close(stored[i], (z, c), rtol=0, atol=1e-7)
    assert len(listed) == 7


def weights(modules):
    return [p for module in modules for p in module.parameters()]


def test_weights_0_and_1_are_one_loss_alone():
    for weight, name in ((0.0, "infonce"), (1.0, "dense_infonce")):
        net, method, _ = made(weight=weight)
        batch = batch_of([1, 2, 3], 0)
        method.commit(net, batch, method.step(net, batch, Progress(0, 0, 4)))
        out = method.step(net, batch_of([4, 5, 6], 1), Progress(0, 1, 4))
        assert out.loss.item() == out.logs[name].item() > 0


def test_all_that_the_keys_are_made_of_comes_back_in_order():
    """Shuffled among three groups of 7 images, all that a step gives is what it is without a shuffle.

    BatchNorm in eval mode sees no groups, so that only the order is left to differ.
    """
    found = []
    for groups in (1, 3):
        net, method, parts = made(Cells(batchnorm=True), batchnorm_groups=groups, queue_size=16)
        net.eval()
        for k, index in enumerate(([0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13])):
            batch = batch_of(index, k)
            out = method.step(net, batch, Progress(0, k, 4))
            method.commit(net, batch, out)
        found.append((out, parts["queues"]))
    (one, queues), (other, shuffled) = found
    assert one.loss.item() == pytest.approx(other.loss.item(), abs=1e-12)
    for name in ("infonce", "dense_infonce", "positive"):
        assert one.logs[name].item() == pytest.approx(other.logs[name].item(), abs=1e-12)
    for name, value in queues.state_dict().items():
        torch.testing.assert_close(shuffled.state_dict()[name], value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": 1.1}, "weight must be from 0 to 1, got 1.1."),
        ({"batchnorm_groups": 0}, "batchnorm_groups must be at least 1, got 0."),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        DenseCL(**options)
    assert str(error.value) == message


def test_a_batch_of_one_view_is_refused():
    net, method, _ = made()
    with pytest.raises(ConfigError, match=r"^DenseCL needs two views of every image"):
        method.step(net, replace(batch_of([1, 2], 0), second_view=None), Progress(0, 0, 4))
