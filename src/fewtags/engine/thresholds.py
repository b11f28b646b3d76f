"""Thresholds of a trained model, chosen on validation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.evaluate import Logits, sigmoid
from fewtags.engine.plan import Tables, positives_per_image
from fewtags.labels import Label
from fewtags.metrics.thresholds import Thresholds, fit_thresholds
from fewtags.objectives.base import Objective


def choose_thresholds(logits: Logits, tables: Tables, objective: Objective | None = None) -> Thresholds:
    """Fit a threshold per class to the logits [N, C] of the validation images.

    Without known negatives, the expected number of positives decides, see `expected_share`.
    """
    share = expected_share(tables, objective)
    return fit_thresholds(sigmoid(logits), tables.val.matrix.dense(), expected_count=len(logits) * share)


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
