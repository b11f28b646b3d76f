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


def judge(expected: Tensor, labels: Tensor, truth: Tensor) -> tuple[int, int, int]:
    """Count unannotated cells whose truth is known: expected positives, correct ones of these, and positives."""
    hidden = (labels == Label.UNKNOWN) & (truth != Label.UNKNOWN)
    positive = hidden & (truth == Label.POSITIVE)
    found = torch.stack([expected & hidden, expected & positive, positive]).sum((1, 2)).tolist()
    return found[0], found[1], found[2]


def judge_cells(
    image: NDArray[np.int64],
    class_: NDArray[np.int64],
    labels: LabelMatrix,
    truth: LabelMatrix,
    classes: NDArray[np.bool_],
) -> dict[str, float]:
    """Do what `judge` does for the expected positives without a label, [m] each, of some classes (a mask, [C])."""
    state = truth.at(image, class_)
    row, other = truth.positives(np.arange(truth.shape[0]))
    hidden = classes[other] & (labels.at(row, other) == Label.UNKNOWN)
    return {
        "judged": float(np.count_nonzero(state != Label.UNKNOWN)),
        "correct": float(np.count_nonzero(state == Label.POSITIVE)),
        "positive": float(np.count_nonzero(hidden)),
    }


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
