"""Settings of `fewtags pretrain`: sections, presets, and a pure `resolve_pretrain` that derives what is left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, final

from pydantic import Field

from fewtags.config.precision import Precision, choose_precision
from fewtags.config.presets import Facts, photos_per_process
from fewtags.config.sections import MOST_SEED, ObjectiveConfig, Settings, StageConfig
from fewtags.errors import ConfigError
from fewtags.formats import FormatName
from fewtags.formats.options import FolderText, PathText

if TYPE_CHECKING:  # objectives import torch, which errors in settings do not need
    from fewtags.objectives.base import Objective

PAPER_IMAGES = 50_000
"""Number of images from which on, with a GPU, the paper's settings are the default."""


@final
class PretrainDataConfig(Settings):
    """Where the photos are. Labels are not used."""

    train: PathText = Field(
        description="folder of photos, a label file that names them, or a text file with their paths"
    )
    images: PathText | None = Field(None, description="folder that image names in a file are relative to")
    format: FormatName | None = Field(None, description="format of a label file; default: detected and reported")
    decode: bool = Field(True, description="decode every photo before training, which finds broken ones")
    photo_cache: FolderText | None = Field(
        None,
        description="folder of shrunken copies that views are read from, for fast epochs; default: none",
    )


@final
class PretrainModelConfig(Settings):
    """The network that is trained."""

    backbone: str | None = Field(None, description="any timm model with a spatial feature map")
    weights: PathText = Field("none", description="what it starts from: none (from scratch), hub, offline, or a file")
    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic depth rate in training")


@final
class PretrainAugmentConfig(Settings):
    """Augmentation of the two views of a photo; the defaults are MoCo-v2's "aug-plus"."""

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
        None, description="default: paper with a GPU and 50,000 images or more, else small"
    )
    epochs: int | None = Field(None, ge=1, description="how many times every photo is seen")
    lr: float | None = Field(
        None,
        gt=0,
        description="learning rate at the start; default: 0.3 (simsiam: 0.05) per 256 photos in a step",
    )
    batch_size: int | None = Field(
        None,
        ge=2,
        description="photos of each process; default: the preset's photos in a step, shared by the processes",
    )
    weight_decay: float = Field(1e-4, ge=0, description="added to the gradient")
    schedule: Literal["constant", "cosine", "cosine_epoch"] = Field(
        "cosine_epoch", description="of the learning rate; cosine_epoch changes it between epochs, as MoCo does"
    )
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the gradient; default: no limit")
    precision: Precision | None = Field(
        None, description="arithmetic of the net, no: float32; default: bf16 on a GPU that supports it"
    )
    sync_batchnorm: bool = Field(
        False, description="BatchNorm statistics of the backbone over all processes, several GPUs only"
    )
    workers: int | None = Field(None, ge=0, description="processes that read photos, per training process")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="seed of everything random")
    checkpoint_every_steps: int | None = Field(
        None, ge=1, description="checkpoints within an epoch; one is always written at its end"
    )
    collapse: Literal["stop", "warn", "ignore"] = Field(
        "stop", description="what happens when all images get the same vector"
    )


@final
class PretrainConfig(Settings):
    """All settings of a pretraining run."""

    data: PretrainDataConfig
    model: PretrainModelConfig = PretrainModelConfig()
    augment: PretrainAugmentConfig = PretrainAugmentConfig()
    objective: ObjectiveConfig
    train: PretrainTrainConfig = PretrainTrainConfig()


class _Preset(Settings):
    """`batch_size` is the number of photos in a step of all processes together."""

    backbone: str
    size: int
    batch_size: int
    epochs: int
    batchnorm_photos: int | None = None
    """Photos that BatchNorm sees together; keys are shuffled among these groups. None: those of a process."""


PRESETS: Mapping[str, _Preset] = {
    # Section 4.1 of MLS; batch size, schedule and BatchNorm of 8 x 32 photos are not stated there and are MoCo's.
    "paper": _Preset(backbone="resnet50", size=224, batch_size=256, epochs=400, batchnorm_photos=32),
    # For thousands of photos; takes hours without a GPU.
    "small": _Preset(backbone="resnet18", size=128, batch_size=64, epochs=200),
}


@final
class PretrainResolved(Settings):
    """Every setting of a pretraining run, all derived; printed, and stored in the run folder."""

    preset: Literal["paper", "small"]
    backbone: str
    weights: str
    drop_path: float
    size: int
    augment: PretrainAugmentConfig
    photo_cache: str = ""
    objective: dict[str, Any]
    stages: tuple[StageConfig, ...]
    batch_size: int
    weight_decay: float
    clip_norm: float
    precision: Precision
    sync_batchnorm: bool
    workers: int
    seed: int
    checkpoint_every_steps: int
    collapse: Literal["stop", "warn", "ignore"]


def resolve_pretrain(
    config: PretrainConfig, facts: Facts, objective: Objective, processes: int = 1
) -> PretrainResolved:
    """Derive every setting that was left open. Pure: the same arguments give the same result.

    The objective, made from `config.objective`, derives its own settings (`Objective.derived`). They apply where the
    user set nothing, or null. `processes` is the number of processes that will train.

    Raises:
        ConfigError: settings that contradict each other.
    """
    train, augment = config.train, config.augment
    name = train.preset or ("paper" if facts.device == "cuda" and facts.samples >= PAPER_IMAGES else "small")
    preset = PRESETS[name]
    batch = train.batch_size or photos_per_process(name, preset.batch_size, processes)
    epochs = train.epochs or preset.epochs
    precision = choose_precision(train.precision, facts.device, facts.bf16, 'train.precision = "fp16"')
    if train.sync_batchnorm and (facts.device != "cuda" or processes == 1):
        raise ConfigError(
            "train.sync_batchnorm needs several CUDA GPUs; leave it out: keys are shuffled among processes in any case."
        )
    photos_per_step = min(batch * processes, facts.samples)
    lr = train.lr or objective.base_lr * photos_per_step / 256
    settings = config.objective.model_dump(mode="json")
    from fewtags.objectives.base import RunFacts  # imports torch

    about_run = RunFacts(samples=facts.samples, classes=facts.classes, epochs=epochs, few_images=name == "small")
    for key, derived in objective.derived(about_run).items():
        if settings[key] is None or key not in config.objective.model_fields_set:
            settings[key] = derived.value
    grouped, given = "batchnorm_groups" in settings, "batchnorm_groups" in config.objective.model_fields_set
    if preset.batchnorm_photos and grouped and not given:
        settings["batchnorm_groups"] = max(1, batch // preset.batchnorm_photos)
    return PretrainResolved(
        preset=name,
        backbone=config.model.backbone or preset.backbone,
        weights=config.model.weights,
        drop_path=config.model.drop_path,
        size=augment.size or preset.size,
        augment=augment.model_copy(update={"size": augment.size or preset.size}),
        photo_cache=config.data.photo_cache or "",
        objective=settings,
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
