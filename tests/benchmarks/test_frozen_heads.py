"""Heads on a frozen trunk: expected positives are left out from the second strength on, and val chooses."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
datasets, heads = (importlib.import_module(name) for name in ("photo_sets", "frozen_heads"))
sys.path.remove(str(BENCHMARKS))

N, C, D = 60, 3, 8


@pytest.fixture(scope="module")
def data():
    rng, mixing = np.random.default_rng(0), np.random.default_rng(1).normal(size=(D, C))
    tables, pooled = {}, {}
    for split in ("train", "val", "test"):
        x = rng.normal(size=(N, D))
        truth = x @ mixing + 0.5 * rng.normal(size=(N, C)) > 0
        truth[~truth.any(1), 0] = True
        state = np.where(truth, 1, -1).astype(np.int8)
        image, class_ = np.nonzero(state)
        keys = [f"{split}-{n}.jpg" for n in range(N)]
        tables[split] = LabelTable.build(
            keys, ClassNames.of(["a", "b", "c"]), image=image, class_=class_, state=state[image, class_]
        )
        pooled[split] = torch.from_numpy(x).float()
    groups = {split: np.array([str(n) for n in range(N)], np.str_) for split in tables}
    made = datasets.BenchmarkSet("voc2", tables["train"], tables["val"], tables["test"], groups, ("a", "b", "c"))
    return made, pooled


@pytest.mark.parametrize("loss", heads.LOSSES)
def test_every_loss_is_solved_for_all_strengths_and_val_chooses(data, loss):
    found = heads.solve(*data, loss, 10)
    assert [step["variance"] for step in found["path"]] == list(heads.VARIANCES)
    assert found["val"] == max(step["val"] for step in found["path"])
    assert found["test"] == next(step["test"] for step in found["path"] if step["val"] == found["val"])
    assert found["test"] > 60


def test_expected_positives_begin_with_the_second_strength(data):
    """At the first strength EN is AN; afterwards it is not."""
    en, an = (heads.solve(*data, loss, 10)["path"] for loss in ("EN", "AN"))
    assert en[0] == an[0]
    assert en[3] != an[3]


def test_a_second_score_changes_the_expected_positives_only(data):
    en, second = (heads.solve(*data, loss, 10)["path"] for loss in ("EN", "EN, prototypes 1"))
    assert en[0] == second[0]
    assert en[0]["precision"] is None
    assert en[1]["precision"] != second[1]["precision"]


def test_full_labels_are_better_than_one(data):
    assert heads.solve(*data, "full labels", 10)["test"] > heads.solve(*data, "AN", 10)["test"]


def test_the_table_is_a_mean_over_seeds():
    records = [
        {"set": "voc2", "features": "mean 224", "loss": "AN", "seed": s, "test": t}
        for s, t in ((10, 60), (11, 61), (0, 99))
    ]
    assert [*heads.table(records)][-1] == "| mean 224 | AN | – | – | 60.5 | – |"


def test_validation_chooses_the_size_of_each_label_seed():
    """Of the first seed 352 px, of the second 288; a seed without all sizes does not count."""
    values = {
        288: {0: (50, 60), 1: (50, 62), 2: (50, 60)},
        352: {0: (51, 63), 1: (49, 70)},
        416: {0: (40, 9), 1: (40, 9)},
    }
    records = [
        {"set": name, "features": f"mean {size}", "loss": "EN", "seed": seed, "val": val, "test": test}
        for name in heads.SETS
        for size, found in values.items()
        for seed, (val, test) in found.items()
    ]
    rows = [*heads.size_table(records, (0, 1, 2))]
    assert rows[2] == "| 288 px |" + " 60.7 |" * 5
    assert rows[3].startswith("| 352 px | 66.5 (+5.5 [")
    assert rows[5].startswith("| the best on validation | 62.5 (+1.5 [")
    assert [*heads.size_table(records, (7,))][2] == "| 288 px |" + " – |" * 5


def test_features_of_a_size_are_computed_once(data, tmp_path, monkeypatch):
    made, calls = data[0], []
    found = {split: {"mean": torch.zeros(2, 3)} for split in made.splits}
    monkeypatch.setattr(heads, "features", lambda _, size: calls.append(size) or found)
    for _ in range(2):
        assert torch.equal(heads.stored_features(made, 352, tmp_path)["val"]["mean"], torch.zeros(2, 3))
    assert calls == [352]
