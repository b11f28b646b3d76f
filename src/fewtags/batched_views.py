"""Batches of views as tensors, and maps moved between the image frame and the crop frame."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fewtags.geometry import View

WITHOUT_BORDER = ("mps",)  # devices whose `grid_sample` has no border padding


def stack_views(views: Sequence[View]) -> Float[Tensor, "b 2 3"]:
    """float32 [b, 2, 3]: the matrices of views, as in `Batch`."""
    return torch.tensor([v.matrix for v in views], dtype=torch.float32).view(-1, 2, 3)


def _theta(views: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """Convert the maps to coordinates in -1..1, which `affine_grid` uses."""
    linear = views[:, :, :2]
    return torch.cat([linear, (linear.sum(2) + 2 * views[:, :, 2] - 1)[:, :, None]], 2)


def invert_views(views: Float[Tensor, "b 2 3"]) -> Float[Tensor, "b 2 3"]:
    """Invert a batch of views: image -> crop maps."""
    a, b, c, d, e, f = views.flatten(1).unbind(1)
    det = a * e - b * d
    return torch.stack([e, -b, b * f - c * e, -d, a, c * d - a * f], 1).div(det[:, None]).view(-1, 2, 3)


def maps_to_crop(
    maps: Float[Tensor, "b c H W"], views: Float[Tensor, "b 2 3"], size: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """Resample image-frame maps through each view: resize(T(H)) of SCL eq. (7), bilinear, one batched call."""
    grid = F.affine_grid(_theta(views), [len(maps), 1, *size], align_corners=False)
    return _resample(maps, grid)


def maps_to_image(
    maps: Float[Tensor, "b c h w"], views: Float[Tensor, "b 2 3"], size: tuple[int, int]
) -> tuple[Float[Tensor, "b c H W"], Bool[Tensor, "b 1 H W"]]:
    """Resample crop-frame maps into the image frame, bilinear, with a mask of the cells whose centre is in the crop.

    Values outside are those of the border and have no meaning.
    """
    grid = F.affine_grid(_theta(invert_views(views)), [len(maps), 1, *size], align_corners=False)
    return _resample(maps, grid), (grid.abs() <= 1).all(-1)[:, None]


def _resample(maps: Float[Tensor, "b c H W"], grid: Float[Tensor, "b h w 2"]) -> Float[Tensor, "b c h w"]:
    """Resample bilinearly with border padding; on the CPU for devices without it.

    Clamping the grid to the outermost cell centres gives slightly different values.
    """
    device = maps.device
    if device.type in WITHOUT_BORDER:
        maps, grid = maps.cpu(), grid.cpu()
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False).to(device)
