"""Evaluation of a model on a table. Unknown cells are never counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.engine.machine import prepare_process
from fewtags.engine.object_sizes import BY_SIZE, size_metrics
from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.metrics.calibration import calibration_report
from fewtags.metrics.decisions import DecisionReport, Groups, decision_report, label_cardinality
from fewtags.metrics.intervals import FEWEST_POSITIVES, Intervals, jackknife_intervals
from fewtags.metrics.metric import Metric, nested, number_or_none, reasons, sentence
from fewtags.metrics.ranking import RankingReport, positive_only_report, ranking_report
from fewtags.nets.spatial import SpatialNet
from fewtags.notebook import data_frame, html_table
from fewtags.photos.loader import EvalLoader
from fewtags.stores.shard import Shard
from fewtags.text import counted

Logits = NDArray[np.float32]
_PERCENT = ("average_precision", "precision", "recall", "f1")
_SHOWN = ("name", "average_precision", "positives", "negatives", "threshold", "precision", "recall", "f1")
"""Columns of the table of classes, in notebooks and data frames."""


def predict_logits(
    net: SpatialNet, loader: EvalLoader, samples: int, device: torch.device, shard: Shard | None = None
) -> Logits:
    """Return float32 [N, C] of all photos, in order, on every process; the pool comes first, so no maps are made."""
    prepare_process()
    with torch.inference_mode():
        local = own_logits(net, loader, device)
        logits: Logits = (shard or Shard()).gather(local, samples).cpu().numpy()
    return logits


def own_logits(net: SpatialNet, loader: EvalLoader, device: torch.device) -> Tensor:
    """Return float32 [rows, C] of this process's photos, in order. The caller switches gradients off."""
    net.eval()
    # A process may have no photos.
    pieces = [torch.zeros(0, net.head.classes, device=device)]
    for batch in loader:
        images = batch.images.to(device, memory_format=torch.channels_last)
        pieces.append(net.predict_logits(images).float())
    return torch.cat(pieces)


