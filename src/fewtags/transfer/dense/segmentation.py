"""Semantic segmentation with an encoder: data, network, training and evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision.models.segmentation.deeplabv3 import DeepLabHead
from torchvision.models.segmentation.fcn import FCNHead

from fewtags.engine.autocast import repeatable, seeded
from fewtags.engine.encoder_file import EncoderInfo
from fewtags.engine.machine import prepare_process
from fewtags.errors import ConfigError, DataError
from fewtags.metrics.segmentation import SegmentationReport, confusion, segmentation_report
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.nets.spatial import spatial_features
from fewtags.photos.decode import open_photo
from fewtags.photos.loader import Collate
from fewtags.photos.pillow import DAMAGE, open_picture
from fewtags.photos.scan import Tick
from fewtags.seeds import rng, seed_of
from fewtags.transfer.dense.batches import CHANGE, HEAD, batch_keys, read_batches, take_step

PhotoMask = tuple[NDArray[np.uint8], NDArray[np.uint8]]
IGNORE = 255
CITYSCAPES = {
    7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13, 27: 14,
    28: 15, 31: 16, 32: 17, 33: 18,
}  # fmt: skip
"""labelId -> trainId of the 19 evaluated classes; all other ids are ignored."""
GREY = 127
"""Padding around a photo; about 0 after normalisation."""


@final
@dataclass(frozen=True)
class Pairs:
    """Photos with one mask each.

    Attributes:
        images: N files.
        masks: N PNG files, one channel, the same size.
        classes: C.
        lookup: uint8 [256], the class 0..C - 1 of each mask value, or `IGNORE`.
        size: (height, width) that photos are resized to; None: their own size.
    """

    images: tuple[Path, ...]
    masks: tuple[Path, ...]
    classes: int
    lookup: NDArray[np.uint8]
    size: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def read(self, n: int) -> PhotoMask:
        """Read pixels [h, w, 3], resized to `size`, and classes [H, W], in the mask's own size.

        Raises:
            DataError: a file cannot be read, the sizes differ, or a value of the mask is not a class.
        """
        place = self.masks[n]
        with open_photo(self.images[n]) as photo:
            mask = _read_mask(place, photo.info.width, photo.info.height)
            pixels = photo.read(size=self.size)
        truth = self.lookup[mask]
        wrong = truth[(truth >= self.classes) & (truth != IGNORE)].tolist()
        if wrong:
            raise DataError(
                f"{place} contains the value {wrong[0]}, but the {self.classes} classes are 0 to {self.classes - 1}; "
                f"change --classes, or pass --ignore {wrong[0]}."
            )
        return pixels, truth


def _read_mask(place: Path, width: int, height: int) -> NDArray[np.uint8]:
    try:
        with open_picture(place, ("PNG",)) as file:
            if file.size != (width, height):
                raise DataError(
                    f"{place} has {file.width} x {file.height} pixels, but its photo has {width} x {height}; give "
                    "masks of the photos' size."
                )
            if file.mode not in ("L", "P", "1"):
                raise DataError(f"{place}: expected class numbers in one 8-bit channel, got mode {file.mode}.")
            return np.array(file).astype(np.uint8)
    except DAMAGE as error:
        raise DataError(f"{place}: the mask cannot be read as PNG ({error}).") from None


def folder_pairs(
    images: Path, masks: Path, classes: int, ignore: Sequence[int] = (IGNORE,), size: tuple[int, int] | None = None
) -> Pairs:
    """List the photos and masks (PNG files of class numbers) of the same name, apart from the ending, in two folders.

    Mask values in `ignore` are ignored. For `classes` and `size`, see `Pairs`.

    Raises:
        DataError: there is no photo, or a photo has no mask.
    """
    named = {path.stem: path for path in sorted(masks.iterdir())} if masks.is_dir() else {}
    found = sorted(path for path in images.iterdir() if path.is_file()) if images.is_dir() else []
    if not found:
        raise DataError(f"{images} contains no photo; give a folder of photos, and one of masks with the same names.")
    if missing := next((path for path in found if path.stem not in named), None):
        raise DataError(f"{missing} has no mask of the same name in {masks}; add the mask or remove the photo.")
    lookup = np.arange(256, dtype=np.uint8)
    lookup[list(ignore)] = IGNORE
    return Pairs(tuple(found), tuple(named[path.stem] for path in found), classes, lookup, size)


def cityscapes_pairs(root: Path, split: Literal["train", "val"], size: tuple[int, int] | None = None) -> Pairs:
    """List Cityscapes' leftImg8bit/SPLIT/CITY/*_leftImg8bit.png and gtFine/SPLIT/CITY/*_gtFine_labelIds.png.

    Raises:
        DataError: there is no photo, or a photo has no mask.
    """
    images = sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.png"))
    if not images:
        raise DataError(f"{root / 'leftImg8bit' / split} contains no CITY/*_leftImg8bit.png; unpack leftImg8bit there.")
    masks = [
        root / "gtFine" / split / image.parent.name / image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
        for image in images
    ]
    for image, mask in zip(images, masks, strict=True):
        if not mask.exists():
            raise DataError(f"{mask}, the mask of {image.name}, does not exist; unpack gtFine in {root}.")
    lookup = np.full(256, IGNORE, np.uint8)
    lookup[list(CITYSCAPES)] = list(CITYSCAPES.values())
    return Pairs(tuple(images), tuple(masks), 19, lookup, size)


@final
@dataclass(frozen=True, kw_only=True)
class SegmentSettings:
    """Training settings. The defaults are mmsegmentation's for Cityscapes (512 x 1024, 40k), which MLS used.

    Attributes:
        iterations: optimiser steps.
        batch_size: crops per step.
        crop: height and width of the crops in pixels.
        scale: photos are resized by a factor uniform in this range before they are cropped.
        lr: initial learning rate of SGD with momentum 0.9; it decays as (1 - t) ** 0.9 to `final_lr`.
        final_lr: final learning rate.
        weight_decay: L2 penalty, added to the gradient.
        head: torchvision's "deeplab" (ASPP) or "fcn".
        auxiliary: loss weight of an auxiliary FCN head on the stage before the last; 0: no such head.
        workers: processes that read photos; they do not change the result.

    Raises:
        ConfigError: a number is out of range.
    """

    iterations: int = 40_000
    batch_size: int = 8
    crop: tuple[int, int] = (512, 1024)
    scale: tuple[float, float] = (0.5, 2.0)
    lr: float = 0.01
    final_lr: float = 1e-4
    weight_decay: float = 5e-4
    head: Literal["deeplab", "fcn"] = "deeplab"
    auxiliary: float = 0.4
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.head == "deeplab" and self.batch_size < 2:
            raise ConfigError(
                "the deeplab head has BatchNorm after global pooling; it needs a batch size of 2 or more."
            )
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ConfigError(f"scale must be a range of factors above 0, got {self.scale}.")
        if not self.lr > 0:
            raise ConfigError(f"the learning rate must be above 0, got {self.lr:g}.")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0; mmsegmentation's "poly" schedule."""
        left = 1 - step / self.iterations
        return (self.lr - self.final_lr) * math.pow(left, 0.9) + self.final_lr


