"""Results of `vit.py` (JSON lines) -> the Markdown table of docs/methods/patchml.md.

    python benchmarks/vit_table.py benchmarks/results/vit.jsonl

Types of annotation, and kinds of maps, are compared seed by seed; intervals are Student's, over seeds, two-sided 95 %.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from table import Record, mean_and_sd, paired, read_results, table_head, table_row

TAGS = "I"

Value = Callable[[Record], float]


def table(records: Sequence[Record]) -> Iterator[str]:
    """Means over seeds, and differences paired by seed."""
    arms: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in sorted(records, key=lambda r: r["order"]):
        arms[record["budget"], record["annotation"]][record["seed"]] = record
    first, seeds = records[0], len(next(iter(arms.values())))
    flat = max(record["localisation"]["class"]["mAP-loc_chance"] for record in records)
    yield (
        f"{seeds} seeds, {first['recipe']['epochs']} epochs, {first['images']:,} training photos, {first['scored']} "
        f"scored classes, on {first['machine']}; chance: mAP-cl {first['chance_mAP']:.1f}, mAP-loc {flat:.1f} at most, "
        f"pointing {first['localisation']['class']['pointing_chance']:.1f}.\n"
    )
    columns = ["budget", "type", "mAP-cl", "- I", "mAP-loc, class maps", "- I", "coupled - class", "A x p - class"]
    yield from table_head([*columns, "pointing, class maps", "coupled", "A x p"])
    for (budget, annotation), runs in arms.items():
        tags = {} if annotation == TAGS else arms.get((budget, TAGS), {})
        cells = [budget, annotation, _mean(runs, classified), _difference(runs, classified, tags, classified)]
        cells += [_mean(runs, of("class")), _difference(runs, of("class"), tags, of("class"))]
        cells += [_difference(runs, of(name), runs, of("class")) for name in ("coupled", "probability")]
        cells += [_mean(runs, of(name, "pointing")) for name in ("class", "coupled", "probability")]
        yield table_row(cells)


def classified(record: Record) -> float:
    """mAP-cl after the last epoch."""
    return float(record["last"]["mAP"])


def of(maps: str, measure: str = "mAP-loc") -> Value:
    """How well maps of one kind locate."""
    return lambda record: float(record["localisation"][maps][measure])


def _mean(seeds: Mapping[int, Record], value: Value) -> str:
    return mean_and_sd([value(record) for record in seeds.values()])


def _difference(seeds: Mapping[int, Record], value: Value, others: Mapping[int, Record], other: Value) -> str:
    found = paired({s: value(r) for s, r in seeds.items()}, {s: other(r) for s, r in others.items()})
    return "" if found is None else str(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="written by vit.py")
    print("\n".join(table(read_results([parser.parse_args().results], ("budget", "annotation")))))


if __name__ == "__main__":
    main()
