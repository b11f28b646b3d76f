"""Calibration of a trained model: its head is changed so that probabilities agree with frequencies.

A positive slope and an offset for each class keep the order of the photos in every class, so AP does not change. They
go into the weights of the head, and thresholds move with them, so everything that uses the model follows: `predict`,
`evaluate`, heatmaps, the review, exports, the service. The scores of the trained head stay in
`evaluation/as_trained/`, so a later calibration starts from them and `undo` restores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit

from fewtags.engine.checkpoint import BAD_ARRAY, unreadable, write_array
from fewtags.engine.evaluate import Logits, sigmoid
from fewtags.engine.gallery import GalleryPhoto, Panel
from fewtags.engine.model import ModelInfo, StoredCalibration, load_model, save_model
from fewtags.engine.model_card import CARD_FILE, is_unedited, write_card
from fewtags.engine.onnx_net import ENDING
from fewtags.engine.places import model_path
from fewtags.engine.predict import score_table
from fewtags.engine.run_lock import locked
from fewtags.engine.train_run import write_evaluation
from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.calibration import (
    SPREAD,
    Calibration,
    CalibrationReport,
    calibration_report,
    fit_calibration,
    fitted_classes,
)
from fewtags.metrics.metric import number_or_none
from fewtags.metrics.thresholds import ThresholdRule, Thresholds
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import SpatialNet
from fewtags.seeds import rng
from fewtags.table.storage import load
from fewtags.table.table import LabelTable
from fewtags.text import MOST_NAMED, counted, some

FOLDS = 5
"""Parts of the photos of the fit; each is judged with a calibration that was fitted without it."""
AS_TRAINED = "as_trained"
"""Folder in `evaluation` with the scores of the head as it was trained."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """The probabilities of some photos before and after calibration.

    Attributes:
        photos: what they are, for people.
        before: as trained.
        after: calibrated; for the photos of the fit by a calibration that was fitted without them.
        expected: labels per photo that the probabilities sum to, before and after.
        known: mean number of labels of the completely labelled photos; nan if there are none.
    """

    photos: str
    before: CalibrationReport
    after: CalibrationReport
    expected: tuple[float, float]
    known: float

    @classmethod
    def of(cls, photos: str, before: Logits, after: NDArray[np.float64], labels: NDArray[np.int8]) -> Comparison:
        """Compare logits [N, C]."""
        complete = (labels != Label.UNKNOWN).all(1)
        first, second = sigmoid(before), sigmoid(after)
        return cls(
            photos=photos,
            before=calibration_report(first, labels),
            after=calibration_report(second, labels),
            expected=(float(first.sum(1).mean()), float(second.sum(1).mean())),
            known=float((labels[complete] == Label.POSITIVE).sum(1).mean()) if complete.any() else float("nan"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; nan becomes None."""
        both = zip(("before", "after"), (self.before, self.after), self.expected, strict=True)
        return {
            "photos": self.photos,
            "known_labels_per_photo": number_or_none(self.known),
            **{
                when: {
                    "calibration_error": number_or_none(report.error),
                    "brier": number_or_none(report.brier),
                    "labels_per_photo": expected,
                }
                for when, report, expected in both
            },
        }


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibration of the trained head, what it rests on, and what it changes."""

    calibration: Calibration
    basis: str
    comparisons: tuple[Comparison, ...]

    def __str__(self) -> str:
        """A table: calibration error, Brier score and labels per photo, as trained and calibrated."""
        width = max(len(found.photos) for found in self.comparisons)
        lines = [self.basis, f"{'':<{width}}  calibration error  Brier score     labels per photo"]
        for found in self.comparisons:
            error = f"{_percent(found.before.error)} -> {_percent(found.after.error)}"
            brier = f"{found.before.brier:.3f} -> {found.after.brier:.3f}" if found.before.cells else "-"
            known = "" if np.isnan(found.known) else f" (known {found.known:.2f})"
            labels = f"{found.expected[0]:.2f} -> {found.expected[1]:.2f}{known}"
            lines.append(f"{found.photos:<{width}}  {error:>17}  {brier:>14}  {labels}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "basis": self.basis,
            "slope": self.calibration.slope,
            "offsets": self.calibration.offsets.tolist(),
            "comparisons": [found.to_dict() for found in self.comparisons],
        }


def fit_to_run(info: ModelInfo, run: Path) -> Fitted:
    """Fit a calibration to the validation photos of a run, from its stored scores.

    Raises:
        ConfigError: there is no run folder with validation scores, or `refuse_pool`.
        CheckpointError: a file is damaged.
    """
    refuse_pool(info)
    stored = dict(_stored(info, run))
    if "val" not in stored:
        raise ConfigError(f"{run} has no validation scores to calibrate with; give labels (LABELS).")
    fitted = _fit(info, *stored.pop("val"), "validation")
    others = tuple(
        Comparison.of(f"{counted(len(labels), 'photo')} of {split}", logits, fitted.calibration.logits(logits), labels)
        for split, (logits, labels) in stored.items()
    )
    return replace(fitted, comparisons=(*fitted.comparisons, *others))


def fit_to_table(net: SpatialNet, info: ModelInfo, table: LabelTable, *, cpu: bool = False) -> tuple[Fitted, list[str]]:
    """Fit a calibration to the photos of a table; also return messages about what was left out.

    Raises:
        ConfigError: see `refuse_pool`.
        DataError: see `score_table`.
    """
    refuse_pool(info)
    scored = score_table(net, info, table, cpu=cpu)
    trained = stored_calibration(info).inverse.logits(scored.logits).astype(np.float32)
    fitted = _fit(info, trained, scored.labels, "these")
    return fitted, [*scored.notes, *_warn_of_missing_classes(info, scored.labels)]


def cross_fitted(
    logits: Logits, labels: NDArray[np.int8], share: NDArray[np.floating], *, spread: float = SPREAD
) -> NDArray[np.float64]:
    """Return logits [N, C], each changed by a calibration that was fitted without its photo, in `FOLDS` parts."""
    held_out = fit_calibration(logits, labels, share, spread=spread).logits(logits)
    fold = rng(0, 0, 0).permutation(len(labels)) % FOLDS
    for part in range(min(FOLDS, len(labels)) if len(labels) > 1 else 0):
        rest = fold != part
        own = fit_calibration(logits[rest], labels[rest], share, spread=spread)
        held_out[~rest] = own.logits(logits[~rest])
    return held_out


def refuse_pool(info: ModelInfo) -> None:
    """Raise ConfigError for a pool whose logits do not follow a slope and an offset of its maps."""
    if info.head.pool.name in ("boost", "mean_prob"):
        raise ConfigError(
            f"a model with the pool {info.head.pool.name!r} cannot be calibrated, because a slope and an offset of its "
            "maps change the order of the photos; train with another model.pool."
        )


def stored_calibration(info: ModelInfo) -> Calibration:
    """Return how the head of a model differs from the trained one."""
    own = info.calibration
    return Calibration.none(len(info.class_ids)) if own is None else Calibration(own.slope, np.array(own.offsets))


def calibrated(
    net: SpatialNet, info: ModelInfo, calibration: Calibration, basis: str | None
) -> tuple[SpatialNet, ModelInfo]:
    """Return a copy of a net, and its metadata, whose head is the trained one with a calibration.

    `basis` says from which labels it was fitted; None: the head is as it was trained.
    """
    before = stored_calibration(info)
    same = (before.slope, before.offsets.tolist()) == (calibration.slope, calibration.offsets.tolist())
    # Without a change, everything keeps its bits.
    change = Calibration.none(len(info.class_ids)) if same else calibration.after(before.inverse)
    pool = info.head.pool
    # Scaled maps and a temperature that is divided by the scale give a scaled pool.
    plan = replace(info.head, pool=replace(pool, temperature=pool.temperature / change.slope))
    changed = deepcopy(net)
    head = changed.head
    head.plan = plan
    with torch.no_grad():
        head.weight.mul_(change.slope)
        offsets = torch.as_tensor(cell_offsets(change, pool), dtype=head.bias.dtype, device=head.bias.device)
        head.bias.mul_(change.slope).add_(offsets)
    own = None
    if basis is not None:
        own = StoredCalibration(calibration.slope, tuple(calibration.offsets.tolist()), basis)
    thresholds = info.thresholds if same else tuple(change.thresholds(np.array(info.thresholds)).tolist())
    return changed, replace(info, head=plan, calibration=own, thresholds=thresholds)


def cell_offsets(change: Calibration, pool: Pool) -> NDArray[np.float64]:
    """Return float64 [C], what is added to the cells of a map so that its pool gains the offset of the class."""
    return change.offsets / (1 + pool.weight if pool.name == "csra" else 1.0)


def calibrated_photos(shown: Sequence[GalleryPhoto], info: ModelInfo) -> tuple[GalleryPhoto, ...]:
    """Return the photos of a gallery, which are stored as trained, with the probabilities and maps of the model now."""
    change = stored_calibration(info)
    offsets = cell_offsets(change, info.head.pool)

    def changed(panel: Panel) -> Panel:
        c = panel.class_
        prob = expit(change.slope * logit(panel.prob) + change.offsets[c])
        map_ = expit(change.slope * logit(panel.map.astype(np.float64)) + offsets[c])
        return replace(panel, prob=float(prob), map=map_.astype(panel.map.dtype))

    if info.calibration is None:
        return tuple(shown)
    return tuple(replace(photo, panels=tuple(map(changed, photo.panels))) for photo in shown)


def store_calibration(place: Path, fitted: Fitted | None) -> list[str]:
    """Write a calibration into the model of a run folder, or into a model file; None restores the trained head.

    The evaluations of a run folder are computed again. Returns messages about what was written.

    Raises:
        CheckpointError: there is no model, or another process works in the folder.
        ConfigError: it is an ONNX file; or there is nothing to undo.
    """
    path = model_path(place)
    refuse_exported(path)
    wanted_basis = None if fitted is None else fitted.basis
    messages = []
    with locked(path.parent) if place.is_dir() else nullcontext():
        net, before = load_model(path)
        if fitted is None and before.calibration is None:
            raise ConfigError(f"{path} is not calibrated, so there is nothing to undo.")
        wanted = Calibration.none(len(before.class_ids)) if fitted is None else fitted.calibration
        net, info = calibrated(net, before, wanted, wanted_basis)
        unedited = place.is_dir() and is_unedited(place, before)
        scores = keep_as_trained(place, before) if place.is_dir() else {}
        # The model comes before its evaluations: what a kill leaves undone, the same command does again.
        save_model(path, net, info)
        thresholds = Thresholds(np.array(info.thresholds), tuple(map(ThresholdRule, info.threshold_rules)))
        for split, logits in scores.items():
            table = load(place / "tables" / f"{split}.parquet")
            write_evaluation(place, split, wanted.logits(logits).astype(np.float32), table, thresholds, info.groups)
            messages.append(f"evaluation of {split} is computed again")
        if unedited:
            write_card(place, info)
    if place.is_dir() and (place / CARD_FILE).exists() and not unedited:
        messages.append(f"{place / CARD_FILE} was edited, so it keeps the earlier thresholds and metrics")
    if (place / "report.html").exists():
        messages.append(f"report.html shows the earlier probabilities; write it again with `fewtags report {place}`")
    return [f"stored in {path}", *messages]


def refuse_exported(path: Path) -> None:
    """Raise ConfigError for an exported file."""
    if path.suffix.lower() == ENDING:
        raise ConfigError(
            f"{path} is an exported file, which does not change; calibrate the run folder, then export again."
        )


def assumed_share(info: ModelInfo, labels: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the share of images that contain each class, float64 [C]: the class prior of the model's method, or K.

    K positives per image are divided among the classes like the known positives in `labels` [N, C]; half a positive is
    added to each class, so that a class without a label is not impossible. A method without K is given one from the
    known cells, if more than half of them are known, or else twice the known positives per image.
    """
    prior = info.method.get("class_prior")
    if prior is not None and len(prior) == len(info.class_ids):
        return np.array(prior, np.float64)
    positive, known = labels == Label.POSITIVE, labels != Label.UNKNOWN
    k = info.method.get("positives_per_image")
    if k is None:
        k = positive.sum() / max(int(known.sum()), 1) * labels.shape[1]
        if known.mean() <= 0.5:
            k = 2 * positive.sum() / max(len(labels), 1)
    count = positive.sum(0) + 0.5
    return np.asarray(np.clip(k * count / count.sum(), 0.0, 1.0), np.float64)


