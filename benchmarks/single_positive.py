"""One positive label per image: every method on the same labels, views, order and initial head, paired by seed.

    python benchmarks/single_positive.py benchmarks/quick.toml --out benchmarks/results/quick.jsonl
    python benchmarks/table.py benchmarks/results/quick.jsonl > docs/benchmarks.md

One run is one line of JSON. A run whose line is there already is skipped, so that an interrupted benchmark goes on
where it stopped. Nothing is chosen on the test part: it is measured at the last epoch and at the best validation epoch.

The blocks that no stage trains are a fixed function of the view, because BatchNorm is in eval mode. Each of the V views
of an image is pushed through them once, kept in `benchmarks/cache/features`, and shared by all methods and seeds. With
V equal to the number of epochs that is training on fresh crops, since no crop comes back within a run. (Delete that
folder after a change to how photos are read or cropped.)

Every run is a process of its own with one thread, forked from this one, so that peak memory is the run's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from datasets import CACHE, DATA, REPOSITORY, BenchmarkSet, Name, chance, load
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from fewtags.config import Settings, StageConfig
from fewtags.data.augment import SquareCrop
from fewtags.data.loader import Collate, EpochSampler, EvalLoader, EvalSet, Photos, TrainLoader, TrainSet
from fewtags.data.simulate import single_positive
from fewtags.data.table import LabelTable
from fewtags.engine.evaluate import sigmoid
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig, make_accelerator
from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, method_class, settings_models
from fewtags.engine.sources import CachePlan, StoredViews, ViewFeatures, fill_views
from fewtags.errors import ConfigError, DataError, FewtagsError
from fewtags.labels import Label, suggest
from fewtags.metrics.localisation import localisation_report
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.base import Objective, Problem

FEATURES = "features"  # in the cache folder
UNSEEN = "Seq05VD"  # CamVid's sequence that occurs in the test part only; reported apart
LOCATED_IMAGES = 200  # localisation is measured on so many test images
REGION = (96, 96)  # masks and boxes are drawn at this resolution
EVAL_BATCH = 16  # small batches stay in the processor's cache

Record = dict[str, Any]


@final
class Method(Settings):
    """One line of the result table."""

    label: str
    objective: dict[str, Any]
    labels: Literal["single", "complete"] = "single"


@final
class Benchmark(Settings):
    """A benchmark file. `stages[].trainable` is "head" or how many of the last blocks; what is below stays frozen."""

    name: str
    sets: tuple[Name, ...]
    seeds: int
    backbone: str
    weights: str
    size: int
    min_area: float
    batch_size: int
    views: int
    view_seed: int
    stages: tuple[StageConfig, ...]
    methods: dict[str, Method]

    @property
    def trained_blocks(self) -> int:
        """How many of the last blocks some stage trains."""
        return max(stage.trainable if isinstance(stage.trainable, int) else 0 for stage in self.stages)

    def protocol(self, method: str) -> str:
        """A digest of everything that decides a run beside set, method name and seed."""
        shared = self.model_dump(mode="json", exclude={"sets", "seeds", "methods"})
        return _digest([shared, self.methods[method].model_dump(mode="json", exclude={"label"})])


@final
@dataclass(frozen=True)
class Job:
    """One run."""

    set_name: Name
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.set_name} {self.method} seed {self.seed}"


def read_benchmark(path: Path) -> Benchmark:
    """Read a benchmark file.

    Raises:
        ConfigError: it holds something else than `Benchmark`, or settings that a method does not know.
    """
    try:
        benchmark = Benchmark.model_validate(tomllib.loads(path.read_text("utf-8")))
        for method in benchmark.methods.values():
            method_class(method.objective["name"])
            settings_models()[method.objective["name"]].model_validate(method.objective)
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if any(stage.trainable not in ("head", benchmark.trained_blocks) for stage in benchmark.stages):
        raise ConfigError(f"{path}: stages train the head, or the same number of last blocks.")
    return benchmark


def choose_jobs(benchmark: Benchmark, only: str | None, seeds: str | None) -> list[Job]:
    """The runs, seed by seed and methods side by side, so that CPU times are comparable.

    Args:
        benchmark: what there is.
        only: comma-separated SET, SET:METHOD or :METHOD; None for all.
        seeds: "0-9" or "0,3,5"; None for the benchmark's.

    Raises:
        ConfigError: a set, method or seed that is none.
    """
    wanted: set[tuple[str, str]] = set()
    for item in (only or "").split(",") if only else [":"]:
        set_name, _, method = item.partition(":")
        for name, known in ((set_name, benchmark.sets), (method, tuple(benchmark.methods))):
            if name and name not in known:
                raise ConfigError(f"--only {item}: {name!r} is not in {benchmark.name}{suggest(name, known)}.")
        sets = [set_name] if set_name else benchmark.sets
        wanted |= {(s, m) for s in sets for m in ([method] if method else benchmark.methods)}
    try:
        numbers = _numbers(seeds) if seeds else list(range(benchmark.seeds))
    except ValueError:
        raise ConfigError(f"--seeds {seeds}: give numbers like 0-9 or 0,3,5.") from None
    return [Job(s, m, seed) for seed in numbers for s in benchmark.sets for m in benchmark.methods if (s, m) in wanted]


# ------------------------------------------------------------------------- the frozen part, once per set


def cut(net: SpatialNet, trained_blocks: int) -> tuple[SpatialNet, SpatialNet]:
    """Cut a timm MobileNetV2 in two: what is frozen in every stage, and its last blocks with the head.

    Blocks are counted as `freezing.freeze` does: the last 1x1 convolution belongs to the last block.
    """
    backbone: Any = net.backbone
    if trained_blocks:
        blocks = [block for stage in backbone.blocks for block in stage]
        lower: nn.Module = nn.Sequential(backbone.conv_stem, backbone.bn1, *blocks[:-trained_blocks])
        upper: nn.Module = nn.Sequential(*blocks[-trained_blocks:], backbone.conv_head, backbone.bn2)
    else:
        lower, upper = backbone, nn.Identity()
    return SpatialNet(lower, SpatialHead(1, 1), preprocessing=net.preprocessing), SpatialNet(upper, net.head)


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What all runs on one set share.

    Attributes:
        data: images and complete labels.
        views: of the training images, through the frozen part.
        val: [n, d, h, w], the validation images through the frozen part.
        test: likewise.
        regions: (test image, class, where it is) to measure localisation with.
        without_region: how many (image, class) pairs have no region, because no box or too small a one is known.
    """

    data: BenchmarkSet
    views: ViewFeatures
    val: Tensor
    test: Tensor
    regions: tuple[tuple[int, int, NDArray[np.bool_]], ...]
    without_region: int


