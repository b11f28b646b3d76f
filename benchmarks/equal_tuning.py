r"""Every method for one positive label per photo on a frozen trunk, tuned alike.

    python benchmarks/equal_tuning.py benchmarks/equal_tuning.toml --out benchmarks/results/equal_tuning.jsonl \
        --trials benchmarks/results/equal_tuning_trials.jsonl           # and --table to print what is there

Each method gets the same number of trials on each set: every learning rate with every value of its one parameter, on
the label seed `trial_seed`. The best trial then runs on the label seeds 0 and up. It is chosen twice, in the two
situations of a user: by mAP on `val_images` photos with complete labels, and on the same photos with one positive label
each, by mAP with unknown counted as absent. The same criterion chooses the epoch of every run, and nothing is
chosen on test.
K is that of the complete validation labels in both situations, which favours methods that know K in the second one.
A solved head has no learning rate: its "epochs" are strengths of regularisation, and it needs no trials.

A trial whose line is there is not done again, so an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor, nn

from fewtags.budget.simulate import single_positive
from fewtags.config.sections import Settings, StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import sigmoid
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.methods import derive_objective, settings_models
from fewtags.engine.sources import StoredViews
from fewtags.errors import ConfigError, FewtagsError
from fewtags.labels import Label, LabelMatrix
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.pool import Pool, PoolName
from fewtags.nets.spatial import HeadPlan
from fewtags.objectives.base import Problem, RunFacts
from fewtags.photos.loader import EpochSampler
from fewtags.table.table import LabelTable
from frozen import Above, Material, fixed_views, make_net, plain_reader
from photo_sets import Name
from protocol import Setup, check_objective, digest, other_settings, read_lines, read_setup, seed_numbers
from single_positive import Record, arguments, execute, localise, peak_memory, positives_per_image, predict
from table import mean_and_sd, mean_over_sets

CRITERIA = ("complete", "single")
POOL_FACTOR = "pool_boost"
VAL_SEED = 1000  # the positives of validation photos are drawn apart from those of training photos


@final
class Tuned(Settings):
    """A method, and the parameter that its trials vary: a setting of the objective, weight_decay, or pool_boost."""

    label: str
    objective: dict[str, Any]
    labels: Literal["single", "complete"] = "single"
    pool: PoolName = "mean"
    parameter: str = ""
    values: tuple[Any, ...] = ()
    stages: tuple[StageConfig, ...] | None = None


@final
class Methods(Setup):
    """The file: `stages` have learning rates relative to that of the trial."""

    trial_seed: int
    rates: tuple[float, ...]
    val_images: int
    methods: dict[str, Tuned]

    def protocol(self, method: str) -> str:
        """A digest of everything that decides a run beside set, method name, trial and seed."""
        shared = self.model_dump(mode="json", exclude={"sets", "seeds", "methods", "rates", "trial_seed"})
        return digest([shared, self.methods[method].model_dump(mode="json", exclude={"label", "values"})])

    def trials(self, method: str) -> list[tuple[float, Any]]:
        """The (rate, value of the parameter) of every trial; one without either for a solved head."""
        tuned = self.methods[method]
        return [(0.0, None)] if tuned.stages is not None else list(itertools.product(self.rates, tuned.values))


@final
@dataclass(frozen=True)
class Job:
    """One run."""

    set_name: Name
    method: str
    seed: int
    rate: float
    value: Any

    def __str__(self) -> str:
        return f"{self.set_name} {self.method} rate {self.rate:g} value {self.value} seed {self.seed}"


# --- a run


def run(benchmark: Methods, job: Job, material: Material, plain: Tensor, known: LabelTable | None = None) -> Record:
    """Train once on the labels of the method, or on `known`; measure test at the epoch that each criterion chooses."""
    before = peak_memory()
    tuned, data = benchmark.methods[job.method], material.data
    truth = data.train_truth
    if known is None:
        known = truth if tuned.labels == "complete" else single_positive(truth, job.seed)
    train = known.matrix
    changed = {} if tuned.parameter in ("", "weight_decay", POOL_FACTOR) else {tuned.parameter: job.value}
    pool = Pool(tuned.pool, boost=job.value) if tuned.parameter == POOL_FACTOR else Pool(tuned.pool)
    net = make_net(benchmark, len(truth.classes), job.seed, HeadPlan(pool=pool))
    above = Above(net, benchmark.trained_blocks)
    stages = tuned.stages or tuple(
        stage.model_copy(update={"lr": job.rate * (stage.lr or 1.0)}) for stage in benchmark.stages
    )
    decay = job.value if tuned.parameter == "weight_decay" else 0.0
    config = FitConfig(stages=stages, seed=job.seed, weight_decay=decay, optimizer="adamw", batchnorm_eval=True)
    settings = settings_models()[tuned.objective["name"]].model_validate({**tuned.objective, **changed})
    grid = net.grid((benchmark.size, benchmark.size))
    objective, _ = derive_objective(settings, _facts(train, config, grid, positives_per_image(data)))
    sampler = EpochSampler(len(truth), benchmark.batch_size, job.seed)
    criteria = Criteria(benchmark, material, job.seed)
    best: dict[str, tuple[float, int, dict[str, Tensor]]] = {}
    epoch = 0

    def validate(_: nn.Module) -> Mapping[str, float]:
        nonlocal epoch
        epoch += 1
        values = criteria(above)
        for name, value in values.items():
            if name not in best or value > best[name][0]:
                best[name] = (value, epoch, {k: v.clone() for k, v in above.state_dict().items()})
        return {"mAP": values["complete"], "predicted_positives": 0.0}

    fit = Fit(
        net,
        objective,
        StoredViews(material.views, sampler, train),
        config,
        Problem(
            labels=train,
            grid=grid,
            warmup_epochs=config.warmup_epochs,
            epochs=config.epochs,
            seed=job.seed,
            truth=truth.matrix,
            features_dim=net.head.features_dim,
        ),
        accelerator=make_accelerator(cpu=True),
        model=above,
        fixed=fixed_views(above, plain, sampler, train),
        validate=validate,
        predict=lambda _: torch.from_numpy(predict(above, plain)),
    )
    records = [event.record for event in fit.run() if isinstance(event, EpochEnded)]
    last = look(above, material)
    chosen = {}
    for name, (value, number, state) in best.items():
        above.load_state_dict(state)
        chosen[name] = {"epoch": number, "value": round(100 * value, 3), **look(above, material)}
        if material.regions and job.seed != benchmark.trial_seed:
            chosen[name] |= {k: localise(above, material)[k] for k in ("pointing", "ioa_p")}
    return {
        "benchmark": benchmark.name,
        "set": job.set_name,
        "method": job.method,
        "rate": job.rate,
        "value": job.value,
        "seed": job.seed,
        "protocol": benchmark.protocol(job.method),
        "last": last,
        **chosen,
        "cpu_seconds_per_epoch": round(statistics.median(float(r["cpu_seconds"]) for r in records), 3),
        "peak_memory_mb": round(peak_memory() - before, 1),
    }


def _facts(train: LabelMatrix, config: FitConfig, grid: tuple[int, int], positives: float) -> RunFacts:
    known = {state: train.image_counts(state) for state in (Label.POSITIVE, Label.NEGATIVE)}
    return RunFacts(
        samples=train.shape[0],
        classes=train.shape[1],
        grid=grid,
        epochs=config.epochs,
        positives=int(known[Label.POSITIVE].sum()),
        negatives=int(known[Label.NEGATIVE].sum()),
        most_positives=int(known[Label.POSITIVE].max()),
        positives_per_image=positives,
        head_solved=any(stage.solved and not stage.warmup for stage in config.stages),
        warmup_solved=config.stages[0].solved,
    )


@final
class Criteria:
    """mAP (0 to 1) of a head on the validation photos with complete labels, and with one positive label each."""

    def __init__(self, benchmark: Methods, material: Material, seed: int) -> None:
        val, self.scored = material.data.val, material.data.scored_index
        index = np.sort(np.random.default_rng(0).permutation(len(val))[: benchmark.val_images])
        complete = val.subset(index)
        single = single_positive(complete, seed + VAL_SEED).matrix.dense()
        self.features = material.val[torch.from_numpy(index)]
        absent = np.where(single == Label.UNKNOWN, np.int8(Label.NEGATIVE), single)
        self.labels = {"complete": complete.matrix.dense()[:, self.scored], "single": absent[:, self.scored]}

    def __call__(self, above: Above) -> dict[str, float]:
        """Measure the head."""
        logits = predict(above, self.features)[:, self.scored].astype(np.float64)
        return {name: ranking_report(logits, labels).mean_average_precision for name, labels in self.labels.items()}


def look(above: Above, material: Material) -> Record:
    """Test mAP in percent, and the predicted and true number of positives per photo over the scored classes."""
    scored, labels = material.data.scored_index, material.data.test.matrix.dense()
    logits: NDArray[np.float32] = predict(above, material.test)[:, scored]
    report = ranking_report(logits.astype(np.float64), labels[:, scored])
    return {
        "mAP": round(100 * report.mean_average_precision, 3),
        "predicted": round(float(sigmoid(logits).sum(1).mean()), 3),
    }


# --- the grid


def chosen_trials(benchmark: Methods, records: Sequence[Record], criterion: str) -> dict[tuple[str, str], Record]:
    """By (set, method): the trial with the best value of a criterion, for pairs whose trials are all there."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record["seed"] == benchmark.trial_seed and record["method"] in benchmark.methods:
            found[record["set"], record["method"]].append(record)
    return {
        (name, method): max(trials, key=lambda r: r[criterion]["value"])
        for (name, method), trials in found.items()
        if len(trials) == len(benchmark.trials(method))
    }


