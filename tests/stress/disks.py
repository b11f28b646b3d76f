"""Let the disk of a run become full, read-only or lost at every file operation: `disks.py [COUNT [SEED [FILE]]]`.

COUNT operations, evenly spaced, each with all faults. With 0, every operation (the first of those that differ only in
numbers) meets a full disk. FILE lists the operations that are done; they are skipped. The run folder is on a small
tmpfs, so the system itself refuses to write. The command must end with one error that names the cause; after the fault
is over, `resume` must end with the bits of an undisturbed run. Needs `unshare` (Linux), and user namespaces if it is
not run by root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from forked import (
    ALL_KINDS,
    Bits,
    Tally,
    at_operation,
    count_argument,
    counted,
    distinct,
    fresh,
    has_begun,
    make_data,
    model_of,
    result_of,
    run,
    train,
    watched,
)

INSIDE = "FEWTAGS_STRESS_INSIDE"


def fill(disk: Path) -> None:
    """Take all room of a disk."""
    with (disk / "balloon").open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def remount(disk: Path, mode: str) -> None:
    """Make a disk read-only ("ro") or writable ("rw")."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=False)


@contextmanager
def small_disk() -> Iterator[Path]:
    """Make a disk of 64 MiB, in a mount namespace of its own; the script starts again in it."""
    if INSIDE not in os.environ:
        user = ["-r"] if os.getuid() else []
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-m", *user, sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory() as name:
        disk = Path(name) / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
        try:
            yield disk
        finally:
            subprocess.run(["umount", str(disk)], check=False)


class Ended:
    """The cases that an interrupted run of a script has tried, in a file, so that the script can go on."""

    def __init__(self, arguments: list[str]) -> None:
        self.file = Path(arguments[0]) if arguments else None
        self.cases = set(self.file.read_text("utf-8").splitlines()) if self.file and self.file.exists() else set()

    def __contains__(self, case: str) -> bool:
        return case in self.cases

    def add(self, case: str, tally: Tally) -> None:
        """Note a case, unless something has failed: it is tried again."""
        if self.file is not None and not tally.failed:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(case + "\n")


def main() -> None:
    """Run the script."""
    count, _ = count_argument(8)
    ended = Ended(sys.argv[3:])
    tally = Tally("full, read-only and lost disks")
    with small_disk() as disk:
        data, out = make_data(disk.parent), disk / "run"
        for kind in ALL_KINDS:
            operations = counted(partial(run, train(data, kind, fresh(out))), out)
            wanted = result_of(out)
            share = max(2, count // len(ALL_KINDS))
            places = distinct(operations) if not count else np.linspace(1, len(operations), share).astype(int).tolist()
            for place in places:
                case = f"{kind} {place}"
                if case not in ended:
                    _try_full(tally, kind, place, data, out, wanted)
                    if count:
                        _try_read_only(tally, kind, place, data, out, wanted)
                        _try_lost(tally, kind, place, data, out)
                    ended.add(case, tally)
    tally.end()


def _resumed(data: list[str], kind: str, out: Path, wanted: Bits) -> tuple[bool, str]:
    """Continue a run as its error says; return whether it ends with the right bits, and its output."""
    begun = has_begun(out)
    if begun and (out / "report.html").exists() and model_of(out).exists():
        return result_of(out) == wanted, ""
    found = run(["resume", str(out), "--cpu"] if begun else train(data, kind, fresh(out)))
    return found.code == 0 and result_of(out) == wanted, found.output


def _try_full(tally: Tally, kind: str, place: int, data: list[str], out: Path, wanted: Bits) -> None:
    found = run(train(data, kind, fresh(out)), at_operation(place, out, lambda: fill(out.parent)))
    (out.parent / "balloon").unlink(missing_ok=True)
    said = found.code == 0 or "No space left on device" in found.output
    right, output = _resumed(data, kind, out, wanted)
    tally.check(found.is_clean and said and right, f"{kind}, full at {place}", f"{found.output}\n--- resume\n{output}")


def _try_read_only(tally: Tally, kind: str, place: int, data: list[str], out: Path, wanted: Bits) -> None:
    found = run(train(data, kind, fresh(out)), at_operation(place, out, lambda: remount(out.parent, "ro")))
    remount(out.parent, "rw")
    right, output = _resumed(data, kind, out, wanted)
    text = f"{found.output}\n--- resume\n{output}"
    tally.check(found.is_clean and right, f"{kind}, read-only at {place}", text)


def _try_lost(tally: Tally, kind: str, place: int, data: list[str], out: Path) -> None:
    found = run(train(data, kind, fresh(out)), at_operation(place, out, lambda: shutil.rmtree(out, ignore_errors=True)))
    tally.check(found.is_clean, f"{kind}, removed at {place}", found.output)


if __name__ == "__main__":
    watched(main)
