"""`fewtags transfer detect` and `segment`: what an encoder is worth where every box or pixel counts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from fewtags.cli.transfer_options import (
    Backbone,
    Cpu,
    EncoderArg,
    Json,
    Runs,
    Seed,
    WorkersOption,
    one_of,
    refuse_processes,
)
from fewtags.errors import ConfigError

if TYPE_CHECKING:
    from fewtags.engine.encoder_file import EncoderInfo
    from fewtags.transfer.dense.scenes import Scenes
    from fewtags.transfer.dense.segmentation import Pairs

METRICS = {
    "box_AP": "box AP",
    "box_AP50": "box AP50",
    "box_AP75": "box AP75",
    "mask_AP": "mask AP",
    "mask_AP50": "mask AP50",
    "mask_AP75": "mask AP75",
    "mIoU": "mIoU",
    "mAcc": "mAcc (mean accuracy of the classes)",
    "aAcc": "aAcc (share of the pixels that are right)",
}
PLAIN_LINES = 20
"""How often a training tells its loss."""

Iterations = Annotated[int | None, typer.Option(min=1, help="Optimiser steps; default: the protocol's.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Photos a step; default: the protocol's.")]
Lr = Annotated[float | None, typer.Option("--lr", help="Learning rate; default: the protocol's.")]
Decay = Annotated[float | None, typer.Option("--weight-decay", min=0.0, help="Default: the protocol's.")]


def detect(
    encoder: EncoderArg,
    data: Annotated[
        Path,
        typer.Argument(
            help="COCO: the folder with annotations/, train2017/ and val2017/, or one instances file with --images; "
            "VOC: the VOCdevkit folder."
        ),
    ],
    layout: Annotated[str, typer.Option(help="coco or voc.")] = "coco",
    images: Annotated[Path | None, typer.Option(help="Folder of the photos of an instances file.")] = None,
    test: Annotated[Path | None, typer.Option(help="Instances file to test on.")] = None,
    test_images: Annotated[
        Path | None, typer.Option("--test-images", help="Folder of its photos; default: --images.")
    ] = None,
    hold_out: Annotated[
        float, typer.Option("--hold-out", min=0.0, max=1.0, help="Without --test, test on this share, drawn by seed.")
    ] = 0.2,
    only_2007: Annotated[bool, typer.Option("--only-2007", help="VOC: train without VOC2012.")] = False,
    boxes_only: Annotated[bool, typer.Option("--boxes-only", help="COCO: Faster R-CNN, no masks.")] = False,
    iterations: Iterations = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    weight_decay: Decay = None,
    warm_up: Annotated[int | None, typer.Option("--warm-up", min=0, help="Steps; default: the protocol's.")] = None,
    min_size: Annotated[
        list[int] | None,
        typer.Option("--min-size", min=32, help="Shorter side in pixels; repeat it for several in training."),
    ] = None,
    max_size: Annotated[int, typer.Option("--max-size", min=32, help="Longest side in pixels.")] = 1333,
    heads: Annotated[str, typer.Option(help="torchvision's v2, or v1, which is cheaper.")] = "v2",
    anchor: Annotated[int, typer.Option(min=1, help="Side of the smallest anchors in pixels.")] = 32,
    rois: Annotated[int, typer.Option(min=1, help="Proposals per photo that the box head learns from.")] = 512,
    proposals: Annotated[int, typer.Option(min=1, help="Proposals per photo that it looks at in tests.")] = 1000,
    backbone: Backbone = None,
    runs: Runs = 1,
    seed: Seed = 0,
    workers: WorkersOption = 0,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Faster or Mask R-CNN of torchvision on a ResNet, all of it trained. COCO's AP needs faster-coco-eval.

    \b
    Examples:
      fewtags transfer detect runs/pretrained /data/coco --workers 8
      fewtags transfer detect runs/pretrained /data/VOCdevkit --layout voc --workers 8
      fewtags transfer detect none instances.json --images photos/ --backbone resnet18 --min-size 160 --iterations 500
    """  # noqa: D301
    from dataclasses import replace

    from fewtags.transfer.dense.detection import VOC, DetectSettings, make_detector, train_detection
    from fewtags.transfer.dense.measure import detect as find
    from fewtags.transfer.dense.measure import measure_detections, require_measure
    from fewtags.transfer.dense.protocols import detect_protocol

    refuse_processes("detect")
    voc = one_of("--layout", layout, ("coco", "voc")) == "voc"
    given = {"iterations": iterations, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay,
             "warm_up": warm_up, "min_sizes": tuple(min_size) if min_size else None}  # fmt: skip
    usual = VOC if voc else DetectSettings(masks=not boxes_only)
    settings = replace(
        usual, max_size=max_size, heads=cast("Literal['v1', 'v2']", one_of("--heads", heads, ("v1", "v2"))),
        anchor=anchor, rois=rois, proposals=proposals, seed=seed, workers=workers, **_stated(given),
    )  # fmt: skip
    if not voc:
        require_measure()
    files = {"--images": images, "--test": test, "--test-images": test_images}
    sets = _voc_sets(data, files, boxes_only, only_2007) if voc else _coco_sets(data, files, only_2007, settings.masks)
    device, results, counts = _device(cpu), [], (0, 0)
    for scenes in sets if isinstance(sets, tuple) else (sets,):
        _look([scene.pixels for scene in scenes.scenes])
    for own, (net, info) in _encoders(encoder, backbone, seed, runs):
        train, tested = sets if isinstance(sets, tuple) else sets.held_out(hold_out, own)
        counts = (len(train), len(tested))
        net_ = make_detector(net, len(train.classes), replace(settings, seed=own))
        _say(info, *counts, len(train.classes), train.notes)
        with _counting("looking for objects") as tick:
            _follow(train_detection(net_, train, replace(settings, seed=own), device), settings.iterations)
            results.append(measure_detections(tested, find(net_, tested, device, workers=workers, tick=tick)))
    published = isinstance(sets, tuple) and (not only_2007 if voc else data.is_dir())
    protocol = detect_protocol(settings, info, voc=voc, published=published)
    _tell("detect", encoder, data, info, settings, counts, results, protocol, as_json)


