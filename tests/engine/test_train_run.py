"""A run in its folder: what is written, what is chosen, what is refused, and going on after an interruption."""

import csv
import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.config.parse import load_toml, parse
from fewtags.config.presets import Resolved
from fewtags.config.sections import DataConfig, StageConfig
from fewtags.engine import plan as planning
from fewtags.engine import train_run as running
from fewtags.engine.events import Ended, EpochEnded, Started, StepEnded
from fewtags.engine.fit import FitConfig
from fewtags.engine.methods import settings_models
from fewtags.engine.model import load_model, read_info
from fewtags.engine.plan import make_plan
from fewtags.engine.sources import CachePlan
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import load_tensors, save_tensors
from fewtags.engine.thresholds import choose_thresholds
from fewtags.engine.train_record import changed_split, write_record
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.storage import load
from fewtags.table.table import LabelTable

FINETUNE = {
    "train__stages": [
        {"name": "warmup", "epochs": 1, "lr": 1e-2, "trainable": "head", "warmup": True},
        {"name": "main", "epochs": 1, "lr": 1e-3, "trainable": 1},
    ],
    "train__cached_views": 0,
    "train__weight_ema": 0.9,
    "train__checkpoint_every_steps": 2,
    "objective__heatmap_storage": "disk",
}


def train(config, tables, out, stop=None):
    """Run in a folder, or leave after so many steps; the events."""
    return take(TrainRun(make_plan(config, tables=tables, cpu=True), out, cpu=True).start(), stop)


def take(events, stop=None):
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, StepEnded) and event.global_step == stop:
            break
    return seen


