"""What a run wrote down when it began, and what has to be the same to go on."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fewtags.config.parse import load_toml
from fewtags.engine import record as recording
from fewtags.engine.plan import Tables, make_plan
from fewtags.engine.record import (
    ANY_SIZE,
    BEFORE_THE_START,
    expect_another,
    forget,
    located,
    looked_at_again,
    photo_sizes,
    read_record,
    refuse_changed_photos,
    refuse_lost_checkpoints,
    refuse_used_folder,
    write_record,
)
from fewtags.errors import CheckpointError, ConfigError
from fewtags.files import refuse_folder


@pytest.fixture(scope="module")
def original(scenes, tmp_path_factory, request):
    """The record of a run on copies of the photos: the folder, and its tables."""
    root = shutil.copytree(scenes.train.root, tmp_path_factory.mktemp("record") / "images")
    make = request.getfixturevalue("make_config")
    plan = make_plan(make(), tables=Tables(scenes.train.with_root(root), scenes.val.with_root(root)), cpu=True)
    write_record(plan, root.parent / "run")
    return root.parent / "run", plan


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
    assert record.config == plan.config
    assert record.resolved == plan.resolved
    assert {n: t.fingerprint for n, t in record.tables.splits().items()} == record.environment["fingerprints"]
    assert record.folder == Path.cwd()


@pytest.mark.parametrize(
    ("file", "old", "new", "change"),
    [
        ("run.toml", "\nseed = 0", "\nseed = 3", "train.seed 0 -> 3"),
        ("run.toml", r"\[objective\][^\[]*", '[objective]\nname = "bce"\n', "objective.name expected_negative -> bce"),
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
        f"{begun / file} was edited since the run began: {change}; restore it, or start a new run."
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
    found = located(config, tmp_path)
    assert found.data.train == str(tmp_path / "tags.csv")
    assert (found.data.images, found.data.val) == ("/photos", str(tmp_path / "val.csv"))
    assert (found.data.test, found.data.truth) == (None, None)
    assert found.model.weights == str(tmp_path / "weights.safetensors")
    assert found.data.model_copy(update={k: getattr(config.data, k) for k in ("train", "val")}) == config.data
    assert located(make_config(), tmp_path) == make_config()
    for word in ("hub", "offline", "none"):
        assert located(make_config(model__weights=word), tmp_path).model.weights == word


def test_tables_in_memory_have_no_files_to_look_at(original):
    assert looked_at_again(read_record(original[0]), original[0]) is None


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
        f"{path} has {before + 1000:,} bytes, and had {before:,} when {tmp_path / 'run'} began; restore it, or start a "
        "new run."
    )


def test_a_photo_that_is_gone_is_named_and_others_are_counted(photos, tmp_path):
    paths = [photos.train.root / photos.train.images[n].as_py() for n in (1, 4)]
    for path in paths:
        path.unlink()
    with pytest.raises(CheckpointError) as error:
        refuse_changed_photos(photos, tmp_path / "run")
    assert str(error.value) == (
        f"{paths[0]} is no longer there, and {tmp_path / 'run'} began with it (2 train photos are gone or changed); "
        "restore it, or start a new run."
    )


def test_a_photo_that_could_not_be_read_may_be_another_file_but_not_none(photos, tmp_path):
    path = photos.train.root / photos.train.images[1].as_py()
    expect_another(photos.splits(), tmp_path / "run", f"{path}: truncated; remove it.")
    sizes = np.load(tmp_path / "run" / "tables" / "train-sizes.npy")
    assert (sizes == ANY_SIZE).tolist() == [n == 1 for n in range(24)]
    path.write_bytes(path.read_bytes() + bytes(5))
    refuse_changed_photos(photos, tmp_path / "run")
    path.unlink()
    with pytest.raises(CheckpointError, match="is no longer there"):
        refuse_changed_photos(photos, tmp_path / "run")


def test_an_error_about_something_else_lets_nothing_else_in(photos, tmp_path):
    before = (tmp_path / "run" / "tables" / "train-sizes.npy").read_bytes()
    expect_another(photos.splits(), tmp_path / "run", "the labels are wrong.")
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
        f"{tmp_path / 'run'} has trained 2 epochs (metrics.jsonl), but {tmp_path / 'run' / 'checkpoints' / 'LAST'} is "
        "gone, and with it the way to its checkpoints. Restore the folder, or start a new run."
    )


@pytest.mark.parametrize("count", [0, 1])
def test_beginning_again_is_said(tmp_path, count):
    """The numbers of the first epoch are written just before the first checkpoint."""
    epochs(tmp_path / "run", count)
    said = f"{tmp_path / 'run'} has no complete checkpoint: training BEGINS AGAIN with epoch 1"
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
        f"{tmp_path / 'notes.txt' / 'run'} cannot be made, since {tmp_path / 'notes.txt'} is a file; choose another "
        "--out."
    )


def test_a_folder_without_permission(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(recording.os, "access", lambda path, mode: bool(asked.append(path)))
    with pytest.raises(ConfigError) as error:
        refuse_used_folder(tmp_path / "runs" / "first")
    assert str(error.value) == (
        f"{tmp_path / 'runs' / 'first'} cannot be written: no permission for {tmp_path}; choose another --out."
    )
    assert asked == [tmp_path]


def test_a_file_that_can_be_replaced(tmp_path):
    (tmp_path / "report.html").touch()
    refuse_folder(tmp_path / "report.html")


def test_what_a_killed_start_has_left_is_said(tmp_path):
    (tmp_path / "run" / "tables").mkdir(parents=True)
    (tmp_path / "run" / "check.json").touch()
    with pytest.raises(ConfigError) as error:
        refuse_used_folder(tmp_path / "run")
    assert str(error.value) == (
        f"{tmp_path / 'run'} holds check.json, tables of a run that was stopped before it began; delete the folder, or "
        "choose another --out."
    )


def test_everything_that_a_record_holds_can_be_forgotten(begun):
    """And nothing else."""
    assert {path.name for path in begun.iterdir()} == {*BEFORE_THE_START, "run.toml"} - {"state"}
    (begun / "state").mkdir()
    (begun / "run.toml").rename(begun / "mine.txt")
    forget(begun, made=True)
    assert [path.name for path in begun.iterdir()] == ["mine.txt"]
    (begun / "mine.txt").unlink()
    forget(begun, made=False)
    assert begun.exists()
    forget(begun, made=True)
    assert not begun.exists()
