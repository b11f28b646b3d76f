"""A handful of points and boxes: what is drawn from complete labels."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable

# Benchmarks are scripts that import each other from their folder.
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
handful = importlib.import_module("handful")
sys.path.remove(BENCHMARKS)

CLASSES = ClassNames.of(["a", "b", "c"])


@pytest.fixture
def data():
    """200 images that show a in their left half and b in their right one, and no c."""
    image, class_ = np.repeat(np.arange(200), 2), np.tile([0, 1], 200)
    halves = np.array([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
    truth = LabelTable.build(
        [f"{n}.jpg" for n in range(200)], CLASSES, image=image, class_=class_, state=np.ones(400, int),
        locations=np.tile(halves, (200, 1)), complete_set=np.zeros(200, int), complete_classes=np.ones((1, 3), bool),
    )  # fmt: skip
    return SimpleNamespace(train_truth=truth)


def test_a_tag_per_photo_and_places_on_others(data):
    """60 points and 30 boxes, one on a photo, each on an object that is there, points .3 to .7 into it."""
    drawn = handful.draw(data, "none", 0)
    assert len(np.unique(drawn.photos)) == handful.PHOTOS
    assert (drawn.tags != Label.UNKNOWN).sum(1).tolist() == [1] * handful.PHOTOS
    assert (drawn.tags == Label.POSITIVE).any(0).tolist() == [True, True, False]
    row, classes, boxes = drawn.places.rows(np.arange(handful.PHOTOS))
    assert len(np.unique(row)) == len(row) == handful.POINTS + handful.BOXES
    assert (drawn.named[row, classes] == Label.POSITIVE).all()
    assert (drawn.named != drawn.tags).sum() == (drawn.tags[row, classes] == Label.UNKNOWN).sum()
    points = boxes[:, 0] == boxes[:, 2]
    assert (points.sum(), (~points).sum()) == (handful.POINTS, handful.BOXES)
    inside = boxes[points, 0] * 2 - classes[points]
    assert ((inside >= 0.3 - 1e-6) & (inside <= 0.7 + 1e-6)).all()
    np.testing.assert_array_equal(boxes[~points, 0] * 2, classes[~points])


def test_complete_tags_are_the_truth_and_seeds_differ(data):
    drawn = handful.draw(data, "full", 0)
    np.testing.assert_array_equal(drawn.tags, np.tile(np.array([1, 1, -1], np.int8), (handful.PHOTOS, 1)))
    np.testing.assert_array_equal(drawn.tags, drawn.named)
    assert (handful.draw(data, "full", 1).photos != drawn.photos).any()


@pytest.mark.parametrize(("known", "unknown", "count"), [("none", "negative", 5), ("full", None, 4)])
def test_only_unknown_classes_are_taken_as_absent(known, unknown, count):
    found = handful.variants(known, 2.0)
    assert len(found) == count
    assert found["patchml, located patch 36"].objective.image_unknown == unknown
