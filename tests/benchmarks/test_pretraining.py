"""The pretraining benchmark: which runs there are, which views a batch shows, and a tiny one from photos to numbers."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.nets.spatial import Preprocessing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
names = ("pretraining_protocol", "pretraining_pixels", "pretraining", "photo_sets")
protocol, pixels_, runner, datasets = (importlib.import_module(name) for name in names)
sys.path.remove(str(BENCHMARKS))

CLASSES = ("red", "green", "blue")
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
SIZES = {"train": 24, "val": 8, "test": 12}
Job = protocol.Job


@pytest.fixture(scope="module")
def benchmark():
    return protocol.read_benchmark(BENCHMARKS / "pretraining.toml")


@pytest.fixture(scope="module")
def tiny(benchmark):
    """The real file with little of everything."""
    pretrain = benchmark.pretrain
    train = {**pretrain.train, "epochs": 2, "batch_size": 8}
    objective = {**pretrain.objective, "queue_size": 8, "projection_dim": 8}
    return benchmark.model_copy(
        update={
            "photo": 40,
            "size": 32,
            "views": 2,
            "labels": (12, 20),
            "costs": (0.01, 1.0),
            "pretrain": pretrain.model_copy(update={"train": train, "objective": objective}),
            "finetune": benchmark.finetune.model_copy(update={"epochs": 2, "views": 2, "batch_size": 8}),
            "tasks": {
                name: task.model_copy(update={"photos": 16})
                for name, task in benchmark.tasks.items()
                if name in ("single100", "point300")
            },
        }
    )


def quadrants(root, split, count, seed):
    """Grey photos with one or two coloured quadrants, and their boxes."""
    part, rng = datasets._Part(), np.random.default_rng(seed)
    (root / split).mkdir(parents=True)
    for n in range(count):
        image = np.full((64, 48, 3), 128, np.uint8)
        for place, c in zip(rng.permutation(4), rng.permutation(3)[: 1 + n % 2], strict=False):
            x, y = place % 2, place // 2
            image[32 * y : 32 * y + 32, 24 * x : 24 * x + 24] = COLOURS[c]
            part.positives.append([n, int(c), x / 2, y / 2, x / 2 + 0.5, y / 2 + 0.5])
        Image.fromarray(image).save(root / split / f"{n}.png")
        part.images.append(f"{split}/{n}.png")
        part.groups.append(str(n))
    return part


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny):
    """Small photos and their views, and the cache they are in."""
    root, cache = tmp_path_factory.mktemp("quadrants"), tmp_path_factory.mktemp("cache")
    parts = {split: quadrants(root, split, count, n) for n, (split, count) in enumerate(SIZES.items())}
    tables = [part.table(ClassNames.of(CLASSES), root, "made", ()) for part in parts.values()]
    groups = {split: np.array(part.groups) for split, part in parts.items()}
    data = pixels_.shrink(datasets.BenchmarkSet("voc", *tables, groups, CLASSES), tiny.photo, cache)
    folder = pixels_.pixels_folder(tiny, data, cache)
    pixels_.fill(tiny, data, folder)
    return pixels_.open_pixels(data, folder), cache


# ------------------------------------------------------------------------------------------- which runs


def test_runs_come_in_an_order_that_has_what_they_need(benchmark):
    """Encoders of all seeds before tasks; sweeps last, one seed; ImageNet weights have no tasks."""
    encoders, tasks, sweeps = protocol.choose_jobs(benchmark, None, None)
    main = [name for name, variant in benchmark.methods.items() if not variant.sweep]
    assert len(encoders) == 3 * len(main)
    assert len(tasks) == 3 * len(benchmark.tasks) * (len(main) - 1)
    assert {job.method for job in sweeps} == set(benchmark.methods) - set(main)
    assert {job.seed for job in sweeps} == {0}
    assert {job.part for job in (*encoders, *sweeps)} == {"encoder"}
    assert "imagenet" not in {job.method for job in tasks}


def test_only_chooses_parts_and_methods(benchmark):
    chosen = protocol.choose_jobs(benchmark, "encoder:moco,fine300:knn", "1")
    assert chosen == [[Job("encoder", "moco", 1)], [Job("fine300", "knn", 1)], []]
    with pytest.raises(ConfigError, match=r"'moko' is not in pretraining \(did you mean 'moco'\?\)"):
        protocol.choose_jobs(benchmark, ":moko", None)


def test_a_protocol_is_what_decides_a_run(benchmark):
    """Not its label; the settings of training on labels play no part in an encoder, those of pretraining do in all."""
    job, task = Job("encoder", "mls", 0), Job("fine300", "mls", 0)
    other = benchmark.model_copy(update={"finetune": benchmark.finetune.model_copy(update={"epochs": 7})})
    assert other.protocol(job) == benchmark.protocol(job)
    assert other.protocol(task) != benchmark.protocol(task)
    train = {**benchmark.pretrain.train, "epochs": 7}
    longer = benchmark.model_copy(update={"pretrain": benchmark.pretrain.model_copy(update={"train": train})})
    assert longer.protocol(job) != benchmark.protocol(job)
    assert longer.protocol(task) != benchmark.protocol(task)
    assert longer.protocol(Job("fine300", "scratch", 0)) == benchmark.protocol(Job("fine300", "scratch", 0))
    variants = dict(benchmark.methods)
    variants["mls"] = variants["mls"].model_copy(update={"label": "another name"})
    assert benchmark.model_copy(update={"methods": variants}).protocol(job) == benchmark.protocol(job)


def test_every_encoder_has_a_file_of_its_own(benchmark):
    """Whatever distinguishes two methods, or two seeds, is in the name."""
    pretrained = [name for name, variant in benchmark.methods.items() if variant.objective is not None]
    digests = {benchmark.encoder_digest(name, seed) for name in pretrained for seed in range(3)}
    assert len(digests) == 3 * len(pretrained)


def test_methods_differ_in_their_loss_alone(benchmark):
    """Queue, temperature, momentum and projector are those of the plain method."""
    plain = benchmark.settings("moco", 0).objective.model_dump()
    for name, variant in benchmark.methods.items():
        if variant.objective is not None and name not in ("mls_d64", "mls_d1024"):
            own = benchmark.settings(name, 0).objective.model_dump()
            assert {key: own[key] for key in plain if key != "name"} == {k: v for k, v in plain.items() if k != "name"}


def test_a_file_of_other_settings_is_not_added_to(benchmark, tmp_path):
    path, job = tmp_path / "out.jsonl", Job("encoder", "moco", 1)
    record = {"benchmark": "pretraining", "part": job.part, "method": job.method, "seed": job.seed}
    path.write_text(json.dumps({**record, "protocol": benchmark.protocol(job)}) + "\n")
    assert protocol.read_done(path, benchmark) == {job}
    path.write_text(json.dumps({**record, "protocol": "other"}) + "\n")
    with pytest.raises(DataError, match=r"line 1 \(encoder moco seed 1\) was made with other settings"):
        protocol.read_done(path, benchmark)


# ------------------------------------------------------------------------------------------- views


def test_pixels_are_normalised_by_hand():
    """255 with mean .5 and deviation .25 is (1 - .5) / .25 = 2; 0 is -2; red is the first channel."""
    image = np.zeros((1, 2, 2, 3), np.uint8)
    image[0, 0, 1, 0] = 255
    found = pixels_.normalised(image, Preprocessing((0.5,) * 3, (0.25,) * 3))
    assert found.shape == (1, 3, 2, 2)
    assert found[0, 0].tolist() == [[-2.0, 2.0], [-2.0, -2.0]]
    assert (found[0, 1:] == -2.0).all()
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_pair_is_a_function_of_the_epoch(made, tiny):
    """With two views, epochs 0 to 3 take firsts 0, 1, 0, 1 and seconds 0, 1, 1, 0: all four pairs come."""
    real, _ = made
    n = SIZES["train"]
    numbers = np.zeros((2, 2, n, 2, 2, 3), np.uint8)
    numbers[0, 0], numbers[1, 0], numbers[0, 1], numbers[1, 1] = 10, 11, 20, 21
    pixels = pixels_.Pixels(real.data, numbers, real.crops, real.crop_views, real.whole)
    matrix = real.data.train_truth.matrix
    plain = Preprocessing((0.0,) * 3, (1 / 255,) * 3)
    source = pixels_.PairSource(pixels, pixels_.EpochSampler(n, 8, 0), matrix, plain)
    seen = []
    for epoch in range(4):
        batches = list(source.batches(epoch))
        assert len(batches) == source.steps_per_epoch == 3
        assert sorted(torch.cat([b.index for b in batches]).tolist()) == list(range(n))
        seen.append((round(float(batches[0].images.mean())), round(float(batches[0].second_view.images.mean()))))
    assert seen == [(10, 20), (11, 21), (10, 21), (11, 20)]
    start = next(source.batches(2, 1))
    assert torch.equal(start.index, list(source.batches(2))[1].index)


def test_crops_are_those_of_the_chosen_photos(made):
    pixels, _ = made
    rows = np.array([5, 2, 9])
    plain = Preprocessing((0.0,) * 3, (1 / 255,) * 3)
    labels = pixels.data.train_truth.subset(rows).matrix
    source = pixels_.CropSource(pixels, rows, pixels_.EpochSampler(3, 3, 0), labels, plain)
    (batch,) = source.batches(3)
    for place, index in enumerate(batch.index.tolist()):
        expected = torch.from_numpy(pixels.crops[1][rows[index]]).permute(2, 0, 1).float()
        torch.testing.assert_close(batch.images[place], expected)
        assert batch.labels[place].tolist() == pixels.data.train_truth.matrix.rows([rows[index]])[0].tolist()


def test_photos_are_made_small_once(made, tiny):
    """48 x 64 fits into 40 x 40 as 30 x 40."""
    pixels, cache = made
    table = pixels.data.train_truth
    with Image.open(table.root / table.images[0].as_py()) as file:
        assert file.size == (30, 40)
    assert pixels_.shrink(pixels.data, tiny.photo, cache).train_truth.root != table.root  # another set, another folder
    assert {name: len(whole) for name, whole in pixels.whole.items()} == SIZES


# ------------------------------------------------------------------------------------------- numbers


def test_more_labels_contain_fewer(made):
    table = made[0].data.train_truth
    one, more = runner.few(table, 5, 3), runner.few(table, 12, 3)
    assert one.tolist() == more[:5].tolist()
    assert runner.few(table, 5, 4).tolist() != one.tolist()
    with pytest.raises(DataError, match=r"^25 photos with labels were asked for, of 24\.$"):
        runner.few(table, 25, 0)


def test_linear_probe_finds_what_is_there(made):
    """Features that are the labels give 100; features of noise the best of the costs by validation."""
    data = made[0].data
    labels = {split: table.matrix.dense() for split, table in data.splits.items()}
    perfect = {split: (values == Label.POSITIVE).astype(np.float32) for split, values in labels.items()}
    rows = np.arange(20)
    found = runner.linear(perfect, rows, labels["train"][rows], data, (0.1, 1.0))
    assert found == {"val": 100.0, "test": 100.0, "cost": 0.1}
    rng = np.random.default_rng(0)
    noise = {split: rng.normal(size=(len(values), 2)).astype(np.float32) for split, values in labels.items()}
    each = [runner.linear(noise, rows, labels["train"][rows], data, (cost,)) for cost in (1e-3, 1.0)]
    both = runner.linear(noise, rows, labels["train"][rows], data, (1e-3, 1.0))
    assert both["val"] == max(one["val"] for one in each)


def test_what_methods_are_shown(made, benchmark):
    """One positive per photo and nothing else; or every class, with a point in one object of each that is there."""
    truth = made[0].data.train_truth
    single = runner.labelled(truth, benchmark.tasks["single300"], 0)
    assert (single.matrix.image_counts(Label.POSITIVE) == 1).all()
    assert single.matrix.counts(Label.NEGATIVE).sum() == 0
    points = runner.labelled(truth, benchmark.tasks["point300"], 0)
    assert np.array_equal(points.matrix.dense(), truth.matrix.dense())
    boxes = points.locations.boxes
    assert len(boxes) == truth.matrix.counts(Label.POSITIVE).sum()
    assert np.array_equal(boxes[:, :2], boxes[:, 2:])
    assert runner.labelled(truth, benchmark.tasks["fine300"], 0) is truth


@pytest.mark.parametrize("method", ["moco", "mls"])
def test_from_photos_to_numbers(made, tiny, method):
    """An encoder, its probes and its track; and what starts from it, the same whether it was there already or not."""
    pixels, cache = made
    job, task = Job("encoder", method, 0), Job("single100", method, 0)
    assert not runner.encoder_file(tiny, job, cache).exists()
    early = runner.run(tiny, task, pixels, cache)
    found = runner.run(tiny, job, pixels, cache)
    assert (found["part"], found["method"], found["seed"], found["epochs"]) == ("encoder", method, 0, 2)
    assert len(found["track"]["spread"]) == 2
    assert ("neighbour_loss" in found["track"]) is (method == "mls") or not found["track"]["neighbour_loss"]
    # softplus(5) - 5 * 5 / 8: k = 5 of a queue of 8, tau = .2.
    assert found["fingerprint"] == (pytest.approx(5.00672 - 3.125, abs=1e-4) if method == "mls" else None)
    for name in ("linear12", "linear20"):
        assert 0 < found[name]["test"] <= 100
        assert found[name]["cost"] in tiny.costs
    used = runner.run(tiny, task, pixels, cache)
    assert (used["labelled"], used["epochs"], len(used["train_loss_by_epoch"])) == (16, 2, 2)
    assert 0 < used["mAP_test"] <= 100
    assert used | {"cpu_seconds": 0} == early | {"cpu_seconds": 0}


def test_a_run_can_be_made_again(made, tiny):
    """To the same numbers, the time apart: nothing but the settings, the seed and the photos decides."""
    pixels, cache = made
    short = tiny.model_copy(update={"labels": (12,), "costs": (0.1,)})
    first, second = (runner.run(short, Job("encoder", "mls_small", 1), pixels, cache) for _ in range(2))
    assert first.pop("cpu_seconds") > 0
    assert second.pop("cpu_seconds") > 0
    assert first == second


def test_points_are_trained_on(made, tiny):
    pixels, cache = made
    found = runner.run(tiny, Job("point300", "scratch", 0), pixels, cache)
    assert found["task"] == "points, 300 photos"
    assert found["mAP_test"] > 0


def test_the_trial_looks_at_validation_alone(made, tiny):
    pixels, cache = made
    found = runner.trial(tiny.model_copy(update={"trial_epochs": 1}), pixels, cache, 0.05)
    assert set(found) == {"lr", "knn", "12", "20"}
