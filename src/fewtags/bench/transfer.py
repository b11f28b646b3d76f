"""Runs of protocols with tasks: pretrain an encoder, or take given weights, and fine-tune it on each task.

The encoder of a method and seed is pretrained once, in `encoders/` of the results, and all tasks use it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from fewtags.api import pretrain
from fewtags.bench.details import identity, machine_of, percent
from fewtags.bench.protocol import Job, Protocol
from fewtags.bench.sections import Task
from fewtags.config.parse import apply_overrides
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.encoder_file import EncoderInfo, find_encoder
from fewtags.engine.events import Event
from fewtags.engine.machine import torch_device
from fewtags.engine.methods import read_pretrain_settings
from fewtags.engine.model import make_policy
from fewtags.engine.run_lock import locked
from fewtags.engine.runfolder import ENCODER_FILE
from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.encoder import Encoder
from fewtags.transfer.dense.detection import VOC, DetectSettings, make_detector, train_detection
from fewtags.transfer.dense.measure import detect_objects, measure_detections, require_measure
from fewtags.transfer.dense.scenes import coco_scenes, voc_scenes
from fewtags.transfer.dense.segmentation import (
    SegmentNet,
    SegmentSettings,
    cityscapes_pairs,
    evaluate_segmentation,
    train_segmentation,
    with_output_stride,
)
from fewtags.transfer.measure import METRICS, measure
from fewtags.transfer.sets import read_set
from fewtags.transfer.training import ProbeContext, TrainSettings, finetuned_scores

OnEvent = Callable[[Event], None] | None
WAIT = 5.0
"""Seconds between two looks at an encoder that another process pretrains."""
STRIDE = 8
"""Pixels per cell of the dilated encoder for Cityscapes."""
CLASSES: Mapping[str, Any] = {"epochs": 120, "lr": 0.01, "weight_decay": 1e-4, "batch_size": 64, "schedule": "cosine"}
"""Settings of `fewtags transfer finetune` for one class a photo."""
VOC2007: Mapping[str, Any] = {**CLASSES, "epochs": 30, "batch_size": 16, "size": 448}
"""The same for several classes a photo, on whole photos."""
SIZE = 224
PUBLISHED = "resnet50.tv_in1k"
"""Backbone of rows with given weights: torchvision's first ResNet-50, which the papers compare with."""


def run_transfer(
    protocol: Protocol, job: Job, root: Path, encoders: Path, *, cpu: bool = False, on_event: OnEvent = None
) -> dict[str, Any]:
    """Pretrain the encoder of a run unless it is there, fine-tune it, and return the record of what was measured."""
    encoder, info = encoder_of(protocol, job, root, encoders, cpu=cpu, on_event=on_event)
    task, device = protocol.tasks[job.set_name], torch_device(cpu)
    measures: Mapping[str, Callable[..., tuple[dict[str, float], dict[str, int]]]] = {
        "coco": detection,
        "voc": detection,
        "cityscapes": segmentation,
        "classes": classification,
    }
    if task.kind == "cityscapes":
        encoder = with_output_stride(encoder, info, STRIDE)
    values, sizes = measures[task.kind](task, job, root, encoder, device)
    found = {METRICS[name]: percent(value) for name, value in values.items()}
    return {**identity(protocol, job), "last": {"val": None, **found}, "sizes": sizes, "machine": machine_of(device)}


def encoder_of(
    protocol: Protocol, job: Job, root: Path, encoders: Path, *, cpu: bool, on_event: OnEvent
) -> tuple[Encoder, EncoderInfo]:
    """The encoder of a row and seed, which is pretrained first if it is not there.

    A process that finds another one at work on the same encoder waits for it.
    """
    row, settings = protocol.rows[job.row], protocol.training(job)
    if row.weights is not None:
        return find_encoder(row.weights, backbone=settings.get("model.backbone", PUBLISHED), seed=job.seed)
    folder = encoders / f"{job.row}-{job.seed}-{protocol.encoder_digest(job)}"
    folder.mkdir(parents=True, exist_ok=True)
    while not (folder / "run" / ENCODER_FILE).exists():
        try:
            with locked(folder):
                if not (folder / "run" / ENCODER_FILE).exists():
                    _pretrain(protocol, job, root, folder / "run", cpu=cpu, on_event=on_event)
        except CheckpointError:
            if not (folder / ".lock").exists():
                raise  # not the lock
            time.sleep(WAIT)
    return find_encoder(folder / "run")


def _consume(events: Iterable[Event]) -> None:
    deque(events, 0)


