"""Heatmaps for the page: transparent pictures that lie over a photo."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewtags.engine.inference import load_predictor
from fewtags.engine.machine import torch_device
from fewtags.engine.model import make_policy
from fewtags.engine.predict import heatmaps
from fewtags.errors import DataError
from fewtags.photos.decode import probe

KEPT = 64
"""Number of photos whose maps are kept in memory."""
SIDE = 256
"""Sides of a heatmap picture in pixels; the page stretches it over the photo."""
STRONGEST = 150
"""Opacity, 0..255, of the largest value of a map."""
COLOURS = np.array([[13, 8, 135], [126, 3, 168], [204, 71, 120], [248, 149, 64], [240, 249, 33]], np.float64)
"""From weak to strong: matplotlib's plasma, as in the report."""


@final
class HeatMaps:
    """Computes the maps of photos with the model of a run; threads may share it."""

    def __init__(self, run: Path, *, cpu: bool = False) -> None:
        self._lock = threading.Lock()
        self._device = torch_device(cpu)
        self._net, self._info = load_predictor(run, self._device)
        self._maps: OrderedDict[Path, NDArray[np.float32]] = OrderedDict()

    def picture(self, path: Path, class_id: str) -> bytes:
        """Return a PNG, RGBA, of the map of a class over the whole photo: the larger the value, the more opaque.

        The colours go from the smallest to the largest value of this map: where in the photo, not how sure.

        Raises:
            DataError: the photo cannot be read, or the model does not know the class.
        """
        if class_id not in self._info.classes:
            raise DataError(f"the model does not know the class {class_id!r}, so there is no heatmap; train again.")
        with self._lock:
            if path not in self._maps:
                self._maps[path] = heatmaps(self._net, self._info, path, self._device)[1]
                if len(self._maps) > KEPT:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(path)
            map_ = self._maps[path][self._info.classes.index(class_id)]
        a, _, c, _, e, f = make_policy(self._info.policy, self._info.size).test_view(probe(path).aspect).matrix
        return paint(map_, (c, f, c + a, f + e))


def paint(map_: NDArray[np.floating], box: tuple[float, float, float, float]) -> bytes:
    """Draw a map [h, w] as PNG, RGBA of `SIDE` pixels; `box` is the part of the photo that the map covers."""
    low, high = float(map_.min()), float(map_.max())
    value = (np.asarray(map_, np.float64) - low) / max(high - low, 1e-6)
    x0, y0, x1, y1 = (round(v * SIDE) for v in box)
    size = (max(1, x1 - x0), max(1, y1 - y0))
    smooth = Image.fromarray(value.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    value = np.clip(np.asarray(smooth, np.float64), 0.0, 1.0)
    steps = np.linspace(0, 1, len(COLOURS))
    colour = [np.interp(value, steps, COLOURS[:, channel]) for channel in range(3)]
    pixels = np.zeros((SIDE, SIDE, 4), np.uint8)
    pixels[y0 : y0 + size[1], x0 : x0 + size[0]] = np.round(np.stack([*colour, STRONGEST * value**1.5], -1))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()
