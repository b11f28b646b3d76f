"""CVAT XML 1.1 "for images": shapes and tags of each image, as CVAT exports them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
from defusedxml.common import DefusedXmlException

from fewtags.errors import DataError
from fewtags.formats.common import (
    Corners,
    Point,
    attribute_readings,
    bounds,
    ellipse_bounds,
    ellipse_corners,
    split_name,
    turned_corners,
    xml_number,
    xml_trouble,
)
from fewtags.formats.locate import locate, spelling, usual_folders
from fewtags.formats.masks import Outline
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Source, Stated, count_messages, value_readings
from fewtags.labels import ClassNames
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import quoted

_SHAPES = {"box": ", with its box", "points": ", with each point", "tag": ""} | dict.fromkeys(
    ("polygon", "polyline", "ellipse", "mask", "cuboid", "skeleton"), ", with its bounding box"
)
_CUBOID = [f"{row}{side}{face}" for row in "tb" for side in "lr" for face in "12"]


def recognise(path: Path) -> str:
    """Return the mark of CVAT in a path, or "" if there is none."""
    if not path.is_dir():
        return "one XML file"
    return "annotations.xml" if (path / "annotations.xml").is_file() else ""


def read_cvat(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read an export "CVAT for images 1.1": the XML file, or the folder with `annotations.xml`.

    - A tag states that its class is present. A shape also states where: boxes, the bounding boxes of rotated boxes,
      polygons, polylines, ellipses, masks, cuboids and skeletons, and each point of `points`, all in pixels of the
      declared width and height.
      With `places="points"` or "outlines", a random point is drawn in each polygon, mask, ellipse and rotated box.
    - A tag named like `none_folder` states that the image shows none of the classes.
    - The classes are the labels of the file, in its order, including those that no image has. Parts of skeletons are
      not classes.
    - Occluded and automatic shapes are read like the others; facts record a `source` other than "manual". Attributes
      are listed with their values, and not used.
    - Images without a shape or tag are kept. Classes that are not named are unknown, or absent if `complete`.
    - The split is the `subset` of the image, or of the task.

    Raises:
        DataError: the XML is broken, dangerous or of another kind, or most photos are missing.
    """
    options = options or ReadOptions()
    file = path / "annotations.xml" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{path}: expected the annotations.xml of CVAT, or its folder.")
    try:
        page = _read(file, options)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise DataError(f"{file}: {xml_trouble(error)}; export it again as 'CVAT for images 1.1'.") from None
    classes = ClassNames.of(page.classes)
    if not len(classes):
        raise DataError(f"{file}: the file names no label, so there is nothing to learn.")
    beside = usual_folders(file)
    subsets = [f"{subset}/{name}" if subset else name for name, subset in zip(page.names, page.subsets, strict=True)]
    names = spelling([page.names, subsets], file=file, images=images, beside=beside)
    splits = [split_name(subset) for subset in page.subsets]
    return Source(
        options=options,
        path=file,
        classes=classes,
        labels=page.stated.labels(),
        photos=locate(names, file=file, images=images, beside=beside),
        unit="pixels",
        sizes=np.array(page.sizes, np.float64).reshape(-1, 2),
        complete=np.full(len(page.names), options.complete),
        empty=np.array(page.empty, np.bool_),
        origin=page.stated.origins.__getitem__,
        splits=splits if any(splits) else None,
        sources=(file.name, *(f"{file.name}: {source}" for source in page.sources)),
        notes=_notes(file, page, options),
    ).table()


@final
@dataclass(kw_only=True)
class _Page:
    """The contents of an XML file; grows while it is read. Names, subsets, sizes and `empty` have one entry per image.

    Attributes:
        subset: the subset of the whole task.
        size_of: width and height by image name.
        sources: number of each source other than "manual".
        kinds: number of labels of each shape and class.
        by: number of shapes and tags of each source.
        attributes: values of each attribute, with counts.
        ignored: elements that are not shapes, with counts.
    """

    classes: dict[str, int] = field(default_factory=dict)
    subset: str = ""
    names: list[str] = field(default_factory=list)
    subsets: list[str] = field(default_factory=list)
    sizes: list[tuple[float, float]] = field(default_factory=list)
    size_of: dict[str, tuple[float, float]] = field(default_factory=dict)
    empty: list[bool] = field(default_factory=list)
    stated: Stated = field(default_factory=Stated)
    sources: dict[str, int] = field(default_factory=dict)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    occluded: int = 0
    by: Counter[str] = field(default_factory=Counter)
    attributes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ignored: Counter[str] = field(default_factory=Counter)
    excluded: list[Excluded] = field(default_factory=list)


