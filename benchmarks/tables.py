"""Label tables of millions of facts: Parquet and CSV to the label matrix, and back to files.

    python benchmarks/tables.py                                  # 6 million facts of 1 million photos; minutes
    python benchmarks/tables.py --facts 60000000 --csv-facts 6000000 --rounds 1 --keep FOLDER
    python benchmarks/tables.py --facts 60000 --rounds 1         # to see that it runs

The tables are made in code: names such as `train/0/0f3a....jpg`, a Zipf law over the classes, and positive and negative
labels. `class order` has the classes of a photo in the order of the vocabulary, and `any order` as people tag: in any.
Each measurement has a process of its own, so that its peak memory is its own; `start_gb` is what Python, the
imports and, to write, the table need. CPU seconds are those of all threads. Wall time means little while other work has
the cores.

"read" ends with the label matrix that training uses. "short" is a CSV of image, class and state, and "long" the one of
`write_csv`, which also has columns for boxes and sources. The median over rounds is printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from fewtags.formats.csv import read_csv
from fewtags.labels import ClassNames, Label
from fewtags.table.storage import load, save, write_csv
from fewtags.table.table import LabelTable

FACTS_A_PHOTO = 6
ORDERS = ("class order", "any order")

Step = Callable[[Path], Callable[[], int]]
"""Prepares a measurement of a file. The function that it returns is measured; that one returns the number of facts."""


def make_table(facts: int, classes: int, order: str) -> LabelTable:
    """Return about `facts` facts of a sixth as many photos; the classes follow a Zipf law. Some photos have no fact."""
    rng = np.random.default_rng(0)
    n, drawn = max(1, facts // FACTS_A_PHOTO), facts * 5 // 4  # some are drawn twice
    law = np.cumsum(1 / np.arange(1, classes + 1))
    ranks = np.searchsorted(law, rng.random(drawn) * law[-1]).clip(max=classes - 1)
    frequent = rng.permutation(classes)  # frequent classes are anywhere in the vocabulary
    cells = np.sort(rng.integers(0, n, drawn) * classes + frequent[ranks])
    cells = cells[np.diff(cells, prepend=-1) > 0][:facts]
    image, class_ = (part.astype(np.int32) for part in np.divmod(cells, classes))
    del cells, ranks
    if order != "class order":
        shuffled = np.lexsort((rng.random(len(image), np.float32), image))
        class_ = class_[shuffled]
    state = np.where(rng.random(len(image), np.float32) < 0.5, np.int8(Label.POSITIVE), np.int8(Label.NEGATIVE))
    names = [f"/m/{number:05x}" for number in range(classes)]
    return LabelTable.build(
        [*_names(n, rng)], ClassNames.of(names), image=image, class_=class_, state=state, source="facts.csv"
    )


def _names(n: int, rng: np.random.Generator) -> Iterator[str]:
    for start in range(0, n, 100_000):
        for number in range(start, min(n, start + 100_000)):
            word = f"{int(rng.integers(1 << 32)):08x}{number:08x}"
            yield f"train/{word[0]}/{word}.jpg"


def short_csv(table: LabelTable, path: Path) -> None:
    """Write image, class and state of each fact."""
    facts = table.facts
    positive = np.equal(facts["state"].to_numpy(), Label.POSITIVE)
    columns = {
        "image": table.images.take(facts["image"].combine_chunks()),
        "class": pa.array(table.classes.ids).take(facts["class"].combine_chunks()),
        "state": pa.array(["negative", "positive"]).take(pa.array(positive.astype(np.int8))),
    }
    pyarrow.csv.write_csv(pa.table(columns), path, pyarrow.csv.WriteOptions(quoting_style="needed"))


def peak() -> float:
    """Return the most memory that this process had, in GB; NaN where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return float("nan")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9


