"""Orders of questions: by hand, and what all of them have in common."""

import numpy as np
import pytest

from fewtags.labels import Label
from fewtags.metrics.calibration import calibrate, expected_unknown
from fewtags.review.orders import ORDERS, Cells, choose, expected_change

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def cells_of(logits, labels, share):
    labels = np.array(labels, np.int8)
    expected = expected_unknown(labels, np.array(share))
    logits = np.array(logits, float)
    return Cells(logits=logits, labels=labels, prob=calibrate(logits, labels, expected), expected=expected)


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(0)
    labels = rng.choice([P, N, U], (30, 4), p=[0.1, 0.1, 0.8])
    return cells_of(rng.normal(size=(30, 4)), labels, [0.2, 0.3, 0.4, 0.5])


def test_rank_by_hand():
    """Class 0: image 2 (logit 3), then 0 (1); image 1 is known. Class 1: equal logits, so the first image is first."""
    cells = cells_of([[1, 0], [5, 0], [3, 0]], [[U, U], [P, U], [U, N]], [0.7, 0.5])
    assert cells.rank.tolist() == [[2, 1], [0, 2], [1, 0]]


def test_best_takes_first_ranks_of_all_classes_first():
    """First ranks are (0, 0) and (1, 1). Of the second ranks, both with middle logits, class 0 has the first place."""
    cells = cells_of([[9, -9], [8, -7], [7, -8]], np.zeros((3, 2)), [0.5, 0.5])
    image, class_ = choose(cells, ORDERS["best"](cells, 0), 3)
    assert {*zip(image.tolist(), class_.tolist(), strict=True)} == {(0, 0), (1, 1), (1, 0)}


def test_complete_images_ask_image_by_image(many):
    image, _ = choose(many, ORDERS["complete-images"](many, 3), 10**6)
    changes = np.flatnonzero(np.diff(image))
    assert len(changes) + 1 == len(np.unique(image))


def test_near_cut_begins_at_the_expected_number(many):
    image, class_ = choose(many, ORDERS["near-cut"](many, 0), 4, per_class=1)
    assert sorted(class_.tolist()) == [0, 1, 2, 3]
    ranks = many.rank[image, class_]
    best = [min(range(1, 30), key=lambda r, m=m: abs(np.log(r / m))) for m in many.expected[class_]]
    assert ranks.tolist() == best


def test_expected_change_by_hand():
    """Logits log 3 and 0, one positive expected: the first is ignored, the second taken for negative.

    f = 3/4 and 1/2; b = -log(3) / 2, so q = sqrt 3 / (1 + sqrt 3) = .634 and .366.
    Change: .634 x (1/4)^2 + .366 x (3/4)^2, and .366. The known cell has none.
    """
    cells = cells_of([[np.log(3)], [0], [5]], [[U], [U], [P]], [2 / 3])
    q = np.sqrt(3) / (1 + np.sqrt(3))
    assert cells.ignored[:, 0].tolist() == [True, False, False]
    assert expected_change(cells)[:, 0] == pytest.approx([q / 16 + (1 - q) * 9 / 16, 1 - q, 0])


def test_balanced_takes_turns(many):
    """The first ten questions are the first ones of both orders, five or more of each."""
    first = {
        name: {*zip(*choose(many, ORDERS[name](many, 0), 10), strict=True)} for name in ("best", "gain", "balanced")
    }
    assert first["balanced"] <= first["best"] | first["gain"]
    assert min(len(first["balanced"] & first[name]) for name in ("best", "gain")) >= 5


@pytest.mark.parametrize("order", ORDERS)
def test_every_order(many, order):
    """Only unknown cells, each once; the same seed gives the same order; all are asked in the end; limits hold."""
    values = ORDERS[order](many, 5)
    image, class_ = choose(many, values, 10**6)
    assert len(image) == many.unknown.sum() == len({*zip(image.tolist(), class_.tolist(), strict=True)})
    assert many.unknown[image, class_].all()
    assert (np.diff(values[image, class_]) <= 0).all()
    assert (ORDERS[order](many, 5) == values).all()
    few, their_class = choose(many, values, 7, per_class=2)
    assert len(few) == 7
    assert np.bincount(their_class).max() == 2
    assert choose(many, values, 3)[0].tolist() == image[:3].tolist()


@pytest.mark.parametrize("order", ["random", "complete-images"])
def test_seeds_differ(many, order):
    assert (ORDERS[order](many, 0) != ORDERS[order](many, 1)).any()
