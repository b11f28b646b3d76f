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
    """Compute the mean features float32 [N, d] of every photo in the policy's test view, in the order of the table.

    The encoder is put into eval mode and moved to `device`. `workers` processes read the photos. With a `shard`, the
    call is collective: every rank computes its share and gets all features; `tick` counts the photos of this process.

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
    """Return the files of a table; `DataError` if the folder of the photos is unknown."""
    return PhotoFolder(table.require_root(), table.images)
