"""Labels of patches: which cells of a net's output grid show an annotated object, from points, boxes or masks.

The patch ground truth of "PatchML: Patch Based Learning for Multi-label Image Classification", section 3.1. Coordinates
as in `geometry`: fractions, boxes x0, y0, x1, y1; a point has x0 = x1 and y0 = y1. In a grid (h, w), cell (row, column)
spans column / w .. (column + 1) / w and row / h .. (row + 1) / h of the crop. All functions run on any device without
synchronisation, keep float32 inside autocast, and accept m = 0 objects.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int8, Int64
from torch import Tensor

from fewtags.batched_views import invert_views
from fewtags.errors import ConfigError
from fewtags.labels import Label, Places

# Shares and positions this close to a limit count as reaching it: the resolution of float32 coordinates and views.
SLACK = 1e-5


def cells_of_boxes(boxes: Float[Tensor, "m 4"], grid: tuple[int, int], coverage: float = 0.5) -> Bool[Tensor, "m h w"]:
    """Return the cells that each object fills.

    A box fills each cell if it covers at least the share `coverage` (above 0, up to 1) of the *cell's* area. A box that
    covers no cell that much fills the cell that it covers most (the first in row-major order of equals). A point, or
    the centre of a box without area, fills the cell that contains it: row min(floor(y h), h - 1), column likewise.

    The paper says "intersection of the box with the patches". With intersection over union, no box larger than two
    cells would fill any cell. With any overlap, three quarters of the area that a box of one cell's size labels would
    be background (0.43 with this rule). Raises ConfigError if `coverage` is out of range.

    >>> cells_of_boxes(torch.tensor([[0.25, 0.0, 1.0, 1.0], [0.6, 0.1, 0.6, 0.1]]), (1, 3)).int().tolist()
    [[[0, 1, 1]], [[0, 1, 0]]]
    """
    x0, y0, x1, y1 = boxes.unbind(1)
    share = shares_of_cells(y0, y1, grid[0])[:, :, None] * shares_of_cells(x0, x1, grid[1])[:, None, :]
    row, column = (
        ((low + high) / 2 * cells).floor().clamp(0, cells - 1).long()
        for low, high, cells in ((y0, y1, grid[0]), (x0, x1, grid[1]))
    )
    best = torch.where(share.flatten(1).amax(1) > 0, share.flatten(1).argmax(1), row * grid[1] + column)
    return filled_cells(share, best, coverage)


def locations_to_crop(
    boxes: Float[Tensor, "m 4"], views: Float[Tensor, "m 2 3"], min_visible: float
) -> tuple[Float[Tensor, "m 4"], Bool[Tensor, "m"]]:
    """Map boxes of the image to the crop frame, and determine which of them are visible in the crop.

    This is `View.boxes_to_crop`, batched, with one view (crop -> image) for each box; boxes that are not visible are
    meaningless. A point is visible inside the crop and on its edges (a flip maps 0 to 1). A box is visible if at least
    the share `min_visible` (0..1) of its area is inside, and more than none. A box much larger than the crop can be
    invisible although it fills the crop: choose `min_visible` below the smallest share of the image that crops show.

    Raises:
        ConfigError: `min_visible` is out of range.
    """
    if not 0 <= min_visible <= 1:
        raise ConfigError(f"min_visible is a share of a box's area, 0 to 1; got {min_visible}.")
    a, b, c, d, e, f = (entry[:, None] for entry in invert_views(views).flatten(1).unbind(1))
    x0, y0, x1, y1 = boxes.unbind(1)
    x, y = torch.stack([x0, x1, x1, x0], 1), torch.stack([y0, y0, y1, y1], 1)
    # Not a matrix product: autocast would compute it in half precision.
    u, v = a * x + b * y + c, d * x + e * y + f
    hull = torch.stack([u.amin(1), v.amin(1), u.amax(1), v.amax(1)], 1)
    clipped = hull.clamp(0.0, 1.0)
    whole, inside = _area(hull), _area(clipped)
    share = inside / torch.where(whole > 0, whole, 1.0)
    contained = ((hull >= -SLACK) & (hull <= 1 + SLACK)).all(1)
    return clipped, torch.where(whole > 0, (share > SLACK) & (share >= min_visible - SLACK), contained)


def patch_labels(
    labels: Int8[Tensor, "b c"],
    places: Places | None,
    views: Float[Tensor, "b 2 3"],
    grid: tuple[int, int],
    *,
    coverage: float,
    min_visible: float,
    cropped: str,
) -> tuple[Int8[Tensor, "b c h w"], Int8[Tensor, "b c"]]:
    """Return the labels of the patches of a batch, and the image labels that match the crops.

    A negative class is negative in every cell. A positive class is positive in the cells that its visible objects fill,
    and unknown in all other cells, because not every object may be annotated. Unknown classes are unknown in every
    cell. Objects of classes that are not labelled positive are ignored.

    Args:
        labels: values of `Label`.
        places: objects in the image frame; None for none.
        views: crop -> image.
        grid: (h, w) of the net's maps.
        coverage: see `cells_of_boxes`.
        min_visible: see `locations_to_crop`.
        cropped: image label of a positive class whose annotated objects are all outside the crop: "unknown", or "keep"
            for positive. (The paper does not specify it; public code for such data uses negative, which is wrong if an
            object was not annotated.) A positive class without objects stays positive.

    Raises:
        ConfigError: `coverage` or `min_visible` is out of range, or `cropped` is not one of the two.
    """
    if cropped not in ("unknown", "keep"):
        raise ConfigError(f"cropped {cropped!r} is not one of unknown, keep.")
    positive, negative = labels == Label.POSITIVE, labels == Label.NEGATIVE
    patches = labels.new_full((*labels.shape, *grid), Label.UNKNOWN)
    patches = patches.masked_fill(negative[:, :, None, None], Label.NEGATIVE)
    if places is None:
        return patches, labels
    boxes, visible = locations_to_crop(places.boxes, views[places.row], min_visible)
    filled = cells_of_boxes(boxes, grid, coverage) & visible[:, None, None]
    owner, count = places.row * labels.shape[1] + places.classes, labels.numel()
    located = _union(filled.flatten(1), owner, count).view_as(patches)
    patches = patches.masked_fill(positive[:, :, None, None] & located, Label.POSITIVE)
    if cropped == "keep":
        return patches, labels
    known, shown = (
        _union(those[:, None], owner, count).view_as(labels) for those in (torch.ones_like(visible), visible)
    )
    return patches, labels.masked_fill(positive & known & ~shown, Label.UNKNOWN)


def cells_of_masks(
    masks: Bool[Tensor, "m H W"] | Float[Tensor, "m H W"], grid: tuple[int, int], coverage: float = 0.5
) -> Bool[Tensor, "m h w"]:
    """Return the cells that each mask fills, by the rule of `cells_of_boxes`; an empty mask fills none.

    Masks cover the whole crop at any resolution: True, or the share 0..1 of a pixel that belongs to the object. Pixels
    on the border of two cells count for both, by area. Raises ConfigError if `coverage` is out of range.
    """
    with torch.autocast(masks.device.type, enabled=False):
        pixels = masks.to(torch.float32)
        rows, columns = (_pixels(side, cells, masks.device) for side, cells in zip(masks.shape[1:], grid, strict=True))
        share = rows.T @ pixels @ columns
    flat = share.flatten(1)
    return filled_cells(share, flat.argmax(1), coverage) & (flat.amax(1) > 0)[:, None, None]


def _pixels(side: int, cells: int, device: torch.device) -> Float[Tensor, "side cells"]:
    """Share of each cell that lies in each pixel, along one side."""
    edges = torch.linspace(0, 1, side + 1, device=device)
    return shares_of_cells(edges[:-1], edges[1:], cells)


def shares_of_cells(low: Float[Tensor, "m"], high: Float[Tensor, "m"], cells: int) -> Float[Tensor, "m cells"]:
    """Share of each of `cells` equal parts of 0..1 that is inside each interval low..high."""
    first = torch.arange(cells, dtype=low.dtype, device=low.device)
    left, right = torch.maximum(low[:, None] * cells, first), torch.minimum(high[:, None] * cells, first + 1)
    return (right - left).clamp(min=0)


def filled_cells(share: Float[Tensor, "m h w"], best: Int64[Tensor, "m"], coverage: float) -> Bool[Tensor, "m h w"]:
    """Cells with a share of at least `coverage`; the cell `best` for an object without any."""
    if not 0 < coverage <= 1:
        raise ConfigError(f"coverage is a share of a cell's area, above 0 and up to 1; got {coverage}.")
    enough = share.flatten(1) >= coverage - SLACK
    only = torch.arange(enough.shape[1], device=best.device) == best[:, None]
    return torch.where(enough.any(1, keepdim=True), enough, only).view_as(share)


def _area(boxes: Float[Tensor, "m 4"]) -> Float[Tensor, "m"]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _union(sets: Bool[Tensor, "m s"], owner: Int64[Tensor, "m"], count: int) -> Bool[Tensor, "count s"]:
    """Union of the sets of each owner. All writes are True, so their order does not matter."""
    size = sets.shape[1]
    slots = owner[:, None] * size + torch.arange(size, device=owner.device)
    nowhere = count * size
    out = sets.new_zeros(nowhere + 1)
    return out.index_fill_(0, torch.where(sets, slots, nowhere).flatten(), True)[:nowhere].view(count, size)
