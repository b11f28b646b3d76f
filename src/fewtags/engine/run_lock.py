"""A lock on a run folder, so that one process at a time trains in it."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from fewtags.errors import CheckpointError
from fewtags.files import writing

LOCK_FILE = ".lock"
_FAR = 1 << 30
"""Position of the locked byte on Windows, where a locked byte cannot be read."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of an existing run folder; the operating system releases the lock of a killed process.

    Where the file system has no locks, nothing is locked.

    Raises:
        CheckpointError: another process has the folder; the message says which, on which machine, and since when.
        DiskError: the lock cannot be written.
    """
    path = folder / LOCK_FILE
    with writing(path):
        descriptor = _open_locked(path)
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        content = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        with writing(path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, content.encode())
        yield
    finally:
        # Removed while it is locked: whoever opens the file now will see that it has gone, and make another.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            taken = not _lock(descriptor)
            removed = not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat())
        except OSError:
            os.close(descriptor)
            raise
        if taken:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise CheckpointError(
                f"{path.parent} is in use{owner}. Wait until that process ends, or stop it; its work is not lost."
            )
        if not removed:
            return descriptor
        os.close(descriptor)


def _owner(descriptor: int) -> str:
    try:
        found = json.loads(os.read(descriptor, 1000))
        return f": process {int(found['pid'])} on {found['host']} has been working in it since {found['since']}"
    except (OSError, ValueError, TypeError, KeyError):  # it was being written
        return " by another process"


def _lock(descriptor: int) -> bool:
    """Lock an open file without waiting; return whether that succeeded."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True
    import fcntl

    try:
        # Not flock: forked loader workers would keep that lock when this process is killed.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True
