"""Whether the labels of validation photos are blank at random, and whether they can tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewtags.labels import Label
from fewtags.metrics.counts import FAR, score_by_known

LEAST_KNOWN = 100
"""Known labels of validation photos without which nobody can tell whether labels are blank at random."""


def why_not_told(labels: NDArray[np.int8]) -> str:
    """Return why the labels of validation photos cannot tell whether labels are blank at random; "" if they can.

    Classes without a blank need no test: their average precision is that of complete labels.
    """
    known = labels != Label.UNKNOWN
    blank = known.any(0) & ~known.all(0)
    if known[:, blank if blank.any() else slice(None)].sum() >= LEAST_KNOWN:
        return ""
    if blank.any():
        return f"fewer than {LEAST_KNOWN} known labels on validation show whether labels are blank at random"
    return f"validation has fewer than {LEAST_KNOWN} known labels"


def why_not_random(logits: NDArray[np.float32], labels: NDArray[np.int8]) -> str:
    """Return why the known labels of photos do not look like random ones, by the scores of a model; "" if they do."""
    if why := why_not_told(labels):
        return why
    found = score_by_known(logits.astype(np.float64), labels)
    if found is None or abs(found.z) < FAR:
        return ""
    which = "higher" if found.z > 0 else "lower"
    return f"labels are not blank at random on validation: known ones have {which} scores (z {found.z:.1f})"
