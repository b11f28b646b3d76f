"""How methods use more labels: one positive for each photo, then 10, 40, 75 and 100 % of all cells.

    python benchmarks/partial_labels.py --out benchmarks/results/partial_labels.jsonl
    python benchmarks/partial_labels.py --out benchmarks/results/partial_labels.jsonl --table

A share is that of all (photo, class) cells, positive and negative alike, drawn independently of each other; a larger
share contains a smaller one. ("75 %" and "40 %" of Hill's lists are shares of the positives, without any negative.)
BCE ignores unknown cells, AN counts them as negative, and the others do so until something speaks against it.

Everything else is that of `equal_tuning.py`: trials on the label seed `trial_seed` for each set, method and share, then
the best trial on the label seeds 0 and up; trial and epoch are chosen by mAP on `val_images` completely labelled
validation photos. Methods without maps learn from pooled features, which gives the same numbers in less time.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

import equal_tuning
from equal_tuning import Job, Methods, final_jobs, read_records, trial_jobs
from fewtags.budget.simulate import keep, single_positive
from fewtags.engine.sources import ViewFeatures
from fewtags.errors import FewtagsError
from fewtags.table.table import LabelTable
from frozen import Material, features_folder, fill, open_material, plain_reader
from photo_sets import Name, load
from protocol import append_line, read_setup, script_arguments, seed_numbers
from table import mean_and_sd, mean_over_sets, paired

FILE = Path(__file__).with_suffix(".toml")
SHARES = ("one", "10", "40", "75", "100")
"""What is known of the labels: one positive for each photo, or percent of all cells."""
CRITERION = "complete"
WITH_MAPS = ("en_scl",)
SAME_AT_100 = {"en_solved": "bce_solved", "lr": "bce_solved", "ll_r": "an"}
"""Where all cells are known, these methods have the loss of another one; it is not run twice."""

Record = dict[str, Any]


@final
@dataclass(frozen=True)
class ShareJob:
    """One run."""

    known: str
    job: Job


def known_labels(truth: LabelTable, known: str, seed: int) -> LabelTable:
    """The labels that a share leaves."""
    if known == "one":
        return single_positive(truth, seed)
    return keep(truth, positives=int(known) / 100, negatives=int(known) / 100, seed=seed)


def run(benchmark: Methods, job: ShareJob, material: Material, plain: Tensor) -> Record:
    """Train once, and measure."""
    known = known_labels(material.data.train_truth, job.known, job.job.seed)
    record = equal_tuning.run(benchmark, job.job, material, plain, known)
    kept = ("set", "method", "rate", "value", "seed", "protocol")
    chosen = {name: record[CRITERION][name] for name in ("epoch", "value", "mAP", "predicted")}
    return {"known": job.known, **{name: record[name] for name in kept}, CRITERION: chosen}


def pooled(material: Material) -> Material:
    """The material with one mean for each feature map, for heads that need no places."""
    views = ViewFeatures(means(material.views.features), material.views.views)
    return replace(material, views=views, val=means(material.val), test=means(material.test), regions=())


def means(features: Tensor) -> Tensor:
    """[..., d, h, w] -> [..., d, 1, 1]."""
    return features.mean((-2, -1), keepdim=True)


def pairs(name: Name, methods: Sequence[str], known: str) -> list[tuple[Name, str]]:
    """The methods on a set; BCE has nothing to learn from where no negative is known."""
    left_out = [*SAME_AT_100] if known == "100" else ["bce_solved"] if known == "one" else []
    return [(name, method) for method in methods if method not in left_out]


def wanted_jobs(
    benchmark: Methods, records: Sequence[Record], name: Name, methods: Sequence[str], seeds: Sequence[int]
) -> Iterator[ShareJob]:
    """The trials that are not done; without any left, the runs of what they chose that are not done."""
    done = {ShareJob(r["known"], Job(r["set"], r["method"], r["seed"], r["rate"], r["value"])) for r in records}
    for known in SHARES:
        chosen = pairs(name, methods, known)
        tuned = [pair for pair in chosen if benchmark.methods[pair[1]].stages is None]
        own = share_records(benchmark, records, known)
        for job in (*trial_jobs(benchmark, tuned), *final_jobs(benchmark, own, chosen, seeds, (CRITERION,))):
            if ShareJob(known, job) not in done:
                yield ShareJob(known, job)


def share_records(benchmark: Methods, records: Sequence[Record], known: str) -> list[Record]:
    """The runs with a share, and in place of the trial of a solved head, which has nothing to choose, a line."""
    solved = [(s, m) for s in benchmark.sets for m, tuned in benchmark.methods.items() if tuned.stages is not None]
    common = {"seed": benchmark.trial_seed, "rate": 0.0, "value": None, CRITERION: {"value": 0.0}}
    return [
        *(record for record in records if record["known"] == known),
        *({"set": name, "method": method, **common} for name, method in solved),
    ]


def table(benchmark: Methods, records: Sequence[Record]) -> Iterator[str]:
    """Markdown: test mAP by method and share over the sets, paired differences, and test mAP for each set."""
    runs = {known: _test_maps(benchmark, share_records(benchmark, records, known)) for known in SHARES}
    for method, same in SAME_AT_100.items():
        runs["100"].update({(s, method): runs["100"].get((s, same), {}) for s in benchmark.sets})
    heads = ["one label", *(f"{known} %" for known in SHARES[1:])]

    def over_sets(method: str, known: str) -> dict[int, float]:
        return mean_over_sets([runs[known].get((s, method), {}) for s in benchmark.sets])

    yield f"| mean of the sets | {' | '.join(heads)} |"
    yield "|" + "---|" * (1 + len(heads))
    for method, tuned in benchmark.methods.items():
        values = [[*over_sets(method, known).values()] for known in SHARES]
        yield f"| {tuned.label} | {' | '.join(mean_and_sd(v) if v else '–' for v in values)} |"
    yield ""
    base = "lr"
    yield f"| minus {benchmark.methods[base].label} | {' | '.join(heads)} |"
    yield "|" + "---|" * (1 + len(heads))
    for method, tuned in benchmark.methods.items():
        if method != base:
            found = [paired(over_sets(method, known), over_sets(base, known)) for known in SHARES]
            yield f"| {tuned.label} | {' | '.join(str(f or '–') for f in found)} |"
    for name in benchmark.sets:
        yield ""
        yield f"| {name} | {' | '.join(heads)} |"
        yield "|" + "---|" * (1 + len(heads))
        for method, tuned in benchmark.methods.items():
            maps = [runs[known].get((name, method), {}) for known in SHARES]
            yield f"| {tuned.label} | {' | '.join(f'{statistics.mean(m.values()):.1f}' if m else '–' for m in maps)} |"


def _test_maps(benchmark: Methods, records: Sequence[Record]) -> dict[tuple[str, str], dict[int, float]]:
    """By (set, method): test mAP of the chosen trial, by seed."""
    found = equal_tuning.final_records(benchmark, records, CRITERION)
    return {key: {seed: r[CRITERION]["mAP"] for seed, r in runs.items()} for key, runs in found.items()}


def main() -> None:
    benchmark = read_setup(FILE, Methods)
    parser = script_arguments(__doc__, benchmark.sets, benchmark.sets)
    parser.add_argument("--methods", nargs="+", choices=benchmark.methods, default=list(benchmark.methods))
    parser.add_argument("--seeds", help="0-4, or 0,3")
    options = parser.parse_args()
    try:
        if options.table:
            shown = benchmark.model_copy(update={"sets": tuple(options.sets)})
            print("\n".join(table(shown, read_records(benchmark, options.out))))
            return
        torch.set_num_threads(1)
        seeds = seed_numbers(options.seeds, benchmark.seeds)
        for name in options.sets:
            data = load(name, options.data, options.cache)
            folder = features_folder(benchmark, data, options.cache)
            if not folder.exists():
                fill(benchmark, data, folder)
            material = open_material(data, folder)
            plain, small = means(plain_reader(benchmark, options.cache)(material)), pooled(material)
            gc.freeze()  # no run goes through the objects that are there before it
            while jobs := list(
                wanted_jobs(benchmark, read_records(benchmark, options.out), name, options.methods, seeds)
            ):
                for job in jobs:
                    chosen = material if job.job.method in WITH_MAPS else small
                    record = run(benchmark, job, chosen, plain)
                    append_line(options.out, record)
                    print(f"{job.known} {job.job}: test mAP {record[CRITERION]['mAP']:.1f}", file=sys.stderr)
    except FewtagsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
