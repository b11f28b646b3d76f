"""Settings of `fewtags pretrain`: models, presets, and a pure `resolve_pretrain` that leaves nothing to derive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

from pydantic import Field

from fewtags.config.presets import Facts
from fewtags.config.sections import MOST_SEED, ObjectiveConfig, Settings, StageConfig
from fewtags.errors import ConfigError

PAPER_IMAGES = 50_000
"""From so many images on, and with a GPU, the paper's settings are the default."""


PAPER_QUEUE = 4096
BASE_LR = {"simsiam": 0.05}
"""Of 256 photos a step, where it is not MLS's and MoCo's on scene images, 0.3."""


@final
class PretrainDataConfig(Settings):
    """Where the photos are; labels are not looked at."""

    train: str = Field(description="folder of photos, a label file whose images are meant, or a text file with paths")
    images: str | None = Field(None, description="folder that image names in a file are relative to")
    format: Literal["folder", "csv", "coco", "voc", "yolo", "openimages", "labelstudio", "cvat", "parquet"] | None = (
        Field(None, description="what a label file is; left out: told from the path, and said")
    )
    decode: bool = Field(True, description="decode every photo before training, which finds broken ones")


@final
class PretrainModelConfig(Settings):
    """The network that is trained."""

    backbone: str | None = Field(None, description="any timm model with a spatial feature map")
    weights: str = Field("none", description="what it starts from: none (from scratch), hub, offline, or a file")
    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic depth rate in training")


@final
class PretrainAugmentConfig(Settings):
    """How the two views of a photo are drawn; the defaults are MoCo-v2's "aug-plus"."""

    size: int | None = Field(None, ge=32, description="input side in pixels")
    min_area: float = Field(0.2, gt=0, le=1, description="smallest cropped share of the photo")
    flip: bool = Field(True, description="exchange left and right in half of the views")
    brightness: float = Field(0.4, ge=0, le=1, description="strength of random brightness; 0: none")
    contrast: float = Field(0.4, ge=0, le=1, description="strength of random contrast; 0: none")
    saturation: float = Field(0.4, ge=0, le=1, description="strength of random saturation; 0: none")
    hue: float = Field(0.1, ge=0, le=0.5, description="largest shift of the hue, as a share of the circle; 0: none")
    jitter_share: float = Field(0.8, ge=0, le=1, description="share of views with changed colours")
    grey_share: float = Field(0.2, ge=0, le=1, description="share of views without colour")
    blur_share: float = Field(0.5, ge=0, le=1, description="share of views that are blurred")


@final
class PretrainTrainConfig(Settings):
    """Optimisation: SGD with a momentum of 0.9."""

    preset: Literal["paper", "small"] | None = Field(
        None, description="left out: paper with a GPU and 50,000 images or more, else small"
    )
    epochs: int | None = Field(None, ge=1, description="how many times every photo is seen")
    lr: float | None = Field(
        None,
        gt=0,
        description="learning rate at the start; left out: 0.3 (simsiam: 0.05) for 256 photos a step, in proportion",
    )
    batch_size: int | None = Field(None, ge=2, description="per process")
    weight_decay: float = Field(1e-4, ge=0, description="added to the gradient")
    schedule: Literal["constant", "cosine", "cosine_epoch"] = Field(
        "cosine_epoch", description="of the learning rate; cosine_epoch changes it between epochs, as MoCo does"
    )
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the gradient; left out: any")
    precision: Literal["no", "bf16", "fp16"] | None = Field(
        None, description="of the net's arithmetic, no: float32; left out: bf16 on a GPU that has it"
    )
    sync_batchnorm: bool = Field(
        False, description="BatchNorm statistics of the backbone over all processes, several GPUs only"
    )
    workers: int | None = Field(None, ge=0, description="processes that read photos, per training process")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="decides everything random")
    checkpoint_every_steps: int | None = Field(None, ge=1, description="beside the one at every epoch's end")
    collapse: Literal["stop", "warn", "ignore"] = Field(
        "stop", description="what happens when all images get the same vector"
    )


@final
class PretrainConfig(Settings):
    """Everything a pretraining run is told."""

    data: PretrainDataConfig
    model: PretrainModelConfig = PretrainModelConfig()
    augment: PretrainAugmentConfig = PretrainAugmentConfig()
    objective: ObjectiveConfig
    train: PretrainTrainConfig = PretrainTrainConfig()