def trial_jobs(benchmark: Methods, wanted: Sequence[tuple[Name, str]]) -> list[Job]:
    """The trials of pairs of a set and a method."""
    return [Job(s, m, benchmark.trial_seed, *trial) for s, m in wanted for trial in benchmark.trials(m)]


def final_jobs(
    benchmark: Methods,
    records: Sequence[Record],
    wanted: Sequence[tuple[Name, str]],
    seeds: Sequence[int],
    criteria: Sequence[str] = CRITERIA,
) -> list[Job]:
    """The runs of what the trials chose, seed by seed; one where several criteria chose the same."""
    best = [chosen_trials(benchmark, records, criterion) for criterion in criteria]
    jobs = [
        Job(s, m, seed, trials[s, m]["rate"], trials[s, m]["value"])
        for seed in seeds
        for s, m in wanted
        for trials in best
        if (s, m) in trials
    ]
    return list(dict.fromkeys(jobs))


def wanted_pairs(benchmark: Methods, only: str | None) -> list[tuple[Name, str]]:
    """The (set, method) pairs of "SET", "SET:METHOD" or ":METHOD", separated by commas; all without it.

    Raises:
        ConfigError: a set or a method that the file does not have.
    """
    pairs = []
    for item in (only or ":").split(","):
        set_name, _, method = item.partition(":")
        for name, known in ((set_name, benchmark.sets), (method, tuple(benchmark.methods))):
            if name and name not in known:
                raise ConfigError(f"--only {item}: {name!r} is not in {benchmark.name}; known: {', '.join(known)}.")
        pairs += [
            (s, m) for s in benchmark.sets for m in benchmark.methods if set_name in ("", s) and method in ("", m)
        ]
    return list(dict.fromkeys(pairs))


