"""Points and boxes with the recipe of `train`: what is compared, on photos whose features say where each class is."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fewtags.labels import ClassNames
from fewtags.nets.backbones import create_net
from fewtags.table.table import LabelTable

# Benchmarks are scripts that import each other from their folder.
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
places = importlib.import_module("places")
sys.path.remove(BENCHMARKS)

CLASSES = ClassNames.of(["left", "right"])
HALVES = np.array([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
CHANNELS = 96


def table(present):
    """Images that show class c, where `present` [N, 2] says so, in half number c, completely labelled."""
    image, class_ = np.nonzero(present)
    return LabelTable.build(
        [f"{n}.jpg" for n in range(len(present))], CLASSES, image=image, class_=class_, state=np.ones(len(image), int),
        locations=HALVES[class_], complete_set=np.zeros(len(present), int), complete_classes=np.ones((1, 2), bool),
    )  # fmt: skip


def cells(present, seed):
    """Features [N, 96, 2, 2]: channel c of the cells that show class c, and noise."""
    noise = torch.randn(len(present), CHANNELS, 2, 2, generator=torch.Generator().manual_seed(seed))
    shown = torch.zeros_like(noise)
    shown[:, 0, :, 0], shown[:, 1, :, 1] = torch.from_numpy(present.astype(np.float32)).T[:, :, None]
    return (shown + 0.1 * noise).half()


@pytest.fixture
def material(monkeypatch):
    """200 training photos with both classes, so that tags say nothing; 20 of one class each to measure."""
    monkeypatch.setattr(
        places, "make_net", lambda classes, seed: create_net("test_resnet", classes, weights="none", size=64, seed=seed)
    )
    both, single = np.ones((200, 2), bool), np.arange(20)[:, None] % 2 == np.arange(2)
    train, measured = table(both), table(single)
    data = SimpleNamespace(
        train_truth=train, test=measured, splits={"val": measured, "test": measured}, scored_index=np.arange(2),
        boxes=lambda _, image: (np.flatnonzero(single[image]), HALVES[single[image]]),
    )  # fmt: skip
    maps = cells(single, 1)
    pooled = maps.float().mean((2, 3), keepdim=True).half()
    features = places.Features(dict(enumerate(cells(both, 0))), pooled, pooled, range(20), maps)
    return data, features


def test_places_teach_where_tags_cannot(material):
    data, features = material
    labels = places.draw(data, "none", 0)
    compared = places.variants("none", 2.0, (2, 2))
    found = {
        name: places.run(data, features, labels, compared[name], 0)
        for name in ("EN, tags alone", "patchml", "EN and patches, weight 1")
    }
    for name in ("patchml", "EN and patches, weight 1"):
        assert found[name]["mAP"] == found[name]["pointing"] == 100, name
    assert found["EN, tags alone"]["pointing"] < 100
    assert found["EN, tags alone"]["pointing_chance"] == 50


def test_what_is_done_is_not_done_again(material):
    data, _ = material
    data.name = "voc2"
    names = places.variants("none", 2.0, (1, 1))
    done = {("voc2", "none", 0, name) for name in names}
    data.val = data.test
    assert [*places.lines(data, [0], ["none"], done)] == []


def test_the_table_has_means_over_seeds():
    record = {"set": "voc2", "known": "none", "method": "patchml", "val": 50.0, **dict.fromkeys(places.SHOWN, 40.0)}
    other = record | {"val": 60.0}
    assert [*places.table([record, other])][2] == "| voc2 | none | patchml | 2 | 55.0 | 40.0 | 40.0 | 40.0 | 40.0 |"
