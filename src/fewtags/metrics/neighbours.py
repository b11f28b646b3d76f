"""Are images that lie near each other alike? Needs no training, so it tells what a backbone learned by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int8, Int64
from numpy import ndarray as Array

from fewtags.errors import DataError
from fewtags.labels import Label

BLOCK = 512


@final
@dataclass(frozen=True)
class NeighbourReport:
    """How many of the nearest images share a class.

    Attributes:
        k: neighbours looked at per image.
        images: images with a known positive class and a neighbour that can be judged.
        precision: share of judged neighbours that have a known positive class in common, the mean over images; nan if
            there is no such image.
        chance: the same of all other images, which random neighbours would reach.
    """

    k: int
    images: int
    precision: float
    chance: float


def nearest(
    features: Float[Array, "n d"], queries: Int64[Array, " q"], k: int
) -> tuple[Int64[Array, "q k"], Float[Array, "q k"]]:
    """The k images nearest to each query by cosine, nearest first, itself left out; and the cosines.

    Args:
        features: of all images; any length but zero.
        queries: rows of `features`.
        k: at most n - 1.

    Raises:
        DataError: fewer than k other images.
    """
    if k > len(features) - 1:
        raise DataError(f"{k} neighbours need {k + 1} images, got {len(features)}; ask for fewer.")
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    cosine = unit[queries] @ unit.T
    cosine[np.arange(len(queries)), queries] = -np.inf
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(cosine, order, 1)


def neighbour_precision(features: Float[Array, "n d"], labels: Int8[Array, "_ c"], k: int = 10) -> NeighbourReport:
    """Precision of the k nearest images, against labels that may be partial.

    A neighbour is right if a class is a known positive of both, wrong if all of the image's known positives are known
    negatives of it, and not judged otherwise. Images without a known positive are not asked about.

    Raises:
        DataError: features and labels of another number of images; fewer than k other images.
    """
    if len(features) != len(labels):
        raise DataError(f"features are of {len(features)} images and labels of {len(labels)}; give the same images.")
    positive = (labels == Label.POSITIVE).astype(np.float32)
    known_negative = (labels == Label.NEGATIVE).astype(np.float32)
    asked = np.flatnonzero(positive.any(1))
    found, chances = [], []
    for start in range(0, len(asked), BLOCK):
        rows = asked[start : start + BLOCK]
        near, _ = nearest(features, rows, k)
        right = positive[rows] @ positive.T > 0
        wrong = positive[rows] @ known_negative.T == positive[rows].sum(1, keepdims=True)
        for judged in (right, wrong):
            judged[np.arange(len(rows)), rows] = False
        chosen = [np.take_along_axis(judged, near, 1).sum(1) for judged in (right, wrong)]
        found.append(_share(*chosen))
        chances.append(_share(right.sum(1), wrong.sum(1)))
    precision = np.concatenate(found) if found else np.zeros(0)
    counted = ~np.isnan(precision)
    if not counted.any():
        return NeighbourReport(k, 0, math.nan, math.nan)
    chance = np.concatenate(chances)[counted]
    return NeighbourReport(k, int(counted.sum()), float(precision[counted].mean()), float(chance.mean()))


def _share(right: Array, wrong: Array) -> Float[Array, " q"]:
    """Right of all that is judged; nan where nothing is."""
    judged = (right + wrong).astype(np.float64)
    share: Array = np.divide(right, judged, out=np.full(len(judged), np.nan), where=judged > 0)
    return share