def read_json(path):
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def finished(scenes, tmp_path_factory, request):
    """A finished run, and its events."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    make = request.getfixturevalue("make_config")
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    return out, train(make(), tables, out)


# --- what is written


def test_the_folder_of_a_finished_run(finished):
    out, _ = finished
    files = {
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and "checkpoints" not in path.parts
    }
    assert files == {
        "run.toml", "resolved.toml", "environment.json", "vocabulary.json", "check.json", "excluded.csv", "README.md",
        "metrics.jsonl", "seconds.json", "best.safetensors", "model.safetensors",
        "tables/train.parquet", "tables/val.parquet", "tables/test.parquet", "tables/truth.parquet",
        "tables/train-sizes.npy", "tables/val-sizes.npy", "tables/test-sizes.npy",
        "tables/train-contents.npy", "tables/val-contents.npy", "tables/test-contents.npy",
        "evaluation/val.json", "evaluation/val.npy", "evaluation/test.json", "evaluation/test.npy",
        "gallery/epoch-0000.npz", "gallery/epoch-0000.json", "gallery/epoch-0001.npz", "gallery/epoch-0001.json",
        "gallery/epoch-0002.npz", "gallery/epoch-0002.json", "gallery/final.npz", "gallery/final.json",
    }  # fmt: skip
    assert [path.name for path in (out / "checkpoints").iterdir() if path.is_dir()] == ["step-000000009"]


def test_the_record_says_what_ran(finished, scenes, make_config):
    out, _ = finished
    assert parse(load_toml(out / "run.toml"), settings_models()) == make_config()
    resolved = Resolved.model_validate(load_toml(out / "resolved.toml"))
    assert (resolved.backbone, resolved.size, resolved.batch_size, resolved.seed) == ("test_resnet", 64, 8, 0)
    record = read_json(out / "environment.json")
    assert record["fingerprints"] == {
        "train": scenes.train.fingerprint, "val": scenes.val.fingerprint, "test": scenes.test.fingerprint,
        "truth": scenes.train_truth.fingerprint,
    }  # fmt: skip
    assert record["method"]["name"] == "expected_negative"
    assert record["method"]["positives_per_image"] == 1.5
    assert (record["grid"], record["heatmap_bytes"]) == ([2, 2], 24 * (10 * 16 + 4))
    assert any("a guess" in note for note in record["notes"])
    assert record["packages"]["torch"] == version("torch")
    assert read_json(out / "vocabulary.json")[0] == {"id": "zero", "name": "zero"}
    assert load(out / "tables" / "train.parquet").fingerprint == scenes.train.fingerprint
    assert load(out / "tables" / "train.parquet").root.is_absolute()


def test_one_line_of_metrics_an_epoch(finished):
    out, events = finished
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == [event.record for event in events if isinstance(event, EpochEnded)]
    assert [(line["epoch"], line["stage"]) for line in lines] == [(0, "warmup"), (1, "main"), (2, "main")]
    assert {"val/mAP", "train/loss", "train/scl", "state/expected_positives_precision"} <= lines[2].keys()


def test_thresholds_and_evaluation_belong_to_the_model(finished, scenes):
    out, _ = finished
    info = read_info(out / "model.safetensors")
    found = read_json(out / "evaluation" / "val.json")
    assert [entry["threshold"] for entry in found["per_class"]] == list(info.thresholds)
    assert found["threshold_rules"] == list(info.threshold_rules)
    assert set(info.threshold_rules) <= {"class_f1", "pooled_f1"}
    assert (found["images"], found["known_cells"]) == (11, 110)
    assert np.load(out / "evaluation" / "val.npy").shape == (11, 10)
    tables = Tables(scenes.train, scenes.val)
    assert choose_thresholds(np.load(out / "evaluation" / "val.npy"), tables).values.tolist() == list(info.thresholds)


def test_the_metric_of_the_best_epoch_is_the_one_of_the_model(finished):
    """Measured on cached features while training, and with the whole net in the end."""
    out, events = finished
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert read_json(out / "evaluation" / "val.json")["mAP"] == pytest.approx(ended.best_value, abs=1e-6)


# --- what reaches the loop


class ReachedError(Exception):
    """The loop would begin now."""


def test_every_training_setting_reaches_the_loop(tables, make_config, tmp_path, monkeypatch):
    seen = {}

    def caught(net, objective, source, config, problem, **rest):
        seen.update(config=config, problem=problem)
        raise ReachedError

    monkeypatch.setattr(running, "Fit", caught)
    stages = [
        {"name": "first", "epochs": 2, "lr": 3e-3, "trainable": "head", "schedule": "constant", "warmup": True},
        {"name": "second", "epochs": 3, "lr": 2e-4, "trainable": 1},
    ]
    asked = {
        "seed": 5, "weight_decay": 0.011, "accumulate": 3, "clip_norm": 1.25, "precision": "bf16", "weight_ema": 0.875,
        "batchnorm_eval": True, "checkpoint_every_steps": 7,
    }  # fmt: skip
    changes = asked | {"stages": stages, "cached_views": 0}
    config = make_config(**{f"train__{key}": value for key, value in changes.items()})
    with pytest.raises(ReachedError):
        train(config, tables, tmp_path / "run")
    assert seen["config"] == FitConfig(stages=tuple(StageConfig(**stage) for stage in stages), **asked)
    problem = seen["problem"]
    assert (problem.warmup_epochs, problem.epochs, problem.seed, problem.grid) == (2, 5, 5, (2, 2))
    assert (problem.precision, problem.features_dim) == ("bf16", 96)
    assert np.array_equal(problem.truth.dense(), tables.truth.matrix.dense())


@pytest.mark.parametrize("cached", [None, 2])
def test_jitter_changes_the_colours_that_are_trained_on(tables, make_config, tmp_path, cached):
    """Not where the crops are; measuring sees the photos as they are."""
    plain, jittered = (
        TrainRun(make_plan(make_config(augment__jitter=strength), tables=tables, cpu=True), tmp_path, cpu=True)
        for strength in (0.0, 0.5)
    )
    (one, other) = (run._train_set(cached)[3, 1] for run in (plain, jittered))
    assert one.view == other.view
    assert (one.pixels != other.pixels).mean() > 0.5
    (one, other) = (next(iter(run.eval_loader(tables.val))).images for run in (plain, jittered))
    assert torch.equal(one, other)


# --- which epoch


@pytest.mark.parametrize("select", ["auto", "best", "last"])
def test_the_model_says_which_epoch_it_is(tables, make_config, tmp_path, select):
    events = train(make_config(train__select=select), tables, tmp_path / "run")
    best = events[-1].best_epoch
    info = read_info(tmp_path / "run" / "model.safetensors")
    net, _ = load_model(tmp_path / "run")
    (path,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    last = torch.equal(net.head.weight, load_tensors(path / "net.safetensors")["head.weight"])
    if select == "last":
        assert info.selection == 'the last epoch (3): train.select = "last"'
        assert last
    else:
        assert info.selection.startswith(f"epoch {best + 1} of 3, the best by validation mAP (")
        weights = load_tensors(tmp_path / "run" / "best.safetensors")
        assert torch.equal(net.head.weight, weights["head.weight"])
        assert last == (best == 2)


def test_validation_without_known_negatives(scenes, make_config, tmp_path):
    """As a class folder tree gives it: one positive per image and nothing else."""
    whole = scenes.train
    tables = Tables(whole.subset(np.arange(16)), whole.subset(np.arange(16, 24)))
    events = train(make_config(), tables, tmp_path / "run")
    assert events[-1] == Ended(3, None, None)
    records = [event.record for event in events if isinstance(event, EpochEnded)]
    assert {"val/hit@1", "val/mean_rank", "val/pessimistic_mAP", "val/predicted_positives"} <= records[0].keys()
    assert "val/mAP" not in records[0]
    assert not any(event.best for event in events if isinstance(event, EpochEnded))
    info = read_info(tmp_path / "run" / "model.safetensors")
    assert info.selection == ("the last epoch (3): no validation class has both known positives and known negatives")
    assert set(info.threshold_rules) <= {"expected_count", "none_expected"}
    found = read_json(tmp_path / "run" / "evaluation" / "val.json")
    assert found["mAP"] is None
    assert found["positive_only"].keys() == {
        "images", "hit@1", "recall@1", "recall@3", "recall@5", "mean_rank",
        "mAP, unknown counted as absent (pessimistic)",
    }  # fmt: skip
    assert found["positive_only"]["images"] == 8


# --- refused


def test_a_used_folder_is_refused(tables, make_config, finished, tmp_path):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    plan = make_plan(make_config(), tables=tables, cpu=True)
    with pytest.raises(ConfigError) as error:
        next(TrainRun(plan, out, cpu=True).start())
    assert str(error.value) == f"{out} is not empty; choose another out."
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"is not empty; choose another out\.$"):
        next(TrainRun(plan, tmp_path, cpu=True).start())
    with pytest.raises(ConfigError, match=r"notes\.txt is a file; out takes a folder for the run\."):
        next(TrainRun(plan, tmp_path / "notes.txt", cpu=True).start())


def test_an_empty_folder_is_fine(tables, make_config, tmp_path):
    assert isinstance(train(make_config(), tables, tmp_path, stop=1)[0], Started)


def test_a_method_that_is_refused_leaves_the_folder_free(tables, make_config, tmp_path):
    single = Tables(tables.train, tables.val)
    with pytest.raises(ConfigError, match="objective 'bce' needs known negatives"):
        train(make_config(objective={"name": "bce"}), single, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_an_interrupted_start_leaves_the_folder_free(tables, make_config, tmp_path, monkeypatch, written, made):
    """With heatmaps on disk, whose file is there before the record is complete."""
    out = tmp_path / "run"
    if not made:
        out.mkdir()
    config = make_config(**FINETUNE)

    def stopped(plan, folder):
        assert [path.name for path in folder.rglob("*.bin")] == ["heatmaps-0.bin"]
        if written:
            write_record(plan, folder)
            (folder / "run.toml").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_record", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(config, tables, out)
    assert out.exists() is not made
    assert isinstance(train(config, tables, out, stop=1)[0], Started)


@pytest.mark.parametrize("solved", [True, False])
def test_more_processes_than_photos_are_refused_before_any_work(tables, make_config, tmp_path, monkeypatch, solved):
    """A process without photos would fail, and the others would wait for it."""
    crowd = SimpleNamespace(process_index=3, num_processes=25, device=torch.device("cpu"))
    monkeypatch.setattr(running, "make_accelerator", lambda precision, cpu: crowd)
    solve = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    changes = {"train__stages": [solve], "objective": {"name": "assume_negative"}} if solved else {}
    plan = make_plan(make_config(**changes), tables=tables, cpu=True)
    with pytest.raises(ConfigError, match="24 training images cannot be shared by 25 processes; add images or use"):
        TrainRun(plan, tmp_path / "run", cpu=True)
    assert not (tmp_path / "run").exists()


def test_what_is_not_an_interrupted_run(finished, tmp_path):
    out, _ = finished
    with pytest.raises(CheckpointError) as error:
        open_run(out)
    assert str(error.value) == f"{out} is finished; its model is {out / 'model.safetensors'}."
    with pytest.raises(CheckpointError, match=r"is not a run folder \(it has no run\.toml\); start a run with"):
        open_run(tmp_path)


# --- going on


@pytest.fixture(scope="module")
def pair(scenes, tmp_path_factory, request):
    """A run that trains a block of the net, uninterrupted; and the same run left in the middle of its second epoch."""
    folder = tmp_path_factory.mktemp("pair")
    config = request.getfixturevalue("make_config")(**FINETUNE)
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    train(config, tables, folder / "whole")
    train(config, tables, folder / "left", stop=5)
    return folder / "whole", folder / "left"


@pytest.fixture
def left(pair, tmp_path):
    """A copy of the run that was left."""
    return shutil.copytree(pair[1], tmp_path / "left")


def outcome(out):
    """All that a run ends with, by file; of records, what no clock says."""
    files = {}
    for path in out.rglob("*"):
        if path.suffix in (".safetensors", ".npy", ".npz") or path.parent.name in ("evaluation", "gallery"):
            files[str(path.relative_to(out))] = path.read_bytes()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return files, [{k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds")} for line in lines]


def test_a_run_goes_on_with_the_same_bits(pair, left, monkeypatch, tmp_path):
    """Also from another working directory, on a machine whose presets would be others."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    other = planning.facts(24, 10, cpu=True).model_copy(update={"device": "cuda", "cores": 77, "bf16": True})
    monkeypatch.setattr(planning, "facts", lambda *_: other)
    monkeypatch.setattr("fewtags.engine.memory.free_memory", lambda device=None: 0)
    events = take(open_run(left, cpu=True).resume())
    assert events[0].resumed_from.name == "step-000000004"
    assert outcome(left) == outcome(pair[0])


