"""The tables of the pretraining benchmark from made-up runs."""

import importlib
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
table = importlib.import_module("pretraining_table")
sys.path.remove(str(BENCHMARKS))

LABELS = {"scratch": "from scratch", "moco": "MoCo-v2", "mls": "MLS", "mls_k1": "MLS, k 1"}


def encoder(method, seed, knn, linear, **changes):
    """One line of an encoder."""
    record = {
        "part": "encoder", "method": method, "seed": seed, "label": LABELS[method], "task": None,
        "sweep": method == "mls_k1", "order": [0, list(LABELS).index(method)], "photos": 3520, "knn_test": knn,
        "linear100": {"test": linear, "val": 1.0}, "feature_spread": 0.5,
    }  # fmt: skip
    if method != "scratch":
        record |= {
            "track": {
                "loss": [5.0, 4.0], "spread": [0.6, 0.8], "mean_key": [0.5, 0.1], "positive": [0.2, 0.9],
                "infonce": [], "neighbour_loss": [], "neighbours_met": [], "neighbours_kept": [],
            },
            "fingerprint": None,
            "cpu_seconds": 80 + seed,
        }  # fmt: skip
    return record | changes


def task(method, seed, reached):
    return {
        "part": "single300", "method": method, "seed": seed, "label": LABELS[method], "task": "one label, 300 photos",
        "sweep": False, "order": [1, list(LABELS).index(method)], "mAP_test": reached,
    }  # fmt: skip


MLS = {
    "track": {
        "loss": [5.0, 4.0], "infonce": [4.5, 3.5], "spread": [0.3, 0.04], "mean_key": [0.5, 0.99],
        "positive": [0.9, 0.99], "neighbour_loss": [4.9, 4.91], "neighbours_met": [0.0, 2.0],
        "neighbours_kept": [0.0, 0.5],
    },
    "fingerprint": 4.90921,
}  # fmt: skip


def sections(records):
    """The rows of every table, by title."""
    found, title = {}, ""
    for line in table.report(records):
        title = line.strip("# \n") if line.startswith("###") else title
        if line.startswith("|") and not line.startswith("| ---"):
            found.setdefault(title, []).append(line)
    return found


def test_pages_compare_seed_by_seed():
    """MLS - MoCo: 1, 2, 3 in k-NN: mean 2, half width 4.3027 x 1 / sqrt(3) = 2.484. Scratch - MoCo: -2 in all seeds."""
    records = [
        *(encoder("mls", s, 21.0 + 2 * s, 30.0, **MLS) for s in range(3)),
        *(encoder("moco", s, 20.0 + s, 30.0) for s in range(3)),
        *(encoder("scratch", s, 18.0 + s, 25.0) for s in range(3)),
    ]
    found = sections(records)
    assert found["Probes of the frozen encoder"] == [
        "| encoder | seeds | k-NN, 3,520 labels | - MoCo-v2 | linear, 100 | - MoCo-v2 |",
        "| from scratch | 3 | 19.0 ± 1.0 | -2.0 [-2.0, -2.0] | 25.0 ± 0.0 | -5.0 [-5.0, -5.0] |",
        "| MoCo-v2 | 3 | 21.0 ± 1.0 |  | 30.0 ± 0.0 |  |",
        "| MLS | 3 | 23.0 ± 2.0 | +2.0 [-0.5, +4.5] | 30.0 ± 0.0 | +0.0 [+0.0, +0.0] |",
    ]
    assert found["Did it collapse?"] == [
        "| encoder | spread of z | smallest | mean key | positive cosine | InfoNCE | L_ml | if collapsed "
        "| neighbours changed | spread of g, test | CPU s |",
        "| from scratch |  |  |  |  |  |  |  |  | 0.500 |  |",
        "| MoCo-v2 | 0.800 | 0.600 | 0.100 | 0.900 | 4.000 |  |  |  | 0.500 | 81 |",
        "| MLS | 0.040 | 0.040 | 0.990 | 0.990 | 3.500 | 4.910 | 4.909 | 75 % | 0.500 | 81 |",
    ]
    assert "Sweeps, one seed" not in found


def test_tasks_are_compared_with_scratch_and_with_the_plain_method():
    records = [task("scratch", 0, 20.0), task("moco", 0, 22.0), task("mls", 0, 21.5)]
    assert sections([*records, encoder("moco", 0, 20.0, 30.0)])["The whole net on few labels"] == [
        "| task | start | seeds | test mAP | - from scratch | - MoCo-v2 |",
        "| one label, 300 photos | from scratch | 1 | 20.0 |  | -2.0 |",
        "| one label, 300 photos | MoCo-v2 | 1 | 22.0 | +2.0 |  |",
        "| one label, 300 photos | MLS | 1 | 21.5 | +1.5 | -0.5 |",
    ]


def test_sweeps_stand_beside_the_runs_of_their_seed():
    records = [
        *(encoder("moco", s, 20.0 + s, 30.0) for s in range(2)),
        *(encoder("mls", s, 21.0 + s, 31.0, **MLS) for s in range(2)),
        encoder("mls_k1", 0, 19.0, 29.0, **MLS),
    ]
    assert sections(records)["Sweeps, one seed"] == [
        "| encoder | k-NN, 3,520 labels | linear, 100 | spread of z | mean key | neighbours changed |",
        "| MoCo-v2 | 20.0 | 30.0 | 0.800 | 0.100 |  |",
        "| MLS | 21.0 | 31.0 | 0.040 | 0.990 | 75 % |",
        "| MLS, k 1 | 19.0 | 29.0 | 0.040 | 0.990 | 75 % |",
    ]
    assert "MLS, k 1" not in "".join(sections(records)["Probes of the frozen encoder"])
