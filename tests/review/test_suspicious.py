"""Suspicious labels: by hand, on planted errors, and cleanlab's formula."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from fewtags.engine.predict import ScoredTable
from fewtags.labels import ClassNames, Label
from fewtags.review.orders import Cells
from fewtags.review.suspicious import find_suspicious, self_confidence, suspicion

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def cells_of(logits, labels, expected):
    return Cells(
        logits=np.array(logits, float),
        labels=np.array(labels, np.int8),
        prob=np.zeros(np.shape(logits)),
        expected=np.array(expected, float),
    )


def test_suspicion_by_hand():
    """One class, logits 4 to 1, labels -, ?, ?, +; one more positive is expected, so m = 2.

    The negative has rank 1: log(2 / 1). The positive has rank 4: log(4 / 2).
    """
    value = suspicion(cells_of([[4], [3], [2], [1]], [[N], [U], [U], [P]], [1]))
    assert value[:, 0] == pytest.approx([np.log(2), -np.inf, -np.inf, np.log(2)])


def test_self_confidence_by_hand():
    """sigmoid(log 3) = 3/4: 3/4 for a positive, 1/4 for a negative, 1 for an unknown cell."""
    z = np.log(3)
    assert self_confidence(cells_of([[z, z, z]], [[P, N, U]], [0, 0, 1]))[0] == pytest.approx([0.75, 0.25, 1])


def test_planted_errors_come_first():
    """A good model, 60 images, 3 classes; five positives and five negatives are turned round."""
    rng = np.random.default_rng(0)
    truth = rng.random((60, 3)) < 0.3
    logits = np.where(truth, 2.0, -2.0) + rng.normal(0, 0.3, truth.shape)
    labels = np.where(truth, P, N).astype(np.int8)
    planted = {
        *rng.choice(np.flatnonzero(truth), 5, False).tolist(),
        *rng.choice(np.flatnonzero(~truth), 5, False).tolist(),
    }
    for cell in planted:
        labels.flat[cell] *= -1
    info = SimpleNamespace(class_ids=("a", "b", "c"), classes=ClassNames.of("abc"), method={}, calibration=None)
    scored = ScoredTable(index=np.arange(60), logits=logits.astype(np.float32), labels=labels)
    table = SimpleNamespace(images=pa.array([f"{i}.jpg" for i in range(60)]))
    found = find_suspicious(scored, info, table, truth.mean(0))
    first = {int(s.image[:-4]) * 3 + "abc".index(s.class_) for s in found[:10]}
    assert first == planted
    assert all(s.self_confidence < 0.5 for s in found[:10])
    assert {s.state for s in found[:10]} == {"positive", "negative"}
    positive = next(s for s in found if s.state == "positive")
    assert positive.reason.startswith(f"labelled {positive.class_!r}, but ")
    few = find_suspicious(scored, info, table, truth.mean(0), limit=4, per_class=1)
    assert len({s.class_ for s in few}) == len(few) == 3
