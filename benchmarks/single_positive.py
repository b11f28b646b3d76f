"""One positive label per image: every method on the same labels, views, order and initial head, paired by seed.

    python benchmarks/single_positive.py benchmarks/quick.toml --out benchmarks/results/quick.jsonl
    python benchmarks/table.py benchmarks/results/quick.jsonl > docs/benchmarks.md

One run is one line of JSON. A run whose line is there already is skipped, so that an interrupted benchmark goes on
where it stopped. Nothing is chosen on the test part: it is measured at the last epoch and at the best validation epoch.

The blocks that no stage trains are a fixed function of the view, because BatchNorm is in eval mode. Each of the V views
of an image is pushed through them once, kept in `benchmarks/cache/features`, and shared by all methods and seeds. With
V equal to the number of epochs that is training on fresh crops, since no crop comes back within a run. (Delete that
folder after a change to how photos are read or cropped.)

Every run is a process of its own with one thread, forked from this one: it shares the features, and the peak of its
memory beyond what it began with is the run's own.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.budget.simulate import single_positive
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.evaluate import sigmoid
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.sources import StoredViews
from fewtags.errors import FewtagsError
from fewtags.labels import Label
from fewtags.metrics.ranking import ranking_report
from fewtags.objectives.base import Problem
from fewtags.photos.loader import EpochSampler
from fewtags.table.table import LabelTable
from frozen import EVAL_BATCH, Above, Material, features_folder, fill, make_net, open_material
from photo_sets import CACHE, DATA, REPOSITORY, BenchmarkSet, Name, chance, load
from protocol import Benchmark, Job, Setup, choose_jobs, read_benchmark, read_done
from regions import localisation_report

UNSEEN = "Seq05VD"  # CamVid's sequence that occurs in the test part only; reported apart

Record = dict[str, Any]


class HasSet(Protocol):
    """What `execute` must know of a run; its text says which run it is."""

    @property
    def set_name(self) -> Name:
        """The data it is on."""
        ...


AnyJob = TypeVar("AnyJob", bound=HasSet)


def run(benchmark: Benchmark, job: Job, material: Material) -> Record:
    """Train once, through the library's own loop, and measure."""
    before = peak_memory()
    fit, above = make_fit(benchmark, job, material)
    records, best, best_epoch = train(fit, above)
    last, found = look(above, material), localise(above, material)
    above.load_state_dict(best)
    main = [r["cpu_seconds"] for r in records if r["stage"] == benchmark.stages[-1].name]
    return {
        **identity(benchmark, job, material),
        "last": last,
        "best": {"epoch": best_epoch, **look(above, material)},
        "expected_precision": _share(records[-1].get("state/expected_positives_precision")),
        "expected_recall": _share(records[-1].get("state/expected_positives_recall")),
        "val_mAP_by_epoch": [_percent(r["val/mAP"]) for r in records],
        "predicted_by_epoch": [_rounded(r["val/predicted_positives"]) for r in records],
        "localisation": found,
        "cpu_seconds_per_epoch": _rounded(statistics.median(main)),
        "peak_memory_mb": round(peak_memory() - before, 1),
        "machine": f"{cores()} cores, torch {torch.__version__}",
    }


def train(fit: Fit, above: Above) -> tuple[list[Mapping[str, Any]], dict[str, Tensor], int]:
    """Train to the end: the record of every epoch, the weights at the best validation epoch, and its number from 1."""
    records: list[Mapping[str, Any]] = []
    best: dict[str, Tensor] = {}
    best_epoch = 0
    for event in fit.run():
        if isinstance(event, EpochEnded):
            records.append(event.record)
            if event.best:
                best, best_epoch = {k: v.clone() for k, v in above.state_dict().items()}, len(records)
    return records, best, best_epoch