def make_net(benchmark: Benchmark, classes: int, seed: int) -> SpatialNet:
    weights = (REPOSITORY / benchmark.weights).resolve()
    return create_net(benchmark.backbone, classes, weights=weights, size=benchmark.size, seed=seed)


def features_folder(benchmark: Benchmark, data: BenchmarkSet, cache: Path) -> Path:
    """Where the features of a set lie; another folder for every other way of making them."""
    chosen = {"backbone", "size", "min_area", "views", "view_seed"}
    origin = make_net(benchmark, 1, 0).origin
    assert origin is not None
    content = [
        benchmark.model_dump(mode="json", include=chosen), benchmark.trained_blocks, origin.fingerprint,
        [table.fingerprint for table in data.splits.values()],
    ]  # fmt: skip
    return cache / FEATURES / f"{data.name}-{_digest(content)}"


def fill(benchmark: Benchmark, data: BenchmarkSet, folder: Path) -> None:
    """Push all views of a set through the frozen part; does nothing if that has been done."""
    if folder.exists():
        return
    trunk, _ = cut(make_net(benchmark, 1, 0), benchmark.trained_blocks)
    trunk.requires_grad_(False).to(memory_format=torch.channels_last).eval()
    policy = SquareCrop(benchmark.size, (benchmark.min_area, 1.0))
    collate = Collate(trunk.preprocessing.mean, trunk.preprocessing.std)
    train = data.train_truth
    views = TrainSet(_photos(train), train.matrix, policy, benchmark.view_seed, views_cycle=benchmark.views)
    loader = TrainLoader(views, EpochSampler(len(train), benchmark.batch_size, benchmark.view_seed), collate)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill_views(trunk, loader, CachePlan(benchmark.views, torch.float32, 0)).save(made)
        for name, table in (("val", data.val), ("test", data.test)):
            with torch.no_grad():
                batches = EvalLoader(EvalSet(_photos(table), table.matrix, policy), EVAL_BATCH, collate)
                np.save(made / f"{name}.npy", torch.cat([trunk.features(b.images) for b in batches]).numpy())
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def open_material(data: BenchmarkSet, folder: Path) -> Material:
    """Everything of a set, memory-mapped."""
    images = np.sort(np.random.default_rng(0).permutation(len(data.test))[:LOCATED_IMAGES])
    labels = data.test.matrix.dense()
    regions, empty = [], 0
    for image in images.tolist():
        where = data.regions("test", image, REGION)
        for class_ in data.scored_index[labels[image, data.scored_index] == Label.POSITIVE].tolist():
            if where[class_].any():
                regions.append((image, class_, where[class_]))
            else:
                empty += 1
    val, test = (torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in ("val", "test"))
    return Material(data, ViewFeatures.load(folder), val, test, tuple(regions), empty)


