"""MoCo-v2 against MLS from scratch on small photos without labels: probes, fine-tuning, and what few labels make of it.

    python benchmarks/pretraining.py benchmarks/pretraining.toml --out benchmarks/results/pretraining.jsonl
    python benchmarks/pretraining_table.py benchmarks/results/pretraining.jsonl > docs/pretraining_benchmark.md

One run is one line of JSON: an encoder (pretrained on all training photos, then probed), or one task that starts from
it. Runs that are there are skipped; encoders lie in `benchmarks/cache/pretraining`. A seed fixes initial weights, the
order of batches, and which photos have labels; the views of a photo are the same for all runs. Settings that are
chosen (C of the probes, the learning rate by `--trial`) are chosen on the validation photos, the others are given.

Pretraining is the library's loop, objectives and settings; only the views come from a cache, because drawing them
takes longer than training this net on them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fewtags.budget.costs import CostModel
from fewtags.budget.purchase import simulate_budget
from fewtags.budget.simulate import single_positive
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.encoder_file import EncoderInfo, load_encoder, save_encoder
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.pretrain_plan import make_pretrain_plan
from fewtags.errors import DataError, FewtagsError
from fewtags.labels import Label
from fewtags.losses.contrastive import collapse, fingerprint
from fewtags.nets.backbones import create_net
from fewtags.nets.encoder import Encoder, create_encoder, pooled
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Problem
from fewtags.photos.augment import SquareCrop
from fewtags.photos.loader import EpochSampler
from fewtags.table.table import LabelTable
from fewtags.transfer.features import photo_features
from fewtags.transfer.probes import knn_scores
from photo_sets import BenchmarkSet, chance, load
from pretraining_pixels import (
    FOLDER,
    CropSource,
    PairSource,
    Pixels,
    fill,
    normalised,
    open_pixels,
    pixels_folder,
    shrink,
)
from pretraining_protocol import ENCODER, SET, Job, PretrainBenchmark, UseTask, choose_jobs, read_benchmark, read_done
from single_positive import Record, arguments, in_processes, metrics, positives_per_image

CEILING_SIZE = 96  # pixels that pretrained weights of other origin see
EVAL_BATCH = 256
TRACKED = ("loss", "spread", "positive", "mean_key", "infonce", "neighbour_loss", "neighbours_met", "neighbours_kept")


def run(benchmark: PretrainBenchmark, job: Job, pixels: Pixels, cache: Path) -> Record:
    """Pretrain and probe, or do a task."""
    if job.part == ENCODER:
        return {**identity(benchmark, job, pixels.data), **encoder_run(benchmark, job, pixels, cache)}
    return {**identity(benchmark, job, pixels.data), **task_run(benchmark, job, pixels, cache)}


def identity(benchmark: PretrainBenchmark, job: Job, data: BenchmarkSet) -> Record:
    """What a line says beside its results."""
    variant = benchmark.methods[job.method]
    return {
        "benchmark": benchmark.name,
        "set": SET,
        "part": job.part,
        "method": job.method,
        "seed": job.seed,
        "label": variant.label,
        "task": None if job.part == ENCODER else benchmark.tasks[job.part].label,
        "sweep": variant.sweep,
        "order": [(ENCODER, *benchmark.tasks).index(job.part), list(benchmark.methods).index(job.method)],
        "protocol": benchmark.protocol(job),
        "scored": len(data.scored),
        "photos": len(data.train_truth),
        "test_photos": len(data.test),
        "chance_mAP": _percent(chance(data.test, data.scored_index)),
        "machine": f"{cores()} cores, torch {torch.__version__}",
    }


# --- encoders


def encoder_file(benchmark: PretrainBenchmark, job: Job, cache: Path) -> Path:
    """Where the encoder of a method and seed is, or will be."""
    return cache / FOLDER / "encoders" / f"{benchmark.encoder_digest(job.method, job.seed)}.safetensors"


def encoder_run(benchmark: PretrainBenchmark, job: Job, pixels: Pixels, cache: Path) -> Record:
    """An encoder: trained if its method trains one, and in any case probed."""
    variant, found = benchmark.methods[job.method], Record()
    if variant.objective is not None:
        path = encoder_file(benchmark, job, cache)
        found = pretrain(benchmark, job, pixels, path)
        encoder = load_encoder(path)[0]
    else:
        backbone = variant.backbone or benchmark.backbone
        encoder = create_encoder(backbone, weights=variant.weights, size=benchmark.size, seed=job.seed)
    return {**found, **probe(benchmark, job.seed, features_of(encoder, variant.backbone is not None, pixels), pixels)}


def pretrain(benchmark: PretrainBenchmark, job: Job, pixels: Pixels, path: Path) -> Record:
    """Pretrain as `fewtags pretrain` would, on views from the cache, and write the encoder."""
    table = pixels.data.train_truth
    plan = make_pretrain_plan(benchmark.settings(job.method, job.seed), photos=table, cpu=True)
    r, encoder = plan.resolved, plan.encoder
    config = FitConfig(
        stages=r.stages,
        seed=r.seed,
        weight_decay=r.weight_decay,
        clip_norm=r.clip_norm,
        precision=r.precision,
        optimizer="sgd",
    )
    problem = Problem(
        labels=plan.photos.matrix,
        grid=plan.grid,
        epochs=config.epochs,
        seed=r.seed,
        features_dim=encoder.features_dim,
        precision=r.precision,
    )
    sampler = EpochSampler(len(plan.photos), r.batch_size, r.seed)
    source = PairSource(pixels, sampler, plan.photos.matrix, encoder.preprocessing)
    accelerator = make_accelerator(r.precision, cpu=True)
    fit = Fit(encoder, plan.objective, source, config, problem, accelerator=accelerator)
    records = [event.record for event in fit.run() if isinstance(event, EpochEnded)]
    pre = encoder.preprocessing
    info = EncoderInfo(
        backbone=r.backbone,
        size=r.size,
        mean=pre.mean,
        std=pre.std,
        method=r.objective,
        images=len(plan.photos),
        epochs=config.epochs,
        version="benchmark",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_encoder(path, encoder, info)
    return {
        "objective": r.objective,
        "epochs": config.epochs,
        "track": {name: [_rounded(x[f"train/{name}"]) for x in records if f"train/{name}" in x] for name in TRACKED},
        "fingerprint": _fingerprint(r.objective),
        "cpu_seconds": round(sum(float(x["cpu_seconds"]) for x in records), 1),
    }


def _fingerprint(objective: Mapping[str, Any]) -> float | None:
    """What eq. 9 gives for a collapsed net; None for other losses."""
    if objective.get("neighbour_loss") != "bce" or objective.get("reduction") != "mean":
        return None
    return round(fingerprint(objective["k"], objective["queue_size"], objective["temperature"]), 5)


@torch.no_grad()
def features_of(encoder: Encoder, large: bool, pixels: Pixels) -> dict[str, NDArray[np.float32]]:
    """Mean features [n, d] of every split; an encoder of other origin sees the photos `CEILING_SIZE` large."""
    encoder.to(memory_format=torch.channels_last).eval()
    if large:
        policy, device = SquareCrop(CEILING_SIZE), torch.device("cpu")
        return {name: photo_features(encoder, table, policy, device) for name, table in pixels.data.splits.items()}
    return {
        name: torch.cat([pooled(encoder.features(images)) for images in _batches(whole, encoder)]).numpy()
        for name, whole in pixels.whole.items()
    }


def _batches(whole: NDArray[np.uint8], net: Encoder | SpatialNet) -> Iterator[Tensor]:
    for first in range(0, len(whole), EVAL_BATCH):
        yield normalised(whole[first : first + EVAL_BATCH], net.preprocessing)


def probe(
    benchmark: PretrainBenchmark, seed: int, features: Mapping[str, NDArray[np.float32]], pixels: Pixels
) -> Record:
    """k-NN with all labels, linear probes with few, and how spread the features are."""
    data = pixels.data
    labels, scored = data.train_truth.matrix.dense(), data.scored_index
    found: Record = {"features": len(features["train"][0])}
    found["feature_spread"] = round(float(collapse(torch.from_numpy(features["test"]))), 4)
    for split in ("val", "test"):
        scores = knn_scores(features["train"], labels, features[split], "multi")
        found[f"knn_{split}"] = _percent(metrics(scores.astype(np.float32), data.splits[split], scored)["mAP"])
    mean, std = features["train"].mean(0), features["train"].std(0) + 1e-6  # photos without labels are there anyway
    scaled = {name: (values - mean) / std for name, values in features.items()}
    for photos in benchmark.labels:
        rows = few(data.train_truth, photos, seed)
        found[f"linear{photos}"] = linear(scaled, rows, labels[rows], data, benchmark.costs)
    return found


def linear(
    features: Mapping[str, NDArray[np.float32]],
    rows: NDArray[np.int64],
    labels: NDArray[np.int8],
    data: BenchmarkSet,
    costs: Sequence[float],
) -> Record:
    """What a logistic regression per class reaches, with the C that is best on the validation photos."""
    best: Record = {"val": -1.0}
    for cost in costs:
        scores = {split: np.zeros((len(features[split]), labels.shape[1]), np.float32) for split in ("val", "test")}
        for c in data.scored_index.tolist():
            known = labels[:, c] != Label.UNKNOWN
            target = labels[known, c] == Label.POSITIVE
            if target.any() and not target.all():
                model = LogisticRegression(C=cost, max_iter=200).fit(features["train"][rows[known]], target)
                for split, values in scores.items():
                    values[:, c] = model.decision_function(features[split])
        reached = {s: _percent(metrics(v, data.splits[s], data.scored_index)["mAP"]) for s, v in scores.items()}
        if reached["val"] > best["val"]:
            best = {**reached, "cost": cost}
    return best


def few(table: LabelTable, photos: int, seed: int) -> NDArray[np.int64]:
    """Positions of the photos that have labels; more photos contain fewer ones.

    Raises:
        DataError: there are not so many.
    """
    if photos > len(table):
        raise DataError(f"{photos} photos with labels were asked for, of {len(table)}.")
    return np.random.default_rng(seed).permutation(len(table))[:photos]


# --- tasks


def task_run(benchmark: PretrainBenchmark, job: Job, pixels: Pixels, cache: Path) -> Record:
    """Train the whole net on few labels, from the encoder of this seed, which is made where it is missing."""
    task, variant, data = benchmark.tasks[job.part], benchmark.methods[job.method], pixels.data
    weights: str | Path = variant.weights
    if variant.objective is not None:
        weights = encoder_file(benchmark, job, cache)
        if not weights.exists():  # its line is there, but the cache was emptied
            pretrain(benchmark, Job(ENCODER, job.method, job.seed), pixels, weights)
    rows = few(data.train_truth, task.photos, job.seed)
    table = labelled(data.train_truth.subset(rows), task, job.seed)
    settings = settings_models()[task.objective["name"]].model_validate(task.objective)
    objective = make_objective(settings, positives_per_image=positives_per_image(data))
    net = create_net(
        benchmark.backbone, len(table.classes), weights=weights, size=benchmark.size, seed=job.seed,
        output_stride=task.output_stride,
    )  # fmt: skip
    precision = benchmark.finetune.precision
    config = FitConfig(stages=benchmark.finetune.stages, seed=job.seed, precision=precision)
    sampler = EpochSampler(len(table), benchmark.finetune.batch_size, job.seed)
    locations = table.locations if task.labels == "point" else None
    source = CropSource(pixels, rows, sampler, table.matrix, net.preprocessing, locations)
    problem = Problem(
        labels=table.matrix,
        grid=net.grid((benchmark.size, benchmark.size)),
        epochs=config.epochs,
        seed=job.seed,
        features_dim=net.head.features_dim,
        precision=precision,
    )
    fit = Fit(net, objective, source, config, problem, accelerator=make_accelerator(precision, cpu=True))
    records = [event.record for event in fit.run() if isinstance(event, EpochEnded)]
    reached = {
        split: _percent(metrics(predict(net, pixels.whole[split]), data.splits[split], data.scored_index)["mAP"])
        for split in ("val", "test")
    }
    return {
        "labelled": len(table),
        "epochs": config.epochs,
        **{f"mAP_{split}": value for split, value in reached.items()},
        "train_loss_by_epoch": [_rounded(x["train/loss"]) for x in records],
        "cpu_seconds": round(sum(float(x["cpu_seconds"]) for x in records), 1),
    }


def labelled(truth: LabelTable, task: UseTask, seed: int) -> LabelTable:
    """What a method is shown of complete labels."""
    if task.labels == "single":
        return single_positive(truth, seed)
    if task.labels == "point":
        return simulate_budget(truth, "1000%", "SP", seed, CostModel.measured(truth))  # more than all pairs cost
    return truth


@torch.no_grad()
def predict(net: SpatialNet, whole: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Logits [n, C] of photos uint8 [n, s, s, 3]."""
    net.eval()
    logits: NDArray[np.float32] = torch.cat([net.predict_logits(batch) for batch in _batches(whole, net)]).numpy()
    return logits


