"""CVAT XML 1.1 "for images": shapes and tags of each image, as CVAT exports them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
from defusedxml.common import DefusedXmlException

from fewtags.errors import DataError
from fewtags.formats.common import number_of, split_name, xml_trouble
from fewtags.formats.locate import folder_of, locate, spelling
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.stated import NO_CORNERS, Corners, Source, Stated, count_messages, value_readings
from fewtags.labels import ClassNames
from fewtags.table.table import Excluded, LabelTable, Notes

_HULL = ", with its bounding box"
_SHAPES = {
    "box": ", with its box",
    "polygon": _HULL,
    "polyline": _HULL,
    "ellipse": _HULL,
    "mask": _HULL,
    "cuboid": _HULL,
    "skeleton": _HULL,
    "points": ", with each point",
    "tag": "",
}
_MOST_VALUES = 20


def recognise(path: Path) -> str:
    """Return the mark of CVAT in a path, or "" if there is none."""
    if not path.is_dir():
        return "one XML file"
    return "annotations.xml" if (path / "annotations.xml").is_file() else ""


def read_cvat(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read an export "CVAT for images 1.1".

    - A tag states that its class is present. A shape also states where: boxes, the bounding boxes of rotated boxes,
      polygons, polylines, ellipses, masks, cuboids and skeletons, and each point of `points`, all in pixels of the
      declared width and height.
    - A tag named like `none_folder` states that the image shows none of the classes.
    - The classes are the labels of the file, in its order, including those that no image has. Parts of skeletons are
      not classes.
    - Occluded and automatic shapes are read like the others; facts record a `source` other than "manual". Attributes
      are listed with their values, and not used.
    - Images without a shape or tag are kept. Classes that are not named are unknown, or absent if `complete`.
    - The split is the `subset` of the image, or of the task.

    Args:
        path: the XML file, or the folder with `annotations.xml`.
        images: folder that the names are relative to; None looks beside the file and in `images`.
        options: `complete` and `none_folder` have an effect.

    Returns:
        a table with the images in the order of the file.

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
    above = folder_of(file)
    beside = [above, above / "images", above.parent / "images"]
    subsets = [f"{subset}/{name}" if subset else name for name, subset in zip(page.names, page.subsets, strict=True)]
    names = spelling([page.names, subsets], file=file, images=images, beside=beside)
    splits = [split_name(subset) for subset in page.subsets]
    return Source(
        path=file,
        classes=classes,
        labels=page.stated.labels(),
        photos=locate(names, file=file, images=images, beside=beside),
        unit="pixels",
        sizes=np.array(page.sizes, np.float64).reshape(-1, 2),
        complete=np.full(len(page.names), options.complete),
        empty=np.array(page.empty, np.bool_),
        origin=page.origins.__getitem__,
        splits=splits if any(splits) else None,
        sources=(file.name, *(f"{file.name}: {source}" for source in page.sources)),
        notes=_notes(file, page, options),
    ).table()


@final
@dataclass(kw_only=True)
class _Page:
    """The contents of an XML file; grows while it is read.

    Attributes:
        classes: position of each class.
        subset: the subset of the whole task.
        names: name of each image.
        subsets: subset of each image.
        sizes: width and height of each image.
        size_of: width and height by image name.
        empty: whether each image is tagged as showing none of the classes.
        stated: the labels.
        origins: what to call each label.
        sources: number of each source other than "manual".
        kinds: number of labels of each shape and class.
        occluded: number of occluded shapes.
        by: number of shapes and tags of each source.
        attributes: values of each attribute, with counts.
        ignored: elements that are not shapes, with counts.
        excluded: what was left out.
    """

    classes: dict[str, int] = field(default_factory=dict)
    subset: str = ""
    names: list[str] = field(default_factory=list)
    subsets: list[str] = field(default_factory=list)
    sizes: list[tuple[float, float]] = field(default_factory=list)
    size_of: dict[str, tuple[float, float]] = field(default_factory=dict)
    empty: list[bool] = field(default_factory=list)
    stated: Stated = field(default_factory=Stated)
    origins: list[str] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    occluded: int = 0
    by: Counter[str] = field(default_factory=Counter)
    attributes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ignored: Counter[str] = field(default_factory=Counter)
    excluded: list[Excluded] = field(default_factory=list)


def _read(file: Path, options: ReadOptions) -> _Page:
    page = _Page()
    for element in _elements(file):
        if element.tag == "meta":
            _meta(element, page, options)
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


def _meta(meta: Element, page: _Page, options: ReadOptions) -> None:
    for label in meta.iterfind("./*/labels/label"):
        name = (label.findtext("name") or "").strip()
        part = (label.findtext("parent") or "").strip()  # of a skeleton
        if name and not part and not _is_none(name, options):
            page.classes.setdefault(name, len(page.classes))
    page.subset = (meta.findtext("./task/subset") or meta.findtext("./job/subset") or "").strip()


def _is_none(name: str, options: ReadOptions) -> bool:
    return bool(options.none_folder) and fold(name) == fold(options.none_folder)


def _image(image: Element, page: _Page, options: ReadOptions, file: Path) -> None:
    name = image.get("name", "").strip()
    if not name:
        page.excluded.append(Excluded(f"image {image.get('id', '?')}", "has no name", str(file), "unusable"))
        return
    page.names.append(name)
    page.subsets.append(image.get("subset", "").strip() or page.subset)
    size = _number(image.get("width")), _number(image.get("height"))
    if (before := page.size_of.setdefault(name, size)) != size and all(map(math.isfinite, (*before, *size))):
        raise ValueError(f"gives image {name!r} {before[0]:g} x {before[1]:g} and {size[0]:g} x {size[1]:g} pixels")
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
        elif element.tag == "tag" and _is_none(label, options):
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
        for point in _points(element.get("points", "")):
            page.stated.add(image, class_, point=point, source=source)
            page.origins.append(origin)
    else:
        page.stated.add(image, class_, box=_box(element), source=source)
        page.origins.append(origin)


def _box(element: Element) -> Corners | None:
    """Return the bounding box of a shape in pixels, NaN if it is broken; None for a tag."""
    match element.tag:
        case "tag":
            return None
        case "box":
            x0, y0, x1, y1 = (_number(element.get(key)) for key in ("xtl", "ytl", "xbr", "ybr"))
            return _rotated((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, _number(element.get("rotation", "0")))
        case "ellipse":
            cx, cy, rx, ry = (_number(element.get(key)) for key in ("cx", "cy", "rx", "ry"))
            if min(rx, ry) < 0:
                return NO_CORNERS
            return _rotated_ellipse(cx, cy, rx, ry, _number(element.get("rotation", "0")))
        case "mask":
            x, y, w, h = (_number(element.get(key)) for key in ("left", "top", "width", "height"))
            return x, y, x + w, y + h
        case "cuboid":
            corners = [(axis, _number(value)) for key, value in element.items() if (axis := _corner_axis(key))]
            return _hull([n for axis, n in corners if axis == "x"], [n for axis, n in corners if axis == "y"])
        case "skeleton":
            seen = [part for part in element.iterfind("points") if part.get("outside") != "1"]
            points = [point for part in seen for point in _points(part.get("points", ""))]
        case _:
            points = _points(element.get("points", ""))
    return _hull([x for x, _ in points], [y for _, y in points])


def _corner_axis(key: str) -> str:
    """Return the axis of a corner of a cuboid (xtl1, ytl1, xbl1, ..., ybr2), "" for other keys."""
    return key[0] if len(key) == 4 and key[0] in "xy" and key[1] in "tb" and key[2] in "lr" and key[3] in "12" else ""


def _rotated(cx: float, cy: float, w: float, h: float, degrees: float) -> Corners:
    """Return the bounding box of a box rotated about its centre; 0 degrees return the box as it is written."""
    if degrees == 0:
        return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    x, y = (w * cos + h * sin) / 2, (w * sin + h * cos) / 2
    return cx - x, cy - y, cx + x, cy + y


def _rotated_ellipse(cx: float, cy: float, rx: float, ry: float, degrees: float) -> Corners:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = math.hypot(rx * cos, ry * sin), math.hypot(rx * sin, ry * cos)
    return cx - x, cy - y, cx + x, cy + y


def _points(text: str) -> list[tuple[float, float]]:
    """Return the points of "x,y;x,y", NaN for those that are not two numbers."""
    pairs = [pair.split(",") for pair in text.split(";")]
    return [(_number(pair[0]), _number(pair[1])) if len(pair) == 2 else (math.nan, math.nan) for pair in pairs]


def _hull(x: Sequence[float], y: Sequence[float]) -> Corners:
    if not x or not y or not all(map(math.isfinite, (*x, *y))):
        return NO_CORNERS
    return min(x), min(y), max(x), max(y)


def _number(text: str | None) -> float:
    number = number_of(text or "nan")
    return number if math.isfinite(number) else math.nan


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
        *_attribute_readings(page.attributes),
        ("class that is not named in an image", rest, labels.count_unnamed(len(page.names), len(page.classes))),
        ("image without shape or tag", "nothing known" if not options.complete else rest, len(page.names) - labelled),
        *((f"subset {subset!r}", f"split {split_name(subset)!r}", n) for subset, n in _subsets(page)),
    ]
    counts = (
        (len(page.excluded), "images, shapes or tags left out, see the excluded list"),
        (len(page.names) - len(set(page.names)), "images are listed more than once, and are joined"),
        *((n, f"elements <{tag}> in images ignored") for tag, n in sorted(page.ignored.items())),
    )
    return Notes(value_readings(file.name, rows), tuple(page.excluded), count_messages(file, counts))


def _attribute_readings(attributes: Mapping[str, Counter[str]]) -> Iterator[tuple[str, str, int]]:
    for name, values in sorted(attributes.items()):
        for value, n in values.most_common(_MOST_VALUES):
            yield f"attribute {name!r} = {value!r}", "not used", n
        if len(values) > _MOST_VALUES:
            rest = sum(values.values()) - sum(n for _, n in values.most_common(_MOST_VALUES))
            yield f"attribute {name!r} = {len(values) - _MOST_VALUES:,} other values", "not used", rest


def _subsets(page: _Page) -> list[tuple[str, int]]:
    return sorted((subset, n) for subset, n in Counter(page.subsets).items() if subset)
