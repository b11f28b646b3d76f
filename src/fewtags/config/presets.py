"""Presets of `train`, and the pure function `resolve` that derives every setting that the user left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, final

from fewtags.config.precision import Precision, choose_precision
from fewtags.config.preset_checks import SMALLEST_AREA, check_minutes, check_policy, check_selection, check_stages
from fewtags.config.sections import Config, PoolChoice, Settings, StageConfig
from fewtags.errors import ConfigError
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.text import flag, named


@final
class Facts(Settings):
    """What `resolve` knows about data, machine and method (the last four, see `Objective`).

    `processes`: the number of processes that train together. `answers`: whether a training label is an answer of a
    person. `partial`: whether some labels are unknown, at least as many known ones are negative as positive, and
    photos with many and with few known labels have the same share of positives among them. `untold`: why validation
    cannot tell whether these labels are blank at random; "" if it can.
    """

    samples: int
    classes: int
    device: Literal["cpu", "cuda", "mps"]
    cores: int
    processes: int = 1
    offline_backbone: str | None = None
    bf16: bool = False
    answers: bool = False
    partial: bool = False
    untold: str = ""
    solvable: bool = True
    needs_maps: bool = False
    solvable_warmup: bool = True
    open_answer_weight: bool = False


class _Preset(Settings):
    """Settings of a preset. None: derived from the machine.

    `batch_size` is the number of photos in a step of all processes together, because the learning rates belong to it.
    `objective` has the settings that some methods get, by method.
    """

    backbone: str
    weights: str | None = None
    size: int
    batch_size: int = 16
    precision: Precision | None = None
    policy: Literal["coco", "imagenet", "none"] = "coco"
    objective: Mapping[str, Mapping[str, Any]] = {}
    weight_decay: float = 0.0
    batchnorm_eval: bool = True
    cached_views: int = 0
    stages: tuple[StageConfig, ...]
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_ema: float = 0.0


def _warmup(epochs: int, lr: float) -> StageConfig:
    """Return a warm-up that trains the head in steps."""
    return StageConfig(name="warmup", epochs=epochs, lr=lr, trainable="head", schedule="constant", warmup=True)


def _main(epochs: int, lr: float, trainable: Literal["head", "all"] | int = "all") -> StageConfig:
    return StageConfig(name="main", epochs=epochs, lr=lr, trainable=trainable)


def _solve(*, warmup: bool = False) -> StageConfig:
    """Return a stage that solves the head once for each of `LOGIT_VARIANCES`."""
    epochs = len(LOGIT_VARIANCES)
    return StageConfig(name="solve", epochs=epochs, logit_variances=LOGIT_VARIANCES, trainable="head", warmup=warmup)


LOGIT_VARIANCES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SOLVED = "cpu"
IN_STEPS = "views"
"""The preset that replaces `SOLVED` if the settings need training in steps."""

PRESETS: Mapping[str, _Preset] = {
    # One plain view of each photo through a frozen trunk, and a solved head: the fastest good model.
    # Lite0 was trained at 224 px. 288 px gave more than any other change of the same cost (docs/LOG.md).
    SOLVED: _Preset(backbone="tf_efficientnet_lite0", size=288, stages=(_solve(),)),
    # The same trunk, and a head trained in steps on several random views of each photo. The rate was chosen on
    # validation (docs/methods.md).
    IN_STEPS: _Preset(
        backbone="tf_efficientnet_lite0", size=224, cached_views=8, stages=(_warmup(5, 1e-3), _main(12, 1e-3, "head"))
    ),
    "finetune": _Preset(backbone="resnet50", size=320, stages=(_warmup(5, 3e-3), _main(12, 1e-4))),
    # SCL paper, section 4.1: the linear layer for 5 epochs at 1e-3, then everything for 25 epochs at 1e-5, cosine,
    # Adam, batch 8. Its ResNet-50 has torchvision's first weights (76.1 % on ImageNet, its table 3).
    "paper": _Preset(
        backbone="resnet50.tv_in1k",
        size=448,
        batch_size=8,
        precision="no",
        batchnorm_eval=False,
        stages=(_warmup(5, 1e-3), _main(25, 1e-5)),
    ),
    # Table 1, "no pretraining".
    "paper_scratch": _Preset(
        backbone="resnet50",
        weights="none",
        size=448,
        batch_size=8,
        precision="no",
        batchnorm_eval=False,
        stages=(_main(100, 1e-4),),
    ),
    # Section 4.3 and appendix G. The paper states neither batch size nor main learning rate: both are guesses.
    "paper_imagenet": _Preset(
        backbone="resnet50.tv_in1k",
        size=224,
        batch_size=64,
        precision="no",
        policy="imagenet",
        weight_decay=1e-4,
        batchnorm_eval=False,
        stages=(_warmup(5, 1e-4), _main(25, 1e-4)),
        objective={"expected_negative": {"positives_per_image": 1.2, "heatmap_top_k": 10}},
    ),
}


ON_CPU: Mapping[str, _Preset] = {
    # A net that two cores can train, after the head is solved. Learning rates and weight decay were chosen on
    # validation at 192 px (docs/LOG.md). The size is that of the preset `cpu`; docs/results.md has this combination.
    "finetune": _Preset(
        backbone="tf_efficientnet_lite0",
        size=288,
        batch_size=32,
        weight_decay=0.01,
        stages=(
            _solve(warmup=True),
            StageConfig(name="main", epochs=6, lr=1e-3, trainable=2, head_factor=0.1),
        ),
        optimizer="adamw",
        weight_ema=0.98,
    ),
}
"""Presets that differ without a GPU."""


@final
class Candidate(Settings):
    """A combination of settings that `train` tries before it trains.

    `epochs` are those in steps that follow if it is the best; None: those of the preset. `for_random_blanks`: it is
    only taken if the labels of the validation photos look blank at random.
    """

    backbone: str
    weights: str
    size: int
    pool: PoolChoice
    method: str
    epochs: int | None = None
    for_random_blanks: bool = False


@final
class Resolved(Settings):
    """Every setting of a run, with nothing left to derive; stored in `resolved.toml`."""

    preset: str
    method: str
    backbone: str
    weights: str
    drop_path: float
    output_stride: int
    head_kernel: int
    pool: PoolChoice
    pool_temperature: float
    pool_weight: float
    pool_boost: float
    policy: Literal["coco", "imagenet", "none"]
    size: int
    min_area: float
    max_area: float = 1.0
    flip: bool
    jitter: float
    photo_cache: str = ""
    stages: tuple[StageConfig, ...]
    batch_size: int
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: float
    accumulate: int
    clip_norm: float
    precision: Precision
    weight_ema: float
    batchnorm_eval: bool
    cached_views: int
    workers: int
    seed: int
    checkpoint_every_steps: int
    patience: int = 0
    select: Literal["auto", "best", "last"]
    preset_objective: Mapping[str, Any] = {}
    """Settings of the method that the preset gives; the user's own replace them."""
    search: tuple[Candidate, ...] = ()
    """What is tried before training; after that, the settings are those of the best, and nothing is left to try."""


