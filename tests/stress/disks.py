"""Let the disk of a run become full, read-only or lost at every file operation: `disks.py [COUNT [SEED]]`.

COUNT operations, evenly spaced, each with all faults; 0 is every operation. The run folder is on a small tmpfs, so the
system itself refuses to write. The command must end with one error that names the cause; after the fault is over,
`resume` must end with the bits of an undisturbed run. Needs
`unshare` (Linux), and user namespaces if it is not run by root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from forked import KINDS, Bits, Tally, at_operation, count_argument, fresh, make_data, result_of, run, train
from kills import kill

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


def main() -> None:
    """Run the script."""
    if INSIDE not in os.environ:
        user = ["-r"] if os.getuid() else []
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-m", *user, sys.executable, *sys.argv])
    count, _ = count_argument(8)
    tally = Tally("full, read-only and lost disks")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, disk, counted = make_data(folder), folder / "disk", folder / "count"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
        out = disk / "run"
        for kind in KINDS:
            whole = run(train(data, kind, fresh(out)), at_operation(0, out, kill, counted))
            assert whole.code == 0, whole.output
            wanted, operations = result_of(out), int(counted.read_text())
            share = max(2, count // len(KINDS))
            places = range(1, operations + 1) if not count else np.linspace(1, operations, share).astype(int).tolist()
            for place in places:
                _try_full(tally, kind, place, data, out, wanted)
                _try_read_only(tally, kind, place, data, out, wanted)
                _try_lost(tally, kind, place, data, out)
        subprocess.run(["umount", str(disk)], check=False)
    tally.end()


def _resumed(data: list[str], kind: str, out: Path, wanted: Bits) -> tuple[bool, str]:
    """Continue a run as its error says; return whether it ends with the right bits, and its output."""
    begun = (out / "run.toml").exists()
    if begun and (out / "report.html").exists() and (out / "model.safetensors").exists():
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
    main()
