"""Sections of the settings of `train`: frozen pydantic models.

`None` means "derive": `presets.resolve` fills it from the preset and from what is known about data and machine.
Settings of an objective are declared by its class; `engine.methods` makes the models for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fewtags.config.precision import Precision
from fewtags.formats import FormatName
from fewtags.formats.options import FolderText, PathText, ReadOptions
from fewtags.objectives.table import DEFAULT_METHOD, OWN_METHOD


class Settings(BaseModel):
    """Base of every section: frozen; an unknown key is an error, and so is a number that is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


Section = TypeVar("Section", bound=Settings)


UNNAMED_METHODS = (DEFAULT_METHOD, "patchml")
"""Methods whose settings can be given without a name: the first that has all of them is meant."""
NO_FILES = ("hub", "offline", "none")
"""Values of the setting `weights` that are not files."""
MOST_SEED = 2**32 - 1
"""Largest accepted seed, limited by `numpy.random.RandomState`."""


def _one_word(given: Any) -> Any:
    """Return a single text as a list of one."""
    return (given,) if isinstance(given, str) else given


SourceWords = Annotated[tuple[PathText, ...], BeforeValidator(_one_word)]


def _split_words(given: Any) -> Any:
    """Split a text at commas, as in `--set search.sizes=288,352`; leave a list as it is."""
    if isinstance(given, str):
        return tuple(word.strip() for word in given.split(","))
    return given if isinstance(given, list | tuple) else (given,)


Split = BeforeValidator(_split_words)
"""Marks a list that may be given as words with commas between them, or as one value."""