def peak_memory() -> float:
    """Of this process, in MiB. A forked process begins with what its parent holds, shared or not."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB, on Linux


def identity(benchmark: Benchmark, job: Job, material: Material) -> Record:
    """What a line says beside its results."""
    data = material.data
    return {
        "benchmark": benchmark.name,
        "set": job.set_name,
        "method": job.method,
        "seed": job.seed,
        "label": benchmark.methods[job.method].label,
        "order": list(benchmark.methods).index(job.method),
        "protocol": benchmark.protocol(job.method),
        "epochs": sum(stage.epochs for stage in benchmark.stages),
        "scored": list(data.scored),
        "chance_mAP": _percent(chance(data.test, data.scored_index)),
        "positives_per_image": _rounded(positives_per_image(data)),
    }


def positives_per_image(data: BenchmarkSet) -> float:
    """K of eq. (3), from the validation images."""
    return float(data.val.matrix.image_counts(Label.POSITIVE).mean())


def make_fit(benchmark: Benchmark, job: Job, material: Material) -> tuple[Fit, Above]:
    """The library's loop, and the part of its net that works on the cached features."""
    data, method = material.data, benchmark.methods[job.method]
    truth, scored = data.train_truth, data.scored_index
    train = truth if method.labels == "complete" else single_positive(truth, job.seed)
    settings = settings_models()[method.objective["name"]].model_validate(method.objective)
    objective = make_objective(settings, positives_per_image=positives_per_image(data))
    net = make_net(benchmark, len(truth.classes), job.seed)
    above = Above(net, benchmark.trained_blocks)
    sampler = EpochSampler(len(train), benchmark.batch_size, job.seed)
    source = StoredViews(material.views, sampler, train.matrix)
    config = FitConfig(stages=benchmark.stages, seed=job.seed, batchnorm_eval=True)
    grid = net.grid((benchmark.size, benchmark.size))
    problem = Problem(
        labels=train.matrix,
        grid=grid,
        warmup_epochs=config.warmup_epochs,
        epochs=config.epochs,
        seed=job.seed,
        truth=truth.matrix,
    )

    def validate(_: nn.Module) -> Mapping[str, float]:
        return metrics(predict(above, material.val), data.val, scored)

    accelerator = make_accelerator(cpu=True)
    fit = Fit(net, objective, source, config, problem, accelerator=accelerator, model=above, validate=validate)
    return fit, above


@torch.no_grad()
def predict(above: Above, features: Tensor) -> NDArray[np.float32]:
    """Logits [n, C] of features [n, d, h, w]."""
    above.eval()
    logits: NDArray[np.float32] = torch.cat([above.predict_logits(b) for b in features.split(EVAL_BATCH)]).numpy()
    return logits


def metrics(logits: NDArray[np.float32], table: LabelTable, scored: NDArray[np.int64]) -> dict[str, float]:
    """Mean AP over the scored classes, and predicted positives per image over all of them."""
    ranking = ranking_report(logits[:, scored].astype(np.float64), table.matrix.dense()[:, scored])
    return {"mAP": ranking.mean_average_precision, "predicted_positives": float(sigmoid(logits).sum(1).mean())}


def look(above: Above, material: Material) -> Record:
    """Validation and test metrics, in percent."""
    data, scored = material.data, material.data.scored_index
    val, logits = metrics(predict(above, material.val), data.val, scored), predict(above, material.test)
    labels = data.test.matrix.dense()[:, scored]
    ranking = ranking_report(logits[:, scored].astype(np.float64), labels)
    unseen = data.groups["test"] == UNSEEN
    apart = {}
    if unseen.any():
        report = ranking_report(logits[unseen][:, scored].astype(np.float64), labels[unseen])
        apart = {UNSEEN: _percent(report.mean_average_precision)}
    return {
        "val_mAP": _percent(val["mAP"]),
        "predicted_positives": _rounded(val["predicted_positives"]),
        "mAP": _percent(ranking.mean_average_precision),
        **apart,
        "AP": [_percent(value) for value in ranking.average_precision.tolist()],
    }


@torch.no_grad()
def localise(above: Above, material: Material) -> Record:
    """Pointing game and IoA-P of the probability maps, in percent."""
    images = sorted({image for image, _, _ in material.regions})
    maps = torch.cat([above(batch).maps.sigmoid() for batch in material.test[images].split(EVAL_BATCH)]).numpy()
    position = {image: n for n, image in enumerate(images)}
    report = localisation_report((maps[position[i], c], region) for i, c, region in material.regions)
    return {
        "pairs": report.pairs,
        "left_out": material.without_region,
        "pointing": _percent(report.pointing),
        "ioa_p": _percent(float(report.ioa.mean())),
        "chance": _percent(report.chance),
    }


