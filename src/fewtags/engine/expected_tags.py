"""K from photos with one tag each: their features by a frozen trunk, then `tag_counts`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.engine.expected import Estimate
from fewtags.engine.machine import prepare_process
from fewtags.engine.sources import head_inputs
from fewtags.engine.tag_counts import MOST_PHOTOS, TRUE_OVER_ESTIMATE, tag_counts
from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.nets.backbones import create_net
from fewtags.nets.weights import OFFLINE_BACKBONE
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers
from fewtags.seeds import rng
from fewtags.table.table import LabelTable
from fewtags.text import counted

SIZE, BATCH = 224, 16
HARDLY = 0.1
"""Share of the tags' entropy below which photos hardly tell their tags."""


def from_tags(
    table: LabelTable,
    device: torch.device,
    *,
    weights: str = "offline",
    seed: int = 0,
    workers: int = 0,
    tick: Tick | None = None,
) -> Estimate:
    """Estimate without complete labels, from one known positive of each photo; see `metrics.counts.counts_from_tags`.

    Known negatives are not used. Of several positives of a photo, one is drawn. At most `MOST_PHOTOS` photos are read.

    Raises:
        DataError: too few photos with a positive, or a photo cannot be read.
    """
    rows, tag = drawn_tags(table, seed)
    chosen = table.subset(rows)
    found = tag_counts(_features(chosen, device, weights, workers, tick), tag, len(table.classes), seed)
    observed = float((table.matrix.image_counts(Label.POSITIVE)[rows]).mean())
    low, high = (min(max(found.mean * factor, observed), len(table.classes)) for factor in TRUE_OVER_ESTIMATE)
    mean = min(max(found.mean, observed), len(table.classes))
    less, more = TRUE_OVER_ESTIMATE
    high_by, low_by = 100 * (1 / less - 1), 100 * (1 - 1 / more)
    notes = [
        "assumes that the tag of a photo is any of its classes with equal probability, and that the class that the "
        "photos make most probable is in the photo.",
        f"on our four sets, and with halves of their classes, the estimate was off by up to {high_by:.0f} %: from "
        f"{low_by:.0f} % too low to {high_by:.0f} % too high. The range is that of these errors, not a confidence "
        "interval. A hundred completely labelled photos are far better: --ask 100.",
    ]
    if found.explained < HARDLY:
        notes.append(
            f"warning: the photos explain {100 * found.explained:.0f} % of what the tags say; where it was below "
            f"{100 * HARDLY:.0f} %, the estimate was up to {1 / less:.1f} times the true K."
        )
    return Estimate(
        classes=table.classes,
        kind="tags",
        mean=mean,
        interval=(low, high),
        prior=np.minimum(found.prior, 1.0),
        prior_interval=np.full((len(table.classes), 2), np.nan),
        meaning="range of our errors",
        source=f"one tag of {counted(found.photos, 'photo')}, by features of a frozen {OFFLINE_BACKBONE}",
        notes=tuple(notes),
    )


def drawn_tags(table: LabelTable, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return at most `MOST_PHOTOS` photos with a positive, in their order, and one positive class of each."""
    labels = table.matrix
    some = np.flatnonzero(labels.image_counts(Label.POSITIVE))
    if not len(some):
        raise DataError("no photo has a positive label, so there is nothing to estimate from; use --ask 100.")
    rows = np.sort(rng(seed, 0, 1).permutation(some)[:MOST_PHOTOS])
    positive = labels.rows(rows) == Label.POSITIVE
    # The largest of uniform numbers is any of them with equal probability.
    tag = np.where(positive, rng(seed, 0, 2).random(positive.shape), -1.0).argmax(1)
    return rows, tag.astype(np.int64)


def _features(
    table: LabelTable, device: torch.device, weights: str, workers: int, tick: Tick | None
) -> NDArray[np.float32]:
    prepare_process()
    net = create_net(OFFLINE_BACKBONE, 1, weights=weights, size=SIZE).to(device)
    pre = net.preprocessing
    photos = PhotoFolder(table.require_root(), table.images)
    loader = EvalLoader(
        EvalSet(photos, table.matrix, WholeImage(SIZE)),
        BATCH,
        Collate(pre.mean, pre.std),
        Workers(workers, pin_memory=device.type == "cuda"),
        device=device,
    )

    def counted_photos(done: int, _: int) -> None:
        if tick is not None:
            tick(done, len(table))

    found: NDArray[np.float32] = head_inputs(net, loader, device, counted_photos, pooled=True)[:, :, 0, 0].numpy()
    return found
