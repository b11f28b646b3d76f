"""The Python interface, in the style of scikit-learn: `Classifier` and `pretrain`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from fewtags.config.parse import apply_overrides, parse
from fewtags.config.sections import Config
from fewtags.engine.encoder_file import initial_weights
from fewtags.engine.evaluate import Evaluation
from fewtags.engine.events import Event
from fewtags.engine.fitting import fit_tables, pretrain_photos
from fewtags.engine.machine import torch_device
from fewtags.engine.methods import settings_models, settings_of
from fewtags.engine.model import ModelInfo, load_model, save_model
from fewtags.engine.near_copies import leave_out_alike
from fewtags.engine.own_thresholds import Given, with_thresholds
from fewtags.engine.plan import Tables, hold_out, with_groups
from fewtags.engine.predict import decide, evaluate_table, heatmaps, predict_photos
from fewtags.engine.pretrain_plan import read_settings
from fewtags.engine.runfolder import ENCODER_FILE, IN_MEMORY
from fewtags.errors import ConfigError, DataError
from fewtags.formats.read import read
from fewtags.formats.several import merge_given, read_sources
from fewtags.labels import ClassNames
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Objective
from fewtags.objectives.table import DEFAULT_PRETRAIN_METHOD
from fewtags.table.merge import common_vocabulary, match_images, merge
from fewtags.table.overlap import leave_out_measured
from fewtags.table.table import LabelTable

# Settings of [data] that do not concern label files.
SPLIT_SETTINGS = (
    "data.val_share",
    "data.group_by",
    "data.decode",
    "data.exactly_one",
    "data.at_most_one",
    "data.near_copies",
)

One = LabelTable | Path | str
"""A table, or a path to read one from."""
Labels = One | Sequence[One] | Mapping[str, One]
"""Labels from one source or from several, see `fewtags.merge`; a mapping names its sources."""


@final
class Classifier:
    """A multi-label image classifier that is trained from few labels.

    Attributes that `fit` sets end in an underscore.

    Args:
        backbone: any timm model with a spatial feature map; None for the preset's.
        objective: the method; None for `PatchML` if the labels have points or boxes, else `ExpectedNegative`, with
            settings derived from the labels.
        weights: "hub", "offline", "none" or a file; None for "offline" if that package is installed, else "hub".
        size: input side in pixels; None for the preset's.
        preset: "cpu", "finetune", "paper", ...; None chooses by machine.
        device: "cpu" ignores GPUs; None uses the best device.
        seed: seed of everything random.
        init: a pretraining run, or its encoder file, whose backbone training starts from.

    >>> clf = Classifier(backbone="resnet50", preset="paper")
    >>> clf.fitted
    False
    """

    def __init__(
        self,
        backbone: str | None = None,
        objective: Objective | None = None,
        *,
        weights: str | None = None,
        size: int | None = None,
        preset: str | None = None,
        device: str | None = None,
        seed: int = 0,
        init: Path | str | None = None,
    ) -> None:
        self.init = init
        self.backbone, self.objective, self.weights, self.size = backbone, objective, weights, size
        self.preset, self.device, self.seed = preset, device, seed
        self._net: SpatialNet | None = None
        self._info: ModelInfo | None = None
        self._run: Path | None = None

    @classmethod
    def load(cls, place: Path | str, device: str | None = None) -> Self:
        """Load a classifier from a run folder or its `model.safetensors`. Raises CheckpointError if there is none."""
        net, info = load_model(place)
        made = cls(info.backbone, size=info.size, device=device)
        made._net, made._info, made._run = net, info, Path(place) if Path(place).is_dir() else Path(place).parent
        return made

    def save(self, path: Path | str) -> None:
        """Write the model file: weights, classes, thresholds, preprocessing. A missing folder is made."""
        net, info = self._trained()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_model(Path(path), net, info)

    @property
    def fitted(self) -> bool:
        """Whether there is a trained model."""
        return self._net is not None

    @property
    def classes_(self) -> ClassNames:
        """The vocabulary."""
        return self._trained()[1].classes

    @property
    def thresholds_(self) -> NDArray[np.float64]:
        """float64 [C]: the smallest probability at which each class is taken as present."""
        return np.array(self._trained()[1].thresholds)

    @property
    def info_(self) -> ModelInfo:
        """The metadata of the model file."""
        return self._trained()[1]

    def fit(
        self,
        train: Labels,
        val: Labels | None = None,
        *,
        out: Path | str,
        images: Path | str | None = None,
        val_images: Path | str | None = None,
        epochs: int | None = None,
        truth: Labels | None = None,
        progress: bool = True,
        on_event: Callable[[Event], None] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Self:
        """Train in a run folder. An interrupted fit with the same arguments is resumed.

        Findings in the data, warnings, progress and the result are printed on stderr as by `fewtags train`.

        Args:
            train: the labels, or a path that `fewtags.read` reads with its defaults; or several, which are merged.
            val: labels to choose epoch and thresholds; None holds out a tenth of `train`, equal photos together. Photos
                that are also in `train` are not trained on.
            out: the run folder for record, checkpoints, model and evaluation.
            images: folder that the image names of `train`, `val` and `truth` are relative to.
            val_images: the folder for `val`, if it is another one.
            epochs: of all stages that train in steps; None for the preset's.
            truth: complete labels of the training images, for diagnostics only.
            progress: False prints nothing; the findings are in check.json of the run folder.
            on_event: called with every `fewtags.engine.events` event.
            settings: other settings by dotted key, for example {"train.batch_size": 8}; `fewtags config` lists them.
                They override the constructor and the objective.

        Raises:
            ConfigError: settings do not fit; the folder has a finished run or another run.
            DataError: labels or photos cannot be used.
            TrainingError: the loss is not finite.
        """
        out, cpu = Path(out), self._cpu
        config = self._config(epochs, settings or {})
        val_table = None if val is None else _table(val, val_images or images)
        truth_table = None if truth is None else _table(truth, images)
        if val_table is None and val_images is not None:
            raise ConfigError("val_images is given, but val is not; give the labels of these photos as val.")
        tables = self._tables(config, _table(train, images), val_table, truth_table)
        fit_tables(config, tables, out, cpu=cpu, progress=progress, on_event=on_event)
        (self._net, self._info), self._run = load_model(out), out
        return self

    def set_thresholds(self, threshold: Given | Sequence[Given] | None = None, precision: float | None = None) -> Self:
        """Change the thresholds of `predict` and `evaluate`; `save` stores them. See `with_thresholds`.

        Args:
            threshold: one for all classes, {class: threshold}, a .csv, .json or .toml file, or a list of these.
            precision: each class gets the lowest threshold with this precision on validation. Python warnings name the
                classes that do not reach it, or have too few positives there, and keep theirs.

        Raises:
            ConfigError: a number is not in 0..1, or the run folder has no validation scores.
            DataError: a class is not known, or a file cannot be read.
        """
        self._net, self._info = self._trained()[0], self._with_thresholds(threshold, precision)
        return self

    def _with_thresholds(self, threshold: Given | Sequence[Given] | None, precision: float | None = None) -> ModelInfo:
        info, notes = with_thresholds(self._trained()[1], threshold, precision, self._run)
        for note in notes:
            warnings.warn(note.removeprefix("warning: "), stacklevel=3)
        return info

    def evaluate(self, table: Labels, *, threshold: Given | Sequence[Given] | None = None) -> Evaluation:
        """Evaluate on a table or the labels at a path; unknown cells are left out. The result can be printed.

        `threshold` replaces stored thresholds, as in `set_thresholds`.
        Python warnings name classes and photos that are left out, and class names that are matched to the model's.
        Raises DataError if the table has no photos, or no class that the model knows.
        """
        (net, _), info = self._trained(), self._with_thresholds(threshold)
        result, notes = evaluate_table(net, info, _table(table), cpu=self._cpu)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return result

    def predict_proba(self, photos: Sequence[Path | str]) -> NDArray[np.float32]:
        """float32 [n, C]: the probability of every class in every photo. Raises DataError if one cannot be read."""
        return self._probabilities(photos).astype(np.float32)

    def predict(
        self,
        photos: Sequence[Path | str],
        max_tags: int | None = None,
        *,
        threshold: Given | Sequence[Given] | None = None,
    ) -> list[list[str]]:
        """The class ids of every photo, best first; errors as in `predict_proba`.

        `threshold` replaces stored thresholds, as in `set_thresholds`.
        """
        info = self._with_thresholds(threshold)
        values, ids = np.array(info.thresholds), info.class_ids
        return [[ids[c] for c in decide(row, values, max_tags, info.groups)] for row in self._probabilities(photos)]

    def heatmaps(self, photo: Path | str, *, coupled: bool = False) -> NDArray[np.float32]:
        """float32 [C, h, w]: a heatmap per class in the frame of the photo (policy `imagenet`: of its centre crop).

        Heatmaps are probabilities. With `coupled`, they are the class token's attention times the class logits
        (TS-CAM), which have no common scale and may be negative.

        Raises:
            ConfigError: `coupled` needs a ViT with a class token.
            DataError: the photo cannot be read.
        """
        net, info = self._trained()
        return heatmaps(net, info, Path(photo), torch_device(self._cpu), coupled=coupled)[1]

    def _probabilities(self, photos: Sequence[Path | str]) -> NDArray[np.float64]:
        net, info = self._trained()
        if isinstance(photos, str | Path):
            raise DataError(f"expected a list of photos, got a single path; pass [{str(photos)!r}].")
        rows = []
        for found in predict_photos(net, info, [Path(p) for p in photos], torch_device(self._cpu)):
            if found.prob is None:
                raise DataError(found.error)
            rows.append(found.prob)
        return np.stack(rows) if rows else np.zeros((0, len(info.class_ids)))

    def _trained(self) -> tuple[SpatialNet, ModelInfo]:
        if self._net is None or self._info is None:
            raise ConfigError("this classifier is not trained yet; call fit, or Classifier.load(run).")
        return self._net, self._info

    @property
    def _cpu(self) -> bool:
        if self.device not in (None, "cpu"):
            raise ConfigError(f"device is {self.device!r}; give 'cpu', or None for the best device.")
        return self.device == "cpu"

    def _config(self, epochs: int | None, settings: dict[str, Any]) -> Config:
        chosen = {
            "data.train": IN_MEMORY,
            **initial_weights(self.init, self.weights, self.backbone),
            "augment.size": self.size,
            "train.preset": self.preset,
            "train.seed": self.seed,
            "train.epochs": epochs,
            **settings,
        }
        if meaningless := [key for key in settings if key.startswith("data.") and key not in SPLIT_SETTINGS]:
            raise ConfigError(
                f"{meaningless[0]} is a setting for reading label files, but fit gets a table; pass it to fewtags.read."
            )
        tree = {} if self.objective is None else {"objective": settings_of(self.objective).model_dump()}
        tree = apply_overrides(tree, {k: v for k, v in chosen.items() if v is not None})
        return parse(tree, settings_models(), "the arguments")

    def _tables(self, config: Config, train: LabelTable, val: LabelTable | None, truth: LabelTable | None) -> Tables:
        train.require_root("the training labels", "images=FOLDER")
        if val is not None:
            val.require_root("the val labels", "val_images=FOLDER")
        else:
            near = config.data.near_copies != "off"
            train, val = hold_out(train, config.data.val_share, config.train.seed, config.data.group_by, near=near)
        tables = leave_out_measured({"train": train, "val": val})
        if config.data.near_copies == "leave_out":
            tables = leave_out_alike(tables)
        tables = common_vocabulary(tables)
        matched = None if truth is None else match_images(truth, tables["train"])
        tables, matched = with_groups(config.data, tables, matched)
        return Tables(tables["train"], tables["val"], None, matched)


def _table(labels: Labels, images: Path | str | None = None) -> LabelTable:
    """Return a table, or read and merge the labels at paths; `images` is the folder of the photos of all of them."""
    if isinstance(labels, LabelTable):
        return labels if images is None else labels.with_root(images)
    if isinstance(labels, str | Path):
        return read(labels, images=images)
    if isinstance(labels, Mapping):
        return merge({name: _table(one, images) for name, one in labels.items()})
    paths = [one for one in labels if isinstance(one, str | Path)]
    if len(paths) == len(labels):
        return read_sources(paths, images=[] if images is None else [images])
    return merge_given([_table(one, images) for one in labels])


def pretrain(
    photos: One,
    *,
    out: Path | str,
    method: str = DEFAULT_PRETRAIN_METHOD,
    backbone: str | None = None,
    weights: str = "none",
    size: int | None = None,
    epochs: int | None = None,
    device: str | None = None,
    seed: int = 0,
    progress: bool = True,
    on_event: Callable[[Event], None] | None = None,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Pretrain a backbone on photos without labels. An interrupted run in the folder is resumed.

    Warnings and progress are printed on stderr as by `fewtags pretrain`.

    Args:
        photos: a folder of photos, a label file or a table; labels are ignored.
        out: the run folder.
        method: a name of `fewtags.objectives.table.PRETRAIN_METHODS`, or a class of your own.
        backbone: any timm model with a spatial feature map; None for the preset's.
        weights: initial weights: "none", "hub", "offline" or a file.
        size: input side in pixels; None for the preset's.
        epochs: number of epochs; None for the preset's.
        device: "cpu" ignores GPUs; None uses the best device.
        seed: seed of everything random.
        progress: False prints nothing.
        on_event: called with every `fewtags.engine.events` event.
        settings: other settings by dotted key; `fewtags config --pretrain` lists them.

    Returns:
        the path of the encoder file, for `Classifier(init=...)`.

    Raises:
        ConfigError: settings do not fit; the folder has a finished run.
        DataError: no photo can be read.
        TrainingError: the loss is not finite, or all photos get the same vector.
    """
    out, cpu = Path(out), device == "cpu"
    table = photos if isinstance(photos, LabelTable) else None
    chosen = {
        "data.train": IN_MEMORY if table is not None else str(photos),
        "objective.name": method,
        "model.backbone": backbone,
        "model.weights": weights,
        "augment.size": size,
        "train.epochs": epochs,
        "train.seed": seed,
        **(settings or {}),
    }
    tree = apply_overrides({}, {key: value for key, value in chosen.items() if value is not None})
    config = read_settings(tree, "the settings")
    pretrain_photos(config, table, out, cpu=cpu, progress=progress, on_event=on_event)
    return out / ENCODER_FILE
