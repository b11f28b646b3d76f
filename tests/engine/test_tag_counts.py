"""K from tags: photos whose features say which classes they show."""

import numpy as np
import pytest

from fewtags.engine.expected_tags import drawn_tags
from fewtags.engine.tag_counts import tag_counts
from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable


def scenes(photos, classes, seed):
    """Photos of one to three classes; the features are the classes, with a little noise."""
    draw = np.random.default_rng(seed)
    truth = np.zeros((photos, classes), bool)
    for row in truth:
        row[draw.permutation(classes)[: draw.integers(1, 4)]] = True
    features = truth + 0.05 * draw.normal(size=truth.shape)
    tag = np.where(truth, draw.random(truth.shape), -1).argmax(1)
    return truth, features, tag


def test_clear_photos_give_k_without_complete_labels():
    truth, features, tag = scenes(400, 6, 0)
    found = tag_counts(features, tag, 6)
    assert found.mean == pytest.approx(truth.sum(1).mean(), rel=0.2)
    assert np.corrcoef(found.prior, truth.mean(0))[0, 1] > 0.5
    assert found.explained > 0.3
    assert tag_counts(features, tag, 6).mean == found.mean


def test_photos_that_say_nothing_explain_nothing():
    _, features, tag = scenes(200, 5, 1)
    noise = np.random.default_rng(2).normal(size=features.shape)
    assert tag_counts(noise, tag, 5).explained < 0.05


def test_few_photos_are_refused():
    with pytest.raises(DataError, match="49 photos with a tag, of 2 classes, are too few"):
        tag_counts(np.zeros((49, 3)), np.arange(49) % 2, 2)


def test_one_of_several_positives_is_drawn_and_photos_without_one_are_left_out():
    image = np.repeat(np.arange(300), 2)
    class_ = np.tile([0, 2], 300)
    table = LabelTable.build(
        [f"{i}.jpg" for i in range(301)], ClassNames.of("abc"), image=image, class_=class_, state=np.full(600, 1)
    )
    rows, tag = drawn_tags(table, 0)
    assert rows.tolist() == [*range(300)]
    assert {*tag.tolist()} == {0, 2}
    assert 110 < (tag == 0).sum() < 190
    assert (drawn_tags(table, 1)[1] != tag).any()
    assert int(Label.POSITIVE) == 1