def resolve(config: Config, facts: Facts) -> Resolved:
    """Derive every setting that the user left open. Pure: the same arguments give the same result.

    In the result, 0 means "not used" for `clip_norm`, `weight_ema`, `patience` and `checkpoint_every_steps`, and "that
    of the backbone" for `output_stride`; an empty `photo_cache` means no cache.

    Raises:
        ConfigError: settings contradict each other.
    """
    train, model, augment = config.train, config.model, config.augment
    name = train.preset or ("finetune" if facts.device == "cuda" or train.minutes is not None else SOLVED)
    if name == SOLVED and why_in_steps(config, facts):
        name = IN_STEPS
    preset = ON_CPU.get(name, PRESETS[name]) if facts.device == "cpu" else PRESETS[name]
    stages = _solvable_stages(preset.stages, facts) if train.stages is None else train.stages
    check_stages(stages)
    if train.stages and (given := [named(f"train.{key}") for key in ("epochs", "lr") if getattr(train, key)]):
        change, them = ("changes", "it") if len(given) == 1 else ("change", "them")
        raise ConfigError(f"{' and '.join(given)} {change} the preset's stages; set {them} in train.stages instead.")
    if train.minutes is not None:
        check_minutes(train, train.preset or name, stages, facts.processes)
    stages = tuple(s for s in stages if s.epochs) if train.stages else rescaled(stages, train.epochs, train.lr)
    stages = _with_answer_weights(stages, facts, train.select)
    check_selection(train.select, stages[-1])
    backbone = model.backbone or preset.backbone
    weights = model.weights or preset.weights or ("offline" if backbone == facts.offline_backbone else "hub")
    frozen = all(stage.trainable == "head" for stage in stages)
    solved = all(stage.solved for stage in stages)
    cached = train.cached_views if train.cached_views is not None else (preset.cached_views if frozen else 0)
    cached = 0 if solved else cached
    if cached and not frozen:
        raise ConfigError(
            'train.cached_views needs a frozen trunk: give every stage trainable = "head", or set it to 0.'
        )
    allowed = {False: facts.solvable, True: facts.solvable_warmup}
    if any(stage.solved and not allowed[stage.warmup] for stage in stages):
        raise ConfigError(
            f"stage {next(s.name for s in stages if s.solved)!r} solves the head, but this method compares views or "
            "changes its labels while it learns, so it can only train in steps. Give the stage lr instead."
        )
    policy = augment.policy or preset.policy
    check_policy(policy, augment)
    wanted = train.precision or preset.precision
    precision = choose_precision(wanted, facts.device, facts.bf16, 'train.precision = "fp16"')
    method = config.objective.name or DEFAULT_METHOD
    photos = preset.batch_size
    return Resolved(
        preset=name,
        method=method,
        backbone=backbone,
        weights=weights,
        drop_path=model.drop_path,
        output_stride=model.output_stride or 0,
        head_kernel=model.head_kernel,
        pool=model.pool,
        pool_temperature=model.pool_temperature,
        pool_weight=model.pool_weight,
        pool_boost=model.pool_boost,
        policy=policy,
        size=augment.size or preset.size,
        min_area=augment.min_area or SMALLEST_AREA[policy],
        max_area=augment.max_area or 1.0,
        flip=policy != "none" if augment.flip is None else augment.flip,
        jitter=augment.jitter,
        photo_cache=config.data.photo_cache or "",
        stages=stages,
        # A head that is solved sees no batches; its photos are only read in such portions.
        batch_size=train.batch_size or (photos if solved else photos_per_process(name, photos, facts.processes)),
        optimizer=train.optimizer or preset.optimizer,
        weight_decay=preset.weight_decay if train.weight_decay is None else train.weight_decay,
        accumulate=train.accumulate,
        clip_norm=train.clip_norm or 0.0,
        precision=precision,
        weight_ema=preset.weight_ema if train.weight_ema is None else train.weight_ema,
        batchnorm_eval=preset.batchnorm_eval if train.batchnorm_eval is None else train.batchnorm_eval,
        cached_views=cached,
        workers=min(8, max(0, facts.cores - 1)) if train.workers is None else train.workers,
        seed=train.seed,
        checkpoint_every_steps=train.checkpoint_every_steps or 0,
        patience=train.patience or 0,
        select=train.select,
        preset_objective=dict(preset.objective.get(method, {})),
    )


