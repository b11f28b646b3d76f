"""The runner: cutting a net in two changes nothing, runs are chosen and resumed, processes report what happened."""

import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.sources import CachePlan, StoredViews, fill_views
from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label, LabelMatrix
from fewtags.nets.backbones import create_net
from fewtags.nets.freezing import freeze
from fewtags.objectives.base import Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.photos.augment import SquareCrop
from fewtags.photos.dataset import PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, TrainLoader

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
frozen, protocol, runner = (importlib.import_module(name) for name in ("frozen", "protocol", "single_positive"))
sys.path.remove(str(BENCHMARKS))

SIZE, CLASSES, SAMPLES = 64, 3, 6
Job = protocol.Job


@pytest.fixture(scope="module")
def quick():
    return protocol.read_benchmark(BENCHMARKS / "quick.toml")


def make_net():
    """Random weights, and BatchNorm statistics that differ from the identity."""
    net = create_net("mobilenetv2_100", CLASSES, weights="none", size=SIZE, seed=1)
    generator = torch.Generator().manual_seed(0)
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1, generator=generator)
    return net


@pytest.mark.parametrize("trained_blocks", [0, 4, 17])
def test_below_and_above_are_the_net_and_split_where_freeze_does(trained_blocks):
    net = make_net().eval()
    freeze(net, trained_blocks or "head")
    below, above = frozen.below(net, trained_blocks), frozen.Above(net, trained_blocks)
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, expected = below.eval().features(images), net(images)
        assert torch.equal(above(features).maps, expected.maps)
        torch.testing.assert_close(above.predict_logits(features), expected.logits, rtol=1e-5, atol=1e-6)
    assert all(p.requires_grad for p in above.parameters())
    assert not any(p.requires_grad for p in below.backbone.parameters())
    assert len(list(above.parameters())) == sum(p.requires_grad for p in net.parameters())


def photos(root):
    rng = np.random.default_rng(0)
    for n in range(SAMPLES):
        Image.fromarray(rng.integers(0, 256, (80, 70, 3), np.uint8)).save(root / f"{n}.png")
    dense = np.full((SAMPLES, CLASSES), Label.UNKNOWN, np.int8)
    dense[np.arange(SAMPLES), np.arange(SAMPLES) % CLASSES] = Label.POSITIVE
    return PhotoFolder(root, pa.array([f"{n}.png" for n in range(SAMPLES)])), LabelMatrix.from_dense(dense)


def train(net, source, labels, model=None):
    stages = (
        StageConfig(name="warmup", epochs=1, lr=1e-2, trainable="head", warmup=True),
        StageConfig(name="main", epochs=2, lr=1e-3, trainable=4),
    )
    objective = ExpectedNegative(positives_per_image=1.5, scl_weight=1.0)
    config, problem = (
        FitConfig(stages=stages, batchnorm_eval=True),
        Problem(labels=labels, grid=(2, 2), warmup_epochs=1, epochs=3),
    )
    fit = Fit(net, objective, source, config, problem, accelerator=make_accelerator(cpu=True), model=model)
    return [event.record["train/loss"] for event in fit.run() if isinstance(event, EpochEnded)]


