"""Comparisons in which validation chooses: by hand on made-up runs, and on the page."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def selection(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("selection", BENCHMARKS / "selection.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "selection", module)
    spec.loader.exec_module(module)
    return module


def run(val, best, last):
    return {"best": {"val_mAP": val, "mAP": best}, "last": {"mAP": last}}


def test_validation_chooses_seed_by_seed(selection):
    """Seed 0: b is better on validation and worse on test; seed 1: a. Chosen test mAP 40 and 60, not the best 50."""
    methods = {"a": {0: run(70, 50, 0), 1: run(70, 60, 0)}, "b": {0: run(71, 40, 0), 1: run(69, 80, 0)}}
    found = selection.chosen(methods, ["a", "b"])
    assert {seed: record["best"]["mAP"] for seed, record in found.items()} == {0: 40, 1: 60}
    reference = {0: run(0, 39, 0), 1: run(0, 57, 0)}
    assert selection.difference(found, reference, selection.test_map("best")).mean == 2  # +1 and +3
    assert selection.difference(found, reference, selection.test_map("last")).mean == 0


def test_the_page_has_the_tables_of_the_result_files(selection):
    files = [BENCHMARKS / "results" / f"{name}.jsonl" for name in ("quick", "long")]
    page = (BENCHMARKS.parent / "docs" / "results.md").read_text("utf-8")
    lines = [line for line in selection.report(selection.read_results(files)) if line]
    assert len(lines) == 16
    assert all(line in page for line in lines)
