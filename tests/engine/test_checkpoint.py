"""Checkpoints survive a kill at any moment."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from fewtags.engine.checkpoint import CheckpointFolder
from fewtags.errors import CheckpointError
from fewtags.files import write_text


def write(folder, step, content):
    """A checkpoint of two files that say the same, so that half of one is told from a whole one."""
    temporary = folder.begin(step)
    for name in ("a.txt", "b.txt"):
        (temporary / name).write_text(content)
    return folder.finish(step, {"content": content})


def read(path):
    texts = {(path / name).read_text() for name in ("a.txt", "b.txt")} | {CheckpointFolder.progress(path)["content"]}
    assert len(texts) == 1, texts
    return texts.pop()


def test_a_checkpoint_comes_back(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.last() is None
    path = write(folder, 7, "seven")
    assert path == folder.last() == tmp_path / "checkpoints" / "step-000000007"
    digest = hashlib.sha256(b"seven").hexdigest()
    progress = {"format": 1, "sha256": {"a.txt": digest, "b.txt": digest}, "content": "seven"}
    assert CheckpointFolder.progress(path) == progress


@pytest.mark.parametrize("name", ["a.txt", "b.txt", "progress.json"])
def test_a_flipped_bit_is_found(tmp_path, name):
    """Nothing but a checksum notices a bit that still makes a number or a text."""
    folder = CheckpointFolder(tmp_path)
    path = write(folder, 7, "seven")
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        folder.verify(folder.last(), CheckpointFolder.progress(path), lambda file: False)
    assert str(error.value) == (
        f"{path / name} is damaged: its content has changed since it was written; restore it, or start a new run."
    )


def test_files_of_other_processes_are_not_read(tmp_path):
    folder = CheckpointFolder(tmp_path)
    path = write(folder, 7, "seven")
    (path / "a.txt").write_text("other")
    folder.verify(path, CheckpointFolder.progress(path), lambda file: file == "a.txt")
    (path / "a.txt").unlink()
    with pytest.raises(CheckpointError, match=r"a\.txt cannot be read"):
        folder.verify(path, CheckpointFolder.progress(path), lambda file: False)


def test_a_checkpoint_of_an_older_version_has_no_checksums(tmp_path):
    folder = CheckpointFolder(tmp_path)
    path = write(folder, 7, "seven")
    (path / "progress.json").write_text(json.dumps({"format": 1, "content": "seven"}))
    (tmp_path / "LAST").write_text(path.name)
    folder.verify(folder.last(), CheckpointFolder.progress(path), lambda file: False)


def test_the_newest_is_kept(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for step in (3, 9, 12):
        write(folder, step, str(step))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["LAST", f"step-{step:09d}"]
    assert read(folder.last()) == "12"


class Killed(BaseException):
    """The process ends here."""


def die_at(monkeypatch, number):
    """Let the process die in the middle of call `number` of those that change the disk; returns the calls so far."""
    calls = []

    def watch(owner, name, half):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            calls.append(name)
            if len(calls) == number:
                half(*args)
                raise Killed
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    def half_removed(path, *_):
        sorted(Path(path).iterdir())[0].unlink()

    def half_written(path, *_):
        Path(path).write_bytes(b"{")

    for name in ("rename", "replace", "mkdir"):
        watch(Path, name, lambda *args: None)
    watch(shutil, "rmtree", half_removed)
    watch(Path, "write_text", half_written)
    watch(os, "fsync", lambda *args: None)
    return calls


@pytest.mark.parametrize("again", [False, True], ids=["next step", "same step again"])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, again):
    """Killed at each change of the disk while the second checkpoint is written: the first or the second is there.

    `again`: the second one had been renamed already when an earlier kill came, and its step comes once more.
    """
    outcomes, number = [], 0
    while True:
        number += 1
        folder = CheckpointFolder(tmp_path / str(number))
        first = write(folder, 5, "first")
        if again:
            first.rename(tmp_path / "aside")
            write(folder, 8, "second")
            (tmp_path / "aside").rename(first)
            write_text(folder.root / "LAST", first.name)
        with pytest.MonkeyPatch.context() as patch:
            calls = die_at(patch, number)
            try:
                write(folder, 8, "second")
            except Killed:
                pass
            else:
                break
        outcomes.append(read(folder.last()))
        write(folder, 8, "second")  # and the run that goes on comes by here again
        assert read(folder.last()) == "second"
        assert sorted(p.name for p in folder.root.iterdir() if "step" in p.name) == ["step-000000008"]
    assert number > len(calls) >= 8
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {"first", "second"}


def test_last_names_what_is_not_there(tmp_path):
    folder = CheckpointFolder(tmp_path)
    shutil.rmtree(write(folder, 7, "seven"))
    with pytest.raises(CheckpointError) as error:
        folder.last()
    assert str(error.value) == (
        f"{tmp_path / 'LAST'} names 'step-000000007', which is missing or incomplete; restore it, or start a new run."
    )


def test_last_is_empty(tmp_path):
    folder = CheckpointFolder(tmp_path)
    write(folder, 7, "seven")
    (tmp_path / "LAST").write_text("")
    with pytest.raises(CheckpointError, match="LAST names '', which is missing"):
        folder.last()


@pytest.mark.parametrize("content", ["[]", '{"format": 2}', "{}"])
def test_another_format(tmp_path, content):
    (tmp_path / "progress.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"has checkpoint format (2|None), this version reads 1; resume it with "):
        CheckpointFolder.progress(tmp_path)


def test_text_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_text(path, "old")
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_progress_keeps_every_digit(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.begin(1)
    numbers = [0.1 + 0.2, 1e-310, float("inf"), float("nan"), -0.0, 1 / 3]
    path = folder.finish(1, {"numbers": numbers})
    back = CheckpointFolder.progress(path)["numbers"]
    assert json.dumps(back) == json.dumps(numbers)
