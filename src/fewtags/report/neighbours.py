"""Rows of pictures: a photo, and the photos that an encoder puts nearest to it (figures 4 to 6 of MLS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.neighbours import NeighbourReport, nearest, neighbour_precision
from fewtags.nets.encoder import Encoder
from fewtags.photos.augment import Policy, WholeImage
from fewtags.photos.dataset import read_through
from fewtags.photos.scan import Tick
from fewtags.report.figures import jpeg
from fewtags.table.table import LabelTable
from fewtags.transfer.features import photo_features, photos_of

THUMB = 112
"""Side of a picture in pixels."""


@final
@dataclass(frozen=True)
class Tile:
    """One photo of a row.

    Attributes:
        picture: a data URI.
        name: its key.
        cosine: to the query; None for the query itself.
        tags: names of its known positive classes.
        right: whether it shares a known positive class with the query; None where that is not known.
    """

    picture: str
    name: str
    cosine: float | None
    tags: tuple[str, ...]
    right: bool | None


@final
@dataclass(frozen=True)
class Rows:
    """Queries with their neighbours, and how good neighbours are on the whole.

    Attributes:
        rows: the query first, then its neighbours, nearest first.
        photos: among how many.
        report: against the labels; None without labels.
    """

    rows: tuple[tuple[Tile, ...], ...]
    photos: int
    report: NeighbourReport | None


def neighbour_rows(
    encoder: Encoder,
    table: LabelTable,
    policy: Policy,
    device: torch.device,
    *,
    queries: int = 8,
    k: int = 10,
    most: int = 2000,
    seed: int = 0,
    workers: int = 0,
    tick: Tick | None = None,
) -> Rows:
    """Look for the nearest photos of a few.

    Args:
        encoder: gives the features.
        table: the photos; its labels, if it has classes, judge the neighbours.
        policy: through whose test view the encoder sees them.
        device: where the encoder works.
        queries: how many rows.
        k: neighbours each.
        most: look at so many photos, drawn at random, where there are more.
        seed: draws photos and queries.
        workers: processes that read photos.
        tick: told about progress.

    Raises:
        DataError: too few photos, or one that cannot be read.
    """
    if len(table) < 2:
        raise DataError(f"neighbours need two photos or more, got {len(table)}.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(table))[:most])
    looked = table.subset(chosen)
    features = photo_features(encoder, looked, policy, device, workers=workers, tick=tick)
    labels = looked.matrix.dense()
    told = (labels == Label.POSITIVE).any(1) if labels.shape[1] else np.ones(len(looked), np.bool_)
    asked = rng.permutation(np.flatnonzero(told))[:queries]
    k = min(k, len(looked) - 1)
    near, cosines = nearest(features, asked, k)
    rows = []
    for query, others, similar in zip(asked, near, cosines, strict=True):
        line = [_tile(looked, labels, int(query), int(query), None)]
        line += [_tile(looked, labels, int(n), int(query), float(s)) for n, s in zip(others, similar, strict=True)]
        rows.append(tuple(line))
    report = neighbour_precision(features, labels, k) if labels.shape[1] else None
    return Rows(tuple(rows), len(looked), report)


def _tile(table: LabelTable, labels: NDArray[np.int8], n: int, query: int, cosine: float | None) -> Tile:
    pixels, _ = read_through(photos_of(table).path(n), WholeImage(THUMB).test_view, THUMB)
    positive = labels[n] == Label.POSITIVE
    tags = tuple(table.classes.display[c] for c in np.flatnonzero(positive))
    wanted = labels[query] == Label.POSITIVE
    right = None
    if cosine is not None and wanted.any():
        shared, excluded = (positive & wanted).any(), (labels[n][wanted] == Label.NEGATIVE).all()
        right = True if shared else False if excluded else None
    return Tile(jpeg(pixels), str(table.images[n].as_py()), cosine, tags, right)
