"""Decisions at given thresholds: precision, recall and F1 on known cells, and the number of labels per image.

Arrays are prob [n, c] (probabilities, or whatever scale the thresholds are on), labels [n, c] (values of `Label`) and
thresholds [c]. A class is predicted as present if prob >= threshold. Of a group with exactly one present class, the
most probable one is predicted; of a group with at most one, the most probable of those that reach their threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.labels import Label
from fewtags.metrics.ranking import mean_of_known, refuse_nan


@final
@dataclass(frozen=True, eq=False)
class DecisionReport:
    """Counts of correct and wrong decisions on known cells, with precision, recall and F1.

    A class without known positives or without known negatives is not counted: its values are nan. A counted class that
    is never predicted has precision 0, as in other libraries.
    """

    true_positives: Int64[Array, " c"]
    false_positives: Int64[Array, " c"]
    false_negatives: Int64[Array, " c"]
    true_negatives: Int64[Array, " c"]

    @property
    def precision(self) -> Float[Array, " c"]:
        """Precision of each class."""
        return self._ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> Float[Array, " c"]:
        """Recall of each class."""
        return self._ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> Float[Array, " c"]:
        """F1 of each class."""
        tp = self.true_positives
        return self._ratio(2 * tp, 2 * tp + self.false_positives + self.false_negatives)

    @property
    def class_precision(self) -> float:
        """CP: mean precision of the counted classes."""
        return mean_of_known(self.precision)

    @property
    def class_recall(self) -> float:
        """CR: mean recall of the counted classes."""
        return mean_of_known(self.recall)

    @property
    def cf1(self) -> float:
        """CF1: harmonic mean of CP and CR, as in the multi-label literature (not the mean of the classes' F1)."""
        cp, cr = self.class_precision, self.class_recall
        return 0.0 if cp + cr == 0 else 2 * cp * cr / (cp + cr)

    @property
    def overall_precision(self) -> float:
        """OP: precision over all known cells; nan if no negative is known, because it would always be 1."""
        return self._overall(self.true_positives, self.true_positives + self.false_positives)

    @property
    def overall_recall(self) -> float:
        """OR: recall over all known cells."""
        return self._overall(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def of1(self) -> float:
        """OF1: F1 over all known cells, the harmonic mean of OP and OR."""
        tp = self.true_positives
        return self._overall(2 * tp, 2 * tp + self.false_positives + self.false_negatives)

    @property
    def _known(self) -> tuple[Bool[Array, " c"], Bool[Array, " c"]]:
        """Whether each class has known positives, and known negatives."""
        return self.true_positives + self.false_negatives > 0, self.false_positives + self.true_negatives > 0

    def _ratio(self, part: Int64[Array, " c"], whole: Int64[Array, " c"]) -> Float[Array, " c"]:
        positive, negative = self._known
        return np.where(positive & negative, part / np.maximum(whole, 1), np.nan)

    def _overall(self, part: Int64[Array, " c"], whole: Int64[Array, " c"]) -> float:
        positive, negative = self._known
        return float(part.sum() / max(whole.sum(), 1)) if positive.any() and negative.any() else np.nan


Groups = tuple[tuple[bool, tuple[int, ...]], ...]
"""Groups of classes by position, and for each whether a class is always present (exactly one) or not (at most one)."""


def decide_cells(prob: Float[Array, "n c"], thresholds: Float[Array, " c"], groups: Groups = ()) -> Bool[Array, "n c"]:
    """Decide which classes are present. Of equally probable classes of a group, the first is.

    >>> decide_cells(np.array([[0.3, 0.4, 0.9]]), np.array([0.5, 0.5, 0.5]), ((True, (0, 1)),)).tolist()
    [[False, True, True]]
    """
    present = prob >= thresholds
    for always, columns in groups:
        inside = prob[:, columns]
        if not always:
            inside = np.where(present[:, columns], inside, -1.0)
        best = np.arange(len(columns)) == inside.argmax(1)[:, None]
        present[:, columns] = best if always else best & present[:, columns]
    return present


def decision_report(
    prob: Float[Array, "n c"], labels: Int8[Array, "n c"], thresholds: Float[Array, " c"], groups: Groups = ()
) -> DecisionReport:
    """Decide every cell and count the decisions on known cells. Raises DataError if a probability is NaN.

    >>> labels = np.array([[1], [-1], [0]], np.int8)
    >>> decision_report(np.array([[0.9], [0.8], [0.7]]), labels, np.array([0.5])).of1.__round__(4)  # 2 / (2 + 1)
    0.6667
    """
    refuse_nan(prob)
    present = decide_cells(prob, thresholds, groups)
    positive, negative = labels == Label.POSITIVE, labels == Label.NEGATIVE
    return DecisionReport(
        true_positives=(present & positive).sum(0),
        false_positives=(present & negative).sum(0),
        false_negatives=(~present & positive).sum(0),
        true_negatives=(~present & negative).sum(0),
    )


@final
@dataclass(frozen=True)
class LabelCardinality:
    """Mean number of labels per image.

    Attributes:
        known: known positives.
        predicted: classes that are predicted as present, unknown cells included.
        expected: sum of the probabilities, unknown cells included; correct on average for a calibrated model.
    """

    known: float
    predicted: float
    expected: float


def label_cardinality(
    prob: Float[Array, "n c"], labels: Int8[Array, "n c"], thresholds: Float[Array, " c"], groups: Groups = ()
) -> LabelCardinality:
    """Mean number of known, predicted and expected labels per image; 0 if there are no images."""
    n = max(len(prob), 1)
    return LabelCardinality(
        known=float(np.sum(labels == Label.POSITIVE) / n),
        predicted=float(np.sum(decide_cells(prob, thresholds, groups)) / n),
        expected=float(prob.sum(dtype=np.float64) / n),
    )
