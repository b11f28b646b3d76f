"""Rows of pictures: a photo and its nearest neighbours by the features of an encoder (figures 4 to 6 of MLS)."""

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
class NeighbourPhoto:
    """One photo of a row.

    Attributes:
        picture: a data URI.
        name: its key.
        cosine: to the query; None for the query itself.
        tags: names of its known positive classes.
        right: whether it shares a known positive class with the query; None if that is unknown.
    """

    picture: str
    name: str
    cosine: float | None
    tags: tuple[str, ...]
    right: bool | None


@final
@dataclass(frozen=True)
class NeighbourRows:
    """Queries, each followed by its neighbours, nearest first, of all `photos` that were searched.

    `report` is the precision of neighbours against the labels; None without labels.
    """

    rows: tuple[tuple[NeighbourPhoto, ...], ...]
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
    tick: Tick | None = None,
) -> NeighbourRows:
    """Find the `k` nearest photos of a few randomly chosen photos, the `queries`.

    At most `most` photos are searched, chosen at random by `seed`, in the test view of `policy`. If the table has
    classes, its labels decide which neighbours are correct. `tick` is called with the number of photos that are done.

    Raises:
        DataError: there are fewer than two photos, or one cannot be read.
    """
    if len(table) < 2:
        raise DataError(f"neighbours need two photos or more, got {len(table)}.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(table))[:most])
    searched = table.subset(chosen)
    features = photo_features(encoder, searched, policy, device, tick=tick)
    labels = searched.matrix.dense()
    has_positive = (labels == Label.POSITIVE).any(1) if labels.shape[1] else np.ones(len(searched), np.bool_)
    chosen_queries = rng.permutation(np.flatnonzero(has_positive))[:queries]
    k = min(k, len(searched) - 1)
    near, cosines = nearest(features, chosen_queries, k)
    rows = []
    for query, others, similar in zip(chosen_queries, near, cosines, strict=True):
        line = [_tile(searched, labels, int(query), int(query), None)]
        line += [_tile(searched, labels, int(n), int(query), float(s)) for n, s in zip(others, similar, strict=True)]
        rows.append(tuple(line))
    report = neighbour_precision(features, labels, k) if labels.shape[1] else None
    return NeighbourRows(tuple(rows), len(searched), report)


def _tile(table: LabelTable, labels: NDArray[np.int8], n: int, query: int, cosine: float | None) -> NeighbourPhoto:
    pixels, _ = read_through(photos_of(table).path(n), WholeImage(THUMB).test_view, THUMB)
    positive = labels[n] == Label.POSITIVE
    tags = tuple(table.classes.display[c] for c in np.flatnonzero(positive))
    wanted = labels[query] == Label.POSITIVE
    right = None
    if cosine is not None and wanted.any():
        shared, excluded = (positive & wanted).any(), (labels[n][wanted] == Label.NEGATIVE).all()
        right = True if shared else False if excluded else None
    return NeighbourPhoto(jpeg(pixels), str(table.images[n].as_py()), cosine, tags, right)
