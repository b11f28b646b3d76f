"""Random crops and their nearest crops by the features of an encoder: the positives of MLS (Zhu et al., ICCV 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.geometry import View
from fewtags.metrics.neighbours import nearest
from fewtags.nets.encoder import Encoder, pooled
from fewtags.photos.augment import ResizedCrop
from fewtags.photos.dataset import read_through
from fewtags.photos.loader import Collate
from fewtags.photos.scan import Tick
from fewtags.seeds import rng
from fewtags.table.table import LabelTable
from fewtags.transfer.features import BATCH, photos_of

SMALLEST = 0.2
"""Smallest share of the photo in a crop, as in pretraining."""


@final
@dataclass(frozen=True)
class Crop:
    """A crop of a photo: its box (x0, y0, x1, y1) in 0..1, and its cosine to the query; None for the query itself."""

    key: str
    box: tuple[float, float, float, float]
    cosine: float | None


@torch.inference_mode()
def nearest_crops(
    encoder: Encoder,
    table: LabelTable,
    size: int,
    device: torch.device,
    *,
    queries: int = 6,
    k: int = 5,
    most: int = 4096,
    seed: int = 0,
    tick: Tick | None = None,
) -> list[list[Crop]]:
    """Draw one random crop of each photo, and find the `k` nearest crops of a few of them by cosine.

    MLS takes the neighbours from its queue of 4,096 keys; here it is one crop of each of at most `most` photos. The
    crops are pretraining's: a fifth of the photo or more, sides 3:4 to 4:3; their colours are not changed.

    Raises:
        DataError: there are fewer than two photos, or one cannot be read.
    """
    if len(table) < 2:
        raise DataError(f"neighbours need two photos or more, got {len(table)}.")
    order = np.random.default_rng(seed).permutation(len(table))
    chosen = np.sort(order[:most])
    photos, policy = photos_of(table), ResizedCrop(size, (SMALLEST, 1.0), flip=False)
    collate = Collate(encoder.preprocessing.mean, encoder.preprocessing.std)
    encoder.to(device).eval()
    views: list[View] = []
    pieces: list[NDArray[np.float32]] = []
    for first in range(0, len(chosen), BATCH):
        pixels = []
        for n in chosen[first : first + BATCH].tolist():
            crop, view = read_through(photos.path(n), partial(policy.sample, rng(seed, 0, n)), size)
            pixels.append(crop)
            views.append(view)
        pieces.append(pooled(encoder.features(collate.pixels(pixels, device))).float().cpu().numpy())
        if tick is not None:
            tick(len(views), len(chosen))
    features = np.concatenate(pieces)
    k = min(k, len(chosen) - 1)
    # The first photos of the random order, which are all among the chosen ones.
    asked = np.searchsorted(chosen, order[: min(queries, len(chosen))])
    near, cosines = nearest(features, asked, k)
    keys = table.images.take(chosen).to_pylist()

    def crop_of(n: int, cosine: float | None) -> Crop:
        (x0, y0), (x1, y1) = views[n].to_image(np.array([[0.0, 0.0], [1.0, 1.0]])).tolist()
        return Crop(keys[n], (x0, y0, x1, y1), cosine)

    return [
        [crop_of(int(query), None), *(crop_of(int(n), float(s)) for n, s in zip(others, similar, strict=True))]
        for query, others, similar in zip(asked, near, cosines, strict=True)
    ]
