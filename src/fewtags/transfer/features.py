"""Photos to feature vectors by a frozen encoder."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.engine.machine import keep_freed_memory
from fewtags.engine.sources import Tick
from fewtags.errors import DataError
from fewtags.nets.encoder import Encoder, pooled
from fewtags.photos.augment import Policy
from fewtags.photos.loader import Collate, EvalLoader, EvalSet, Photos, Workers
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
    """Mean features of every photo through the policy's test view, in order, on every process.

    Args:
        encoder: put into eval mode and moved to `device`.
        table: the photos; their labels are not looked at.
        policy: gives the view.
        device: where the encoder works.
        workers: processes that read photos; 0: none of their own.
        shard: this process among those that share the photos. Collective: every rank must call it.
        tick: told about progress, of this process.

    Returns:
        float32 [N, d].

    Raises:
        DataError: the photos are not there or cannot be read; or features are not finite.
    """
    keep_freed_memory()
    photos = photos_of(table)
    pre = encoder.preprocessing
    loader = EvalLoader(
        EvalSet(photos, table.matrix, policy), BATCH, Collate(pre.mean, pre.std),
        Workers(workers, pin_memory=device.type == "cuda"), rank=shard.rank, world=shard.world,
        device=device,
    )  # fmt: skip
    encoder.to(device).eval()
    pieces = [torch.zeros(0, encoder.features_dim, device=device)]  # a process may have no photo at all
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
        raise DataError(f"the features of {broken:,} of {len(table):,} photos are not finite; the encoder is broken.")
    return features


def photos_of(table: LabelTable) -> Photos:
    """The files of a table.

    Raises:
        DataError: the labels do not say where the photos are.
    """
    if table.root is None:
        raise DataError("the labels do not say where the photos are; give --images FOLDER.")
    return Photos(table.root, table.images)
