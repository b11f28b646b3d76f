"""`fewtags transfer detect` and `segment`: evaluate an encoder by object detection and semantic segmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, final

import typer

from fewtags.cli.options import check_choice, expand_groups, without_none
from fewtags.cli.progress import counting, say
from fewtags.cli.transfer_options import EncoderOptions, print_result, refuse_processes
from fewtags.errors import ConfigError

if TYPE_CHECKING:
    from fewtags.engine.encoder_file import EncoderInfo
    from fewtags.nets.encoder import Encoder
    from fewtags.transfer.dense.scenes import Scenes
    from fewtags.transfer.dense.segmentation import Pairs

LOSS_LINES = 20
"""How many times a training prints its loss."""


@final
@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Options of both trainings; None means the published protocol's value."""

    iterations: Annotated[int | None, typer.Option(min=1, help="Optimiser steps; default: the protocol's.")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help="Photos per step; default: the protocol's.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate; default: the protocol's.")] = None
    weight_decay: Annotated[float | None, typer.Option(min=0.0, help="L2 penalty; default: the protocol's.")] = None


@expand_groups
def detect(
    options: EncoderOptions,
    schedule: ScheduleOptions,
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
    test_images: Annotated[Path | None, typer.Option(help="Folder of the photos of --test; default: --images.")] = None,
    hold_out: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Without --test: share of random test photos.")
    ] = 0.2,
    only_2007: Annotated[bool, typer.Option("--only-2007", help="VOC: train without VOC2012.")] = False,
    boxes_only: Annotated[bool, typer.Option("--boxes-only", help="COCO: Faster R-CNN, no masks.")] = False,
    warm_up: Annotated[int | None, typer.Option(min=0, help="Warm-up steps; default: the protocol's.")] = None,
    min_size: Annotated[
        list[int] | None, typer.Option(min=32, help="Shorter side in pixels; repeat it to train at several sizes.")
    ] = None,
    max_size: Annotated[int, typer.Option(min=32, help="Maximum of the longer side in pixels.")] = 1333,
    heads: Annotated[str, typer.Option(help="torchvision's v2, or the cheaper v1.")] = "v2",
    anchor: Annotated[int, typer.Option(min=1, help="Side of the smallest anchors in pixels.")] = 32,
    rois: Annotated[int, typer.Option(min=1, help="Proposals per photo that train the box head.")] = 512,
    proposals: Annotated[
        int, typer.Option(min=1, help="Proposals per photo that the box head classifies in tests.")
    ] = 1000,
) -> None:
    """Train a Faster or Mask R-CNN on a ResNet encoder.

    Trains all layers of torchvision's detectors and reports AP. COCO's AP needs faster-coco-eval.

    \b
    Examples:
      fewtags transfer detect runs/pretrained /data/coco --workers 8
      fewtags transfer detect runs/pretrained /data/VOCdevkit --layout voc --workers 8
      fewtags transfer detect none instances.json --images photos/ --backbone resnet18 --min-size 160 --iterations 500
    """  # noqa: D301
    from fewtags.engine.machine import torch_device
    from fewtags.transfer.dense.detection import VOC, DetectSettings, make_detector, train_detection
    from fewtags.transfer.dense.measure import detect_objects, measure_detections, require_measure
    from fewtags.transfer.dense.protocols import detect_protocol

    refuse_processes("detect")
    voc = check_choice("--layout", layout, ("coco", "voc")) == "voc"
    given = {**asdict(schedule), "warm_up": warm_up, "min_sizes": tuple(min_size) if min_size else None}
    settings = replace(
        VOC if voc else DetectSettings(masks=not boxes_only),
        max_size=max_size,
        heads=cast("Literal['v1', 'v2']", check_choice("--heads", heads, ("v1", "v2"))),
        anchor=anchor,
        rois=rois,
        proposals=proposals,
        seed=options.seed,
        workers=options.workers,
        **without_none(given),
    )
    if not voc:
        require_measure()
    files = {"--images": images, "--test": test, "--test-images": test_images}
    sets = _voc_sets(data, files, boxes_only, only_2007) if voc else _coco_sets(data, files, only_2007, settings.masks)
    device, results, counts = torch_device(options.cpu), [], (0, 0)
    for scenes in sets if isinstance(sets, tuple) else (sets,):
        _read_all([scene.pixels for scene in scenes.scenes])
    for seed, encoder, info in _encoders(options):
        train, tested = sets if isinstance(sets, tuple) else sets.hold_out(hold_out, seed)
        counts, own = (len(train), len(tested)), replace(settings, seed=seed)
        net = make_detector(encoder, len(train.classes), own)
        _say_sizes(info, *counts, len(train.classes), train.notes)
        with counting("detecting objects") as tick:
            _train(train_detection(net, train, own, device), settings.iterations)
            found = detect_objects(net, tested, device, workers=options.workers, tick=tick)
        results.append(measure_detections(tested, found))
    published = isinstance(sets, tuple) and (not only_2007 if voc else data.is_dir())
    protocol = detect_protocol(settings, info, voc=voc, published=published)
    print_result("detect", options, info, _facts(data, settings, counts), results, protocol)