def with_output_stride(encoder: Encoder, info: EncoderInfo, output_stride: int | None) -> Encoder:
    """Copy an encoder, dilated to an output stride of 8 or 16; None keeps its stride.

    Raises:
        ConfigError: the architecture does not support the stride.
    """
    try:
        made = create_encoder(info.backbone, weights="none", size=info.size, output_stride=output_stride)
    except ConfigError as error:
        raise ConfigError(f"{error} (transfer segment: --output-stride 0)") from None
    made.load_state_dict(encoder.state_dict())
    made.preprocessing = encoder.preprocessing
    return made


@final
class SegmentNet(nn.Module):
    """An encoder with a torchvision head on its last feature map; logits have the size of the images.

    The published protocols use output stride 8 (`with_output_stride`). `auxiliary` adds an FCN head on the features of
    the stage before the last.
    """

    def __init__(
        self, encoder: Encoder, classes: int, head: Literal["deeplab", "fcn"], *, auxiliary: bool, seed: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        # timm's description of the stages: name of the module and channels of each.
        stages: Any = encoder.backbone.feature_info
        self._before: str = stages[-2]["module"]
        with seeded(torch.device("cpu"), seed_of(seed, HEAD)):
            make = DeepLabHead if head == "deeplab" else FCNHead
            self.head: nn.Module = make(encoder.features_dim, classes)
            self.auxiliary: nn.Module | None = FCNHead(stages[-2]["num_chs"], classes) if auxiliary else None

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits [b, C, H, W] of the head and, in training, those of the auxiliary head."""
        size = (images.shape[2], images.shape[3])
        if self.auxiliary is None or not self.training:
            return _resized(self.head(self.encoder.features(images)), size), None
        kept: list[Tensor] = []
        stage = self.encoder.backbone.get_submodule(self._before)
        handle = stage.register_forward_hook(lambda _module, _inputs, out: kept.append(out))
        try:
            features = self.encoder.features(images)
        finally:
            handle.remove()
        before = spatial_features(kept[0], self.encoder.layout, size, self.encoder.prefix_tokens)
        return _resized(self.head(features), size), _resized(self.auxiliary(before), size)


def _resized(logits: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(logits.float(), size, mode="bilinear", align_corners=False)


def train_segmentation(
    net: SegmentNet, data: Pairs, settings: SegmentSettings, device: torch.device
) -> Iterator[float]:
    """Train; yields the loss of every step. An interrupted training cannot be resumed.

    Raises:
        DataError: a photo or mask cannot be used.
        TrainingError: the loss is not finite.
    """
    prepare_process()
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    pre = net.encoder.preprocessing
    collate = Collate(pre.mean, pre.std)
    keys = batch_keys(len(data), settings.batch_size, settings.iterations, settings.seed)
    for step, crops in enumerate(read_batches(partial(_read_crop, data, settings), keys, settings.workers)):
        images = collate.pixels([pixels for pixels, _ in crops], device)
        truth = torch.from_numpy(np.stack([mask for _, mask in crops])).to(device).long()
        with repeatable(device), seeded(device, seed_of(settings.seed, step)):
            logits, extra = net(images)
            loss = _cross_entropy(logits, truth)
            if extra is not None:
                loss = loss + settings.auxiliary * _cross_entropy(extra, truth)
            value = take_step(optimizer, loss, step, settings.rate(step))
        yield value


def _cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """Mean cross-entropy over the pixels that are not ignored; 0 without such pixels."""
    total = F.cross_entropy(logits, truth, ignore_index=IGNORE, reduction="sum")
    return total / (truth != IGNORE).sum().clamp(min=1)


def _read_crop(data: Pairs, settings: SegmentSettings, epoch: int, n: int) -> PhotoMask:
    return _crop(*data.read(n), settings, rng(settings.seed, epoch, n, CHANGE))


def _crop(
    pixels: NDArray[np.uint8], mask: NDArray[np.uint8], settings: SegmentSettings, random: np.random.Generator
) -> PhotoMask:
    """Resize, crop and flip at random; the crop is padded with grey, ignored pixels beyond the photo."""
    factor, (height, width) = random.uniform(*settings.scale), settings.crop
    size = (max(1, round(pixels.shape[1] * factor)), max(1, round(pixels.shape[0] * factor)))
    photo = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
    truth = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
    top, left = (
        int(random.integers(max(0, have - want) + 1)) for have, want in zip(truth.shape, (height, width), strict=True)
    )
    part = (slice(top, top + height), slice(left, left + width))
    out, labels = np.full((height, width, 3), GREY, np.uint8), np.full((height, width), IGNORE, np.uint8)
    inside = truth[part].shape
    out[: inside[0], : inside[1]], labels[: inside[0], : inside[1]] = photo[part], truth[part]
    return (out[:, ::-1], labels[:, ::-1]) if random.random() < 0.5 else (out, labels)


@torch.no_grad()
def evaluate_segmentation(
    net: SegmentNet, data: Pairs, device: torch.device, *, stride: int = 32, workers: int = 0, tick: Tick | None = None
) -> SegmentationReport:
    """Evaluate whole photos at the size of their masks, all pixels in one confusion matrix.

    The network is put into eval mode; `workers` processes read the photos. Photos are padded to multiples of `stride`,
    on the right and below; padded pixels do not count.

    Raises:
        DataError: a photo or mask cannot be used.
    """
    prepare_process()
    net.to(device).eval()
    pre = net.encoder.preprocessing
    collate, matrix = Collate(pre.mean, pre.std), np.zeros((data.classes, data.classes), np.int64)
    keys = [[(n,)] for n in range(len(data))]
    for done, ((pixels, mask),) in enumerate(read_batches(data.read, keys, workers), 1):
        height, width, _ = pixels.shape
        padded = np.full((-(-height // stride) * stride, -(-width // stride) * stride, 3), GREY, np.uint8)
        padded[:height, :width] = pixels
        with repeatable(device):
            logits = net(collate.pixels([padded], device))[0][:, :, :height, :width]
        if logits.shape[2:] != mask.shape:
            logits = _resized(logits, (mask.shape[0], mask.shape[1]))
        matrix += confusion(logits[0].argmax(0).cpu().numpy(), mask, data.classes, IGNORE)
        if tick is not None:
            tick(done, len(data))
    return segmentation_report(matrix)
