"""Ways in which worker processes fail, in words. Nothing here needs torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import final

from fewtags.errors import WorkerError

SHARED_MEMORY = Path("/dev/shm")  # only its free space is read
TIMEOUT = 600
"""Seconds that the main process waits for a batch."""


def free_shared_memory() -> int | None:
    """Free bytes of shared memory; None where it has no limit of its own (macOS, Windows)."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return None


_KILLED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is killed by signal|exited unexpectedly)")
_LATE = "DataLoader timed out"
_FULL = "unable to allocate shared memory"


@final
class worker_errors:  # noqa: N801  # a context manager, used like a function
    """Context manager: turns torch's errors of worker processes into a `WorkerError`.

    torch raises them in whatever the main process is doing, so the whole of training is put into this context.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and (reason := worker_failure(str(error))):
            raise WorkerError(reason) from error


def worker_failure(message: str) -> str | None:
    """What happened and what to do, if a message of torch is about a worker process; else None."""
    if killed := _KILLED.search(message):
        return (
            f"a process that reads photos (pid {killed[1]}) was killed, most likely because memory ran out. Use fewer "
            "of them (workers), smaller batches, or no workers at all (0)."
        )
    if _LATE in message:
        return (
            f"no batch of photos arrived for {TIMEOUT // 60} minutes. Is the disk of the photos reachable? Without "
            "worker processes (workers = 0), the slow or missing photo shows itself."
        )
    if _FULL in message or ("shm" in message and "No space left" in message):
        return (
            f"shared memory ({SHARED_MEMORY}) is full: another program filled it. Free some, give the container more "
            "(docker run --shm-size=1g), or read photos without worker processes (workers = 0)."
        )
    return None
