"""The XML file of a photo in Pascal VOC: its objects, with boxes, polygons or rotated boxes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final
from xml.etree.ElementTree import Element

import defusedxml.ElementTree

from fewtags.formats.common import NO_CORNERS, Corners, Point, bounds, turned_corners, xml_number
from fewtags.formats.masks import Outline
from fewtags.formats.options import fold
from fewtags.formats.rated import SCORE_NAMES

_DIFFICULT, _EASY = frozenset({"1", "1.0", "true", "yes"}), frozenset({"", "0", "0.0", "false", "no"})
_NO_PLACES = frozenset({"part", "parts", "action", "actions", "attribute", "attributes", "pose"})
"""Elements of an object that can have numbers and do not say where it is."""
_SIDES = ("left_top", "right_top", "right_bottom", "left_bottom")
_MOST_RADIANS = 2 * math.pi + 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class VocObject:
    """An object of an XML file.

    Attributes:
        name: its class; "" if it has none.
        difficult: whether it is marked as difficult.
        unclear: what the file says about difficulty if it is neither yes nor no; it is taken as no.
        corners: the box in continuous pixels from 0, NaN if it is broken, None without a place.
        outline: the outline, if the file has one.
        shape: the element that `corners` come from: bndbox, polygon or robndbox; "" for none.
        unread: why its place is not read.
        scores: elements that are scores of a model, with their numbers.
        deleted: whether LabelMe has marked it as deleted.
    """

    name: str
    difficult: bool
    unclear: str
    corners: Corners | None
    outline: Outline | None = None
    shape: str = ""
    unread: str = ""
    scores: tuple[tuple[str, float], ...] = ()
    deleted: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class VocPage:
    """An XML file.

    Attributes:
        file: its path.
        filename: file name of the photo.
        size: width and height of the photo, NaN if broken.
        objects: the objects with a name.
        nameless: number of the objects without a name.
        deleted: number of the objects that are marked as deleted; they are not among `objects`.
    """

    file: Path
    filename: str
    size: tuple[float, float]
    objects: tuple[VocObject, ...]
    nameless: int
    deleted: int = 0


def read_page(file: Path) -> VocPage:
    """Read the XML file of a photo. VOC counts pixels from 1 and includes the last one, so x0 and y0 become one less.

    The corners of polygons and rotated boxes are positions in pixels from 0, and stay as they are.

    Raises:
        ValueError: the file is not an annotation of VOC; or ParseError or DefusedXmlException, see `xml_trouble`.
    """
    root = defusedxml.ElementTree.fromstring(file.read_bytes())
    if root.tag != "annotation":
        raise ValueError(f"begins with <{root.tag}> instead of <annotation>")
    found = [_object(element) for element in root.iterfind("object")]
    kept = [o for o in found if not o.deleted]
    return VocPage(
        file=file,
        filename=(root.findtext("filename") or "").strip(),
        size=(xml_number(root.findtext("size/width")), xml_number(root.findtext("size/height"))),
        objects=tuple(o for o in kept if o.name),
        nameless=sum(not o.name for o in kept),
        deleted=len(found) - len(kept),
    )


def _object(element: Element) -> VocObject:
    corners, outline, shape, unread = _place(element)
    word = (element.findtext("difficult") or "").strip()
    difficult = fold(word) in _DIFFICULT
    numbers = [(part.tag, xml_number(part.text)) for part in element if fold(str(part.tag)) in SCORE_NAMES]
    return VocObject(
        name=(element.findtext("name") or "").strip(),
        difficult=difficult,
        unclear=word if not difficult and fold(word) not in _EASY else "",
        corners=corners,
        outline=outline,
        shape=shape,
        unread=unread,
        scores=tuple((key, number) for key, number in numbers if math.isfinite(number)),
        deleted=fold(element.findtext("deleted") or "") in _DIFFICULT,
    )


def _place(element: Element) -> tuple[Corners | None, Outline | None, str, str]:
    """Return box, outline, the element that they come from, and why the place is not read."""
    polygons = [_corners(polygon) for polygon in element.iterfind("polygon")]
    turned = element.find("robndbox")
    shape, unread = "polygon" if polygons else "", ""
    if not polygons and turned is not None:
        corners, unread = _turned(turned)
        polygons, shape = [corners], "robndbox"
    drawn = bounds([point for corners in polygons for point in corners])
    outline = Outline([[n for point in corners for n in point] for corners in polygons])
    whole = all(map(math.isfinite, drawn))
    box = element.find("bndbox")
    if box is not None:
        x0, y0, x1, y1 = (xml_number(box.findtext(key)) for key in ("xmin", "ymin", "xmax", "ymax"))
        plain = (x0 - 1, y0 - 1, x1, y1)
        if all(map(math.isfinite, plain)) or not whole:
            return plain, outline if whole else None, "bndbox", ""
    if shape:
        return (None, None, shape, unread) if unread else (drawn, outline if whole else None, shape, "")
    other = next((part.tag for part in element if _is_place(part)), "")
    return None, None, "", f"its place is written as <{other}>, which is not read" if other else ""


def _is_place(part: Element) -> bool:
    """Return whether an element of an unknown kind has numbers inside."""
    if fold(str(part.tag)) in _NO_PLACES:
        return False
    return any(math.isfinite(xml_number(inner.text)) for inner in part.iter() if inner is not part)


def _corners(polygon: Element) -> list[Point]:
    """Return the corners of a polygon: x1, y1, x2, ... as Roboflow writes it, or <pt> with <x> and <y> as LabelMe does.

    A corner with a number that is missing or broken is NaN.
    """
    parts = [part for part in polygon if part.find("x") is not None or part.find("y") is not None]
    if parts:
        return [(xml_number(part.findtext("x")), xml_number(part.findtext("y"))) for part in parts]
    numbers = {match[0] for part in polygon if (match := re.fullmatch(r"[xy](\d+)", str(part.tag)))}
    ordered = sorted({int(tag[1:]) for tag in numbers})
    return [(xml_number(polygon.findtext(f"x{n}")), xml_number(polygon.findtext(f"y{n}"))) for n in ordered]


def _turned(element: Element) -> tuple[list[Point], str]:
    """Return the corners of a rotated box, and why it is not read: centre, sides and angle, or its four corners."""

    def numbers(*keys: str) -> Iterator[float]:
        return (xml_number(element.findtext(key)) for key in keys)

    if element.find("x_left_top") is not None:
        return [*zip(numbers(*(f"x_{s}" for s in _SIDES)), numbers(*(f"y_{s}" for s in _SIDES)), strict=True)], ""
    cx, cy, w, h, angle = numbers("cx", "cy", "w", "h", "angle")
    if abs(angle) > _MOST_RADIANS:
        return [], f"the angle of its <robndbox> is {angle:g}, but angles are in radians, at most 6.28"
    if not all(map(math.isfinite, (cx, cy, w, h, angle))) or min(w, h) < 0:
        return [NO_CORNERS[:2]], ""
    return turned_corners((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), math.degrees(angle)), ""
