"""Parts of a run's record: what figures show of the validation images, what names the run, and units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.bench.data import SetData
from fewtags.bench.protocol import Job, Protocol
from fewtags.engine.evaluate import sigmoid
from fewtags.engine.machine import cores
from fewtags.engine.object_sizes import cell_sizes, size_bins
from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.ranking import ranking_report

MOST_LABELS = 7
"""Fig. 5d of Verelst et al. shows the images with 1 to 7 labels."""
SIZE_BINS = 5
"""Fig. D.1 of Verelst et al. divides the objects into bins of equal number; the paper does not name their number."""
RANKS = 4
"""Fig. F.1 of Verelst et al. shows the four highest probabilities of each image."""
SCORE_BINS = 25


def detail_measures(details: Sequence[str], logits: NDArray[np.float32], data: SetData) -> dict[str, Any]:
    """Return the measures that `Protocol.details` names, in percent, from the logits [N, C] of the validation images.

    A measure of a group is named "WORD, group", and the number of its images or objects "WORD count, group".

    Raises:
        DataError: sizes are asked for, but no validation object has a box.
    """
    labels, scores = data.val.matrix.dense(), logits.astype(np.float64)
    found: dict[str, Any] = {}
    if "labels" in details:
        count = (labels == Label.POSITIVE).sum(1)
        for k in range(1, MOST_LABELS + 1):
            group = count == k
            found[f"labels count, {k}"] = int(group.sum())
            value = ranking_report(scores[group], labels[group]).mean_average_precision if group.any() else np.nan
            found[f"labels, {k}"] = percent_or_none(value)
    if "sizes" in details:
        sizes = cell_sizes(data.val_boxes, data.val.classes)
        if sizes is None:
            raise DataError(f"{data.root / data.own.train.labels}: no object of the validation images has a box.")
        for number, own in enumerate(size_bins(scores, labels, sizes, SIZE_BINS), 1):
            name = f"{number}: {100 * own.low:.2g} to {100 * own.high:.2g} %"
            found[f"sizes count, {name}"] = own.labels
            found[f"sizes, {name}"] = percent_or_none(own.mean_average_precision)
    if "scores" in details:
        ranked = -np.sort(-sigmoid(logits), axis=1)[:, :RANKS]
        edges = np.linspace(0, 1, SCORE_BINS + 1)
        for rank, column in enumerate(ranked.T, 1):
            found[f"scores, {rank}"] = np.histogram(column, edges)[0].tolist()
    return found


def identity(protocol: Protocol, job: Job) -> dict[str, Any]:
    """What names a run, and the digest of its settings."""
    return {
        "protocol": protocol.name,
        "set": job.set_name,
        "known": job.known,
        "row": job.row,
        "trial": job.trial,
        "seed": job.seed,
        "digest": protocol.digest(job),
    }


def machine_of(device: torch.device) -> str:
    """What a run was computed on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cores()} cores"
    return f"{name}, torch {torch.__version__}"


def percent(value: float) -> float:
    """A fraction in percent, with three decimals."""
    return round(100 * float(value), 3)


def percent_or_none(value: float | None) -> float | None:
    """The same; None for None and nan."""
    return None if value is None or np.isnan(value) else percent(value)
