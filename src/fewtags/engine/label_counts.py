"""What known labels say about a run: K, the positives of an image, and whether classes can be ranked."""

from __future__ import annotations

import numpy as np

from fewtags.engine.tables import Tables
from fewtags.errors import ConfigError
from fewtags.labels import Label, LabelMatrix
from fewtags.table.table import LabelTable
from fewtags.text import counted

# Guess of the positives per annotated positive if labels are incomplete. Per image: ImageNet 1.2, VOC 1.5, COCO 2.9.
ASSUMED_POSITIVES = 1.5
# Number of completely labelled images from which on their mean is used.
COMPLETE_IMAGES = 20
# Known positives and negatives determine class frequencies only if at least this share of the cells is known.
KNOWN_SHARE = 0.25


def can_rank(table: LabelTable) -> bool:
    """Whether a class has known positives and known negatives, so that AP has a meaning."""
    counts = (table.matrix.counts(state) > 0 for state in (Label.POSITIVE, Label.NEGATIVE))
    return bool(np.logical_and(*counts).any())


def positives_per_image(tables: Tables) -> tuple[float, str]:
    """Return K of SCL eq. (3) and its source: given, complete images, known positives and negatives, or a guess.

    Raises:
        ConfigError: the given K is larger than the number of classes.
    """
    if (given := tables.positives_per_image) is not None:
        if given > len(tables.train.classes):
            raise ConfigError(
                f"data.positives_per_image is {given:g}, but there are "
                f"{counted(len(tables.train.classes), 'class', 'classes')}."
            )
        return given, f"positives per image: {given:.2f}, as given (data.positives_per_image)"
    for name, table in (("val", tables.val), ("train", tables.train)):
        complete = np.flatnonzero(table.matrix.image_counts(Label.UNKNOWN) == 0)
        if len(complete) >= COMPLETE_IMAGES:
            mean = float(table.matrix.subset(complete).image_counts(Label.POSITIVE).mean())
            if mean > 0:
                source = f"the mean of {len(complete):,} completely labelled {name} images"
                return mean, f"positives per image: {mean:.2f}, {source}"
    classes, limit = len(tables.train.classes), ""
    if (mean := _positives_among_known(tables.train.matrix)) > 0:
        if mean > classes:
            mean, limit = float(classes), f" (limited to the {counted(classes, 'class', 'classes')})"
        return mean, (
            f"positives per image: {mean:.2f}{limit}, the sum over classes of positives / known training cells, taking "
            "cells as blank at random. If blank cells are mostly negative, it is less: set "
            "data.positives_per_image, or run `fewtags estimate-k`."
        )
    observed = tables.train.matrix.image_counts(Label.POSITIVE)
    annotated = float(observed[observed > 0].mean())
    guess = ASSUMED_POSITIVES * annotated
    if guess > classes:
        guess, limit = float(classes), f", but not more than the {counted(classes, 'class', 'classes')}"
    return guess, (
        f"positives per image: {guess:.2f}, a guess ({ASSUMED_POSITIVES} x the {annotated:.2f} annotated{limit}), "
        f"since fewer than {COMPLETE_IMAGES} images are completely labelled. `fewtags estimate-k` estimates it; or "
        "count the classes in twenty photos and set data.positives_per_image."
    )


def _positives_among_known(labels: LabelMatrix) -> float:
    """Return the sum over classes of positives / (positives + negatives); 0 if too little is known.

    Sparse verified labels are not blank at random (somebody chose the cells to ask about), so `KNOWN_SHARE` of all
    cells must be known. Classes with fewer than `COMPLETE_IMAGES` known cells are taken at the average ratio of the
    others, which must contain at least 90 % of the positives.
    """
    positives, negatives = labels.counts(Label.POSITIVE), labels.counts(Label.NEGATIVE)
    known = positives + negatives
    judged = (known >= COMPLETE_IMAGES) & (negatives > 0)
    covered = positives[judged].sum() / max(int(positives.sum()), 1)
    if known.sum() < KNOWN_SHARE * labels.shape[0] * labels.shape[1] or covered < 0.9:
        return 0.0
    return float((positives[judged] / known[judged]).sum() / covered)
