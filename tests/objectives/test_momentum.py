"""Keys that come back in order, whatever parts BatchNorm saw them in; following; and the small helpers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from two_processes import both, load
from two_views import Cells, batch_of, in_double, layer_by_layer, lengths_one, problem

from fewtags.labels import LabelMatrix
from fewtags.nets.encoder import Encoder
from fewtags.objectives.base import Progress
from fewtags.objectives.momentum import (
    SHUFFLE,
    Keys,
    MomentumPair,
    default_queue_size,
    mean_norm,
    neighbour_purity,
    predicting_heads,
    run,
)
from fewtags.seeds import seed_of
from fewtags.stores.queue import AlignedQueues
from fewtags.stores.shard import SINGLE_PROCESS

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mls.json").read_text("utf-8"))
worker = load(Path(__file__).with_name("momentum_worker.py"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return both(Path(worker.__file__), tmp_path_factory.mktemp("two"))


def dealt(total):
    """Which images go where, in order: the permutation that the step's own generator draws."""
    generator = torch.Generator().manual_seed(seed_of(3, SHUFFLE, worker.AT.epoch, worker.AT.step))
    return torch.randperm(total, generator=generator)


def by_hand(images, parts):
    """Unit features and projections [n, ...] of images whose BatchNorm statistics are those of the parts."""
    net = Cells(batchnorm=True)
    conv, norm = net.layers[0], net.layers[1]
    projector = MomentumPair(net, problem(), (7, 6), 0.9, 1).projector.double()
    features = torch.full((len(images), 5), float("nan"), dtype=torch.float64)
    with torch.no_grad():
        for part in parts:
            maps = nn.functional.conv2d(images[part], conv.weight, conv.bias, stride=2)
            centred = maps - maps.mean((0, 2, 3), keepdim=True)
            maps = centred / (centred.square().mean((0, 2, 3), keepdim=True) + norm.eps).sqrt()
            features[part] = maps.clamp(min=0).mean((2, 3))
        return lengths_one(features), lengths_one(layer_by_layer(projector, features))


def assert_keys(found, ids, parts, images):
    assert found["ids"].tolist() == ids
    features, projections = by_hand(images, parts)
    torch.testing.assert_close(found["features"], features, rtol=0, atol=1e-12)
    torch.testing.assert_close(found["projections"], projections, rtol=0, atol=1e-12)