def _measure(prepare: Step, path: Path, results: Any) -> None:
    step, started = prepare(path), peak()
    wall, cpu = time.perf_counter(), time.process_time()
    facts = step()
    took = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
    results.put({"facts": facts, **took, "peak_gb": peak(), "start_gb": started})


def read_parquet(path: Path) -> Callable[[], int]:
    return lambda: _facts_of(load(path))


def read_text(path: Path) -> Callable[[], int]:
    return lambda: _facts_of(read_csv(path))


def write_parquet(path: Path) -> Callable[[], int]:
    table, copy = load(path), path.with_name(f"copy-of-{path.name}")

    def write() -> int:
        save(table, copy)
        return len(table.facts)

    return write


def _facts_of(table: LabelTable) -> int:
    """Make the label matrix, and return the number of facts."""
    assert table.matrix.shape == (len(table), len(table.classes))
    return len(table.facts)


def make_files(folder: Path, facts: int, csv_facts: int, classes: int, orders: Sequence[str]) -> None:
    """Write the files that are read, unless they exist."""
    for order in orders:
        word = order.split()[0]
        if not (path := folder / f"{word}.parquet").exists():
            save(make_table(facts, classes, order), path)
        if not (path := folder / f"{word}.long.csv").exists():
            table = make_table(csv_facts, classes, order)
            short_csv(table, folder / f"{word}.short.csv")
            write_csv(table, path)


def steps(folder: Path, orders: Sequence[str]) -> dict[str, tuple[Step, Path]]:
    """Return what is measured, by name, each with its file."""
    found: dict[str, tuple[Step, Path]] = {}
    for order in orders:
        start = folder / order.split()[0]
        found[f"read Parquet, {order}"] = (read_parquet, start.with_suffix(".parquet"))
        found[f"write Parquet, {order}"] = (write_parquet, start.with_suffix(".parquet"))
        found[f"read CSV, short, {order}"] = (read_text, start.with_suffix(".short.csv"))
        found[f"read CSV, long, {order}"] = (read_text, start.with_suffix(".long.csv"))
    return found


def in_own_process(target: Callable[..., None], *arguments: Any) -> Any:
    """Run a function in a fresh process; return what it puts into the queue that is its last argument."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=target, args=(*arguments, results))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{target.__name__}{arguments} failed, see above")
    return results.get()


def _make_files(folder: Path, facts: int, csv_facts: int, classes: int, orders: Sequence[str], results: Any) -> None:
    make_files(folder, facts, csv_facts, classes, orders)
    results.put(None)


def line(name: str, rows: Sequence[Mapping[str, float]]) -> str:
    """Return a row of Markdown with the medians of some measurements."""
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    each = 1e6 / max(1, middle["facts"])
    return (
        f"| {name} | {middle['facts']:,.0f} | {middle['cpu_s']:.2f} | {middle['cpu_s'] * each:.3f} "
        f"| {middle['wall_s']:.2f} | {middle['peak_gb']:.2f} ({middle['start_gb']:.2f}) |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=6_000_000, help="facts of the Parquet file")
    parser.add_argument("--csv-facts", type=int, default=1_000_000, help="facts of the CSV files")
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--only", default="", help="measure only the steps whose name has this text")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files there, and use those that exist")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = (options.facts, min(options.facts, options.csv_facts), options.classes)
        in_own_process(_make_files, folder, *sizes, options.orders)
        found: dict[str, list[Mapping[str, float]]] = {}
        for number in range(options.rounds):
            for name, (step, path) in steps(folder, options.orders).items():
                if options.only in name:
                    row = in_own_process(_measure, step, path)
                    found.setdefault(name, []).append(row)
                    shown = {key: round(value, 3) for key, value in row.items()}
                    print(json.dumps({"round": number + 1, "what": name, **shown}), flush=True)
    print("| what | facts | CPU s | CPU us a fact | wall s | peak GB (at the start) |\n|---|---|---|---|---|---|")
    for name, rows in found.items():
        print(line(name, rows))


if __name__ == "__main__":
    main()
