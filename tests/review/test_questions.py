"""Questions from a net and a table: fields, reasons, evidence, errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fewtags.demo_set import make_scenes
from fewtags.engine.model import ModelInfo
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.labels import Label
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan
from fewtags.review.orders import ORDERS
from fewtags.review.questions import assumed_share, evidence_box, ordinal, suggest, unasked


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return make_scenes(tmp_path_factory.mktemp("photos") / "scenes", train=8, val=2, test=2, size=64, seed=0)


@pytest.fixture(scope="module")
def model(scenes):
    """An untrained net that knows the digits."""
    ids = scenes.train.classes.ids
    torch.manual_seed(0)
    net = create_net("test_resnet", 10, weights="none", size=64)
    info = ModelInfo(
        backbone="test_resnet",
        output_stride=0,
        head=HeadPlan(),
        size=64,
        policy="coco",
        class_ids=ids,
        class_names=tuple(f"digit {i}" for i in ids),
        thresholds=(0.5,) * 10,
        threshold_rules=("half",) * 10,
        mean=net.preprocessing.mean,
        std=net.preprocessing.std,
        method={"name": "expected_negative", "positives_per_image": 3.0},
        selection="",
        version="test",
    )
    return net, info


@pytest.fixture(scope="module")
def questions(model, scenes):
    return suggest(*model, scenes.train, order="random", limit=15, per_class=2, cpu=True)


def test_questions_are_about_unknown_cells_and_say_why(questions, scenes):
    labels, keys = scenes.train.matrix.dense(), scenes.train.images.to_pylist()
    assert len(questions) == 15
    for q in questions:
        assert labels[keys.index(q.image), scenes.train.classes.index(q.class_)] == Label.UNKNOWN
        assert 0 < q.probability < 1
        assert q.name == f"digit {q.class_}"
        assert f"ranked {ordinal(q.rank)} for {q.name!r}" in q.reason
        if q.box is not None:
            assert 0 <= q.box[0] < q.box[2] <= 1
            assert 0 <= q.box[1] < q.box[3] <= 1
    assert any(q.box for q in questions)
    assert max([q.class_ for q in questions].count(q.class_) for q in questions) == 2


def test_expected_positives_of_all_classes_are_those_of_k(model, scenes):
    """K = 3 in 8 images are 24 positives; 8 are known, so 16 are expected, and the probabilities add up to them."""
    asked = suggest(*model, scenes.train, limit=1000, cpu=True)
    by_class = {q.class_: q.expected for q in asked}
    assert len(asked) == 72
    assert sum(by_class.values()) == pytest.approx(sum(q.probability for q in asked), rel=1e-6)
    assert np.mean([q.gain for q in asked]) == pytest.approx(1.0)
    # Half a positive per class and the least of 1/2 move a few of them between classes.
    assert sum(by_class.values()) == pytest.approx(16, abs=2.5)


def test_share_moves_probabilities(model, scenes):
    few = suggest(*model, scenes.train, share=np.full(10, 0.1), limit=72, cpu=True)
    many = suggest(*model, scenes.train, share=np.full(10, 0.9), limit=72, cpu=True)
    assert sum(q.probability for q in many) > 4 * sum(q.probability for q in few)


def test_answered_questions_are_dropped(questions):
    rest = unasked(questions, {(questions[0].image, questions[0].class_), ("no.jpg", "1")})
    assert rest == questions[1:]


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (12, "12th"), (22, "22nd"), (103, "103rd"), (1011, "1,011th")]
)
def test_ordinals(number, word):
    assert ordinal(number) == word


def test_evidence_is_the_largest_part_in_the_frame_of_the_photo():
    """A 4 x 4 map with a part of 2 x 2 cells at the lower right and one cell at the upper left, of the left half."""
    heat = np.zeros((4, 4))
    heat[0, 0] = 1.0
    heat[2:, 2:] = 0.8
    assert evidence_box(heat, View.crop(0.0, 0.0, 0.5, 1.0)) == (0.25, 0.5, 0.5, 1.0)
    assert evidence_box(np.full((4, 4), 0.3), View.identity()) is None
    assert evidence_box(np.array([[1.0, 0.2], [0.2, 1.0]]), View.identity()) is None


def test_share_of_a_method_without_k(model):
    """Half known: 2 positives of 4 known cells of 2 classes, so K = 1; with less, twice the known positives."""
    _, info = model
    info = replace(info, method={"name": "bce"}, class_ids=("a", "b"))
    known = np.array([[1, -1], [1, -1]], np.int8)
    assert assumed_share(info, known).sum() == pytest.approx(1.0)
    assert assumed_share(info, np.array([[1, 0], [0, 0]], np.int8)).sum() == pytest.approx(1.0)
    prior = replace(info, method={"class_prior": [0.25, 0.5]})
    assert assumed_share(prior, known).tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "bst"}, rf"'bst' is not an order \(did you mean 'best'\?\); known: {', '.join(ORDERS)}."),
        ({"limit": 0}, "limit is 0; expected 1 or more."),
        ({"per_class": -1}, "per_class is -1; expected 1 or more."),
    ],
)
def test_errors(model, scenes, options, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        suggest(*model, scenes.train, **options)