def sigmoid(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities in float64, so that large logits do not tie at 1."""
    values = logits.astype(np.float64)
    return np.exp(-np.logaddexp(0.0, -values))


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Evaluation:
    """The metrics of a model on one table, and the counts behind them.

    Attributes:
        classes: the vocabulary, C classes.
        images: N.
        metrics: one number each over all classes; JSON, text and the report page iterate over them.
        ranking: AP per class over known cells.
        intervals: 95 % intervals of AP and mAP over the choice of images; None if no class is counted.
        decisions: correct and wrong decisions at the thresholds.
        thresholds: float64 [C].
        unreadable: photos that could not be read; they are not among the N images.
    """

    classes: ClassNames
    images: int
    metrics: tuple[Metric, ...]
    ranking: RankingReport
    intervals: Intervals | None
    decisions: DecisionReport
    thresholds: NDArray[np.float64]
    unreadable: int = 0

    @property
    def mean_average_precision(self) -> float:
        """Mean AP over the counted classes; nan if there are none."""
        return self.ranking.mean_average_precision

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; nan becomes None."""
        return {
            "images": self.images,
            "unreadable": self.unreadable,
            "classes_counted": len(self.classes) - len(self.ranking.excluded),
            "known_cells": self.ranking.known_cells,
            "positive_only": None,
            **nested(self.metrics),
            "metrics": [metric.to_dict() for metric in self.metrics],
            "per_class": [self._class(c) for c in range(len(self.classes))],
        }

    def _class(self, c: int) -> dict[str, Any]:
        ranking, decisions = self.ranking, self.decisions
        spread = None if self.intervals is None else self.intervals.average_precision[c]
        return {
            "id": self.classes.ids[c],
            "name": self.classes.display[c],
            "average_precision": number_or_none(ranking.average_precision[c]),
            "interval": None if spread is None else [number_or_none(v) for v in spread],
            "positives": int(ranking.positives[c]),
            "negatives": int(ranking.negatives[c]),
            "unknown": int(ranking.unknown[c]),
            "threshold": float(self.thresholds[c]),
            "precision": number_or_none(decisions.precision[c]),
            "recall": number_or_none(decisions.recall[c]),
            "f1": number_or_none(decisions.f1[c]),
            "excluded": ranking.excluded.get(c),
        }

    def __str__(self) -> str:
        """The headline, and the classes sorted by AP."""
        lines = [*self.headline()]
        if self.unreadable:
            lines.append(f"Left out: {counted(self.unreadable, 'photo')} that cannot be read.")
        width = max([5, *(len(n) for n in self.classes.display)])
        lines.append(f"{'class':<{width}}      AP   interval        positives  known")
        ap = self.ranking.average_precision
        for c in sorted(range(len(ap)), key=lambda c: (math.isnan(ap[c]), -np.nan_to_num(ap[c]))):
            low, high = (math.nan, math.nan) if self.intervals is None else self.intervals.average_precision[c]
            value = "   -  " if math.isnan(ap[c]) else f"{100 * ap[c]:6.1f}"
            spread = f"{100 * low:5.1f} ..{100 * high:6.1f}"
            if math.isnan(low):
                spread = f"{'-' if math.isnan(ap[c]) else f'too few (<{FEWEST_POSITIVES})':^13}"
            known = int(self.ranking.positives[c] + self.ranking.negatives[c])
            why = f"  {self.ranking.excluded[c]}" if c in self.ranking.excluded else ""
            positives = f"{self.ranking.positives[c]:>9,}"
            lines.append(f"{self.classes.display[c]:<{width}}  {value}   {spread}  {positives}  {known:>5,}{why}")
        return "\n".join([*lines, *details(self.metrics)])

    def __repr__(self) -> str:
        value = self.mean_average_precision
        mean = "not defined" if math.isnan(value) else f"{100 * value:.1f}"
        sizes = f"{counted(self.images, 'image')}, {counted(len(self.classes), 'class', 'classes')}"
        return f"Evaluation(mAP {mean}, {sizes}, {self.ranking.known_cells:,} known cells)"

    def _repr_html_(self) -> str:
        rows = [
            tuple(
                "-" if row[key] is None else f"{100 * row[key]:.1f}" if key in _PERCENT else row[key] for key in _SHOWN
            )
            for row in self.to_dict()["per_class"]
        ]
        return html_table(repr(self), [name.replace("_", " ") for name in _SHOWN], rows, self.headline())

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per class: AP, counts, threshold, precision, recall and F1 as fractions.

        Raises ConfigError if pandas is not installed.
        """
        rows = self.to_dict()["per_class"]
        return data_frame({key: [row[key] for row in rows] for key in ("id", *_SHOWN, "unknown", "excluded")})

    def headline(self) -> list[str]:
        """Return all metrics in one sentence, and one sentence for each reason why others are not defined."""
        return headline(self.to_dict())


def headline(evaluation: Mapping[str, Any]) -> list[str]:
    """Return `Evaluation.headline` of an evaluation in the form of `Evaluation.to_dict`, read from JSON."""
    metrics = [Metric.from_dict(fields) for fields in evaluation["metrics"]]
    counts = (
        f"{evaluation['classes_counted']} of {len(evaluation['per_class'])} classes counted, "
        f"{counted(evaluation['images'], 'image')}, {evaluation['known_cells']:,} known cells."
    )
    return [f"{sentence(metrics)}; {counts}", *reasons(metrics)]


def result_lines(evaluations: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the headlines of the evaluations of a run by split."""
    yield from (f"{split}: {line}" for split, evaluation in evaluations.items() for line in headline(evaluation))


def evaluate_logits(
    logits: Logits,
    labels: NDArray[np.int8],
    classes: ClassNames,
    thresholds: NDArray[np.float64],
    groups: Groups = (),
    sizes: NDArray[np.float64] | None = None,
) -> Evaluation:
    """Evaluate logits [N, C] against labels int8 [N, C]; decisions respect `groups` of classes.

    `sizes` [N, C] are those of `cell_sizes`, for mAP by size of the objects.

    Raises:
        DataError: there is no image.
    """
    if not len(logits):
        raise DataError("there is no image to evaluate on.")
    scores, prob = logits.astype(np.float64), sigmoid(logits)
    ranking, decisions = ranking_report(scores, labels), decision_report(prob, labels, thresholds, groups)
    is_counted = len(ranking.excluded) < len(classes)
    intervals = jackknife_intervals(scores, labels) if is_counted else None
    return Evaluation(
        classes=classes,
        images=len(logits),
        metrics=(
            *ranking_metrics(ranking, intervals),
            *decision_metrics(ranking, decisions),
            *(() if is_counted else positive_only_metrics(scores, labels)),
            *cardinality_metrics(prob, labels, thresholds, groups),
            *complete_metrics(scores, labels),
            *calibration_metrics(prob, labels),
            *size_metrics(scores, labels, sizes),
        ),
        ranking=ranking,
        intervals=intervals,
        decisions=decisions,
        thresholds=thresholds,
    )


# --- metrics over all classes: for a new one, `yield` it here; `evaluate_logits` calls these functions


def ranking_metrics(ranking: RankingReport, intervals: Intervals | None) -> Iterator[Metric]:
    """Yield the mean AP of the counted classes."""
    yield Metric(
        key="mAP",
        label="mAP",
        value=ranking.mean_average_precision,
        count=len(ranking.positives) - len(ranking.excluded),
        items="classes",
        interval=(math.nan, math.nan) if intervals is None else intervals.mean_average_precision,
        why=_why(ranking),
    )


def decision_metrics(ranking: RankingReport, decisions: DecisionReport) -> Iterator[Metric]:
    """Yield CF1 and OF1 at the thresholds."""
    classes, why = len(ranking.positives) - len(ranking.excluded), _why(ranking)
    yield Metric(key="CF1", label="CF1", value=decisions.cf1, count=classes, items="classes", why=why)
    yield Metric(key="OF1", label="OF1", value=decisions.of1, count=ranking.known_cells, items="known cells", why=why)


def cardinality_metrics(
    prob: NDArray[np.float64], labels: NDArray[np.int8], thresholds: NDArray[np.float64], groups: Groups = ()
) -> Iterator[Metric]:
    """Yield the known, predicted and expected labels per image."""
    for name, value in vars(label_cardinality(prob, labels, thresholds, groups)).items():
        yield Metric(
            key=f"cardinality.{name}",
            label=f"{name} labels per image",
            value=value,
            unit="number",
            count=len(prob),
            items="images",
        )


def positive_only_metrics(scores: NDArray[np.float64], labels: NDArray[np.int8]) -> Iterator[Metric]:
    """Yield ranks of the known positives within their images, for labels without a class that has an AP."""
    report = positive_only_report(scores, labels)
    group, why = "positive_only", NO_POSITIVE
    images: dict[str, Any] = {"count": report.images, "items": "images with a known positive", "why": why}
    yield Metric(
        key=f"{group}.images",
        label="images with a known positive",
        value=report.images,
        unit="count",
        count=len(scores),
        items="images",
    )
    yield Metric(key=f"{group}.hit@1", label="hit@1", value=report.hit_at_1, **images)
    for k, recall in report.recall_at.items():
        yield Metric(key=f"{group}.recall@{k}", label=f"recall@{k}", value=recall, **images)
    yield Metric(
        key=f"{group}.mean_rank", label="mean rank of the known label", value=report.mean_rank, unit="number", **images
    )
    yield Metric(
        key=f"{group}.mAP, unknown counted as absent (pessimistic)",
        label="mAP, unknown counted as absent (pessimistic)",
        value=report.pessimistic.mean_average_precision,
        count=len(report.pessimistic.positives) - len(report.pessimistic.excluded),
        items="classes",
        why=why,
    )


def complete_metrics(scores: NDArray[np.float64], labels: NDArray[np.int8]) -> Iterator[Metric]:
    """Yield hit@1 and mAP by number of labels over the completely labelled images with a label, if there are any.

    hit@1 is eq. (9) of Verelst et al. (WACV 2023): the share of images whose highest-scored class is one of its labels.
    mAP by number of labels is that of the images with exactly so many (their table 3 and fig. 5d); the last group has
    all images with more.
    """
    labels_of = np.where((labels != Label.UNKNOWN).all(1), (labels == Label.POSITIVE).sum(1), 0)
    if not (labels_of > 0).any():
        return
    complete = labels_of > 0
    report = positive_only_report(scores[complete], labels[complete], ks=())
    items = "completely labelled images with a label"
    yield Metric(key="hit@1", label="hit@1", value=report.hit_at_1, count=report.images, items=items, is_detail=True)
    for k in range(1, MOST_LABELS + 1):
        last = k == MOST_LABELS
        group = labels_of >= k if last else labels_of == k
        if not group.any():
            continue
        ranking = ranking_report(scores[group], labels[group])
        yield Metric(
            key=f"mAP_by_labels.{k}{' or more' if last else ''}",
            label=f"mAP of images with {k}{' or more' if last else ''} label{'s' if k > 1 else ''}",
            value=ranking.mean_average_precision,
            count=int(group.sum()),
            items="images",
            is_detail=True,
        )


def calibration_metrics(prob: NDArray[np.float64], labels: NDArray[np.int8]) -> Iterator[Metric]:
    """Yield calibration error and Brier score, if at least half of the labels of a class are known."""
    found = calibration_report(prob, labels)
    if found.cells:
        shared: dict[str, Any] = {"count": found.cells, "items": "known cells", "is_detail": True}
        yield Metric(key=f"{CALIBRATION}.error", label="expected calibration error", value=found.error, **shared)
        yield Metric(key=f"{CALIBRATION}.brier", label="Brier score", value=found.brier, unit="number", **shared)


CALIBRATION = "calibration"
"""First part of the keys of `calibration_metrics`."""
MOST_LABELS = 5
"""Images with so many labels or more are one group of `complete_metrics`."""


def details(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield a line for each kind of detail among the metrics that are defined, with the number of items behind each."""
    shown = [metric for metric in metrics if metric.is_detail and metric.is_defined]
    sized = [metric for metric in shown if metric.key.startswith(BY_SIZE)]
    probabilities = [metric for metric in shown if metric.key.startswith(f"{CALIBRATION}.")]
    complete = [metric for metric in shown if metric not in (*sized, *probabilities)]
    kinds = (
        ("Completely labelled images", complete, "image"),
        ("Positive labels with a box", sized, "label"),
        ("Probabilities", probabilities, "cell"),
    )
    for head, found, item in kinds:
        if found:
            yield f"{head}: {', '.join(f'{metric} ({counted(metric.count, item)})' for metric in found)}."


NO_POSITIVE = "no known positive, so there is nothing to rank"


def _why(ranking: RankingReport) -> str:
    if not ranking.positives.any():
        return NO_POSITIVE
    return "no class has both known positives and known negatives, so AP has no meaning"


def epoch_metrics(logits: Logits, labels: NDArray[np.int8]) -> Mapping[str, float]:
    """Return the metrics of `evaluate_logits` that are logged after every epoch; mAP only if a class is counted."""
    scores = logits.astype(np.float64)
    ranking = ranking_report(scores, labels)
    common = {"predicted_positives": float(sigmoid(logits).sum(1).mean())}
    if len(ranking.excluded) < labels.shape[1]:
        return {"mAP": ranking.mean_average_precision, **common}
    only = positive_only_report(scores, labels)
    pessimistic = only.pessimistic.mean_average_precision
    return {"hit@1": only.hit_at_1, "mean_rank": only.mean_rank, "pessimistic_mAP": pessimistic, **common}