def in_processes(
    tasks: Sequence[tuple[str, Callable[[], Record]]], processes: int, deadline: float
) -> Iterator[tuple[str, Record | str]]:
    """Run tasks in forked processes, a few at a time, and yield (name, result, or the text of the error) as they end.

    Args:
        tasks: name and function; what a function closes over is shared by forking.
        processes: how many at a time.
        deadline: `time.monotonic()` after which no task is begun.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(tasks), dict[Connection, tuple[str, ForkProcess]]()
    while waiting or running:
        while waiting and len(running) < processes and time.monotonic() < deadline:
            name, function = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(function, sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = (name, process)
        if not running:
            return
        for receiver in cast("list[Connection]", wait(list(running))):
            name, process = running.pop(receiver)
            try:
                result: Record | str = receiver.recv()
            except EOFError:
                result = "the process ended without a result"
            process.join()
            yield name, result


def _send(function: Callable[[], Record], sender: Connection) -> None:
    try:
        sender.send(function())
    except FewtagsError as error:
        sender.send(str(error))


def main() -> None:
    options = arguments(__doc__, "quick.toml or long.toml", "comma-separated SET, SET:METHOD or :METHOD").parse_args()
    try:
        _all_runs(options)
    except FewtagsError as error:
        sys.exit(str(error))


def arguments(description: str | None, files: str, only: str) -> argparse.ArgumentParser:
    """What a benchmark asks for on the command line; `files` and `only` say which there are."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", type=Path, help=files)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; what is in it is not done again")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, each with one thread (default 2)")
    parser.add_argument("--only", help=only)
    parser.add_argument("--seeds", help="0-9, or 0,3,5")
    parser.add_argument("--max-minutes", type=float, default=float("inf"), help="begin no run after so many minutes")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument(
        "--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made once (default {CACHE})"
    )
    return parser


def _all_runs(options: argparse.Namespace) -> None:
    benchmark = read_benchmark(options.benchmark)
    done = read_done(options.out, benchmark)
    jobs = choose_jobs(benchmark, options.only, options.seeds)
    execute(options, benchmark, jobs, done, lambda job, material: run(benchmark, job, material))


def execute(
    options: argparse.Namespace,
    benchmark: Setup,
    jobs: Sequence[AnyJob],
    done: Collection[AnyJob],
    train: Callable[[AnyJob, Material], Record],
) -> None:
    """Do the jobs that are not done, a few at a time, and add a line for each to `options.out`.

    Exits with 1 where some are left: the time was over, or they failed.
    """
    torch.set_num_threads(1)
    started = time.monotonic()
    deadline = started + 60 * options.max_minutes
    jobs = [job for job in jobs if job not in done]
    sets = {name: load(name, options.data, options.cache) for name in dict.fromkeys(j.set_name for j in jobs)}
    folders = {name: features_folder(benchmark, data, options.cache) for name, data in sets.items()}
    fills = [(f"features of {n}", _filling(benchmark, sets[n], folders[n])) for n in sets if not folders[n].exists()]
    for name, result in in_processes(fills, options.processes, deadline):
        _report(name, result, started)
    make_accelerator(cpu=True)  # what it imports on first use is then imported once, and not in every run
    materials = {n: open_material(sets[n], f) for n, f in folders.items() if f.exists()}
    runs = [(str(j), _running(train, j, materials[j.set_name])) for j in jobs if j.set_name in materials]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # no run goes through the objects of this process
    good = 0
    with options.out.open("a", encoding="utf-8") as file:
        for name, result in in_processes(runs, options.processes, deadline):
            _report(name, result, started)
            if not isinstance(result, str):
                file.write(json.dumps(result) + "\n")
                file.flush()
                os.fsync(file.fileno())
                good += 1
    print(f"{good} runs done, {len(done)} were there, {len(jobs) - good} are left", file=sys.stderr)
    if good < len(jobs):
        sys.exit(1)


def _filling(benchmark: Setup, data: BenchmarkSet, folder: Path) -> Callable[[], Record]:
    def task() -> Record:
        fill(benchmark, data, folder)
        return {}

    return task


def _running(train: Callable[[AnyJob, Material], Record], job: AnyJob, material: Material) -> Callable[[], Record]:
    return lambda: train(job, material)


def _report(name: str, result: Record | str, started: float) -> None:
    what = result if isinstance(result, str) else f"test mAP {result['last']['mAP']:.1f}" if result else "done"
    print(f"{(time.monotonic() - started) / 60:6.1f} min  {name}: {what}", file=sys.stderr)


def _share(value: float | None) -> float | None:
    return None if value is None else _percent(value)


def _percent(value: float) -> float:
    return round(100 * value, 3)


def _rounded(value: float) -> float:
    return round(value, 4)


if __name__ == "__main__":
    main()
