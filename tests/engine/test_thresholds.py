"""Thresholds by the expected number of positives."""

import numpy as np
import pytest

from fewtags.engine.plan import Tables
from fewtags.engine.thresholds import choose_thresholds, expected_share
from fewtags.labels import ClassNames
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