def photos_per_process(preset: str, photos: int, processes: int) -> int:
    """Return the share of each process in a step of a preset, whose learning rates belong to `photos` in all.

    >>> photos_per_process("paper", 8, processes=4)
    2

    Raises:
        ConfigError: the processes cannot share the photos equally.
    """
    if photos % processes:
        fitting = ", ".join(str(n) for n in range(2, photos + 1) if photos % n == 0)
        raise ConfigError(
            f"preset {preset!r} trains on {photos} photos in a step, which {processes} processes cannot share equally. "
            f"Start one process, or {fitting}; or set {named('train.batch_size')}, the photos of each process, "
            f"and {named('train.lr')}."
        )
    return photos // processes


def why_in_steps(config: Config, facts: Facts) -> str:
    """Return why preset `cpu` cannot solve the head with these settings; an empty text if it can."""
    train, augment = config.train, config.augment
    given = {
        "train.stages": train.stages is not None and not all(stage.solved for stage in train.stages),
        **{f"train.{name}": getattr(train, name) is not None for name in STEP_SETTINGS},
        "train.accumulate": train.accumulate > 1,
        "augment.policy": augment.policy not in (None, "none"),
        "augment.min_area": augment.min_area,
        "augment.max_area": augment.max_area,
        "augment.flip": augment.flip,
        "augment.jitter": augment.jitter,
    }
    solves = train.stages is not None and not given["train.stages"]  # the user asked for stages that solve the head
    asked = [named(name) for name, value in given.items() if value and not solves]
    if asked:
        return f"{', '.join(asked)} {'needs' if len(asked) == 1 else 'need'} training in steps"
    return why_unsolvable(facts, augment.size or PRESETS[SOLVED].size)