# ------------------------------------------------------------------------------------------------ a run


def run(benchmark: Benchmark, job: Job, material: Material) -> Record:
    """Train once, through the library's own loop, and measure."""
    data, method = material.data, benchmark.methods[job.method]
    truth = data.train_truth
    train = truth if method.labels == "complete" else single_positive(truth, job.seed)
    positives = float(data.val.matrix.image_counts(Label.POSITIVE).mean())
    settings = settings_models()[method.objective["name"]].model_validate(method.objective)
    objective = make_objective(settings, positives_per_image=positives)
    whole = make_net(benchmark, len(truth.classes), job.seed)
    grid = whole.grid((benchmark.size, benchmark.size))
    _, net = cut(whole, benchmark.trained_blocks)
    sampler = EpochSampler(len(train), benchmark.batch_size, job.seed)
    fit = make_fit(benchmark, net, objective, StoredViews(material.views, sampler, train.matrix), material, grid, job.seed)
    records: list[Mapping[str, Any]] = []
    best: dict[str, Tensor] = {}
    for event in fit.run():
        if isinstance(event, EpochEnded):
            records.append(event.record)
            if event.best:
                best = {k: v.clone() for k, v in net.state_dict().items()}
    last = look(net, material)
    found = localise(net, material)
    net.load_state_dict(best)
    main = [r["cpu_seconds"] for r in records if r["stage"] == benchmark.stages[-1].name]
    return {
        "benchmark": benchmark.name,
        "set": job.set_name,
        "method": job.method,
        "seed": job.seed,
        "label": method.label,
        "order": list(benchmark.methods).index(job.method),
        "protocol": benchmark.protocol(job.method),
        "scored": list(data.scored),
        "chance_mAP": _percent(chance(data.test, data.scored_index)),
        "epochs": len(records),
        "last": last,
        "best": {"epoch": 1 + int(np.argmax([r["val/mAP"] for r in records])), **look(net, material)},
        "positives_per_image": _rounded(positives),
        "expected_precision": _share(records[-1].get("state/expected_positives_precision")),
        "expected_recall": _share(records[-1].get("state/expected_positives_recall")),
        "val_mAP_by_epoch": [_percent(r["val/mAP"]) for r in records],
        "predicted_by_epoch": [_rounded(r["val/predicted_positives"]) for r in records],
        "localisation": found,
        "cpu_seconds_per_epoch": _rounded(statistics.median(main)),
        # Kibibytes on Linux.
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "machine": f"{cores()} cores, torch {torch.__version__}",
    }


def make_fit(
    benchmark: Benchmark,
    net: SpatialNet,
    objective: Objective,
    source: StoredViews,
    material: Material,
    grid: tuple[int, int],
    seed: int,
) -> Fit:
    """The library's loop on the part of the net above the cached features."""
    # Every block of `net` is trained where the whole net's last blocks are.
    stages = tuple(
        stage if stage.trainable == "head" else stage.model_copy(update={"trainable": "all"})
        for stage in benchmark.stages
    )
    config = FitConfig(stages, seed, batchnorm_eval=True)
    truth = material.data.train_truth.matrix
    problem = Problem(source.labels, grid, config.warmup_epochs, config.epochs, seed, truth=truth)

    def validate(_: nn.Module) -> Mapping[str, float]:
        return metrics(predict(net, material.val), material.data.val, material.data.scored_index)

    return Fit(net, objective, source, config, problem, accelerator=make_accelerator(cpu=True), validate=validate)


@torch.no_grad()
def predict(net: SpatialNet, features: Tensor) -> NDArray[np.float32]:
    """Logits [n, C] of features [n, d, h, w]."""
    net.eval()
    batches = (batch.contiguous(memory_format=torch.channels_last) for batch in features.split(EVAL_BATCH))
    logits: NDArray[np.float32] = torch.cat([net.predict_logits(batch) for batch in batches]).numpy()
    return logits


def metrics(logits: NDArray[np.float32], table: LabelTable, scored: NDArray[np.int64]) -> dict[str, float]:
    """mAP over the scored classes, and predicted positives per image over all of them."""
    ranking = ranking_report(logits[:, scored].astype(np.float64), table.matrix.dense()[:, scored])
    return {"mAP": ranking.mean_average_precision, "predicted_positives": float(sigmoid(logits).sum(1).mean())}


