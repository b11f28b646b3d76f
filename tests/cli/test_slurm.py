"""`--slurm` submits a command, whose job goes on with its run; `--continue` does the same without SLURM."""

import multiprocessing
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import forks
import pytest
import torch
from accelerate.state import AcceleratorState
from typer.testing import Result

pytest.importorskip("submitit")
from submitit.core.submission import process_job

from fewtags.cli import follow
from fewtags.cli.slurm import join_processes
from fewtags.engine.events import StepEnded

Run = Callable[..., Result]
Command = tuple[str, ...]
SHORT = ("--set", "train.epochs=2", "--set", "train.checkpoint_every_steps=1")
JOB = ("--slurm", "--tasks", "2", "--time", "8:00:00")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in place of those of SLURM: `submitted` is the script, `calls` the calls of scontrol."""
    bin = tmp_path / "bin"
    bin.mkdir()
    programs = {
        "srun": "exit 1",
        "sbatch": f"cp $1 {tmp_path}/submitted; echo Submitted batch job {os.getpid()}",
        "scontrol": f"echo $@ >> {tmp_path}/calls",
    }
    for name, body in programs.items():
        (bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    return tmp_path


def start(logs: Path, end: tuple[int, signal.Signals] | None = None) -> list[int | None]:
    """Start a submitted job as SLURM does, with two tasks; the first gets a signal after a step. Their exit codes."""
    context = multiprocessing.get_context("fork")
    tasks = [context.Process(target=_task, args=(rank, logs, end)) for rank in range(2)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        for task in tasks:
            task.start()
    for task in tasks:
        task.join(200)
        task.kill()
    return [task.exitcode for task in tasks]


def _task(rank: int, logs: Path, end: tuple[int, signal.Signals] | None) -> None:
    with (logs / f"{rank}.log").open("a", buffering=1) as sys.stderr:
        os.dup2(sys.stderr.fileno(), 2)
        os.dup2(2, 1)
        torch.set_num_threads(1)
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ |= {
            **{"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": str(os.getppid()), "SLURM_JOB_NODELIST": "localhost"},
            **{"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        }
        real = follow.watch

        def watch(*given: object, **options: object) -> Iterator[object]:
            for event in real(*given, **options):
                yield event
                if rank == 0 and end and isinstance(event, StepEnded) and event.global_step == end[0]:
                    os.kill(os.getpid(), end[1])

        follow.watch = watch
        try:
            process_job(logs)
        except Exception:
            os._exit(1)
        os._exit(0)


def result_of(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("model.safetensors", "evaluation/val.npy")}


def test_a_job_that_is_preempted_and_loses_its_machine_ends_with_the_same_bits(
    run: Run, train_command: Command, slurm: Path
) -> None:
    """Preempted in the first epoch; in the second, its machine is lost, and the user repeats the command."""
    whole, out, logs = slurm / "whole", slurm / "run", slurm / "run.slurm"
    assert run(*train_command, *SHORT, "--out", whole, *JOB).exit_code == 0
    assert start(slurm / "whole.slurm") == [0, 0], (slurm / "whole.slurm" / "0.log").read_text()[-2000:]
    command = (*train_command, *SHORT, "--out", out)
    first = run(*command, *JOB)
    assert (first.exit_code, first.stdout) == (0, f"job: {os.getpid()}\n")
    submitted, *rest = first.stderr.splitlines()
    words = shlex.split(submitted.removeprefix("submitted: "))
    assert sorted(words) == sorted(["fewtags", *map(str, command), "--continue"])
    assert rest == [
        "on 1 machine with 2 processes each; the same command continues the run",
        f"follow it: tail -F {logs}/{os.getpid()}_0_log.out",
        f"stop it: scancel {os.getpid()}",
    ]
    assert start(logs, (2, signal.SIGUSR2))[0] not in (0, None)
    assert (slurm / "calls").read_text() == f"requeue {os.getpid()}\n"
    assert start(logs, (4, signal.SIGKILL))[0] == -signal.SIGKILL
    assert not (out / "model.safetensors").exists()
    assert run(*command, *JOB).exit_code == 0
    assert start(logs) == [0, 0]
    log = (logs / "0.log").read_text()
    assert log.count("resuming at epoch") == 2, log[-3000:]
    assert "batch 16 (2 processes x 8)" in log
    assert result_of(out) == result_of(whole)
    again = run(*command, *JOB)
    assert (again.exit_code, again.stderr) == (0, f"{out} is finished; there is nothing to do.\n")
    other = run(*command, "--lr", 0.5, *JOB)
    assert other.exit_code == 1
    assert other.stderr == (
        f"error: {out} has a run with other settings (train.lr (not set) -> 0.5). Give the settings that it began "
        "with, or another --out.\n"
    )


def test_what_slurm_says(run: Run, train_command: Command, slurm: Path) -> None:
    (slurm / "bin" / "sbatch").write_text("#!/bin/sh\necho sbatch: error: Invalid account >&2; exit 1\n")
    result = run(*train_command, "--out", slurm / "run", *JOB)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "error: SLURM refuses the job: sbatch: error: Invalid account"


def test_processes_that_read_photos_do_not_put_the_job_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are forked, and inherit what the job does at a signal."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    calls: list[int] = []

    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        sys.exit(len(calls))

    before = signal.signal(signal.SIGUSR2, lambda *_: calls.append(os.getpid()))
    try:
        join_processes()
        assert forks.forked(signalled).code == 0
        os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert calls == [os.getpid()]


def test_continue_without_slurm(
    run: Run, train_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that never began is cleared away; one that was interrupted goes on; a finished one stays."""
    out, real = tmp_path / "run", follow.watch
    (out / "tables").mkdir(parents=True)
    command = (*train_command, *SHORT, "--out", out, "--continue")

    def interrupted(*given: object, **options: object) -> Iterator[object]:
        for event in real(*given, **options):
            yield event
            if isinstance(event, StepEnded) and event.global_step == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(follow, "watch", interrupted)
    assert run(*command).exit_code == 130
    monkeypatch.setattr(follow, "watch", real)
    last = run(*command)
    assert last.exit_code == 0, last.stderr
    assert "resuming at epoch 1/2" in last.stderr
    assert run(*command).stderr == f"{out} is finished; there is nothing to do.\n"
    refused = run(*command[:-1])
    assert (refused.exit_code, refused.stderr) == (1, f"error: {out} is not empty; choose another --out.\n")


