"""The watch over collapse is a function of the records."""

import pytest

from fewtags.engine.collapse import Watch
from fewtags.losses.contrastive import fingerprint
from fewtags.objectives.mls import MLS
from fewtags.objectives.simsiam import SimSiam

PLAIN = MLS(k=20, queue_size=4096, temperature=0.2)


def records(*spreads, **others):
    return [{"epoch": n, "train/spread": s, **others} for n, s in enumerate(spreads)]


def told_at(watch, history):
    """Epochs, from 1, at which something was said."""
    return [n for n in range(1, len(history) + 1) if watch.look(history[:n])]


@pytest.mark.parametrize(
    ("spreads", "expected"),
    [
        ((0.01, 0.5, 0.6), []),  # a random net's vectors lie close together
        ((0.01, 0.01, 0.5), []),  # one epoch is not enough
        ((0.01, 0.01, 0.01, 0.01), [3]),  # said once
        ((0.9, 0.9, 0.04, 0.04, 0.04), [4]),
        ((0.9, 0.04, 0.04, 0.3, 0.04, 0.04), [3, 6]),  # it came back, and went again
    ],
)
def test_two_epochs_in_a_row_are_told_once(spreads, expected):
    assert told_at(Watch("stop", PLAIN), records(*spreads)) == expected


def test_it_says_what_the_numbers_are_and_what_helps():
    level = fingerprint(20, 4096, 0.2)
    others = {"train/mean_key": 0.99, "train/neighbour_loss": 1.01 * level}
    said = Watch("stop", PLAIN).look(records(0.5, 0.003, 0.002, **others))
    assert said == (
        "the net has collapsed by epoch 3: spread of the vectors 0.002 (1: all around, 0: one vector); length of the "
        "mean key 0.99 (0: all around, 1: one vector); neighbour loss 5.032, that of a collapsed net. Start again with "
        'objective.neighbour_loss = "knn_eq10" or objective.reduction = "balanced", a later objective.neighbour_from, '
        "a smaller objective.weight, or objective.momentum = 0.999."
    )
    other = Watch("warn", SimSiam()).look(records(0.5, 0.003, 0.002))
    assert other is not None
    assert "Start again with a lower train.lr" in other


def test_keys_and_loss_together_are_enough():
    """Batches that differ in a few images have some spread; one of the two alone is not enough."""
    level = {"train/neighbour_loss": fingerprint(20, 4096, 0.2)}
    both = level | {"train/mean_key": 0.99}
    assert told_at(Watch("stop", PLAIN), records(0.5, 0.1, 0.1, **both)) == [3]
    assert told_at(Watch("stop", PLAIN), records(0.5, 0.1, 0.1, **(level | {"train/mean_key": 0.5}))) == []
    assert told_at(Watch("stop", PLAIN), records(0.5, 0.1, 0.1, **{"train/mean_key": 0.99})) == []


def test_it_says_how_many_neighbours_changed():
    others = {"train/neighbours_met": 0.5, "train/neighbours_kept": 0.1}
    assert "; 80 % of the neighbours changed." in Watch("stop", PLAIN).look(records(0.5, 0.003, 0.002, **others))


def test_a_loss_elsewhere_is_not_the_fingerprint():
    said = Watch("stop", PLAIN).look(records(0.5, 0.003, 0.002, **{"train/neighbour_loss": 3.0}))
    assert "neighbour loss" not in said


def test_ignore_says_nothing():
    assert Watch("ignore", PLAIN).look(records(0.0, 0.0, 0.0)) is None
    assert Watch("stop", PLAIN).look([{"epoch": 0}, {"epoch": 1}, {"epoch": 2}]) is None