# --- the table


def table(benchmark: Methods, records: Sequence[Record]) -> Iterator[str]:
    """Markdown: for each criterion, test mAP by method and set, and what else was measured."""
    for criterion in CRITERIA:
        runs = _final_runs(benchmark, records, criterion)
        methods = [m for m in benchmark.methods if any((s, m) in runs for s in benchmark.sets)]
        compared = [m for m in methods if m not in ("an", "full")]
        yield f"Trial and epoch chosen with {_described(benchmark, criterion)}:"
        yield ""
        yield f"| test mAP | {' | '.join(benchmark.sets)} | mean | mean - AN | pointing |"
        yield "|" + "---|" * (4 + len(benchmark.sets))
        for method in methods:
            cells = [_mean(runs.get((s, method), {}), "mAP") for s in benchmark.sets]
            values = _over_sets(runs, benchmark.sets, method, "mAP")
            difference = ""
            if method in compared:
                difference = corrected(values, _over_sets(runs, benchmark.sets, "an", "mAP"), len(compared))
            pointing = _over_sets(runs, benchmark.sets, method, "pointing")
            mean = mean_and_sd([*values.values()]) if values else "–"
            point = f"{statistics.mean(pointing.values()):.1f}" if pointing else "–"
            yield f"| {benchmark.methods[method].label} | {' | '.join(cells)} | {mean} | {difference} | {point} |"
        yield ""


def costs(benchmark: Methods, records: Sequence[Record]) -> Iterator[str]:
    """Markdown: labels a photo that the last epoch predicts, by set, and CPU time and memory beside AN."""
    runs = final_records(benchmark, records, "complete")
    yield f"| | {' | '.join(f'predicted, {s}' for s in benchmark.sets)} | CPU of an epoch / AN | memory - AN, MB |"
    yield "|" + "---|" * (3 + len(benchmark.sets))
    for method in benchmark.methods:
        own = {s: [*runs[s, method].values()] for s in benchmark.sets if (s, method) in runs and (s, "an") in runs}
        if not own:
            continue
        predicted = [
            f"{statistics.mean(r['last']['predicted'] for r in own[s]):.1f}" if s in own else "–"
            for s in benchmark.sets
        ]
        others = {s: [*runs[s, "an"].values()] for s in own}
        times, memory = (
            {s: _medians(own[s], others[s], key) for s in own} for key in ("cpu_seconds_per_epoch", "peak_memory_mb")
        )
        ratio = statistics.mean(a / b for a, b in times.values())
        more = statistics.mean(a - b for a, b in memory.values())
        yield f"| {benchmark.methods[method].label} | {' | '.join(predicted)} | {ratio:.2f} | {more:+.0f} |"


