"""Detection and instance segmentation: torchvision's Faster and Mask R-CNN with a feature pyramid on an encoder."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.resnet import ResNet
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads
from torchvision.models.detection.rpn import RPNHead

from fewtags.engine.autocast import seeded
from fewtags.engine.machine import prepare_process
from fewtags.errors import ConfigError
from fewtags.nets.encoder import Encoder
from fewtags.seeds import rng, seed_of
from fewtags.transfer.dense.batches import CHANGE, HEAD, batch_keys, read_batches, take_step
from fewtags.transfer.dense.scenes import Scenes

Sample = tuple[Tensor, dict[str, Tensor]]
CHANNELS = 256
"""Channels of the feature pyramid and the heads, as in torchvision's models."""
WARM_UP_START = 1e-3
"""Share of the learning rate at the first step of warm-up."""
MIN_SIDE = 0.1
"""Boxes with a side of fewer pixels inside the photo are not trained on."""


@final
@dataclass(frozen=True, kw_only=True)
class DetectSettings:
    """Training settings. The defaults are Mask R-CNN's 1x schedule on COCO; `VOC` is MoCo's schedule on VOC.

    Attributes:
        iterations: optimiser steps.
        batch_size: photos per step.
        lr: learning rate of SGD with momentum 0.9.
        weight_decay: L2 penalty, added to the gradient.
        warm_up: steps over which the learning rate rises linearly from a thousandth.
        drops: shares of the steps after which the learning rate is divided by 10.
        min_sizes: shorter sides in pixels, sampled in training; tests use the last.
        max_size: maximum of the longer side in pixels.
        masks: Mask R-CNN instead of Faster R-CNN.
        heads: torchvision's "v2" (BatchNorm in pyramid and heads, four box convolutions) or the cheaper "v1".
        anchor: side of the smallest anchors in pixels; four more sizes double it.
        rois: proposals per photo that train the box head.
        proposals: proposals per photo that the box head classifies in tests.
        workers: processes that read photos; they do not change the result.

    Raises:
        ConfigError: a number is out of range.
    """

    iterations: int = 90_000
    batch_size: int = 16
    lr: float = 0.02
    weight_decay: float = 1e-4
    warm_up: int = 1000
    drops: tuple[float, ...] = (2 / 3, 8 / 9)
    min_sizes: tuple[int, ...] = (640, 672, 704, 736, 768, 800)
    max_size: int = 1333
    masks: bool = True
    heads: Literal["v1", "v2"] = "v2"
    anchor: int = 32
    rois: int = 512
    proposals: int = 1000
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"the learning rate must be above 0, got {self.lr:g}.")
        if max(self.min_sizes) > self.max_size:
            raise ConfigError(f"the shorter side {max(self.min_sizes)} exceeds the longest side, {self.max_size}.")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warm = WARM_UP_START + (1 - WARM_UP_START) * min(1.0, step / self.warm_up) if self.warm_up else 1.0
        passed = bisect_right([round(share * self.iterations) for share in self.drops], step)
        return self.lr * warm * 0.1**passed


VOC = DetectSettings(
    iterations=24_000, warm_up=100, drops=(0.75, 11 / 12), min_sizes=tuple(range(480, 801, 32)), masks=False
)
"""MoCo's settings for VOC07+12. MoCo uses C4 heads without a pyramid."""


