"""Datumaro JSON: a file for each subset in `annotations`, with `categories` and `items`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import (
    NO_CORNERS,
    Corners,
    Point,
    attribute_readings,
    bounds,
    ellipse_corners,
    ends_of,
    finite_number,
    is_hidden,
    named_classes,
    plain_text,
    read_json,
    split_name,
    turned_corners,
)
from fewtags.formats.locate import folder_of, locate, spelling
from fewtags.formats.masks import MOST_PIXELS, Outline, box_of, draw_mask
from fewtags.formats.options import ReadOptions
from fewtags.formats.rated import Scores
from fewtags.formats.stated import Source, Stated, count_messages, value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import some

_Record = dict[str, Any]
_MARK = re.compile(r'"categories"\s*:\s*\{\s*(?:"(?:label|points|mask)"\s*:\s*\{|\})')
_PLACES = {
    "label": "",
    "bbox": ", with its box",
    "points": ", with each point",
} | dict.fromkeys(("polygon", "polyline", "mask", "ellipse", "rotated_bbox", "skeleton"), ", with its bounding box")
_NO_SIZE = (float("nan"), float("nan"))


def recognise(path: Path) -> str:
    """Return why a path is a Datumaro file, or a folder with such files in `annotations`; "" if it is neither."""
    if not path.is_dir():
        return "its JSON has categories of Datumaro" if is_datumaro(path) else ""
    files = [file for file in _files(path) if is_datumaro(file)]
    return f"{files[0].relative_to(path).as_posix()} is a Datumaro file" if files else ""


def is_datumaro(file: Path) -> bool:
    """Return whether a JSON file is of Datumaro: its categories are an object with the kinds of annotations."""
    text = ends_of(file)
    return text.lstrip().startswith("{") and _MARK.search(text) is not None


def _files(path: Path) -> list[Path]:
    """Return the JSON files of a data set; a single file stands for itself."""
    if path.is_file():
        return [path]
    folder = path if path.name == "annotations" else path / "annotations"
    return [file for file in sorted(folder.glob("*.json")) if not is_hidden(file.name)]


def read_datumaro(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a data set in the format of Datumaro (https://open-edge-platform.github.io/datumaro).

    - An annotation of the type label states that its class is present. The types bbox, points, polygon, polyline, mask,
      ellipse, rotated_bbox and skeleton also state where: the bounding box, or each visible point, in pixels of the
      declared size. With `places="points"` or "outlines", a random point is drawn in each polygon, mask, ellipse and
      rotated box.
    - Captions and other types name no class and are listed.
    - The classes are the labels of the files, in their order, including those that no image has. Files join their
      labels by name. Labels of one file that share a name (below different parents) stay apart.
    - Objects with the attribute `is_crowd` are read as `crowd` says. Other attributes are listed with their values.
      An attribute `score` between 0 and 1 is refused, as the result of a detector.
    - Items without annotations are kept. Classes that are not named are unknown, or absent if `complete`.
    - The subset is the name of the file: train.json, val.json and test.json are splits, default.json is none.
    - Photos are in `images`, or in the folder `images` beside `annotations`, perhaps in a folder for each subset.

    Raises:
        DataError: no file is of Datumaro, a file is broken, no label is named, objects have scores of a model, or
            most photos are missing.
    """
    options = options or ReadOptions()
    files = [file for file in _files(path) if path.is_file() or is_datumaro(file)]
    if not files:
        raise DataError(f"{path}: expected annotations/ with JSON files of Datumaro, or one such file.")
    read = _Items(options=options, stated=Stated(options))
    for file in files:
        read.file(file)
    if not read.classes:
        raise DataError(f"{path}: categories.label names no label, so there is nothing to learn.")
    home = folder_of(files[0]).parent
    beside = [home / "images", home, *dict.fromkeys(home / "images" / subset for subset in read.subsets)]
    beside += [folder_of(files[0]), folder_of(files[0]) / "images"]
    inside = [f"{subset}/{name}" for name, subset in zip(read.names, read.subsets, strict=True)]
    names = spelling([inside, read.names], file=files[0], images=images, beside=beside)
    splits = ["" if subset == "default" else split_name(subset) for subset in read.subsets]
    return Source(
        options=options,
        path=path,
        classes=ClassNames.of(read.classes, read.shown),
        labels=read.stated.labels(),
        photos=locate(names, file=files[0], images=images, beside=beside),
        unit="pixels",
        sizes=np.array(read.sizes, np.float64).reshape(-1, 2),
        complete=np.full(len(names), options.complete),
        origin=read.stated.origins.__getitem__,
        splits=splits if any(splits) else None,
        notes=_notes(path, read, options) + read.scores.notes(path, sum(read.kinds.values())),
    ).table()