def _read(file: Path, options: ReadOptions) -> _Page:
    page = _Page(stated=Stated(options))
    for element in _elements(file):
        if element.tag == "meta":
            for label in element.iterfind("./*/labels/label"):
                name, parent = ((label.findtext(key) or "").strip() for key in ("name", "parent"))
                if name and not parent and not options.is_none(name):  # a label with a parent is part of a skeleton
                    page.classes.setdefault(name, len(page.classes))
            page.subset = (element.findtext("./task/subset") or element.findtext("./job/subset") or "").strip()
        elif element.tag == "image":
            _image(element, page, options, file)
        elif element.tag == "track":
            raise ValueError("has tracks, as in 'CVAT for video'")
        elif element.tag != "version":
            page.excluded.append(Excluded(f"element <{element.tag}>", "is an unknown element", str(file), "unusable"))
    return page


def _elements(file: Path) -> Iterator[Element]:
    """Yield the children of the root; each is freed before the next is read, so that large files fit in memory."""
    depth, root = 0, None
    with file.open("rb") as stream:
        for event, element in defusedxml.ElementTree.iterparse(stream, events=("start", "end")):
            depth += 1 if event == "start" else -1
            if event == "start" and depth == 1:
                root = element
                if root.tag != "annotations":
                    hint = " (a VOC file: pass its folder)" if root.tag == "annotation" else ""
                    raise ValueError(f"begins with <{root.tag}>{hint} instead of <annotations>")
            elif event == "end" and depth == 1 and root is not None:
                yield element
                root.clear()


def _image(image: Element, page: _Page, options: ReadOptions, file: Path) -> None:
    name = image.get("name", "").strip()
    if not name:
        page.excluded.append(Excluded(f"image {image.get('id', '?')}", "has no name", str(file), "unusable"))
        return
    size = xml_number(image.get("width")), xml_number(image.get("height"))
    if (before := page.size_of.setdefault(name, size)) != size and all(map(math.isfinite, (*before, *size))):
        raise ValueError(
            f"gives image {quoted(name)} {before[0]:g} x {before[1]:g} and {size[0]:g} x {size[1]:g} pixels"
        )
    page.names.append(name)
    page.subsets.append(image.get("subset", "").strip() or page.subset)
    page.sizes.append(size)
    page.empty.append(False)
    for i, element in enumerate(image, 1):
        label, origin = element.get("label", "").strip(), f"{name}, {element.tag} {i}"
        if element.tag not in _SHAPES and not label:
            page.ignored[element.tag] += 1
        elif element.tag not in _SHAPES:
            page.excluded.append(Excluded(f"{origin} ({label})", "has an unknown shape", str(file), "unusable"))
        elif not label:
            page.excluded.append(Excluded(origin, "has no label", str(file), "unusable"))
        elif element.tag == "tag" and options.is_none(label):
            page.empty[-1] = True
            page.kinds["tag", label] += 1
        else:
            _state(element, label, f"{origin} ({label})", page)


def _state(element: Element, label: str, origin: str, page: _Page) -> None:
    """Add the labels of a shape or tag: one, or one for each point of `points`."""
    by = element.get("source", "").strip()
    source = 0 if by in ("", "manual") else page.sources.setdefault(by, len(page.sources) + 1)
    class_ = page.classes.setdefault(label, len(page.classes))
    page.kinds[element.tag, label] += 1
    page.by[by or "(none)"] += 1
    page.occluded += element.get("occluded") == "1"
    for attribute in element.iterfind("attribute"):
        page.attributes[attribute.get("name", "")][(attribute.text or "").strip()] += 1
    image = len(page.names) - 1
    if element.tag == "points":
        for point in _points(element):
            page.stated.add(image, class_, point=point, source=source, origin=origin)
    else:
        outline = _outline(element)
        page.stated.add(image, class_, box=_box(element), outline=outline, source=source, origin=origin)


