"""The table of peers: paired differences, ratios and the columns that a row has no number for."""

import importlib
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
results = importlib.import_module("peers_table")
sys.path.remove(str(BENCHMARKS))


def run(row, seed, value, cpu, total):
    return {
        **{"set": "ccp", "row": row, "seed": seed, "mAP": value, "scored": ["a", "b"], "command": f"type {row}"},
        **{"cpu_seconds": cpu, "cpu_total_seconds": total, "peak_memory_mb": 100.4, "machine": "m", "commit": "c"},
        "localisation": {"pairs": 7, "left_out": 2, "pointing": 40.0 + seed, "chance": 12.0},
    }


def test_rows_are_paired_with_logistic_regression_by_seed():
    """Differences are 1 and 3: mean 2, standard deviation sqrt(2), standard error 1. The t quantile of one degree of
    freedom is 12.71, so the interval is 2 ± 12.7. Seed 5 has no partner. Ratios are 20 / 10 and 60 / 20."""
    records = [run("lr", 0, 50.0, 8.0, 10.0), run("lr", 1, 52.0, 16.0, 20.0)]
    records += [run("fewtags", s, v, t, t) for s, v, t in ((0, 51.0, 20.0), (1, 55.0, 60.0), (5, 90.0, 1.0))]
    lines = list(
        results.set_section("ccp", {r: {x["seed"]: x for x in records if x["row"] == r} for r in ("lr", "fewtags")})
    )
    lr, fewtags = lines[-3:-1]
    assert lr == "| lr | 2 | 51.0 ± 1.4 |  | 12.0 ± 5.7 | 15.0 ± 7.1 | x 1.00 | 100 | 40.5 ± 0.7 | `type lr` |"
    cells = [cell.strip() for cell in fewtags.split("|")[1:-1]]
    assert cells[:2] == ["fewtags", "3"]
    assert cells[3] == "+2.0 [-10.7, +14.7]"
    assert cells[4] == ""
    assert cells[6] == "x 2.50"
    assert cells[-1] == "`type fewtags`"


def test_a_set_without_logistic_regression_has_no_differences():
    head = list(results.set_section("ccp", {"fewtags": {0: run("fewtags", 0, 51.0, 20.0, 20.0)}}))[2]
    assert "- lr" not in head
    assert "ratio" not in head
