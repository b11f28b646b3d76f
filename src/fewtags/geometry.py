"""Affine views between the image frame and the crop frame.

Convention everywhere: coordinates are fractions of width and height, x to the right, y down, (0, 0) the top-left
*corner* of the top-left pixel (`align_corners=False`); boxes are x0, y0, x1, y1 in 0..1. Maps are in the image frame.
A `View` maps crop coordinates to image coordinates:  x = a u + b v + c,  y = d u + e v + f.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray


@final
@dataclass(frozen=True)
class View:
    """Affine map from the crop frame to the image frame, in normalised coordinates.

    Attributes:
        matrix: (a, b, c, d, e, f) with x = a u + b v + c and y = d u + e v + f.

    >>> View.crop(0.5, 0.0, 1.0, 1.0).then(View.flip()).to_image(np.array([[0.0, 0.5]])).tolist()
    [[1.0, 0.5]]
    """

    matrix: tuple[float, float, float, float, float, float]

    @classmethod
    def identity(cls) -> View:
        """Return the view of the whole image."""
        return cls((1.0, 0.0, 0.0, 0.0, 1.0, 0.0))

    @classmethod
    def crop(cls, x0: float, y0: float, x1: float, y1: float) -> View:
        """Return the view of the box x0, y0, x1, y1 (fractions of the image), stretched over the whole crop."""
        return cls((x1 - x0, 0.0, x0, 0.0, y1 - y0, y0))

    @classmethod
    def flip(cls) -> View:
        """Return the view that exchanges left and right."""
        return cls((-1.0, 0.0, 1.0, 0.0, 1.0, 0.0))

    def then(self, inner: View) -> View:
        """Compose views: first crop by `self`, then apply `inner` to that crop (inner coordinates -> crop -> image)."""
        return View._from_square(self._square @ inner._square)

    def inverse(self) -> View:
        """Return the map from the image frame to the crop frame. Raises ValueError if the view has no area."""
        a, b, _, d, e, _ = self.matrix
        if abs(a * e - b * d) < 1e-12:
            raise ValueError(f"view {self.matrix} has no area and cannot be inverted")
        return View._from_square(np.linalg.inv(self._square))

    def to_image(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map points [n, 2] (u, v) of the crop to image coordinates (x, y)."""
        square = self._square
        return points @ square[:2, :2].T + square[:2, 2]

    def to_crop(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map points [n, 2] (x, y) of the image to crop coordinates; points outside 0..1 are outside the crop."""
        return self.inverse().to_image(points)

    def boxes_to_crop(self, boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Map boxes [n, 4] of the image to the crop frame (as axis-aligned hulls), and clip them to it.

        The second result is the share [n] of each box's area inside the crop (without area: 1 if inside, else 0).
        """
        corners = np.stack([boxes[:, [0, 1]], boxes[:, [2, 1]], boxes[:, [2, 3]], boxes[:, [0, 3]]], 1)
        moved = self.to_crop(corners.reshape(-1, 2)).reshape(-1, 4, 2)
        hull = np.concatenate([moved.min(1), moved.max(1)], 1)
        clipped = hull.clip(0.0, 1.0)
        whole = (hull[:, 2] - hull[:, 0]) * (hull[:, 3] - hull[:, 1])
        inside = (clipped[:, 2] - clipped[:, 0]) * (clipped[:, 3] - clipped[:, 1])
        flat = (hull[:, :2] >= 0).all(1) & (hull[:, 2:] <= 1).all(1)
        share = np.where(whole > 0, inside / np.where(whole > 0, whole, 1.0), flat.astype(np.float64))
        return clipped, share

    @property
    def _square(self) -> NDArray[np.float64]:
        return np.array([self.matrix[:3], self.matrix[3:], (0.0, 0.0, 1.0)])

    @classmethod
    def _from_square(cls, square: NDArray[np.floating]) -> View:
        a, b, c, d, e, f = (float(v) for v in square[:2].reshape(-1))
        return cls((a, b, c, d, e, f))