def test_relative_paths_are_those_of_where_the_run_was_started(scenes, make_config, tmp_path, monkeypatch):
    """Labels are compared and initial weights are found from another working directory."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("train_single.csv", "val.csv"):
        shutil.copy(scenes.folder / name, home / name)
    shutil.copytree(scenes.folder / "images", home / "images")
    save_tensors(
        home / "weights.safetensors", make_plan(make_config(), tables=_pair(scenes), cpu=True).net.state_dict()
    )
    data = {"train": "train_single.csv", "images": "images", "val": "val.csv"}
    monkeypatch.chdir(home)
    config = make_config(data=data, model__weights="weights.safetensors")
    train(config, None, tmp_path / "run", stop=5)
    monkeypatch.chdir(tmp_path)
    opened = open_run(tmp_path / "run", cpu=True)
    assert (opened.plan.config, opened.notes) == (config, ())
    text = (home / "val.csv").read_text()
    (home / "val.csv").write_text(text[:-2] + ("0" if text[-2] == "1" else "1") + "\n")
    with pytest.raises(CheckpointError, match="the val labels have changed since"):
        open_run(tmp_path / "run", cpu=True)
    (home / "val.csv").write_text(text)
    take(opened.resume())
    assert (tmp_path / "run" / "model.safetensors").exists()


def _pair(scenes):
    return Tables(scenes.train, scenes.val)


def test_the_cache_is_the_planned_one(tables, make_config, tmp_path):
    """Two views were asked for; the plan has the last word."""
    plan = make_plan(make_config(), tables=tables, cpu=True)
    assert (plan.cache.views, plan.cache.dtype) == (2, torch.float32)
    other = replace(plan, cache=CachePlan(1, torch.float16, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "StoredViews", lambda filled, *_, **__: filled)
        filled = TrainRun(other, tmp_path / "run", cpu=True)._source()
    assert (filled.count, filled.features.dtype) == (1, torch.float16)
    assert make_plan(make_config(train__cached_views=0), tables=tables, cpu=True).cache is None


def test_what_a_resumed_run_makes_anew_is_made_by_repeatable_kernels(tables, make_config, tmp_path, monkeypatch):
    """On a GPU, cuDNN would otherwise choose by a race: cached views, the head's inputs, the final predictions."""
    inside, seen = [], []

    @contextmanager
    def noted(device):
        inside.append(device)
        yield
        inside.pop()

    monkeypatch.setattr(running, "repeatable", noted)
    for name in ("fill_views", "fill_fixed", "head_inputs", "predict_logits"):
        whole = getattr(running, name)
        monkeypatch.setattr(
            running, name, lambda *given, n=name, f=whole, **named: seen.append((n, len(inside))) or f(*given, **named)
        )
    train(make_config(), tables, tmp_path / "run")
    assert set(seen) == {("fill_views", 1), ("head_inputs", 1)}
    seen.clear()
    solve = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    alone = {"name": "assume_negative"}
    train(make_config(train__stages=[solve], train__cached_views=None, objective=alone), tables, tmp_path / "solved")
    assert set(seen) == {("fill_fixed", 1), ("head_inputs", 1)}
    seen.clear()
    every = {"name": "main", "epochs": 1, "lr": 0.01}
    train(make_config(train__stages=[every], train__cached_views=0), tables, tmp_path / "all")
    assert seen[-2:] == [("predict_logits", 1)] * 2  # of val and test, after training


