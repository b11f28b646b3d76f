"""The Python interface, in the style of scikit-learn: `Classifier` and `pretrain`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from fewtags.config.parse import apply_overrides, parse
from fewtags.config.precision import Precision
from fewtags.config.sections import Config
from fewtags.engine.arguments import named_arguments, refuse_unknown, refuse_wrong_values
from fewtags.engine.calibration import Fitted, calibrated, fit_to_run, fit_to_table
from fewtags.engine.encoder_file import initial_weights
from fewtags.engine.evaluate import Evaluation
from fewtags.engine.events import Event
from fewtags.engine.fitting import fit_tables, pretrain_photos
from fewtags.engine.given_photos import GivenPhotos
from fewtags.engine.inference import for_inference
from fewtags.engine.machine import torch_device
from fewtags.engine.methods import changed_objective, read_pretrain_settings, settings_models, settings_of
from fewtags.engine.model import ModelInfo, load_model, save_model
from fewtags.engine.near_copies import leave_out_alike
from fewtags.engine.onnx_net import Predictor, load_trained, torch_net
from fewtags.engine.own_thresholds import Given, with_thresholds
from fewtags.engine.predict import decide, evaluate_table, heatmaps, predict_photos
from fewtags.engine.predictions import Predictions
from fewtags.engine.runfolder import ENCODER_FILE, IN_MEMORY
from fewtags.engine.tables import Tables, hold_out, with_groups
from fewtags.engine.trained_on import trained_on
from fewtags.errors import ConfigError, DataError
from fewtags.formats.answers import read_answers
from fewtags.formats.frames import from_pandas, is_frame
from fewtags.formats.read import read
from fewtags.formats.scores import scores_of
from fewtags.formats.several import merge_given, read_sources
from fewtags.labels import ClassNames
from fewtags.notebook import html_table
from fewtags.objectives.base import Objective
from fewtags.objectives.table import DEFAULT_PRETRAIN_METHOD
from fewtags.table.answered import with_answers
from fewtags.table.merge import common_vocabulary, match_images, merge
from fewtags.table.overlap import leave_out_measured
from fewtags.table.table import LabelTable
from fewtags.text import counted, reading_of

# Settings of [data] that do not concern label files.
SPLIT_SETTINGS = (
    "data.val_share",
    "data.group_by",
    "data.decode",
    "data.exactly_one",
    "data.at_most_one",
    "data.near_copies",
    "data.photo_cache",
)

One = Any
"""A `LabelTable`, a path to read one from, or a pandas DataFrame."""
Photo = Any
"""A path, a PIL image, or an array; see `Classifier.predict_proba`."""
Photos = Any
"""A photo, a folder, a `LabelTable`, or a list of these."""
PARAMS = ("backbone", "objective", "weights", "size", "preset", "device", "seed", "init", "mixed_precision")
"""Arguments of the constructor."""
Labels = One | Sequence[One] | Mapping[str, One]
"""Labels from one source or from several, see `fewtags.merge`; a mapping names its sources."""


@final
class Classifier:
    """A multi-label image classifier that is trained from few labels.

    Attributes that `fit` sets end in an underscore. `get_params`, `set_params` and `sklearn.base.clone` work as in
    scikit-learn.

    Args:
        backbone: any timm model with a spatial feature map; None for the preset's.
        objective: the method or its name; None for `PatchML` if the labels have points or boxes, else
            `ExpectedNegative`, with settings derived from the labels.
        weights: "hub", "offline", "none" or a file; None for "offline" if that package is installed, else "hub".
        size: input side in pixels; None for the preset's.
        preset: "cpu", "finetune", "paper", ...; None chooses by machine.
        device: "cpu" ignores GPUs; None uses the best device.
        seed: seed of everything random.
        init: a pretraining run, or its encoder file, whose backbone training starts from.
        mixed_precision: arithmetic of the net in training (train.precision) and in use: "no" (float32), "bf16" or
            "fp16"; None for "bf16" on a GPU that supports it, else "no".

    Raises:
        ConfigError: a name is unknown, with the closest known one, or a number is out of range.

    >>> clf = Classifier(backbone="resnet50", preset="paper")
    >>> clf
    Classifier(backbone='resnet50', preset='paper')
    >>> clf.fitted
    False
    """

    @named_arguments
    def __init__(
        self,
        backbone: str | None = None,
        objective: Objective | str | None = None,
        *,
        weights: str | None = None,
        size: int | None = None,
        preset: str | None = None,
        device: str | None = None,
        seed: int = 0,
        init: Path | str | None = None,
        mixed_precision: Precision | None = None,
    ) -> None:
        self.init, self.mixed_precision = init, mixed_precision
        self.backbone, self.objective, self.weights, self.size = backbone, objective, weights, size
        self.preset, self.device, self.seed = preset, device, seed
        self._net: Predictor | None = None
        self._info: ModelInfo | None = None
        self._run: Path | None = None
        self._ready: tuple[tuple[Predictor, bool, Precision | None], Predictor] | None = None
        refuse_wrong_values(self.get_params(deep=False))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor; with `deep`, also the objective's settings as `objective__NAME`."""
        params: dict[str, Any] = {name: getattr(self, name) for name in PARAMS}
        if deep and isinstance(self.objective, Objective):
            settings = settings_of(self.objective).model_dump(exclude={"name"})
            params |= {f"objective__{name}": getattr(self.objective, name) for name in settings}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor, and settings of the objective as `objective__NAME`. A model stays.

        Raises:
            ConfigError: a name or value is not known. Nothing is changed then.
        """
        nested = {key.removeprefix("objective__"): v for key, v in params.items() if key.startswith("objective__")}
        plain = {key: value for key, value in params.items() if not key.startswith("objective__")}
        refuse_unknown("Classifier", plain, [*PARAMS])
        changed = self.get_params(deep=False) | plain
        refuse_wrong_values(changed)
        if nested:
            changed["objective"] = changed_objective(changed["objective"], nested)
        for name, value in changed.items():
            setattr(self, name, value)
        return self

    def score(self, table: Labels) -> float:
        """The mAP on a table or the labels at a path, in 0..1; nan if no class has known positives and negatives."""
        return self.evaluate(table).mean_average_precision

    def __sklearn_is_fitted__(self) -> bool:
        return self.fitted

    def __repr__(self) -> str:
        defaults = inspect.signature(Classifier).parameters
        given = [f"{k}={v!r}" for k, v in self.get_params(deep=False).items() if v != defaults[k].default]
        if self._info is not None:
            given.append(f"trained: {counted(len(self._info.class_ids), 'class', 'classes')}")
        return f"Classifier({', '.join(given)})"

    def _repr_html_(self) -> str:
        if self._info is None:
            return html_table(repr(self), (), (), ["not trained yet"])
        info = self._info
        rows = [(name, f"{t:.3f}") for name, t in zip(info.classes.display, info.thresholds, strict=True)]
        facts = [f"{info.backbone}, {info.size} px", *info.lines()]
        return html_table(repr(self), ("class", "threshold"), rows, facts)

    @classmethod
    def load(cls, place: Path | str, device: str | None = None, mixed_precision: Precision | None = None) -> Self:
        """Load a classifier from a run folder, its `model.safetensors`, or an ONNX file of `fewtags export`.

        Raises:
            CheckpointError: there is no model, or it is damaged.
            ConfigError: an ONNX file needs onnxruntime.
        """
        net, info = load_trained(place)
        made = cls(info.backbone, size=info.size, device=device, mixed_precision=mixed_precision)
        made._net, made._info, made._run = net, info, Path(place) if Path(place).is_dir() else Path(place).parent
        return made

    def save(self, path: Path | str) -> None:
        """Write the model file: weights, classes, thresholds, preprocessing. A missing folder is made."""
        net, info = self._trained()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_model(Path(path), torch_net(net, "be saved as a model file"), info)

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

    @named_arguments
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
        answers: Path | str | Sequence[Path | str] = (),
        teacher: Any = None,
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
            answers: run folders whose photos were reviewed (`fewtags review`); their answers count as labels.
            teacher: scores in 0..1 of another model, for methods that use them: a path, a DataFrame in one of its forms
                (`formats.scores.read_scores`), or an array [N, C] with the images and classes of `train`, NaN for none.
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
        config = self._config(epochs, settings or {}, teacher)
        with reading_of("val"):
            val_table = None if val is None else _table(val, val_images or images)
        truth_table = None if truth is None else _table(truth, images)
        if val_table is None and val_images is not None:
            raise ConfigError("val_images is given, but val is not; give the labels of these photos as val.")
        places = [answers] if isinstance(answers, str | Path) else answers
        answered = [table for place in places for table in read_answers(place)]
        train_table = _table(train, images)
        scores = None if teacher is None else scores_of(teacher, train_table)
        tables = self._tables(config, train_table, val_table, truth_table, answered)
        fit_tables(config, tables, out, cpu=cpu, progress=progress, on_event=on_event, scores=scores)
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

    def calibrate(self, table: Labels | None = None) -> Fitted:
        """Change the model so that its probabilities agree with frequencies; `save` stores it.

        AP and tags stay, and the order of the tags of a photo may change.

        Args:
            table: labels to calibrate on, a table or a path; None: the validation photos of the run.

        Returns:
            what was fitted, and calibration error and Brier score before and after; it can be printed.

        Raises:
            ConfigError: no run folder with validation scores; an ONNX file; or a pool that cannot be calibrated.
            DataError: the table has no photos, or no class that the model knows.
        """
        net, info = self._trained()
        own = torch_net(net, "be calibrated")
        if table is not None:
            fitted, notes = fit_to_table(own, info, _table(table), cpu=self._cpu)
            for note in notes:
                warnings.warn(note.removeprefix("warning: "), stacklevel=2)
        elif self._run is None:
            raise ConfigError(
                "this classifier has no run folder with validation scores; give labels: calibrate(table)."
            )
        else:
            fitted = fit_to_run(info, self._run)
        self._net, self._info = calibrated(own, info, fitted.calibration, fitted.basis)
        return fitted

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
        net, info = self._predictor(), self._with_thresholds(threshold)
        given = _table(table)
        result, notes = evaluate_table(net, info, given, cpu=self._cpu)
        for note in (*notes, *trained_on(self._run, given), *([info.untagged] if info.untagged else [])):
            warnings.warn(note.removeprefix("warning: "), stacklevel=2)
        return result

    def predict_proba(self, photos: Photos) -> NDArray[np.float32]:
        """float32 [n, C]: the probability of every class in every photo, in the order given.

        `photos` are paths of photos or folders, PIL images, arrays uint8 [h, w, 3] (RGB) or [h, w] (grey), a label
        table, or a list that may mix these. The photos of a folder come in the order of `fewtags predict`.
        Raises DataError if one cannot be read.
        """
        return self._probabilities(photos)[0].astype(np.float32)

    def predict(
        self,
        photos: Photos,
        max_tags: int | None = None,
        *,
        threshold: Given | Sequence[Given] | None = None,
    ) -> Predictions:
        """The class ids of every photo, best first, as a list of lists; photos and errors as in `predict_proba`.

        The result also has the names and probabilities, and `to_pandas()`. A Python warning names classes that are
        hardly ever tagged. `threshold` replaces stored thresholds, as in `set_thresholds`.
        """
        info = self._with_thresholds(threshold)
        values, ids = np.array(info.thresholds), info.class_ids
        prob, names = self._probabilities(photos)
        if info.untagged:
            warnings.warn(info.untagged, stacklevel=2)
        tags = tuple([ids[c] for c in decide(row, values, max_tags, info.groups)] for row in prob)
        return Predictions(photos=names, tags=tags, prob=prob, classes=info.classes, thresholds=values)

    def heatmaps(self, photo: Photo, *, coupled: bool = False) -> NDArray[np.float32]:
        """float32 [C, h, w]: a heatmap per class in the frame of the photo (policy `imagenet`: of its centre crop).

        `photo` is a path, a PIL image or an array, as in `predict_proba`.

        Heatmaps are probabilities. With `coupled`, they are the class token's attention times the class logits
        (TS-CAM), which have no common scale and may be negative.

        Raises:
            ConfigError: `coupled` needs a ViT with a class token.
            DataError: the photo cannot be read.
        """
        net, info = self._predictor(), self._trained()[1]
        given = GivenPhotos.of(photo)
        if len(given.photos) != 1:
            raise DataError(f"heatmaps takes one photo, but got {len(given.photos):,}; call it for each of them.")
        return heatmaps(net, info, given.photos[0], torch_device(self._cpu), coupled=coupled)[1]

    def _probabilities(self, photos: Photos) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Return float64 [n, C], and the names of the photos."""
        net, info = self._predictor(), self._trained()[1]
        given, rows = GivenPhotos.of(photos), []
        for note in given.notes:
            warnings.warn(note, stacklevel=3)
        for found in predict_photos(net, info, given.photos, torch_device(self._cpu)):
            if found.prob is None:
                raise DataError(found.error)
            rows.append(found.prob)
        return (np.stack(rows) if rows else np.zeros((0, len(info.class_ids)))), given.names

    def _trained(self) -> tuple[Predictor, ModelInfo]:
        if self._net is None or self._info is None:
            raise ConfigError("this classifier is not trained yet; call fit, or Classifier.load(run).")
        return self._net, self._info

    def _predictor(self) -> Predictor:
        """Return the net for inference. `save` needs the trained one, so both are kept; they share most weights."""
        net, info = self._trained()
        key = (net, self._cpu, self.mixed_precision)
        if self._ready is None or self._ready[0] != key:
            self._ready = key, for_inference(net, info, torch_device(self._cpu), self.mixed_precision)
        return self._ready[1]

    @property
    def _cpu(self) -> bool:
        if self.device not in (None, "cpu"):
            raise ConfigError(f"device is {self.device!r}; give 'cpu', or None for the best device.")
        return self.device == "cpu"

    def _config(self, epochs: int | None, settings: dict[str, Any], teacher: Any = None) -> Config:
        given = str(teacher) if isinstance(teacher, str | Path) else IN_MEMORY
        chosen = {
            "data.train": IN_MEMORY,
            "data.teacher": None if teacher is None else given,
            **initial_weights(self.init, self.weights, self.backbone),
            "augment.size": self.size,
            "train.preset": self.preset,
            "train.seed": self.seed,
            "train.precision": self.mixed_precision,
            "train.epochs": epochs,
            **settings,
        }
        if meaningless := [key for key in settings if key.startswith("data.") and key not in SPLIT_SETTINGS]:
            raise ConfigError(
                f"{meaningless[0]} is a setting for reading label files, but fit gets a table; pass it to fewtags.read."
            )
        tree: dict[str, Any] = {}
        if self.objective is not None:
            own = self.objective
            tree["objective"] = {"name": own} if isinstance(own, str) else settings_of(own).model_dump()
        tree = apply_overrides(tree, {k: v for k, v in chosen.items() if v is not None})
        return parse(tree, settings_models(), "the arguments")

    def _tables(
        self,
        config: Config,
        train: LabelTable,
        val: LabelTable | None,
        truth: LabelTable | None,
        answers: Sequence[LabelTable] = (),
    ) -> Tables:
        train.require_root("the training labels", "images=FOLDER")
        if val is not None:
            val.require_root("the val labels", "val_images=FOLDER")
        else:
            near = config.data.near_copies != "off"
            train, val = hold_out(train, config.data.val_share, config.train.seed, config.data.group_by, near=near)
        tables = leave_out_measured({"train": train, "val": val})
        if config.data.near_copies == "leave_out":
            tables = leave_out_alike(tables)
        tables = common_vocabulary(with_answers(tables, answers))
        matched = None if truth is None else match_images(truth, tables["train"])
        tables, matched = with_groups(config.data, tables, matched)
        return Tables(tables["train"], tables["val"], None, matched)


def _table(labels: Labels, images: Path | str | None = None) -> LabelTable:
    """Return a table, or read and merge the labels at paths; `images` is the folder of the photos of all of them."""
    if isinstance(labels, LabelTable):
        return labels if images is None else labels.with_root(images)
    if isinstance(labels, str | Path):
        return read(labels, images=images)
    if is_frame(labels):
        return from_pandas(labels, images=images)
    if labels is None or not isinstance(labels, Sequence | Mapping):
        kind = "None" if labels is None else f"an object of the type {type(labels).__name__}"
        raise DataError(
            f"{kind} cannot be read as labels; give a path, a LabelTable, a pandas DataFrame, or several of them. "
            "from_array makes a table from an array."
        )
    if isinstance(labels, Mapping):
        return merge({name: _table(one, images) for name, one in labels.items()})
    paths = [one for one in labels if isinstance(one, str | Path)]
    if len(paths) == len(labels):
        return read_sources(paths, images=[] if images is None else [images])
    return merge_given([_table(one, images) for one in labels])


@named_arguments
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
    config = read_pretrain_settings(tree, "the settings")
    pretrain_photos(config, table, out, cpu=cpu, progress=progress, on_event=on_event)
    return out / ENCODER_FILE