def test_groups_in_one_process_are_dealt_out_and_put_back():
    """Seven images in two groups: the first four and the last three of the permutation."""
    ids = [8, 0, 6, 4, 3, 9, 1]
    batch, order = batch_of(ids, 0), dealt(7)
    found = worker.keys(SINGLE_PROCESS, 2, batch)
    assert_keys(found, ids, (order[:4], order[4:]), batch.second_view.images)
    assert found["first"] == 0
    plain = worker.keys(SINGLE_PROCESS, 1, batch)
    assert_keys(plain, ids, (torch.arange(7),), batch.second_view.images)
    assert not torch.allclose(plain["features"], found["features"], atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
def test_two_processes_deal_out_and_put_back(two, groups):
    """Batches of 4 and 3: the first process sees four of the permutation, in two groups of 2; the other 3 = 2 + 1."""
    images = torch.cat([batch_of(ids, rank).second_view.images for rank, ids in enumerate(worker.IDS)])
    order = dealt(7)
    parts = (order[:4], order[4:]) if groups == 1 else (order[:2], order[2:4], order[4:6], order[6:])
    for rank in range(2):
        found = two[rank][f"{groups} groups"]
        assert_keys(found, [*worker.IDS[0], *worker.IDS[1]], parts, images)
        assert found["first"] == 4 * rank
    assert not torch.equal(two[0]["1 groups"]["mean"], two[1]["1 groups"]["mean"])


def test_every_output_is_put_back_alike():
    net = Cells(batchnorm=True)
    pair = MomentumPair(net, problem(), (7, 6), 0.9, 3)
    in_double(pair.parts())
    net.eval()
    batch = batch_of([8, 0, 6, 4, 3, 9, 1], 0)
    (grids, means), first = pair.encode(net, batch.images, worker.AT, lambda grid: (grid, grid.mean((1, 2, 3))))
    torch.testing.assert_close(grids, net(batch.images)[0].detach())
    torch.testing.assert_close(means, grids.mean((1, 2, 3)))
    assert first == 0


def test_own_rows():
    keys = Keys(torch.arange(4.0)[:, None], torch.arange(4.0, 8.0)[:, None], torch.tensor([8, 0, 6, 4]), 1)
    own = keys.own(2)
    assert own.ids.tolist() == [0, 6]
    assert own.features.tolist() == [[1], [2]]
    assert own.projections.tolist() == [[5], [6]]
    assert own.first == 0


def test_another_step_is_dealt_out_otherwise():
    pair = MomentumPair(Cells(), problem(), (7, 6), 0.9, 4)
    in_double(pair.parts())
    seen = []
    pair.follower.get_submodule("encoder").register_forward_hook(lambda _, views, __: seen.append(torch.cat(views)))
    batch, net = batch_of(range(8), 0), Cells()
    for at in (Progress(0, 0, 9), Progress(0, 1, 9), Progress(1, 0, 9), Progress(0, 0, 9)):
        pair.keys(net, batch.images, batch.index, at)
    assert torch.equal(seen[0], seen[3])
    assert not any(torch.equal(seen[0], other) for other in (*seen[1:3], batch.images))
    assert all(
        sorted(rows.flatten(1)[:, 0].tolist()) == sorted(batch.images.flatten(1)[:, 0].tolist()) for rows in seen
    )


def test_an_encoders_copy_normalises_by_the_batch_as_the_encoder_does():
    """Frozen as it is, it is not held in eval mode; where the encoder's BatchNorm is, so is the copy's."""
    encoder = Encoder(Backbone(), 5).double()
    pair = MomentumPair(encoder, problem(), (7, 6), 0.9, 1)
    in_double(pair.parts())
    batch = batch_of([8, 0, 6, 4], 0)
    for held in (False, True):
        encoder.batchnorm_eval = held
        encoder.train()
        features, query = pair.query(encoder, batch.images)
        keys = pair.keys(encoder, batch.images, batch.index, worker.AT)
        torch.testing.assert_close(keys.features, lengths_one(features.detach()))
        torch.testing.assert_close(keys.projections, query.detach())
        assert pair.follower.get_submodule("encoder.backbone.layers.1").training is not held


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = Cells(batchnorm=True).layers

    def forward(self, images):
        return self.layers(images)


def test_following_is_the_golden_average():
    """Encoder and projector follow, also through whatever the loop has wrapped the encoder in."""
    golden = GOLDEN["ema"]
    net = nn.Linear(2, 3, bias=False).double()
    pair = MomentumPair(net, problem(), (7, 6), golden["m"], 1)
    in_double(pair.parts())
    copy, heads = pair.follower.get_submodule("encoder"), pair.follower.get_submodule("projector")
    start, *expected = (torch.tensor(row, dtype=torch.float64).view(3, 2) for row in golden["theta_k"])
    copy.weight.data = start.clone()
    net.weight.data = torch.tensor(golden["theta_q"], dtype=torch.float64).view(3, 2)
    for parameter in pair.projector.parameters():
        parameter.data += 1
    for n, row in enumerate(expected, 1):
        pair.follow(nn.Sequential(net) if n % 2 else net)
        torch.testing.assert_close(copy.weight, row, rtol=0, atol=1e-14)
        for mine, theirs in zip(heads.parameters(), pair.projector.parameters(), strict=True):
            torch.testing.assert_close(theirs - mine, torch.full_like(mine, golden["m"] ** n))


def test_heads_of_prediction():
    projector, predictor = predicting_heads(problem(), [7, 8], 6, 3)
    assert [layer.out_features for layer in predictor.layers if isinstance(layer, nn.Linear)] == [3, 6]
    assert [layer.out_features for layer in projector.layers if isinstance(layer, nn.Linear)] == [7, 8, 6]
    assert isinstance(projector.layers[-1], nn.Linear)
    same, _ = predicting_heads(problem(), [7, 8], 6, 3)
    other, _ = predicting_heads(problem(seed=4), [7, 8], 6, 3)
    weight = projector.layers[0].weight
    assert torch.equal(same.layers[0].weight, weight)
    assert not torch.equal(other.layers[0].weight, weight)


def test_a_net_runs_in_parts():
    """Three parts of 7 images are 3, 2 and 2; more parts than images are one each."""
    net, images, seen = Cells(), batch_of(range(7), 0).images, []
    net.register_forward_hook(lambda _, views, __: seen.append([len(view) for view in views]))
    for groups, expected in ((1, [7]), (3, [3, 2, 2]), (9, [1] * 7)):
        torch.testing.assert_close(run(net, images, groups), net.layers(images))
        assert seen.pop() == expected


@pytest.mark.parametrize(
    ("samples", "size"), [(0, 16), (63, 16), (64, 32), (511, 128), (512, 256), (2048, 256), (4096, 512), (10**8, 65536)]
)
def test_default_queue(samples, size):
    assert default_queue_size(samples) == size


def test_length_of_the_mean():
    """(1, 0) and (0, 1) have the mean (.5, .5), of length .7071; what is not counted is not looked at."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    assert mean_norm(rows, torch.tensor([True, True, False])).item() == pytest.approx(0.5**0.5)
    assert mean_norm(rows, torch.tensor([False] * 3)).item() == 0


def test_purity_of_a_queue_by_hand():
    """Seven photos a, seven photos b, at right angles: all 5 nearest share the class, by chance 6 of 13."""
    queues = AlignedQueues(20, {"projections": 2})
    rows = torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 7)
    queues.enqueue(torch.arange(14), {"projections": rows})
    queues.enqueue(torch.tensor([0]), {"projections": rows[:1]})  # a second key of photo 0 is not its own neighbour
    complete = np.array([[1, -1]] * 7 + [[-1, 1]] * 7, np.int8)
    found = neighbour_purity(queues, LabelMatrix.from_dense(complete))
    assert found == pytest.approx({"neighbour_purity": 1.0, "neighbour_chance": 6 / 13})
    assert neighbour_purity(queues, LabelMatrix.from_dense(complete.clip(0))) == {}, "no pair is known to differ"
    assert neighbour_purity(queues, None) == {}