def test_training_above_cached_features_equals_training_the_whole_net(tmp_path):
    """As many views as epochs: cached features of the frozen blocks against fresh crops through `freeze(net, 4)`.

    Adam divides by the root of squared gradients, so that rounding errors of near-zero gradients show up as whole
    steps: losses are compared to 1e-4, and must have moved by far more than that.
    """
    files, labels = photos(tmp_path)
    sampler, collate = EpochSampler(SAMPLES, 3), Collate((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    fresh = TrainLoader(TrainSet(photos=files, labels=labels, policy=SquareCrop(SIZE)), sampler, collate)
    expected = train(make_net(), fresh, labels)
    net = make_net()
    cycled = TrainLoader(
        TrainSet(photos=files, labels=labels, policy=SquareCrop(SIZE), views_cycle=3), sampler, collate
    )
    below = frozen.below(make_net(), 4).requires_grad_(False)
    views = fill_views(below, cycled, CachePlan(3, torch.float32, 0))
    assert views.features.shape == (3, SAMPLES, 96, 4, 4)
    losses = train(net, StoredViews(views, sampler, labels), labels, frozen.Above(net, 4))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert abs(losses[2] - losses[1]) > 1e-2


def test_benchmark_files(quick):
    long = protocol.read_benchmark(BENCHMARKS / "long.toml")
    assert (quick.trained_blocks, long.trained_blocks) == (0, 4)
    assert long.views == sum(stage.epochs for stage in long.stages)
    assert long.methods == {name: method for name, method in quick.methods.items() if name != "ep"}


def test_settings_errors(tmp_path):
    text = (BENCHMARKS / "quick.toml").read_text()
    path = tmp_path / "b.toml"
    for old, new, message in (
        ("size = 192", "sise = 192", "b.toml: .*sise"),
        ("smoothing = 0.1", "smothing = 0.1", "b.toml: .*smothing"),
        ('"assume_negative" }', '"assume_negativ" }', "'assume_negativ' is not a method .*'assume_negative'"),
        ('trainable = "head", schedule = "cosine"', 'trainable = "all"', "b.toml: stages train the head"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            protocol.read_benchmark(path)


def test_jobs_are_interleaved_by_seed(quick):
    jobs = protocol.choose_jobs(quick, None, None)
    assert len(jobs) == len(set(jobs)) == 2 * len(quick.methods) * 10
    assert [j.seed for j in jobs] == sorted(j.seed for j in jobs)
    assert protocol.choose_jobs(quick, "collages:en,:an", "3-4,7") == [
        Job(s, m, seed) for seed in (3, 4, 7) for s, m in (("camvid", "an"), ("collages", "an"), ("collages", "en"))
    ]


def test_jobs_that_are_none(quick):
    with pytest.raises(ConfigError) as error:
        protocol.choose_jobs(quick, "camvid:enn", None)
    assert str(error.value) == "--only camvid:enn: 'enn' is not in quick (did you mean 'en'?)."
    with pytest.raises(ConfigError, match="--seeds a-b: give numbers like 0-9 or 0,3,5"):
        protocol.choose_jobs(quick, None, "a-b")


def line(benchmark, job, **changes):
    record = {"benchmark": "quick", "set": job.set_name, "method": job.method, "seed": job.seed}
    return json.dumps(record | {"protocol": benchmark.protocol(job.method)} | changes) + "\n"


def test_what_is_done_is_read_back_and_an_unfinished_line_is_cut_off(quick, tmp_path, capsys):
    path = tmp_path / "quick.jsonl"
    assert protocol.read_done(path, quick) == set()
    jobs = {Job("camvid", "an", 0), Job("collages", "en_scl1", 3)}
    whole = "".join(line(quick, job) for job in sorted(jobs, key=str))
    path.write_text(whole + line(quick, Job("camvid", "en", 1))[:30])
    assert protocol.read_done(path, quick) == jobs
    assert "the last line is unfinished" in capsys.readouterr().err
    assert path.read_text() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["quick.jsonl"]


def test_other_settings_do_not_share_a_file(quick, tmp_path):
    """The digest holds whatever decides a run, and neither the label nor the list of methods and seeds."""
    path, job = tmp_path / "quick.jsonl", Job("camvid", "an", 0)
    path.write_text(line(quick, job))
    more = quick.model_copy(update={"seeds": 20, "sets": ("camvid",)})
    relabelled = {**quick.methods, "an": quick.methods["an"].model_copy(update={"label": "Assume negative"})}
    for same in (more, quick.model_copy(update={"methods": relabelled})):
        assert protocol.read_done(path, same) == {job}
    for other in (quick.model_copy(update={"size": 224}), quick.model_copy(update={"name": "long"})):
        with pytest.raises(DataError) as error:
            protocol.read_done(path, other)
        assert str(error.value) == f"{path} line 1 (camvid an seed 0) was made with other settings; use another --out."


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, where pytest has threads
def test_processes_report_results_errors_and_deaths():
    def fine():
        return {"pid": multiprocessing_pid()}

    def refuses():
        raise DataError("no photo.")

    def dies():
        raise SystemExit(3)

    tasks = [("a", fine), ("b", refuses), ("c", dies), ("d", fine)]
    results = dict(runner.in_processes(tasks, 2, time.monotonic() + 1000))
    assert results["b"] == "no photo."
    assert results["c"] == "the process ended without a result"
    assert len({results["a"]["pid"], results["d"]["pid"], multiprocessing_pid()}) == 3
    assert list(runner.in_processes(tasks, 2, time.monotonic() - 1)) == []


def multiprocessing_pid():
    return runner.os.getpid()


def test_metrics_look_at_scored_classes_only():
    """Class 0 is ranked perfectly and not scored. Class 1: the positives stand on places 1 and 3, AP (1 + 2/3) / 2.

    Predicted positives count both classes: logits 0 are probabilities 1/2, so 1/2 + mean(.., .., ..) of class 1.
    """
    labels = np.array([[1, 1], [-1, -1], [-1, 1]], np.int8)
    logits = np.array([[0.0, 2.0], [0.0, 1.0], [0.0, 0.0]], np.float32)

    class Table:
        matrix = LabelMatrix.from_dense(labels)

    found = runner.metrics(logits, Table(), np.array([1]))
    assert found["mAP"] == pytest.approx((1 + 2 / 3) / 2)
    expected = 0.5 + (1 / (1 + np.exp(-2)) + 1 / (1 + np.exp(-1)) + 0.5) / 3
    assert found["predicted_positives"] == pytest.approx(expected)
