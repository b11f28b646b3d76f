"""Simulate weaker labels from fuller ones: one positive per image, or a share of the labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label, LabelMatrix
from fewtags.table.keyed_random import content_hashes, mixed, seeded, uniform
from fewtags.table.table import MAX_COMPLETE_SETS, LabelTable, implied_facts
from fewtags.text import quoted

COLE_SEED = 1200
"""The seed of Cole et al. (Multi-Label Learning from Single Positive Labels, CVPR 2021), for labels and split."""

MOST_CELLS = 30_000_000
"""The most implied negatives that become facts (about 30 bytes each)."""

_BLOCK = 500_000
_CellDraw = Callable[[NDArray[np.integer], NDArray[np.integer]], NDArray[np.float64]]


def single_positive(table: LabelTable, seed: int, protocol: Literal["plain", "cole"] = "plain") -> LabelTable:
    """Keep one random positive per image and nothing else.

    Images without a positive remain, without a label. The kept class keeps all its locations in the image.

    Args:
        table: the labels; only its positives are used.
        seed: selects the draw. `COLE_SEED` is the seed of the published benchmarks.
        protocol: "plain": each draw depends only on the seed, the image key and the class ids. "cole": the draw of Cole
            et al., bit for bit; it depends on the order of images and classes and needs full labels. They draw before
            they split, see `cole_split`.

    Raises:
        DataError: "cole" with unknown cells.
        ConfigError: another protocol, or a seed that "cole" does not accept.
    """
    labels = table.matrix
    if protocol == "cole":
        if len(lacking := np.flatnonzero(labels.image_counts(Label.UNKNOWN))):
            raise DataError(
                f"the protocol of Cole et al. needs full labels, but {len(lacking):,} of {len(table):,} images have "
                f"unknown classes (the first: {quoted(table.images[int(lacking[0])].as_py())}). Read the annotations "
                "as complete, or use the protocol 'plain'."
            )
        observed = cole_observe(labels, seed=seed)
        image, class_ = np.repeat(np.arange(len(table)), np.diff(observed.indptr)), observed.classes
    elif protocol == "plain":
        # The positive with the smallest random number in each image.
        positive = labels.states == Label.POSITIVE
        image = np.repeat(np.arange(len(table)), np.diff(labels.indptr))[positive]
        class_ = labels.classes[positive]
        order = np.lexsort((_cell_draw(table, seed)(image, class_), image))
        first = order[np.flatnonzero(np.diff(image, prepend=-1))]
        image, class_ = image[first], class_[first]
    else:
        raise ConfigError(f"protocol {protocol!r} is not known; known: plain, cole.")
    chosen = np.full(len(table), -1)
    chosen[image] = class_
    kept = chosen[table.facts["image"].to_numpy()] == table.facts["class"].to_numpy()
    kept &= table.facts["state"].to_numpy() == Label.POSITIVE
    result = table.with_facts(table.facts.filter(pa.array(kept)))
    return result.noting(f"simulated one positive per image ({protocol}, seed {seed}): {_difference(table, result)}")


def cole_observe(
    labels: LabelMatrix, positives: int | None = 1, negatives: int | None = 0, seed: int = COLE_SEED
) -> LabelMatrix:
    """Draw labels as Cole et al. do, with one stream of random numbers for all images in order.

    In each image, the positives are shuffled and the first `positives` are kept, then the negatives are shuffled and
    the first `negatives` are kept. The second shuffle advances the stream even if no negative is kept. Every class that
    is not positive counts as negative.

    The labels must be full, and the order of images and classes matters. None keeps all positives or negatives. A seed
    that `numpy.random.RandomState` does not accept is a `ConfigError`.
    """
    n, c = labels.shape
    stream = _stream(seed)
    every = np.arange(c)  # 8-byte integers: numpy shuffles these fastest.
    classes, states = [], []
    for image in range(n):
        entries = slice(labels.indptr[image], labels.indptr[image + 1])
        positive = labels.classes[entries][labels.states[entries] == Label.POSITIVE].astype(np.int64)
        negative = every[: c - len(positive)].copy()
        if negatives != 0:  # Otherwise any array of this length draws the same numbers.
            negative = np.setdiff1d(every, positive, assume_unique=True)
        stream.shuffle(positive)
        stream.shuffle(negative)
        row = np.zeros(c, np.int8)
        row[negative[:negatives]], row[positive[:positives]] = Label.NEGATIVE, Label.POSITIVE
        classes.append(np.flatnonzero(row))
        states.append(row[classes[-1]])
    return LabelMatrix(
        np.cumsum([0, *map(len, classes)], dtype=np.int64),
        np.concatenate([every[:0], *classes]).astype(np.int32),
        np.concatenate([np.zeros(0, np.int8), *states]),
        np.full(n, -1, np.int16),
        np.zeros((0, c), np.bool_),
    )


def _stream(seed: int) -> np.random.RandomState:
    """Numpy's legacy generator, which made the published labels."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"the seed is {seed}, but the protocol of Cole et al. accepts 0 to {2**32 - 1}.")
    return np.random.RandomState(seed)


