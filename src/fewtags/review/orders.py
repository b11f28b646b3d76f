"""Orders of questions: what to ask first. Pure functions of logits, label states and expected counts.

An order gives every cell (an image and a class) a value; the highest is asked first. Known cells are never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fewtags.labels import Label
from fewtags.seeds import rng

Values = NDArray[np.float64]
MOST_CANDIDATES = 300
"""Cells of a class that the order `diverse` compares."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Cells:
    """What an order knows about N images and C classes.

    Attributes:
        logits: [N, C] of the model.
        labels: int8 [N, C], values of `Label`.
        prob: float64 [N, C], calibrated probabilities.
        expected: float64 [C], expected positives among the unknown cells.
        features: [N, d], what says how alike two photos are; None: the logits.
    """

    logits: NDArray[np.floating]
    labels: NDArray[np.int8]
    prob: NDArray[np.float64]
    expected: NDArray[np.float64]
    features: NDArray[np.floating] | None = None

    @cached_property
    def unknown(self) -> NDArray[np.bool_]:
        """Bool [N, C]: the cells that can be asked about."""
        return np.asarray(self.labels == Label.UNKNOWN)

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """int64 [N, C]: 1 for the most probable unknown cell of each class, and so on; 0 for known cells.

        Logits give the same order as probabilities, but large ones do not tie at 1. Of equal ones, the first image
        comes first.
        """
        order = np.argsort(np.where(self.unknown, -self.logits, np.inf), axis=0, kind="stable")
        rank = np.empty(order.shape, np.int64)
        np.put_along_axis(rank, order, np.arange(1, len(order) + 1)[:, None], axis=0)
        return np.where(self.unknown, rank, 0)

    @cached_property
    def ignored(self) -> NDArray[np.bool_]:
        """Bool [N, C]: expected positives, which EN ignores; it takes other unknown cells for negative."""
        return np.asarray(self.unknown & (self.rank <= np.round(self.expected)))


def random_cells(cells: Cells, seed: int) -> Values:
    """Unknown cells at random."""
    return rng(seed, 0, 0).random(cells.labels.shape)


def complete_images(cells: Cells, seed: int) -> Values:
    """All unknown cells of one random image after the other."""
    n, c = cells.labels.shape
    return np.repeat(rng(seed, 0, 0).permutation(n)[:, None], c, 1).astype(np.float64)


def uncertainty(cells: Cells, seed: int) -> Values:
    """Calibrated probabilities next to one half."""
    del seed
    return -np.abs(cells.prob - 0.5)


def best_of_each_class(cells: Cells, seed: int) -> Values:
    """First ranks of all classes first; within a rank, the most probable."""
    del seed
    return cells.prob - cells.rank


def near_cut(cells: Cells, seed: int) -> Values:
    """Ranks next to the number of expected positives (EN ignores those before it), as a ratio."""
    del seed
    cut = np.maximum(cells.expected, 1.0)
    return np.asarray(-np.abs(np.log(np.maximum(cells.rank, 1)) - np.log(cut)), np.float64)


def diverse(cells: Cells, seed: int) -> Values:
    """The most probable cells of each class, each as unlike those before it as can be (farthest first).

    Candidates are the unknown cells up to twice the expected number of positives, at most `MOST_CANDIDATES` for each
    class. Photos are compared by the cosine of their features.
    """
    del seed
    x = cells.logits if cells.features is None else cells.features
    x = (x - x.mean(0)) / np.maximum(np.linalg.norm(x - x.mean(0), axis=1, keepdims=True), 1e-12)
    values = -1e6 - cells.rank.astype(np.float64)
    for c, expected in enumerate(cells.expected):
        wide = min(max(2 * round(float(expected)), 10), MOST_CANDIDATES)
        own = np.flatnonzero(cells.unknown[:, c] & (cells.rank[:, c] <= wide))
        if len(own):
            values[_farthest_first(x[own], int(np.argmin(cells.rank[own, c])), own), c] = -np.arange(len(own))
    return values


def _farthest_first(x: NDArray[np.floating], first: int, names: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `names` in an order in which every next row of x is the least alike to all before; `first` comes first."""
    similar = x @ x[first]
    order, left = [first], np.ones(len(x), np.bool_)
    left[first] = False
    for _ in range(len(x) - 1):
        following = int(np.argmin(np.where(left, similar, np.inf)))
        order.append(following)
        left[following] = False
        similar = np.maximum(similar, x @ x[following])
    return names[order]


def expected_change(cells: Cells) -> Values:
    """Return how much an answer is expected to change the loss's gradient at a cell, squared, float64 [N, C].

    With f the model's probability and q the calibrated one, the gradient of a cell with respect to its logit is f - 1
    if it is known to be positive, and f if it is known to be negative or taken for it; it is 0 if the loss ignores it.

    - A cell that the loss takes for negative: a "no" changes nothing, and a "yes" changes the gradient by 1. The
      expected change is q.
    - A cell that the loss ignores: q (1 - f)^2 + (1 - q) f^2.
    """
    f, q = expit(np.asarray(cells.logits, np.float64)), cells.prob
    change = np.where(cells.ignored, q * (1 - f) ** 2 + (1 - q) * f**2, q)
    return np.where(cells.unknown, change, 0.0)


def gain(cells: Cells, seed: int) -> Values:
    """Expected change of the gradient by the answer (`expected_change`), relative to the positives of its class.

    mAP counts every class alike, and one answer is a larger part of a class with few positives.
    """
    del seed
    found = (cells.labels == Label.POSITIVE).sum(0)
    return np.asarray(expected_change(cells) / np.sqrt(np.maximum(found + cells.expected, 1.0)), np.float64)


def balanced(cells: Cells, seed: int) -> Values:
    """Half of the questions in the order `best`, half in the order `gain`, in turns; a cell keeps its better place.

    `gain` finds cells that change the loss most, and `best` gives every class its share: hard negatives and positives
    at the top of its ranking, which decide its AP.
    """
    places = [_place(cells, order(cells, seed)) for order in (best_of_each_class, gain)]
    return -np.minimum(*places).astype(np.float64)


def _place(cells: Cells, values: Values) -> NDArray[np.int64]:
    """Return the place of every cell, int64 [N, C] from 0; known cells come last."""
    order = np.argsort(np.where(cells.unknown, -values, np.inf), axis=None, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return place.reshape(values.shape)


ORDERS: Mapping[str, Callable[[Cells, int], Values]] = {
    "random": random_cells,
    "complete-images": complete_images,
    "uncertainty": uncertainty,
    "best": best_of_each_class,
    "near-cut": near_cut,
    "diverse": diverse,
    "gain": gain,
    "balanced": balanced,
}
"""Orders by name."""
DEFAULT_ORDER = "balanced"


def choose(
    cells: Cells, values: Values, limit: int, per_class: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the images and classes, int64 [k] each, of the unknown cells with the highest values, best first.

    At most `limit` cells, and at most `per_class` of one class. Of equal values, the first cell comes first.
    """
    flat = np.where(cells.unknown, values, -np.inf).ravel()
    order = np.argsort(-flat, kind="stable")[: int(cells.unknown.sum())]
    if per_class is not None:
        class_ = order % cells.labels.shape[1]
        by_class = np.argsort(class_, kind="stable")
        sizes = np.bincount(class_, minlength=cells.labels.shape[1])
        start = np.repeat(np.cumsum(sizes) - sizes, sizes)
        number = np.empty(len(order), np.int64)
        number[by_class] = np.arange(len(order)) - start
        order = order[number < per_class]
    image, class_ = np.divmod(order[:limit], cells.labels.shape[1])
    return image, class_
