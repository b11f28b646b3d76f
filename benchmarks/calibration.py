"""How far the probabilities of `fewtags train` are from frequencies, before and after `fewtags calibrate`.

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --out benchmarks/results/calibration.jsonl
    python benchmarks/calibration.py --out benchmarks/results/calibration.jsonl --table

The command trains with its defaults on one random positive for each photo. The calibration is fitted to the validation
photos: with complete labels, for several spreads of the offsets, and with one random positive for each (`tags`), where
the expected number of positives of the method decides. Errors are measured on the complete labels of the test photos.
`cross-fitted` is the Brier score on validation by calibrations that were fitted without a part, and `few` that on the
other validation photos after a fit to 60 of them; neither needs a test label. Seeds 10 and 11 are for choices, 0 to 4
for the table. A line that is there is not done again.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtags.budget.simulate import single_positive
from fewtags.engine.calibration import Comparison, assumed_share, cross_fitted
from fewtags.engine.model import ModelInfo, read_info
from fewtags.labels import Label
from fewtags.metrics.calibration import SPREAD, calibration_report, fit_calibration
from fewtags.table.storage import load as load_table
from fewtags.table.storage import save
from photo_sets import BenchmarkSet, load
from protocol import append_line, read_lines, script_arguments, seed_numbers

SETS = ("camvid", "collages", "voc2", "ccp")
SPREADS = (0.3, 1.0, 3.0)
FEW = 60
Logits = NDArray[np.float32]
States = NDArray[np.int8]


def train(data: BenchmarkSet, seed: int, folder: Path) -> Path:
    """Run the command, and return its run folder."""
    tables = {"train": single_positive(data.train_truth, seed), "val": data.val, "test": data.test}
    for name, table in tables.items():
        save(table, folder / f"{name}.parquet", keep_root=True)
    files = {name: str(folder / f"{name}.parquet") for name in tables}
    command = [sys.executable, "-m", "fewtags", "train", files["train"], "--val", files["val"], "--test", files["test"]]
    subprocess.run([*command, "--out", str(folder / "run"), "--seed", str(seed)], check=True, capture_output=True)
    return folder / "run"


def one_positive(labels: States, seed: int) -> States:
    """Complete labels [N, C] of which one random positive of each photo stays."""
    order = np.where(labels == Label.POSITIVE, np.random.default_rng(seed).random(labels.shape), -1.0)
    shown = np.full(labels.shape, Label.UNKNOWN, np.int8)
    rows = np.flatnonzero((labels == Label.POSITIVE).any(1))
    shown[rows, order[rows].argmax(1)] = Label.POSITIVE
    return shown


def judge(found: Comparison, which: int) -> dict[str, float]:
    """Errors of one of the two probabilities of a comparison."""
    report = (found.before, found.after)[which]
    return {"ECE": 100 * report.error, "Brier": report.brier, "labels": found.expected[which], "known": found.known}


def measure(info: ModelInfo, scores: Mapping[str, Logits], labels: Mapping[str, States], seed: int) -> dict[str, Any]:
    """Fit to val in each way, and compare on test."""
    share = assumed_share(info, labels["val"])
    fits = {f"complete, spread {s:g}": fit_calibration(scores["val"], labels["val"], share, spread=s) for s in SPREADS}
    tags = one_positive(labels["val"], seed)
    fits["tags"] = fit_calibration(scores["val"], tags, assumed_share(info, tags))
    rows: dict[str, Any] = {}
    for name, fit in fits.items():
        found = Comparison.of("test", scores["test"], fit.logits(scores["test"]), labels["test"])
        rows["as trained"] = judge(found, 0)
        rows[name] = {**judge(found, 1), "slope": fit.slope}
    order = np.random.default_rng(seed).permutation(len(labels["val"]))
    few, rest = order[:FEW], order[FEW:]
    for s in SPREADS:
        row = rows[f"complete, spread {s:g}"]
        row["cross-fitted"] = brier(cross_fitted(scores["val"], labels["val"], share, spread=s), labels["val"])
        fit = fit_calibration(scores["val"][few], labels["val"][few], share, spread=s)
        row["few"] = brier(fit.logits(scores["val"][rest]), labels["val"][rest])
    return rows


def brier(logits: NDArray[np.float64], labels: States) -> float:
    """Brier score of logits."""
    return calibration_report(1 / (1 + np.exp(-logits)), labels).brier


def run(data: BenchmarkSet, seed: int) -> dict[str, Any]:
    """Train and measure in a temporary folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = train(data, seed, Path(place))
        info = read_info(folder / "model.safetensors")
        scores = {name: np.load(folder / f"evaluation/{name}.npy") for name in ("val", "test")}
        labels = {name: load_table(folder / f"tables/{name}.parquet").matrix.dense() for name in ("val", "test")}
    return measure(replace(info, calibration=None), scores, labels, seed)


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: the mean over seeds of each number, for each set and way."""
    numbers = ("ECE", "Brier", "labels", "known", "slope", "cross-fitted", "few")
    yield f"| set | seeds | way | {' | '.join(numbers)} |"
    yield "|" + "---|" * (3 + len(numbers))
    grouped: dict[tuple[str, bool, str], list[Mapping[str, float]]] = defaultdict(list)
    for record in records:
        for way, row in record["rows"].items():
            grouped[record["set"], record["seed"] >= 10, way].append(row)
    for (name, chosen, way), rows in grouped.items():
        cells = [
            f"{statistics.mean(row[number] for row in rows):.{1 if number == 'ECE' else 3}f}"
            if number in rows[0]
            else ""
            for number in numbers
        ]
        yield f"| {name} | {len(rows)}{' (choice)' if chosen else ''} | {way} | {' | '.join(cells)} |"


def main() -> None:
    """Command line."""
    parser = script_arguments(__doc__, SETS, SETS)
    parser.add_argument("--seeds", help="0-4, or 0,3 (default 0-4)")
    options = parser.parse_args()
    if not options.table:
        done = {(record["set"], record["seed"]) for record in read_lines(options.out)}
        for seed in seed_numbers(options.seeds, 5):
            for name in options.sets:
                if (name, seed) not in done:
                    rows = run(load(name, options.data, options.cache), seed)
                    append_line(options.out, {"set": name, "seed": seed, "rows": rows})
                    print(name, seed, rows["as trained"], rows[f"complete, spread {SPREAD:g}"], flush=True)
    print("\n".join(table(read_lines(options.out))))


if __name__ == "__main__":
    main()
