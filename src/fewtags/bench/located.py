"""Where test objects are, for measures of heatmaps and of bought points and boxes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.formats.common import read_json
from fewtags.formats.masks import draw_mask
from fewtags.metrics.locate import Region
from fewtags.patches import cells_of_boxes, cells_of_masks
from fewtags.table.table import LabelTable

RESOLUTION = (224, 224)
"""Height and width at which masks are compared with maps."""
Places = Sequence[Mapping[int, Region]]
"""Of each image, by class number."""


def masked_places(file: Path, table: LabelTable) -> Places:
    """The union of the masks of each class, crowds included; of objects whose mask has no pixel, the box.

    Masks have `RESOLUTION`, or that of the photo where nothing is left of them then.

    Args:
        file: a COCO JSON whose categories have a name each.
        table: some of its images.
    """
    content = read_json(file)
    row = {Path(key).name: n for n, key in enumerate(table.images.to_pylist())}
    images = {r["id"]: r for r in content["images"] if Path(r["file_name"]).name in row}
    classes = {r["id"]: table.classes.index(r["name"]) for r in content["categories"]}
    found: list[dict[int, NDArray[np.bool_]]] = [{} for _ in row]
    for record in content["annotations"]:
        if (image := images.get(record["image_id"])) is not None:
            mask = draw_mask(record.get("segmentation"), image["height"], image["width"])
            if not mask.any():
                x, y, width, height = record["bbox"]
                mask[math.floor(y) : math.ceil(y + height), math.floor(x) : math.ceil(x + width)] = True
            own, class_ = found[row[Path(image["file_name"]).name]], classes[record["category_id"]]
            own[class_] = own[class_] | mask if class_ in own else mask
    return [{c: Region.from_mask(_resized(mask)) for c, mask in own.items() if mask.any()} for own in found]


def _resized(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What is at the centre of every pixel of `RESOLUTION`."""
    rows, columns = (
        ((np.arange(side) + 0.5) / side * own).astype(np.int64)
        for side, own in zip(RESOLUTION, mask.shape, strict=True)
    )
    small = mask[np.ix_(rows, columns)]
    return small if small.any() else mask


def boxed_places(table: LabelTable) -> Places:
    """The boxes of each class."""
    places = table.locations
    spans = [slice(*span) for span in zip(places.indptr[:-1], places.indptr[1:], strict=True)]
    return [
        {c: Region(places.boxes[span][places.classes[span] == c]) for c in np.unique(places.classes[span]).tolist()}
        for span in spans
    ]


def share_on_object(table: LabelTable, places: Places, grid: tuple[int, int]) -> float | None:
    """Of the patches that points or boxes label, the share that the masks of their class fill to half.

    Args:
        table: N images with points or boxes.
        places: of these images, with masks.
        grid: (h, w).
    """
    given, right, labelled = table.locations, 0, 0
    for n, own in enumerate(places):
        span = slice(given.indptr[n], given.indptr[n + 1])
        for c, place in own.items():
            boxes = torch.from_numpy(given.boxes[span][given.classes[span] == c])
            if len(boxes) and place.mask is not None:
                cells = cells_of_boxes(boxes, grid).any(0)
                right += int((cells & cells_of_masks(torch.from_numpy(place.mask)[None], grid)[0]).sum())
                labelled += int(cells.sum())
    return right / labelled if labelled else None
