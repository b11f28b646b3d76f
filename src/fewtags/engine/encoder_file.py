"""A pretrained backbone in one file, and every place that an encoder can be had from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from pydantic import TypeAdapter, ValidationError

from fewtags.engine.model import load_model
from fewtags.engine.runfolder import ENCODER_FILE, MODEL_FILE, PRETRAINING, RunFolder
from fewtags.engine.tensor_files import load_tensors, publish_tensors, read_metadata
from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.nets.spatial import Preprocessing

ENCODER_FORMAT = 1
WORDS = ("none", "offline", "hub")


@final
@dataclass(frozen=True, kw_only=True)
class EncoderInfo:
    """What an encoder file says beside its weights.

    Attributes:
        backbone: timm's name.
        size: side in pixels of the images it was trained on.
        mean: of the input, per channel.
        std: of the input, per channel.
        method: name and settings of the objective; {"name": word} where no training of ours made it.
        images: how many photos it has seen.
        epochs: how many times.
        version: of fewtags.
    """

    backbone: str
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    method: dict[str, Any]
    images: int
    epochs: int
    version: str


def save_encoder(path: Path, encoder: Encoder, info: EncoderInfo) -> None:
    """Write the weights (names as timm's, with `backbone.` in front) with `info` as metadata, atomically."""
    metadata = {"fewtags_encoder": json.dumps({"format": ENCODER_FORMAT, **asdict(info)})}
    publish_tensors(path, encoder.state_dict(), metadata)


def encoder_path(place: Path | str) -> Path:
    """The encoder file of a pretraining run's folder, or the file itself."""
    place = Path(place)
    return place / ENCODER_FILE if place.is_dir() else place


def read_encoder_info(path: Path) -> EncoderInfo:
    """The metadata of an encoder file, without its weights.

    Raises:
        CheckpointError: no such file, a run that is not finished, or not an encoder of this library.
    """
    if not path.exists():
        if path.name == ENCODER_FILE and RunFolder(path.parent, PRETRAINING).has_begun:
            raise CheckpointError(
                f"{path.parent} is a pretraining run that is not finished, so it has no encoder yet; go on with "
                f"`fewtags resume {path.parent}`."
            )
        raise CheckpointError(f"{path} does not exist; give the folder of a pretraining run or its {ENCODER_FILE}.")
    text = read_metadata(path).get("fewtags_encoder")
    if text is None:
        raise CheckpointError(
            f"{path} has weights but is no encoder that fewtags pretrained; give such a file's architecture as "
            "--backbone NAME beside it."
        )
    try:
        content = TypeAdapter(dict[str, Any]).validate_json(text)
        if content.pop("format", None) != ENCODER_FORMAT:
            raise CheckpointError(f"{path} was written by another version of fewtags ({content.get('version')}).")
        return TypeAdapter(EncoderInfo).validate_python(content)
    except ValidationError as error:
        raise CheckpointError(f"{path} has damaged metadata: {error.errors()[0]['msg']}. Make it again.") from None


def initial_weights(init: Path | str | None, weights: str | None, backbone: str | None = None) -> dict[str, str | None]:
    """The settings model.weights and model.backbone of training that starts from a pretrained encoder, or does not.

    Raises:
        ConfigError: other weights or another backbone are named as well.
        CheckpointError: no encoder there.
    """
    if init is None:
        return {"model.weights": weights, "model.backbone": backbone}
    if weights is not None:
        raise ConfigError(f"init {init} and weights {weights} both say what training starts from; give one.")
    path = encoder_path(init)
    info = read_encoder_info(path)
    if backbone not in (None, info.backbone):
        raise ConfigError(f"init {init} is a {info.backbone}, not a {backbone}; leave the backbone out.")
    return {"model.weights": str(path), "model.backbone": info.backbone}


def load_encoder(place: Path | str) -> tuple[Encoder, EncoderInfo]:
    """The encoder of a pretraining run in eval mode, and its metadata.

    Raises:
        CheckpointError: see `read_encoder_info`; or weights that do not fit the backbone.
    """
    path = encoder_path(place)
    info = read_encoder_info(path)
    encoder = create_encoder(info.backbone, weights="none", size=info.size)
    encoder.preprocessing = Preprocessing(info.mean, info.std)
    try:
        encoder.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit backbone {info.backbone}: {error}") from None
    return encoder.eval(), info


def find_encoder(
    place: Path | str, *, backbone: str | None = None, size: int | None = None, seed: int = 0
) -> tuple[Encoder, EncoderInfo]:
    """An encoder from wherever there is one, in eval mode.

    Args:
        place: the folder of a pretraining run or its encoder file; the folder of a training run or its model file,
            whose trunk is taken; with `backbone`: any weight file, or "none" (random), "hub", "offline".
        backbone: timm's name of the architecture, where the place does not know it.
        size: side of the images in pixels; None: what the weights were trained with, or 224.
        seed: of random weights.

    Raises:
        CheckpointError: nothing there, or weights that do not fit.
        ConfigError: an architecture that is needed and not given, or given and not needed.
    """
    word = str(place) if str(place) in WORDS else None
    path = Path(place)
    if word is None and backbone is None:
        if path.name == MODEL_FILE or (path.is_dir() and (path / MODEL_FILE).exists()):
            return _trunk(path)
        if not path.exists():
            raise CheckpointError(
                f"{path} does not exist; give a run folder, a weight file with --backbone NAME, or one of "
                f"{', '.join(WORDS)} with --backbone NAME."
            )
        return load_encoder(path)
    if backbone is None:
        raise ConfigError(f"{word} has no architecture of its own; name one: --backbone resnet50.")
    if word is None and path.is_dir():
        raise ConfigError(f"{path} knows its architecture; leave out --backbone.")
    side = size or 224
    encoder = create_encoder(backbone, weights=place, size=side, seed=seed)
    pre = encoder.preprocessing
    return encoder.eval(), EncoderInfo(
        backbone=backbone,
        size=side,
        mean=pre.mean,
        std=pre.std,
        method={"name": word or path.name},
        images=0,
        epochs=0,
        version="",
    )


def _trunk(place: Path) -> tuple[Encoder, EncoderInfo]:
    """The trunk of a trained classifier."""
    net, model = load_model(place)
    encoder = Encoder(
        net.backbone,
        net.head.features_dim,
        layout=net.layout,
        prefix_tokens=net.prefix_tokens,
        preprocessing=net.preprocessing,
    )
    return encoder.eval(), EncoderInfo(
        backbone=model.backbone,
        size=model.size,
        mean=model.mean,
        std=model.std,
        method=model.method,
        images=0,
        epochs=0,
        version=model.version,
    )
