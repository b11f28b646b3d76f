"""Let the disk become full at every file operation of commands other than `train`: `commands.py [COUNT [SEED [FILE]]]`.

COUNT operations of each command, evenly spaced; 0 is every operation (see `disks.py`, also for FILE). The command must
succeed, or end with one error that names the cause and the file. What it had written before must be whole (the chunks
of `predict`, from which it continues, are in a folder `.NAME.partial`), and after there is room again, it must write
the same bytes as without the fault. What prints, prints to a file on a full disk.
"""

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
from disks import Ended, fill, small_disk
from forked import Tally, at_operation, count_argument, counted, distinct, fresh, make_data, run, train, watched

IGNORED = {"report.html"}
"""Files with times or paths, which differ from run to run."""


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file, by its path below the folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(p.relative_to(folder)): b"" if p.name in IGNORED else p.read_bytes() for p in found}


def main() -> None:
    """Run the script."""
    count, _ = count_argument(3)
    tally = Tally("full disks in other commands")
    with small_disk() as disk:
        folder, out, ended = disk.parent, disk / "out", Ended(sys.argv[3:])
        data, trained, pretrained = make_data(folder), folder / "trained", folder / "pretrained"
        for kind, place in (("finetune", trained), ("moco", pretrained)):
            assert run(train(data, kind, place)).code == 0
        photos, labels = str(folder / "scenes"), data[3:] and data[:3]
        few, tasks = str(folder / "scenes" / "images" / "test"), out / "tasks"
        commands = {
            "predict": ["predict", str(trained), photos, "--out", str(out / "tags.csv"), "--cpu"],
            "predict parquet": ["predict", str(trained), photos, "--wide", "--out", str(out / "t.parquet"), "--cpu"],
            "predict jsonl": ["predict", str(trained), photos, "--out", str(out / "tags.jsonl"), "--cpu"],
            "heatmap": ["heatmap", str(trained), few, "--out", str(out / "maps"), "--arrays", "--cpu"],
            "report": ["report", str(trained), "--out", str(out / "report.html")],
            "compare": ["report", str(trained), str(trained), "--out", str(out / "report.html")],
            "simulate csv": ["simulate", *labels, "--complete", "--out", str(out / "s.csv")],
            "simulate parquet": ["simulate", *labels, "--complete", "--out", str(out / "s.parquet")],
            "export-backbone": ["export-backbone", str(pretrained), str(out / "b.safetensors")],
            "check": ["check", *labels, "--excluded", str(out / "excluded.csv")],
            "export onnx": ["export", str(trained), "--to", "onnx", "--out", str(out / "model.onnx")],
            "export timm": ["export", str(trained), "--to", "timm", "--out", str(out / "timm")],
            "suggest": [
                *("suggest", str(trained), *labels, "--cpu", "--out", str(out / "questions.csv")),
                *(
                    "--label-studio",
                    f"{tasks}.json",
                    "--cvat",
                    f"{out / 'cvat'}.xml",
                    "--fiftyone",
                    f"{out / 'labels'}.json",
                ),
            ],
        }
        for name, command in commands.items():
            _try(tally, ended, name, command, out, count)
        copy = ["thresholds", str(out / "run"), "--threshold", "0.25", "--store"]
        _try(tally, ended, "thresholds --store", copy, out, count, before=trained)
        copy = ["calibrate", str(out / "run"), "--store"]
        _try(tally, ended, "calibrate --store", copy, out, count, before=trained)
        for name, command in {
            "evaluate": ["evaluate", str(trained), data[4], *labels[1:], "--cpu"],
            "evaluate --json": ["evaluate", str(trained), data[4], *labels[1:], "--json", "--cpu"],
            "check --json": ["check", *labels, "--json"],
            "thresholds --json": ["thresholds", str(trained), "--json"],
            "predict": ["predict", str(trained), photos, "--cpu"],
            "check": ["check", *labels],
            "config": ["config"],
            "methods": ["methods"],
            "doctor": ["doctor"],
            "--help": ["--help"],
            "--version": ["--version"],
        }.items():
            fill(disk)
            found = run(command, partial(_print_to, disk / "printed"))
            (disk / "balloon").unlink()
            tally.check(
                found.code == 1 and "No space left on device" in found.output, f"{name} to a full disk", found.output
            )
    tally.end()


def _print_to(path: Path) -> None:
    """Make a file the standard output, as `> FILE` does."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 1)


def _try(
    tally: Tally, ended: Ended, name: str, command: list[str], out: Path, count: int, before: Path | None = None
) -> None:
    def start() -> None:
        fresh(out).mkdir()
        if before is not None:
            shutil.copytree(before, out / "run")

    start()
    try:
        operations = counted(partial(run, command), out)
    except AssertionError as error:
        tally.check(False, f"{name} without a fault", str(error))
        return
    wanted = contents(out)
    start()
    old = contents(out)
    places = (
        distinct(operations) if not count else sorted({*np.linspace(1, len(operations), count).astype(int).tolist()})
    )
    for place in places:
        case = f"{name} {place}"
        if case in ended:
            continue
        start()
        found = run(command, at_operation(place, out, lambda: fill(out.parent)))
        (out.parent / "balloon").unlink(missing_ok=True)
        said = found.code == 0 or "No space left on device" in found.output
        left = contents(out)
        parts = [path for path, content in left.items() if content not in (wanted.get(path), old.get(path))]
        parts = [path for path in parts if ".partial" not in str(path)]  # predict continues from there
        again = run(command)
        right = again.code == 0 and contents(out) == wanted
        text = f"{operations[place - 1]}: clean {found.is_clean}, said {said}, parts {parts}, right {right}"
        is_good = found.is_clean and said and not parts and right
        tally.check(is_good, f"{case} {text}", f"{found.output}\n--- again\n{again.output}")
        ended.add(case, tally)


if __name__ == "__main__":
    watched(main)
