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

from fewtags.labels import Label
from fewtags.seeds import rng

Values = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Cells:
    """What an order knows about N images and C classes.

    Attributes:
        logits: [N, C] of the model.
        labels: int8 [N, C], values of `Label`.
        prob: float64 [N, C], calibrated probabilities.
        expected: float64 [C], expected positives among the unknown cells.
    """

    logits: NDArray[np.floating]
    labels: NDArray[np.int8]
    prob: NDArray[np.float64]
    expected: NDArray[np.float64]

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
    return -np.abs(np.log(np.maximum(cells.rank, 1)) - np.log(cut))


ORDERS: Mapping[str, Callable[[Cells, int], Values]] = {
    "random": random_cells,
    "complete-images": complete_images,
    "uncertainty": uncertainty,
    "best": best_of_each_class,
    "near-cut": near_cut,
}
"""Orders by name."""
DEFAULT_ORDER = "best"


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
