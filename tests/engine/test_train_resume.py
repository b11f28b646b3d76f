"""A run that goes on after an interruption, and what is refused then: damaged records, changed photos and labels."""

import csv
import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from train_runs import FINETUNE, read_json, take, train

from fewtags.engine import preset_facts, run_photos
from fewtags.engine import train_run as running
from fewtags.engine.events import Ended
from fewtags.engine.planning import make_plan
from fewtags.engine.sources import CachePlan
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import save_tensors
from fewtags.engine.train_record import changed_split
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, DataError
from fewtags.table.storage import load

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
    other = preset_facts.facts(24, 10, cpu=True).model_copy(update={"device": "cuda", "cores": 77, "bf16": True})
    monkeypatch.setattr(preset_facts, "facts", lambda *_: other)
    monkeypatch.setattr("fewtags.engine.memory.free_memory", lambda device=None: 0)
    events = take(open_run(left, cpu=True).resume())
    assert events[0].resumed_from.name == "step-000000004"
    assert outcome(left) == outcome(pair[0])


@pytest.mark.parametrize("content", ["", '{"training": 3.', "[]", '{"training": "long"}', '{"training": null}'])
def test_a_damaged_record_of_the_time_is_noted(left, content):
    (left / "seconds.json").write_text(content)
    run = open_run(left, cpu=True)
    assert run.notes == (f"{left / 'seconds.json'} is damaged, so the time before the interruption is not counted",)
    assert run.clock.seconds == {}


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
        patch.setattr(run_photos, "StoredViews", lambda filled, *_, **__: filled)
        filled = TrainRun(other, tmp_path / "run", cpu=True).photos.source()
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

    for module in (running, run_photos):
        monkeypatch.setattr(module, "repeatable", noted)
    for name in ("fill_views", "fill_fixed", "head_inputs", "predict_logits"):
        whole = getattr(run_photos, name)
        monkeypatch.setattr(
            run_photos,
            name,
            lambda *given, n=name, f=whole, **named: seen.append((n, len(inside))) or f(*given, **named),
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


def test_other_derived_settings_of_the_method_are_refused(left, pair):
    """A version that derives other values would continue with another loss; a setting that is new may be off."""
    path = left / "environment.json"
    record = read_json(path)
    began = record["method"]
    other = f"another version of fewtags began {left}, and derived other settings of the method "
    cure = " Resume with that version, or start a new run."
    lacking = {key: value for key, value in began.items() if key != "answer_weight"}
    for method, change in [
        ({**began, "teacher_weight": 0.5}, "(objective.teacher_weight 0.5 -> 0.0)."),
        (lacking, "(objective.answer_weight (not set) -> 4.0)."),
    ]:
        path.write_text(json.dumps({**record, "method": method}))
        with pytest.raises(CheckpointError) as error:
            open_run(left, cpu=True)
        assert str(error.value) == other + change + cure
    assert began["negative_gamma"] == 0
    path.write_text(json.dumps({**record, "method": {k: v for k, v in began.items() if k != "negative_gamma"}}))
    take(open_run(left, cpu=True).resume())
    assert outcome(left) == outcome(pair[0])


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
