"""What is read of the place of an object, in all formats: its box, a point drawn in its outline or box, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewtags.formats.labels import Labels
from fewtags.formats.masks import GRID, draws, point_in_box
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label
from fewtags.text import counted


def choose_places(
    labels: Labels,
    sizes: NDArray[np.float64] | None,
    used: NDArray[np.bool_],
    key: Callable[[int], object],
    options: ReadOptions,
) -> tuple[Labels, str]:
    """Return the labels with the places that `options.places` asks for, and what was drawn, in words ("": nothing).

    - "points" and "outlines": a point in the outline of an object (`Labels.inner`) replaces its box.
    - "points": a point in the box replaces the box of an object without an outline, uniform in the box.
    - "none": labels only.

    Points of the file stay as they are.

    Args:
        labels: F labels.
        sizes: float64 [F, 2], width and height of the photo of each label in pixels, NaN if unknown; None: boxes are in
            fractions.
        used: bool [F], labels of photos that exist.
        key: what the random numbers of a label depend on, by its position.
        options: how annotations are read.
    """
    n = len(labels.image)
    if options.places == "none":
        nowhere = np.zeros(n, np.bool_)
        return replace(labels, located=nowhere, point=nowhere, unread=()), ""
    if not options.draws_points:
        return labels, ""
    inner = np.full((n, 2), np.nan) if labels.inner is None else labels.inner
    drawn: NDArray[np.bool_] = np.isfinite(inner[:, 0])
    boxed = labels.located & ~labels.point & ~drawn & (labels.state != Label.NEGATIVE)
    if not (drawn.any() or boxed.any()):
        return labels, ""
    corners = np.where(drawn[:, None], np.tile(inner, 2), labels.corners)
    if options.places == "points":
        for i in np.flatnonzero(boxed).tolist():
            size, scale = ((GRID, GRID), GRID) if sizes is None else ((sizes[i, 0], sizes[i, 1]), 1)
            point = point_in_box((corners[i] * scale).tolist(), size, draws(options.point_seed, key(i)))
            corners[i] = np.tile(point, 2) / scale
    damaged = int((np.isinf(inner[:, 0]) & used).sum())
    one, many = "box without a mask stays a box", "boxes without a mask stay boxes"
    rest = "in boxes without a mask" if options.places == "points" else one if (boxed & used).sum() == 1 else many
    text = f"{counted(int((drawn & used).sum()), 'point')} drawn in masks, {(boxed & used).sum():,} {rest}"
    text += f" ({counted(damaged, 'has', 'have')} an outline that is damaged or has no pixel)" if damaged else ""
    pointed = drawn | (boxed if options.places == "points" else False)
    chosen = replace(
        labels,
        corners=corners,
        located=labels.located | drawn,
        point=labels.point | pointed,
        unread=tuple((row, why) for row, why in labels.unread if not drawn[row]),
    )
    return chosen, f"{text}; point_seed {options.point_seed}"
