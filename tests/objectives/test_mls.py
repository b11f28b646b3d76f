"""MLS: the golden training trace, its readings, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, LabelMatrix, SecondView
from fewtags.objectives.base import Problem, Progress
from fewtags.objectives.mls import MLS

TRACE = json.loads((Path(__file__).parent.parent / "golden" / "mls.json").read_text("utf-8"))["e2e"]


class Vectors(nn.Module):
    """Linear and ReLU; "images" are vectors, features a grid of one cell."""

    def __init__(self, weight, bias):
        super().__init__()
        self.linear = nn.Linear(len(weight[0]), len(weight), dtype=torch.float64)
        self.linear.weight.data, self.linear.bias.data = tensor(weight), tensor(bias)

    def forward(self, *views):
        return tuple(self.linear(view).relu()[:, :, None, None] for view in views)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def unlabelled(samples):
    return LabelMatrix.from_dense(np.zeros((samples, 0), np.int8))


def problem(samples, features_dim, **others):
    return Problem(labels=unlabelled(samples), grid=(1, 1), features_dim=features_dim, **others)


def batch_of(one, two, index):
    views = torch.zeros(len(index), 2, 3)
    return Batch(
        images=one,
        labels=torch.zeros(len(index), 0, dtype=torch.int8),
        index=index,
        views=views,
        places=None,
        second_view=SecondView(two, views),
    )


def golden_method(**options):
    """Net, objective and parts as the trace begins."""
    p = TRACE["params0"]
    net = Vectors(p["W"], p["b"])
    settings = {
        "k": TRACE["k"],
        "weight": TRACE["lam"],
        "temperature": TRACE["tau"],
        "momentum": TRACE["m"],
        "queue_size": TRACE["D"],
        "projection_dim": len(p["c2"]),
        "hidden_dim": len(p["c1"]),
    }
    method = MLS(**settings | options)
    parts = method.setup(net, problem(100, len(p["b"]), epochs=4))
    first, _, last = parts["projector"].double().layers
    first.weight.data, first.bias.data = tensor(p["A1"]), tensor(p["c1"])
    last.weight.data, last.bias.data = tensor(p["A2"]), tensor(p["c2"])
    parts["follower"].double().projector.load_state_dict(parts["projector"].state_dict())
    queues = parts["queues"]
    queues.enqueue(
        torch.arange(50, 50 + TRACE["D"]), {"features": tensor(TRACE["Qg0"]), "projections": tensor(TRACE["Qz0"])}
    )
    return net, method, parts


def step_batch(t):
    """Images 3 t, 3 t + 1, 3 t + 2."""
    rows = TRACE["B"] * t + torch.arange(TRACE["B"])
    return batch_of(tensor(TRACE["view1"][t]), tensor(TRACE["view2"][t]), rows)


def test_four_training_steps_are_the_golden_trace():
    """Both queues (float32 here) wrap at the third step; the momentum encoder moves after the optimiser does.

    The trace moves it before the keys are made, which is the same from the second step on, and nothing at the first.
    """
    net, method, parts = golden_method()
    weights = [*net.parameters(), *parts["projector"].parameters()]
    optimizer = torch.optim.SGD(weights, lr=TRACE["lr"], momentum=TRACE["momentum"], weight_decay=TRACE["weight_decay"])
    names = ("W", "b", "A1", "c1", "A2", "c2")
    for t, expected in enumerate(TRACE["steps"]):
        batch = step_batch(t)
        for mine, name in zip(parts["follower"].parameters(), names, strict=True):
            torch.testing.assert_close(mine, tensor(expected["key_params"][name]), rtol=0, atol=2e-6)
        out = method.step(net, batch, Progress(0, t, TRACE["T"]))
        optimizer.zero_grad()
        out.loss.backward()
        for key, name in (("infonce", "loss_nce"), ("neighbour_loss", "loss_ml")):
            assert out.logs[key].item() == pytest.approx(expected[name], abs=2e-6)
        assert out.loss.item() == pytest.approx(expected["loss"], abs=2e-6)
        for weight, name in zip(weights, names, strict=True):
            torch.testing.assert_close(weight.grad, tensor(expected["grads"][name]), rtol=0, atol=5e-6)
        slot_of = {int(i): j for j, i in enumerate(parts["queues"].ids)}
        chosen = [[slot_of[int(i)] for i in row] for row in out.payload.neighbours]
        assert [sorted(row) for row in chosen] == [sorted(row) for row in expected["topk"]]
        optimizer.step()
        method.commit(net, batch, out)
        assert int(parts["queues"].pointer) == expected["ptr"]
        for name, key in (("features", "Qg"), ("projections", "Qz")):
            torch.testing.assert_close(parts["queues"].read(name).double(), tensor(expected[key]), rtol=0, atol=2e-6)
        for weight, name in zip(weights, names, strict=True):
            torch.testing.assert_close(weight.data, tensor(expected["params_after"][name]), rtol=0, atol=5e-6)
    kept = parts["neighbours"].read(torch.arange(3))
    first = TRACE["steps"][0]["topk"]
    assert kept.sort(1).values.tolist() == [sorted(50 + j for j in row) for row in first]


def test_step_changes_nothing_and_repeats_itself():
    net, method, parts = golden_method()
    before = {(n, k): v.clone() for n, part in parts.items() for k, v in part.state_dict().items()}
    one, two = (method.step(net, step_batch(0), Progress(0, 0, 4)) for _ in range(2))
    assert one.loss.item() == two.loss.item()
    assert all(torch.equal(v, before[n, k]) for n, part in parts.items() for k, v in part.state_dict().items())


def loss_of(**options):
    net, method, _ = golden_method(**options)
    return method.step(net, step_batch(0), Progress(0, 0, 4)).loss.item()


def test_warm_up_is_infonce_alone():
    net, method, _ = golden_method(neighbour_from=2)
    out = method.step(net, step_batch(0), Progress(1, 0, 4))
    assert out.loss.item() == pytest.approx(TRACE["steps"][0]["loss_nce"], abs=2e-6)
    assert "neighbour_loss" not in out.logs


@pytest.mark.parametrize("source", ["projections", "features"])
def test_table_7_takes_labels_and_logits_from_one_queue(source):
    """Written out with numpy: unit queries, cosines with one queue, the two largest are labels."""
    net, method, _ = golden_method(source=source)
    expected = TRACE["steps"][0]
    g, z = (np.array(expected[name]) for name in ("g1", "z1"))
    rows, queue = {"features": (g, TRACE["Qg0"]), "projections": (z, TRACE["Qz0"])}[source]
    cosine = rows / np.linalg.norm(rows, axis=1, keepdims=True) @ np.array(queue).T
    y = cosine >= np.sort(cosine, 1)[:, [-TRACE["k"]]]
    x = cosine / TRACE["tau"]
    by_hand = np.mean(np.logaddexp(0, x) - y * x)
    out = method.step(net, step_batch(0), Progress(0, 0, 4))
    assert out.logs["neighbour_loss"].item() == pytest.approx(by_hand, abs=2e-6)
    out.loss.backward()
    assert net.linear.weight.grad.abs().sum() > 0


def test_include_self_makes_the_own_key_a_slot():
    """Three more slots; the own key, features of nearly the same photo, is among the two labels of the first image."""
    net, method, _ = golden_method(include_self=True)
    batch = step_batch(0)
    batch = replace(batch, second_view=SecondView(batch.images.clone(), batch.views))
    out = method.step(net, batch, Progress(0, 0, 4))
    assert out.payload.neighbours[:, 0].tolist() == [0, 1, 2]


def test_the_own_older_key_is_no_label():
    net, method, _ = golden_method()
    batch = step_batch(0)
    own = method.step(net, batch, Progress(0, 0, 4)).payload.neighbours[0, 0]
    again = replace(batch, index=torch.tensor([int(own), 1, 2]))
    masked = method.step(net, again, Progress(0, 0, 4))
    assert int(own) not in masked.payload.neighbours[0].tolist()
    assert (
        masked.payload.neighbours[1:].tolist()
        == method.step(net, batch, Progress(0, 0, 4)).payload.neighbours[1:].tolist()
    )


def test_an_empty_queue_gives_no_loss_and_no_neighbour():
    net = Vectors(TRACE["params0"]["W"], TRACE["params0"]["b"])
    method = MLS(k=2, queue_size=8, projection_dim=4)
    parts = method.setup(net, problem(9, 5))
    parts["projector"].double(), parts["follower"].double()
    out = method.step(net, step_batch(0), Progress(0, 0, 4))
    assert out.loss.item() == 0
    assert (out.payload.neighbours == -1).all()


def test_churn_is_told_by_what_could_and_what_did_come_back():
    net, method, parts = golden_method()
    parts["neighbours"].write(torch.tensor([0]), torch.tensor([[99, 50 + TRACE["steps"][0]["topk"][0][0]]]))
    logs = method.step(net, step_batch(0), Progress(0, 0, 4)).logs
    assert logs["neighbours_met"].item() == pytest.approx(1 / 3)
    assert logs["neighbours_kept"].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0."),
        ({"momentum": 1.5}, "momentum must be in 0..1, got 1.5."),
        (
            {"neighbour_loss": "knn_eq2", "reduction": "balanced", "logit_bias": 1.0},
            'logit_bias and reduction would do nothing with neighbour_loss = "knn_eq2"; leave it out.',
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        MLS(**options)
    assert str(error.value) == message


def test_problems_that_do_not_fit_are_refused():
    net = nn.Linear(1, 1)
    for method, message in (
        (MLS(k=64, queue_size=64), "k = 64 labels of a queue of 64 leave no negative; lower k."),
        (MLS(neighbour_from=1, k=2), "neighbour_from = 1 with 1 epochs: the labels would never begin."),
    ):
        with pytest.raises(ConfigError) as error:
            method.setup(net, problem(10, 3))
        assert str(error.value) == message
    net, method, _ = golden_method()
    with pytest.raises(ConfigError, match=r"^MLS needs two views of every image; load them from a TrainSet"):
        method.step(net, replace(step_batch(0), second_view=None), Progress(0, 0, 4))


@pytest.mark.parametrize("loss", ["bce", "bce_pos", "knn_eq10", "knn_eq2", "knn_eq11"])
@pytest.mark.parametrize("source", ["both", "features", "projections"])
def test_what_follows_the_nets_is_float32_inside_autocast(loss, source):
    """The linear layers keep float32 here, so every bit must be that of a step outside autocast."""
    found = []
    for enabled in (False, True):
        net, method, parts = golden_method(neighbour_loss=loss, source=source, neighbour_from=0)
        modules = [net, *(part for part in parts.values() if isinstance(part, nn.Module))]
        for module in modules:
            for layer in module.float().modules():
                if isinstance(layer, nn.Linear):
                    layer.forward = torch.autocast("cpu", enabled=False)(layer.forward)
        given = step_batch(0)
        batch = batch_of(given.images.float(), given.second_view.images.float(), given.index)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = method.step(net, batch, Progress(0, 0, 4))
        out.loss.backward()
        method.commit(net, batch, out)
        grads = [parameter.grad for module in modules for parameter in module.parameters()]
        found.append([out.loss, *out.logs.values(), *parts["queues"].state_dict().values(), *grads])
    assert found[1][0].dtype == torch.float32
    for inside, outside in zip(*found, strict=True):
        assert inside is None or torch.equal(torch.as_tensor(inside), torch.as_tensor(outside))
