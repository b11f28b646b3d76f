"""The grid of runs of a protocol: which runs, which of them are done, and one or several processes that do the rest."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, final

import torch
from pydantic import BaseModel

from fewtags.bench.data import SetData
from fewtags.bench.protocol import Job, Protocol
from fewtags.bench.run import run
from fewtags.bench.transfer import run_transfer
from fewtags.engine.events import EpochEnded, Event, Started
from fewtags.engine.json_records import read_json
from fewtags.engine.machine import cores
from fewtags.engine.progress import epoch_line
from fewtags.engine.run_lock import locked
from fewtags.errors import CheckpointError, ConfigError, DataError, TrainingError, WorkerError
from fewtags.files import write_text
from fewtags.text import suggest

RESULTS, RESULT, RUNS, ENCODERS = "results.jsonl", "result.json", "runs", "encoders"
Record = dict[str, Any]
REPEAT = "remove it, and the run is repeated"


class _Identity(BaseModel):
    """What the record of every finished run has."""

    protocol: str
    digest: str
    set: str
    known: str
    row: str
    trial: str
    seed: int


@final
@dataclass(frozen=True)
class Choice:
    """Which runs of a protocol are meant; None: all. Names may have the wildcards * and ?.

    Attributes:
        methods: names of rows.
        sets: names of data sets.
        known: names of conditions.
        seeds: "0-2" or "0,2"; None: the protocol's.
    """

    methods: Sequence[str] | None = None
    sets: Sequence[str] | None = None
    known: Sequence[str] | None = None
    seeds: str | None = None


def choose_jobs(protocol: Protocol, choice: Choice) -> list[Job]:
    """Return the runs, seed by seed.

    Raises:
        ConfigError: a name that fits nothing, or seeds that are not numbers.
    """
    rows = [name for name, row in protocol.rows.items() if row.runs]
    if protocol.measure == "statistics" and choice.methods:
        raise ConfigError(f"{protocol.name} counts labels and has no methods; leave --methods out.")
    methods = _fitting("--methods", choice.methods, rows) | {""}
    sets = _fitting("--sets", choice.sets, [*protocol.data])
    known = _fitting("--known", choice.known, [*protocol.knowns])
    numbers = seed_numbers(choice.seeds, 1 if protocol.measure == "statistics" else protocol.seeds)
    jobs = [job for job in protocol.jobs() if job.row in methods and job.set_name in sets and job.known in known]
    made = [
        replace(job, seed=seed)
        for seed in numbers
        for job in jobs
        if seed == numbers[0] or (job.row and not protocol.rows[job.row].untrained)
    ]
    if not made:
        raise ConfigError(f"{protocol.name} has no run with this choice of --methods, --sets and --known.")
    return made


def _fitting(option: str, words: Sequence[str] | None, there: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for word in there if words is None else words:
        fits = [name for name in there if fnmatchcase(name, word)]
        if not fits:
            raise ConfigError(f"{option} {word!r} fits nothing{suggest(word, there)}; there are: {', '.join(there)}.")
        found.update(fits)
    return found


def seed_numbers(seeds: str | None, default: int) -> list[int]:
    """The seeds that "0-9" or "0,3,5" stands for; None for the first `default` ones.

    Raises:
        ConfigError: other text.
    """
    if seeds is None:
        return list(range(default))
    try:
        parts = [part.split("-") for part in seeds.split(",")]
        found = [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError:
        found = []
    if not found or any(len(part) > 2 for part in parts):
        raise ConfigError(f"--seeds {seeds}: give numbers like 0-9 or 0,3,5.")
    return list(dict.fromkeys(found))


def result_file(out: Path, job: Job) -> Path:
    """Where the record of a finished run is."""
    return out / RUNS / job.folder / RESULT


def read_results(out: Path, protocol: Protocol, jobs: Sequence[Job]) -> dict[Job, Record]:
    """Return the records of the runs that are done.

    Raises:
        DataError: a run was made with other settings.
    """
    found: dict[Job, Record] = {}
    for job in jobs:
        file = result_file(out, job)
        if not file.exists():
            continue
        record = read_json(file, _Identity, REPEAT)
        if record["digest"] != protocol.digest(job):
            raise DataError(
                f"{file.parent} was made with other settings (the protocol or --set has changed since); use another "
                "--out, or delete this folder to repeat the run."
            )
        found[job] = record
    return found


def all_results(out: Path, protocol: Protocol) -> dict[Job, Record]:
    """Return the records of all finished runs in a folder that were made with the settings of a protocol."""
    found: dict[Job, Record] = {}
    possible = {(job.set_name, job.known, job.row, job.trial) for job in protocol.jobs()}
    for file in sorted((out / RUNS).glob(f"*/{RESULT}")):
        record = read_json(file, _Identity, REPEAT)
        job = Job(record["set"], record["known"], record["row"], record["trial"], record["seed"])
        listed = (job.set_name, job.known, job.row, job.trial) in possible
        if record["protocol"] == protocol.name and listed and record["digest"] == protocol.digest(job):
            found[job] = record
    return found


def write_results(out: Path) -> None:
    """Write the records of all finished runs in a folder as JSON lines."""
    records = [read_json(file, _Identity, REPEAT) for file in sorted((out / RUNS).glob(f"*/{RESULT}"))]
    write_text(out / RESULTS, "".join(json.dumps(record) + "\n" for record in records))


# --- what happens, for the command line


@final
@dataclass(frozen=True)
class Message:
    """What happened to a run: the end of an epoch, of the run, a failure, or "busy": another driver does it.

    `text` describes it, and `share` is the share of the run that is done.
    """

    job: Job
    what: Literal["epoch", "done", "failed", "busy"]
    text: str = ""
    share: float = 0.0


Tell = Callable[[Message], None]


def run_grid(
    protocol: Protocol, jobs: Sequence[Job], root: Path, out: Path, tell: Tell, *, processes: int = 1, cpu: bool = False
) -> None:
    """Do the runs that are not done yet, in one or several processes, and `tell` what happens.

    Each run is claimed by a lock on its folder, so that several drivers can share one folder. An interrupted run
    continues. A run that fails is reported, and the others go on.

    Raises:
        TrainingError: one of the processes was killed.
    """
    (out / RUNS).mkdir(parents=True, exist_ok=True)
    left = [job for job in jobs if not result_file(out, job).exists()]
    processes = min(processes, len(left))
    if processes < 2:
        work(protocol, left, root, out, tell, cpu=cpu)
        return
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    gpus = [] if cpu else _gpus()
    threads = max(1, cores() // processes)
    workers = []
    for n in range(processes):
        mine = [*left[n * len(left) // processes :], *left[: n * len(left) // processes]]  # few want the same run
        gpu = gpus[n % len(gpus)] if gpus else ""
        workers.append(context.Process(target=_beside, args=(messages, protocol, mine, root, out, cpu, gpu, threads)))
    seen: set[Job] = set()
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) or not messages.empty():
            with suppress(queue.Empty):
                message: Message = messages.get(timeout=0.2)
                if message.what != "busy":  # the other process may be one of these
                    seen.add(message.job)
                    tell(message)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
            worker.join()
    if codes := [worker.exitcode for worker in workers if worker.exitcode]:
        raise TrainingError(
            f"a process of --jobs ended with code {codes[0]}; its message says why. The same command continues."
        )
    for job in left:
        if job not in seen and not result_file(out, job).exists():
            tell(Message(job, "busy"))


def _gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]


def _beside(
    messages: Any, protocol: Protocol, jobs: list[Job], root: Path, out: Path, cpu: bool, gpu: str, threads: int
) -> None:
    """What each process of `run_grid` does. It ends with the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)
    try:
        work(protocol, jobs, root, out, messages.put, cpu=cpu)
    except KeyboardInterrupt:  # the first process says so
        messages.cancel_join_thread()


