"""Runs: the photos and weights of each, how often photos go through the encoder, and the results."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from fewtags.errors import ConfigError
from fewtags.nets.encoder import create_encoder
from fewtags.transfer.features import photo_features
from fewtags.transfer.measure import measure
from fewtags.transfer.probes import knn_scores
from fewtags.transfer.task import make_task, sample_photos
from fewtags.transfer.training import TrainSettings
from fewtags.transfer.trials import Trials, run_finetune, run_knn, run_linear, run_svm

SETTINGS = TrainSettings(epochs=3, lr=1.0, weight_decay=0.0, batch_size=8, schedule="cosine")


def consume(events):
    deque(events, 0)


def make_trials(make_encoder, task, context, *, random_weights=False, **options):
    return Trials(make_encoder=make_encoder, random_weights=random_weights, task=task, context=context, **options)


@pytest.fixture
def trials(single, encoder, context):
    return make_trials(lambda seed: encoder, single, context)


def test_a_run_is_the_probe_on_the_features(single, encoder, context, cpu, trials):
    train, test = (photo_features(encoder, table, context.policy, cpu) for table in (single.train, single.test))
    scores = knn_scores(train, single.train.matrix.dense(), test, "single", k=5, temperature=0.1)
    found = run_knn(trials, k=5, temperature=0.1)
    assert found.runs == [measure(single, scores)]
    assert found.photos == [18]


def test_each_run_samples_its_photos_and_all_go_through_the_encoder_once(single, encoder, context, cpu, trials):
    """Runs of 2 photos per class by seeds 0 and 1: the encoder sees their union, and the test photos once."""
    ticks = []
    few = replace(trials, seeds=(0, 1), per_class=2, tick=lambda *at: ticks.append(at))
    samples = [sample_photos(single.train, per_class=2, seed=seed) for seed in (0, 1)]
    assert not np.array_equal(*samples)
    found = run_knn(few, k=3, temperature=0.1)
    assert ticks == [(len(np.union1d(*samples)),) * 2, (9, 9)]
    assert found.photos == [6, 6]
    train, test = (photo_features(encoder, table, context.policy, cpu) for table in (single.train, single.test))
    for run, rows in zip(found.runs, samples, strict=True):
        scores = knn_scores(train[rows], single.train.matrix.dense()[rows], test, "single", k=3, temperature=0.1)
        assert run == measure(single, scores)


def test_random_weights_differ_between_runs(single, context):
    """Two runs equal the single runs of their seeds."""
    seen = []

    def make(seed):
        seen.append(seed)
        return create_encoder("test_resnet", weights="none", size=32, seed=seed)

    both = run_svm(make_trials(make, single, context, random_weights=True, seeds=(4, 5)), costs=(0.5,))
    assert seen == [4, 5]
    alone = [
        run_svm(make_trials(make, single, context, random_weights=True, seeds=(seed,)), costs=(0.5,)).runs
        for seed in (4, 5)
    ]
    assert both.runs == alone[0] + alone[1]


@pytest.mark.parametrize("probe", [lambda t: run_knn(t, k=1, temperature=1.0), lambda t: run_svm(t, costs=(1.0,))])
def test_runs_that_cannot_differ_are_refused(trials, probe):
    with pytest.raises(ConfigError) as error:
        probe(replace(trials, seeds=(0, 1, 2)))
    assert str(error.value) == (
        "3 runs of this probe on the same photos and weights give the same number; sample photos with --share or "
        "--per-class, or leave out --runs."
    )


def test_trials_refuse(trials):
    with pytest.raises(ConfigError, match="there must be at least one run"):
        replace(trials, seeds=())
    with pytest.raises(ConfigError, match="give a share of the training photos or a number of photos per class, not"):
        replace(trials, share=0.5, per_class=3)


def test_svm_names_classes_without_a_classifier_and_the_chosen_costs(multi, encoder, context):
    """Training on two photos of one class only."""
    one = replace(multi, train=multi.train.subset([0, 6]))
    found = run_svm(make_trials(lambda seed: encoder, one, context), costs=(0.5,))
    assert found.notes == [
        "seed 0: no classifier for classes without known positives or without known negatives: blue, green, red"
    ]
    found = run_svm(make_trials(lambda seed: encoder, multi, context), costs=(0.5, 0.5))
    assert found.notes == ["seed 0: costs chosen over three folds: 0.5 (3 classes)"]


def test_the_linear_layer_chooses_by_held_out_photos(trials):
    """A learning rate of 1e-9 learns nothing."""
    candidates = [replace(SETTINGS, epochs=30, lr=lr) for lr in (1e-9, 10.0)]
    found = run_linear(trials, candidates, views=1, consume=consume)
    (note,) = found.notes
    assert note.startswith("seed 0: lr 10 and weight decay 0 chosen on validation (lr 1e-09 weight decay 0: ")
    assert found.photos == [18]


def test_the_linear_layer_chooses_on_validation_photos_if_there_are_any(single, encoder, context):
    """Features are made of val (9 photos), train (18) and test (9), in this order; then of the crops of train."""
    ticks = []
    task = make_task(single.train, single.test, single.test)
    trials = make_trials(lambda seed: encoder, task, context, tick=lambda *at: ticks.append(at))
    run_linear(trials, [SETTINGS, replace(SETTINGS, lr=0.5)], views=1, consume=consume)
    assert ticks == [(9, 9), (18, 18), (9, 9), (18, 18)]


def test_linear_runs_share_the_crops_and_differ_by_their_seeds(trials):
    ticks = []
    several = replace(trials, seeds=(0, 1), tick=lambda *at: ticks.append(at))
    found = run_linear(several, [SETTINGS], views=2, consume=consume)
    assert len(ticks) == 1 + 1 + 2
    assert len(found.runs) == 2
    alone = run_linear(trials, [SETTINGS], views=2, consume=consume)
    assert found.runs[0] == alone.runs[0]


def test_finetuning_takes_the_runs_photos_and_chooses(trials):
    """Three trainings: two to choose by, on four fifths of six photos, and the last on all six."""
    seen = []

    def follow(events):
        seen.append(list(events))

    few = replace(trials, per_class=2)
    found = run_finetune(few, [replace(SETTINGS, epochs=1, lr=lr) for lr in (0.1, 0.01)], consume=follow)
    assert len(seen) == 3
    assert found.photos == [6]
    assert found.notes[0].startswith("seed 0: lr 0.")