def as_calibrated(info: ModelInfo, run: Path, split: str) -> Logits:
    """Return the scores of a split of a run, as a model of this run with this calibration gives them.

    Raises CheckpointError if the file is damaged.
    """
    logits = _as_trained(run / "evaluation" / f"{split}.npy")
    return logits if info.calibration is None else stored_calibration(info).logits(logits).astype(np.float32)


def keep_as_trained(run: Path, info: ModelInfo) -> dict[str, Logits]:
    """Keep the scores of the trained head in the folder `AS_TRAINED`, and return them by split."""
    folder = run / "evaluation" / AS_TRAINED
    scores = {split: logits for split, (logits, _) in _stored(info, run)}
    for split, logits in scores.items():
        folder.mkdir(exist_ok=True)
        kept = folder / f"{split}.npy"
        if not kept.exists():
            write_array(kept, logits)
    return scores


def _fit(info: ModelInfo, logits: Logits, labels: NDArray[np.int8], photos: str) -> Fitted:
    """Fit to the logits of the trained head, and compare with calibrations that were fitted without a part."""
    fitted, empty = fitted_classes(labels), _without_label(info, labels)
    share = assumed_share(info, labels)
    if fitted.any():
        share = np.where(empty, np.nan, share)
    calibration = fit_calibration(logits, labels, share)
    held_out = cross_fitted(logits, labels, share)
    how = []
    for classes, basis in (
        (fitted, "from known labels"),
        (~fitted & ~np.isnan(share), "from the expected number of positives"),
        (np.isnan(share), "without labels like the mean of these"),
    ):
        if number := int(classes.sum()):
            how.append(f"{counted(number, 'class', 'classes')} {basis}")
    name = f"{counted(len(labels), 'validation photo')}" if photos == "validation" else counted(len(labels), "photo")
    basis = f"calibrated on {name} ({', '.join(how)}); slope {calibration.slope:.2f}"
    return Fitted(calibration, basis, (Comparison.of(f"{name}, cross-fitted", logits, held_out, labels),))


