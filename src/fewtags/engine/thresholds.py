"""Thresholds of a trained model, chosen on validation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.evaluate import Logits, sigmoid
from fewtags.engine.label_counts import positives_per_image
from fewtags.engine.tables import Tables
from fewtags.labels import Label
from fewtags.metrics.thresholds import Thresholds, fit_thresholds
from fewtags.objectives.base import Objective
from fewtags.table.table import LabelTable
from fewtags.text import counted, flag

ENOUGH_EXPECTED = 5
"""With fewer expected positives on validation, the scores of training photos help to choose a threshold."""
ENOUGH_POSITIVES = 20
"""With fewer known positives on validation, the choice of an epoch is mostly chance."""
MOST_TRAINING = 2000
"""Largest number of training photos that are scored for this."""


def choose_thresholds(
    logits: Logits, tables: Tables, objective: Objective | None = None, train_logits: Logits | None = None
) -> Thresholds:
    """Fit a threshold per class to the logits [N, C] of the validation images.

    Without known negatives, the expected number of positives decides, see `expected_share`. Where fewer than
    `ENOUGH_EXPECTED` are expected among the N images, the logits [M, C] of training images are added, if given.
    """
    share = expected_share(tables, objective)
    return fit_thresholds(
        sigmoid(logits),
        tables.val.matrix.dense(),
        expected_count=len(logits) * share,
        more_prob=None if train_logits is None else sigmoid(train_logits),
        enough=ENOUGH_EXPECTED,
    )


def needs_training_scores(tables: Tables, objective: Objective | None = None) -> bool:
    """Whether too few positives of a class without known negatives are expected on validation."""
    few = len(tables.val) * expected_share(tables, objective) < ENOUGH_EXPECTED
    return bool((few & (tables.val.matrix.counts(Label.NEGATIVE) == 0)).any())


def scored_rows(photos: int) -> NDArray[np.int64]:
    """Return the training photos to score, int64 [m]: all, or `MOST_TRAINING` that are spread evenly."""
    return np.unique(np.linspace(0, photos - 1, min(photos, MOST_TRAINING)).round().astype(np.int64))


def expected_share(tables: Tables, objective: Objective | None = None) -> NDArray[np.float64]:
    """Return the expected share of images that contain each class, float64 [C] in 0..1.

    This is the class prior of the objective if it has one. Otherwise it is the number of positives per image (from the
    objective, or from `positives_per_image`) times the share of each class among the annotated positives.
    """
    assumed = None if objective is None else objective.assumed_positives
    if isinstance(assumed, tuple):
        return np.array(assumed)
    mean = assumed or positives_per_image(tables)[0]
    annotated = tables.train.matrix.counts(Label.POSITIVE)
    return np.minimum(mean * annotated / max(int(annotated.sum()), 1), 1.0)


def rests_on(val: LabelTable) -> str:
    """Return on how many classes, positives and photos a validation mAP rests; with a warning if it is next to nothing.

    These are the classes with known positives and known negatives, or those with known positives if there are none.
    """
    positives, negatives = (val.matrix.counts(state) for state in (Label.POSITIVE, Label.NEGATIVE))
    counted_classes = (positives > 0) & (negatives > 0)
    counted_classes = counted_classes if counted_classes.any() else positives > 0
    found = int(positives[counted_classes].sum())
    text = (
        f" ({counted(int(counted_classes.sum()), 'class', 'classes')}, {counted(found, 'positive')}, "
        f"{counted(len(val), 'photo')})"
    )
    if found >= ENOUGH_POSITIVES:
        return text
    return (
        f"{text}. Warning: with fewer than {ENOUGH_POSITIVES} positives this choice is mostly chance; give more "
        f"validation photos ({flag('val')})"
    )