def _end_with_parent() -> None:
    """Stop this process when its parent was killed; the run continues with the next command."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def work(protocol: Protocol, jobs: Sequence[Job], root: Path, out: Path, tell: Tell, *, cpu: bool = False) -> None:
    """Do runs one after the other, except those that another driver has done or claimed."""
    last: SetData | None = None  # the labels of one data set at a time are in memory
    for job in jobs:
        folder = result_file(out, job).parent
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder))
            except CheckpointError as error:
                tell(Message(job, "busy", str(error)))
                continue
            if result_file(out, job).exists():
                continue
            try:
                if job.set_name in protocol.sets and (last is None or last.set_name != job.set_name):
                    last = SetData(protocol, job.set_name, root)
                _do(protocol, job, last or root, out, tell, cpu)
            except (TrainingError, ConfigError, DataError, CheckpointError, WorkerError) as error:
                tell(Message(job, "failed", str(error)))


def _do(protocol: Protocol, job: Job, data: SetData | Path, out: Path, tell: Tell, cpu: bool) -> None:
    """Do a run and write its record; `data` is the root of the data of a protocol with tasks."""
    began, epochs, file = time.perf_counter(), 0, result_file(out, job)

    def watch(event: Event) -> None:
        nonlocal epochs
        if isinstance(event, Started):
            epochs = event.epochs
        elif isinstance(event, EpochEnded):
            share = (int(event.record["epoch"]) + 1) / max(epochs, 1)
            tell(Message(job, "epoch", epoch_line(event.record, epochs, event.best), share))

    if isinstance(data, SetData):
        record = run(protocol, job, data, file.parent / "run", cpu=cpu, on_event=watch)
    else:
        record = run_transfer(protocol, job, data, out / ENCODERS, cpu=cpu, on_event=watch)
    record["seconds"] = round(time.perf_counter() - began, 1)
    write_text(file, json.dumps(record))
    tell(Message(job, "done", json.dumps(record.get(protocol.select, record.get("last"))), 1.0))