def why_unsolvable(facts: Facts, size: int) -> str:
    """Return why a head cannot be solved on photos of `size` pixels; an empty text if it can."""
    if not facts.solvable:
        return "the method compares views or changes its labels while it learns"
    # Most backbones have a cell in 32 pixels.
    places = (size // 32) ** 2 if facts.needs_maps else 1
    if facts.samples * facts.classes * places > MOST_CELLS:
        cells = f" x {places} cells" if places > 1 else ""
        return f"{facts.samples:,} images x {facts.classes:,} classes{cells} are too many to solve"
    return ""


STEP_SETTINGS = (
    *("epochs", "lr", "batch_size", "optimizer", "weight_decay", "clip_norm", "weight_ema", "cached_views"),
    *("checkpoint_every_steps", "patience"),
)
MOST_CELLS = 20_000_000
"""Largest number of images x classes (x cells if the method uses maps) that is solved.

With 1,280 channels, this takes about half an hour on one core.
"""


def _solvable_stages(stages: tuple[StageConfig, ...], facts: Facts) -> tuple[StageConfig, ...]:
    """Return a preset's stages; a warm-up that cannot be solved is that of the preset for GPUs, in steps."""
    if facts.solvable_warmup and facts.samples * facts.classes <= MOST_CELLS:
        return stages
    in_steps = PRESETS["finetune"].stages[0]
    return tuple(in_steps if stage.solved and stage.warmup else stage for stage in stages)


def _with_answer_weights(stages: tuple[StageConfig, ...], facts: Facts, select: str) -> tuple[StageConfig, ...]:
    """Return stages of which a last one that solves the head also tries weights of answers, if there are answers."""
    if asked := [stage.name for stage in stages if stage.answer_weights]:
        why = ""
        if not facts.open_answer_weight:
            why = "the method does not weigh answers, or objective.answer_weight fixes their weight"
        elif not facts.answers:
            why = f"no training label is an answer ({flag('answers', 'RUN')})"
        elif asked != [stages[-1].name]:
            why = "only the last stage can choose the weight"
        if why:
            raise ConfigError(f"stage {asked[0]!r} has answer_weights, but {why}; leave them out.")
        return stages
    last = stages[-1]
    if not (last.solved and facts.answers and facts.open_answer_weight) or last.warmup or select == "last":
        return stages
    return (*stages[:-1], last.with_answer_weights(ANSWER_WEIGHTS))


ANSWER_WEIGHTS = (4.0, 1.0, 16.0)
"""Weights of answers that a solved head chooses from on validation, that of `objective.answer_weight` first."""


def rescaled(stages: tuple[StageConfig, ...], epochs: int | None, lr: float | None) -> tuple[StageConfig, ...]:
    """Return stages with `epochs` in all and the last learning rate `lr`, both in the preset's proportions.

    Every stage keeps at least one epoch; if there are too few, the last stage has them all. Solved stages do not
    change.
    """
    stages = tuple(stage for stage in stages if stage.epochs)
    solved, stages = tuple(s for s in stages if s.solved), tuple(s for s in stages if not s.solved)
    if not stages:
        return solved
    rates = 1.0 if lr is None else lr / (stages[-1].lr or lr)
    shares = [stage.epochs for stage in stages]
    if epochs is not None:
        whole = sum(shares)
        first = [max(1, round(epochs * share / whole)) for share in shares[:-1]]
        shares = [*first, epochs - sum(first)] if epochs > sum(first) else [*[0] * len(first), epochs]
    return solved + tuple(
        stage.model_copy(update={"epochs": share, "lr": None if stage.lr is None else stage.lr * rates})
        for stage, share in zip(stages, shares, strict=True)
        if share
    )
