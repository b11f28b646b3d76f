"""Run folders: the record of a run, what must not change before a resume, and hints for the user."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags import files
from fewtags.config.parse import load_toml, parse
from fewtags.config.presets import Resolved
from fewtags.engine.methods import settings_models
from fewtags.engine.planning import make_plan
from fewtags.engine.runfolder import (
    ANY_SIZE,
    PRETRAINING,
    RECORD_FILES,
    TRAINING,
    RunFolder,
    photo_sizes,
    refuse_used_folder,
    run_folder,
)
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import save_tensors
from fewtags.engine.train_record import check_labels_unchanged, with_located_paths, write_record
from fewtags.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def original(scenes, tmp_path_factory, request):
    """The record of a run on copies of the photos: the folder, and its tables."""
    root = shutil.copytree(scenes.train.root, tmp_path_factory.mktemp("record") / "images")
    make = request.getfixturevalue("make_config")
    plan = make_plan(make(), tables=Tables(scenes.train.with_root(root), scenes.val.with_root(root)), cpu=True)
    write_record(plan, root.parent / "run")
    return root.parent / "run", plan


def read_record(out):
    return RunFolder(out, TRAINING).read_record(lambda tree, file: parse(tree, settings_models(), file), Resolved)


def refuse_changed_photos(tables, out):
    RunFolder(out, TRAINING).refuse_changed_photos(tables.splits())


def refuse_lost_checkpoints(out):
    return RunFolder(out, TRAINING).refuse_lost_checkpoints()


@pytest.fixture
def begun(original, tmp_path):
    """A copy of that folder, which may be changed."""
    return shutil.copytree(original[0], tmp_path / "run")


@pytest.fixture
def photos(original, tmp_path):
    """Its tables, with copies of the photos that may be changed; sizes are recorded in `tmp_path / "run"`."""
    plan = original[1]
    root = shutil.copytree(plan.tables.train.root, tmp_path / "images")
    shutil.copytree(original[0], tmp_path / "run")
    return Tables(plan.tables.train.with_root(root), plan.tables.val.with_root(root))


# --- settings


def test_what_was_written_comes_back(original):
    out, plan = original
    record = read_record(out)
    assert record.settings == plan.config
    assert record.resolved == plan.resolved
    assert {n: t.fingerprint for n, t in record.tables.items()} == record.environment["fingerprints"]
    assert record.working_directory == Path.cwd()


@pytest.mark.parametrize(
    ("file", "old", "new", "change"),
    [
        ("run.toml", "\nseed = 0", "\nseed = 3", "train.seed 0 -> 3"),
        (
            "run.toml",
            r"\[objective\][\s\S]*?(?=\n\[)",
            '[objective]\nname = "bce"\n',
            "objective.name expected_negative -> bce",
        ),
        ("run.toml", "scl_weight = 0.3", "scl_weight = 1", "objective.scl_weight 0.3 -> 1.0"),
        ("run.toml", "lr = 0.01", "lr = 0.1", "train.stages.0.lr 0.01 -> 0.1"),
        ("run.toml", "size = 64", "size = 64\nflip = false", "augment.flip (not set) -> false"),
        ("run.toml", "size = 64", "", "augment.size 64 -> (not set)"),
        ("run.toml", r"positive_words = \[\]", 'positive_words = ["oui"]', "data.positive_words.0 (not set) -> oui"),
        ("resolved.toml", "size = 64", "size = 96", "size 64 -> 96"),
        ("resolved.toml", "batch_size = 8", "batch_size = 4", "batch_size 8 -> 4"),
    ],
)
def test_edited_settings_are_refused_by_name(begun, file, old, new, change):
    text, replaced = re.subn(old, new, (begun / file).read_text("utf-8"), count=1)
    assert replaced
    (begun / file).write_text(text, "utf-8")
    with pytest.raises(CheckpointError) as error:
        read_record(begun)
    assert str(error.value) == (
        f"{begun / file} was edited since the run began: {change}; restore the value, or start a new run."
    )


def test_settings_that_are_only_written_otherwise_are_the_same(begun):
    """A comment, another order, and a default that is left out say nothing new."""
    tree = load_toml(begun / "run.toml")
    assert tree["data"]["decode"] is True
    text = (begun / "run.toml").read_text("utf-8").replace("decode = true\n", "")
    (begun / "run.toml").write_text("# mine\n" + text.replace("scl_weight = 0.3", "scl_weight = 3e-1"), "utf-8")
    read_record(begun)


def test_a_record_without_its_settings_is_damaged(begun):
    content = json.loads((begun / "environment.json").read_text("utf-8"))
    del content["settings"]
    (begun / "environment.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(CheckpointError) as error:
        read_record(begun)
    assert str(error.value) == f"the record of the run in {begun} is damaged ('settings'); start a new run."


def test_paths_are_seen_from_where_the_run_was_started(make_config, tmp_path):
    config = make_config(
        data={"train": "tags.csv", "images": "/photos", "val": "val.csv"}, model__weights="weights.safetensors"
    )
    found = with_located_paths(config, tmp_path)
    assert found.data.train == str(tmp_path / "tags.csv")
    assert (found.data.images, found.data.val) == ("/photos", str(tmp_path / "val.csv"))
    assert (found.data.test, found.data.truth) == (None, None)
    assert found.model.weights == str(tmp_path / "weights.safetensors")
    assert found.data.model_copy(update={k: getattr(config.data, k) for k in ("train", "val")}) == config.data
    assert with_located_paths(make_config(), tmp_path) == make_config()
    for word in ("hub", "offline", "none"):
        assert with_located_paths(make_config(model__weights=word), tmp_path).model.weights == word


def test_tables_in_memory_have_no_files_to_look_at(original):
    record = read_record(original[0])
    assert check_labels_unchanged(record, original[1].tables, original[0]) is None


# --- photos


def test_sizes(tmp_path, scenes):
    keys = scenes.train.images.to_pylist()[:3]
    for key, size in zip(keys, (0, 7), strict=False):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(bytes(size))
    found = photo_sizes(scenes.train.subset(np.arange(3)).with_root(tmp_path))
    assert (found.tolist(), found.dtype) == ([0, 7, ANY_SIZE], np.int64)


def test_equal_photos_are_the_same(photos, tmp_path):
    """Copies: other times, other folder."""
    refuse_changed_photos(photos, tmp_path / "run")


@pytest.mark.parametrize(("split", "name"), [("train", "train"), ("val", "val")])
def test_a_replaced_photo_is_named(photos, tmp_path, split, name):
    table = photos.splits()[split]
    path = table.root / table.images[2].as_py()
    before = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(1000))
    with pytest.raises(CheckpointError) as error:
        refuse_changed_photos(photos, tmp_path / "run")
    assert str(error.value) == (
        f"{path} has {before + 1000:,} bytes, but had {before:,} when {tmp_path / 'run'} began; restore it, or start a "
        "new run."
    )


def test_a_photo_that_is_gone_is_named_and_others_are_counted(photos, tmp_path):
    paths = [photos.train.root / photos.train.images[n].as_py() for n in (1, 4)]
    for path in paths:
        path.unlink()
    with pytest.raises(CheckpointError) as error:
        refuse_changed_photos(photos, tmp_path / "run")
    assert str(error.value) == (
        f"{paths[0]} no longer exists, but {tmp_path / 'run'} began with it (2 train photos are missing or changed); "
        "restore it, or start a new run."
    )


def test_a_photo_that_could_not_be_read_may_be_another_file_but_not_none(photos, tmp_path):
    path = photos.train.root / photos.train.images[1].as_py()
    RunFolder(tmp_path / "run", TRAINING).accept_replacement(photos.splits(), f"{path}: truncated; remove it.")
    sizes = np.load(tmp_path / "run" / "tables" / "train-sizes.npy")
    assert (sizes == ANY_SIZE).tolist() == [n == 1 for n in range(24)]
    path.write_bytes(path.read_bytes() + bytes(5))
    refuse_changed_photos(photos, tmp_path / "run")
    path.unlink()
    with pytest.raises(CheckpointError, match="no longer exists"):
        refuse_changed_photos(photos, tmp_path / "run")


def test_an_error_about_something_else_lets_nothing_else_in(photos, tmp_path):
    before = (tmp_path / "run" / "tables" / "train-sizes.npy").read_bytes()
    RunFolder(tmp_path / "run", TRAINING).accept_replacement(photos.splits(), "the labels are wrong.")
    assert (tmp_path / "run" / "tables" / "train-sizes.npy").read_bytes() == before


@pytest.mark.parametrize("change", ["gone", "short", "nonsense"])
def test_damaged_sizes(photos, tmp_path, change):
    path = tmp_path / "run" / "tables" / "train-sizes.npy"
    if change == "gone":
        path.unlink()
    elif change == "short":
        np.save(path, np.zeros(3, np.int64))
    else:
        path.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=r"is damaged \(.*train-sizes\.npy.*\); start a new run\."):
        refuse_changed_photos(photos, tmp_path / "run")


# --- checkpoints


def epochs(out, count):
    out.mkdir(exist_ok=True)
    (out / "metrics.jsonl").write_text("{}\n" * count, "utf-8")


def test_lost_checkpoints_are_refused(tmp_path):
    epochs(tmp_path / "run", 2)
    with pytest.raises(CheckpointError) as error:
        refuse_lost_checkpoints(tmp_path / "run")
    assert str(error.value) == (
        f"{tmp_path / 'run'} has trained 2 epochs (metrics.jsonl), but {tmp_path / 'run' / 'checkpoints' / 'LAST'}, "
        "which names its checkpoint, is missing. Restore the folder, or start a new run."
    )


@pytest.mark.parametrize("count", [0, 1])
def test_beginning_again_is_said(tmp_path, count):
    """The numbers of the first epoch are written just before the first checkpoint."""
    epochs(tmp_path / "run", count)
    said = f"{tmp_path / 'run'} has no complete checkpoint: training STARTS AGAIN with epoch 1"
    assert refuse_lost_checkpoints(tmp_path / "run") == said


def test_with_a_checkpoint_there_is_nothing_to_say(tmp_path):
    epochs(tmp_path / "run", 5)
    folder = tmp_path / "run" / "checkpoints" / "step-000000003"
    folder.mkdir(parents=True)
    (folder / "progress.json").write_text("{}")
    (folder.parent / "LAST").write_text(folder.name)
    assert refuse_lost_checkpoints(tmp_path / "run") is None


# --- the folder


def test_a_folder_that_can_be_made(tmp_path):
    refuse_used_folder(tmp_path / "runs" / "first")
    refuse_used_folder(tmp_path)


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError) as error:
        refuse_used_folder(tmp_path / "notes.txt" / "run")
    assert str(error.value) == (
        f"out {tmp_path / 'notes.txt' / 'run'} cannot be written: {tmp_path / 'notes.txt'} is not a folder; give "
        "another path."
    )


def test_a_folder_without_permission(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(files.os, "access", lambda path, mode: bool(asked.append(path)))
    with pytest.raises(ConfigError) as error:
        refuse_used_folder(tmp_path / "runs" / "first")
    assert str(error.value) == (
        f"out {tmp_path / 'runs' / 'first'} cannot be written: no permission to write in {tmp_path}; give another path."
    )
    assert asked == [tmp_path]


def test_what_a_killed_start_has_left_is_said(tmp_path):
    (tmp_path / "run" / "tables").mkdir(parents=True)
    (tmp_path / "run" / "check.json").touch()
    with pytest.raises(ConfigError) as error:
        refuse_used_folder(tmp_path / "run")
    assert str(error.value) == (
        f"{tmp_path / 'run'} contains check.json, tables of a run that was stopped before it began; delete the folder, "
        "or choose another out."
    )


def test_a_run_that_never_began_leaves_the_folder_as_it_was(begun):
    assert {path.name for path in begun.iterdir()} == {*RECORD_FILES, "run.toml"} - {"state", "teacher.npy"}
    folder = RunFolder(begun, TRAINING)
    (begun / "state").mkdir()
    (begun / "run.toml").rename(begun / "mine.txt")
    folder.remove_record()
    assert [path.name for path in begun.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("existed", [False, True])
def test_a_folder_is_removed_if_the_run_made_it(tmp_path, existed):
    path = tmp_path / "run"
    if existed:
        path.mkdir()

    def train(resume):
        (path / "check.json").touch()
        yield "event"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        [*RunFolder(path, TRAINING).start(train, {}, Alone())]
    assert ([*path.iterdir()] == []) if existed else not path.exists()


# --- both kinds of runs


def test_the_kind_of_a_run_is_that_of_its_settings_file(tmp_path):
    assert run_folder(tmp_path).kind is TRAINING
    (tmp_path / "pretrain.toml").touch()
    assert run_folder(tmp_path).kind is PRETRAINING


@pytest.mark.parametrize(("kind", "noun"), [(TRAINING, "model"), (PRETRAINING, "encoder")])
def test_what_next_names_what_the_folder_allows(tmp_path, kind, noun):
    folder, resume = RunFolder(tmp_path, kind), f"`fewtags resume {tmp_path}`"
    assert folder.what_next() == "nothing was written yet; run the same command again"
    (tmp_path / kind.settings).touch()
    assert folder.what_next() == f"{resume} starts again from the first epoch, because no checkpoint was complete"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "LAST").touch()
    assert folder.what_next() == f"{resume} continues from the last checkpoint"
    (tmp_path / kind.result).touch()
    assert folder.what_next() == f"the {noun} is complete; {resume} writes the missing report"
    (tmp_path / "report.html").touch()
    assert folder.what_next() == "the run is complete"


@pytest.mark.parametrize("kind", [TRAINING, PRETRAINING])
def test_what_is_not_an_interrupted_run(tmp_path, kind):
    folder = RunFolder(tmp_path, kind)
    with pytest.raises(CheckpointError) as error:
        folder.read_record(lambda tree, file: pytest.fail(file), Resolved)
    assert str(error.value) == (
        f"{tmp_path} is not a run folder (it has no {kind.settings}); start a run with: {kind.start}"
    )
    (tmp_path / kind.result).touch()  # as a power cut may leave it
    with pytest.raises(CheckpointError) as error:
        folder.read_record(lambda tree, file: pytest.fail(file), Resolved)
    result = tmp_path / kind.result
    assert str(error.value).startswith(f"{tmp_path} is finished, but its {kind.noun} is damaged: {result} is not a saf")
    assert str(error.value).endswith(
        f" Delete {result} and run `fewtags resume {tmp_path}`, which makes it again from the last checkpoint."
    )
    save_tensors(result, {"a": torch.zeros(1)})
    with pytest.raises(CheckpointError) as error:
        folder.read_record(lambda tree, file: pytest.fail(file), Resolved)
    assert str(error.value) == f"{tmp_path} is finished; its {kind.noun} is {tmp_path / kind.result}."


class Alone:
    """An Accelerator of a single process, as far as a run folder uses it."""

    is_main_process, num_processes = True, 1

    def wait_for_everyone(self):
        pass


def test_temporary_files_of_a_killed_process_are_gone_after_a_resume(tmp_path):
    leftovers = [tmp_path / ".metrics.jsonl.123.part", tmp_path / "gallery" / ".final.npz.123.part"]
    kept = [tmp_path / "metrics.jsonl", tmp_path / "notes.part"]
    (tmp_path / "gallery").mkdir()
    for path in (*leftovers, *kept):
        path.touch()
    seen = []

    def train(resume):
        seen.append((resume, [path.exists() for path in leftovers]))
        yield "event"

    assert [*RunFolder(tmp_path, TRAINING).resume(train, {}, Alone())] == ["event"]
    assert seen == [(True, [False, False])]
    assert all(path.exists() for path in kept)