def cole_split(n: int, val: float = 0.2, seed: int = COLE_SEED) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the training and the validation images of Cole et al., each ascending.

    They divide the `n` images of the official training set. A share `val` for validation outside (0, 1), or a seed that
    `numpy.random.RandomState` does not accept, is a `ConfigError`.
    """
    if not 0 < val < 1:
        raise ConfigError(f"the share of 'val' is {val}; expected a share above 0 and below 1 (0.2 for a fifth).")
    order = _stream(seed).permutation(n)
    train = n - round(n * val)
    return np.sort(order[:train]), np.sort(order[train:])


def keep(table: LabelTable, *, positives: float, negatives: float, seed: int) -> LabelTable:
    """Keep random shares, in [0, 1], of the positive and of the negative labels; the others become unknown.

    The draw of each label depends on the seed, its image key and its class id: a larger share contains a smaller one,
    and a subset of the images gives the same draws. Kept labels keep all their facts and locations. Images without a
    label remain. Cells with contradicting facts stay unknown.

    Implied negatives of completely annotated images: with a share of 1, the images remain complete for all classes
    except the positives that they lost; with 0, no image remains complete; otherwise the kept ones become facts.

    Raises:
        ConfigError: a share outside [0, 1].
        DataError: too many implied negatives become facts (`MOST_CELLS`).
    """
    for what, share in (("positives", positives), ("negatives", negatives)):
        if not 0 <= share <= 1:
            raise ConfigError(f"the share of {what} to keep is {share}; expected a share from 0 to 1.")
    labels, draw = table.matrix, _cell_draw(table, seed)
    image, class_ = (table.facts[name].to_numpy().astype(np.int64) for name in ("image", "class"))
    positive = table.facts["state"].to_numpy() == Label.POSITIVE
    unclear = labels.states == Label.UNKNOWN
    owner = np.repeat(np.arange(len(table)), np.diff(labels.indptr))
    disputed = np.isin(table.fact_cells, (owner * len(table.classes) + labels.classes)[unclear])
    kept = disputed | (draw(image, class_) < np.where(positive, positives, negatives))
    lost = positive & ~kept
    complete_set, complete_classes, implied = _thin_implied_negatives(table, draw, negatives, image[lost], class_[lost])
    facts = pa.concat_tables([table.facts.filter(pa.array(kept)), *implied]).unify_dictionaries()
    result = replace(table, facts=facts, complete_set=complete_set, complete_classes=complete_classes)
    shares = f"{positives:.4g} of the positives, {negatives:.4g} of the negatives, seed {seed}"
    return result.noting(f"simulated missing labels ({shares}): {_difference(table, result)}")


def _thin_implied_negatives(
    table: LabelTable, draw: _CellDraw, share: float, image: NDArray[np.int64], class_: NDArray[np.int64]
) -> tuple[NDArray[np.int16], NDArray[np.bool_], list[pa.Table]]:
    """Keep a share of the implied negatives: the new complete sets, and facts for negatives outside of them.

    `image` and `class_` are the lost positives, which must not become implied negatives.
    """
    complete = np.flatnonzero(table.complete_set >= 0)
    if share == 0 or not len(complete):
        return np.full(len(table), -1, np.int16), np.zeros((0, len(table.classes)), np.bool_), []
    if share == 1:
        if (reduced := _without_cells(table.complete_set, table.complete_classes, image, class_)) is not None:
            return *reduced, []
        losers = np.zeros(len(table), np.bool_)
        losers[image] = True
        complete = complete[losers[complete]]
    complete_set = table.complete_set.copy()
    complete_set[complete] = -1
    complete_classes = table.complete_classes if np.any(complete_set >= 0) else table.complete_classes[:0]
    return complete_set, complete_classes, [_implied_facts(table, draw, share, complete)]


def _without_cells(
    complete_set: NDArray[np.int16],
    complete_classes: NDArray[np.bool_],
    image: NDArray[np.int64],
    class_: NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.bool_]] | None:
    """Remove single cells from the complete sets; None if the table would need too many different sets."""
    inside = complete_set[image] >= 0
    inside[inside] = complete_classes[complete_set[image[inside]], class_[inside]]
    order = np.flatnonzero(inside)[np.argsort(image[inside], kind="stable")]
    image, class_ = image[order], class_[order]
    images, row = np.unique(image, return_inverse=True)
    packed = []
    step = max(1, _BLOCK // max(1, complete_classes.shape[1]))
    for start in range(0, len(images), step):
        block = complete_classes[complete_set[images[start : start + step]]]
        here = slice(*np.searchsorted(row, [start, start + step]))
        block[row[here] - start, class_[here]] = False
        packed.append(np.packbits(block, axis=1))
    if not packed:
        return complete_set, complete_classes
    unique, number = np.unique(np.concatenate(packed), axis=0, return_inverse=True)
    if len(complete_classes) + len(unique) > MAX_COMPLETE_SETS:
        return None
    rows = np.unpackbits(unique, axis=1, count=complete_classes.shape[1]).astype(np.bool_)
    reduced = complete_set.copy()
    reduced[images] = len(complete_classes) + number.reshape(-1)
    return reduced, np.concatenate([complete_classes, rows])


def _implied_facts(table: LabelTable, draw: _CellDraw, share: float, images: NDArray[np.int64]) -> pa.Table:
    """A share of the implied negatives of `images`, as facts."""
    expected = share * float(table.complete_classes.sum(1)[table.complete_set[images]].sum())
    if expected > MOST_CELLS:
        raise DataError(
            f"about {expected:,.0f} negatives of completely annotated images would become facts; at most "
            f"{MOST_CELLS:,} are allowed. Keep a smaller share of them, or all (1) or none (0), or use fewer images."
        )
    found = [np.zeros((2, 0), np.int64)]
    step = max(1, _BLOCK // max(1, len(table.classes)))
    for start in range(0, len(images), step):
        block = images[start : start + step]
        row, class_ = table.matrix.implied_negatives(block)
        kept = draw(block[row], class_) < share
        found.append(np.stack([block[row], class_])[:, kept])
    return implied_facts(*np.concatenate(found, axis=1))


def _difference(before: LabelTable, after: LabelTable) -> str:
    parts = [
        f"{after.matrix.counts(state).sum():,} of {before.matrix.counts(state).sum():,} {word} labels kept"
        for state, word in ((Label.POSITIVE, "positive"), (Label.NEGATIVE, "negative"))
    ]
    bare = int((after.matrix.image_counts(Label.UNKNOWN) == len(after.classes)).sum())
    return f"{', '.join(parts)}, {bare:,} of {len(after):,} images without a label"


def _cell_draw(table: LabelTable, seed: int) -> _CellDraw:
    """A function of image and class numbers: random numbers keyed by the seed, the image keys and the class ids."""
    images, classes = content_hashes(table.images.to_pylist()), content_hashes(table.classes.ids)
    return lambda image, class_: uniform(seeded(mixed(images[image], classes[class_]), seed))
