"""What a run may know about the machine."""

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fewtags.engine import machine
from fewtags.engine.machine import cpu_quota, free_disk, keep_freed_memory, limit_threads, memory_limit, share_of_images


@pytest.mark.parametrize(
    ("device", "world", "here", "share"),
    [
        ("cpu", None, None, 1.0),
        ("cuda", None, None, 1.0),
        ("cpu", "4", None, 1.0),  # nobody says how many machines there are: all processes may be on this one
        ("cpu", "4", "4", 1.0),
        ("cpu", "8", "2", 0.25),
        ("cuda", "8", "2", 0.125),
    ],
)
def test_how_much_of_the_rows_lies_in_one_memory(monkeypatch, device, world, here, share):
    for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", here)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert share_of_images(torch.device(device)) == share


def test_free_space_is_that_of_the_folder_that_will_hold_it(monkeypatch, tmp_path):
    """The folder itself does not exist yet; a relative path is one of the working directory."""
    asked = []

    def usage(path):
        asked.append(path)
        return SimpleNamespace(free=1)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert free_disk(tmp_path / "runs" / "a" / "b") == 1
    assert free_disk(Path("runs/x")) == 1
    assert asked == [tmp_path / "runs", tmp_path / "runs"]


# Freed memory

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Of malloc.h."""
VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES",
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """A process that has not asked yet, on glibc, whose allocator takes every setting but only writes them down."""
    made = []

    def mallopt(parameter, value):
        made.append((parameter, value))
        return int((parameter, value) not in refused)

    refused = set()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    keep_freed_memory.cache_clear()
    yield SimpleNamespace(made=made, refused=refused)
    keep_freed_memory.cache_clear()


def test_freed_memory_is_kept_once(calls):
    assert keep_freed_memory() is keep_freed_memory() is True
    assert calls.made == [(MMAP_THRESHOLD, 2**29), (TRIM_THRESHOLD, -1)]


def test_older_versions_of_glibc_get_no_mappings_at_all(calls):
    calls.refused.add((MMAP_THRESHOLD, 2**29))
    assert keep_freed_memory()
    assert calls.made == [(MMAP_THRESHOLD, 2**29), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1)]


def test_an_allocator_that_refuses_is_told(calls):
    calls.refused.add((TRIM_THRESHOLD, -1))
    assert not keep_freed_memory()


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_MAX_", "65536", False),
        ("MALLOC_TOP_PAD_", "0", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4:glibc.malloc.mmap_max=10", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4", True),
    ],
)
def test_settings_of_the_user_stay(calls, monkeypatch, name, value, kept):
    monkeypatch.setenv(name, value)
    assert keep_freed_memory() is kept
    assert bool(calls.made) is kept


@pytest.mark.parametrize(("system", "library"), [("darwin", "glibc"), ("linux", "musl"), ("linux", "")])
def test_other_allocators_are_left_alone(calls, monkeypatch, system, library):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, ""))
    assert not keep_freed_memory()
    assert calls.made == []


CHILD = """
import resource
import numpy as np
from fewtags.engine.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(50_000_000, 1, np.float32)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before, kept = faults(), keep_freed_memory()
faults()
print(kept, before, faults())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="other C libraries have other allocators"
)
def test_the_next_large_block_finds_its_pages_again(monkeypatch):
    """An array of 200 MB has 48,828 pages of 4 KiB, or fewer large ones; the second time none of them is new."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    kept, before, after = done.stdout.split()
    assert kept == "True"
    assert 10 * int(after) < int(before)


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, "0::/a/b\n", 2.0),
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 1.0),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/\n", 0.5),
        ({"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, "2:cpu,cpuacct:/x\n", None),
        ({"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"}, "2:cpu,cpuacct:/x\n", 3.0),
        ({"cpu.max": "nonsense"}, "0::/\n", None),
    ],
)
def test_the_cpu_quota_of_a_container(tmp_path, files, own, expected):
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == expected
    assert cpu_quota(tmp_path / "groups", tmp_path / "none") in (expected, None)


def test_the_memory_limit_of_a_container(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/\n4:memory:/x\n")
    assert memory_limit(tmp_path, own) is None
    (tmp_path / "memory.max").write_text("max")
    (tmp_path / "memory.current").write_text("10")
    assert memory_limit(tmp_path, own) is None
    (tmp_path / "memory.max").write_text("1000")
    assert memory_limit(tmp_path, own) == 990
    (tmp_path / "memory/x").mkdir(parents=True)
    (tmp_path / "memory/x/memory.limit_in_bytes").write_text("500")
    (tmp_path / "memory/x/memory.usage_in_bytes").write_text("600")
    assert memory_limit(tmp_path, own) == 0


def test_cores_and_threads_fit_the_quota(monkeypatch):
    monkeypatch.setattr(machine, "machine_cores", lambda: 64)
    monkeypatch.setattr(machine, "cpu_quota", lambda: None)
    assert machine.cores() == 64
    for quota, expected in ((0.5, 1), (1.5, 2), (2.0, 2), (100.0, 64)):
        monkeypatch.setattr(machine, "cpu_quota", lambda quota=quota: quota)
        assert machine.cores() == expected
    monkeypatch.setattr(machine, "cpu_quota", lambda: 2.0)
    counts = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    limit_threads()
    assert counts == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads()
    assert counts == [2]


def test_more_workers_than_cores_are_a_note(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1)
    assert machine.worker_notes(0) == machine.worker_notes(1) == []
    assert machine.worker_notes(3) == [
        "note: 3 worker processes for 1 core; as many as cores are as fast (train.workers)"
    ]
