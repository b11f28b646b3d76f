"""Points and boxes with the recipe of `train`: what is compared, on photos whose features say where each class is."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fewtags.labels import Batch, ClassNames, Label
from fewtags.nets.backbones import create_net
from fewtags.objectives.base import Progress
from fewtags.table.table import LabelTable

# Benchmarks are scripts that import each other from their folder.
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
places = importlib.import_module("places")
places_table = importlib.import_module("places_table")
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
    features = places.Features(cells(both, 0), pooled, pooled, range(20), maps)
    return data, features


def test_places_teach_where_tags_cannot(material):
    data, features = material
    labels = places.draw(data, "none", 0)
    located = ("patchml", "EN + patches", "AN + patches")
    found = {
        name: places.run(data, features, labels, places.variant(name, weight, 2.0, (2, 2)), 0)
        for name, weight in (("EN, tags alone", None), *((name, 1.0) for name in located))
    }
    for name in located:
        assert found[name]["mAP"] == found[name]["pointing"] == 100, name
    assert found["EN, tags alone"]["pointing"] < 100
    assert found["EN, tags alone"]["pointing_chance"] == 50
    assert all(one["seconds"] >= 0 for one in found.values())


def test_every_method_takes_its_labels():
    """Tags alone, places as tags, or places; only methods with patches have a weight of them, and need maps."""
    found = {name: places.variant(name, 0.3, 2.0, (2, 2)) for name in places.PATCHES}
    assert all(one.named and one.places and one.objective.patch_weight == 0.3 for one in found.values())
    assert {one.objective.patch_weights for one in found.values()} == {(4.0, 1.0, 1.0)}
    tags = {name: places.variant(name, None, 2.0, (2, 2)) for name in places.TAGS}
    assert [one.named for one in tags.values()] == [False, True, True, True, True]
    assert not any(one.places or one.objective.needs_maps for one in tags.values())
    assert all(one.objective.solvable for one in (*found.values(), *tags.values()))


def test_methods_that_are_left_out_where_every_class_is_tagged_are_those_that_stay():
    """Their losses of the same complete labels are equal."""
    net = create_net("test_resnet", 3, weights="none", size=64)
    features = torch.randn(4, net.head.features_dim, 2, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        net.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[1, -1, -1], [-1, 1, -1], [1, 1, -1], [-1, -1, 1]], dtype=torch.int8)
    batch = Batch(images=features, labels=labels, index=torch.arange(4), views=torch.eye(2, 3).expand(4, 2, 3))
    losses = {}
    for name in (*places.TAGS[1:], "patchml", "patchml, unknown ignored"):
        objective = places.variant(name, None, 1.5, (2, 2)).objective
        problem = places.Problem(
            labels=places.LabelMatrix.from_dense(labels.numpy()), grid=(2, 2), epochs=2, seed=0,
            features_dim=net.head.features_dim,
        )  # fmt: skip
        objective.setup(net, problem)
        at = Progress(epoch=1, step=0, steps_per_epoch=1)
        losses[name] = float(objective.step(net.head, batch, at).loss.detach())
    assert len({round(losses[name], 6) for name in places.TAGS[1:]}) == 1, losses
    assert losses["patchml"] == losses["patchml, unknown ignored"]
    default = places.ExpectedNegative(
        positives_per_image=1.5, scl_weight=0.0, warmup_loss="expected_negative", negative_gamma=1.0
    )
    default.setup(net, problem)
    assert float(default.step(net.head, batch, at).loss.detach()) == pytest.approx(losses["patchml"], rel=1e-6)
    assert not (labels == Label.UNKNOWN).any()


def test_what_is_done_is_not_done_again(material, tmp_path):
    data, _ = material
    data.name = "voc2"
    wanted = places.jobs(["none"], [0], places.TAGS + places.PATCHES, places.WEIGHTS)
    assert len(wanted) == len(places.TAGS) + len(places.PATCHES) * len(places.WEIGHTS)
    assert [*places.lines(data, wanted, {("voc2", *job) for job in wanted}, tmp_path)] == []
    complete = places.jobs(["full"], [0], places.TAGS + places.PATCHES, [1.0])
    assert [job.method for job in complete] == [*places.WHERE_COMPLETE]


def record(method, weight, seed, val, value, seconds=3.0):
    measures = {**dict.fromkeys(places_table.MEASURES, value), "pointing_chance": 10.0, "seconds": seconds}
    return {"set": "voc2", "known": "none", "seed": seed, "method": method, "weight": weight, "val": val, **measures}


WEIGHTED = ((1.0, 50, 40), (0.3, 60, 30), (3.0, 70, 99))
RECORDS = [
    *(record("EN + patches", w, s, val, value) for w, val, value in WEIGHTED for s in (0, 1)),
    *(record("patchml", weight, s, 50 - weight, 20 + weight + s, None) for weight in (1.0, 0.3) for s in (0, 1)),
    *(record("AN", None, seed, 40, 35) for seed in (0, 1)),
]


def test_the_weight_is_chosen_on_validation_among_those_of_every_method():
    """patchml has no run with weight 3, so no method may choose it; the default has no choice."""
    found = places_table.chosen(RECORDS)
    weights = {name: {run["weight"] for run in seeds.values()} for name, seeds in found.items()}
    assert weights == {"default": {1.0}, "EN + patches": {0.3}, "patchml": {0.3}, "AN": {None}}


def test_without_a_choice_the_method_of_the_default_is_the_default():
    found = places_table.chosen([one for one in RECORDS if one["weight"] != 0.3])
    assert [*found] == ["default", "patchml", "AN"]
    assert found["patchml"][0]["weight"] == 1


def test_where_every_class_is_tagged_the_default_has_the_loss_of_patchml():
    records = [{**one, "known": "full"} for one in RECORDS if one["weight"] in (1, None)]
    found = places_table.chosen(records)
    assert [*found] == ["default", "EN + patches", "AN"]
    assert {run["method"] for run in found["default"].values()} == {"patchml"}


def rows(page, title):
    """The cells of each row of a section, by method."""
    lines = page.split(f"## {title}\n")[1].split("## ")[0].splitlines()
    return {cells[0]: cells[1:] for line in lines if (cells := line.strip("| ").split(" | "))[0] != "method"}


def test_the_page_compares_the_default_with_each_method():
    """Of seeds 0 and 1, patchml has 20.3 and 21.3: 19.2 below 40, and t(1) sd / sqrt(2) is 12.71 x .5 = 6.4."""
    page = "\n".join(places_table.page(RECORDS))
    assert "Chance of pointing: 10.0. Weights of the loss of patches: 0.3, 1." in page
    found = rows(page, "One tag: VOC photos")
    assert found["patchml"][:4] == ["2", "49.7 ± 0.0", "20.8 ± 0.7", "+19.2 [+12.8, +25.6]"]
    assert found["default"][2:4] == ["40.0 ± 0.0", ""]
    assert (found["default"][-1], ": mean of the sets" in page) == ("3", False)


def test_means_over_sets_have_the_draws_that_all_sets_have():
    """AN has 35 on the photos and 25 on the collages, which have seed 0 only."""
    other = [{**one, "set": "collages", "mAP": one["mAP"] - 10} for one in RECORDS if one["seed"] == 0]
    page = "\n".join(places_table.page([*RECORDS, *other]))
    found = rows(page, "One tag: mean of the sets")
    assert found["AN"][:3] == ["1", "30.0", "+5.0"]
    assert found["default"][:3] == ["1", "35.0", ""]
