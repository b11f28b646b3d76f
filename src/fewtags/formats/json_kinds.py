"""JSON files of tools that are not read: what they are, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewtags.formats.locate import is_photo

_TABLE = "write a CSV with the columns image and tags, or image, class, x0, y0, x1 and y1 (fractions of the photo)"
_COCO = "which is not read; export it as COCO or Pascal VOC"
_LINES = "write one object per line instead, into a file that ends in .jsonl"
_KINDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"image_id", "category_id", "score"}), "looks like results of a detector; predictions are not labels"),
    (
        frozenset({"shapes", "imagePath"}),
        "looks like LabelMe, which has a file for each photo; pass their folder",
    ),
    (frozenset({"_via_img_metadata"}), f"looks like a project of VGG Image Annotator, {_COCO}"),
    (frozenset({"image", "annotations"}), f"looks like Create ML, {_COCO}"),
    (frozenset({"size", "objects", "tags"}), f"looks like Supervisely, {_COCO}"),
)
_LABEL_STUDIO = frozenset({"id", "annotator", "annotation_id"})


def kind_of_json(record: Mapping[str, Any]) -> str:
    """Return what a JSON object, or the first one of a list, looks like and what to do; "" if it is not known.

    >>> kind_of_json({"size": {}, "objects": [], "tags": []})[:44]
    'looks like Supervisely, which is not read; e'
    >>> kind_of_json({"a.jpg": ["cat"]})[:24], kind_of_json({"images": []})
    ('is an object with an ent', '')
    """
    if found := next((text for keys, text in _KINDS if keys <= record.keys()), ""):
        return found
    if record and all(map(is_photo, record)):
        return f"is an object with an entry for each photo, which is not read; {_TABLE}"
    values = [*record.values()]
    if values and all(isinstance(value, dict) and {"filename", "regions"} <= value.keys() for value in values):
        return f"looks like VGG Image Annotator, {_COCO}"
    if not _LABEL_STUDIO & record.keys() and any(isinstance(value, str) and is_photo(value) for value in values):
        return f"is a list of objects that name photos; {_LINES}"
    return ""