def _one_or_more(given: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Return a list of one as its member."""
    if not given:
        raise ValueError("expected a path, or a list of paths")
    return given[0] if isinstance(given, tuple) and len(given) == 1 else given


Paths = Annotated[PathText | tuple[PathText, ...], AfterValidator(_one_or_more)]
"""One path, or a list of paths."""


def paths_of(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the paths of a setting as a tuple."""
    return () if given is None else (given,) if isinstance(given, str) else given


class DataFiles(Settings):
    """Where the labels and photos are."""

    train: Paths = Field(
        description="training labels: a folder of class folders, or any other format (see `format`); or a list of them"
    )
    images: Paths | None = Field(
        None, description="folder that image names are relative to; or a list, one for each file of `train`"
    )
    val: Paths | None = Field(None, description="validation labels; default: a share of the training set is held out")
    test: Paths | None = Field(None, description="labels for a final test")
    val_images: Paths | None = Field(None, description="folder of the photos of `val`; default: that of `images`")
    test_images: Paths | None = Field(None, description="folder of the photos of `test`; default: that of `images`")
    truth: Paths | None = Field(None, description="complete labels of the training set, for diagnostics only")
    answers: Paths | None = Field(
        None, description="run whose photos were reviewed (`fewtags review`), or its answers.sqlite; or a list of them"
    )
    answers_step: tuple[int, ...] = Field(
        (), description="last step of each file of `answers` that counts; `train` sets it to the last one there is"
    )
    teacher: PathText | None = Field(
        None, description="scores in 0..1 of another model, as CSV or Parquet, for methods that learn from a teacher"
    )
    positives_per_image: float | None = Field(
        None,
        gt=0,
        description="mean number of classes in a photo (K), as `fewtags estimate-k` prints it, for every method that "
        "uses it; default: derived from the labels",
    )
    covers: SourceWords = Field(
        (),
        description="FILE=CLASS,CLASS for each label file that covers other classes than those it names; a class that "
        "a file does not cover is unknown in its photos",
    )
    complete_files: SourceWords = Field(
        (), description="label files to which `complete` applies, if not to all; classes that a file covers only"
    )
    val_share: float = Field(0.1, gt=0, lt=1, description="share of images held out when no validation set is given")
    group_by: str | None = Field(
        None, description="regular expression on image names; images with the same first group stay together"
    )
    near_copies: Literal["warn", "leave_out", "off"] = Field(
        "warn",
        description="photos that look alike (encoded again, resized): warn of them, also leave those out of training "
        "that look like photos to validate or test on, or do not compare; needs imagehash (fewtags[copies])",
    )
    exactly_one: tuple[tuple[str, ...], ...] = Field(
        (), description='groups of classes of which exactly one is in each photo, as [["day", "night"]]'
    )
    at_most_one: tuple[tuple[str, ...], ...] = Field(
        (), description='groups of classes of which at most one is in each photo, as [["cat", "dog"]]'
    )
    format: FormatName | None = Field(None, description="format of the labels; default: detected and reported")


@final
class DataConfig(ReadOptions, DataFiles):
    """Where the labels and photos are, and how they are read."""

    val_complete: bool | None = Field(None, description="`complete` for val and test; default: as `complete`")
    decode: bool = Field(
        True,
        description="decode every photo before training, which finds broken ones (0.6 ms for one of 320 x 240 pixels); "
        "false reads headers only (0.1 ms), and a broken photo stops training",
    )
    photo_cache: FolderText | None = Field(
        None,
        description="folder of shrunken copies that training views are read from, for fast epochs; default: none",
    )


MapPool = Literal["mean", "mean_prob", "max", "lse", "softmax", "csra", "boost"]
PoolChoice = Literal["mean", "mean_prob", "max", "lse", "softmax", "csra", "boost", "class_token"]


@final
class ModelConfig(Settings):
    """The network and where its weights come from."""

    backbone: str | None = Field(None, description="any timm model with a spatial feature map")
    weights: PathText | None = Field(None, description="hub, offline, none, or a file")
    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic depth rate in training")
    output_stride: Literal[8, 16, 32] | None = Field(None, description="pixels per map cell; default: the backbone's")
    head_kernel: Literal[1, 3] = Field(1, description="side of the head's convolution; TS-CAM's is 3")
    pool: PoolChoice = Field(
        "mean",
        description="from maps to image logits; class_token: a linear layer on the class token of a ViT, no maps",
    )
    pool_temperature: float = Field(1.0, gt=0, description="of the pools lse, softmax and csra")
    pool_weight: float = Field(0.1, ge=0, description="of the softmax pool in csra")
    pool_boost: float = Field(5.0, gt=0, description="factor of positive cells in boost")


@final
class AugmentConfig(Settings):
    """How training views are drawn."""

    policy: Literal["coco", "imagenet", "none"] | None = Field(
        None, description="default: imagenet for preset paper_imagenet, coco for the others"
    )
    size: int | None = Field(None, ge=32, description="input side in pixels")
    min_area: float | None = Field(None, gt=0, le=1, description="smallest cropped share; default: the policy's")
    max_area: float | None = Field(None, gt=0, le=1, description="largest cropped share; default: 1")
    flip: bool | None = Field(None, description="mirror half of the views; default: true, but false for policy none")
    jitter: float = Field(
        0.0, ge=0, le=1, description="strength of random brightness, contrast and saturation; 0: none"
    )


@final
class StageConfig(Settings):
    """One stage of training."""

    name: str = Field(description="what progress and metrics call it")
    epochs: int = Field(ge=0, description="how many times every image is seen; 0 skips the stage")
    lr: float | None = Field(None, gt=0, description="learning rate of Adam, at the start")
    logit_variances: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (),
        description="solve the head to the end instead, once for each of these prior variances of a logit (small: "
        "strongly regularised); the best on validation becomes the model",
    )
    # Not in the repr, which checkpoints record and older ones have without it.
    answer_weights: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (),
        repr=False,
        description="with logit_variances: weights of answers (fewtags train --answers) to choose from on validation; "
        "the variances are tried with the first weight, then each other weight with the best variance and the next",
    )
    trainable: Literal["head", "all"] | int = Field("all", description="head, all, or how many of the last blocks")
    head_factor: float = Field(1.0, gt=0, description="the head's learning rate over that of the other layers")
    schedule: Literal["constant", "cosine", "cosine_epoch"] = Field(
        "cosine", description="of the learning rate; cosine ends at 0, cosine_epoch changes it between epochs only"
    )
    warmup: bool = Field(False, description="assume-negative only; heatmaps start after it")

    @property
    def solved(self) -> bool:
        """Whether the head is solved to the end, one epoch a solution, and not trained in steps."""
        return bool(self.logit_variances)

    @property
    def solutions(self) -> int:
        """How many heads a stage with `logit_variances` solves."""
        return solutions(len(self.logit_variances), len(self.answer_weights))

    def with_answer_weights(self, weights: tuple[float, ...]) -> Self:
        """Return a stage that solves the head with other weights of answers, and its epochs with them."""
        return self.model_copy(
            update={"answer_weights": weights, "epochs": solutions(len(self.logit_variances), len(weights))}
        )

    @model_validator(mode="before")
    @classmethod
    def _epochs_of_a_solution(cls, given: Any) -> Any:
        """A solved stage has an epoch for each solution."""
        if isinstance(given, Mapping) and isinstance(variances := given.get("logit_variances"), list | tuple):
            weights = given.get("answer_weights")
            tried = len(weights) if isinstance(weights, list | tuple) else 0
            return {"epochs": solutions(len(variances), tried), **given}
        return given

    @model_validator(mode="after")
    def _one_way_to_train(self) -> Self:
        if not self.solved:
            if self.lr is None:
                raise ValueError(f"stage {self.name!r} needs lr, or logit_variances to solve the head")
            if self.answer_weights:
                raise ValueError(
                    f"stage {self.name!r} has answer_weights without logit_variances; only a head that is solved can "
                    "try several. Set objective.answer_weight instead"
                )
            return self
        if self.lr is not None:
            raise ValueError(f"stage {self.name!r} has lr and logit_variances; a head that is solved has no rate")
        if self.trainable != "head":
            raise ValueError(f'stage {self.name!r} has logit_variances, which need trainable = "head"')
        if self.epochs != self.solutions:
            weights = f" and {len(self.answer_weights)} answer_weights" if self.answer_weights else ""
            raise ValueError(
                f"stage {self.name!r} has {self.epochs} epochs and {len(self.logit_variances)} logit_variances"
                f"{weights}; leave epochs out"
            )
        return self