@final
@dataclass(kw_only=True)
class _Items:
    """The contents of the files; grows while they are read. Names, subsets and sizes have one entry per item.

    Attributes:
        classes: position of each class by its id; `shown` has their names.
        kinds: number of annotations of each type and class, with how they are read.
        attributes: values of each attribute, with counts.
        scores: attributes that are scores of a model.
        silent: number of items without annotations.
    """

    options: ReadOptions
    stated: Stated
    classes: dict[str, int] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    subsets: list[str] = field(default_factory=list)
    sizes: list[Point] = field(default_factory=list)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    attributes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    silent: int = 0
    scores: Scores = field(default_factory=lambda: Scores(what="annotation"))
    excluded: list[Excluded] = field(default_factory=list)

    def file(self, file: Path) -> None:
        """Read the file of a subset."""
        data = read_json(file)
        items = data.get("items") if isinstance(data, dict) else None
        if not isinstance(items, list):
            what = some([*data], 8) if isinstance(data, dict) else repr(data)[:40]
            raise DataError(f"{file}: expected 'categories' and a list 'items' as Datumaro writes them; it has {what}.")
        own = self._labels(file, data)
        for i, item in enumerate(items):
            if not isinstance(item, dict):
                raise DataError(f"{file}: items[{i}] is {item!r:.40}; expected an object.")
            self._item(file, f"item {item.get('id', f'[{i}]')}", item, own)

    def _labels(self, file: Path, data: _Record) -> Sequence[int]:
        """Return the class of each label of a file."""
        categories = data.get("categories")
        label = categories.get("label") if isinstance(categories, dict) else None
        listed = label.get("labels") if isinstance(label, dict) else None
        names = {}
        for i, record in enumerate(listed if isinstance(listed, list) else []):
            name = plain_text(record.get("name")) if isinstance(record, dict) else ""
            if not name:
                raise DataError(
                    f"{file}: categories.label.labels[{i}] is {record!r:.60}; expected an object with a name."
                )
            names[i] = name
        found = named_classes(names)
        for key, name in zip(found.ids, found.names, strict=True):
            if self.classes.setdefault(key, len(self.classes)) == len(self.shown):
                self.shown.append(name)
        return [self.classes[key] for key in found.ids]

    def _item(self, file: Path, name: str, item: _Record, own: Sequence[int]) -> None:
        media = next((m for key in ("image", "media") if isinstance(m := item.get(key), dict)), {})
        photo = plain_text(media.get("path")) or plain_text(item.get("id"))
        if not photo:
            self.excluded.append(Excluded(name, "has no id and no path of a photo", str(file), "unusable"))
            return
        self.names.append(photo)
        self.subsets.append(file.stem)
        size = media.get("size")
        sides = [finite_number(n) for n in size] if isinstance(size, list) and len(size) == 2 else []
        self.sizes.append((sides[1], sides[0]) if sides else _NO_SIZE)
        annotations = item.get("annotations") or []
        if not isinstance(annotations, list):
            raise DataError(f"{file}: the annotations of {name} are {annotations!r:.40}; expected a list.")
        self.silent += not annotations
        for i, annotation in enumerate(annotations, 1):
            where = f"{file.name}, {name}, annotation {i}"
            if isinstance(annotation, dict):
                self._annotation(file, where, annotation, own)
            else:
                self.excluded.append(Excluded(where, f"is {annotation!r:.40}, not an object", str(file), "unusable"))

    def _annotation(self, file: Path, name: str, annotation: _Record, own: Sequence[int]) -> None:
        kind, number = plain_text(annotation.get("type")), annotation.get("label_id")
        if kind not in _PLACES:
            self.kinds[f"annotation of type {kind!r}", "ignored, it names no class that is read"] += 1
            return
        if number is None:
            self.kinds[f"{kind} without a label", "ignored"] += 1
            return
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(own):
            reason = f"label_id {number!r} is not among the {len(own)} labels"
            self.excluded.append(Excluded(name, reason, str(file), "unusable"))
            return
        given = annotation.get("attributes")
        crowd = False
        for key, value in given.items() if isinstance(given, dict) else ():
            crowd |= key == "is_crowd" and bool(value)
            if key != "is_crowd":
                self.attributes[str(key)][str(value)] += 1
                self.scores.add(str(key), value)
        class_ = own[number]
        state = Label.UNKNOWN if crowd and self.options.crowd == "unknown" else Label.POSITIVE
        image, origin = len(self.names) - 1, f"{name} ({self.shown[class_]})"
        shown = f"{kind} {self.shown[class_]!r}" + (" with is_crowd" if crowd else "")
        self.kinds[shown, f"{state.name.lower()}{_PLACES[kind]}"] += 1
        if kind == "points":
            for point in _seen(annotation) or [_NO_SIZE]:
                self.stated.add(image, class_, state=state, point=point, origin=origin)
            return
        box, outline = _region(kind, annotation)
        self.stated.add(image, class_, state=state, box=box, outline=outline, origin=origin)


