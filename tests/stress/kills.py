"""Kill training at random file operations, once or twice, resume, and compare the bits.

`kills.py [COUNT [SEED [KIND]]]`: by default, each run is of a random kind.
"""

import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from forked import (
    ALL_KINDS,
    Tally,
    at_operation,
    count_argument,
    counted,
    fresh,
    has_begun,
    leftovers,
    make_data,
    model_of,
    result_of,
    run,
    train,
    watched,
)


def kill() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the script."""
    count, rng = count_argument(20)
    kinds = sys.argv[3:] or ALL_KINDS
    tally = Tally("kill and resume")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, wanted, operations = make_data(folder), {}, {}
        for kind in kinds:
            out = folder / f"whole-{kind}"
            operations[kind] = len(counted(partial(run, train(data, kind, out)), out))
            wanted[kind] = result_of(out)
            print(f"{tally.name}: a whole run of {kind} has {operations[kind]} file operations", flush=True)
        while tally.done < count:
            kind = rng.choice(kinds)
            out = fresh(folder / "run")
            places = [rng.randint(1, operations[kind])]
            found = run(train(data, kind, out), at_operation(places[0], out, kill))
            for _ in range(4):
                if found.code != -signal.SIGKILL:
                    break
                begun = has_begun(out)
                command = ["resume", str(out), "--cpu"] if begun else train(data, kind, out)
                if not begun:
                    fresh(out)
                again = rng.randint(1, operations[kind]) if len(places) < 2 and rng.random() < 0.5 else 0
                if model_of(out).exists() and (out / "report.html").exists():
                    break
                places.append(again)
                found = run(command, at_operation(again, out, kill) if again else None)
            ended = found.code in (0, -signal.SIGKILL) and model_of(out).exists()
            right = ended and result_of(out) == wanted[kind]
            rest = [] if found.code else leftovers(out)
            what = f"{kind} at operations {places}: ended with {found.code}, same bits {right}, left {rest}"
            tally.check(right and not rest, what, found.output)
    tally.end()


if __name__ == "__main__":
    watched(main)
