"""Nearest neighbours by cosine, and the share with a common class: evaluates a backbone without training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.ranking import ratio

BLOCK = 512


@final
@dataclass(frozen=True)
class NeighbourReport:
    """Precision of the nearest images.

    Attributes:
        k: number of neighbours of each image.
        images: number of images with a known positive class, at least one neighbour that can be judged, and at least
            one other image that is known to differ. Without the last, the share is 1 whatever the features are.
        precision: share of the judged neighbours that have a known positive class in common with the image, averaged
            over these images; nan if there are none.
        chance: the same share among all other images, which random neighbours reach.
    """

    k: int
    images: int
    precision: float
    chance: float


def unit(features: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Features scaled to length 1; a row of zeros does not change."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    scaled: Float[Array, "n d"] = features / np.maximum(length, np.finfo(np.float32).tiny)
    return scaled


def highest(scores: Float[Array, "q n"], k: int) -> tuple[Int64[Array, "q k"], Float[Array, "q k"]]:
    """The columns of the k (1..n) highest scores of each row, and these scores, in descending order.

    Of equal scores the earlier column comes first, also at the k-th place, which `torch.topk` does not guarantee.

    >>> highest(np.array([[0.1, 0.9, 0.5, 0.9]]), 3)[0].tolist()
    [[1, 3, 2]]
    """
    chosen = np.zeros((len(scores), k), np.int64)
    for row, ascending in enumerate(-scores):
        last = np.partition(ascending, k - 1)[k - 1]
        # The negation keeps NaN, which is sorted last, as a candidate if it is needed.
        candidates = np.flatnonzero(~(ascending > last))
        chosen[row] = candidates[np.argsort(ascending[candidates], kind="stable")[:k]]
    return chosen, np.take_along_axis(scores, chosen, 1)


def nearest(
    features: Float[Array, "n d"], queries: Int64[Array, " q"], k: int
) -> tuple[Int64[Array, "q k"], Float[Array, "q k"]]:
    """The k other images nearest to each query (a row of `features`) by cosine, nearest first, and the cosines.

    Raises DataError if there are fewer than k other images.
    """
    if k > len(features) - 1:
        raise DataError(f"{k} neighbours need {k + 1} images, got {len(features)}; ask for fewer.")
    vectors = unit(features)
    cosine = vectors[queries] @ vectors.T
    cosine[np.arange(len(queries)), queries] = -np.inf
    return highest(cosine, k)


def some_pair_differs(labels: Int8[Array, "n c"]) -> bool:
    """Whether any image is known to share no class with another one; `neighbour_precision` is nan otherwise.

    >>> some_pair_differs(np.array([[1, 0], [0, 1]], np.int8)), some_pair_differs(np.array([[1, -1], [-1, 1]], np.int8))
    (False, True)
    """
    positive, negative = ((labels == state).astype(np.float32) for state in (Label.POSITIVE, Label.NEGATIVE))
    count = positive.sum(1, keepdims=True)
    return bool(((positive @ negative.T == count) & (count > 0)).any())


def neighbour_precision(features: Float[Array, "n d"], labels: Int8[Array, "_ c"], k: int = 10) -> NeighbourReport:
    """Precision of the k nearest images, for labels that may be partial.

    A neighbour is correct if it shares a known positive class with the image, and wrong if all known positive classes
    of the image are known negatives of it. Other neighbours are left out, and so are images without a known positive
    and images from which no other image is known to differ (positives only). Raises DataError if `features` and
    `labels` have different numbers of images, or there are fewer than k other images.
    """
    if len(features) != len(labels):
        raise DataError(f"features are of {len(features)} images and labels of {len(labels)}; give the same images.")
    positive = (labels == Label.POSITIVE).astype(np.float32)
    known_negative = (labels == Label.NEGATIVE).astype(np.float32)
    queries = np.flatnonzero(positive.any(1))
    precisions, chances = [], []
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK]
        near, _ = nearest(features, rows, k)
        correct = positive[rows] @ positive.T > 0
        wrong = positive[rows] @ known_negative.T == positive[rows].sum(1, keepdims=True)
        for judged in (correct, wrong):
            judged[np.arange(len(rows)), rows] = False
        near_correct, near_wrong = (np.take_along_axis(judged, near, 1).sum(1) for judged in (correct, wrong))
        precisions.append(np.where(wrong.any(1), ratio(near_correct, near_correct + near_wrong), np.nan))
        chances.append(ratio(correct.sum(1), correct.sum(1) + wrong.sum(1)))
    precision = np.concatenate(precisions) if precisions else np.zeros(0)
    counted = ~np.isnan(precision)
    if not counted.any():
        return NeighbourReport(k, 0, math.nan, math.nan)
    chance = np.concatenate(chances)[counted]
    return NeighbourReport(k, int(counted.sum()), float(precision[counted].mean()), float(chance.mean()))
