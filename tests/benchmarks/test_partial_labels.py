"""Tests of benchmarks/partial_labels.py: what is known, which runs there are, and the table."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
partial, tuning, protocol = (importlib.import_module(name) for name in ("partial_labels", "equal_tuning", "protocol"))
sys.path.remove(str(BENCHMARKS))

ALL = ["en_solved", "lr", "bce_solved", "an", "ll_r", "splc", "en_scl"]


def benchmark() -> Any:
    return protocol.read_setup(partial.FILE, tuning.Methods)


def record(known: str, method: str, seed: int, rate: float, value: float, test: float, name: str = "camvid") -> Any:
    tuned = benchmark().methods[method]
    own = None if tuned.stages is not None else tuned.values[0]
    return {
        "known": known, "set": name, "method": method, "rate": rate, "value": own, "seed": seed,
        "protocol": benchmark().protocol(method), "complete": {"epoch": 1, "value": value, "mAP": test},
    }  # fmt: skip


def test_what_is_known() -> None:
    """30 photos with 2 of 10 classes: one label each, or shares of all 300 cells, which contain the smaller shares."""
    image = np.repeat(np.arange(30), 2)
    truth = LabelTable.build(
        [f"{n}.jpg" for n in range(30)],
        ClassNames.of("abcdefghij"),
        image=image,
        class_=(image + np.tile([0, 3], 30)) % 10,
        state=np.full(60, int(Label.POSITIVE)),
        locations=np.full((60, 4), np.nan),
        source="test",
        complete_set=np.zeros(30, np.int64),
        complete_classes=np.ones((1, 10), np.bool_),
    )
    found = [partial.known_labels(truth, known, 0).matrix.dense() for known in partial.SHARES]
    one, *shares = found
    assert (one != Label.UNKNOWN).sum(1).tolist() == [1] * 30
    assert not (one == Label.NEGATIVE).any()
    counts = [int((own != Label.UNKNOWN).sum()) for own in shares]
    np.testing.assert_allclose(counts, [30, 120, 225, 300], atol=30)
    for less, more in pairwise(shares):
        assert (less == more)[less != Label.UNKNOWN].all()
    assert (shares[-1] == truth.matrix.dense()).all()


def test_every_method_has_the_same_number_of_trials() -> None:
    real = benchmark()
    assert {len(real.trials(name)) for name, tuned in real.methods.items() if tuned.stages is None} == {3}
    for tuned in real.methods.values():
        protocol.check_objective(partial.FILE, tuned.objective)


def test_runs_of_a_set() -> None:
    """Solved heads need no trial; what would be run twice, or has nothing to learn from, is left out."""
    jobs = list(partial.wanted_jobs(benchmark(), [], "camvid", ALL, [0]))
    trials = [job for job in jobs if job.job.seed == 20]
    assert [job.job.method for job in trials if job.known == "40"] == [m for m in ALL[3:] for _ in range(3)]
    final = {known: [j.job.method for j in jobs if j.known == known and j.job.seed == 0] for known in partial.SHARES}
    assert final == {
        **{"one": ["en_solved", "lr"], "100": ["bce_solved"]},
        **{known: ["en_solved", "lr", "bce_solved"] for known in ("10", "40", "75")},
    }
    made = [record("40", "an", 20, rate, value, 0.0) for rate, value in ((1e-3, 2.0), (3e-3, 3.0), (1e-2, 1.0))]
    after = list(partial.wanted_jobs(benchmark(), made, "camvid", ["an"], [0]))
    assert [job.job.rate for job in after if job.known == "40"] == [3e-3]


def test_the_table_shows_the_runs_of_the_chosen_trial() -> None:
    """At 100 % logistic regression is BCE."""
    runs = [record("40", "an", 20, rate, value, 0.0) for rate, value in ((1e-3, 2.0), (3e-3, 3.0), (1e-2, 1.0))]
    runs += [record("40", "an", seed, 3e-3, 0.0, 50.0 + seed) for seed in (0, 1)]
    runs += [record("40", "an", seed, 1e-2, 0.0, 90.0) for seed in (0, 1)]
    runs += [record("40", "lr", seed, 0.0, 0.0, 49.5) for seed in (0, 1)]
    runs += [record("100", "bce_solved", seed, 0.0, 0.0, 60.0) for seed in (0, 1)]
    one_set = benchmark().model_copy(update={"sets": ("camvid",)})
    lines = list(partial.table(one_set, runs))
    assert "| AN | – | – | 50.5 ± 0.7 | – | – |" in lines
    assert "| AN | – | – | +1.0 [-5.4, +7.4] | – | – |" in lines  # 12.706 x .5
    assert lines[-7:][1] == "| logistic regression (AN, solved) | – | – | 49.5 | – | 60.0 |"
