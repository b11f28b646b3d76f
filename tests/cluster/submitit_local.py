"""A job of two processes under submitit's local executor.

`make cluster` runs this file; pytest does not collect it by itself, because it starts six interpreters.
"""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("submitit")

from fewtags.cli.slurm import Job, SlurmOptions, submit
from fewtags.demo_set import make_scenes

OPTIONS = SlurmOptions(slurm=True, tasks=2, time="60")


def command(folder: Path, out: Path) -> Job:
    sets = {
        **{"model.backbone": "test_resnet", "augment.size": 64, "train.cached_views": 1, "train.workers": 0},
        **{"train.epochs": 30, "train.checkpoint_every_steps": 1},
    }
    settings = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    data = (folder / "train_single.csv", "--images", folder / "images", "--val", folder / "val.csv", "--out", out)
    words = ("train", *data, "--weights", "none", "--preset", "views", "--cpu", *settings, "--continue")
    return Job(tuple(map(str, words)), str(folder))


def test_killed_once_and_submitted_again_it_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    scenes = tmp_path / "scenes"
    make_scenes(scenes, train=24, val=11, test=5, size=64, seed=0)
    whole, out = tmp_path / "whole", tmp_path / "run"
    submit(command(scenes, whole), OPTIONS, whole, cpu=True, dry_run=False, cluster="local").results()
    job = command(scenes, out)
    submitted = submit(job, OPTIONS, out, cpu=True, dry_run=False, cluster="local")
    until = time.monotonic() + 900
    while not (out / "checkpoints" / "LAST").exists() and time.monotonic() < until:
        time.sleep(0.02)
    tasks = psutil.Process(int(submitted.job_id)).children()
    assert len(tasks) == 2
    os.kill(tasks[0].pid, signal.SIGKILL)
    submitted.wait()
    assert not (out / "model.safetensors").exists()
    last = submit(job, OPTIONS, out, cpu=True, dry_run=False, cluster="local")
    last.results()
    assert "resuming at epoch" in last.stdout()
    for name in ("model.safetensors", "evaluation/val.npy"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
