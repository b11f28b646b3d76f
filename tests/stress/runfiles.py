"""Damage a file of a run folder, then resume, report or predict: `runfiles.py [COUNT [SEED]]`.

Every command must succeed or end with one error; and a run that resumes must end with the bits of an undamaged run.
"""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from forked import (
    Bits,
    Result,
    Tally,
    at_operation,
    count_argument,
    counted,
    damage,
    fresh,
    make_data,
    result_of,
    run,
    train,
    watched,
)
from kills import kill


def main() -> None:
    """Run the script."""
    count, rng = count_argument(60)
    tally = Tally("damaged files of a run folder")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, whole = make_data(folder), folder / "whole"
        operations = len(counted(partial(run, train(data, "heatmaps", whole)), whole))
        wanted = result_of(whole)
        killed = {}
        for share in (0.4, 0.6, 0.8):
            killed[share] = folder / f"killed-{share}"
            run(train(data, "heatmaps", killed[share]), at_operation(int(share * operations), killed[share], kill))
        photos = str(folder / "scenes")
        for _ in range(count):
            action = rng.choice(["resume", "resume", "report", "predict"])
            source = rng.choice([*killed.values()]) if action == "resume" else whole
            out = shutil.copytree(source, fresh(folder / "run"))
            files = [p for p in sorted(out.rglob("*")) if p.is_file()]
            if action == "predict":
                files = [out / "model.safetensors"]
            file = rng.choice(files)
            what = damage(file, rng)
            command = {
                "resume": ["resume", str(out), "--cpu"],
                "report": ["report", str(out)],
                "predict": ["predict", str(out), photos, "--out", str(out / "tags.csv")],
            }[action]
            result = run(command)
            right = result.is_clean and (action != "resume" or is_whole(result, out, wanted))
            tally.check(right, f"{action} after {file.relative_to(out)} {what}", result.output)
    tally.end()


def is_whole(result: Result, out: Path, wanted: Bits) -> bool:
    """Whether a run that was resumed without an error has the right bits."""
    return result.code != 0 or result_of(out) == wanted


if __name__ == "__main__":
    watched(main)