def segment(
    encoder: EncoderArg,
    data: Annotated[
        Path,
        typer.Argument(
            help="Cityscapes: the folder with leftImg8bit/ and gtFine/; folders: the one with train/images, "
            "train/masks, val/images and val/masks."
        ),
    ],
    layout: Annotated[str, typer.Option(help="cityscapes or folders.")] = "cityscapes",
    classes: Annotated[
        int | None, typer.Option(min=2, max=255, help="folders: number of classes; masks hold 0 to one less.")
    ] = None,
    ignore: Annotated[
        list[int] | None, typer.Option(min=0, max=255, help="folders: value that does not count, default 255.")
    ] = None,
    test: Annotated[str, typer.Option(help="folders: name of the folder to test on.")] = "val",
    resize: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="HEIGHT WIDTH", help="Reduce photos to this; default: as they are."),
    ] = None,
    crop: Annotated[
        tuple[int, int], typer.Option(metavar="HEIGHT WIDTH", help="Of the crops in training, in pixels.")
    ] = (512, 1024),
    scale: Annotated[
        tuple[float, float], typer.Option(metavar="LOW HIGH", help="Photos are scaled at random before a crop is cut.")
    ] = (0.5, 2.0),
    iterations: Iterations = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    weight_decay: Decay = None,
    head: Annotated[str, typer.Option(help="torchvision's deeplab, or fcn.")] = "deeplab",
    auxiliary: Annotated[float, typer.Option(min=0.0, help="Weight of a second head on the stage before.")] = 0.4,
    output_stride: Annotated[
        int, typer.Option("--output-stride", help="Pixels per cell, by dilation: 8 or 16; 0 leaves the encoder as is.")
    ] = 8,
    backbone: Backbone = None,
    runs: Runs = 1,
    seed: Seed = 0,
    workers: WorkersOption = 0,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Semantic segmentation with a head of torchvision's, all of it trained: mIoU, mAcc and aAcc.

    \b
    Examples:
      fewtags transfer segment runs/pretrained /data/cityscapes --workers 8
      fewtags transfer segment runs/pretrained camvid/ --layout folders --classes 11 --ignore 11 --crop 360 480
    """  # noqa: D301
    from dataclasses import replace
    from functools import partial

    from fewtags.transfer.dense.protocols import segment_protocol
    from fewtags.transfer.dense.segmentation import (
        SegmentNet,
        SegmentSettings,
        at_stride,
        evaluate_segmentation,
        train_segmentation,
    )

    refuse_processes("segment")
    stride = output_stride or None
    if output_stride not in (0, 8, 16):
        raise ConfigError(f"--output-stride {output_stride}: expected 8 or 16, or 0 for the encoder's own.")
    given = {"iterations": iterations, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay}
    settings = SegmentSettings(
        crop=crop, scale=scale, head=cast("Literal['deeplab', 'fcn']", one_of("--head", head, ("deeplab", "fcn"))),
        auxiliary=auxiliary, seed=seed, workers=workers, **_stated(given),
    )  # fmt: skip
    city = one_of("--layout", layout, ("cityscapes", "folders")) == "cityscapes"
    train, tested = _pairs(data, test, classes, ignore, resize, city=city)
    device, results = _device(cpu), []
    for pairs in (train, tested):
        _look([partial(pairs.read, n) for n in range(len(pairs))])
    for own, (net, info) in _encoders(encoder, backbone, seed, runs):
        model = SegmentNet(
            at_stride(net, info, stride), train.classes, settings.head, auxiliary=auxiliary > 0, seed=own
        )  # fmt: skip
        _say(info, len(train), len(tested), train.classes)
        with _counting("segmenting photos") as tick:
            _follow(train_segmentation(model, train, replace(settings, seed=own), device), settings.iterations)
            report = evaluate_segmentation(model, tested, device, workers=workers, tick=tick)
        results.append({"mIoU": report.mean_iou, "mAcc": report.mean_accuracy, "aAcc": report.pixel_accuracy})
    protocol = segment_protocol(settings, info, cityscapes=city and resize is None, stride=stride)
    _tell("segment", encoder, data, info, settings, (len(train), len(tested)), results, protocol, as_json)


# --- what is read


def _coco_sets(
    data: Path, files: Mapping[str, Path | None], only_2007: bool, masks: bool
) -> tuple[Scenes, Scenes] | Scenes:
    """Training and test photos, or all of them where a part is to be held out."""
    from fewtags.transfer.dense.scenes import coco_scenes

    if only_2007:
        raise ConfigError("--only-2007 is about VOC; leave it out, or give --layout voc.")
    images, test, test_images = files.values()
    if data.is_dir():
        if unused := [name for name, value in files.items() if value is not None]:
            raise ConfigError(f"{', '.join(unused)}: goes with one instances file, and {data} is a folder.")
        parts = [(data / "annotations" / f"instances_{part}.json", data / part) for part in ("train2017", "val2017")]
    else:
        if images is None:
            raise ConfigError(f"{data} is one file; name the folder of its photos: --images FOLDER.")
        parts = [(data, images)] if test is None else [(data, images), (test, test_images or images)]
    read = [coco_scenes(file, folder) for file, folder in parts]
    if len(read) == 2 and read[0].classes != read[1].classes:
        raise ConfigError(f"{parts[1][0]} has other categories than {parts[0][0]}; give files of one data set.")
    made = [scenes.with_outlines() if masks else scenes for scenes in read]
    return (made[0], made[1]) if len(made) == 2 else made[0]


def _voc_sets(data: Path, files: Mapping[str, Path | None], boxes_only: bool, only_2007: bool) -> tuple[Scenes, Scenes]:
    from dataclasses import replace

    from fewtags.transfer.dense.scenes import voc_scenes

    unused = [name for name, value in {**files, "--boxes-only": boxes_only or None}.items() if value is not None]
    if unused:
        raise ConfigError(f"{', '.join(unused)}: --layout voc knows its files, and has boxes only; leave it out.")
    train = voc_scenes(data, "2007", "trainval")
    if not only_2007:
        train = replace(train, scenes=train.scenes + voc_scenes(data, "2012", "trainval").scenes)
    return train, voc_scenes(data, "2007", "test")


def _pairs(
    data: Path, test: str, classes: int | None, ignore: list[int] | None, size: tuple[int, int] | None, *, city: bool
) -> tuple[Pairs, Pairs]:
    from fewtags.transfer.dense.segmentation import IGNORE, cityscapes_pairs, folder_pairs

    if city:
        if classes is not None or ignore or test != "val":
            raise ConfigError("--classes, --ignore and --test are for --layout folders; Cityscapes has its own.")
        return cityscapes_pairs(data, "train", size), cityscapes_pairs(data, "val", size)
    if classes is None:
        raise ConfigError("--layout folders needs the number of classes: --classes 11.")
    train, tested = (
        folder_pairs(data / part / "images", data / part / "masks", classes, ignore or [IGNORE], size)
        for part in ("train", test)
    )
    return train, tested


# --- shared


def _look(readers: Sequence[Callable[[], Any]]) -> None:
    """Read everything once, so that what cannot be used is told before anything is trained."""
    with _counting("looking at photos") as tick:
        for n, read in enumerate(readers, 1):
            read()
            tick(n, len(readers))


def _encoders(place: str, backbone: str | None, seed: int, runs: int) -> Iterator[tuple[int, tuple[Any, EncoderInfo]]]:
    """The seed and the encoder of every run; random weights differ from run to run."""
    from fewtags.engine.encoder_file import find_encoder

    for own in range(seed, seed + runs):
        yield own, find_encoder(place, backbone=backbone, seed=own)


def _device(cpu: bool) -> Any:
    from fewtags.engine.machine import torch_device

    return torch_device(cpu)


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _counting(label: str) -> Any:
    from fewtags.cli.progress import counting

    return counting(label)


def _say(info: EncoderInfo, train: int, test: int, classes: int, notes: Sequence[str] = ()) -> None:
    from fewtags.cli.progress import say

    for note in notes:
        say(note)
    say(f"{info.backbone}, {train:,} training photos, {test:,} test photos, {classes} classes")


def _follow(losses: Iterator[float], iterations: int) -> None:
    """Train to the end; the mean loss is told now and then."""
    from fewtags.cli.progress import say

    every, since = max(1, iterations // PLAIN_LINES), 0.0
    for step, loss in enumerate(losses, 1):
        since += loss
        if step % every == 0:
            say(f"step {step:,}/{iterations:,}  loss {since / every:.4f}")
            since = 0.0


def _tell(
    command: str,
    encoder: str,
    data: Path,
    info: EncoderInfo,
    settings: Any,
    counts: tuple[int, int],
    results: Sequence[Mapping[str, float]],
    protocol: str,
    as_json: bool,
) -> None:
    """The result on stdout."""
    from fewtags.transfer.measure import over_runs

    spreads = over_runs(results)
    if as_json:
        content = {
            "command": command,
            "encoder": {"place": encoder, **asdict(info)},
            "data": str(data),
            "train_photos": counts[0],
            "test_photos": counts[1],
            "seeds": list(range(settings.seed, settings.seed + len(results))),
            "settings": {name: value for name, value in asdict(settings).items() if name not in ("seed", "workers")},
            "metrics": {
                name: {"mean": s.mean, "sd": None if math.isnan(s.sd) else s.sd, "runs": list(s.runs)}
                for name, s in spreads.items()
            },
            "protocol": protocol,
        }
        typer.echo(json.dumps(content))
        return
    for name, spread in spreads.items():
        several = f" (sd {100 * spread.sd:.2f} over {len(spread.runs)} runs)" if len(spread.runs) > 1 else ""
        typer.echo(f"{METRICS[name]}: {100 * spread.mean:.2f}{several}")
    typer.echo(protocol)
