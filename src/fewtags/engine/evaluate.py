"""What a model is worth on a table, with unknown cells left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.engine.machine import keep_freed_memory
from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.metrics.decisions import DecisionReport, LabelCardinality, decision_report, label_cardinality
from fewtags.metrics.ranking import (
    Intervals,
    PositiveOnlyReport,
    RankingReport,
    bootstrap_intervals,
    positive_only_report,
    ranking_report,
)
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.loader import EvalLoader
from fewtags.stores.shard import Shard
from fewtags.text import counted

Logits = NDArray[np.float32]


def predict_logits(
    net: SpatialNet, loader: EvalLoader, samples: int, device: torch.device, shard: Shard | None = None
) -> Logits:
    """float32 [N, C] of all photos, in order, on every process; the pool comes first, so no maps are made."""
    keep_freed_memory()
    net.eval()
    # A process may have no photo at all.
    pieces = [torch.zeros(0, net.head.classes, device=device)]
    with torch.inference_mode():
        for batch in loader:
            images = batch.images.to(device, memory_format=torch.channels_last)
            pieces.append(net.predict_logits(images).float())
    logits: Logits = (shard or Shard()).gather(torch.cat(pieces), samples).cpu().numpy()
    return logits


def sigmoid(logits: Logits) -> NDArray[np.float64]:
    """Probabilities in float64, so that large logits do not tie at 1."""
    values = logits.astype(np.float64)
    return np.exp(-np.logaddexp(0.0, -values))


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """Everything that is measured on one table.

    Attributes:
        classes: the vocabulary.
        images: N.
        ranking: AP per class over known cells.
        intervals: bootstrap intervals of them; None where no class is counted.
        decisions: right and wrong decisions at the thresholds.
        cardinality: labels per image.
        thresholds: float64 [C].
        positive_only: hit@1 and the like where no class is counted; None elsewhere.
        unreadable: photos that could not be read; they are not among the N.
    """

    classes: ClassNames
    images: int
    ranking: RankingReport
    intervals: Intervals | None
    decisions: DecisionReport
    cardinality: LabelCardinality
    thresholds: NDArray[np.float64]
    positive_only: PositiveOnlyReport | None
    unreadable: int = 0

    @property
    def mean_average_precision(self) -> float:
        """Mean AP over the counted classes; nan if there are none."""
        return self.ranking.mean_average_precision

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; nan becomes None."""
        ranking, known = self.ranking, self.decisions
        per_class = [
            {
                "id": self.classes.ids[c],
                "name": self.classes.display[c],
                "average_precision": _number(ranking.average_precision[c]),
                "interval": None
                if self.intervals is None
                else [_number(v) for v in self.intervals.average_precision[c]],
                "positives": int(ranking.positives[c]),
                "negatives": int(ranking.negatives[c]),
                "unknown": int(ranking.unknown[c]),
                "threshold": float(self.thresholds[c]),
                "precision": _number(known.precision[c]),
                "recall": _number(known.recall[c]),
                "f1": _number(known.f1[c]),
                "excluded": ranking.excluded.get(c),
            }
            for c in range(len(self.classes))
        ]
        only = self.positive_only
        return {
            "images": self.images,
            "unreadable": self.unreadable,
            "mAP": _number(self.mean_average_precision),
            "mAP_interval": None
            if self.intervals is None
            else [_number(v) for v in self.intervals.mean_average_precision],
            "classes_counted": len(self.classes) - len(ranking.excluded),
            "known_cells": ranking.known_cells,
            "CF1": _number(known.cf1),
            "OF1": _number(known.of1),
            "cardinality": {k: _number(v) for k, v in vars(self.cardinality).items()},
            "positive_only": None
            if only is None
            else {
                "images": only.images,
                "hit@1": _number(only.hit_at_1),
                **{f"recall@{k}": _number(v) for k, v in only.recall_at.items()},
                "mean_rank": _number(only.mean_rank),
                "mAP, unknown counted as absent (pessimistic)": _number(only.pessimistic.mean_average_precision),
            },
            "per_class": per_class,
        }

    def __str__(self) -> str:
        """The headline numbers, and the classes sorted by AP."""
        lines = [*self.headline()]
        if self.unreadable:
            lines.append(f"Left out: {counted(self.unreadable, 'photo')} that cannot be read.")
        width = max([5, *(len(n) for n in self.classes.display)])
        lines.append(f"{'class':<{width}}      AP   interval        positives  known")
        ap = self.ranking.average_precision
        for c in sorted(range(len(ap)), key=lambda c: (math.isnan(ap[c]), -np.nan_to_num(ap[c]))):
            low, high = (math.nan, math.nan) if self.intervals is None else self.intervals.average_precision[c]
            value = "   -  " if math.isnan(ap[c]) else f"{100 * ap[c]:6.1f}"
            spread = "      -      " if math.isnan(low) else f"{100 * low:5.1f} ..{100 * high:6.1f}"
            known = int(self.ranking.positives[c] + self.ranking.negatives[c])
            why = f"  {self.ranking.excluded[c]}" if c in self.ranking.excluded else ""
            positives = f"{self.ranking.positives[c]:>9,}"
            lines.append(f"{self.classes.display[c]:<{width}}  {value}   {spread}  {positives}  {known:>5,}{why}")
        return "\n".join(lines)

    def headline(self) -> list[str]:
        """One or two sentences with the numbers that count."""
        counted = len(self.classes) - len(self.ranking.excluded)
        if self.positive_only is not None:
            only = self.positive_only
            if not only.images:
                return [f"{self.images:,} images, none with a known positive label: there is nothing to find."]
            return [
                f"{self.images:,} images, no class has both known positives and known negatives, so AP has no meaning "
                f"here. Of {only.images:,} images with a known label: hit@1 {100 * only.hit_at_1:.1f} %, "
                + ", ".join(f"recall@{k} {100 * v:.1f} %" for k, v in only.recall_at.items())
                + f", mean rank of the known label {only.mean_rank:.2f}.",
                f"mAP, unknown counted as absent (pessimistic): {100 * only.pessimistic.mean_average_precision:.1f}.",
            ]
        low, high = self.intervals.mean_average_precision if self.intervals else (math.nan, math.nan)
        return [
            f"mAP {100 * self.mean_average_precision:.1f} (95 % interval over images {100 * low:.1f} .. "
            f"{100 * high:.1f}), {counted} of {len(self.classes)} classes counted, {self.images:,} images, "
            f"{self.ranking.known_cells:,} known cells.",
            f"At the thresholds: CF1 {100 * self.decisions.cf1:.1f}, OF1 {100 * self.decisions.of1:.1f}; "
            f"labels per image: {self.cardinality.known:.2f} known, {self.cardinality.predicted:.2f} predicted.",
        ]


