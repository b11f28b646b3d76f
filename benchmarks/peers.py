"""What a user would do instead of `fewtags train`: the same labels, and scores that one function measures.

    python benchmarks/peers.py --out benchmarks/results/peers.jsonl --sets collages voc2 ccp --seeds 0-4
    python benchmarks/peers_table.py benchmarks/results/peers.jsonl

A row is a text of a kind and its options, and that text is the name of the row:

lr             EfficientNet-Lite0 from timm as a fixed feature extractor, then scikit-learn's logistic regression for
               each class, on scaled or on raw features; C is chosen on val. `lr --size 288` takes larger photos.
timm_finetune  a plain fine-tuning loop around the same network; learning rate, weight decay and epoch are
               chosen on val.
fewtags        the command as a user types it. Its options are passed on: `fewtags --method assume_negative`.

Every row gets one positive label per training photo (the seed draws it) and complete val and test labels, all as CSV
files. In lr and timm_finetune a blank counts as negative. Every row runs in processes of its own, one after the other.

CPU seconds are user + sys of all processes of a row. For lr and timm_finetune, `cpu_seconds` goes from the start of
Python to the model and `cpu_total_seconds` includes the prediction of the test part. One process of lr serves all
seeds; each seed is charged for the features and for its own fit (`fit_cpu_seconds` is the fit alone). `fewtags train`
also tests and writes a report, so both numbers are the same for it. The number of threads is that of the environment
(OMP_NUM_THREADS).

A run that is in the result file is not done again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peer_scripts import Floats, Folder, Record, average_precision, percent, read_csv

# torch, timm, sklearn and fewtags are imported where they are used: a row pays for its own imports only.
if TYPE_CHECKING:
    from fewtags.table.table import LabelTable
    from photo_sets import BenchmarkSet

HERE = Path(__file__).resolve()
TAKES_ALL_SEEDS = ("lr",)
FEWTAGS = "fewtags train TRAIN.csv --images PHOTOS --val VAL.csv --test TEST.csv --out RUN --seed S"
CLOCK = re.compile(r"\bin [\d.,]+ ?(s|min|h|seconds|minutes)\b")


def write_csv(path: Path, table: LabelTable) -> None:
    """One line per image, one column per class: 1 is present, 0 is absent, blank is unknown."""
    from fewtags.labels import Label

    text = {Label.POSITIVE: "1", Label.NEGATIVE: "0", Label.UNKNOWN: ""}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", *table.classes.ids])
        for name, row in zip(table.images.to_pylist(), table.matrix.dense(), strict=True):
            writer.writerow([name, *(text[Label(state)] for state in row)])


class Row(NamedTuple):
    """A kind of `KINDS` and its options."""

    kind: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join((self.kind, *self.options))


class Located(NamedTuple):
    """Where things are in some test images.

    Attributes:
        images: their numbers.
        pairs: (position in `images`, class, region) of every class that is present and located.
        left_out: how many classes are present without a region.
    """

    images: list[int]
    pairs: list[tuple[int, int, NDArray[np.bool_]]]
    left_out: int


class Found(NamedTuple):
    """What a run left: test scores [n, K], maps [l, K, h, w] of the located images, and what it says of itself."""

    scores: Floats
    maps: Sequence[Floats]
    record: Record


def locate(data: BenchmarkSet) -> Located:
    """The images and regions that `frozen.open_material` takes."""
    from fewtags.labels import Label
    from frozen import LOCATED_IMAGES, REGION

    images = np.sort(np.random.default_rng(0).permutation(len(data.test))[:LOCATED_IMAGES]).tolist()
    labels, pairs, left_out = data.test.matrix.dense(), [], 0
    for position, image in enumerate(images):
        regions = data.regions("test", image, REGION)
        present = data.scored_index[labels[image, data.scored_index] == Label.POSITIVE]
        pairs += [(position, k, regions[k]) for k in present.tolist() if regions[k].any()]
        left_out += int((~regions[present].any((1, 2))).sum())
    return Located(images, pairs, left_out)


def prepare(path: Path, data: BenchmarkSet, located: Located, seeds: Sequence[int]) -> Folder:
    """Write the labels that every row of a set gets."""
    from fewtags.budget.simulate import single_positive

    path.mkdir(parents=True)
    for name, table in (("val", data.val), ("test", data.test)):
        write_csv(path / f"{name}.csv", table)
    for seed in seeds:
        write_csv(path / f"train-{seed}.csv", single_positive(data.train_truth, seed))
    assert data.test.root is not None
    job = {"images": str(Path(data.test.root).resolve()), "located": located.images, "seeds": list(seeds)}
    (path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    return Folder(path)


def spend(arguments: Sequence[str]) -> None:
    """Run a command and write what its processes used.

    This is a small process of its own: the peak memory that Linux reports of a child is at least that of its parent.
    """
    path, *command = arguments
    began = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu, wall = round(usage.ru_utime + usage.ru_stime, 2), round(time.monotonic() - began, 2)
    used = {
        **{"cpu_seconds": cpu, "cpu_total_seconds": cpu, "wall_seconds": wall, "wall_total_seconds": wall},
        "peak_memory_mb": round(usage.ru_maxrss / 1024, 1),
    }
    Path(path).write_text(json.dumps(used), encoding="utf-8")
    sys.exit(process.returncode)


def call(folder: Folder, command: Sequence[str]) -> tuple[Record, str]:
    """Run a command: what it used, and what it printed.

    Raises:
        DataError: it failed.
    """
    from fewtags.errors import DataError

    used, log = folder.path / "used.json", folder.path / "log.txt"
    with log.open("w", encoding="utf-8") as file:
        whole = [sys.executable, str(HERE), spend.__name__, str(used), sys.executable, *command]
        result = subprocess.run(whole, stdout=file, stderr=subprocess.STDOUT, check=False)
    if result.returncode:
        raise DataError(f"{shlex.join(command)} ended with {result.returncode}; see {log}.")
    return json.loads(used.read_text("utf-8")), log.read_text("utf-8", errors="replace")


def run_peer(row: Row, folder: Folder, located: Located) -> Iterator[tuple[int, Found]]:
    """A row of lr or timm_finetune: one process for all seeds of the folder."""
    del located  # the folder's job says which
    call(folder, [str(HERE.with_name("peer_scripts.py")), row.kind, str(folder.path), *row.options])
    for seed in folder.job["seeds"]:
        record = json.loads((folder.path / f"{seed}.json").read_text("utf-8"))
        record["command"] = f"python benchmarks/peer_scripts.py {row} FOLDER"
        scores, maps = (np.load(folder.path / f"{seed}-{name}.npy") for name in ("scores", "maps"))
        yield seed, Found(scores, maps, record)


def run_fewtags(row: Row, folder: Folder, located: Located) -> Iterator[tuple[int, Found]]:
    """A row of the command, one process for each seed."""
    from fewtags.api import Classifier

    job = folder.job
    for seed in job["seeds"]:
        run = folder.path / f"run-{seed}"
        files = {name: str(folder.path / f"{name}.csv") for name in (f"train-{seed}", "val", "test")}
        command = ["-m", "fewtags", "train", files[f"train-{seed}"], "--images", job["images"], "--val", files["val"]]
        command += ["--test", files["test"], "--out", str(run), "--seed", str(seed), *row.options]
        used, log = call(folder, command)
        names, _ = read_csv(folder.path / "test.csv")
        scores, classes = read_scores(run, names, header(folder.path / "test.csv"))
        record = {**used, "clock": [line.strip() for line in log.splitlines() if CLOCK.search(line)]}
        record["command"] = shlex.join((*FEWTAGS.split(), *row.options))
        model = Classifier.load(run, device="cpu")
        wanted = {position for position, _, _ in located.pairs}
        nothing = np.zeros((len(classes), 1, 1), np.float32)
        photos = [Path(job["images"]) / names[image] for image in located.images]
        maps = [model.heatmaps(p)[classes] if n in wanted else nothing for n, p in enumerate(photos)]
        yield seed, Found(scores, maps, record)
        shutil.rmtree(run)


def header(path: Path) -> list[str]:
    """The classes of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file))[1:]


