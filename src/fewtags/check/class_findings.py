"""Findings of `check` about classes in the training labels together: imbalance, and classes that go together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fewtags.check.label_findings import FEW, Finding, Level, counted_finding
from fewtags.labels import Label
from fewtags.table.table import LabelTable

IMBALANCE = 5.0
"""Classes are reported if the most frequent one has at least this many times as many positives ..."""
RARE = 20
"""... and they have fewer positives than this. It is a note where every class has as many."""
MOST_COMPARED = 200
"""Largest number of classes, the most frequent ones, that are compared in pairs."""
CHANCE = 0.01
"""Pairs are reported if independent classes would go together, or never meet, with a smaller probability."""
_BLOCK = 4096


def class_findings(name: str, table: LabelTable) -> Iterator[Finding]:
    """Yield the findings about the training labels: at most one for each kind."""
    positives = table.matrix.counts(Label.POSITIVE)
    yield from _imbalance(name, table, positives)
    yield from _together(name, table, positives)


def _imbalance(name: str, table: LabelTable, positives: NDArray[np.int64]) -> Iterator[Finding]:
    """Few positives of some classes, compared with the most frequent one; fewer than `FEW` are another finding."""
    if not (positives >= FEW).any():
        return
    display, most = table.classes.display, int(positives.argmax())
    lacking = np.flatnonzero((positives >= FEW) & (positives * IMBALANCE <= positives[most]))
    if not len(lacking):
        return
    lacking = lacking[np.argsort(positives[lacking], kind="stable")]
    rarest, ratio = int(lacking[0]), positives[most] / positives[lacking[0]]
    level: Level = "warning" if positives[rarest] < RARE else "note"
    text = (
        f"positives at most a fifth of the {positives[most]:,} of {display[most]!r}, down to {positives[rarest]:,} "
        f"({ratio:.0f} to 1). mAP counts all classes alike, and rare ones score lowest: label more of them first."
    )
    items = [f"{display[c]} {positives[c]}" for c in lacking]
    yield from counted_finding(level, "imbalance", items, ("class has", "classes have"), text, f"{name}: ")


def _together(name: str, table: LabelTable, positives: NDArray[np.int64]) -> Iterator[Finding]:
    """Classes that always occur together, that occur only with another one, or that never meet.

    Two classes count as never meeting if one is known to be absent from the positives of the other so often that
    independent classes would have met.
    """
    order = np.argsort(-positives, kind="stable")[:MOST_COMPARED]
    chosen = np.sort(order[positives[order] >= FEW])
    if len(chosen) < 2:
        return
    size = len(chosen)
    both, absent, known = np.zeros((size, size)), np.zeros((size, size)), np.zeros(size)
    for first in range(0, len(table), _BLOCK):
        rows = table.matrix.rows(np.arange(first, min(first + _BLOCK, len(table))))[:, chosen]
        yes, no = ((rows == state).astype(np.float32) for state in (Label.POSITIVE, Label.NEGATIVE))
        both += yes.T @ yes
        absent += yes.T @ no
        known += (rows != Label.UNKNOWN).sum(0)
    count = positives[chosen]
    share = count / np.maximum(known, 1)
    display = [table.classes.display[c] for c in chosen]
    # Every positive of a class is a positive of the other; by chance, that has the probability share ** count.
    overall = count / max(len(table), 1)
    inside = (both == count[:, None]) & (overall[None] ** count[:, None] < CHANCE)
    np.fill_diagonal(inside, False)
    equal = [(a, b) for a, b in np.argwhere(inside & inside.T).tolist() if a < b]
    text = "always together: the model cannot tell them apart. Join them (data.rename), or add photos with one of them."
    yield from counted_finding(
        "warning",
        "always-together",
        [f"{display[a]} = {display[b]} ({count[a]})" for a, b in equal],
        ("pair of classes occurs", "pairs of classes occur"),
        text,
        f"{name}: ",
    )
    implied = np.argwhere(inside & ~inside.T).tolist()
    yield from counted_finding(
        "note",
        "only-with",
        [f"{display[a]} only with {display[b]} ({count[a]})" for a, b in implied],
        ("class occurs", "classes occur"),
        "only in photos that also have another class. If that is not a rule, add photos with the first alone.",
        f"{name}: ",
    )
    # Both directions must be surprising, and no image may have both.
    surprise = (1 - np.minimum(share, 1))[None] ** absent
    never = (both == 0) & (surprise < CHANCE) & (surprise.T < CHANCE)
    pairs = [(a, b) for a, b in np.argwhere(never).tolist() if a < b]
    pairs.sort(key=lambda pair: -float(min(absent[pair], absent[pair[::-1]])))
    yield from counted_finding(
        "note",
        "never-together",
        [f"{display[a]} and {display[b]}" for a, b in pairs],
        ("pair of classes never occurs", "pairs of classes never occur"),
        "together, though they are frequent. If they exclude each other, say so: data.at_most_one or data.exactly_one.",
        f"{name}: ",
    )