@expand_groups
def segment(
    options: EncoderOptions,
    schedule: ScheduleOptions,
    data: Annotated[
        Path,
        typer.Argument(
            help="Cityscapes: the folder with leftImg8bit/ and gtFine/; folders: the folder with train/images, "
            "train/masks, val/images and val/masks."
        ),
    ],
    layout: Annotated[str, typer.Option(help="cityscapes or folders.")] = "cityscapes",
    classes: Annotated[
        int | None, typer.Option(min=2, max=255, help="folders: number of classes C; mask values are 0 to C - 1.")
    ] = None,
    ignore: Annotated[
        list[int] | None, typer.Option(min=0, max=255, help="folders: mask value to ignore, default 255.")
    ] = None,
    test: Annotated[str, typer.Option(help="folders: name of the folder to test on.")] = "val",
    resize: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="HEIGHT WIDTH", help="Resize photos to this; default: their own size."),
    ] = None,
    crop: Annotated[
        tuple[int, int], typer.Option(metavar="HEIGHT WIDTH", help="Size of the training crops in pixels.")
    ] = (512, 1024),
    scale: Annotated[
        tuple[float, float], typer.Option(metavar="LOW HIGH", help="Range of random scales before a crop is cut.")
    ] = (0.5, 2.0),
    head: Annotated[str, typer.Option(help="torchvision's deeplab, or fcn.")] = "deeplab",
    auxiliary: Annotated[
        float, typer.Option(min=0.0, help="Loss weight of an auxiliary head on the stage before the last.")
    ] = 0.4,
    output_stride: Annotated[
        int, typer.Option(help="Pixels per cell, by dilation: 8 or 16; 0 keeps the encoder's.")
    ] = 8,
) -> None:
    """Train semantic segmentation on an encoder.

    Trains all layers, with a torchvision head, and reports mIoU, mAcc and aAcc.

    \b
    Examples:
      fewtags transfer segment runs/pretrained /data/cityscapes --workers 8
      fewtags transfer segment runs/pretrained camvid/ --layout folders --classes 11 --ignore 11 --crop 360 480
    """  # noqa: D301
    from fewtags.engine.machine import torch_device
    from fewtags.transfer.dense.protocols import segment_protocol
    from fewtags.transfer.dense.segmentation import (
        SegmentNet,
        SegmentSettings,
        evaluate_segmentation,
        train_segmentation,
        with_output_stride,
    )

    refuse_processes("segment")
    stride = output_stride or None
    if output_stride not in (0, 8, 16):
        raise ConfigError(f"--output-stride {output_stride}: expected 8 or 16, or 0 for the encoder's own.")
    settings = SegmentSettings(
        crop=crop,
        scale=scale,
        head=cast("Literal['deeplab', 'fcn']", check_choice("--head", head, ("deeplab", "fcn"))),
        auxiliary=auxiliary,
        seed=options.seed,
        workers=options.workers,
        **without_none(asdict(schedule)),
    )
    city = check_choice("--layout", layout, ("cityscapes", "folders")) == "cityscapes"
    train, tested = _pairs(data, test, classes, ignore, resize, city=city)
    device, results = torch_device(options.cpu), []
    for pairs in (train, tested):
        _read_all([partial(pairs.read, n) for n in range(len(pairs))])
    for seed, encoder, info in _encoders(options):
        strided = with_output_stride(encoder, info, stride)
        model = SegmentNet(strided, train.classes, settings.head, auxiliary=auxiliary > 0, seed=seed)
        _say_sizes(info, len(train), len(tested), train.classes)
        with counting("segmenting photos") as tick:
            _train(train_segmentation(model, train, replace(settings, seed=seed), device), settings.iterations)
            report = evaluate_segmentation(model, tested, device, workers=options.workers, tick=tick)
        results.append({"mIoU": report.mean_iou, "mAcc": report.mean_accuracy, "aAcc": report.pixel_accuracy})
    protocol = segment_protocol(settings, info, cityscapes=city and resize is None, stride=stride)
    print_result("segment", options, info, _facts(data, settings, (len(train), len(tested))), results, protocol)