def solutions(variances: int, weights: int) -> int:
    """Return the number of trials of `engine.solve.next_trial` for so many prior variances and weights of answers."""
    return variances + min(2, variances) * max(0, weights - 1)


@final
class TrainConfig(Settings):
    """Optimisation."""

    preset: Literal["cpu", "views", "finetune", "paper", "paper_scratch", "paper_imagenet"] | None = Field(
        None, description="defaults of stages, network and input; default: finetune with a GPU or minutes, else cpu"
    )
    stages: tuple[StageConfig, ...] | None = Field(
        None, description="one after the other, as [[train.stages]]; default: the preset's"
    )
    minutes: float | None = Field(
        None,
        gt=0,
        description="time for the whole run: compares input sizes (see search), then preset finetune with as many of "
        "its epochs as fit, or none",
    )
    epochs: int | None = Field(None, ge=1, description="of all stages in steps together, in the preset's proportions")
    lr: float | None = Field(None, gt=0, description="learning rate of the last stage; the others change in proportion")
    batch_size: int | None = Field(
        None,
        ge=1,
        description="photos of each process; default: the preset's photos in a step, shared by the processes",
    )
    optimizer: Literal["adam", "adamw"] | None = Field(
        None, description="adamw decouples weight decay, for matrices and kernels only"
    )
    weight_decay: float | None = Field(None, ge=0, description="adam: added to the gradient; adamw: see optimizer")
    accumulate: int = Field(1, ge=1, description="batches per optimiser step")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the gradient; default: no limit")
    precision: Precision | None = Field(
        None, description="arithmetic of the net, no: float32; default: bf16 on a GPU that supports it"
    )
    weight_ema: float | None = Field(
        None, ge=0, lt=1, description="decay of averaged weights, which become the model; 0: none"
    )
    batchnorm_eval: bool | None = Field(None, description="keep BatchNorm statistics fixed while fine-tuning")
    cached_views: int | None = Field(
        None, ge=0, description="random views cached per image of a frozen trunk; 0: no cache"
    )
    cache_gib: float = Field(4.0, gt=0, description="memory for cached views in GiB, of all processes together")
    workers: int | None = Field(None, ge=0, description="processes that read photos, per training process")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="seed of everything random")
    checkpoint_every_steps: int | None = Field(
        None, ge=1, description="checkpoints within an epoch; one is always written at its end"
    )
    baseline: bool = Field(
        True, description="compare with logistic regression on features of the untrained trunk, unknown taken as absent"
    )
    patience: int | None = Field(None, ge=1, description="stop after so many epochs without a better validation mAP")
    select: Literal["auto", "best", "last"] = Field(
        "auto",
        description="which epoch's weights become the model; last: not for a last stage with several logit_variances",
    )


@final
class SearchConfig(Settings):
    """What `train` tries before it trains: each combination solves a head on one plain view of each photo.

    The best on validation is trained. A list that is empty leaves that setting to the other sections.
    """

    sizes: Annotated[tuple[Annotated[int, Field(ge=32)], ...], Split] = Field(
        (), description="input sides in pixels; default: with minutes as many of 288, 352 and 416 as fit, else none"
    )
    methods: Annotated[tuple[str, ...], Split] = Field(
        (), description="methods whose head can be solved, with their default settings"
    )
    pools: Annotated[tuple[MapPool, ...], Split] = Field((), description="from maps to image logits, see model.pool")
    backbones: Annotated[tuple[str, ...], Split] = Field((), description="timm models; weights as for model.backbone")
    starts: Annotated[tuple[PathText, ...], Split] = Field(
        (),
        description="pretraining runs or their encoder files, and preset: the weights of a run without them; also with "
        "minutes (several --init are the short form)",
    )


class ObjectiveConfig(Settings):
    """The method; each has its own settings, see `fewtags methods`."""

    name: str | None = Field(
        None,
        description=f"a method of `fewtags methods`, or a class of your own ({OWN_METHOD}); default: {DEFAULT_METHOD}",
    )


@final
class Config(Settings):
    """All settings of a training run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    objective: ObjectiveConfig
    search: SearchConfig = SearchConfig()
    train: TrainConfig = TrainConfig()