def _medians(own: Sequence[Record], others: Sequence[Record], key: str) -> tuple[float, float]:
    return statistics.median(r[key] for r in own), statistics.median(r[key] for r in others)


def _described(benchmark: Methods, criterion: str) -> str:
    kind = "complete labels" if criterion == "complete" else "one positive label each, unknown counted as absent"
    return f"{benchmark.val_images} validation photos ({kind})"


def _final_runs(
    benchmark: Methods, records: Sequence[Record], criterion: str
) -> dict[tuple[str, str], dict[int, Record]]:
    """By (set, method): what the criterion's choice reached, by seed."""
    found = final_records(benchmark, records, criterion)
    return {key: {seed: record[criterion] for seed, record in runs.items()} for key, runs in found.items()}


def final_records(
    benchmark: Methods, records: Sequence[Record], criterion: str
) -> dict[tuple[str, str], dict[int, Record]]:
    """By (set, method): the runs of the criterion's choice, by seed."""
    best = chosen_trials(benchmark, records, criterion)
    runs: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in records:
        key = (record["set"], record["method"])
        trial = best.get(key)
        if trial is None or record["seed"] == benchmark.trial_seed:
            continue
        if (record["rate"], record["value"]) == (trial["rate"], trial["value"]):
            runs[key][record["seed"]] = record
    return runs


def _mean(runs: Mapping[int, Record], key: str) -> str:
    return mean_and_sd([r[key] for r in runs.values()]) if runs else "–"


def _over_sets(
    runs: Mapping[tuple[str, str], Mapping[int, Record]], sets: Sequence[str], method: str, key: str
) -> dict[int, float]:
    """By seed, the mean over the sets; seeds that a set lacks are left out."""
    return mean_over_sets([{n: r[key] for n, r in runs.get((s, method), {}).items()} for s in sets])


def corrected(values: Mapping[int, float], base: Mapping[int, float], comparisons: int) -> str:
    """The mean paired difference with its 95 % interval, corrected for the number of comparisons (Bonferroni)."""
    differences = [value - base[seed] for seed, value in values.items() if seed in base]
    if len(differences) < 2:
        return "–"
    mean, sd, n = statistics.mean(differences), statistics.stdev(differences), len(differences)
    half = float(student.ppf(1 - 0.025 / comparisons, n - 1)) * sd / n**0.5
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def main() -> None:
    parser = arguments(__doc__, "equal_tuning.toml", "comma-separated SET, SET:METHOD or :METHOD")
    parser.add_argument("--trials", type=Path, help="file of the trials (default: that of --out)")
    parser.add_argument("--table", action="store_true", help="print what is there, and do nothing")
    options = parser.parse_args()
    try:
        benchmark = read_setup(options.benchmark, Methods)
        for name, tuned in benchmark.methods.items():
            check_objective(options.benchmark, tuned.objective)
            if tuned.stages is None and not tuned.values:
                raise ConfigError(f"{options.benchmark}: the method {name} has no values for its trials.")
        trials = options.trials or options.out
        records = read_records(benchmark, options.out, trials)
        if options.table:
            print("\n".join([*table(benchmark, records), *costs(benchmark, records)]))
            return

        plain = plain_reader(benchmark, options.cache)
        pairs = wanted_pairs(benchmark, options.only)
        seeds = seed_numbers(options.seeds, benchmark.seeds)

        def execute_missing(jobs: Sequence[Job], out: Path) -> None:
            done = {Job(r["set"], r["method"], r["seed"], r["rate"], r["value"]) for r in records}
            jobs = [job for job in jobs if job not in done]
            there = Namespace(**{**vars(options), "out": out})
            execute(there, benchmark, jobs, (), lambda job, material: run(benchmark, job, material, plain(material)))

        execute_missing(trial_jobs(benchmark, pairs), trials)
        records = read_records(benchmark, options.out, trials)
        execute_missing(final_jobs(benchmark, records, pairs, seeds), options.out)
    except FewtagsError as error:
        sys.exit(str(error))


def read_records(benchmark: Methods, *paths: Path) -> list[Record]:
    """The lines of result files; a file that is named twice is read once.

    Raises:
        DataError: a line was made with other settings.
    """
    records = []
    for path in dict.fromkeys(paths):
        for number, record in enumerate(read_lines(path), 1):
            method = record["method"]
            if method in benchmark.methods and record["protocol"] != benchmark.protocol(method):
                raise other_settings(path, number, method)
            records.append(record)
    return records


if __name__ == "__main__":
    main()
