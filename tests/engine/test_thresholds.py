"""Thresholds by the expected number of positives."""

import numpy as np
import pytest

from fewtags.engine.tables import Tables
from fewtags.engine.thresholds import choose_thresholds, expected_share, needs_training_scores, rests_on, scored_rows
from fewtags.labels import ClassNames
from fewtags.metrics.thresholds import ThresholdRule
from fewtags.objectives.assume_negative import AssumeNegative
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.table.table import LabelTable


def small(rows, names="abc"):
    dense = np.array(rows, np.int8)
    image, class_ = np.nonzero(dense)
    keys = [f"{i}.jpg" for i in range(len(dense))]
    return LabelTable.build(keys, ClassNames.of(names), image=image, class_=class_, state=dense[image, class_])


def test_expected_shares():
    """K = 1.5 of three classes, annotated 3 : 1 : 0. Settings of the method come first."""
    tables = Tables(small([[1, 0, 0]] * 3 + [[0, 1, 0]]), small([[1, 0, 0]]))
    assert expected_share(tables).tolist() == [1.0, 0.375, 0.0]
    assert expected_share(tables, AssumeNegative()).tolist() == [1.0, 0.375, 0.0]
    assert expected_share(tables, ExpectedNegative(positives_per_image=0.4)).tolist() == pytest.approx([0.3, 0.1, 0.0])
    prior = ExpectedNegative(class_prior=(0.1, 0.2, 0.7), positives_per_image=9.0)
    assert expected_share(tables, prior).tolist() == [0.1, 0.2, 0.7]


def test_thresholds_take_as_many_as_expected():
    """Ten images; shares .5, .2 and 0 of them: the five, two and no best scored ones."""
    tables = Tables(small([[1, 0, 0]] * 5 + [[0, 1, 0]] * 2), small([[1, 0, 0]] * 10))
    logits = np.linspace(-2, 2, 10, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    found = choose_thresholds(logits, tables, ExpectedNegative(positives_per_image=0.7))
    prob = 1 / (1 + np.exp(-logits.astype(float)))
    assert (prob >= found.values).sum(0).tolist() == [5, 2, 0]


def test_training_scores_help_where_few_positives_are_expected():
    """Shares .5, .2 and 0. Of 10 + 30 images, 8 are expected for the second class; of the third none, in any number."""
    tables = Tables(small([[1, 0, 0]] * 5 + [[0, 1, 0]] * 2), small([[1, 0, 0]] * 10))
    objective = ExpectedNegative(positives_per_image=0.7)
    assert needs_training_scores(tables, objective)
    logits = np.linspace(-2, 2, 10, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    more = np.linspace(1, 3, 30, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    found = choose_thresholds(logits, tables, objective, more)
    prob = [1 / (1 + np.exp(-x.astype(float))) for x in (logits, more)]
    assert (prob[0] >= found.values).sum(0).tolist() == [5, 0, 0]  # five are enough: validation alone
    assert (np.concatenate(prob) >= found.values).sum(0).tolist()[1:] == [8, 0]
    count, none = ThresholdRule.EXPECTED_COUNT, ThresholdRule.NONE_EXPECTED
    assert found.rules == (count, count, none)


def test_training_scores_are_not_needed_where_validation_is_complete_or_large():
    train = small([[1, 0, 0]] * 5 + [[0, 1, 0]] * 2)
    assert not needs_training_scores(Tables(train, small([[1, -1, -1], [-1, 1, -1], [1, 1, 1], [-1, -1, -1]])))
    one = small([[1]] * 7, "a")
    assert not needs_training_scores(Tables(one, one))
    assert needs_training_scores(Tables(one, one.subset([0, 1])))


def test_at_most_two_thousand_training_photos_are_scored():
    assert scored_rows(3).tolist() == [0, 1, 2]
    rows = scored_rows(5001)
    assert (len(rows), rows[0], rows[-1]) == (2000, 0, 5000)


def test_the_choice_of_an_epoch_says_on_what_it_rests():
    """a has 2 positives and 1 negative, b only positives, c nothing."""
    few = rests_on(small([[1, 1, 0], [1, 1, 0], [-1, 1, 0]]))
    assert few.startswith(
        " (1 class, 2 positives, 3 photos). Warning: with fewer than 20 positives this choice is mostly"
    )
    assert rests_on(small([[1, 0, 0]] * 12 + [[0, 1, 0]] * 10)) == " (2 classes, 22 positives, 22 photos)"
