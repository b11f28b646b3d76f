"""Train again with the answers, in a process of its own and in a new run folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from fewtags.config.parse import load_toml
from fewtags.engine.runfolder import IN_MEMORY, TRAINING, RunFolder
from fewtags.engine.train_record import read_environment
from fewtags.errors import ConfigError
from fewtags.files import write_text
from fewtags.review.forecast import Estimate

STATE_FILE = "retraining.json"
_LAST_LINES = 6


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """A training process that a review started.

    Attributes:
        out: its run folder.
        log: the file with everything that it prints.
        pid: number of the process.
        began: seconds since 1970.
    """

    out: str
    log: str
    pid: int
    began: float


@final
class Retraining:
    """Starts `fewtags train ... --answers RUN`, and follows it, also after a restart of the server.

    Args:
        run: the run that is reviewed; the new one gets its settings.
        folder: for the log and the state.
        cpu: do not use a GPU.
    """

    def __init__(self, run: Path, folder: Path, *, cpu: bool = False) -> None:
        self.run, self._folder, self._cpu = run, folder, cpu
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.training: Training | None = None
        with suppress(OSError, ValueError, TypeError):
            self.training = Training(**json.loads((folder / STATE_FILE).read_text("utf-8")))

    def obstacle(self) -> str:
        """Return why this run cannot be trained again from here, as a sentence; "" if it can."""
        settings = load_toml(self.run / TRAINING.settings)
        if settings.get("data", {}).get("train") == IN_MEMORY:
            return (
                "This run was trained in Python, so its labels are not in a file. "
                f"Train again with Classifier.fit(..., answers={str(self.run)!r})."
            )
        return ""

    def start(self) -> Training:
        """Start training in the next free run folder.

        Raises:
            ConfigError: a training is still going on, or the run cannot be trained again.
        """
        with self._lock:
            if self.status()["state"] == "running":
                raise ConfigError("a training is still going on; wait for it, or end it.")
            if problem := self.obstacle():
                raise ConfigError(problem)
            out = next_run(self.run)
            log = self._folder / f"{out.name}.log"
            begun = read_environment(self.run)["working_directory"]
            command = [
                sys.executable,
                "-m",
                "fewtags",
                "train",
                "--config",
                str(self.run.absolute() / TRAINING.settings),
            ]
            for place in self._answers(Path(begun)):
                command += ["--answers", place]
            command += [
                "--set",
                "data.answers_step=[]",
                "--out",
                str(out.absolute()),
                *(["--cpu"] if self._cpu else []),
            ]
            with log.open("wb") as file:
                # A session of its own: the training goes on if the server ends.
                self._process = subprocess.Popen(
                    command, cwd=begun, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
                )
            self.training = Training(
                out=str(out.absolute()), log=str(log.absolute()), pid=self._process.pid, began=time.time()
            )
            write_text(self._folder / STATE_FILE, json.dumps(asdict(self.training)))
            return self.training

    def _answers(self, begun: Path) -> list[str]:
        """Return the answers that this run was trained with, and its own."""
        before = load_toml(self.run / TRAINING.settings).get("data", {}).get("answers", [])
        places = [str(begun / place) for place in ([before] if isinstance(before, str) else before)]
        return [*(place for place in places if Path(place).resolve() != self.run.resolve()), str(self.run.absolute())]

    def status(self) -> dict[str, Any]:
        """Return the state (none, running, finished or failed), the run, its seconds and the last lines it printed."""
        if self.training is None:
            return {"state": "none"}
        out = Path(self.training.out)
        if RunFolder(out, TRAINING).is_finished and not self._running():
            state = "finished"
        else:
            state = "running" if self._running() else "failed"
        return {
            "state": state,
            "run": out.name,
            "seconds": time.time() - self.training.began,
            "lines": last_lines(Path(self.training.log)),
            "score": _value(out) if state == "finished" else None,
            "before": _value(self.run),
        }

    def _running(self) -> bool:
        assert self.training is not None
        if self._process is not None:
            return self._process.poll() is None
        return _is_training(self.training)


def _is_training(training: Training) -> bool:
    """Whether the process of a training that an earlier server started is alive; another may have its number now."""
    import psutil

    try:
        process = psutil.Process(training.pid)
        return training.out in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def next_run(run: Path) -> Path:
    """Return a folder beside a run that does not exist: first-2 for first, first-3 for first-2."""
    run = run.absolute()
    stem = re.sub(r"-\d+$", "", run.name)
    number = 2
    while (run.parent / f"{stem}-{number}").exists():
        number += 1
    return run.parent / f"{stem}-{number}"


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log; a line that was rewritten in place counts as one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rpartition("\r")[2].strip() for line in text.replace("\r\n", "\n").split("\n")]
    return [line for line in lines if line][-_LAST_LINES:]


def _value(run: Path) -> float | None:
    return None if (found := score(run)) is None else found.value


def score(run: Path) -> Estimate | None:
    """Return the mAP of a run on its validation photos, with its interval; None if it was not measured."""
    try:
        found = json.loads((run / "evaluation" / "val.json").read_text("utf-8"))
        low, high = found["mAP_interval"]
        return Estimate(float(found["mAP"]), float(low), float(high))
    except (OSError, ValueError, KeyError, TypeError):
        return None
