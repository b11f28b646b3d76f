"""Results of `pretraining.py` (JSON lines) -> the tables of docs/pretraining_benchmark.md, in Markdown.

    python benchmarks/pretraining_table.py benchmarks/results/pretraining.jsonl

Methods are compared seed by seed: a seed fixes initial weights, order, and which photos have labels. Intervals are
Student's, over seeds, two-sided 95 %; they say nothing about other data sets or longer training.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fewtags.errors import FewtagsError
from pretraining_protocol import ENCODER
from table import Record, Seeds, mean_and_sd, paired, read_results, table_head, table_row

FLOOR, BASE, LITERAL = "scratch", "moco", "mls"

Value = Callable[[Record], float]
Methods = Mapping[str, Seeds]
"""Runs of one part, by method and seed."""


def report(records: Sequence[Record]) -> Iterator[str]:
    """All tables, line by line."""
    parts: dict[str, dict[str, dict[int, Record]]] = {}
    for record in sorted(records, key=lambda r: (*r["order"], r["seed"])):
        parts.setdefault(record["part"], {}).setdefault(record["method"], {})[record["seed"]] = record
    encoders = parts.pop(ENCODER, {})
    main = {name: seeds for name, seeds in encoders.items() if not _first(seeds)["sweep"]}
    yield from _section("Probes of the frozen encoder", probe_table(main))
    yield from _section("Did it collapse?", collapse_table(main))
    yield from _section("The whole net on few labels", task_table(parts))
    sweeps = {n: s for n, s in encoders.items() if n in (BASE, LITERAL) or _first(s)["sweep"]}
    if len(sweeps) > 2:
        yield from _section("Sweeps, one seed", sweep_table(sweeps))


def probe_table(methods: Methods) -> Iterator[str]:
    """The k-NN and linear probes on the test photos, and paired differences to MoCo."""
    columns = probes(methods)
    head = ["encoder", "seeds"]
    for name in columns:
        head += [name, f"- {_label(methods, BASE)}"]
    yield from table_head(head)
    for method, seeds in methods.items():
        cells = [_label(methods, method), str(len(seeds))]
        for value in columns.values():
            cells += [_spread(seeds, value), "" if method == BASE else _difference(methods, method, BASE, value)]
        yield table_row(cells)


def probes(methods: Methods) -> dict[str, Value]:
    """Names and values of the probes that the runs have."""
    record = _first(next(iter(methods.values())))
    numbers = sorted(int(name.removeprefix("linear")) for name in record if name.startswith("linear"))
    found: dict[str, Value] = {f"k-NN, {record['photos']:,} labels": lambda r: float(r["knn_test"])}
    for number in numbers:
        found[f"linear, {number:,}"] = lambda r, number=number: float(r[f"linear{number}"]["test"])  # type: ignore[misc]
    return found


def collapse_table(methods: Methods) -> Iterator[str]:
    """Collapse statistics of the last epoch, over seeds: means, and the smallest spread of any epoch and seed."""
    yield from table_head(
        [
            *("encoder", "spread of z", "smallest", "mean key", "positive cosine", "InfoNCE", "L_ml", "if collapsed"),
            *("neighbours changed", "spread of g, test", "CPU s"),
        ]
    )
    for method, seeds in methods.items():
        runs = list(seeds.values())
        cells = [_label(methods, method)]
        if "track" in runs[0]:
            cells += [
                _last(runs, "spread"),
                f"{min(min(r['track']['spread']) for r in runs):.3f}",
                *(_last(runs, name) for name in ("mean_key", "positive")),
                _last(runs, "infonce") or _last(runs, "loss"),
                _last(runs, "neighbour_loss"),
                "" if runs[0]["fingerprint"] is None else f"{runs[0]['fingerprint']:.3f}",
                churn(runs),
            ]
        else:
            cells += [""] * 8
        cells.append(f"{statistics.fmean(r['feature_spread'] for r in runs):.3f}")
        cells.append(f"{statistics.median(r['cpu_seconds'] for r in runs):.0f}" if "cpu_seconds" in runs[0] else "")
        yield table_row(cells)


def churn(runs: Sequence[Record]) -> str:
    """Share of the neighbours met again that had changed, 1 - kept / met, in the last epoch; mean over runs.

    Empty where no neighbour of the epoch before was still in the queue.
    """
    pairs = [[(r["track"][f"neighbours_{n}"] or [0.0])[-1] for n in ("met", "kept")] for r in runs]
    shares = [1 - kept / met for met, kept in pairs if met > 0]
    return f"{100 * statistics.fmean(shares):.0f} %" if shares else ""


def task_table(parts: Mapping[str, Methods]) -> Iterator[str]:
    """Test mAP after training the whole net, with paired differences to training from scratch and from MoCo."""
    yield from table_head(["task", "start", "seeds", "test mAP", "- from scratch", "- MoCo-v2"])
    for methods in parts.values():
        for method, seeds in methods.items():
            cells = [str(_first(seeds)["task"]), _label(methods, method), str(len(seeds)), _spread(seeds, _reached)]
            cells += ["" if method == r else _difference(methods, method, r, _reached) for r in (FLOOR, BASE)]
            yield table_row(cells)


def sweep_table(methods: Methods) -> Iterator[str]:
    """Like table 8 and figure 5 of MLS, on the seed that all have."""
    seed = min(set.intersection(*(set(seeds) for seeds in methods.values())))
    columns = probes(methods)
    yield from table_head(["encoder", *columns, "spread of z", "mean key", "neighbours changed"])
    for method, seeds in methods.items():
        record = seeds[seed]
        numbers = [f"{value(record):.1f}" for value in columns.values()]
        rest = [_last([record], "spread"), _last([record], "mean_key"), churn([record])]
        yield table_row([_label(methods, method), *numbers, *rest])


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield f"### {title}\n"
    yield from lines
    yield ""


def _reached(record: Record) -> float:
    return float(record["mAP_test"])


def _last(runs: Sequence[Record], name: str) -> str:
    found = [r["track"][name][-1] for r in runs if r["track"].get(name)]
    return f"{statistics.fmean(found):.3f}" if found else ""


def _spread(seeds: Seeds, value: Value) -> str:
    return mean_and_sd([value(record) for record in seeds.values()])


def _difference(methods: Methods, method: str, reference: str, value: Value) -> str:
    of = [{seed: value(r) for seed, r in methods.get(name, {}).items()} for name in (method, reference)]
    found = paired(*of)
    return "" if found is None else str(found)


def _first(seeds: Seeds) -> Record:
    return next(iter(seeds.values()))


def _label(methods: Methods, method: str) -> str:
    return str(_first(methods[method])["label"]) if method in methods else method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="files of JSON lines")
    options = parser.parse_args()
    try:
        records = read_results(options.results, ("part", "method"))
    except FewtagsError as error:
        sys.exit(str(error))
    print("\n".join(report(records)).rstrip())


if __name__ == "__main__":
    main()
