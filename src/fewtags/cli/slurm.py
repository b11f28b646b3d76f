"""Training as a SLURM job: with `--slurm`, `fewtags train` and `pretrain` submit their command instead of running it.

submitit writes the batch script, and starts a process of fewtags for each GPU. The processes form one group with the
environment variables that `torchrun` sets. The job runs the command with `--continue`, so that it goes on with the run
after it was put back into the queue: before its time limit or a preemption (SIGUSR2), or because a machine failed.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, final

import typer

from fewtags.cli.progress import echo, say
from fewtags.errors import ConfigError, TrainingError
from fewtags.text import counted

PANEL = "SLURM"
DEFAULT_MINUTES, DEFAULT_REQUEUES = 24 * 60, 10
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def _option(*names: str, help: str, **rest: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL, **rest)


@final
@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The options of a job."""

    slurm: Annotated[
        bool,
        _option(
            "--slurm", help="Submit this command as a SLURM job; with --dry-run, print the job. Implies --continue."
        ),
    ] = False
    partition: Annotated[str | None, _option(help="Partition; default: that of the cluster.")] = None
    account: Annotated[str | None, _option(help="Account that pays; default: yours.")] = None
    nodes: Annotated[int | None, _option(min=1, help="Machines; default: 1.")] = None
    gpus: Annotated[
        int | None, _option(min=0, help="GPUs of each machine, with a process for each; default: 1, or 0 with --cpu.")
    ] = None
    tasks: Annotated[
        int | None, _option(min=1, help="Processes of each machine; default: one for each GPU, or 1 without GPUs.")
    ] = None
    cpus: Annotated[int | None, _option(min=1, help="CPUs of each process; default: that of the cluster.")] = None
    time: Annotated[
        str | None,
        _option(help="Time limit as sbatch takes it: minutes, H:MM:SS, D-H or D-H:MM:SS; default: 1-0 (a day)."),
    ] = None
    requeues: Annotated[
        int | None,
        _option(
            min=0,
            help="How often the job may reach its time limit and go on; 0: never put it back into the queue; default: "
            "10. Preemptions are not counted.",
        ),
    ] = None
    sbatch: Annotated[
        list[str] | None,
        _option(metavar="KEY=VALUE", help="Any other option of sbatch, e.g. qos=long or mem=64G. May be repeated."),
    ] = None

    def check(self) -> None:
        """Raise ConfigError if there are options of a job, but no job; or values that sbatch would refuse."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = [f"--{name}" for name, value in values.items() if value is not False and value not in (None, [])]
        if given and not self.slurm:
            raise ConfigError(f"{given[0]} is for --slurm; give --slurm as well.")
        if self.slurm:
            self.parameters(Path("run"), cpu=False)

    def parameters(self, out: Path, *, cpu: bool) -> dict[str, Any]:
        """Return the options as `submitit.AutoExecutor.update_parameters` takes them.

        Jobs of one run have one name and wait for each other (sbatch's `singleton`).
        """
        gpus = (0 if cpu else 1) if self.gpus is None else self.gpus
        more = {"dependency": "singleton"} | dict(self._sbatch())
        if self.requeues != 0:
            more["requeue"] = True
        found = {
            "name": f"fewtags:{out.absolute()}",
            "timeout_min": DEFAULT_MINUTES if self.time is None else minutes(self.time),
            "nodes": self.nodes or 1,
            "tasks_per_node": self.tasks or max(1, gpus),
            "gpus_per_node": gpus or None,
            "cpus_per_task": self.cpus,
            "stderr_to_stdout": True,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_additional_parameters": more,
        }
        return {key: value for key, value in found.items() if value is not None}

    def _sbatch(self) -> Iterator[tuple[str, str | bool]]:
        for text in self.sbatch or []:
            key, equals, value = text.partition("=")
            if not key.strip():
                raise ConfigError(f"--sbatch {text}: expected KEY=VALUE, for example qos=long.")
            yield key.strip().removeprefix("--"), value if equals else True


def minutes(text: str) -> int:
    """Return the minutes of a time limit as sbatch takes it; seconds are rounded up.

    Raises:
        ConfigError: the text is not a time, or is 0.

    >>> [minutes(text) for text in ("90", "90:30", "8:00:00", "2-12", "1-0:30", "1-2:03:04")]
    [90, 91, 480, 3600, 1470, 1564]
    """
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--time {text}: expected minutes, H:MM:SS, D-H, D-H:MM or D-H:MM:SS, for example 8:00:00.")
    first, second, third = (int(found[name] or 0) for name in ("first", "second", "third"))
    if found["days"] is not None or found["third"] is not None:
        seconds = 86400 * int(found["days"] or 0) + 3600 * first + 60 * second + third
    else:
        seconds = 60 * first + second
    if not seconds:
        raise ConfigError(f"--time {text} is not a time above 0; give minutes, or for example 8:00:00.")
    return -(-seconds // 60)


@final
@dataclass(frozen=True)
class Job:
    """A command of fewtags as submitit runs it, once in each process.

    Attributes:
        words: what follows `fewtags`.
        folder: working folder.
        requeue: whether it goes back into the queue before it is ended.
    """

    words: tuple[str, ...]
    folder: str
    requeue: bool = True

    def __str__(self) -> str:
        return shlex.join(["fewtags", *self.words])

    def __call__(self) -> None:
        """Run the command.

        Raises:
            TrainingError: it failed; submitit then counts the job as failed.
        """
        from fewtags.cli.main import app

        os.chdir(self.folder)
        join_processes()
        code = app([*self.words], prog_name="fewtags", standalone_mode=False)
        if code:
            raise TrainingError(f"`{self}` ended with exit code {code}; its message is above.")

    def checkpoint(self) -> Any:
        """Return what a job does that goes back into the queue: the same. Runs write their own checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self) if self.requeue else None


