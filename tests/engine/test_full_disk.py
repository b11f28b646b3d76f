"""What a user reads when a file of a run cannot be written."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.engine import tensor_files
from fewtags.engine.checkpoint import write_array
from fewtags.engine.runfolder import TRAINING, RunFolder
from fewtags.engine.tensor_files import publish_tensors, save_checked, save_part, save_pickled, save_tensors
from fewtags.errors import DiskError, TrainingError
from fewtags.files import write_text
from fewtags.stores.state import lazy_zeros

STATE = {"weight": torch.zeros(1000, 100)}
WRITERS = {
    "a.safetensors": lambda path: save_tensors(path, STATE),
    "best.safetensors": lambda path: save_checked(path, STATE),
    "model.safetensors": lambda path: publish_tensors(path, STATE, {}),
    "optimizer.pt": lambda path: save_pickled(path, {"optimizer": {"state": [STATE]}}),
    "store.pt": lambda path: save_part(path.parent, "store", STATE),
    "logits.npy": lambda path: write_array(path, np.zeros((1000, 100), np.float32)),
}


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A folder on whose disk no file can be larger than 4 kB."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    old_limit, old_handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old_limit[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
    signal.signal(signal.SIGXFSZ, old_handler)


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_names_its_file(full, name):
    """The limit of file sizes is the disk's full in a test: the same system call fails, with EFBIG."""
    with pytest.raises(DiskError) as error:
        WRITERS[name](full / name)
    assert str(error.value) == f"cannot write {full / name}: {os.strerror(errno.EFBIG)}; check the disk."
    assert [path.name for path in full.iterdir()] in ([], [name])  # parts are in the folder of an unfinished checkpoint


def test_a_large_part_names_its_file(full, monkeypatch):
    monkeypatch.setattr(tensor_files, "STREAM_BYTES", 100)
    with pytest.raises(DiskError, match=rf"cannot write {full / 'store.weight.npy'}: "):
        save_part(full, "store", STATE)


def test_the_room_of_a_memory_map_is_reserved(full):
    """Later, a full disk would kill the process."""
    with pytest.raises(DiskError, match=rf"cannot write {full / 'heatmaps.bin'}: "):
        lazy_zeros((1000, 100), torch.uint8, path=full / "heatmaps.bin")
    assert not (full / "heatmaps.bin").exists()


def failing(monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)


def test_a_full_disk_says_how_much_is_needed_and_free(tmp_path, monkeypatch):
    failing(monkeypatch, errno.ENOSPC)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=12_345))
    with pytest.raises(DiskError) as error:
        save_tensors(tmp_path / "a.safetensors", STATE)
    assert str(error.value) == (
        f"cannot write {tmp_path / 'a.safetensors'}: {os.strerror(errno.ENOSPC)}; it needs 0.4 MB, 12,345 bytes are "
        "free; make room."
    )


def test_a_read_only_disk(tmp_path, monkeypatch):
    failing(monkeypatch, errno.EROFS)
    with pytest.raises(DiskError, match=r"Read-only file system; make the disk writable again\.$"):
        write_text(tmp_path / "a.json", "{}")


class Alone:
    is_main_process, num_processes = True, 1

    def wait_for_everyone(self):
        pass


def run(folder, action):
    def train(resume):
        yield "event"
        action()

    return RunFolder(folder, TRAINING).resume(train, {}, Alone())


def test_a_run_says_how_it_goes_on(tmp_path, monkeypatch):
    (tmp_path / "run.toml").touch()
    steps = run(tmp_path, lambda: write_text(tmp_path / "metrics.jsonl", ""))
    assert next(steps) == "event"
    failing(monkeypatch, errno.ENOSPC)
    with pytest.raises(
        DiskError, match=rf"make room\. Then run `fewtags resume {tmp_path}`, which continues the run\.$"
    ):
        next(steps)


@pytest.mark.parametrize(
    "action", [lambda run: write_text(run / "metrics.jsonl", ""), lambda run: (run / "gallery").mkdir()]
)
def test_a_folder_that_was_removed(tmp_path, action):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.toml").touch()
    steps = run(folder, lambda: action(folder))
    next(steps)
    shutil.rmtree(folder)
    with pytest.raises(
        DiskError, match=f"{folder} was removed while the run used it; restore it, or start the run again"
    ):
        next(steps)
    assert not folder.exists()


def test_errors_of_other_files_stay(tmp_path):
    with pytest.raises(FileNotFoundError):
        [*run(tmp_path, lambda: Path("/no/such/file").read_text())]


def test_a_process_that_ended_is_named(tmp_path):
    """gloo raises a RuntimeError about a connection in the processes that are left."""
    (tmp_path / "run.toml").touch()

    def lose():
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    with pytest.raises(TrainingError, match=r"another process of this run has ended .* Then run `fewtags resume "):
        [*run(tmp_path, lose)]


def test_other_runtime_errors_stay(tmp_path):
    def fail():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        [*run(tmp_path, fail)]