@pytest.mark.parametrize("kind", ["train", "pretrain"])
def test_dry_run_prints_the_job(run: Run, dataset: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "run"
    command = (kind, dataset / "images", "--out", out, "--seed", 1)
    more = ("--partition", "gpu", "--account", "me", "--nodes", 2, "--gpus", 4, "--cpus", 8, "--time", "1-2:30")
    result = run(*command, "--slurm", *more, "--sbatch", "qos=long", "--sbatch", "exclusive", "--dry-run")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    flags = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert {
        *("partition=gpu", "account=me", "nodes=2", "gpus-per-node=4", "ntasks-per-node=4", "cpus-per-task=8"),
        *("time=1590", "qos=long", "exclusive", "requeue", "dependency=singleton", "signal=USR2@90"),
        *(f"job-name=fewtags:{out}", f"output={out}.slurm/%j_0_log.out"),
    } <= {flag.replace("'", "") for flag in flags}
    assert f"fewtags {kind} {dataset / 'images'} --out {out} --seed 1 --continue" in lines[-1]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--partition", "gpu"), "--partition is for --slurm; give --slurm as well."),
        (("--gpus", "0"), "--gpus is for --slurm; give --slurm as well."),
        (
            ("--slurm", "--time", "soon"),
            "--time soon: expected minutes, H:MM:SS, D-H, D-H:MM or D-H:MM:SS, for example 8:00:00.",
        ),
        (("--slurm", "--sbatch", "=long"), "--sbatch =long: expected KEY=VALUE, for example qos=long."),
        (
            ("--slurm",),
            "--slurm needs srun and sbatch, which are not on this machine; run the command on a login node of the "
            "cluster, or print the job with --dry-run.",
        ),
    ],
)
def test_what_cannot_be_submitted(
    run: Run, train_command: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    result = run(*train_command, "--out", tmp_path / "run", *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {message}\n")
    assert [*tmp_path.iterdir()] == []
