"""Tests of benchmarks/equal_tuning.py: which runs there are, and what validation chooses."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from fewtags.config.sections import StageConfig
from fewtags.errors import ConfigError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILE = BENCHMARKS / "equal_tuning.toml"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
tuning, protocol = (importlib.import_module(name) for name in ("equal_tuning", "protocol"))
sys.path.remove(str(BENCHMARKS))


def benchmark() -> Any:
    return tuning.Methods.model_validate(
        {
            "name": "equal_tuning", "sets": ["camvid", "collages"], "seeds": 2, "trial_seed": 20, "rates": [0.1, 0.2],
            "val_images": 5, "backbone": "x", "weights": "offline", "size": 32, "min_area": 0.5, "batch_size": 2,
            "views": 1, "view_seed": 0, "stages": [StageConfig(name="main", epochs=1, lr=1.0, trainable="head")],
            "methods": {
                "an": {
                    "label": "AN", "objective": {"name": "assume_negative"}, "parameter": "smoothing",
                    "values": [0.1, 0.2],
                },
                "lr": {
                    "label": "solved", "objective": {"name": "assume_negative"},
                    "stages": [{"name": "solve", "logit_variances": [1.0], "trainable": "head"}],
                },
            },
        }
    )  # fmt: skip


def record(method: str, seed: int, rate: float, value: Any, complete: float, single: float, test: float) -> Any:
    chosen = {"epoch": 1, "mAP": test, "predicted": 1.0, "pointing": 40.0, "ioa_p": 30.0}
    return {
        "benchmark": "equal_tuning", "set": "camvid", "method": method, "rate": rate, "value": value, "seed": seed,
        "protocol": benchmark().protocol(method), "complete": {**chosen, "value": complete},
        "single": {**chosen, "value": single},
    }  # fmt: skip


def trials() -> list[Any]:
    """Test mAP prefers (0.1, 0.1), which neither criterion chooses."""
    values = {(0.1, 0.1): (1, 1, 99), (0.1, 0.2): (5, 2, 60), (0.2, 0.1): (3, 7, 50), (0.2, 0.2): (4, 6, 40)}
    return [record("an", 20, rate, value, *found) for (rate, value), found in values.items()]


def test_every_compared_method_has_the_same_number_of_trials() -> None:
    real = protocol.read_setup(FILE, tuning.Methods)
    counts = {name: len(real.trials(name)) for name, tuned in real.methods.items() if tuned.stages is None}
    assert set(counts.values()) == {12}
    for tuned in real.methods.values():
        protocol.check_objective(FILE, tuned.objective)


def test_jobs_of_trials() -> None:
    made = tuning.trial_jobs(benchmark(), tuning.wanted_pairs(benchmark(), "camvid"))
    assert made[:2] == [tuning.Job("camvid", "an", 20, 0.1, 0.1), tuning.Job("camvid", "an", 20, 0.1, 0.2)]
    assert len(made) == 4 + 1


def test_validation_chooses_and_test_does_not() -> None:
    chosen = {c: tuning.chosen_trials(benchmark(), trials(), c)["camvid", "an"] for c in ("complete", "single")}
    assert (chosen["complete"]["rate"], chosen["complete"]["value"]) == (0.1, 0.2)
    assert (chosen["single"]["rate"], chosen["single"]["value"]) == (0.2, 0.1)


def test_nothing_is_chosen_before_all_trials_are_there() -> None:
    assert tuning.chosen_trials(benchmark(), trials()[:3], "complete") == {}


def test_final_runs_are_those_of_both_choices() -> None:
    wanted = tuning.wanted_pairs(benchmark(), ":an")
    jobs = tuning.final_jobs(benchmark(), trials(), wanted, [0, 1])
    assert jobs == [tuning.Job("camvid", "an", s, *trial) for s in (0, 1) for trial in ((0.1, 0.2), (0.2, 0.1))]


def test_one_final_run_serves_both_choices() -> None:
    same = [record("lr", 20, 0.0, None, 1, 1, 1)]
    assert tuning.final_jobs(benchmark(), same, tuning.wanted_pairs(benchmark(), ":lr"), [0]) == [
        tuning.Job("camvid", "lr", 0, 0.0, None)
    ]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'voc2' is not in equal_tuning; known: camvid, collages"):
        tuning.wanted_pairs(benchmark(), "voc2:an")


def test_table_shows_each_choice_with_its_own_runs() -> None:
    runs = [record("an", seed, 0.1, 0.2, 5, 2, 70.0 + seed) for seed in (0, 1)]
    runs += [record("an", seed, 0.2, 0.1, 5, 2, 30.0) for seed in (0, 1)]
    lines = list(tuning.table(benchmark(), [*trials(), *runs]))
    rows = [line for line in lines if line.startswith("| AN")]
    assert "70.5 ± 0.7" in rows[0]
    assert "30.0 ± 0.0" in rows[1]


def test_interval_is_corrected_for_the_number_of_comparisons() -> None:
    """Differences 1 and 3: mean 2, sd sqrt(2), n = 2; t with one degree of freedom is tan(pi (p - 1/2))."""
    values, base = {0: 1.0, 1: 3.0}, {0: 0.0, 1: 0.0}
    for comparisons in (1, 10):
        half = math.tan(math.pi * (0.5 - 0.025 / comparisons))
        assert tuning.corrected(values, base, comparisons) == f"+2.0 [{2 - half:+.1f}, {2 + half:+.1f}]"
    assert tuning.corrected({0: 1.0}, {0: 0.0}, 1) == "–"


def test_costs_are_those_of_what_complete_validation_chose() -> None:
    """For AN that is the rate .1 with .2; the solved head takes twice its time and 3 MB more."""

    def costing(found: Any, seconds: float, memory: float) -> Any:
        last = {"mAP": 1.0, "predicted": 2.5}
        return {**found, "last": last, "cpu_seconds_per_epoch": seconds, "peak_memory_mb": memory}

    runs = [costing(record("an", seed, 0.1, 0.2, 5, 2, 70.0), 1.0, 10.0) for seed in (0, 1)]
    runs += [costing(record("an", 0, 0.2, 0.1, 5, 2, 30.0), 99.0, 99.0)]
    runs += [costing(record("lr", seed, 0.0, None, 1, 1, 60.0), 2.0, 13.0) for seed in (20, 0)]
    rows = list(tuning.costs(benchmark(), [*trials(), *runs]))
    assert rows[2:] == ["| AN | 2.5 | – | 1.00 | +0 |", "| solved | 2.5 | – | 2.00 | +3 |"]
