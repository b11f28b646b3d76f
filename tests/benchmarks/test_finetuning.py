"""Fine-tuning: trials come first and on their own seed, and the table compares by seed with the first chosen method."""

import importlib
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
finetuning, protocol = (importlib.import_module(name) for name in ("finetuning", "protocol"))
sys.path.remove(str(BENCHMARKS))


def read():
    return protocol.read_setup(BENCHMARKS / "finetuning.toml", finetuning.FineTuning)


def test_all_methods_have_as_many_trials_on_all_sets_and_the_chosen_ones_are_among_them():
    benchmark = read()
    methods = benchmark.methods
    trials = [m for m, method in methods.items() if not method.label]
    starts = ("bce lr ", "bce solved lr ", "en lr ")
    assert [sum(name.startswith(start) for name in trials) for start in starts] == [6, 6, 6]
    assert benchmark.trial_sets == benchmark.sets
    for method in methods.values():
        same = method.model_dump(exclude={"label"})
        assert any(methods[trial].model_dump(exclude={"label"}) == same for trial in trials), method.label


def test_trials_are_run_on_the_development_seed_and_nothing_else_is():
    jobs = finetuning.jobs(read(), [0, 1])
    for job in jobs:
        assert (job.seed == finetuning.DEV) is (not read().methods[job.method].label)
    seeds = [job.seed for job in jobs]
    assert seeds == sorted(seeds, key=[finetuning.DEV, 0, 1].index)
    assert len(set(jobs)) == len(jobs)


def record(method, set_name, seed, test, val=50.0):
    return {"method": method, "set": set_name, "seed": seed, "last": {"mAP": test}, "chosen": {"val_mAP": val},
            "cpu_seconds": 20.0}  # fmt: skip


def test_the_table_compares_by_seed_and_over_sets():
    """Differences on each set are 1 and 3 (mean 2, t interval 2 ± 12.7); of the means over sets likewise."""
    full = read()
    names = list(full.methods)[:2]
    methods = {
        "trial": full.methods[names[0]].model_copy(update={"label": ""}),
        "a": full.methods[names[0]].model_copy(update={"label": "BCE"}),
        "b": full.methods[names[1]].model_copy(update={"label": "EN"}),
    }
    benchmark = full.model_copy(update={"sets": ("voc2", "ccp"), "trial_sets": ("voc2", "ccp"), "methods": methods})
    records = [record("trial", s, finetuning.DEV, 0.0, v) for s, v in (("voc2", 60.0), ("ccp", 31.0))]
    for s, base in (("voc2", 60.0), ("ccp", 30.0)):
        records += [record("a", s, 0, base), record("a", s, 1, base), record("b", s, 0, base + 1)]
        records += [record("b", s, 1, base + 3)]
    lines = [*finetuning.table(benchmark, records)]
    assert lines[2] == "| trial | 60.0 | 31.0 | 45.50 |"
    assert lines[-2] == "| BCE | 60.0 ± 0.0 | 30.0 ± 0.0 | 45.0 ± 0.0 | 20 |"
    difference = "(+2.0 [-10.7, +14.7])"
    assert lines[-1] == f"| EN | 62.0 ± 1.4 {difference} | 32.0 ± 1.4 {difference} | 47.0 ± 1.4 {difference} | 20 |"