def join_processes() -> None:
    """Set what torch needs to know about the other processes of this job, and keep its signals to this process."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    here = JobEnvironment()
    if here.num_tasks > 1:
        # Every process sees all GPUs of its machine and takes that of its LOCAL_RANK.
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    number, main = getattr(signal, f"SIG{here.USR_SIG}"), os.getpid()
    before = signal.getsignal(number)
    if callable(before):
        # SLURM may also signal the forked processes that read photos, which would put the job back a second time.
        signal.signal(number, lambda *given: before(*given) if os.getpid() == main else None)


def command_words(context: typer.Context) -> tuple[str, ...]:
    """Return the words of a command for its job: as given, with --continue, without the options of the job."""
    left_out, words = {field.name for field in fields(SlurmOptions)} | {"dry_run", "continue_"}, []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in left_out or source is None or source.name != "COMMANDLINE":
            continue
        given = context.params[name]
        if isinstance(given, bool):
            words.append(parameter.opts[0])
            continue
        for value in given if isinstance(given, list | tuple) else [given]:
            words += [*([] if parameter.param_type_name == "argument" else parameter.opts[:1]), str(value)]
    return (str(context.info_name), *words, "--continue")


def submit(job: Job, options: SlurmOptions, out: Path, *, cpu: bool, dry_run: bool, cluster: str = "slurm") -> Any:
    """Submit the job of a run, and say where its log will be; or print the job if `dry_run`.

    `cluster` is an executor of submitit; "local" is for tests. Returns submitit's job; None if `dry_run`.

    Raises:
        ConfigError: submitit or SLURM is missing, or SLURM refuses the job.
    """
    folder, parameters = log_folder(out), options.parameters(out, cpu=cpu)
    try:
        from submitit import AutoExecutor
        from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--slurm needs {error.name}, which is not installed: pip install 'fewtags[slurm]'."
        ) from error
    if dry_run:
        names = SlurmExecutor._equivalence_dict()
        plain = {key.removeprefix("slurm_"): value for key, value in parameters.items()}
        own: dict[str, Any] = {str(names.get(key, key)): value for key, value in plain.items()}
        echo(_make_sbatch_string(f"{job}  # started by submitit", folder, **own).strip())
        say("dry run: nothing was submitted.")
        return None
    if cluster == "slurm" and not SlurmExecutor.affinity() > 0:
        raise ConfigError(
            "--slurm needs srun and sbatch, which are not on this machine; run the command on a login node of the "
            "cluster, or print the job with --dry-run."
        )
    requeues = DEFAULT_REQUEUES if options.requeues is None else options.requeues
    try:
        executor = AutoExecutor(folder, cluster=cluster, **{f"{cluster}_max_num_timeout": requeues})
        executor.update_parameters(**parameters)
        submitted = executor.submit(job)
    except (subprocess.CalledProcessError, RuntimeError) as error:  # submitit's errors are RuntimeErrors
        raise ConfigError(f"SLURM refuses the job: {str(error).strip()}") from error
    log = folder / f"{submitted.job_id}_0_log.out"
    processes = counted(parameters["tasks_per_node"], "process", "processes")
    echo(f"job: {submitted.job_id}")
    say(
        f"submitted: {job}",
        f"on {counted(parameters['nodes'], 'machine')} with {processes} each; the same command continues the run",
        f"follow it: tail -F {log}",
        f"stop it: scancel {submitted.job_id}",
    )
    return submitted


def log_folder(out: Path) -> Path:
    """Return the folder of the logs and scripts of the jobs of a run, which is beside the run's."""
    place = out.absolute()
    return place.with_name(f"{place.name}.slurm")
