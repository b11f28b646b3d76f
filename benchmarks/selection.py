"""Comparisons of the single-positive methods in which validation chooses: the paper's own protocol.

    python benchmarks/selection.py benchmarks/results/quick.jsonl benchmarks/results/long.jsonl

The epoch of every run is that of the best validation mAP. Where a row compares with "the best of" several methods, or
with gamma "by validation", the choice is the best validation mAP of the same seed. Test numbers choose nothing. Paired
by seed, with Student's 95 % intervals, as in `table.py`.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from table import Difference, Record, Seeds, paired, read_results, table_head, table_row

BASELINES = ("an", "an_ls", "wan")
SCL = ("en_scl.1", "en_scl1")
SCL_R = ("en_scl.1_r", "en_scl1_r")
WEIGHTS = {"0": "en", ".1": "en_scl.1", "1": "en_scl1"}
Measure = Callable[[Record], float]


def test_map(moment: str) -> Measure:
    """Test mAP at the last epoch, or at the best one on validation."""
    return lambda record: float(record[moment]["mAP"])


def pointing(record: Record) -> float:
    """Pointing after the last epoch."""
    return float(record["localisation"]["pointing"])


def chosen(methods: Mapping[str, Seeds], names: Sequence[str]) -> Seeds:
    """Return, for each seed, the run with the best validation mAP among the methods."""
    runs: dict[int, list[Record]] = defaultdict(list)
    for name in names:
        for seed, record in methods[name].items():
            runs[seed].append(record)
    return {seed: max(found, key=lambda record: record["best"]["val_mAP"]) for seed, found in runs.items()}


def difference(one: Seeds, other: Seeds, measure: Measure) -> Difference:
    """Compare two methods by seed."""
    found = paired({s: measure(r) for s, r in one.items()}, {s: measure(r) for s, r in other.items()})
    assert found is not None, "no seed is in both"
    return found


def rows(methods: Mapping[str, Seeds]) -> Iterator[tuple[str, Difference]]:
    """Yield the comparisons of one set."""
    one = {name: methods[name] for name in ("an", "en", "en_r", "en_scl1_r")}
    by_val, by_val_r = chosen(methods, SCL), chosen(methods, SCL_R)
    last, best = test_map("last"), test_map("best")
    yield "EN - AN, last epoch", difference(one["en"], one["an"], last)
    yield "EN - AN, best epoch", difference(one["en"], one["an"], best)
    yield "EN - best of AN, AN-LS, WAN, best epoch", difference(one["en"], chosen(methods, BASELINES), best)
    yield "EN + SCL - EN, best epoch", difference(by_val, one["en"], best)
    yield "EN + SCL - AN, best epoch", difference(by_val, one["an"], best)
    yield "EN R - EN, best epoch", difference(one["en_r"], one["en"], best)
    yield "EN + SCL R - EN R, best epoch", difference(by_val_r, one["en_r"], best)
    yield "EN + SCL 1 R - EN R, last epoch", difference(one["en_scl1_r"], one["en_r"], last)
    yield "EN + SCL 1 R - EN R, pointing, last epoch", difference(one["en_scl1_r"], one["en_r"], pointing)


def by_set(records: Sequence[Record]) -> dict[str, dict[str, dict[int, Record]]]:
    """Return the runs by benchmark and set, method and seed."""
    sets: dict[str, dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        sets[f"{record['benchmark']}, {record['set']}"][record["method"]][record["seed"]] = record
    return sets


def validation_of_weights(methods: Mapping[str, Seeds]) -> list[str]:
    """Return the mean validation mAP at the best epoch for each weight of SCL; the highest one in bold."""
    means = [statistics.fmean(r["best"]["val_mAP"] for r in methods[name].values()) for name in WEIGHTS.values()]
    return [f"**{mean:.2f}**" if mean == max(means) else f"{mean:.2f}" for mean in means]


def report(records: Sequence[Record]) -> Iterator[str]:
    """The two tables, line by line."""
    sets = by_set(records)
    names = list(sets)
    columns = {name: dict(rows(methods)) for name, methods in sets.items()}
    yield from table_head(["test mAP or pointing", *(f"{n} ({len(sets[n]['en'])} seeds)" for n in names)])
    for row in columns[names[0]]:
        yield table_row([row, *(str(columns[name][row]) for name in names)])
    yield ""
    yield from table_head(["validation mAP by `scl_weight`", *names])
    weights = {name: validation_of_weights(methods) for name, methods in sets.items()}
    for n, weight in enumerate(WEIGHTS):
        yield table_row([weight, *(weights[name][n] for name in names)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="files of JSON lines")
    print("\n".join(report(read_results(parser.parse_args().results))))


if __name__ == "__main__":
    main()