def read_scores(run: Path, names: Sequence[str], classes: Sequence[str]) -> tuple[Floats, list[int]]:
    """The test logits of a run, rows in the order of `names` and columns in the order of `classes`.

    Returns:
        the logits, and the position of each of `classes` in the vocabulary of the run.

    Raises:
        DataError: the run tested other images or knows other classes.
    """
    from fewtags.errors import DataError
    from fewtags.table.storage import load as load_table

    vocabulary = [entry["id"] for entry in json.loads((run / "vocabulary.json").read_text("utf-8"))]
    images = load_table(run / "tables/test.parquet").images.to_pylist()
    if set(vocabulary) != set(classes) or sorted(images) != sorted(names):
        raise DataError(
            f"{run} was tested on other images or classes than the CSV file names; rows cannot be compared."
        )
    position = {name: n for n, name in enumerate(images)}
    columns = [vocabulary.index(class_id) for class_id in classes]
    logits: Floats = np.load(run / "evaluation/test.npy")
    return logits[np.ix_([position[name] for name in names], columns)], columns


KINDS: Mapping[str, Callable[[Row, Folder, Located], Iterator[tuple[int, Found]]]] = {
    "lr": run_peer,
    "timm_finetune": run_peer,
    "fewtags": run_fewtags,
}