def test_photos_in_a_relative_folder_are_found_from_elsewhere(tables, make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tables.train.root)
    here = Tables(tables.train.with_root("."), tables.val.with_root("."))
    train(make_config(), here, tmp_path / "run", stop=4)
    monkeypatch.chdir(tmp_path)
    take(open_run(tmp_path / "run", cpu=True).resume())
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_that_was_killed_before_its_first_checkpoint(pair, left):
    shutil.rmtree(left / "checkpoints")
    (left / "best.safetensors").unlink()
    opened = open_run(left, cpu=True)
    assert opened.notes == (f"{left} has no complete checkpoint: training STARTS AGAIN with epoch 1",)
    events = take(opened.resume())
    assert events[0].resumed_from is None
    assert outcome(left) == outcome(pair[0])


def test_a_run_whose_checkpoints_are_gone_is_refused(pair, tmp_path):
    again = shutil.copytree(pair[0], tmp_path / "again")
    (again / "model.safetensors").unlink()
    shutil.rmtree(again / "checkpoints")
    with pytest.raises(
        CheckpointError,
        match=r"has trained 2 epochs \(metrics\.jsonl\), but .*LAST, which names its checkpoint, is missing",
    ):
        open_run(again, cpu=True)


def test_a_run_that_was_killed_after_its_last_epoch(pair, tmp_path):
    """Everything that comes after training is done again."""
    again = shutil.copytree(pair[0], tmp_path / "again")
    (again / "model.safetensors").unlink()
    shutil.rmtree(again / "evaluation")
    (again / "gallery" / "final.npz").unlink()
    take(open_run(again, cpu=True).resume())
    assert outcome(again) == outcome(pair[0])


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_a_kill_between_the_files_of_the_end_leaves_a_run_to_go_on_with(
    tables, make_config, tmp_path, monkeypatch, pair, calls
):
    """Before the evaluation of val or test, the gallery, or the model: done again, with the same bits."""
    again = shutil.copytree(pair[0], tmp_path / "again")
    for path in (*(again / "evaluation").iterdir(), *(again / "gallery").glob("final.*"), again / "model.safetensors"):
        path.unlink()
    done = []

    def counted(function):
        def call(*arguments, **named):
            done.append(function)
            if len(done) == calls:
                raise KeyboardInterrupt
            return function(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("write_evaluation", "save_gallery", "save_model"):
            patch.setattr(running, name, counted(getattr(running, name)))
        with pytest.raises(KeyboardInterrupt):
            take(open_run(again, cpu=True).resume())
    assert not (again / "model.safetensors").exists()
    take(open_run(again, cpu=True).resume())
    assert outcome(again) == outcome(pair[0])


def test_a_run_with_a_model_has_everything_else(tables, make_config, tmp_path, monkeypatch):
    """The model counts as the end, so it comes last: a kill before it leaves a run to go on with."""

    def die(path, net, info):
        assert (path.parent / "gallery" / "final.json").exists()
        assert (path.parent / "evaluation" / "test.json").exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fewtags.engine.train_run.save_model", die)
        with pytest.raises(KeyboardInterrupt):
            train(make_config(), tables, tmp_path / "run")
    take(open_run(tmp_path / "run", cpu=True).resume())
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("environment.json", "{"),
        ("environment.json", "{}"),
        ("environment.json", None),
        ("resolved.toml", "x = 1"),
        ("resolved.toml", "preset = "),
        ("resolved.toml", None),
        ("tables/train.parquet", "nonsense"),
        ("tables/val.parquet", None),
    ],
)
def test_a_damaged_record_is_refused(left, name, content):
    if content is None:
        (left / name).unlink()
    else:
        (left / name).write_text(content)
    with pytest.raises(CheckpointError, match=r"the record of the run in .* is damaged \(.+\); start a new run\."):
        open_run(left, cpu=True)


