"""A linear layer on cached crops, and fine-tuning: settings, what is frozen, what is learned."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch

from fewtags.errors import ConfigError
from fewtags.photos.augment import SquareCrop
from fewtags.transfer.features import photo_features
from fewtags.transfer.measure import measure
from fewtags.transfer.training import (
    TrainSettings,
    choose_settings,
    finetuned_scores,
    grid,
    linear_scores,
    view_features,
)

SETTINGS = TrainSettings(epochs=10, lr=1.0, weight_decay=0.0, batch_size=8, schedule="steps")


def consume(events):
    deque(events, 0)


def test_steps_are_mocos():
    """Divided by 10 at epochs 60 and 80 of 100."""
    stages = replace(SETTINGS, epochs=100, lr=30.0).stages("head")
    assert [(s.epochs, s.lr, s.schedule, s.trainable) for s in stages] == [
        (60, 30.0, "constant", "head"), (20, 3.0, "constant", "head"), (20, pytest.approx(0.3), "constant", "head"),
    ]  # fmt: skip


@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_steps_make_up_all_epochs(epochs):
    assert sum(s.epochs for s in replace(SETTINGS, epochs=epochs).stages("head")) == epochs


def test_cosine_is_one_stage():
    (stage,) = replace(SETTINGS, schedule="cosine").stages("all")
    assert (stage.epochs, stage.lr, stage.schedule, stage.trainable) == (10, 1.0, "cosine", "all")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"batch_size": 0}, "batch size must be 1 or more, got 0"),
        ({"weight_decay": -1.0}, "weight decay must be 0 or more, got -1.0"),
        ({"lr": 0.0}, "the learning rate must be above 0, got 0"),
    ],
)
def test_settings_refuse(change, words):
    with pytest.raises(ConfigError) as error:
        replace(SETTINGS, **change)
    assert str(error.value) == f"{words}."


def test_views_of_the_whole_photo_are_its_features(single, encoder, context, cpu):
    """`WholeImage` draws no crop: every view is the test view."""
    filled = view_features(encoder, single.train, context, 2)
    whole = photo_features(encoder, single.train, context.policy, cpu)
    assert filled.features.shape == (2, 18, encoder.features_dim, 1, 1)
    for view in filled.features[:, :, :, 0, 0].numpy():
        np.testing.assert_allclose(view, whole, rtol=1e-5, atol=1e-6)


def test_crops_differ_by_view_and_seed_and_leave_the_encoder_as_it_is(single, encoder, context):
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    random = context._replace(policy=SquareCrop(32, (0.1, 0.3)))
    one, two = (view_features(encoder, single.train, random, 2, seed=seed).features for seed in (0, 1))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one, two)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


@pytest.mark.parametrize("name", ["single", "multi"])
def test_a_linear_layer_learns_colours(name, encoder, context, cpu, request):
    """Perfect on photos that only differ by colour; a layer that has learned nothing is not."""
    task = request.getfixturevalue(name)
    filled = view_features(encoder, task.train, context, 1)
    test = photo_features(encoder, task.test, context.policy, cpu)
    metric = "top1" if name == "single" else "mAP"
    learned = linear_scores(filled, test, task, context, replace(SETTINGS, epochs=60, lr=10.0), consume)
    nothing = linear_scores(filled, test, task, context, replace(SETTINGS, epochs=1, lr=1e-9), consume)
    assert measure(task, learned)[metric] > 0.9
    assert measure(task, nothing)[metric] < 0.8


def test_the_same_seed_gives_the_same_layer(single, encoder, context, cpu):
    filled = view_features(encoder, single.train, context, 1)
    test = photo_features(encoder, single.test, context.policy, cpu)
    found = [linear_scores(filled, test, single, context, replace(SETTINGS, seed=s), consume) for s in (3, 3, 4)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("name", ["single", "multi"])
def test_finetuning_trains_a_copy(name, encoder, context, request):
    task = request.getfixturevalue(name)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    settings = TrainSettings(epochs=12, lr=0.05, weight_decay=1e-4, batch_size=6, schedule="cosine")
    events = []
    scores = finetuned_scores(encoder, task, context, settings, events.extend)
    assert scores.shape == (len(task.test), 3)
    assert measure(task, scores)["top1" if name == "single" else "mAP"] > 0.8
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert not any(parameter.grad is not None for parameter in encoder.parameters())


def test_the_first_of_the_best_settings_is_chosen(single):
    """Scores that are right for all, none and all photos: the first of the two that are right for all."""
    truth = np.eye(3)[np.arange(9) % 3]
    candidates = grid(SETTINGS, [3.0, 0.1], [0.0, 0.5])
    assert [(c.lr, c.weight_decay) for c in candidates] == [(3.0, 0.0), (3.0, 0.5), (0.1, 0.0), (0.1, 0.5)]
    scores = {candidates[0]: 1 - truth, candidates[1]: truth, candidates[2]: 0 * truth, candidates[3]: truth}
    chosen, reached = choose_settings(candidates, single, scores.__getitem__)
    assert chosen == candidates[1]
    assert reached == [0.0, 1.0, pytest.approx(1 / 3), 1.0]
