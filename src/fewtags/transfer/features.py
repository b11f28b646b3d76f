"""Feature vectors of photos by a frozen encoder."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.engine.machine import prepare_process
from fewtags.errors import DataError
from fewtags.nets.encoder import Encoder, pooled
from fewtags.photos.augment import Policy
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from fewtags.table.table import LabelTable

BATCH = 64


def photo_features(
    encoder: Encoder,
    table: LabelTable,
    policy: Policy,
    device: torch.device,
    *,
    workers: int = 0,
    shard: Shard = SINGLE_PROCESS,
    tick: Tick | None = None,
) -> NDArray[np.float32]:
    """Compute the mean features of every photo in the policy's test view, in the order of the table.

    Args:
        encoder: put into eval mode and moved to `device`.
        table: the photos; labels are not used.
        policy: augmentation policy whose test view is used.
        device: device of the encoder.
        workers: processes that read photos; 0: this process.
        shard: this process's share of the photos. Collective: every rank must call it and gets all features.
        tick: progress callback over this process's photos.

    Returns:
        float32 [N, d].

    Raises:
        DataError: photos are missing or unreadable; or features are not finite.
    """
    prepare_process()
    photos = photos_of(table)
    pre = encoder.preprocessing
    loader = EvalLoader(
        EvalSet(photos, table.matrix, policy),
        BATCH,
        Collate(pre.mean, pre.std),
        Workers(workers, pin_memory=device.type == "cuda"),
        rank=shard.rank,
        world=shard.world,
        device=device,
    )
    encoder.to(device).eval()
    pieces = [torch.zeros(0, encoder.features_dim, device=device)]  # a process may have no photos
    rows, done = shard.rows(len(table)), 0
    with torch.inference_mode():
        for batch in loader:
            images = batch.images.to(device, memory_format=torch.channels_last)
            pieces.append(pooled(encoder.features(images)).float())
            done += len(batch.index)
            if tick is not None:
                tick(done, rows)
    features: NDArray[np.float32] = shard.gather(torch.cat(pieces), len(table)).cpu().numpy()
    if broken := int((~np.isfinite(features).all(1)).sum()):
        raise DataError(f"the features of {broken:,} of {len(table):,} photos are not finite; check the encoder.")
    return features


def photos_of(table: LabelTable) -> PhotoFolder:
    """Return the files of a table.

    Raises:
        DataError: the folder of the photos is unknown.
    """
    return PhotoFolder(table.require_root(), table.images)
