"""Kill `predict` at random file operations, repeat it, and compare the bytes: `predict_kills.py [COUNT [SEED]]`."""

import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from forked import Tally, at_operation, count_argument, counted, fresh, run, watched
from tiny_model import make_model

from fewtags.cli import tables
from fewtags.demo_set import make_scenes
from fewtags.engine.model import save_model


def kill() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the script."""
    count, rng = count_argument(20)
    tally = Tally("kill and repeat predict")
    tables.CHUNK_SECONDS, tables.ROWS_PER_GROUP = 0.0, 7  # a chunk for each batch
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_scenes(folder / "scenes", train=18, val=1, test=1, size=48, seed=0)
        save_model(folder / "model.safetensors", *make_model())
        base = ["predict", str(folder / "model.safetensors"), str(folder / "scenes"), "--cpu", "--batch-size", "3"]
        wanted, operations = {}, {}
        forms = [(ending, wide) for ending in (".csv", ".parquet", ".jsonl") for wide in (False, True)]
        for ending, wide in forms:
            out = folder / f"whole{wide:d}" / f"tags{ending}"
            words = [*base, "--out", str(out), *(["--wide"] if wide else ["--threshold", "0.4"])]
            operations[ending, wide] = len(counted(partial(run, words), out.parent))
            wanted[ending, wide] = out.read_bytes()
        while tally.done < count:
            ending, wide = rng.choice(forms)
            out = fresh(folder / "run") / f"tags{ending}"
            words = [*base, "--out", str(out), *(["--wide"] if wide else ["--threshold", "0.4"])]
            places = []
            while True:
                # Killed up to three times; a repeated command has fewer operations, and may end before the next one.
                at = rng.randint(1, operations[ending, wide]) if len(places) < 3 else 0
                found = run(words, at_operation(at, out.parent, kill) if at else None)
                if found.code != -signal.SIGKILL:
                    break
                places.append(at)
            right = found.code == 0 and out.read_bytes() == wanted[ending, wide]
            left = sorted(path.name for path in out.parent.iterdir() if path != out)
            what = f"{ending}, wide {wide}, killed at {places}: {found.code}, same bytes {right}, left {left}"
            tally.check(right and not left, what, found.output)
    tally.end()


if __name__ == "__main__":
    watched(main)