def test_tables_of_another_run_are_refused(left):
    shutil.copy(left / "tables" / "val.parquet", left / "tables" / "test.parquet")
    with pytest.raises(CheckpointError, match=r"test\.parquet has changed since the run began; restore it, or start a"):
        open_run(left, cpu=True)


def test_other_initial_weights_are_refused(left):
    record = read_json(left / "environment.json")
    record["weights"]["fingerprint"] = "0" * 64
    (left / "environment.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError) as error:
        open_run(left, cpu=True)
    assert str(error.value) == (
        f"the initial weights none are not those that {left} began with; restore them, or start a new run."
    )


@pytest.fixture
def files(scenes, tmp_path):
    """A copy of the demo set's files that may be changed; the settings that read them."""
    folder = shutil.copytree(scenes.folder, tmp_path / "files")
    broken = folder / "images" / "train" / "00005.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    data = {
        "train": str(folder / "train_single.csv"), "images": str(folder / "images"), "val": str(folder / "val.csv"),
        "truth": str(folder / "train_truth.csv"),
    }  # fmt: skip
    return folder, data


def test_an_unreadable_photo_is_left_out_with_a_line_and_training_goes_on(files, make_config, tmp_path):
    _, data = files
    plan = make_plan(make_config(data=data), cpu=True)
    assert any("train: 1 image left out, without a readable photo" in m for m in plan.tables.train.notes.messages)
    out = tmp_path / "run"
    events = take(TrainRun(plan, out, cpu=True).start())
    assert isinstance(events[-1], Ended)
    with (out / "excluded.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["item"], row["where"]) == ("train/00005.jpg", "train")
    assert "truncated" in row["reason"].lower() or "cannot be read" in row["reason"].lower()
    assert len(load(out / "tables" / "train.parquet")) == 23


def test_a_photo_that_breaks_training_says_what_to_do_and_can_be_replaced(files, make_config, tmp_path):
    """Headers only: the truncated photo is found when it is read."""
    folder, data = files
    config, out = make_config(data=data | {"decode": False}, **FINETUNE), tmp_path / "run"
    path = folder / "images" / "train" / "00007.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    plan = make_plan(config, cpu=True)
    with pytest.raises(DataError) as error:
        take(TrainRun(plan, out, cpu=True).start())
    assert str(error.value).startswith(f"{path}: truncated")
    assert str(error.value).endswith(
        f" To continue, put a readable photo in its place and run `fewtags resume {out}`. To train without it, remove "
        "the file and start a new run with data.decode = true, which skips broken photos."
    )
    with pytest.raises(DataError, match="To continue, put a readable photo in its place"):
        take(open_run(out, cpu=True).resume())
    path.write_bytes(whole)
    take(open_run(out, cpu=True).resume())
    assert (out / "model.safetensors").exists()


def test_a_photo_that_was_trained_on_has_to_come_back(files, make_config, tmp_path):
    """Another readable one would not give the same bits: the sizes to compare with stay as they are."""
    folder, data = files
    out, path = tmp_path / "run", folder / "images" / "train" / "00007.jpg"
    train(make_config(data=data, **FINETUNE), None, out, stop=5)
    sizes, whole = (out / "tables" / "train-sizes.npy").read_bytes(), path.read_bytes()
    path.write_bytes(bytes(200) + whole[200:])
    with pytest.raises(
        CheckpointError, match=r"00007\.jpg has the same size but another content than when .*run began"
    ):
        open_run(out, cpu=True)
    assert (out / "tables" / "train-sizes.npy").read_bytes() == sizes
    path.write_bytes(whole)
    assert isinstance(take(open_run(out, cpu=True).resume())[-1], Ended)


def test_a_photo_that_breaks_a_cached_run_leaves_the_folder_free(files, make_config, tmp_path):
    """Views are cached before anything is written."""
    folder, data = files
    path = folder / "images" / "train" / "00007.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    plan = make_plan(make_config(data=data | {"decode": False}), cpu=True)
    with pytest.raises(
        DataError, match=r"00007\.jpg: truncated.* Then run the same command again; nothing was written yet\.$"
    ):
        take(TrainRun(plan, tmp_path / "run", cpu=True).start())
    assert not (tmp_path / "run").exists()


def test_changed_photos_are_refused(files, make_config, tmp_path):
    folder, data = files
    train(make_config(data=data), None, tmp_path / "run", stop=5)
    path = folder / "images" / "train" / "00007.jpg"
    path.write_bytes(path.read_bytes() + bytes(10))
    with pytest.raises(CheckpointError, match=r"00007\.jpg has [\d,]+ bytes, but had [\d,]+ when .*run began; restore"):
        open_run(tmp_path / "run", cpu=True)


def test_another_seed_is_called_another_seed(files, make_config, tmp_path):
    """It would hold out other images, which is not what has changed."""
    _, data = files
    data = {k: v for k, v in data.items() if k in ("train", "images")}
    out = tmp_path / "run"
    train(make_config(data=data), None, out, stop=5)
    text = (out / "run.toml").read_text()
    (out / "run.toml").write_text(text.replace("\nseed = 0", "\nseed = 5"))
    with pytest.raises(CheckpointError, match=r"run\.toml was edited since the run began: train\.seed 0 -> 5; restore"):
        open_run(out, cpu=True)


def test_changed_labels_are_refused_until_they_are_restored(files, make_config, tmp_path):
    folder, data = files
    out = tmp_path / "run"
    train(make_config(data=data), None, out, stop=5)

    def refused(message, **changes):
        """With changed files, by stem; they are restored afterwards."""
        paths = {folder / f"{name}.csv": change for name, change in changes.items()}
        originals = {path: path.read_text() for path in paths}
        for path, change in paths.items():
            path.write_text(change(originals[path]))
        with pytest.raises(CheckpointError) as error:
            open_run(out, cpu=True)
        assert str(error.value).startswith(message)
        for path, text in originals.items():
            path.write_text(text)

    def last_cell(text):
        return text[:-2] + ("0" if text[-2] == "1" else "1") + "\n"

    first = (folder / "train_single.csv").read_text().splitlines()[1]
    photo, tag = first.split(",")
    changed = "the {} labels have changed since " + str(out) + " began; restore them, or start a new run."
    other = f"{photo},{'nine' if tag != 'nine' else 'one'}"
    refused(changed.format("train"), train_single=lambda text: text.replace(first, other))
    extra = folder / "images" / "train" / "extra.png"
    Image.new("L", (80, 80), 7).save(extra)
    more = {
        "train_single": lambda text: text + "train/extra.png,one\n",
        "train_truth": lambda text: text + "train/extra.png" + ",1" * 10 + "\n",
    }
    refused(changed.format("train"), **more)
    extra.unlink()
    refused(changed.format("train"), train_single=lambda text: "\n".join(text.splitlines()[:-1]))
    refused(changed.format("val"), val=last_cell)
    refused(changed.format("truth"), train_truth=last_cell)
    gone = f"the labels can no longer be read as they were when {out} began: the complete labels lack 1 of 24 images"
    refused(gone, train_truth=lambda text: "\n".join(text.splitlines()[:-1]))
    take(open_run(out, cpu=True).resume())
    assert (out / "model.safetensors").exists()


def test_label_files_that_are_gone_do_not_matter(files, make_config, tmp_path):
    """The run has its own copy of the labels."""
    folder, data = files
    out = tmp_path / "run"
    train(make_config(data=data), None, out, stop=5)
    (folder / "train_single.csv").unlink()
    opened = open_run(out, cpu=True)
    assert len(opened.plan.tables.train) == 23
    assert opened.notes == (
        f"labels: {folder / 'train_single.csv'} no longer exists, so changes of the labels cannot be detected; the run "
        "continues with its own copy",
    )


def test_which_split_has_changed(tables, tmp_path):
    assert changed_split(tables, tables, tmp_path) is None
    assert changed_split(tables, Tables(tables.train, tables.val, tables.test), tmp_path) == "truth"
    assert changed_split(Tables(tables.train, tables.val), tables, tmp_path) == "test"
    fewer = Tables(tables.train.subset(np.arange(23)), tables.val, tables.test, tables.truth)
    assert changed_split(fewer, tables, tmp_path) == "train"
    key = tables.train.images[23].as_py()
    (tmp_path / "excluded.csv").write_text(f"item,where,reason\n{key},train,broken\n")
    truth = tables.truth.subset(np.arange(23))
    assert changed_split(Tables(fewer.train, tables.val, tables.test, truth), tables, tmp_path) is None


# --- sets of odd sizes and labels


def with_labels(table, dense, names):
    image, class_ = np.nonzero(dense)
    return LabelTable.build(
        table.images.to_pylist(), ClassNames.of(names), image=image, class_=class_, state=dense[image, class_],
        root=table.root,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("train_rows", "val_rows", "names"),
    [
        pytest.param([[1]] * 5, [[1], [-1], [1]], "a", id="one class"),
        pytest.param([[1, 0], [0, 1], [1, 0]], [[-1, -1], [-1, 0]], "ab", id="validation without positives"),
        pytest.param([[1, 0], [0, 1], [1, 0]], [[0, 0], [0, 0]], "ab", id="validation without labels"),
        pytest.param([[1, 0], [0, 0], [-1, 0]], [[1, 0]], "ab", id="a class and images without labels"),
        pytest.param([[1, 1]], [[1, -1]], "ab", id="one image"),
    ],
)
def test_small_and_one_sided_sets(scenes, make_config, tmp_path, train_rows, val_rows, names):
    """With batches of 8: larger than the set. The run ends with a model whose numbers are numbers, or null."""
    dense = [np.array(rows, np.int8) for rows in (train_rows, val_rows)]
    tables = Tables(*(
        with_labels(table.subset(np.arange(len(rows))), rows, names)
        for table, rows in zip((scenes.train, scenes.val), dense, strict=True)
    ))  # fmt: skip
    train(make_config(), tables, tmp_path / "run")
    info = read_info(tmp_path / "run" / "model.safetensors")
    assert len(info.thresholds) == len(names)
    assert np.isfinite(info.thresholds).all()
    found = read_json(tmp_path / "run" / "evaluation" / "val.json")
    assert found["images"] == len(val_rows)
    assert np.isfinite(np.load(tmp_path / "run" / "evaluation" / "val.npy")).all()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_class_folders_from_end_to_end(scenes, make_config, tmp_path):
    """A folder a class, the same photo in two of them: one image with two positives, on one side of the split."""
    truth = scenes.train_truth.matrix.dense()
    for n, key in enumerate(scenes.train.images.to_pylist()):
        for c in np.flatnonzero(truth[n] == Label.POSITIVE)[:2]:
            folder = tmp_path / "photos" / scenes.train.classes.ids[c]
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(scenes.train.root / key, folder / f"{n}-{c}.jpg")
    config = make_config(data={"train": str(tmp_path / "photos"), "val_share": 0.25})
    plan = make_plan(config, cpu=True)
    assert len(plan.tables.train) + len(plan.tables.val) == 24
    assert int(plan.tables.train.matrix.image_counts(Label.POSITIVE).min()) == 2
    assert plan.objective.positives_per_image == 3.0
    take(TrainRun(plan, tmp_path / "run", cpu=True).start(), stop=4)
    take(open_run(tmp_path / "run", cpu=True).resume())
    assert read_info(tmp_path / "run" / "model.safetensors").class_ids == plan.tables.train.classes.ids


def test_no_readable_photo_at_all(scenes, make_config, tmp_path):
    data = DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.folder / "images"))
    config = make_config(data=data.model_dump(exclude_none=True) | {"val": str(scenes.folder / "val.csv")})
    tables = planning.read_tables(config.data, 0)
    moved = Tables(tables.train.with_root(tmp_path), tables.val)
    with pytest.raises(DataError, match=r"train: no photo can be read, for example train/00000\.jpg: "):
        train(config, moved, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_account_of_the_time_covers_interruptions(tables, make_config, tmp_path):
    train(make_config(), tables, tmp_path / "run", stop=7)
    before = read_json(tmp_path / "run" / "seconds.json")
    take(open_run(tmp_path / "run", cpu=True).resume())
    after = read_json(tmp_path / "run" / "seconds.json")
    assert list(after) == ["features", "training", "evaluation"]
    assert all(after[phase] > before[phase] for phase in before)


SOLVE_FIRST = [
    {"name": "solve", "logit_variances": [0.3, 3.0], "trainable": "head", "warmup": True},
    {"name": "main", "epochs": 2, "lr": 1e-3, "trainable": "all"},
]


def test_a_run_that_solves_the_head_and_then_trains_all_resumes_to_the_same_bits(tables, make_config, tmp_path):
    """EN + SCL: heatmaps start after the solved warm-up, in which expected positives are ranked already."""
    config = make_config(
        train__stages=SOLVE_FIRST, train__cached_views=None, train__optimizer="adamw", train__weight_ema=0.5,
        objective__cl_weight=0.0,
    )  # fmt: skip
    train(config, tables, tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("logit_variance") for line in lines] == [0.3, 3.0, None, None]
    assert ["train/scl" in line for line in lines] == [False, False, True, True]
    assert [line.get("state/expected_positives_per_image", 0) > 0 for line in lines] == [False, True, True, True]
    out = tmp_path / "cut"
    train(config, tables, out, stop=1)
    for stop in (2, 3, None):
        take(open_run(out, cpu=True).resume(), stop)
    for name in ("model.safetensors", "evaluation/val.npy", "evaluation/test.npy"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_head_of_three_by_three_is_solved(tables, make_config, tmp_path):
    """Its gradient comes channels last, which L-BFGS cannot take as it is."""
    solve = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    config = make_config(
        train__stages=[solve], train__cached_views=None, model__head_kernel=3, objective={"name": "assume_negative"}
    )
    train(config, tables, tmp_path / "run")
    assert load_model(tmp_path / "run")[0].head.weight.shape[2:] == (3, 3)


def test_consistency_is_left_out_of_a_solved_stage_that_is_no_warmup(tables, make_config, tmp_path):
    stages = [SOLVE_FIRST[0] | {"warmup": False}, SOLVE_FIRST[1]]
    own = {"name": "expected_negative", "positives_per_image": 2.0}
    plan = make_plan(
        make_config(train__stages=stages, train__cached_views=None, objective=own), tables=tables, cpu=True
    )
    assert plan.objective.scl_weight == 0
    assert plan.fixed.pooled
    plan = make_plan(
        make_config(train__stages=SOLVE_FIRST, train__cached_views=None, objective=own), tables=tables, cpu=True
    )
    assert (plan.objective.scl_weight, plan.objective.warmup_loss) == (0.1, "expected_negative")
