"""A toy in which the literal loss of MLS collapses, and what it is added to, or exchanged for, does not.

A "photo" is a vector, the sum of three of twenty concepts and a little noise; a view keeps 70 % of its concepts.
Vectors, a tiny net and twenty epochs: it shows that the failure exists, not when it happens on photos.
"""

import numpy as np
import torch
from torch import nn

from fewtags.engine.collapse import Watch
from fewtags.labels import Batch, LabelMatrix, SecondView
from fewtags.objectives.base import Problem, Progress
from fewtags.objectives.mls import MLS
from fewtags.objectives.moco import MoCo

PHOTOS, CONCEPTS, LENGTH, BATCH, EPOCHS = 1024, 20, 32, 128, 20
STEPS = PHOTOS // BATCH
RNG = np.random.default_rng(0)
VECTORS = 2 * RNG.normal(size=(CONCEPTS, LENGTH)) / LENGTH**0.5
SHOWN = np.stack([RNG.permutation(CONCEPTS)[:3] for _ in range(PHOTOS)])
COMMON = {"queue_size": 512, "projection_dim": 16, "momentum": 0.99}


class Net(nn.Module):
    """Two layers; features are a grid of one cell."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(LENGTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())

    def forward(self, *views):
        return tuple(self.layers(view)[:, :, None, None] for view in views)


def view(index, rng):
    kept = rng.random((len(index), 3)) < 0.7
    kept[~kept.any(1), 0] = True
    noise = 0.1 * rng.normal(size=(len(index), LENGTH))
    return torch.from_numpy((VECTORS[SHOWN[index]] * kept[:, :, None]).sum(1) + noise).float()


def records_of(method):
    """What the loop would write down: the mean of every log over each epoch."""
    net, labels = Net(), LabelMatrix.from_dense(np.zeros((PHOTOS, 0), np.int8))
    parts = method.setup(net, Problem(labels=labels, grid=(1, 1), epochs=EPOCHS, features_dim=32))
    weights = [*net.parameters(), *parts["projector"].parameters()]
    optimizer, crops = torch.optim.SGD(weights, lr=0.06, momentum=0.9, weight_decay=1e-4), torch.zeros(BATCH, 2, 3)
    history = []
    for epoch in range(EPOCHS):
        found = []
        order = np.random.default_rng([1, epoch]).permutation(PHOTOS)
        for step in range(STEPS):
            index, rng = order[step * BATCH : (step + 1) * BATCH], np.random.default_rng([2, epoch, step])
            one, two = view(index, rng), view(index, rng)
            none = torch.zeros(BATCH, 0, dtype=torch.int8)
            batch = Batch(
                images=one,
                labels=none,
                index=torch.from_numpy(index),
                views=crops,
                places=None,
                second_view=SecondView(two, crops),
            )
            out = method.step(net, batch, Progress(epoch, step, STEPS))
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            method.commit(net, batch, out)
            found.append({f"train/{name}": value.item() for name, value in out.logs.items()})
        history.append({"epoch": epoch, **{name: np.mean([row[name] for row in found]) for name in found[0]}})
    return history


def told(method, history):
    """Epochs at which the watch over collapse says something."""
    watch = Watch("stop", method)
    return [n for n in range(1, len(history) + 1) if watch.look(history[:n])]


def test_infonce_keeps_vectors_apart():
    method = MoCo(**COMMON)
    history = records_of(method)
    assert history[-1]["train/spread"] > 0.5
    assert told(method, history) == []


def test_the_literal_sum_collapses_and_is_caught():
    """InfoNCE + 0.5 BCE, as the paper writes it: negatives outweigh positives by (512 - 5) / 5."""
    method = MLS(k=5, **COMMON)
    history = records_of(method)
    assert history[-1]["train/spread"] < 0.05
    (epoch,) = told(method, history)
    assert epoch < EPOCHS
    said = Watch("stop", method).look(history[:epoch])
    assert 'objective.neighbour_loss = "knn_eq10"' in said


def test_a_softmax_over_neighbours_does_not():
    method = MLS(k=5, neighbour_loss="knn_eq10", **COMMON)
    history = records_of(method)
    assert history[-1]["train/spread"] > 0.5
    assert told(method, history) == []
