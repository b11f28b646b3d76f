"""Affine views between the image frame and the crop frame.

Convention everywhere: coordinates are fractions of width and height, x to the right, y down, (0, 0) the top-left
*corner* of the top-left pixel (`align_corners=False`); boxes are x0, y0, x1, y1 in 0..1. Maps are in the image frame.
A `View` maps crop coordinates to image coordinates:  x = a u + b v + c,  y = d u + e v + f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

WITHOUT_BORDER = ("mps",)
"""Device types whose `grid_sample` has no border padding."""


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
        outer, within = self._square, inner._square
        return View._from_square(outer @ within)

    def inverse(self) -> View:
        """Return the map from the image frame to the crop frame.

        Raises:
            ValueError: the view has no area.
        """
        a, b, _, d, e, _ = self.matrix
        if abs(a * e - b * d) < 1e-12:
            raise ValueError(f"view {self.matrix} has no area and cannot be inverted")
        inverse = np.linalg.inv(self._square)
        return View._from_square(inverse)

    def to_image(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map points [n, 2] (u, v) of the crop to image coordinates (x, y)."""
        square = self._square
        return points @ square[:2, :2].T + square[:2, 2]

    def to_crop(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map points [n, 2] (x, y) of the image to crop coordinates; a point outside 0..1 is cropped away."""
        return self.inverse().to_image(points)

    def boxes_to_crop(self, boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Map boxes [n, 4] of the image to the crop frame, and clip them to it.

        Returns:
            boxes [n, 4] x0, y0, x1, y1 in 0..1 (the axis-aligned hull if the view is not axis-aligned), and the share
            [n] of each box's area inside the crop (a box without area: 1 if inside or on the edge, else 0).
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


def stack_views(views: Sequence[View]) -> Float[Tensor, "b 2 3"]:
    """Stack views as float32 [b, 2, 3], their form in a batch."""
    return torch.tensor([v.matrix for v in views], dtype=torch.float32).view(-1, 2, 3)


def _theta(views: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """Convert views to coordinates in -1..1, as `affine_grid` expects."""
    linear = views[:, :, :2]
    return torch.cat([linear, (linear.sum(2) + 2 * views[:, :, 2] - 1)[:, :, None]], 2)


def invert_views(views: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """Invert a batch of views: image -> crop."""
    a, b, c, d, e, f = views.flatten(1).unbind(1)
    det = a * e - b * d
    return torch.stack([e, -b, b * f - c * e, -d, a, c * d - a * f], 1).div(det[:, None]).view(-1, 2, 3)


def maps_to_crop(
    maps: Float[Tensor, "b c H W"], views: Float[Tensor, "b 2 3"], size: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """Resample image-frame maps through each view: resize(T(H)) of SCL eq. (7), bilinear, in one batched call."""
    grid = F.affine_grid(_theta(views), [len(maps), 1, *size], align_corners=False)
    return _resample(maps, grid)


def maps_to_image(
    maps: Float[Tensor, "b c h w"], views: Float[Tensor, "b 2 3"], size: tuple[int, int]
) -> tuple[Float[Tensor, "b c H W"], Bool[Tensor, "b 1 H W"]]:
    """Resample crop-frame maps into the image frame, bilinear.

    Returns:
        the maps on the image-frame grid, and a mask of the cells whose centre is inside the crop. Values of other
        cells repeat the border and have no meaning.
    """
    grid = F.affine_grid(_theta(invert_views(views)), [len(maps), 1, *size], align_corners=False)
    return _resample(maps, grid), (grid.abs() <= 1).all(-1)[:, None]


def _resample(maps: Float[Tensor, "b c H W"], grid: Float[Tensor, "b h w 2"]) -> Float[Tensor, "b c h w"]:
    """Sample bilinearly; values beyond the border repeat it.

    MPS has no border padding, so the CPU computes it: clamping the grid to the outermost cell centres would not give
    the same values, because float32 coordinates do not hit the centres (off by up to 7e-7 on 40 x 40 maps).
    """
    device = maps.device
    if device.type in WITHOUT_BORDER:
        maps, grid = maps.cpu(), grid.cpu()
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False).to(device)
