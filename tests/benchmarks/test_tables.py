"""The benchmark of label tables: what it makes, what it reads, and the rows that it prints."""

import importlib
import json
import sys
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from fewtags.formats.csv import read_csv
from fewtags.table.storage import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
tables = importlib.import_module("tables")
sys.path.remove(str(BENCHMARKS))


def test_both_orders_are_tables_of_the_same_size_with_a_zipf_law():
    one, other = (tables.make_table(6_000, 500, order) for order in tables.ORDERS)
    assert len(one) == len(other) == 1_000
    assert len(one.facts) == len(other.facts) == 6_000
    counts = np.sort(np.bincount(one.facts["class"].to_numpy(), minlength=500))[::-1]
    assert counts[0] > 3 * counts[9] > 3 * counts[99] > 0
    rising = [np.all(np.diff(table.fact_cells) > 0) for table in (one, other)]
    assert rising == [True, False]
    assert np.all(np.diff(other.facts["image"].to_numpy()) >= 0)


def test_the_files_have_the_facts_of_the_table(tmp_path):
    tables.make_files(tmp_path, 600, 300, 20, ["any order"])
    matrix = tables.make_table(300, 20, "any order").matrix
    assert load(tmp_path / "any.parquet").fingerprint == tables.make_table(600, 20, "any order").fingerprint
    for name in ("any.short.csv", "any.long.csv"):
        found = read_csv(tmp_path / name).matrix
        assert len(found.states) == len(matrix.states)
        assert found.states.sum() == matrix.states.sum()


def test_it_prints_a_line_for_each_measurement_and_a_table(monkeypatch, capsys):
    def here(target, *arguments):
        results = SimpleQueue()
        target(*arguments, results)
        return results.get()

    monkeypatch.setattr(tables, "in_own_process", here)
    tables.main(["--facts", "600", "--csv-facts", "300", "--classes", "300", "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()
    rows = [json.loads(line) for line in lines[:16]]
    assert [row["round"] for row in rows] == [1] * 8 + [2] * 8
    assert [row["facts"] for row in rows[:4]] == [600, 600, 300, 300]
    assert len(lines) == 16 + 2 + 8
    assert lines[18].startswith("| read Parquet, class order | 600 | ")


def test_the_median_of_the_rounds_is_shown():
    """1, 2 and 6 s for 4 million facts: 2 s, .5 us a fact."""
    rows = [{"facts": 4e6, "cpu_s": s, "wall_s": s, "peak_gb": 1.0, "start_gb": 0.5} for s in (6.0, 1.0, 2.0)]
    assert tables.line("read", rows) == "| read | 4,000,000 | 2.00 | 0.500 | 2.00 | 1.00 (0.50) |"


def test_a_process_that_fails_ends_the_run(tmp_path):
    with pytest.raises(SystemExit, match="read_parquet"):
        tables.in_own_process(tables._measure, tables.read_parquet, tmp_path / "nothing.parquet")
