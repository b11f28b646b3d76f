"""Fine-tuning of the last blocks of EfficientNet-Lite0: expected negatives from a solved head against BCE, tuned alike.

    python benchmarks/finetuning.py benchmarks/finetuning.toml --out benchmarks/results/finetuning.jsonl
    python benchmarks/finetuning.py benchmarks/finetuning.toml --out benchmarks/results/finetuning.jsonl --table

One positive label per photo. Every run goes through the library's own loop; its blocks below are a fixed function of
the view, so that each view is pushed through them once. The file names two kinds of methods: trials, which are run on
label seed 10, and the chosen ones (with a label), on seeds 0 and up. Validation labels are complete. They choose the
epoch, and between the weights and their running average, in every run alike; test is measured at that choice.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, final

from torch import Tensor, nn

from fewtags.budget.simulate import single_positive
from fewtags.config.sections import Settings, StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.sources import StoredViews
from fewtags.errors import FewtagsError
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Problem
from fewtags.photos.loader import EpochSampler
from frozen import Above, Material, fixed_views, make_net, plain_reader
from photo_sets import Name
from protocol import Job, Setup, check_objective, digest, other_settings, read_lines, read_setup, seed_numbers
from single_positive import Record, arguments, execute, look, metrics, positives_per_image, predict
from table import mean_and_sd, mean_over_sets, paired

DEV = 10  # the label seed of trials


@final
class Tuned(Settings):
    """A method: its loss and how it is trained. A trial names no label."""

    objective: dict[str, Any]
    stages: tuple[StageConfig, ...]
    label: str = ""
    labels: Literal["single", "complete"] = "single"
    weight_decay: float = 0.01


@final
class FineTuning(Setup):
    """A file of fine-tuning runs; `stages` says how many blocks are trained."""

    weight_ema: float
    trial_sets: tuple[Name, ...]
    methods: dict[str, Tuned]

    def protocol(self, method: str) -> str:
        """A digest of everything that decides a run beside set, method name and seed."""
        shared = self.model_dump(mode="json", exclude={"sets", "trial_sets", "seeds", "methods"})
        return digest([shared, self.methods[method].model_dump(mode="json", exclude={"label"})])


def run(benchmark: FineTuning, job: Job, material: Material, plain: Tensor) -> Record:
    """Train once and measure at what validation chooses."""
    method, data = benchmark.methods[job.method], material.data
    truth = data.train_truth
    train = (truth if method.labels == "complete" else single_positive(truth, job.seed)).matrix
    net = make_net(benchmark, len(truth.classes), job.seed)
    above = Above(net, benchmark.trained_blocks)
    sampler = EpochSampler(len(truth), benchmark.batch_size, job.seed)
    config = FitConfig(
        stages=method.stages,
        seed=job.seed,
        weight_decay=method.weight_decay,
        optimizer="adamw",
        weight_ema=benchmark.weight_ema,
        batchnorm_eval=True,
    )
    found: list[tuple[float, str, int, dict[str, Tensor]]] = []

    def validate(module: nn.Module) -> Mapping[str, float]:
        assert isinstance(module, SpatialNet)
        each = {"average": Above(module, benchmark.trained_blocks), "last step": above}
        values = {n: metrics(predict(a, material.val), data.val, data.scored_index)["mAP"] for n, a in each.items()}
        best = max(values, key=lambda name: values[name])
        found.append((values[best], best, len(found), {k: v.clone() for k, v in each[best].state_dict().items()}))
        return {"mAP": values[best], "predicted_positives": 0.0}

    settings = settings_models()[method.objective["name"]].model_validate(method.objective)
    problem = Problem(
        labels=train,
        grid=net.grid((benchmark.size, benchmark.size)),
        warmup_epochs=config.warmup_epochs,
        epochs=config.epochs,
        seed=job.seed,
        truth=truth.matrix,
        features_dim=net.head.features_dim,
    )
    fit = Fit(
        net,
        make_objective(settings, positives_per_image=positives_per_image(data)),
        StoredViews(material.views, sampler, train),
        config,
        problem,
        accelerator=make_accelerator(cpu=True),
        model=above,
        fixed=fixed_views(above, plain, sampler, train),
        validate=validate,
    )
    records = [event.record for event in fit.run() if isinstance(event, EpochEnded)]
    value, weights, epoch, state = max(found, key=lambda f: f[0])
    above.load_state_dict(state)
    return {
        "benchmark": benchmark.name,
        "set": job.set_name,
        "method": job.method,
        "seed": job.seed,
        "protocol": benchmark.protocol(job.method),
        "last": look(above, material),
        "chosen": {"val_mAP": round(100 * value, 3), "epoch": epoch, "weights": weights},
        "cpu_seconds": round(sum(float(r["cpu_seconds"]) for r in records), 2),
    }


def jobs(benchmark: FineTuning, seeds: Sequence[int]) -> list[Job]:
    """Trials on the development seed, then the chosen methods on the others, seed by seed."""
    trials = [
        Job(s, m, DEV) for s in benchmark.trial_sets for m, method in benchmark.methods.items() if not method.label
    ]
    chosen = [
        Job(s, m, n) for n in seeds for s in benchmark.sets for m in benchmark.methods if benchmark.methods[m].label
    ]
    return trials + chosen


def table(benchmark: FineTuning, records: Sequence[Record]) -> Iterator[str]:
    """Markdown: trials by validation mAP, then test mAP of the chosen with paired differences to the first of them."""
    runs: dict[str, dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        runs[record["method"]][record["set"]][record["seed"]] = record
    yield f"| trial (val mAP, label seed {DEV}) | {' | '.join(benchmark.trial_sets)} | mean |"
    yield "|" + "---|" * (2 + len(benchmark.trial_sets))
    for name in (m for m, method in benchmark.methods.items() if not method.label and m in runs):
        values = [runs[name][s][DEV]["chosen"]["val_mAP"] for s in benchmark.trial_sets if DEV in runs[name][s]]
        yield f"| {name} | {' | '.join(f'{v:.1f}' for v in values)} | {statistics.mean(values):.2f} |"
    chosen = {m: method.label for m, method in benchmark.methods.items() if method.label and m in runs}
    yield ""
    yield f"| test mAP | {' | '.join(benchmark.sets)} | mean over sets | CPU s of a fit |"
    yield "|" + "---|" * (3 + len(benchmark.sets))
    first = next(iter(chosen), "")
    for name, label in chosen.items():
        tests: dict[str, dict[int, float]] = {
            s: {n: r["last"]["mAP"] for n, r in runs[name][s].items()} for s in benchmark.sets
        }
        base: dict[str, dict[int, float]] = {
            s: {n: r["last"]["mAP"] for n, r in runs[first][s].items()} for s in benchmark.sets
        }
        over = [mean_over_sets([*values.values()]) for values in (tests, base)]
        pairs = zip([*tests.values(), over[0]], [*base.values(), over[1]], strict=True)
        cells = [_cell(own, other, name != first) for own, other in pairs]
        seconds = statistics.median(r["cpu_seconds"] for found in runs[name].values() for r in found.values())
        yield f"| {label} | {' | '.join(cells)} | {seconds:.0f} |"


def _cell(own: Mapping[int, float], base: Mapping[int, float], compared: bool) -> str:
    if not own:
        return "–"
    text = mean_and_sd([*own.values()])
    found = paired(own, base) if compared else None
    if found is None:
        return text
    low, high = found.mean - found.half_width, found.mean + found.half_width
    return f"{text} ({found.mean:+.1f} [{low:+.1f}, {high:+.1f}])"


def main() -> None:
    parser = arguments(__doc__, "finetuning.toml", "not used here")
    parser.add_argument("--table", action="store_true", help="print what is there, and do nothing")
    options = parser.parse_args()
    try:
        benchmark = read_setup(options.benchmark, FineTuning)
        for method in benchmark.methods.values():
            check_objective(options.benchmark, method.objective)
        records = read_lines(options.out)
        for number, record in enumerate(records, 1):
            known = record["method"] in benchmark.methods
            if known and record["protocol"] != benchmark.protocol(record["method"]):
                raise other_settings(options.out, number, record["method"])
        if options.table:
            print("\n".join(table(benchmark, records)))
            return
        done = {Job(r["set"], r["method"], r["seed"]) for r in records}

        plain = plain_reader(benchmark, options.cache)
        wanted = jobs(benchmark, seed_numbers(options.seeds, benchmark.seeds))
        execute(options, benchmark, wanted, done, lambda job, material: run(benchmark, job, material, plain(material)))
    except FewtagsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