def _without_label(info: ModelInfo, labels: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return bool [C], the classes of which nothing is known: no label, and no class prior of the method."""
    empty: NDArray[np.bool_] = (labels == Label.UNKNOWN).all(0)
    return empty & (info.method.get("class_prior") is None)


def _warn_of_missing_classes(info: ModelInfo, labels: NDArray[np.int8]) -> Iterator[str]:
    """Warn if an expected number of positives of all classes is divided, and labels of some classes are missing."""
    empty = _without_label(info, labels)
    if empty.any() and (~empty & ~fitted_classes(labels)).any():
        names = [name for name, is_empty in zip(info.classes.display, empty, strict=True) if is_empty]
        yield (
            f"warning: {counted(len(names), 'class has', 'classes have')} no label: {some(names, MOST_NAMED)}; if "
            "photos show them, the expected number of positives of the other classes is too high. Give labels of all "
            "classes, or at least half of the labels of each class that is labelled."
        )


def _stored(info: ModelInfo, run: Path) -> Iterator[tuple[str, tuple[Logits, NDArray[np.int8]]]]:
    """Yield the scores of the trained head, and the labels, of each evaluated split of a run."""
    for path in sorted((run / "evaluation").glob("*.npy")):
        table = run / "tables" / path.name.replace(".npy", ".parquet")
        if not table.exists():
            continue
        logits, labels = _as_trained(path), load(table).matrix.dense()
        if logits.shape != labels.shape or labels.shape[1] != len(info.class_ids):
            raise ConfigError(f"{path} and {table} do not belong together, or not to this model; give labels (LABELS).")
        yield path.stem, (logits, labels)


def _as_trained(path: Path) -> Logits:
    """Return the scores of the trained head: the kept ones, which a run has once it was calibrated, or its own."""
    kept = path.parent / AS_TRAINED / path.name
    source = kept if kept.exists() else path
    try:
        values: Logits = np.load(source, allow_pickle=False)
    except BAD_ARRAY as error:
        raise unreadable(source, error) from None
    return values


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f}"
