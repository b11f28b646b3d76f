"""The ViT benchmark on coloured quadrants: pixels in the place of features, one pretraining, three kinds of maps."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.labels import ClassNames
from fewtags.nets.tscam import attention_layers

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
vit, vit_table, datasets, protocol = (
    importlib.import_module(name) for name in ("vit", "vit_table", "photo_sets", "budget_protocol")
)
sys.path.remove(str(BENCHMARKS))

CLASSES = ("red", "green", "blue")
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
TINY = vit.Recipe(
    size=32, patch=8, width=16, depth=2, heads=2, views=2, min_area=1.0, batch_size=8, pretrain_epochs=2,
    pretrain_lr=1e-2, epochs=2, lr=1e-2, patch_weights=(16.0, 1.0, 1.0),
)  # fmt: skip


def quadrants(root, split, count, seed):
    """Grey photos with one or two coloured quadrants, and their boxes."""
    part, rng = datasets._Part(), np.random.default_rng(seed)
    (root / split).mkdir(parents=True)
    for n in range(count):
        pixels = np.full((32, 32, 3), 128, np.uint8)
        for place, c in zip(rng.permutation(4), rng.permutation(3)[: 1 + n % 2], strict=False):
            x, y = place % 2, place // 2
            pixels[16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = COLOURS[c]
            part.positives.append([n, int(c), x / 2, y / 2, x / 2 + 0.5, y / 2 + 0.5])
        Image.fromarray(pixels).save(root / split / f"{n}.png")
        part.images.append(f"{split}/{n}.png")
        part.groups.append(str(n))
    return part


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root, classes = tmp_path_factory.mktemp("quadrants"), ClassNames.of(CLASSES)
    sizes = {"train": 24, "val": 8, "test": 12}
    parts = {split: quadrants(root, split, count, n) for n, (split, count) in enumerate(sizes.items())}
    tables = [part.table(classes, root, "made", ()) for part in parts.values()]
    groups = {split: np.array(part.groups) for split, part in parts.items()}
    return datasets.BenchmarkSet("voc2", *tables, groups, CLASSES)


def check(data):
    return vit.Check(vit.test_pixels(TINY, data.val), data.val, data.scored_index)


@pytest.fixture(scope="module")
def material(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    trunk = vit.pretrain(TINY, data.train_truth, check(data), folder)
    train, test = vit.view_pixels(TINY, data.train_truth), vit.test_pixels(TINY, data.test)
    return vit.Material(data, train, check(data).pixels, test, trunk)


def test_views_are_the_photos_or_their_mirror_images(data):
    """Views of the whole area differ from the test view by a flip at most; float16 holds them to 1e-3."""
    views, whole = vit.view_pixels(TINY, data.train_truth), vit.test_pixels(TINY, data.train_truth)
    assert views.features.shape == (2, 24, 3, 32, 32)
    flipped = 0
    for view in views.features.float():
        for seen, photo in zip(view, whole, strict=True):
            errors = [float((seen - other).abs().max()) for other in (photo, photo.flip(-1))]
            assert min(errors) < 2e-3
            flipped += errors[0] > errors[1]
    assert 0 < flipped < 48


def test_a_seed_decides_the_net_and_the_global_generator_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, same, other = (vit.make_net(TINY, 3, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[key], same[key]) for key in one)
    for key in ("head.weight", "backbone.patch_embed.proj.weight"):
        assert not torch.equal(one[key], other[key])
    assert vit.make_net(TINY, 3, 0).grid((32, 32)) == TINY.grid == (4, 4)


def test_pretraining_is_done_once_for_its_settings(data, tmp_path, capsys):
    """Settings of the runs that follow do not matter to it, its own do."""
    first = vit.pretrain(TINY, data.train_truth, check(data), tmp_path)
    assert capsys.readouterr().err.count("pretraining: epoch") == 2
    again = vit.pretrain(dataclasses.replace(TINY, epochs=5, lr=1.0), data.train_truth, check(data), tmp_path)
    assert capsys.readouterr().err == ""
    assert all(torch.equal(first[key], again[key]) for key in first)
    vit.pretrain(dataclasses.replace(TINY, pretrain_epochs=1), data.train_truth, check(data), tmp_path)
    assert len([*tmp_path.iterdir()]) == 2


def test_a_run_starts_from_the_pretrained_weights_and_repeats(material, monkeypatch):
    """Without learning the trunk is the pretrained one; the purchase is that of budgets.py."""
    budgets = protocol.read_budgets(BENCHMARKS / "budgets.toml")
    job = vit.Job("20%", "SP", 3)
    seen = []
    monkeypatch.setattr(vit, "localise", lambda net, _: seen.append(net.backbone.state_dict()) or {})
    vit.run(dataclasses.replace(TINY, lr=1e-30), budgets, job, material)
    assert all(torch.equal(value, seen[0][key]) for key, value in material.trunk.items())
    one, two = (vit.run(TINY, budgets, job, material) for _ in range(2))
    assert {**one, "cpu_seconds_per_epoch": 0} == {**two, "cpu_seconds_per_epoch": 0}
    # 20 % of 24 x 3 seconds; 1.5 classes a photo: a pair with a point costs (1.5 + 1.5 x 2.4) / 3 = 1.7 seconds.
    assert one["bought"]["positives"] + one["bought"]["negatives"] == 8
    assert one["bought"]["points"] == one["bought"]["positives"]
    assert not all(torch.equal(value, seen[1][key]) for key, value in material.trunk.items())


def test_maps_with_even_attention_locate_alike(material):
    """With queries of zero each patch gets 1 / 17 of the class token's attention in a layer: maps are scaled only."""
    net = vit.make_net(TINY, 3, 0)
    for layer in attention_layers(net):
        with torch.no_grad():
            layer.qkv.weight[: TINY.width] = 0
            layer.qkv.bias[: TINY.width] = 0
    found = vit.localise(net, material)
    assert list(found) == ["class", "coupled", "probability"]
    assert found["probability"] == found["class"]
    assert found["coupled"]["pointing"] == found["class"]["pointing"]


