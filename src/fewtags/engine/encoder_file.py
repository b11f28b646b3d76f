"""The encoder file: a pretrained backbone in one safetensors file; and loading encoders from every other source."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from fewtags.config.search import PRESET_START
from fewtags.engine.model import load_model
from fewtags.engine.places import WORDS, refuse_missing_encoder
from fewtags.engine.runfolder import ENCODER_FILE, MODEL_FILE, PRETRAINING, RunFolder
from fewtags.engine.tensor_files import (
    CHECKSUM,
    checksum,
    load_into,
    parse_metadata,
    publish_tensors,
    read_metadata,
)
from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.nets.spatial import Preprocessing
from fewtags.text import flag

ENCODER_FORMAT = 1
METADATA = "fewtags_encoder"
"""Key of the metadata of an encoder file."""


@final
@dataclass(frozen=True, kw_only=True)
class EncoderInfo:
    """The metadata of an encoder file.

    Attributes:
        backbone: timm's name.
        size: side of the training images in pixels.
        mean: of the input, per channel, as is `std`.
        method: name and settings of the objective; {"name": source} if this library did not train it.
        images: number of training photos, and `epochs` of training; 0 if this library did not train it.
        version: of fewtags that trained it.
    """

    backbone: str
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    method: dict[str, Any]
    images: int = 0
    epochs: int = 0
    version: str = ""


def save_encoder(path: Path, encoder: Encoder, info: EncoderInfo) -> None:
    """Write an encoder file atomically; the weights have timm's names with the prefix `backbone.`."""
    tensors, content = encoder.state_dict(), {"format": ENCODER_FORMAT, **asdict(info)}
    text = json.dumps({CHECKSUM: checksum(tensors, json.dumps(content)), **content})
    publish_tensors(path, tensors, {METADATA: text})


def encoder_path(place: Path | str) -> Path:
    """Return the path of the encoder file in a run folder, or the path of a file unchanged."""
    place = Path(place)
    return place / ENCODER_FILE if place.is_dir() else place


def read_encoder_info(path: Path) -> EncoderInfo:
    """Read the metadata of an encoder file without its weights.

    Raises:
        CheckpointError: the file does not exist, its run is not finished, or it is not an encoder of this library.
    """
    if not path.exists():
        if path.name == ENCODER_FILE and RunFolder(path.parent, PRETRAINING).has_begun:
            raise CheckpointError(
                f"{path.parent} is a pretraining run that is not finished, so it has no encoder yet; finish it with "
                f"`fewtags resume {path.parent}`."
            )
        raise CheckpointError(f"{path} does not exist; give the folder of a pretraining run or its {ENCODER_FILE}.")
    text = read_metadata(path).get(METADATA)
    if text is None:
        raise CheckpointError(
            f"{path} has weights but is not an encoder that fewtags pretrained; also give its architecture: "
            f"{flag('backbone', 'NAME')}."
        )
    info = parse_metadata(path, text, EncoderInfo, ENCODER_FORMAT, "Pretrain it again.")
    if not all(map(math.isfinite, (*info.mean, *info.std))) or min(info.std) <= 0:
        raise CheckpointError(
            f"{path} has damaged metadata: mean and std must be numbers, and std above 0. Pretrain it again."
        )
    return info


def initial_weights(init: Path | str | None, weights: str | None, backbone: str | None = None) -> dict[str, str | None]:
    """Return the settings model.weights and model.backbone of a training run.

    `init` is a pretraining run, or its encoder file, to start from. The others are the user's settings.

    Raises:
        ConfigError: `init` is given with weights or another backbone.
        CheckpointError: `init` is not an encoder.
    """
    if init is None:
        return {"model.weights": weights, "model.backbone": backbone}
    if weights is not None:
        raise ConfigError(f"init {init} and weights {weights} are both initial weights; give one of them.")
    path = encoder_path(init)
    info = read_encoder_info(path)
    if backbone not in (None, info.backbone):
        raise ConfigError(f"init {init} is a {info.backbone}, not a {backbone}; leave the backbone out.")
    return {"model.weights": str(path), "model.backbone": info.backbone}


def compared_encoders(places: Sequence[str], backbone: str | None = None) -> dict[str, tuple[str, str]]:
    """Return the backbone and the weights of each encoder of `search.starts`; `backbone` is the user's setting.

    Raises:
        ConfigError: an encoder has another backbone.
        CheckpointError: a place has no encoder.
    """
    found = {place: initial_weights(place, None, backbone) for place in places if place != PRESET_START}
    return {place: (str(own["model.backbone"]), str(own["model.weights"])) for place, own in found.items()}


def load_encoder(place: Path | str) -> tuple[Encoder, EncoderInfo]:
    """Load the encoder of a pretraining run in eval mode, and its metadata.

    Raises:
        CheckpointError: see `read_encoder_info`; or the weights do not fit the backbone.
    """
    path = encoder_path(place)
    info = read_encoder_info(path)
    encoder = create_encoder(info.backbone, weights="none", size=info.size)
    encoder.preprocessing = Preprocessing(info.mean, info.std)
    load_into(encoder, path, info.backbone, METADATA)
    return encoder.eval(), info


def find_encoder(
    place: Path | str, *, backbone: str | None = None, size: int | None = None, seed: int = 0
) -> tuple[Encoder, EncoderInfo]:
    """Load an encoder from any source, in eval mode.

    Args:
        place: the folder of a pretraining run or its encoder file; the folder of a training run or its model file,
            whose trunk is used; with `backbone`: any weight file, or "none" (random), "hub", "offline".
        backbone: timm's name of the architecture, if `place` does not contain it.
        size: side of the images in pixels; None for that of the training images, or 224.
        seed: of random weights.

    Raises:
        CheckpointError: `place` has no weights, or they do not fit.
        ConfigError: an architecture is missing, or given but not needed.
    """
    word = str(place) if str(place) in WORDS else None
    path = Path(place)
    if word is None and backbone is None:
        if path.name == MODEL_FILE or (path.is_dir() and (path / MODEL_FILE).exists()):
            return _trunk(path)
        refuse_missing_encoder(path)
        return load_encoder(path)
    if backbone is None:
        raise ConfigError(f"{word} does not name an architecture; give one: {flag('backbone', 'resnet50')}.")
    if word is None and path.is_dir():
        raise ConfigError(f"{path} contains its architecture; leave out {flag('backbone')}.")
    side = size or 224
    encoder = create_encoder(backbone, weights=place, size=side, seed=seed)
    pre, method = encoder.preprocessing, {"name": word or path.name}
    return encoder.eval(), EncoderInfo(backbone=backbone, size=side, mean=pre.mean, std=pre.std, method=method)


def _trunk(place: Path) -> tuple[Encoder, EncoderInfo]:
    """Load the trunk of a trained classifier."""
    net, model = load_model(place)
    encoder = Encoder(
        net.backbone,
        net.head.features_dim,
        layout=net.layout,
        prefix_tokens=net.prefix_tokens,
        preprocessing=net.preprocessing,
    )
    shared = {key: getattr(model, key) for key in ("backbone", "size", "mean", "std", "method", "version")}
    return encoder.eval(), EncoderInfo(**shared)
