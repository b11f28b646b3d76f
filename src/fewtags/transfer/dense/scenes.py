"""Photos with boxes and, in COCO, outlines: readers of COCO's JSON and Pascal VOC's XML for detection benchmarks.

`formats` reads the same files as labels for classification. Here boxes stay in pixels, crowds and difficult objects are
marked, and a photo or object that cannot be used is an error, because a benchmark must not drop any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final
from xml.etree.ElementTree import ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from fewtags.errors import ConfigError, DataError
from fewtags.formats.common import xml_trouble
from fewtags.formats.masks import draw_mask, run_lengths
from fewtags.formats.voc import first_words
from fewtags.formats.voc_page import read_page
from fewtags.photos.decode import read_image
from fewtags.seeds import rng
from fewtags.transfer.dense.batches import HOLD_OUT

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """A photo and its objects, in pixels of the size that the annotation states.

    Attributes:
        image: the file; its size may differ from the stated one, its aspect ratio may not.
        boxes: float64 [m, 4], x0, y0, x1, y1, continuous.
        classes: int64 [m], 0..C - 1.
        ignored: bool [m], crowds (COCO) and difficult objects (VOC); evaluation does not count them.
        outlines: polygons of each object (arrays, which worker processes do not copy) or run lengths, see `draw_mask`;
            None for an object without an outline.
        areas: float64 [m], area of each object.
    """

    image: Path
    width: int
    height: int
    boxes: NDArray[np.float64]
    classes: NDArray[np.int64]
    ignored: NDArray[np.bool_]
    outlines: tuple[Any, ...]
    areas: NDArray[np.float64]

    def pixels(self) -> NDArray[np.uint8]:
        """Read the photo, uint8 [h, w, 3].

        Raises:
            DataError: it cannot be read, or its aspect differs from the stated one.
        """
        pixels = read_image(self.image)
        height, width, _ = pixels.shape
        if abs(width * self.height / self.width - height) > 1 and abs(height * self.width / self.height - width) > 1:
            raise DataError(
                f"{self.image} has {width} x {height} pixels, but its annotation states {self.width} x {self.height}, "
                "which is another aspect ratio; give the photo that was annotated."
            )
        return pixels

    def boxes_in(self, height: int, width: int) -> NDArray[np.float64]:
        """Return the boxes in pixels of a photo of that size."""
        boxes: NDArray[np.float64] = self.boxes * np.array([width / self.width, height / self.height] * 2)
        return boxes

    def mask(self, n: int, height: int, width: int) -> NDArray[np.bool_]:
        """Return the mask of an object, bool [height, width], in a photo of that size."""
        outline = self.outlines[n]
        if (height, width) == (self.height, self.width):
            return draw_mask(outline, height, width)
        if isinstance(outline, list):
            return draw_mask(self.scaled(n, height, width), height, width)
        whole = draw_mask(outline, self.height, self.width)
        rows, columns = (np.arange(height) * self.height // height, np.arange(width) * self.width // width)
        return whole[rows[:, None], columns]

    def scaled(self, n: int, height: int, width: int) -> list[list[float]]:
        """Return the polygons of an object in a photo of that size."""
        scale = [width / self.width, height / self.height]
        return [(np.reshape(polygon, (-1, 2)) * scale).ravel().tolist() for polygon in self.outlines[n]]


@final
@dataclass(frozen=True, eq=False)
class Scenes:
    """N annotated photos, names of their C classes, and notes about photos that were left out.

    The layout determines the rules for training objects and for AP.
    """

    layout: Literal["coco", "voc"]
    scenes: tuple[Scene, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.scenes)

    def pixels(self, n: int) -> NDArray[np.uint8]:
        """Read photo n, see `Scene.pixels`."""
        return self.scenes[n].pixels()

    def trainable(self, scene: Scene) -> NDArray[np.bool_]:
        """Return bool [m], the objects to train on, as in detectron2: those with an area, without crowds."""
        sides = scene.boxes[:, 2:] - scene.boxes[:, :2]
        return (sides > 0).all(1) & (~scene.ignored | (self.layout == "voc"))

    def with_objects(self) -> Scenes:
        """Return the photos that have an object to train on; `DataError` without such photos."""
        kept = tuple(scene for scene in self.scenes if self.trainable(scene).any())
        if not kept:
            raise DataError("no photo has a box to train on; give photos with annotated objects.")
        return replace(self, scenes=kept)

    def with_outlines(self) -> Scenes:
        """Return the photos whose objects, except crowds, all have an outline; `DataError` without such photos.

        An object without an outline would be trained as background.
        """
        kept = tuple(
            scene
            for scene in self.scenes
            if all(bool(outline) or crowd for outline, crowd in zip(scene.outlines, scene.ignored, strict=True))
        )
        if not any(len(scene.boxes) for scene in kept):
            raise DataError("no photo has outlines (segmentation) of its objects; train on boxes only: --boxes-only.")
        dropped = len(self.scenes) - len(kept)
        note = f"{dropped:,} of {len(self.scenes):,} photos are left out: an object has no outline"
        return replace(self, scenes=kept, notes=(*self.notes, note) if dropped else self.notes)

    def hold_out(self, share: float, seed: int) -> tuple[Scenes, Scenes]:
        """Split into training photos and a random `share` of test photos; `ConfigError` if a part has no photo."""
        count = round(share * len(self.scenes))
        if not 0 < count < len(self.scenes):
            raise ConfigError(
                f"--hold-out {share:g}: of {len(self.scenes)} photos, none is left to train or test on; change it."
            )
        order = rng(seed, 0, 0, HOLD_OUT).permutation(len(self.scenes))
        test, train = (tuple(self.scenes[n] for n in sorted(part.tolist())) for part in np.split(order, [count]))
        return replace(self, scenes=train), replace(self, scenes=test)


class _Image(BaseModel):
    id: int
    file_name: str
    width: int
    height: int


class _Annotation(BaseModel):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int = 0
    area: float | None = None
    segmentation: list[list[float]] | dict[str, Any] | None = None


class _Category(BaseModel):
    id: int
    name: str


class _File(BaseModel):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def coco_scenes(file: Path, images: Path) -> Scenes:
    """Read a COCO instances file: classes in the order of category ids, photos in the order of the file.

    `file_name` is relative to `images`.

    Raises:
        DataError: the file is not a COCO instances file, ids contradict each other, or photos are missing.
    """
    try:
        content = _File.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{file} is not a COCO instances file: {where}: {first['msg']}.") from None
    categories = sorted(content.categories, key=lambda category: category.id)
    number = {category.id: n for n, category in enumerate(categories)}
    own: dict[int, list[_Annotation]] = {image.id: [] for image in content.images}
    if len(own) < len(content.images):
        raise DataError(f"{file} has two images with the same id; give each image its own id.")
    for n, annotation in enumerate(content.annotations, 1):
        if annotation.image_id not in own:
            raise DataError(f"{file}, annotation {n}: no image has the id {annotation.image_id}; fix or remove it.")
        if annotation.category_id not in number:
            raise DataError(f"{file}, annotation {n}: no category has the id {annotation.category_id}; fix it.")
        own[annotation.image_id].append(annotation)
    scenes = tuple(_coco_scene(images / image.file_name, image, own[image.id], number) for image in content.images)
    _refuse_missing(scenes, images)
    return Scenes("coco", scenes, tuple(category.name for category in categories))


def _coco_scene(path: Path, image: _Image, objects: Sequence[_Annotation], number: dict[int, int]) -> Scene:
    if min(image.width, image.height) < 1:
        raise DataError(f"image {image.id} ({image.file_name}) has no size; add its width and height.")
    corners = np.array([o.bbox for o in objects], np.float64).reshape(-1, 4)
    sizes = corners[:, 2:].copy()
    corners[:, 2:] += corners[:, :2]
    return Scene(
        image=path,
        width=image.width,
        height=image.height,
        boxes=corners,
        classes=np.array([number[o.category_id] for o in objects], np.int64),
        ignored=np.array([o.iscrowd != 0 for o in objects], np.bool_),
        outlines=tuple(_outline(o.segmentation, image) for o in objects),
        areas=np.array([size.prod() if o.area is None else o.area for o, size in zip(objects, sizes, strict=True)]),
    )


def _outline(segmentation: list[list[float]] | dict[str, Any] | None, image: _Image) -> Any:
    """Return the outline to draw; polygons without an inside are dropped, as in detectron2."""
    if not isinstance(segmentation, list):
        if segmentation and run_lengths(segmentation.get("counts")).sum() != image.width * image.height:
            raise DataError(
                f"image {image.id} ({image.file_name}): the run lengths of an object are damaged, or do not cover "
                f"{image.width} x {image.height} pixels; fix or remove that segmentation."
            )
        return segmentation or None
    return [np.array(polygon) for polygon in segmentation if len(polygon) >= 6 and len(polygon) % 2 == 0] or None


def _refuse_missing(scenes: Sequence[Scene], images: Path) -> None:
    missing = [scene.image for scene in scenes if not scene.image.is_file()]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(scenes):,} photos are not in {images}, for example {missing[0].name}; give the "
            "folder of the photos."
        )


def voc_scenes(root: Path, year: Literal["2007", "2012"], split: Literal["train", "val", "trainval", "test"]) -> Scenes:
    """Read a split of a VOCdevkit folder: VOC2007/ImageSets/Main/SPLIT.txt, Annotations, JPEGImages.

    Raises:
        DataError: files are missing, XML is broken or dangerous, or VOC does not have a class.
    """
    base = root / f"VOC{year}"
    names = base / "ImageSets" / "Main" / f"{split}.txt"
    if not names.is_file():
        raise DataError(f"{names} does not exist; give the VOCdevkit folder, with VOC{year} in it.")
    scenes = tuple(_voc_scene(base, word) for word in first_words(names))
    _refuse_missing(scenes, base / "JPEGImages")
    return Scenes("voc", scenes, VOC_CLASSES)


def _voc_scene(base: Path, name: str) -> Scene:
    file = base / "Annotations" / f"{name}.xml"
    if not file.is_file():
        raise DataError(f"{file} does not exist, but the split lists its photo; unpack the annotations again.")
    try:
        page = read_page(file)
        if not all(map(math.isfinite, page.size)):
            raise ValueError("has no width and height of the photo (size)")
        if wrong := next((o for o in page.objects if o.name not in VOC_CLASSES), None):
            raise ValueError(f"{wrong.name!r} is not one of the 20 classes of VOC")
        if page.nameless or any(o.corners is None or not all(map(math.isfinite, o.corners)) for o in page.objects):
            raise ValueError("an object has no name, or no box (bndbox) of four numbers")
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise DataError(f"{file}: {xml_trouble(error)}; fix or remove it.") from None
    boxes = np.array([o.corners for o in page.objects], np.float64).reshape(-1, 4)
    return Scene(
        image=base / "JPEGImages" / f"{name}.jpg",
        width=int(page.size[0]),
        height=int(page.size[1]),
        boxes=boxes,
        classes=np.array([VOC_CLASSES.index(o.name) for o in page.objects], np.int64),
        ignored=np.array([o.difficult for o in page.objects], np.bool_),
        outlines=(None,) * len(boxes),
        areas=(boxes[:, 2:] - boxes[:, :2]).prod(1),
    )
