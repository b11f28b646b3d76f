"""Suspicious labels: annotated cells that the model finds unlikely.

Two measures: the rank of a labelled cell among the unknown cells of its class, and cleanlab's self-confidence, the
probability of the given label (Northcutt, Jiang and Chuang, "Confident Learning", JAIR 2021). cleanlab wants
probabilities from a model that has not seen the label. Here the model was usually trained on it, so both measures find
fewer wrong labels than they could, and never too many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fewtags.engine.model import ModelInfo
from fewtags.engine.predict import ScoredTable
from fewtags.labels import Label
from fewtags.review.orders import Cells
from fewtags.review.questions import Box, make_cells, ordinal
from fewtags.table.table import LabelTable
from fewtags.text import counted


@final
@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A label that may be wrong.

    Attributes:
        image: key of the photo.
        class_: id of the class; its display name is `name`.
        name: display name.
        state: the label, "positive" or "negative".
        probability: calibrated, that the class is present.
        self_confidence: the model's own probability of the given label, cleanlab's measure; low is suspicious.
        suspicion: see `suspicion`; high is suspicious, and above 0 the model contradicts the label.
        reason: a sentence.
        box: where the model sees the class, as that of a question.
    """

    image: str
    class_: str
    name: str
    state: str
    probability: float
    self_confidence: float
    suspicion: float
    reason: str
    box: Box | None = None


def suspicion(cells: Cells) -> NDArray[np.float64]:
    """Return how much the ranking of its class contradicts each label, float64 [N, C]; -inf for unknown cells.

    A class is present in about m images: its known positives and `expected`. A labelled cell is placed at rank r among
    all other cells of its class. A positive has log(r / m), a negative log(m / r). Unlike a probability, this does not
    depend on how rare the class is, nor on how the loss treats unknown cells.
    """
    found = (cells.labels == Label.POSITIVE).sum(0)
    m = np.maximum(found + cells.expected, 1.0)
    order = np.argsort(-np.asarray(cells.logits, np.float64), axis=0, kind="stable")
    rank = np.empty(order.shape, np.int64)
    np.put_along_axis(rank, order, np.arange(1, len(order) + 1)[:, None], axis=0)
    value = np.log(rank) - np.log(m)
    return np.where(cells.labels == Label.UNKNOWN, -np.inf, np.where(cells.labels == Label.POSITIVE, value, -value))


def self_confidence(cells: Cells) -> NDArray[np.float64]:
    """Return the model's probability of each given label, float64 [N, C]: f of a positive, 1 - f of a negative.

    Unknown cells have the value 1.
    """
    f = expit(np.asarray(cells.logits, np.float64))
    return np.where(cells.labels == Label.POSITIVE, f, np.where(cells.labels == Label.NEGATIVE, 1 - f, 1.0))


def find_suspicious(
    scored: ScoredTable,
    info: ModelInfo,
    table: LabelTable,
    share: NDArray[np.floating] | None = None,
    *,
    limit: int = 100,
    per_class: int | None = None,
) -> list[Suspicion]:
    """Return the labels that contradict the model, the most suspicious first; arguments as in `suggest`."""
    cells = make_cells(scored, info, share)
    value, confidence = suspicion(cells), self_confidence(cells)
    keys, display = table.images.take(scored.index).to_pylist(), info.classes.display
    taken = np.zeros(len(display), np.int64)
    found: list[Suspicion] = []
    for cell in np.argsort(-value, axis=None, kind="stable").tolist():
        i, c = divmod(cell, len(display))
        if value[i, c] <= 0 or len(found) == limit:
            break
        if per_class is not None and taken[c] == per_class:
            continue
        taken[c] += 1
        positive = bool(cells.labels[i, c] == Label.POSITIVE)
        present = float((cells.labels[:, c] == Label.POSITIVE).sum() + cells.expected[c])
        found.append(
            Suspicion(
                image=keys[i],
                class_=info.class_ids[c],
                name=display[c],
                state="positive" if positive else "negative",
                probability=float(cells.prob[i, c]),
                self_confidence=float(confidence[i, c]),
                suspicion=float(value[i, c]),
                reason=_reason(display[c], positive, float(value[i, c]), present),
            )
        )
    return found


def _reason(name: str, positive: bool, value: float, present: float) -> str:
    """Return why a label is suspicious, as a sentence."""
    rank, expected = max(1, round(present * np.exp(value if positive else -value))), max(round(present), 1)
    if positive:
        photos = counted(expected, "photo is", "photos are")
        return (
            f"labelled {name!r}, but {counted(rank - 1, 'photo ranks', 'photos rank')} higher, and only {photos} "
            "expected to show it"
        )
    return f"labelled as without {name!r}, but ranked {ordinal(rank)}, and {expected:,} photos are expected to show it"