def evaluate_logits(
    logits: Logits,
    labels: NDArray[np.int8],
    classes: ClassNames,
    thresholds: NDArray[np.float64],
    *,
    seed: int = 0,
    resamples: int = 200,
) -> Evaluation:
    """Measure logits [N, C] against labels int8 [N, C].

    Raises:
        DataError: there is no image.
    """
    if not len(logits):
        raise DataError("there is no image to evaluate on.")
    prob = sigmoid(logits)
    ranking = ranking_report(logits.astype(np.float64), labels)
    counted = len(ranking.excluded) < len(classes)
    rng = np.random.default_rng(seed)
    return Evaluation(
        classes,
        len(logits),
        ranking,
        bootstrap_intervals(logits.astype(np.float64), labels, rng, n_resamples=resamples) if counted else None,
        decision_report(prob, labels, thresholds),
        label_cardinality(prob, labels, thresholds),
        thresholds,
        None if counted else positive_only_report(logits.astype(np.float64), labels),
    )


def epoch_metrics(logits: Logits, labels: NDArray[np.int8]) -> Mapping[str, float]:
    """The few numbers of `evaluate_logits` that are followed over epochs; mAP only where a class is counted."""
    scores = logits.astype(np.float64)
    ranking = ranking_report(scores, labels)
    common = {"predicted_positives": float(sigmoid(logits).sum(1).mean())}
    if len(ranking.excluded) < labels.shape[1]:
        return {"mAP": ranking.mean_average_precision, **common}
    only = positive_only_report(scores, labels)
    pessimistic = only.pessimistic.mean_average_precision
    return {"hit@1": only.hit_at_1, "mean_rank": only.mean_rank, "pessimistic_mAP": pessimistic, **common}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
