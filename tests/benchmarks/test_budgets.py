"""Budgets: which runs there are, what they buy, and that a made-up set is learned and localised."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fewtags.config.sections import StageConfig
from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label, LabelMatrix
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.nets.weights import Origin
from fewtags.stores.pseudo import PseudoLabels

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
names = ("budget_protocol", "budgets", "photo_sets", "frozen", "single_positive")
protocol, budgets, datasets, frozen, runner = (importlib.import_module(name) for name in names)
sys.path.remove(str(BENCHMARKS))

SIZE, CLASSES, GRID = 64, ("red", "green", "blue"), 4
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
Job = protocol.BudgetJob


@pytest.fixture(scope="module")
def benchmark():
    return protocol.read_budgets(BENCHMARKS / "budgets.toml")


# ------------------------------------------------------------------------------------------- which runs


def test_benchmark_file(benchmark):
    """Every budget x type x method x seed x set, none twice; the smallest budgets come first, seed by seed."""
    assert benchmark.name == "budgets"
    jobs = protocol.choose_jobs(benchmark, None, None)
    per_seed = len(benchmark.sets) * len(benchmark.budgets) * len(benchmark.types) * len(benchmark.methods)
    assert len(jobs) == len(set(jobs)) == 3 * per_seed
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)
    protocols = {benchmark.protocol(job) for job in jobs}
    assert len(protocols) == per_seed / len(benchmark.sets)
    assert {"ignore", "csl", "pc", "fixmatch"} <= set(benchmark.methods)
    assert benchmark.needs_second_view


def test_second_views_are_cached_only_for_methods_that_need_them(benchmark):
    plain = {name: method for name, method in benchmark.methods.items() if name != "fixmatch"}
    assert not benchmark.model_copy(update={"methods": plain}).needs_second_view


def test_settings_are_the_shared_ones_then_the_methods_then_those_of_tags(benchmark):
    pc = protocol.BudgetMethod(label="PC", objective={"near": 0.3, "coverage": 0.4}, tags={"near": 0.1})
    own = benchmark.model_copy(
        update={"objective": {"name": "patchml", "coverage": 0.6, "patch_weight": 2.0}, "methods": {"pc": pc}}
    )
    shared = {"name": "patchml", "coverage": 0.4, "patch_weight": 2.0}
    assert own.settings("pc", "SP") == own.settings("pc", "all boxes") == {**shared, "near": 0.3}
    assert own.settings("pc", "I") == own.settings("pc", "tags") == {**shared, "near": 0.1}


def test_a_method_may_have_a_pool_of_its_own(benchmark):
    methods = {name: protocol.BudgetMethod(label=name, objective={}, pool=name) for name in ("max", "mean")}
    own = benchmark.model_copy(update={"pool": "max", "methods": {**benchmark.methods, **methods}})
    assert [own.head(name).pool.name for name in ("ignore", "max", "mean")] == ["max", "max", "mean"]
    digests = [own.protocol(Job("voc2", "5%", "SP", name, 0)) for name in ("ignore", "max", "mean")]
    assert digests[0] == digests[1] != digests[2]


def test_chosen_jobs(benchmark):
    jobs = protocol.choose_jobs(benchmark, "voc2:5%:SP:pc,collages:10%::ignore", "1")
    assert jobs == [
        *(Job("collages", "10%", kind, "ignore", 1) for kind in ("I", "SP", "SB", "AP", "AB")),
        Job("voc2", "5%", "SP", "pc", 1),
    ]
    assert {job.annotation for job in protocol.choose_jobs(benchmark, "::SB", "0")} == {"SB"}


def test_jobs_that_are_none(benchmark):
    with pytest.raises(ConfigError) as error:
        protocol.choose_jobs(benchmark, "voc2:5%:PS", None)
    assert str(error.value) == "--only voc2:5%:PS: 'PS' is not in budgets."
    with pytest.raises(ConfigError) as error:
        protocol.choose_jobs(benchmark, "voc2:5%:SP:pc:0", None)
    assert str(error.value) == (
        "--only voc2:5%:SP:pc:0: write SET:BUDGET:TYPE:METHOD; parts may be empty, or left out at the end."
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("patch_weight =", "patch_wait =", "b.toml: .*patch_wait"),
        ('"SB"', '"BS"', "annotation type 'BS' is not known"),
        ('mode = "flat"', 'mode = "round"', "b.toml: .*mode"),
        ('pool = "lse"', 'pool = "les"', "b.toml: .*pool"),
    ],
)
def test_settings_errors(tmp_path, old, new, message):
    path = tmp_path / "b.toml"
    text = (BENCHMARKS / "budgets.toml").read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        protocol.read_budgets(path)


def line(benchmark, job, **changes):
    record = {"benchmark": "budgets", "set": job.set_name, "budget": job.budget, "annotation": job.annotation}
    record |= {"method": job.method, "seed": job.seed, "protocol": benchmark.protocol(job)}
    return json.dumps(record | changes) + "\n"


def test_what_is_done_is_read_back_and_an_unfinished_line_is_cut_off(benchmark, tmp_path, capsys):
    path = tmp_path / "budgets.jsonl"
    assert protocol.read_done(path, benchmark) == set()
    jobs = {Job("voc2", "5%", "SP", "pc", 0), Job("collages", "10%", "I", "ignore", 2)}
    whole = "".join(line(benchmark, job) for job in sorted(jobs, key=str))
    path.write_text(whole + line(benchmark, Job("voc2", "5%", "I", "pc", 0))[:40])
    assert protocol.read_done(path, benchmark) == jobs
    assert "the last line is unfinished" in capsys.readouterr().err
    assert path.read_text() == whole


def test_other_settings_do_not_share_a_file(benchmark, tmp_path):
    """The digest holds whatever decides a run, and neither labels nor the lists of what else is run."""
    path, job = tmp_path / "budgets.jsonl", Job("voc2", "5%", "SP", "pc", 0)
    path.write_text(line(benchmark, job))
    labelled = {**benchmark.methods, "pc": benchmark.methods["pc"].model_copy(update={"label": "PatchCluster"})}
    fewer = {"seeds": 9, "sets": ("voc2",), "budgets": ("5%", "50%"), "types": ("SP",), "methods": labelled}
    assert protocol.read_done(path, benchmark.model_copy(update=fewer)) == {job}
    for other in ({"size": 224}, {"name": "b"}, {"mode": "exact"}, {"objective": {"name": "patchml"}}):
        with pytest.raises(DataError) as error:
            protocol.read_done(path, benchmark.model_copy(update=other))
        assert str(error.value) == f"{path} line 1 ({job}) was made with other settings; use another --out."


# ---------------------------------------------------------------------------------------- pseudo-labels


def test_pseudo_labels_are_judged_in_images_without_labels():
    """Images 1 and 2 have no label. Positive: 2 made, one right, one wrong; 3 true, so recall 1/3.

    Negative: 3 made, of which one is unknown in truth, 1 of the other 2 right; 2 true, so recall 1/2.
    """
    labels = LabelMatrix.from_dense(np.array([[1, 0, 0], [0, 0, 0], [0, 0, 0]], np.int8))
    truth = LabelMatrix.from_dense(np.array([[1, -1, -1], [1, -1, 1], [-1, 0, 1]], np.int8))
    pseudo = PseudoLabels(3, 3)
    made = torch.tensor([[1, 1, 1], [1, 1, -1], [-1, -1, 0]], dtype=torch.int8)
    pseudo.write(torch.arange(3), made)
    assert budgets.judge(pseudo, labels, truth) == {
        "images": 2,
        "positive": {"per_image": 1.0, "precision": 50.0, "recall": 33.333},
        "negative": {"per_image": 1.5, "precision": 50.0, "recall": 50.0},
    }


def test_pseudo_labels_that_are_none():
    truth = LabelMatrix.from_dense(np.ones((2, 1), np.int8))
    assert budgets.judge(None, truth, truth) is None
    nothing = {"per_image": None, "precision": None, "recall": None}
    found = budgets.judge(PseudoLabels(2, 1), truth, truth)
    assert found == {"images": 0, "positive": nothing, "negative": nothing}


# ------------------------------------------------------------------------------------- a made-up set


class Colours(nn.Module):
    """Mean colour of each of the 4 x 4 cells: a trunk whose features tell the classes apart."""

    blocks = ()

    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(SIZE // GRID)

    def forward(self, images):
        return self.pool(images)


def make_net(benchmark, classes, seed, head=None):
    own = SpatialHead(3, classes, plan=head, generator=torch.Generator().manual_seed(seed))
    return SpatialNet(Colours(), own, origin=Origin("colours", "none", "none", (), "0" * 64))


def quadrants(root, split, count, seed):
    """Black photos with up to two squares, each in a quadrant and a colour of its own; the class is the colour."""
    rng, part = np.random.default_rng(seed), datasets._Part()
    (root / split).mkdir(parents=True)
    for n in range(count):
        pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
        places = rng.permutation(4)
        for place, c in zip(places, rng.permutation(3)[: 1 + n % 2], strict=False):
            x, y = 0.5 * (place % 2), 0.5 * (place // 2)
            pixels[int(y * SIZE) :, int(x * SIZE) :][: SIZE // 2, : SIZE // 2] = COLOURS[c]
            part.positives.append([n, int(c), x, y, x + 0.5, y + 0.5])
        Image.fromarray(pixels).save(root / split / f"{n}.png")
        part.images.append(f"{split}/{n}.png")
        part.groups.append(str(n))
    return part


@pytest.fixture(scope="module")
def tiny(benchmark):
    """The benchmark file on 4 x 4 cells and one batch size; head alone, a few epochs on whole photos."""
    stages = (StageConfig(name="main", epochs=6, lr=0.1, trainable="head", schedule="constant"),)
    objective = {**benchmark.objective, "patch_weights": [16.0, 1.0, 1.0], "patch_weight": 1.0}
    pc = {"pseudo_weight": 1.0, "pseudo_from": 2, "near": 0.2, "far": 0.6}
    methods = {
        "ignore": benchmark.methods["ignore"],
        "pc": protocol.BudgetMethod(label="PC", objective=pc),
        "fixmatch": protocol.BudgetMethod(label="FixMatch", objective={"name": "fixmatch", "pseudo_from": 2}),
    }
    return benchmark.model_copy(
        update={"size": SIZE, "min_area": 1.0, "batch_size": 8, "views": 2, "stages": stages}
        | {"objective": objective, "methods": methods, "budgets": ("20%", "40%"), "pool": "lse"}
    )


@pytest.fixture(scope="module")
def material(tiny, tmp_path_factory):
    """Photos, pushed through the trunk as a benchmark does it."""
    root = tmp_path_factory.mktemp("photos")
    classes = ClassNames.of(CLASSES)
    parts = {s: quadrants(root, s, n, seed) for seed, (s, n) in enumerate((("train", 32), ("val", 8), ("test", 12)))}
    tables = [part.table(classes, root, "voc2", ()) for part in parts.values()]
    groups = {split: np.array(part.groups, np.str_) for split, part in parts.items()}
    data = datasets.BenchmarkSet("voc2", *tables, groups, ("red", "blue"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen, "make_net", make_net)
        plain = tiny.model_copy(update={"methods": {"ignore": tiny.methods["ignore"]}})
        folder = frozen.features_folder(tiny, data, root)
        assert folder != frozen.features_folder(plain, data, root)
        frozen.fill(tiny, data, folder)
        return frozen.open_material(data, folder)


@pytest.fixture
def run(tiny, material, monkeypatch):
    monkeypatch.setattr(budgets, "make_net", make_net)
    return lambda *job, of=material: budgets.run(tiny, Job("voc2", *job), of)


def test_second_views_are_other_views(material):
    views = material.views
    assert views.features.shape == views.second_view.features.shape == (2, 32, 3, GRID, GRID)
    assert not torch.equal(views.features, views.second_view.features)


def test_points_are_learned_and_localised(run):
    """The classes are colours, so that a linear head on mean colours ranks and localises all of them without error.

    Squares fill a quarter of a photo: chance of the pointing game 1/4.
    """
    record = run("40%", "SP", "ignore", 0)
    assert record["last"]["mAP"] == record["best"]["mAP"] == 100.0
    found = record["localisation"]
    assert (found["mAP-loc"], found["mAP-cl_same_cells"], found["pointing"]) == (100.0, 100.0, 100.0)
    assert found["pointing_chance"] == pytest.approx(25.0)
    assert found["mAP-loc_chance"] == 0.0
    assert record["scored"] == 2
    assert record["pseudo"] is None


def test_what_is_bought(run, tiny, material):
    """32 photos x 3 classes, half of them with 1 label and half with 2: 1.5 of 3, one object each.

    Seconds a pair: I 1, SP (1.5 + 1.5 x 2.4) / 3 = 1.7, SB (1.5 + 1.5 x 7) / 3 = 4. 40 % of 96 s buy 38.4 pairs of I,
    22.6 of SP and 9.6 of SB, rounded to the nearest.
    """
    found = {
        kind: budgets.receipt(budgets.buy(tiny, Job("voc2", "40%", kind, "ignore", 0), material.data))
        for kind in ("I", "SP", "SB", "AP", "AB")
    }
    assert [found[k]["positives"] + found[k]["negatives"] for k in ("I", "SP", "SB")] == [38, 23, 10]
    for kind, points, boxes in (("I", 0, 0), ("SP", 1, 0), ("AP", 1, 0), ("SB", 0, 1), ("AB", 0, 1)):
        bought = found[kind]
        assert (bought["points"], bought["boxes"]) == (points * bought["positives"], boxes * bought["positives"])
    assert found["SP"] == found["AP"]
    assert found["SB"] == found["AB"]
    record = run("40%", "SB", "ignore", 0)
    assert record["bought"] == found["SB"]
    assert record["seconds_per_pair"] == 4.0


def test_runs_with_one_seed_start_alike_and_repeat(run, material):
    """Labels, order and head follow the seed: before its pseudo-labels, PatchCluster's loss is that of `ignore`.

    Second views in the cache change nothing for a method that does not use them.
    """
    first, other, again = run("20%", "SP", "ignore", 0), run("20%", "SP", "pc", 0), run("20%", "SP", "ignore", 0)
    assert first["bought"] == other["bought"]
    losses, others = first["train_loss_by_epoch"], other["train_loss_by_epoch"]
    assert losses[:2] == others[:2]
    assert losses[3:] != others[3:]
    plain = run("20%", "SP", "ignore", 0, of=replace(material, views=replace(material.views, second_view=None)))
    timed = ("cpu_seconds_per_epoch", "machine")
    for same in (again, plain):
        assert {k: v for k, v in same.items() if k not in timed} == {k: v for k, v in first.items() if k not in timed}
    assert run("20%", "SP", "ignore", 1)["train_loss_by_epoch"] != losses


@pytest.mark.parametrize("method", ["pc", "fixmatch"])
def test_pseudo_labels_of_a_run_are_right_where_classes_are_colours(run, method):
    """A colour is one direction in feature space; whatever is called positive is."""
    pseudo = run("20%", "SP", method, 0)["pseudo"]
    assert 0 < pseudo["images"] < 32
    assert pseudo["positive"]["per_image"] > 0
    assert pseudo["positive"]["precision"] == 100.0


def test_places_are_those_of_scored_classes(material):
    """Scored are red (0) and blue (2), which are numbers 0 and 1 among the scored."""
    truth = material.data.test.matrix.dense()
    for image in range(len(truth)):
        found = budgets.located(material.data, image)
        assert sorted(found) == [n for n, c in enumerate((0, 2)) if truth[image, c] == Label.POSITIVE]
