"""The simulated reviewer who shows places: what answers cost, where the places are, and that they are learned from."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fewtags.budget.costs import Annotation
from fewtags.budget.simulate import single_positive
from fewtags.engine.sources import ViewFeatures
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable

# Benchmarks are scripts that import each other from their folder.
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
places = importlib.import_module("review_places")
sys.path.remove(BENCHMARKS)
CLASSES, CELL = ClassNames.of("abc"), 1 / 3


@pytest.fixture(scope="module")
def photos():
    """Maps of 3 x 3 cells and 4 channels: class c lights channel c in one cell, and its box is that cell."""
    rng, tables, views, owners = np.random.default_rng(0), {}, {}, {}
    for split, n in (("train", 40), ("val", 30), ("test", 30)):
        present = rng.random((n, 3)) < 0.5
        present[np.arange(n), rng.integers(0, 3, n)] = True
        x = rng.normal(0, 0.3, (n, 4, 3, 3))
        image, class_ = np.nonzero(present)
        row, column = rng.integers(0, 3, (2, len(image)))
        x[image, class_, row, column] += 3
        boxes = np.stack([column, row, column + 1, row + 1], 1) * CELL
        absent = np.argwhere(~present)
        tables[split] = LabelTable.build(
            [f"{split}{i}.jpg" for i in range(n)], CLASSES,
            image=np.concatenate([image, absent[:, 0]]), class_=np.concatenate([class_, absent[:, 1]]),
            state=np.repeat([1, -1], [len(image), len(absent)]),
            locations=np.concatenate([boxes, np.full((len(absent), 4), np.nan)]),
        )  # fmt: skip
        views[split] = ViewFeatures(torch.from_numpy(x[None]).half(), torch.eye(2, 3).expand(1, n, 2, 3))
        owners[split] = image, class_, boxes.astype(np.float32)

    def boxes_of(split, number):
        image, class_, boxes = owners[split]
        return class_[image == number], boxes[image == number]

    data = SimpleNamespace(
        name="collages", splits=tables, train_truth=tables["train"], val=tables["val"], test=tables["test"],
        scored_index=np.arange(3), boxes=boxes_of,
    )  # fmt: skip
    made = object.__new__(places.Photos)
    made.data, made.views, made.positives = data, views, 1.5
    made.pooled = {split: places._pooled(one.features) for split, one in views.items()}
    return made


@pytest.mark.parametrize(("kind", "seconds"), [("yes or no", 1.0), ("points", 2.4), ("boxes", 7.0)])
def test_answers_cost_what_plan_says_and_places_are_in_the_objects(photos, kind, seconds):
    """ "No" takes 1 s, "yes" with a place longer; the reviewer stops before the time is exceeded."""
    start = places.tags(single_positive(photos.data.train_truth, 0))
    reviewer = places.Reviewer(photos, start, places.KINDS[kind], 0)
    net = places.solve(photos, start, places.EN)
    reviewer.answer(net, 30.0, 0)
    yes = sum(state == 1 for _, _, state, _ in reviewer.answers)
    assert reviewer.seconds == pytest.approx(yes * seconds + len(reviewer.answers) - yes)
    assert 30 - seconds < reviewer.seconds <= 30
    for image, class_, state, place in reviewer.answers:
        known, boxes = photos.data.boxes("train", image)
        assert state == (1 if class_ in known else -1)
        assert np.isnan(place).all() == (state == -1 or kind == "yes or no")
        if not np.isnan(place).all():
            (box,) = boxes[known == class_]
            assert (place[:2] >= box[:2] - 1e-6).all()
            assert (place[2:] <= box[2:] + 1e-6).all()
            assert (place[0] == place[2]) == (kind == "points")
    asked = {(image, class_) for image, class_, *_ in reviewer.answers}
    reviewer.answer(net, 60.0, 1)
    assert len({(image, class_) for image, class_, *_ in reviewer.answers}) == len(reviewer.answers) > len(asked)


def test_runs_and_their_table(photos, monkeypatch):
    """Half of the time for all cells: points let heads point better than chance; the table has every arm."""
    monkeypatch.setattr(places, "SHARES", (0.5,))
    monkeypatch.setattr(places, "LOGIT_VARIANCES", (10.0,))
    lines = []
    for who, kind, method in (("review", "yes or no", places.EN), ("review", "points", places.EN),
                              ("plan", "boxes", places.PATCHML)):  # fmt: skip
        found = places.run(photos, who, places.KINDS[kind], method, 0)
        lines.append({"set": "collages", "who": who, "kind": kind, "method": method, "seed": 0, "photos": 12, **found})
    ends = {(line["who"], line["kind"]): line["rounds"][-1] for line in lines}
    assert ends["review", "points"]["pointing"] > ends["review", "points"]["pointing_chance"] + 30
    assert ends["review", "yes or no"]["places"] == 0
    assert ends["plan", "boxes"]["places"] > 0
    assert {one["minutes"] for one in ends.values()} == {1.0}  # 60 of 120 cells of 1 s
    text = "\n".join(places.report(lines))
    assert "| collages, 12 photos: mAP, pointing (chance " in text
    assert "| review, points, expected_negative (1) |" in text
    assert "| plan, boxes, patchml (1) |" in text
    assert Annotation.ONE_POINT is places.KINDS["points"]
