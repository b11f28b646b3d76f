"""The simulated reviewer: answers, wrong answers, and what they do to a small problem."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable

# Benchmarks are scripts that import each other from their folder.
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
review = importlib.import_module("review")
sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module")
def photos():
    """90, 60 and 200 photos of 3 classes that are linear in 4 features."""
    rng = np.random.default_rng(0)
    direction, tables, x = rng.normal(size=(4, 3)), {}, {}
    for split, n in (("train", 90), ("val", 60), ("test", 200)):
        x[split] = torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32))
        state = np.where(x[split].numpy() @ direction + rng.normal(0, 0.3, (n, 3)) > 0.3, 1, -1)
        tables[split] = LabelTable.build(
            [f"{split}{i}.jpg" for i in range(n)], ClassNames.of("abc"), image=np.repeat(np.arange(n), 3),
            class_=np.tile([0, 1, 2], n), state=state.ravel(),
        )  # fmt: skip
    data = SimpleNamespace(
        name="camvid", splits=tables, train_truth=tables["train"], val=tables["val"], scored_index=np.arange(3)
    )
    return review.Photos(data, x, 1.0)


def test_wrong_answers_are_the_opposite_and_the_same_for_every_order():
    truth = np.where(np.random.default_rng(1).random((500, 4)) < 0.3, 1, -1).astype(np.int8)
    image, class_ = np.divmod(np.arange(2000), 4)
    right = review.answer(truth, image, class_, 0.0, 0)
    some = review.answer(truth, image, class_, 0.05, 0)
    assert (right == truth.ravel()).all()
    assert (some != right).mean() == pytest.approx(0.05, abs=0.015)
    assert (some[::-1] == review.answer(truth, image[::-1], class_[::-1], 0.05, 0)).all()
    truth[0, 0] = Label.UNKNOWN
    assert review.answer(truth, image[:1], class_[:1], 1.0, 0).tolist() == [Label.UNKNOWN]


@pytest.fixture(scope="module")
def lines(photos):
    """Two rounds: 5 % of the cells, then all."""
    made, rounds = [], review.ROUNDS
    review.ROUNDS = (0.05, 1.0)
    for _, order, wrong, seed in review.jobs(["camvid"], ["random", "balanced"], ["balanced"], [0, 1]):
        found = review.bounds(photos, seed) if order == review.FULL else review.run(photos, order, wrong, seed, (4.0,))
        made.append({"set": "camvid", "order": order, "wrong": wrong, "seed": seed, **found})
    yield made
    review.ROUNDS = rounds


def test_all_answers_are_full_labels(lines):
    """Every order starts with the same head and ends with all labels; wrong answers end lower."""
    by = {review.key_of(line): line for line in lines}
    for seed in (0, 1):
        full = by["camvid", review.FULL, 0.0, seed]["test"]
        ends = {
            key[1:3]: [r["test"] for r in line["rounds"]]
            for key, line in by.items()
            if key[3] == seed and "rounds" in line
        }
        assert len({values[0] for values in ends.values()}) == 1
        assert ends["random", 0.0][-1] == pytest.approx(full, abs=1.5)
        assert ends["balanced", 0.0][-1] == pytest.approx(full, abs=1.5)
        assert ends["balanced", 0.05][-1] < ends["balanced", 0.0][-1]


def test_the_weight_is_searched_as_train_does(photos, monkeypatch):
    """Both strengths with the first weight, then the pair with each other weight; before any answer, no weight."""
    seen, search = [], review.next_trial

    def spy(strengths, weights, values):
        seen.append(search(strengths, weights, values))
        return seen[-1]

    monkeypatch.setattr(review, "next_trial", spy)
    monkeypatch.setattr(review, "ROUNDS", (0.2,))
    found = review.run(photos, "random", 0.0, 0, review.ANSWER_WEIGHTS)
    assert [t.variance for t in seen[:4]] == [*review.VARIANCES]
    assert [t.answer_weight for t in seen] == [4, 4, 4, 4, 4, 4, 1, 1, 16, 16]
    assert "weight" not in found["rounds"][0]
    assert found["rounds"][1]["weight"] in review.ANSWER_WEIGHTS


def test_table(lines):
    text = "\n".join(review.report(lines, "test"))
    assert "| random |" in text
    assert "| balanced, 5 % wrong |" in text
    assert "0.2 min: " in text  # 5 % of 270 cells are 13.5 s