def _box(element: Element) -> Corners | None:
    """Return the bounding box of a shape in pixels, NaN if it is broken; None for a tag."""

    def numbers(*keys: str) -> Iterator[float]:
        return (xml_number(element.get(key)) for key in keys)

    rotation = xml_number(element.get("rotation", "0"))
    match element.tag:
        case "tag":
            return None
        case "box":
            x0, y0, x1, y1 = numbers("xtl", "ytl", "xbr", "ybr")
            return _rotated((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, rotation)
        case "ellipse":
            cx, cy, rx, ry = numbers("cx", "cy", "rx", "ry")
            return ellipse_bounds(cx, cy, rx, ry, rotation)
        case "mask":
            x, y, w, h = numbers("left", "top", "width", "height")
            return x, y, x + w, y + h
        case "cuboid":
            given = [corner for corner in _CUBOID if f"x{corner}" in element.attrib]
            return bounds([*zip(numbers(*(f"x{c}" for c in given)), numbers(*(f"y{c}" for c in given)), strict=True)])
        case "skeleton":
            seen = [part for part in element.iterfind("points") if part.get("outside") != "1"]
            return bounds([point for part in seen for point in _points(part)])
        case _:
            return bounds(_points(element))


def _outline(element: Element) -> Outline | None:
    """Return the outline of a shape in pixels; None for a shape without one, such as a box that is not rotated."""

    def number(key: str) -> float:
        return xml_number(element.get(key, "0"))

    rotation = number("rotation")
    if element.tag == "polygon":
        return Outline.of_polygon(_points(element))
    if element.tag == "ellipse":
        cx, cy, rx, ry = map(number, ("cx", "cy", "rx", "ry"))
        return Outline.of_polygon(ellipse_corners(cx, cy, rx, ry, rotation))
    if element.tag == "box" and rotation:
        x0, y0, x1, y1 = map(number, ("xtl", "ytl", "xbr", "ybr"))
        return Outline.of_polygon(turned_corners((x0, y0, x1, y1), rotation))
    if element.tag == "mask":
        left, top, width, height = map(number, ("left", "top", "width", "height"))
        counts = [int(word) if word.strip().isdecimal() else -1 for word in element.get("rle", "").split(",")]
        size = [int(n) if math.isfinite(n) else 0 for n in (width, height)]
        return Outline({"size": size, "counts": counts}, corner=(left, top), by_rows=True)
    return None


def _rotated(cx: float, cy: float, w: float, h: float, degrees: float) -> Corners:
    """Return the bounding box of a box rotated about its centre; 0 degrees return the box as it is written."""
    if degrees == 0:
        return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    x, y = (w * cos + h * sin) / 2, (w * sin + h * cos) / 2
    return cx - x, cy - y, cx + x, cy + y


def _points(element: Element) -> list[Point]:
    """Return the points of "x,y;x,y", NaN for those that are not two numbers."""
    pairs = [pair.split(",") for pair in element.get("points", "").split(";")]
    return [(xml_number(pair[0]), xml_number(pair[1])) if len(pair) == 2 else (math.nan,) * 2 for pair in pairs]


def _notes(file: Path, page: _Page, options: ReadOptions) -> Notes:
    labels = page.stated.labels()
    labelled = len({*labels.image.tolist(), *np.flatnonzero(page.empty).tolist()})
    rest = "negative (complete)" if options.complete else "unknown"
    rows = [
        *(
            (f"{tag} {label!r}", "none of the classes" if label not in page.classes else f"positive{_SHAPES[tag]}", n)
            for (tag, label), n in sorted(page.kinds.items())
        ),
        ("occluded = 1", "positive, as the others", page.occluded),
        *((f"source {source!r}", "positive, as the others", n) for source, n in sorted(page.by.items())),
        *attribute_readings(page.attributes),
        ("class that is not named in an image", rest, labels.count_unnamed(len(page.names), len(page.classes))),
        ("image without shape or tag", "nothing known" if not options.complete else rest, len(page.names) - labelled),
        *((f"subset {s!r}", f"split {split_name(s)!r}", n) for s, n in sorted(Counter(page.subsets).items()) if s),
    ]
    elements = sorted(page.ignored.items())
    counts = (
        (
            *(len(page.excluded), "image, shape or tag left out, see the excluded list"),
            "images, shapes or tags left out, see the excluded list",
        ),
        (
            *(len(page.names) - len(set(page.names)), "image is listed again, and joined with the one before"),
            "images are listed again, and joined with those before",
        ),
        *((n, f"element <{tag}> in images ignored", f"elements <{tag}> in images ignored") for tag, n in elements),
    )
    return Notes(value_readings(file.name, rows), tuple(page.excluded), count_messages(file, counts))