def measure(data: BenchmarkSet, labels: Floats, located: Located, found: Found) -> Record:
    """Test mAP over the scored classes and how well the maps point, in percent."""
    from regions import localisation_report

    values = average_precision(found.scores, labels)[data.scored_index]
    report = localisation_report((found.maps[n][k], region) for n, k, region in located.pairs)
    return {
        "mAP": percent(float(values.mean())),
        "AP": [percent(v) for v in values.tolist()],
        "scored": list(data.scored),
        "localisation": {
            "pairs": report.pairs,
            "left_out": located.left_out,
            "pointing": percent(report.pointing),
            "ioa_p": percent(float(report.ioa.mean())),
            "chance": percent(report.chance),
        },
        **found.record,
    }


def default_rows() -> list[str]:
    """The baseline as a user would run it, the baseline with the input size of fewtags, and fewtags."""
    from fewtags.config.presets import PRESETS

    sizes = dict.fromkeys((224, PRESETS["cpu"].size))
    return [*(f"lr --size {size}" for size in sizes), "fewtags"]


def parse_row(text: str) -> Row:
    """Kind and options of a row.

    Raises:
        ConfigError: no such kind.
    """
    from fewtags.errors import ConfigError
    from fewtags.text import suggest

    kind, *options = shlex.split(text) or [""]
    if kind not in KINDS:
        raise ConfigError(f"--rows {text!r}: {kind!r} is not {', '.join(KINDS)}{suggest(kind, KINDS)}.")
    return Row(kind, tuple(options))


def is_chosen(only: Sequence[str] | None, set_name: str, row: Row) -> bool:
    """Whether one of SET, SET:ROW and :ROW names the row, by its text or by its kind. None names every row."""
    if only is None:
        return True
    parts = (item.partition(":") for item in only)
    return any(s in ("", set_name) and r in ("", row.kind, str(row)) for s, _, r in parts)


def pending(records: Sequence[Record], set_name: str, row: Row, seeds: Sequence[int]) -> list[int]:
    """The seeds whose runs are not in the result file."""
    done = {r["seed"] for r in records if (r["set"], r["row"]) == (set_name, str(row))}
    return [seed for seed in seeds if seed not in done]


def run_rows(options: argparse.Namespace, rows: Sequence[Row], seeds: Sequence[int]) -> int:
    """Do what is not done, add a line for each run to `options.out`, and return how many runs failed."""
    from fewtags.errors import FewtagsError
    from photo_sets import load
    from protocol import read_lines

    options.out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.sets:
        todo = [(row, pending(read_lines(options.out), name, row, seeds)) for row in rows]
        todo = [(row, left) for row, left in todo if left and is_chosen(options.only, name, row)]
        if not todo:
            continue
        data = load(name, options.data, options.cache)
        located = locate(data)
        for row, left in todo:
            groups = [left] if row.kind in TAKES_ALL_SEEDS else [[seed] for seed in left]
            for group in groups:
                try:
                    run_group(options, data, located, row, group)
                except FewtagsError as error:
                    print(f"{name} {row} seeds {group}: {error}", file=sys.stderr)
                    failed += len(group)
    return failed


def run_group(
    options: argparse.Namespace, data: BenchmarkSet, located: Located, row: Row, seeds: Sequence[int]
) -> None:
    """Run a row for some seeds in a temporary folder, which stays where the run fails."""
    (options.cache / "peers").mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{data.name}-{row.kind}-", dir=options.cache / "peers"))
    folder = prepare(work / "job", data, located, seeds)
    _, labels = read_csv(folder.path / "test.csv")
    for seed, found in KINDS[row.kind](row, folder, located):
        record = {"set": data.name, "row": str(row), "seed": seed, **measure(data, labels, located, found), **_where()}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{data.name} {row} seed {seed}: test mAP {record['mAP']:.1f}", file=sys.stderr)
    shutil.rmtree(work)


def _where() -> Record:
    import torch

    commit = ["git", "-C", str(HERE.parent), "describe", "--always", "--dirty"]
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    cores = len(os.sched_getaffinity(0))
    return {
        "commit": subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": f"{cores} cores {platform.machine()}, torch {torch.__version__}, OMP_NUM_THREADS {threads}",
    }


def main() -> None:
    if sys.argv[1:2] == [spend.__name__]:
        spend(sys.argv[2:])
        return
    from fewtags.errors import FewtagsError
    from photo_sets import CACHE, DATA, NAMES, REPOSITORY
    from protocol import seed_numbers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; what is in it is not done again")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=["collages", "voc2", "ccp"])
    parser.add_argument("--rows", nargs="+", metavar="ROW", help=f"such as 'lr --size 224'; kinds: {', '.join(KINDS)}")
    parser.add_argument("--only", nargs="+", metavar="SET:ROW", help="SET, SET:ROW or :ROW")
    parser.add_argument("--seeds", help="0-4, or 0,3 (default 0-4)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made (default {CACHE})")
    options = parser.parse_args()
    try:
        rows = [parse_row(text) for text in options.rows or default_rows()]
        failed = run_rows(options, rows, seed_numbers(options.seeds, 5))
    except FewtagsError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"{failed} runs failed")


if __name__ == "__main__":
    main()
