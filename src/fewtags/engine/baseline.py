"""The baseline of every run: logistic regression on pooled features, with unknown labels taken as absent.

It equals scikit-learn's `StandardScaler` and one-vs-rest `LogisticRegression(C=c / d)` on d features, solved for all
classes at once. A method that is worse than this baseline should not be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.config.presets import LOGIT_VARIANCES
from fewtags.engine.evaluate import Logits, epoch_metrics
from fewtags.engine.solve import HeadSolver, channel_statistics
from fewtags.labels import LabelMatrix
from fewtags.losses.partial import assume_negative
from fewtags.nets.spatial import SpatialHead
from fewtags.text import flag

NAME = "logistic regression on the same features, unknown taken as absent"
MEASURES: Mapping[str, str] = {"mAP": "mAP", "pessimistic_mAP": "mAP with unknown counted as absent"}
"""Metrics that choose the regularisation and compare runs, preferred first, with their names in messages."""


class Measured(NamedTuple):
    """A split to measure on: pooled features, float32 [n, d], and labels, int8 [n, C] values of `Label`."""

    features: Tensor
    labels: NDArray[np.int8]


@final
@dataclass(frozen=True)
class Baseline:
    """The results of logistic regression.

    Attributes:
        measure: a key of `MEASURES`.
        values: by split, in 0..1; the prior variance was chosen on "val".
        logit_variance: the chosen prior variance, see `HeadSolver`; scikit-learn's C is this value divided by d.
    """

    measure: str
    values: Mapping[str, float]
    logit_variance: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def logistic_regression(
    features: Tensor,
    labels: LabelMatrix,
    measured: Mapping[str, Measured],
    variances: tuple[float, ...] = LOGIT_VARIANCES,
) -> Baseline | None:
    """Fit on the training images, choose one of the prior `variances` on "val", and measure on all of `measured`.

    `features` are float32 [N, d], pooled, of the training images. Return None if "val" has no known positive.
    """
    samples, classes = labels.shape
    head = SpatialHead(features.shape[1], classes)
    with torch.no_grad():
        head.weight.zero_()
    cells = features[:, :, None, None]
    solver = HeadSolver(head, channel_statistics(cells[None], samples))
    known = torch.from_numpy(labels.dense())

    def loss() -> Tensor:
        value: Tensor = classes * assume_negative(head.predict_logits(cells), known)
        value.backward()
        return value.detach()

    best: Baseline | None = None
    for variance in variances:
        solver.minimise(loss, variance, samples)
        found = {name: epoch_metrics(_logits(head, split.features), split.labels) for name, split in measured.items()}
        measure = next((m for m in MEASURES if np.isfinite(found["val"].get(m, np.nan))), None)
        if measure is not None and (best is None or found["val"][measure] > best.values["val"]):
            values = {name: metrics[measure] for name, metrics in found.items() if measure in metrics}
            best = Baseline(measure, values, variance)
    return best


@torch.no_grad()
def _logits(head: SpatialHead, features: Tensor) -> Logits:
    logits: Logits = head.predict_logits(features[:, :, None, None]).numpy()
    return logits


def compare(baseline: Mapping[str, Any], evaluations: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Compare the evaluations of a run by split (`Evaluation.to_dict`) with its baseline, in one or two sentences."""
    measure = str(baseline["measure"])
    shared = [split for split in baseline["values"] if split in evaluations]
    own: dict[str, float | None] = {}
    for split in shared:
        only = evaluations[split]["positive_only"] or {}
        pessimistic = only.get("mAP, unknown counted as absent (pessimistic)")
        own[split] = evaluations[split]["mAP"] if measure == "mAP" else pessimistic
    found = {split: baseline["values"][split] for split in shared if own[split] is not None}
    compared = ", ".join(
        f"{split} {100 * value:.1f} (this run {100 * (own[split] or 0):.1f})" for split, value in found.items()
    )
    lines = [f"baseline, {NAME}: {MEASURES[measure]} {compared}"]
    judge = "test" if "test" in found else "val"
    lead = found[judge] - (own[judge] or 0) if judge in found else 0.0
    if round(100 * lead, 1) > 0:
        lines.append(
            f"The baseline is better on {judge} by {100 * lead:.1f}. To get it as a model with thresholds and "
            f"heatmaps, train with `{flag('preset', 'cpu')} {flag('method', 'assume_negative')}` and the "
            "same model.backbone and augment.size."
        )
    return tuple(lines)
