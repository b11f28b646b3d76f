"""Diagnostics of a ranking: how many positives it expects, and how many of them are right where the truth is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.labels import Label, LabelMatrix


class Tally(NamedTuple):
    """Sums over cells: scores, expected positives; of unannotated cells the expected, correctly expected, positive."""

    scores: float
    expected: float = 0.0
    judged: float = 0.0
    correct: float = 0.0
    positive: float = 0.0


def columns_of(labels: LabelMatrix, first: int, last: int, device: torch.device) -> Tensor:
    """Return the labels of the classes first..last - 1 of all images, int8 [N, last - first]."""
    return torch.from_numpy(labels.columns(first, last)).to(device)


def hidden_positives(labels: LabelMatrix, truth: LabelMatrix) -> NDArray[np.int64]:
    """Return the number of cells of each class that have no label and are positive in truth, int64 [C]."""
    row, class_ = truth.positives(np.arange(truth.shape[0]))
    return np.bincount(class_[labels.at(row, class_) == Label.UNKNOWN], minlength=truth.shape[1])


def judge(truth: NDArray[np.int8], hidden: NDArray[np.int64]) -> tuple[float, float, float]:
    """Return `judged`, `correct` and `positive` of a `Tally` over some classes.

    Args:
        truth: the true states of their expected positives without a label, int8 [m].
        hidden: their `hidden_positives`, int64 [k].
    """
    known, correct = np.count_nonzero(truth != Label.UNKNOWN), np.count_nonzero(truth == Label.POSITIVE)
    return float(known), float(correct), float(hidden.sum())


def diagnostics(tally: Tally, samples: int, ranked: bool, judged: bool) -> dict[str, float]:
    """Return diagnostics to log, without ratios whose denominator is 0."""
    found = {"predicted_positives_per_image": tally.scores / samples}
    if ranked:
        found["expected_positives_per_image"] = tally.expected / samples
    if ranked and judged and tally.judged:
        found["expected_positives_precision"] = tally.correct / tally.judged
    if ranked and judged and tally.positive:
        found["expected_positives_recall"] = tally.correct / tally.positive
    return found
