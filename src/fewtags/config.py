"""Configuration: frozen models, one TOML file, `--set a.b=c`, and a pure `resolve`.

`None` means "derive": `resolve(config, facts)` fills it from the preset and from what is known about data and machine.
Objectives bring their own settings (the signature of the class is the one place for their defaults); the wiring layer
passes their models in.
"""

from __future__ import annotations

import copy
import datetime
import difflib
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, final, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fewtags.errors import ConfigError
from fewtags.labels import suggest


class Settings(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


@final
class DataConfig(Settings):
    """Where the labels and photos are, and how to read them."""

    train: str = Field(description="folder of class folders, or any other form of labels (see `format`), for training")
    images: str | None = Field(None, description="folder that image names are relative to")
    val: str | None = Field(
        None, description="the same for validation; left out: a share of the training set is held out"
    )
    test: str | None = Field(None, description="the same for a final test")
    truth: str | None = Field(None, description="complete labels of the training set, for diagnostics only")
    val_share: float = Field(0.1, gt=0, lt=1, description="share of images held out when no validation set is given")
    group_by: str | None = Field(None, description="regular expression; images whose first group agrees stay together")
    format: Literal["folder", "csv", "coco", "voc", "yolo", "openimages", "labelstudio", "cvat", "parquet"] | None = (
        Field(None, description="what the labels are; left out: told from the path, and said")
    )
    complete: bool = Field(False, description="what is not named is known to be absent")
    val_complete: bool | None = Field(None, description="the same for val and test; left out: as `complete`")
    uncertain: Literal["ignore", "ones", "zeros"] = Field("ignore", description="what an uncertain cell (-1) means")
    blank: Literal["unknown", "negative"] = Field("unknown", description="what an empty cell means")
    difficult: Literal["unknown", "positive", "negative"] = Field("unknown", description="VOC objects marked difficult")
    none_folder: str = Field("none", description="folder or tag that says: none of the classes")
    crowd: Literal["positive", "unknown"] = Field("positive", description="what COCO crowds and OpenImages groups mean")
    image_column: str | None = Field(
        None, description="CSV column or Label Studio key with the image names; left out: found out"
    )
    columns: tuple[str, ...] | None = Field(
        None, description="CSV columns that are classes, or the one with tags; Label Studio controls to read"
    )
    points: Literal["pixels", "fractions"] | None = Field(None, description="what the columns x and y of a CSV count")
    delimiter: str | None = Field(None, description="what separates the cells of a CSV; tab for a tabulator")
    tags_separator: str | None = Field(None, description="what separates the tags in a cell; space for a blank")
    positive_words: tuple[str, ...] = Field((), description="further words for positive in class columns")
    negative_words: tuple[str, ...] = Field((), description="further words for negative")
    unknown_words: tuple[str, ...] = Field((), description="further words for unknown")


@final
class ModelConfig(Settings):
    """The network and where its weights come from."""

    backbone: str | None = Field(None, description="any timm model with a spatial feature map")
    weights: str | None = Field(None, description="hub, offline, none, or a file")
    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic depth rate in training")
    output_stride: Literal[8, 16, 32] | None = Field(
        None, description="pixels per map cell; left out: the backbone's own"
    )
    head_kernel: Literal[1, 3] = Field(1, description="side of the head's convolution; TS-CAM's is 3")
    pool: Literal["mean", "mean_prob", "max", "lse", "softmax", "csra"] = Field(
        "mean", description="from maps to image logits"
    )
    pool_temperature: float = Field(1.0, gt=0, description="of the pools lse, softmax and csra")
    pool_weight: float = Field(0.1, ge=0, description="of the softmax pool in csra")


@final
class AugmentConfig(Settings):
    """How training views are drawn."""

    policy: Literal["coco", "imagenet", "none"] | None = Field(
        None, description="left out: imagenet for preset paper_imagenet, coco for the others"
    )
    size: int | None = Field(None, ge=32, description="input side in pixels")
    min_area: float | None = Field(
        None, gt=0, le=1, description="smallest cropped share of the image; left out: the policy's"
    )
    flip: bool = True


@final
class StageConfig(Settings):
    """One stage of training."""

    name: str
    epochs: int = Field(ge=0)
    lr: float = Field(gt=0)
    trainable: Literal["head", "all"] | int = Field("all", description="head, all, or how many of the last blocks")
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup: bool = Field(False, description="assume-negative only; heatmaps start after it")


@final
class TrainConfig(Settings):
    """Optimisation."""

    preset: Literal["cpu", "finetune", "paper", "paper_scratch", "paper_imagenet"] | None = None
    stages: tuple[StageConfig, ...] | None = None
    epochs: int | None = Field(None, ge=1, description="epochs of the last stage; the preset gives the rest")
    lr: float | None = Field(None, gt=0, description="learning rate of the last stage")
    batch_size: int | None = Field(None, ge=1, description="per process")
    weight_decay: float | None = Field(None, ge=0)
    accumulate: int = Field(1, ge=1, description="batches per optimiser step")
    clip_norm: float | None = Field(None, gt=0)
    precision: Literal["no", "bf16", "fp16"] | None = None
    weight_ema: float | None = Field(None, gt=0, lt=1)
    batchnorm_eval: bool | None = Field(None, description="hold BatchNorm statistics fixed while fine-tuning")
    cached_views: int | None = Field(
        None, ge=0, description="random views cached per image when the trunk is frozen; 0: no cache"
    )
    cache_gib: float = Field(4.0, gt=0)
    workers: int | None = Field(None, ge=0)
    seed: int = Field(0, ge=0)
    checkpoint_every_steps: int | None = Field(None, ge=1, description="beside the one at every epoch's end")
    select: Literal["auto", "best", "last"] = Field("auto", description="which epoch's weights become the model")


class ObjectiveConfig(Settings):
    """The method; each has its own settings, see `fewtags methods`."""

    name: str


@final
class Config(Settings):
    """Everything a run is told."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    objective: ObjectiveConfig
    train: TrainConfig = TrainConfig()


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: the file is missing or not TOML; line and column are named.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None


def apply_overrides(tree: Mapping[str, Any], assignments: Mapping[str, Any] | list[str]) -> dict[str, Any]:
    """A copy of `tree` with dotted keys set; values of `a.b=c` strings are read as TOML, else as plain text.

    `null` sets a key back to "derive"; `none` is a word like others (some settings know it).

    >>> apply_overrides({"train": {"seed": 0}}, ["train.seed=3", "objective.name=bce"])
    {'train': {'seed': 3}, 'objective': {'name': 'bce'}}

    Raises:
        ConfigError: an assignment without `=`, or a key below a plain value.
    """
    out: dict[str, Any] = copy.deepcopy(dict(tree))
    pairs = assignments.items() if isinstance(assignments, Mapping) else [_assignment(text) for text in assignments]
    for key, value in pairs:
        *path, last = key.split(".")
        node = out
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"--set {key}: {part!r} is a value, not a section.")
        node[last] = value
    return out


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: expected section.key=value, for example --set train.seed=3.")
    key, value = key.strip(), value.strip()
    if value == "null":
        return key, None
    try:
        read = tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    # A second line would be a second key, and no setting is a date: 2024-05-01 is the name of a folder.
    dates = (datetime.date, datetime.time)
    return key, value if len(read) > 1 or isinstance(read["v"], dates) else read["v"]


def parse(
    tree: Mapping[str, Any], objectives: Mapping[str, type[ObjectiveConfig]], where: str = "configuration"
) -> Config:
    """Validate a tree of settings against all models; every problem is reported at once.

    Args:
        tree: nested settings.
        objectives: the model of each method's settings, by name.
        where: the file, for error messages.

    Raises:
        ConfigError: one line a problem, unknown keys with the closest known one.
    """
    tree = dict(tree)
    parsed, problems = _parse_objective(tree.pop("objective", {}), objectives)
    try:
        base = Config.model_validate({**tree, "objective": {"name": "placeholder"}})
    except ValidationError as error:
        problems += _lines(error, Config, "")
    if problems:
        raise ConfigError(f"{len(problems)} problem(s) in {where}:\n" + "\n".join(f"  {p}" for p in problems))
    assert parsed is not None
    return base.model_copy(update={"objective": parsed})


def _parse_objective(
    given: Any, objectives: Mapping[str, type[ObjectiveConfig]]
) -> tuple[ObjectiveConfig | None, list[str]]:
    """The settings of the method, or what is wrong with them."""
    if not isinstance(given, Mapping):
        return None, [f'objective = {given!r} is a value, not a section; write objective.name = "expected_negative"']
    name = given.get("name", "expected_negative")
    if not isinstance(name, str) or name not in objectives:
        hint = suggest(str(name), objectives)
        return None, [f"objective.name = {name!r} is not a method{hint}; known: {', '.join(sorted(objectives))}"]
    try:
        return objectives[name].model_validate({**given, "name": name}), []
    except ValidationError as error:
        return None, _lines(error, objectives[name], "objective.")


def _lines(error: ValidationError, model: type[BaseModel], prefix: str) -> list[str]:
    """One line per problem; what the members of a union say about one value goes into one line."""
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        path = _path_of_field(model, [str(p) for p in problem["loc"]])
        key = prefix + ".".join(path)
        if problem["type"] == "missing":
            lines[key] = f"missing key {key!r}"
        elif problem["type"] == "extra_forbidden":
            known = _fields_at(model, path[:-1])
            close = difflib.get_close_matches(path[-1], known, n=1)
            hint = (
                f"; did you mean {prefix + '.'.join([*path[:-1], close[0]])!r}?"
                if close
                else f"; known here: {', '.join(known)}"
            )
            lines[key] = f"unknown key {key!r}{hint}"
        else:
            said = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
            lines[key] = f"{lines[key]}, or {said}" if key in lines else f"{key} = {problem['input']!r}: {said}"
    return list(lines.values())


def _path_of_field(model: type[BaseModel], path: list[str]) -> list[str]:
    """The part of pydantic's location that is a user's key: without the members of a union at its end."""
    for length in range(1, len(path)):
        within = _model_at(model, path[:length])
        if within is None and not path[length].isdigit():
            return path[:length]
    return path


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """The section at a path, through optional and repeated ones; None where a value is."""
    found: type[BaseModel] | None = model
    for part in path:
        if part.isdigit():  # the place in a list of sections
            continue
        field = None if found is None else found.model_fields.get(part)
        found = None if field is None else _section(field.annotation)
    return found


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section(inner))), None)


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    found = _model_at(model, path)
    return [] if found is None else list(found.model_fields)


def dump_toml(model: BaseModel) -> str:
    """TOML text of a model; settings that are None (derive) are left out."""
    return tomli_w.dumps(_without_none(model.model_dump(mode="json", serialize_as_any=True)))


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _without_none(v) for k, v in tree.items() if v is not None}
    if isinstance(tree, list):
        return [_without_none(v) for v in tree]
    return tree


@final
class Facts(Settings):
    """What `resolve` may know about data and machine."""

    samples: int
    classes: int
    device: Literal["cpu", "cuda", "mps", "other"]
    cores: int
    offline_backbone: str | None = None
    bf16: bool = False


class _Preset(Settings):
    backbone: str
    size: int
    batch_size: int
    weight_decay: float
    batchnorm_eval: bool
    cached_views: int
    stages: tuple[StageConfig, ...]


def _stages(
    warmup: int, warmup_lr: float, epochs: int, lr: float, trainable: Literal["head", "all"] | int
) -> tuple[StageConfig, ...]:
    head = StageConfig(name="warmup", epochs=warmup, lr=warmup_lr, trainable="head", schedule="constant", warmup=True)
    main = StageConfig(name="main", epochs=epochs, lr=lr, trainable=trainable)
    return (head, main) if warmup else (main,)


PRESETS: Mapping[str, _Preset] = {
    # A frozen trunk with cached views: a usable model in a minute or two on a laptop.
    "cpu": _Preset(
        backbone="tf_efficientnet_lite0",
        size=224,
        batch_size=16,
        weight_decay=0.0,
        batchnorm_eval=True,
        cached_views=8,
        stages=_stages(5, 3e-3, 12, 1e-3, "head"),
    ),
    "finetune": _Preset(
        backbone="resnet50",
        size=320,
        batch_size=16,
        weight_decay=0.0,
        batchnorm_eval=True,
        cached_views=0,
        stages=_stages(5, 3e-3, 12, 1e-4, "all"),
    ),
    # Section 4.1: linear layer for 5 epochs at 1e-3, then everything for 25 epochs at 1e-5, cosine, Adam, batch 8.
    "paper": _Preset(
        backbone="resnet50",
        size=448,
        batch_size=8,
        weight_decay=0.0,
        batchnorm_eval=False,
        cached_views=0,
        stages=_stages(5, 1e-3, 25, 1e-5, "all"),
    ),
    "paper_scratch": _Preset(
        backbone="resnet50",
        size=448,
        batch_size=8,
        weight_decay=0.0,
        batchnorm_eval=False,
        cached_views=0,
        stages=_stages(0, 1e-3, 100, 1e-4, "all"),
    ),
    # Section 4.3.
    "paper_imagenet": _Preset(
        backbone="resnet50",
        size=224,
        batch_size=64,
        weight_decay=1e-4,
        batchnorm_eval=False,
        cached_views=0,
        stages=_stages(5, 1e-4, 25, 1e-4, "all"),
    ),
}


@final
class Resolved(Settings):
    """Every setting of a run with nothing left to derive; printed, and stored beside the run."""

    preset: str
    backbone: str
    weights: str
    drop_path: float
    output_stride: int
    head_kernel: int
    pool: Literal["mean", "mean_prob", "max", "lse", "softmax", "csra"]
    pool_temperature: float
    pool_weight: float
    policy: Literal["coco", "imagenet", "none"]
    size: int
    min_area: float
    flip: bool
    stages: tuple[StageConfig, ...]
    batch_size: int
    weight_decay: float
    accumulate: int
    clip_norm: float
    precision: Literal["no", "bf16", "fp16"]
    weight_ema: float
    batchnorm_eval: bool
    cached_views: int
    workers: int
    seed: int
    checkpoint_every_steps: int
    select: Literal["auto", "best", "last"]


def resolve(config: Config, facts: Facts) -> Resolved:
    """Fill everything that was left to derive. Pure: the same config and facts give the same answer.

    A zero means: not used, in `clip_norm`, `weight_ema` and `checkpoint_every_steps`; the backbone's own, in
    `output_stride`.

    Raises:
        ConfigError: settings that contradict each other.
    """
    train, model, augment = config.train, config.model, config.augment
    name = train.preset or ("finetune" if facts.device == "cuda" else "cpu")
    preset = PRESETS[name]
    stages = preset.stages if train.stages is None else train.stages
    _check_stages(stages)
    last = stages[-1].model_copy(
        update={k: v for k, v in (("epochs", train.epochs), ("lr", train.lr)) if v is not None}
    )
    if train.stages and (train.epochs or train.lr):
        raise ConfigError("train.epochs and train.lr change the preset's last stage; with train.stages set them there.")
    stages = (*stages[:-1], last)
    weights = model.weights or _weights(model.backbone or preset.backbone, facts)
    frozen = all(stage.trainable == "head" for stage in stages)
    cached = train.cached_views if train.cached_views is not None else (preset.cached_views if frozen else 0)
    if cached and not frozen:
        raise ConfigError(
            'train.cached_views needs a frozen trunk: give every stage trainable = "head", or set it to 0.'
        )
    policy = augment.policy or ("imagenet" if name == "paper_imagenet" else "coco")
    precision = train.precision or ("bf16" if facts.device == "cuda" and facts.bf16 else "no")
    if precision == "fp16" and facts.device == "cpu":
        raise ConfigError('train.precision = "fp16" needs a GPU; use bf16 or no.')
    return Resolved(
        preset=name,
        backbone=model.backbone or preset.backbone,
        weights=weights,
        drop_path=model.drop_path,
        output_stride=model.output_stride or 0,
        head_kernel=model.head_kernel,
        pool=model.pool,
        pool_temperature=model.pool_temperature,
        pool_weight=model.pool_weight,
        policy=policy,
        size=augment.size or preset.size,
        min_area=augment.min_area or (0.08 if policy == "imagenet" else 0.25),
        flip=augment.flip,
        stages=stages,
        batch_size=train.batch_size or preset.batch_size,
        weight_decay=preset.weight_decay if train.weight_decay is None else train.weight_decay,
        accumulate=train.accumulate,
        clip_norm=train.clip_norm or 0.0,
        precision=precision,
        weight_ema=train.weight_ema or 0.0,
        batchnorm_eval=preset.batchnorm_eval if train.batchnorm_eval is None else train.batchnorm_eval,
        cached_views=cached,
        workers=min(8, max(0, facts.cores - 1)) if train.workers is None else train.workers,
        seed=train.seed,
        checkpoint_every_steps=train.checkpoint_every_steps or 0,
        select=train.select,
    )


def _check_stages(stages: tuple[StageConfig, ...]) -> None:
    if not any(stage.epochs for stage in stages):
        raise ConfigError("train.stages have no epoch in all; give at least one stage epochs above 0.")
    later = [stage.name for before, stage in pairwise(stages) if stage.warmup and not before.warmup]
    if later:
        raise ConfigError(
            f"stage {later[0]!r} has warmup = true but comes after a stage without; warm-up stages come first."
        )


def _weights(backbone: str, facts: Facts) -> str:
    return "offline" if backbone == facts.offline_backbone else "hub"
