"""Runs whose training views are read from shrunken copies: the same bits, resuming, what a plan says and refuses."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from train_runs import FINETUNE, take, train

from fewtags.engine import photo_cache
from fewtags.engine.continuing import can_continue
from fewtags.engine.events import Noted
from fewtags.engine.methods import read_pretrain_settings
from fewtags.engine.photo_cache import cache_note
from fewtags.engine.planning import make_plan
from fewtags.engine.pretrain_plan import make_pretrain_plan
from fewtags.engine.pretrain_run import PretrainRun, open_pretrain_run
from fewtags.engine.runfolder import TRAINING, RunFolder
from fewtags.engine.train_run import open_run
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.photos.cache import PhotoCache
from fewtags.text import command_line

OPEN = {"train__stages": None, "train__cached_views": None, "train__batch_size": None}
"""Left to the preset."""


def copies(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def problems(events):
    """Warnings about a cache that cannot be written."""
    return [event.text for event in events if isinstance(event, Noted) and "photo cache" in event.text]


def model(out):
    return (out / "model.safetensors").read_bytes()


def test_a_run_has_the_same_bits_with_a_cold_and_a_warm_cache_and_after_an_interruption(
    tables, make_config, tmp_path, monkeypatch
):
    """The folder is relative to where the run was started; the 24 photos of 64 px have copies as large as they are."""
    monkeypatch.chdir(tmp_path)
    config = make_config(**FINETUNE, data__photo_cache="cache")
    assert problems(train(config, tables, tmp_path / "cold")) == []
    assert len(copies("cache/96px")) == 24
    train(config, tables, tmp_path / "left", stop=5)
    assert can_continue(RunFolder(tmp_path / "left", TRAINING), config)
    with pytest.raises(ConfigError, match=r"other settings \(data\.photo_cache cache -> \(not set\)\)"):
        can_continue(RunFolder(tmp_path / "left", TRAINING), make_config(**FINETUNE))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("")  # no folder: nothing can be written
    (problem,) = problems(take(open_run(tmp_path / "left", cpu=True).resume()))
    assert problem.startswith(f"the photo cache is not complete: cannot write {tmp_path / 'cache' / '96px'}/")
    assert problem.endswith(". Photos without a copy are shrunken again in each epoch, with the same result")
    assert model(tmp_path / "cold") == model(tmp_path / "left")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_pretraining(scenes, tmp_path):
    """An interrupted run, and what its plan says."""
    tree = {
        "data": {"train": str(scenes.folder / "images"), "photo_cache": str(tmp_path / "cache"), "decode": False},
        "model": {"backbone": "test_resnet"},
        "augment": {"size": 32},
        "objective": {"name": "simsiam", "projection_dim": 8},
        "train": {"epochs": 1, "batch_size": 10, "workers": 0, "checkpoint_every_steps": 1},
    }
    plan = make_pretrain_plan(read_pretrain_settings(tree, "test"), cpu=True)
    assert plan.notes[0].startswith(f"photo cache: {tmp_path / 'cache'} gets a copy of each training photo with a ")
    for _ in zip(range(4), PretrainRun(plan, tmp_path / "run", cpu=True).start(), strict=False):
        pass
    found = len(copies(tmp_path / "cache"))
    take(open_pretrain_run(tmp_path / "run", cpu=True).resume())
    assert len(copies(tmp_path / "cache")) == len(plan.photos) > found
    tree["data"]["photo_cache"] = "s3://bucket/cache"
    config = read_pretrain_settings(tree, "test")
    with pytest.raises(ConfigError, match="is a URL"):
        make_pretrain_plan(config, cpu=True)


# Notes


def cache_lines(plan):
    return [note for note in plan.notes if "photo cache" in note]


def test_a_plan_says_what_the_cache_will_take(tables, make_config, tmp_path):
    """24 photos of 64 x 64 pixels: 3 x 64 x 64 + 40 = 12,328 bytes each."""
    config = make_config(data__photo_cache=str(tmp_path / "cache"))
    start = f"photo cache: {tmp_path / 'cache'} gets a copy of each training photo with a shorter side of at most 96 px"
    assert cache_lines(make_plan(config, tables=tables, cpu=True)) == [f"{start}: about 12 kB each, 0.3 MB in all"]
    assert not (tmp_path / "cache").exists()
    cache = PhotoCache.for_crops(tmp_path / "cache", 64)
    for key in tables.train.images.to_pylist()[:12]:
        cache.read_through(tables.train.root / key, lambda _: View.identity(), 8)
    (line,) = cache_lines(make_plan(config, tables=tables, cpu=True))
    assert line.endswith("0.3 MB in all, of which about 50% are there")
    assert cache_lines(make_plan(make_config(), tables=tables, cpu=True)) == []


def test_a_disk_without_room_is_said(tables, tmp_path, monkeypatch):
    """24 copies of 12,328 bytes: ten of them fit beside the gigabyte that is kept free."""
    monkeypatch.setattr(photo_cache, "free_disk", lambda _: 10**9 + 130_000)
    note = cache_note(PhotoCache.for_crops(tmp_path / "cache", 64), tables.train)
    assert note.startswith("warning: photo cache: ")
    assert note.endswith(
        "0.3 MB in all. Only 1.0 GB are free, and 1 GB are kept free, so there is room for 10 copies more; the other "
        "photos are shrunken again in each epoch"
    )


def test_photos_that_vanished_since_the_check_are_left_to_training(tables, tmp_path):
    gone = replace(tables.train, root=tmp_path / "gone")
    assert cache_note(PhotoCache.for_crops(tmp_path / "cache", 64), gone).endswith("at most 96 px")


def test_a_search_does_not_know_the_size_yet(tables, make_config, tmp_path):
    config = make_config(
        {"name": "assume_negative"},
        **OPEN,
        train__preset="finetune",
        augment__size=None,
        data__photo_cache=str(tmp_path / "cache"),
        search__sizes=[32, 64],
    )
    (line,) = cache_lines(make_plan(config, tables=tables, cpu=True))
    assert line == f"photo cache: {tmp_path / 'cache'} gets a copy of each training photo"


def test_a_solved_head_does_not_use_it(tables, make_config, tmp_path):
    config = make_config(
        {"name": "assume_negative"}, **OPEN, train__preset="cpu", data__photo_cache=str(tmp_path / "cache")
    )
    (line,) = cache_lines(make_plan(config, tables=tables, cpu=True))
    assert line.startswith(f"note: the photo cache {tmp_path / 'cache'} is not used")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("s3://bucket/cache", 'data.photo_cache = "s3://bucket/cache" is a URL; give a folder on a disk of this'),
        ("{file}/cache", "data.photo_cache {file}/cache cannot be written: {file} is not a folder; give another path."),
    ],
)
def test_what_is_not_a_folder_is_refused_before_anything_is_read(make_config, tmp_path, folder, message):
    (tmp_path / "file").write_text("")
    folder, message = (text.format(file=tmp_path / "file") for text in (folder, message))
    with command_line(), pytest.raises(ConfigError) as caught:
        make_plan(make_config(data__photo_cache=folder), cpu=True)
    assert str(caught.value).startswith(message)