# --- all runs


def trial(benchmark: PretrainBenchmark, pixels: Pixels, folder: Path, lr: float) -> Record:
    """What MoCo with a learning rate reaches on the validation photos after a few epochs."""
    train = {**benchmark.pretrain.train, "lr": lr, "epochs": benchmark.trial_epochs}
    changed = benchmark.model_copy(update={"pretrain": benchmark.pretrain.model_copy(update={"train": train})})
    found = encoder_run(changed, Job(ENCODER, "moco", 100), pixels, folder)
    return {"lr": lr, "knn": found["knn_val"], **{str(n): found[f"linear{n}"]["val"] for n in benchmark.labels}}


def prepare(benchmark: PretrainBenchmark, options: argparse.Namespace) -> Pixels:
    """The photos and views, made where they are missing."""
    data = shrink(load(SET, options.data, options.cache), benchmark.photo, options.cache)
    folder = pixels_folder(benchmark, data, options.cache)
    if not folder.exists():
        print(f"making views of {len(data.train_truth):,} photos", file=sys.stderr)
        fill(benchmark, data, folder)
    return open_pixels(data, folder)


def _all_runs(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    started = time.monotonic()
    deadline = started + 60 * options.max_minutes
    benchmark = read_benchmark(options.benchmark)
    done = read_done(options.out, benchmark)
    groups = choose_jobs(benchmark, options.only, options.seeds)
    pixels = prepare(benchmark, options)
    make_accelerator(cpu=True)  # what it imports on first use is then imported once, and not in every run
    gc.freeze()  # no run goes through the objects of this process
    if options.trial:
        tasks: list[tuple[str, Callable[[], Record]]] = [
            (f"lr {lr:g}", partial(trial, benchmark, pixels, options.cache, lr)) for lr in benchmark.lrs
        ]
        for name, result in in_processes(tasks, options.processes, deadline):
            print(name, result, flush=True)
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [[job for job in group if job not in done] for group in groups]
    left = sum(map(len, wanted))
    with options.out.open("a", encoding="utf-8") as file:
        for group in wanted:
            runs = [(str(job), partial(run, benchmark, job, pixels, options.cache)) for job in group]
            for name, result in in_processes(runs, options.processes, deadline):
                print(f"{time.monotonic() - started:6.0f} s  {name}  {_short(result)}", file=sys.stderr)
                if not isinstance(result, str):
                    file.write(json.dumps(result) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                    left -= 1
    print(f"{len(done)} runs were there, {left} are left", file=sys.stderr)
    if left:
        sys.exit(1)


def _short(result: Record | str) -> str:
    if isinstance(result, str):
        return result
    return f"{result['cpu_seconds']} CPU s" if "cpu_seconds" in result else "done"


def _rounded(value: float | int | str) -> float:
    return round(float(value), 5)


def _percent(value: float) -> float:
    return round(100 * float(value), 3)


def main() -> None:
    parser = arguments(__doc__, "pretraining.toml", "comma-separated PART:METHOD, parts may be empty")
    parser.add_argument("--trial", action="store_true", help="try learning rates on the validation photos; no results")
    try:
        _all_runs(parser.parse_args())
    except FewtagsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