def look(net: SpatialNet, material: Material) -> Record:
    """Validation and test metrics of a net, in percent."""
    data, scored = material.data, material.data.scored_index
    val, logits = metrics(predict(net, material.val), data.val, scored), predict(net, material.test)
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
def localise(net: SpatialNet, material: Material) -> Record:
    """Pointing game and IoA-P of the probability maps, in percent."""
    images = sorted({image for image, _, _ in material.regions})
    maps = torch.cat([net(batch).maps.sigmoid() for batch in material.test[images].split(EVAL_BATCH)]).numpy()
    position = {image: n for n, image in enumerate(images)}
    report = localisation_report((maps[position[i], c], region) for i, c, region in material.regions)
    return {
        "pairs": report.pairs,
        "left_out": material.without_region,
        "pointing": _percent(report.pointing),
        "ioa_p": _percent(float(report.ioa.mean())),
        "chance": _percent(report.chance),
    }


# ------------------------------------------------------------------------------------------- many of them


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
    waiting, running = list(tasks), dict[Any, tuple[str, Any]]()
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
        for receiver in wait(list(running)):
            name, process = running.pop(receiver)
            try:
                result: Record | str = receiver.recv()
            except EOFError:
                result = "the process ended without a result"
            process.join()
            yield name, result


def _send(function: Callable[[], Record], sender: Any) -> None:
    try:
        sender.send(function())
    except FewtagsError as error:
        sender.send(str(error))


def read_done(path: Path, benchmark: Benchmark) -> set[Job]:
    """The runs in a result file; an unfinished last line is cut off.

    Raises:
        DataError: a line that is none of ours, or was made with other settings.
    """
    if not path.exists():
        return set()
    text = path.read_text("utf-8")
    if not text.endswith("\n") and text:
        print(f"{path}: the last line is unfinished and is done again", file=sys.stderr)
        text = text[: text.rfind("\n") + 1]
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    done = set()
    for number, line in enumerate(text.splitlines(), 1):
        record = json.loads(line)
        job = Job(record["set"], record["method"], record["seed"])
        if record["benchmark"] != benchmark.name or (
            job.method in benchmark.methods and record["protocol"] != benchmark.protocol(job.method)
        ):
            raise DataError(f"{path} line {number} ({job}) was made with other settings; use another --out.")
        done.add(job)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", type=Path, help="quick.toml or long.toml")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; what is in it is not done again")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, each with one thread (default 2)")
    parser.add_argument("--only", help="comma-separated SET, SET:METHOD or :METHOD")
    parser.add_argument("--seeds", help="0-9, or 0,3,5")
    parser.add_argument("--max-minutes", type=float, default=float("inf"), help="begin no run after so many minutes")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made once (default {CACHE})")
    options = parser.parse_args()
    try:
        _all_runs(options)
    except FewtagsError as error:
        sys.exit(str(error))


def _all_runs(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    started = time.monotonic()
    deadline = started + 60 * options.max_minutes
    benchmark = read_benchmark(options.benchmark)
    done = read_done(options.out, benchmark)
    jobs = [j for j in choose_jobs(benchmark, options.only, options.seeds) if j not in done]
    sets = {name: load(name, options.data, options.cache) for name in dict.fromkeys(j.set_name for j in jobs)}
    folders = {name: features_folder(benchmark, data, options.cache) for name, data in sets.items()}
    fills = [(f"features of {n}", _filling(benchmark, sets[n], folders[n])) for n in sets if not folders[n].exists()]
    for name, result in in_processes(fills, options.processes, deadline):
        _report(name, result, started)
    materials = {n: open_material(sets[n], f) for n, f in folders.items() if f.exists()}
    runs = [(str(j), _running(benchmark, j, materials[j.set_name])) for j in jobs if j.set_name in materials]
    options.out.parent.mkdir(parents=True, exist_ok=True)
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


def _filling(benchmark: Benchmark, data: BenchmarkSet, folder: Path) -> Callable[[], Record]:
    def task() -> Record:
        fill(benchmark, data, folder)
        return {}

    return task


def _running(benchmark: Benchmark, job: Job, material: Material) -> Callable[[], Record]:
    return lambda: run(benchmark, job, material)


def _report(name: str, result: Record | str, started: float) -> None:
    what = result if isinstance(result, str) else f"test mAP {result['last']['mAP']:.1f}" if result else "done"
    print(f"{(time.monotonic() - started) / 60:6.1f} min  {name}: {what}", file=sys.stderr)


def _photos(table: LabelTable) -> Photos:
    assert table.root is not None
    return Photos(table.root, table.images)


def _numbers(text: str) -> list[int]:
    parts = [part.split("-") for part in text.split(",")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _percent(value: float) -> float:
    return round(100 * value, 3)


def _share(value: float | None) -> float | None:
    return None if value is None else _percent(value)


def _rounded(value: float) -> float:
    return round(value, 4)


if __name__ == "__main__":
    main()