def test_uneven_attention_moves_maps(material):
    """Weights 30 times as large make it sharp, so that the products are not the class maps in another scale."""
    net = vit.make_net(TINY, 3, 0)
    for layer in attention_layers(net):
        with torch.no_grad():
            layer.qkv.weight.mul_(30)
    found = vit.localise(net, material)
    assert found["probability"]["PxAP"] != found["class"]["PxAP"]


def test_protocols_are_those_of_a_recipe_and_a_purchase():
    budgets = protocol.read_budgets(BENCHMARKS / "budgets.toml")
    jobs = [vit.Job("5%", "SP", 0), vit.Job("5%", "SP", 1), vit.Job("5%", "SB", 0), vit.Job("20%", "SP", 0)]
    digests = [vit.protocol(TINY, budgets, job) for job in jobs]
    assert digests[0] == digests[1]
    assert len({*digests, vit.protocol(vit.Recipe(), budgets, jobs[0])}) == 4


def record(annotation, seed, last, maps):
    """One line of a result file; `maps` are mAP-loc of the class, coupled and probability maps."""
    flat = {"mAP-loc_chance": 5.0 + seed, "pointing_chance": 30.0}
    return {
        "benchmark": "vit", "set": "voc2", "budget": "5%", "annotation": annotation, "seed": seed,
        "protocol": annotation, "order": [0, ["I", "SP"].index(annotation)], "recipe": {"epochs": 6},
        "images": 1027, "scored": 14, "chance_mAP": 15.4, "last": {"mAP": last}, "machine": "2 cores",
        "localisation": {
            name: {"mAP-loc": value, "pointing": 40.0 + n, **flat}
            for n, (name, value) in enumerate(zip(vit.MAPS, maps, strict=True))
        },
    }  # fmt: skip


def test_the_table():
    """Seeds 0 and 1. mAP-cl: I 20 and 22, SP 23 and 25, so SP - I is 3 twice; mAP-loc SP - I: 1 and 3, half a width of
    12.706 x sqrt(2) / sqrt(2) = 12.7 around 2. Coupled - class: I -1 twice, SP -2 twice; A x p - class: 1 and 0 twice.
    """
    records = [
        record("SP", 1, 25.0, (13.0, 11.0, 13.0)),
        record("SP", 0, 23.0, (11.0, 9.0, 11.0)),
        record("I", 0, 20.0, (10.0, 9.0, 11.0)),
        record("I", 1, 22.0, (10.0, 9.0, 11.0)),
    ]
    intro, head, _, *rows = vit_table.table(records)
    assert intro == (
        "2 seeds, 6 epochs, 1,027 training photos, 14 scored classes, on 2 cores; chance: mAP-cl 15.4, mAP-loc 6.0 at "
        "most, pointing 30.0.\n"
    )
    assert head.split(" | ")[2:7] == ["mAP-cl", "- I", "mAP-loc, class maps", "- I", "coupled - class"]
    points = ["40.0 ± 0.0", "41.0 ± 0.0", "42.0 ± 0.0"]
    assert [[cell.strip() for cell in row.strip("| ").split("|")] for row in rows] == [
        ["5%", "I", "21.0 ± 1.4", "", "10.0 ± 0.0", "", "-1.0 [-1.0, -1.0]", "+1.0 [+1.0, +1.0]", *points],
        [
            *("5%", "SP", "24.0 ± 1.4", "+3.0 [+3.0, +3.0]", "12.0 ± 1.4", "+2.0 [-10.7, +14.7]"),
            *("-2.0 [-2.0, -2.0]", "+0.0 [+0.0, +0.0]", *points),
        ],
    ]
