"""Batches of views as tensors, and maps moved between the image frame and the crop frame."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fewtags.geometry import View

WITHOUT_BORDER = ("mps",)
"""Kinds of devices whose `grid_sample` cannot continue the border."""


def stack_views(views: Sequence[View]) -> Float[Tensor, "b 2 3"]:
    """float32 [b, 2, 3], the form in which views travel in a batch."""
    return torch.tensor([v.matrix for v in views], dtype=torch.float32).view(-1, 2, 3)


def _theta(views: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """The same maps for coordinates in -1..1, which is what `affine_grid` wants."""
    linear = views[:, :, :2]
    return torch.cat([linear, (linear.sum(2) + 2 * views[:, :, 2] - 1)[:, :, None]], 2)


def invert_views(views: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """Image -> crop maps of a batch of views."""
    a, b, c, d, e, f = views.flatten(1).unbind(1)
    det = a * e - b * d
    return torch.stack([e, -b, b * f - c * e, -d, a, c * d - a * f], 1).div(det[:, None]).view(-1, 2, 3)


def maps_to_crop(
    maps: Float[Tensor, "b c H W"], views: Float[Tensor, "b 2 3"], size: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """What image-frame maps look like through each view: resize(T(H)) of SCL eq. (7), bilinear, one batched call."""
    grid = F.affine_grid(_theta(views), [len(maps), 1, *size], align_corners=False)
    return _resample(maps, grid)


def maps_to_image(
    maps: Float[Tensor, "b c h w"], views: Float[Tensor, "b 2 3"], size: tuple[int, int]
) -> tuple[Float[Tensor, "b c H W"], Bool[Tensor, "b 1 H W"]]:
    """Put crop-frame maps back into the image frame, bilinear.

    Returns:
        the maps on the image-frame grid, and which of its cells have their centre inside the crop. Outside, values
        are the border's and mean nothing.
    """
    grid = F.affine_grid(_theta(invert_views(views)), [len(maps), 1, *size], align_corners=False)
    return _resample(maps, grid), (grid.abs() <= 1).all(-1)[:, None]


def _resample(maps: Float[Tensor, "b c H W"], grid: Float[Tensor, "b h w 2"]) -> Float[Tensor, "b c h w"]:
    """Bilinear; the border's values go on beyond it.

    MPS has no such padding, so there the CPU does it: clamping the grid to the outermost cell centres would not give
    the same values, because float32 coordinates do not hit the centres (off by up to 7e-7 on 40 x 40 maps).
    """
    device = maps.device
    if device.type in WITHOUT_BORDER:
        maps, grid = maps.cpu(), grid.cpu()
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False).to(device)