def make_detector(encoder: Encoder, classes: int, settings: DetectSettings) -> nn.Module:
    """Make a detector with a copy of the encoder, one of timm's ResNets, as its body.

    All parameters are trained, BatchNorm included. `classes` is C, without the background.

    Raises:
        ConfigError: the encoder is not a ResNet.
    """
    body = encoder.backbone
    if not isinstance(body, ResNet):
        raise ConfigError(
            f"the feature pyramid needs the four stages of a ResNet, which {type(body).__name__} does not have; give "
            "an encoder such as resnet18, resnet50 or resnext50_32x4d."
        )
    modern = settings.heads == "v2"
    norm = nn.BatchNorm2d if modern else None
    stages = body.feature_info[-4:]
    with seeded(torch.device("cpu"), seed_of(settings.seed, HEAD)):
        pyramid = BackboneWithFPN(
            deepcopy(body).requires_grad_(True),
            {stage["module"]: str(n) for n, stage in enumerate(stages)},
            [stage["num_chs"] for stage in stages],
            CHANNELS,
            norm_layer=norm,
        )
        anchors = AnchorGenerator(tuple((settings.anchor * 2**n,) for n in range(5)), ((0.5, 1.0, 2.0),) * 5)
        proposer = RPNHead(CHANNELS, anchors.num_anchors_per_location()[0], conv_depth=2 if modern else 1)
        parts: dict[str, Any] = {"rpn_anchor_generator": anchors, "rpn_head": proposer}
        if modern:
            parts["box_head"] = FastRCNNConvFCHead((CHANNELS, 7, 7), [CHANNELS] * 4, [1024], norm_layer=norm)
        if settings.masks:
            parts["mask_head"] = MaskRCNNHeads(CHANNELS, [CHANNELS] * 4, 1, norm_layer=norm)
        pre = encoder.preprocessing
        make = MaskRCNN if settings.masks else FasterRCNN
        net: nn.Module = make(
            pyramid,
            classes + 1,
            min_size=settings.min_sizes,
            max_size=settings.max_size,
            image_mean=list(pre.mean),
            image_std=list(pre.std),
            box_batch_size_per_image=settings.rois,
            rpn_post_nms_top_n_test=settings.proposals,
            **parts,
        )
    return net


def train_detection(net: nn.Module, data: Scenes, settings: DetectSettings, device: torch.device) -> Iterator[float]:
    """Train; yields the loss of every step. An interrupted training cannot be resumed.

    The same seed gives the same losses on a CPU. On a GPU the last bits may differ: torchvision's deterministic region
    alignment takes too much memory there. Photos without an object to train on are left out.

    Raises:
        DataError: a photo cannot be used, or no photo has an object to train on.
        TrainingError: the loss is not finite.
    """
    prepare_process()
    data = data.with_objects()
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    read = partial(training_sample, data, settings.masks, settings.seed)
    keys = batch_keys(len(data), settings.batch_size, settings.iterations, settings.seed)
    for step, samples in enumerate(read_batches(read, keys, settings.workers)):
        images = [image.to(device) for image, _ in samples]
        targets = [{name: value.to(device) for name, value in target.items()} for _, target in samples]
        with seeded(device, seed_of(settings.seed, step)):
            loss = sum(net(images, targets).values(), torch.zeros((), device=device))
            value = take_step(optimizer, loss, step, settings.rate(step))
        yield value


def training_sample(data: Scenes, masks: bool, seed: int, epoch: int, n: int) -> Sample:
    """Return photo n, float32 [3, h, w] in 0..1, and torchvision's targets in its pixels, with masks if `masks`.

    The seed, the epoch and n determine whether the photo is mirrored.

    Raises:
        DataError: the photo cannot be used.
    """
    scene = data.scenes[n]
    pixels = scene.pixels()
    height, width, _ = pixels.shape
    boxes = scene.boxes_in(height, width).clip(0, [width, height, width, height])
    index = np.flatnonzero(data.trainable(scene) & (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE).all(1))
    boxes = boxes[index]
    drawn = [scene.mask(i, height, width) for i in index.tolist()] if masks else []
    mask = np.stack(drawn) if drawn else np.zeros((0, height, width), np.bool_)
    if rng(seed, epoch, n, CHANGE).random() < 0.5:
        pixels, mask = pixels[:, ::-1], mask[:, :, ::-1]
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
    target = {"boxes": torch.from_numpy(boxes).float(), "labels": torch.from_numpy(scene.classes[index] + 1)}
    if masks:
        target["masks"] = torch.from_numpy(np.ascontiguousarray(mask, np.uint8))
    return as_image(pixels), target


def as_image(pixels: NDArray[np.uint8]) -> Tensor:
    """Convert uint8 [h, w, 3] to float32 [3, h, w] in 0..1; torchvision's detectors normalise it themselves."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float() / 255