def _numbers(value: object) -> list[float]:
    return [finite_number(n) for n in value] if isinstance(value, list) else []


def _pairs(value: object) -> list[Point]:
    """Return the points of x, y, x, y, ...; a point of NaN if a number is missing."""
    numbers = _numbers(value)
    return [*zip(numbers[::2], numbers[1::2], strict=False)] + ([_NO_SIZE] if len(numbers) % 2 else [])


def _seen(annotation: _Record) -> list[Point]:
    """Return the points of an annotation that are not marked as absent (visibility 0)."""
    points, visibility = _pairs(annotation.get("points")), annotation.get("visibility")
    seen = visibility if isinstance(visibility, list) and len(visibility) == len(points) else [2] * len(points)
    return [point for point, mark in zip(points, seen, strict=True) if mark != 0]


def _region(kind: str, annotation: _Record) -> tuple[Corners | None, Outline | None]:
    """Return the bounding box of an object in pixels (NaN if it is broken; None for a label), and its outline."""
    if kind == "label":
        return None, None
    if kind == "mask":
        return _mask(annotation.get("rle"))
    if kind == "skeleton":
        elements = annotation.get("elements")
        parts = [part for part in elements if isinstance(part, dict)] if isinstance(elements, list) else []
        return bounds([point for part in parts for point in _seen(part)]), None
    if kind in ("polygon", "polyline"):
        points = _pairs(annotation.get("points"))
        return bounds(points), Outline.of_polygon(points) if kind == "polygon" else None
    numbers = _numbers(annotation.get("bbox" if kind == "bbox" else kind, annotation.get("points")))
    if len(numbers) != (5 if kind == "rotated_bbox" else 4) or not np.isfinite(numbers).all():
        return NO_CORNERS, None
    a, b, c, d = numbers[:4]
    if kind == "bbox":
        return (a, b, a + c, b + d), None
    if kind == "ellipse":  # the corners of its bounding box
        return (a, b, c, d), Outline.of_polygon(
            ellipse_corners((a + c) / 2, (b + d) / 2, (c - a) / 2, (d - b) / 2, 0.0)
        )
    corners = turned_corners((a - c / 2, b - d / 2, a + c / 2, b + d / 2), numbers[4])
    return bounds(corners), Outline.of_polygon(corners)


def _mask(rle: object) -> tuple[Corners, Outline | None]:
    """Return the bounding box and the outline of run lengths as in COCO."""
    size = rle.get("size") if isinstance(rle, dict) else None
    if not (isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)):
        return NO_CORNERS, None
    if size[0] * size[1] > MOST_PIXELS:
        return NO_CORNERS, None
    box = box_of(draw_mask(rle, *size))
    return box, Outline(rle) if np.isfinite(box).all() else None


def _notes(path: Path, read: _Items, options: ReadOptions) -> Notes:
    unnamed = read.stated.labels().count_unnamed(len(read.names), len(read.classes))
    rest = "negative (complete)" if options.complete else "unknown"
    subsets = Counter(read.subsets)
    rows = [
        *((kind, meaning, n) for (kind, meaning), n in sorted(read.kinds.items())),
        *attribute_readings(read.attributes),
        ("class that is not named in an item", rest, unnamed),
        ("item without annotations", "nothing known" if not options.complete else rest, read.silent),
        *((f"subset {s!r}", f"split {split_name(s)!r}", n) for s, n in sorted(subsets.items()) if s != "default"),
    ]
    counts = (
        (
            *(len(read.excluded), "item or annotation left out, see the excluded list"),
            "items or annotations left out, see the excluded list",
        ),
    )
    where = path.resolve().name
    return Notes(value_readings(where, rows), tuple(read.excluded), count_messages(path, counts))
