"""MaxBoxAccV2 of plain lists of pairs, from the parts that `metrics.locate` puts together for whole data sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from fewtags.metrics.localisation import Normalise
from fewtags.metrics.wsol import (
    BOX_CUTS,
    BOX_OVERLAPS,
    SIZE,
    BoxReport,
    BoxRule,
    Parts,
    best_overlaps,
    prepare_map,
    whole_image_overlap,
)


def box_report(
    pairs: Iterable[tuple[Float[Array, "_ _"], Float[Array, "_ 4"]]],
    *,
    size: tuple[int, int] | None = SIZE,
    overlaps: Sequence[float] = BOX_OVERLAPS,
    cuts: Sequence[float] = BOX_CUTS,
    parts: Parts = "all",
    rule: BoxRule = "exact",
    normalise: Normalise = "minmax",
) -> BoxReport:
    """MaxBoxAccV2 of (heatmap, boxes) pairs; MaxBoxAcc is `overlaps=(0.5,), parts="largest"`."""
    level = np.asarray(overlaps, np.float64)
    correct, whole = np.zeros((len(level), len(cuts)), np.int64), np.zeros(len(level), np.int64)
    seen = 0
    for n, (heatmap, boxes) in enumerate(pairs):
        resized = prepare_map(heatmap, size or heatmap.shape, normalise, f"the heatmap of pair {n}")
        best = best_overlaps(resized, boxes, cuts=cuts, parts=parts, rule=rule)
        correct += best >= level[:, None]
        whole += whole_image_overlap(boxes, size or heatmap.shape, rule=rule) >= level
        seen += 1
    return BoxReport(seen, tuple(overlaps), tuple(cuts), correct, whole)