def _coco_sets(
    data: Path, files: Mapping[str, Path | None], only_2007: bool, masks: bool
) -> tuple[Scenes, Scenes] | Scenes:
    """Read training and test photos, or all photos if test photos are to be held out."""
    from fewtags.transfer.dense.scenes import coco_scenes

    if only_2007:
        raise ConfigError("--only-2007 is for VOC; leave it out, or give --layout voc.")
    images, test, test_images = files.values()
    if data.is_dir():
        if unused := list(without_none(files)):
            raise ConfigError(f"{', '.join(unused)}: only for a single instances file, but {data} is a folder.")
        parts = [(data / "annotations" / f"instances_{part}.json", data / part) for part in ("train2017", "val2017")]
    else:
        if images is None:
            raise ConfigError(f"{data} is a single file; give the folder of its photos: --images FOLDER.")
        parts = [(data, images)] if test is None else [(data, images), (test, test_images or images)]
    read = [coco_scenes(file, folder) for file, folder in parts]
    if len(read) == 2 and read[0].classes != read[1].classes:
        raise ConfigError(f"{parts[1][0]} has other categories than {parts[0][0]}; give files of one data set.")
    made = [scenes.with_outlines() if masks else scenes for scenes in read]
    return (made[0], made[1]) if len(made) == 2 else made[0]


def _voc_sets(data: Path, files: Mapping[str, Path | None], boxes_only: bool, only_2007: bool) -> tuple[Scenes, Scenes]:
    from fewtags.transfer.dense.scenes import voc_scenes

    if unused := list(without_none({**files, "--boxes-only": boxes_only or None})):
        raise ConfigError(f"{', '.join(unused)}: --layout voc has fixed files and boxes only; leave it out.")
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


def _read_all(readers: Sequence[Callable[[], Any]]) -> None:
    """Read every photo once, so that unusable photos are reported before training."""
    with counting("reading photos") as tick:
        for n, read in enumerate(readers, 1):
            read()
            tick(n, len(readers))


def _encoders(options: EncoderOptions) -> Iterator[tuple[int, Encoder, EncoderInfo]]:
    """Yield the seed and the encoder of every run; random weights differ between runs."""
    from fewtags.engine.encoder_file import find_encoder

    for seed in range(options.seed, options.seed + options.runs):
        yield seed, *find_encoder(options.encoder, backbone=options.backbone, seed=seed)


def _say_sizes(info: EncoderInfo, train: int, test: int, classes: int, notes: Sequence[str] = ()) -> None:
    say(*notes, f"{info.backbone}, {train:,} training photos, {test:,} test photos, {classes} classes")


def _train(losses: Iterator[float], iterations: int) -> None:
    """Train to the end and print the mean loss at regular steps."""
    every, total = max(1, iterations // LOSS_LINES), 0.0
    for step, loss in enumerate(losses, 1):
        total += loss
        if step % every == 0:
            say(f"step {step:,}/{iterations:,}  loss {total / every:.4f}")
            total = 0.0


def _facts(data: Path, settings: Any, counts: tuple[int, int]) -> dict[str, Any]:
    """Return the entries of the JSON result that only these commands have."""
    chosen = {name: value for name, value in asdict(settings).items() if name not in ("seed", "workers")}
    return {"data": str(data), "train_photos": counts[0], "test_photos": counts[1], "settings": chosen}