def _pretrain(protocol: Protocol, job: Job, root: Path, out: Path, *, cpu: bool, on_event: OnEvent) -> None:
    assert protocol.pretraining is not None
    method = protocol.method(job)
    settings = {**protocol.training(job), **{f"objective.{key}": value for key, value in method.items()}}
    pretrain(
        root / protocol.pretraining.photos,
        out=out,
        method=method["name"],
        device="cpu" if cpu else None,
        seed=job.seed,
        progress=False,
        on_event=on_event,
        settings={"data.decode": False, **settings},
    )


def check_transfer_settings(protocol: Protocol) -> None:
    """Raise ConfigError if settings of pretraining or of a task do not exist or do not fit."""
    for job in protocol.jobs():
        if protocol.rows[job.row].weights is None:
            method = {f"objective.{key}": value for key, value in protocol.method(job).items()}
            tree = apply_overrides({}, {"data.train": ".", **protocol.training(job), **method})
            read_pretrain_settings(tree, f"the settings of {protocol.name}")
    for name, task in protocol.tasks.items():
        settings_of(name, task, seed=0)
        if task.kind == "coco":
            require_measure()


def settings_of(name: str, task: Task, seed: int) -> Any:
    """The settings of a task's fine-tuning; the photos' side, "size", is not one of them.

    Raises:
        ConfigError: an unknown setting, or a value out of range.
    """
    base: Mapping[str, Any] = {}
    kind: Any = DetectSettings
    if task.kind == "voc":
        base = {field.name: getattr(VOC, field.name) for field in fields(VOC)}
    elif task.kind == "cityscapes":
        kind = SegmentSettings
    elif task.kind == "classes":
        kind, base = TrainSettings, {**(VOC2007 if name == "voc2007" else CLASSES)}
    known = {field.name for field in fields(kind)} | ({"size"} if task.kind == "classes" else set())
    if unknown := [key for key in task.settings if key not in known]:
        raise ConfigError(
            f"tasks.{name}.settings: there is no setting {unknown[0]!r}; there are: {', '.join(sorted(known))}."
        )
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in {**base, **task.settings, "seed": seed}.items()}
    return kind(**{key: value for key, value in values.items() if key != "size"})


def detection(
    task: Task,
    job: Job,
    root: Path,
    encoder: Encoder,
    device: torch.device,
) -> tuple[dict[str, float], dict[str, int]]:
    """Train Mask R-CNN on COCO train2017 or Faster R-CNN on VOC07+12, and measure on val2017 or test2007."""
    settings: DetectSettings = settings_of(job.set_name, task, job.seed)
    folder = root / task.folder
    if task.kind == "coco":
        read = [
            coco_scenes(folder / "annotations" / f"instances_{part}.json", folder / part).with_outlines()
            for part in ("train2017", "val2017")
        ]
    else:
        older, newer = (voc_scenes(folder, year, "trainval") for year in ("2007", "2012"))
        read = [replace(older, scenes=older.scenes + newer.scenes), voc_scenes(folder, "2007", "test")]
    train, test = read
    net = make_detector(encoder, len(train.classes), settings)
    deque(train_detection(net, train, settings, device), 0)
    found = measure_detections(test, detect_objects(net, test, device, workers=settings.workers))
    return found, {"train": len(train), "test": len(test)}


def segmentation(
    task: Task, job: Job, root: Path, encoder: Encoder, device: torch.device
) -> tuple[dict[str, float], dict[str, int]]:
    """Train semantic segmentation on Cityscapes' training photos and measure on its validation photos."""
    settings: SegmentSettings = settings_of(job.set_name, task, job.seed)
    train, test = (cityscapes_pairs(root / task.folder, part) for part in ("train", "val"))
    net = SegmentNet(encoder, train.classes, settings.head, auxiliary=settings.auxiliary > 0, seed=settings.seed)
    deque(train_segmentation(net, train, settings, device), 0)
    report = evaluate_segmentation(net, test, device, workers=settings.workers)
    found = {"mIoU": report.mean_iou, "mAcc": report.mean_accuracy, "aAcc": report.pixel_accuracy}
    return found, {"train": len(train), "test": len(test)}


def classification(
    task: Task,
    job: Job,
    root: Path,
    encoder: Encoder,
    device: torch.device,
) -> tuple[dict[str, float], dict[str, int]]:
    """Fine-tune the whole encoder with a linear head on one of the eight sets."""
    settings: TrainSettings = settings_of(job.set_name, task, job.seed)
    read = read_set(job.set_name, root / task.folder, any_size=task.any_size)
    whole = read.kind == "multi"
    size = task.settings.get("size", VOC2007["size"] if whole else SIZE)
    policy = make_policy("coco" if whole else "imagenet", size)
    context = ProbeContext(make_accelerator(settings.precision, device.type == "cpu"), policy)
    scores = finetuned_scores(encoder, read, context, settings, _consume)
    return measure(read, scores), {"train": len(read.train), "test": len(read.test)}