class _Preset(Settings):
    backbone: str
    size: int
    batch_size: int
    epochs: int


PRESETS: Mapping[str, _Preset] = {
    # Section 4.1 of MLS; batch size and schedule are not stated there and are MoCo's.
    "paper": _Preset(backbone="resnet50", size=224, batch_size=256, epochs=400),
    # For thousands of photos and a patient machine.
    "small": _Preset(backbone="resnet18", size=128, batch_size=64, epochs=200),
}


@final
class PretrainResolved(Settings):
    """Every setting of a pretraining run with nothing left to derive; printed, and stored beside the run."""

    preset: Literal["paper", "small"]
    backbone: str
    weights: str
    drop_path: float
    size: int
    augment: PretrainAugmentConfig
    objective: dict[str, Any]
    stages: tuple[StageConfig, ...]
    batch_size: int
    weight_decay: float
    clip_norm: float
    precision: Literal["no", "bf16", "fp16"]
    sync_batchnorm: bool
    workers: int
    seed: int
    checkpoint_every_steps: int
    collapse: Literal["stop", "warn", "ignore"]


def resolve_pretrain(config: PretrainConfig, facts: Facts, processes: int = 1) -> PretrainResolved:
    """Fill everything that was left to derive. Pure: the same config and facts give the same answer.

    What an objective was not told: with the preset `paper` a queue has 4096 keys; `small` scales to the number of
    images: the queue to about a sixteenth of them, k to 1 % of the queue, the momentum to 0.99, and the loss on
    neighbours begins after a tenth of the epochs.

    Raises:
        ConfigError: settings that contradict each other.
    """
    train, augment = config.train, config.augment
    name = train.preset or ("paper" if facts.device == "cuda" and facts.samples >= PAPER_IMAGES else "small")
    preset = PRESETS[name]
    batch, epochs = train.batch_size or preset.batch_size, train.epochs or preset.epochs
    precision = train.precision or ("bf16" if facts.device == "cuda" and facts.bf16 else "no")
    if precision == "fp16" and facts.device == "cpu":
        raise ConfigError('train.precision = "fp16" needs a GPU; use bf16 or no.')
    if train.sync_batchnorm and (facts.device != "cuda" or processes == 1):
        raise ConfigError(
            "train.sync_batchnorm needs several CUDA GPUs; leave it out: keys are shuffled among processes in any case."
        )
    seen = min(batch * processes, facts.samples)  # photos a step
    lr = train.lr or BASE_LR.get(str(config.objective.name), 0.3) * seen / 256
    objective = config.objective.model_dump(mode="json")
    if name == "small":
        objective |= _small(config.objective, facts.samples, epochs)
    elif "queue_size" in objective and objective["queue_size"] is None:
        objective["queue_size"] = PAPER_QUEUE
    return PretrainResolved(
        preset=name,
        backbone=config.model.backbone or preset.backbone,
        weights=config.model.weights,
        drop_path=config.model.drop_path,
        size=augment.size or preset.size,
        augment=augment.model_copy(update={"size": augment.size or preset.size}),
        objective=objective,
        stages=(StageConfig(name="main", epochs=epochs, lr=lr, schedule=train.schedule),),
        batch_size=batch,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm or 0.0,
        precision=precision,
        sync_batchnorm=train.sync_batchnorm,
        workers=min(8, max(0, facts.cores - 1)) if train.workers is None else train.workers,
        seed=train.seed,
        checkpoint_every_steps=train.checkpoint_every_steps or 0,
        collapse=train.collapse,
    )


def _small(objective: ObjectiveConfig, samples: int, epochs: int) -> dict[str, Any]:
    """Settings scaled to few images, of those that the objective has and nobody chose."""
    from fewtags.objectives.momentum import default_queue_size  # imports torch, which errors in settings do not need

    told, known = objective.model_fields_set, type(objective).model_fields
    size = getattr(objective, "queue_size", None) or default_queue_size(samples)
    scaled = {
        "queue_size": size,
        "k": max(1, min(20, round(size / 100))),
        "momentum": 0.99,
        "neighbour_from": epochs // 10,
    }
    return {key: value for key, value in scaled.items() if key in known and key not in told}
