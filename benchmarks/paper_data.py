"""The data of a paper's protocol, from the files as they are published: labels, and where test objects are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.budget.costs import Annotation
from fewtags.errors import ConfigError
from fewtags.formats.common import read_json
from fewtags.formats.masks import draw_mask
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.metrics.locate import Region
from fewtags.patches import cells_of_boxes
from fewtags.table.table import LabelTable
from paper_files import PaperProtocol
from regions import cells_of_masks

RESOLUTION = (224, 224)  # at which masks are compared with maps
Places = Sequence[Mapping[int, Region]]
"""Of each image, by class number."""


@final
class PaperData:
    """What a protocol is about, read when it is asked for.

    Args:
        protocol: what is read.
        folder: with labels and photos in their published layout.
    """

    def __init__(self, protocol: PaperProtocol, folder: Path) -> None:
        self.protocol, self.folder = protocol, folder
        self._read = lru_cache(maxsize=3)(self._labels)

    def train(self, annotation: str, seed: int) -> LabelTable:
        """Complete labels of the training images, with places such as a type of annotation has."""
        return self._of("train", annotation, seed)

    @cached_property
    def val(self) -> LabelTable:
        """The part of the test images that chooses an epoch."""
        return self._of("test", "SB", 0).subset(self._chosen[0])

    @cached_property
    def test(self) -> LabelTable:
        """The rest of them, with boxes."""
        return self._of("test", "SB", 0).subset(self._chosen[1])

    @cached_property
    def located(self) -> NDArray[np.int64]:
        """Which images of `test` heatmaps are measured on."""
        order = np.random.default_rng(0).permutation(len(self.test))
        return np.sort(order[: self.protocol.located_images])

    @cached_property
    def places(self) -> Places:
        """Where the classes are in the located images."""
        part = self.test.subset(self.located)
        return masked_places(self.folder / self.protocol.test.labels, part) if self.protocol.masks else _boxed(part)

    def on_object(self, annotation: str, seed: int, grid: tuple[int, int]) -> float | None:
        """Of the patches that all points or boxes of the located images label, the share that masks fill to half.

        None without masks, or for tags.

        Args:
            annotation: the type.
            seed: of the points.
            grid: (h, w) of the maps, which show the whole photo.
        """
        if Annotation.of(annotation) is Annotation.TAGS or not self.protocol.masks or not len(self.located):
            return None
        return share_on_object(
            self._of("test", annotation, seed).subset(self._chosen[1][self.located]), self.places, grid
        )

    @cached_property
    def _chosen(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Validation and test images, in the order of the file."""
        n, val = len(self._of("test", "SB", 0)), self.protocol.val_images
        if not 0 < val < n:
            raise ConfigError(f"val_images is {val}, but the test part has {n:,} images; choose at least 1, and fewer.")
        order = np.random.default_rng(0).permutation(n)
        return np.sort(order[:val]), np.sort(order[val:])

    def _of(self, part: Literal["train", "test"], annotation: str, seed: int) -> LabelTable:
        pointed = Annotation.of(annotation).pointed and self.protocol.points == "mask"
        return self._read(part, pointed, seed if pointed else 0)

    def _labels(self, part: Literal["train", "test"], pointed: bool, seed: int) -> LabelTable:
        files = self.protocol.train if part == "train" else self.protocol.test
        options = ReadOptions(complete=True, places="points" if pointed else "boxes", point_seed=seed)
        return read(self.folder / files.labels, images=self.folder / files.images, format="coco", options=options)


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


def _boxed(table: LabelTable) -> Places:
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
