"""The model file: one safetensors file with the weights and everything that is needed to use them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final

from fewtags.engine.places import model_path, refuse_missing_model
from fewtags.engine.tensor_files import (
    CHECKSUM,
    checksum,
    load_into,
    parse_metadata,
    publish_tensors,
    read_metadata,
)
from fewtags.errors import CheckpointError
from fewtags.labels import ClassNames
from fewtags.metrics.decisions import Groups
from fewtags.metrics.thresholds import ThresholdRule
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan, Preprocessing, SpatialNet
from fewtags.photos.augment import Policy, ResizedCrop, SquareCrop, WholeImage
from fewtags.table.exclusive import ClassGroups
from fewtags.text import MOST_NAMED, counted, flag, some

MODEL_FORMAT = 1


@final
@dataclass(frozen=True)
class StoredCalibration:
    """What changed the head after training: logits are slope x those of the trained head + offset of the class.

    Attributes:
        slope: above 0.
        offsets: C numbers.
        basis: a text that says from which labels they were fitted.
    """

    slope: float
    offsets: tuple[float, ...]
    basis: str


@final
@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The metadata of a model file.

    Attributes:
        backbone: timm's name.
        output_stride: pixels per map cell; 0 for the backbone's own.
        size: side of the input in pixels.
        policy: the augmentation policy, which defines the test view.
        class_ids: C ids; `class_names` are for display.
        thresholds: C smallest probabilities at which a class is taken as present; `threshold_rules` chose them.
        mean: of the input, per channel, as is `std`.
        method: name and settings of the objective.
        selection: a text that says which epoch's weights these are, and why.
        version: of fewtags that trained the model.
        exactly_one: groups of class ids of which exactly one is present in a photo.
        at_most_one: groups of class ids of which at most one is present.
        calibration: how the head was calibrated after training; None for a head as it was trained.
    """

    backbone: str
    output_stride: int
    head: HeadPlan
    size: int
    policy: Literal["coco", "imagenet", "none"]
    class_ids: tuple[str, ...]
    class_names: tuple[str, ...]
    thresholds: tuple[float, ...]
    threshold_rules: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    method: dict[str, Any]
    selection: str
    version: str
    exactly_one: tuple[tuple[str, ...], ...] = ()
    at_most_one: tuple[tuple[str, ...], ...] = ()
    calibration: StoredCalibration | None = None

    @property
    def classes(self) -> ClassNames:
        """The vocabulary."""
        return ClassNames(self.class_ids, self.class_names)

    @property
    def class_groups(self) -> ClassGroups:
        """The groups of classes, by id."""
        return ClassGroups(self.exactly_one, self.at_most_one)

    @property
    def groups(self) -> Groups:
        """The groups of classes by position, for decisions."""
        found = self.class_groups.positions(self.classes)
        return tuple((always, tuple(columns.tolist())) for always, columns, _ in found)

    def lines(self) -> Iterator[str]:
        """Say which epoch's weights these are, and warn of classes that are hardly ever tagged."""
        yield f"model: {self.selection}"
        if self.calibration is not None:
            yield f"probabilities: {self.calibration.basis}"
        if self.untagged:
            yield f"warning: {self.untagged}"

    @property
    def untagged(self) -> str:
        """A sentence that names the classes that are hardly ever tagged, because no positive is expected; or ""."""
        rows = zip(self.classes.display, self.threshold_rules, strict=True)
        names = [name for name, rule in rows if rule == ThresholdRule.NONE_EXPECTED]
        if not names:
            return ""
        return (
            f"{counted(len(names), 'class has', 'classes have')} no usable threshold and will hardly ever be tagged, "
            f"since less than one positive is expected among the photos that choose it: "
            f"{some(names, MOST_NAMED)}. Label more photos of them, or pass {flag('threshold')} to predict."
        )


def make_policy(
    name: str, size: int, min_area: float | None = None, flip: bool = True, max_area: float = 1.0
) -> Policy:
    """Make the augmentation policy with a name; its test view does not depend on the areas and `flip`."""
    if name == "coco":
        return SquareCrop(size, (0.25 if min_area is None else min_area, max_area), flip)
    if name == "imagenet":
        return ResizedCrop(size, (0.08 if min_area is None else min_area, max_area), flip=flip)
    return WholeImage(size)


def save_model(path: Path, net: SpatialNet, info: ModelInfo) -> None:
    """Write a model file atomically."""
    tensors, content = net.state_dict(), {"format": MODEL_FORMAT, **asdict(info)}
    # In one text: safetensors writes several entries of the metadata in any order.
    text = json.dumps({CHECKSUM: checksum(tensors, json.dumps(content)), **content})
    publish_tensors(path, tensors, {"fewtags": text})


def read_info(path: Path) -> ModelInfo:
    """Read the metadata of a model file without its weights.

    Raises:
        CheckpointError: the file does not exist or cannot be read, its run is not finished, or it is not a model.
    """
    refuse_missing_model(path)
    text = read_metadata(path).get("fewtags")
    if text is None:
        raise CheckpointError(f"{path} has weights but no fewtags metadata; use the model.safetensors of a run.")
    info = parse_metadata(path, text, ModelInfo, MODEL_FORMAT, "Train it again.")
    check_info(path, info, "Train it again.")
    return info


def check_info(path: Path, info: ModelInfo, remedy: str) -> None:
    """Raise CheckpointError if the values of metadata do not fit each other; `remedy` ends the message."""
    if not all(map(math.isfinite, (*info.mean, *info.std, *info.thresholds))) or min(info.std) <= 0:
        raise CheckpointError(
            f"{path} has damaged metadata: mean, std and thresholds must be numbers, and std above 0. {remedy}"
        )
    own = info.calibration
    if own is not None and (
        len(own.offsets) != len(info.class_ids)
        or not all(map(math.isfinite, (own.slope, *own.offsets)))
        or own.slope <= 0
    ):
        raise CheckpointError(
            f"{path} has damaged metadata: a calibration has a slope above 0, and an offset for each class. {remedy}"
        )
    lengths = {len(v) for v in (info.class_ids, info.class_names, info.thresholds, info.threshold_rules)}
    if len(lengths) > 1:
        raise CheckpointError(f"{path} has damaged metadata: the numbers of classes and thresholds differ. {remedy}")
    if {i for group in (*info.exactly_one, *info.at_most_one) for i in group} - {*info.class_ids}:
        raise CheckpointError(f"{path} has damaged metadata: a group has classes that the model lacks. {remedy}")


def load_model(place: Path | str) -> tuple[SpatialNet, ModelInfo]:
    """Load a net in eval mode, and its metadata.

    Raises:
        CheckpointError: see `read_info`; or the weights do not fit the backbone.
    """
    path = model_path(place)
    info = read_info(path)
    stride = info.output_stride or None
    net = create_net(
        info.backbone, len(info.class_ids), weights="none", size=info.size, output_stride=stride, head=info.head
    )
    net.preprocessing = Preprocessing(info.mean, info.std)
    load_into(net, path, info.backbone, "fewtags")
    return net.eval(), info
