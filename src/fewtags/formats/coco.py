"""COCO JSON: `images`, `annotations` and `categories`, with what LVIS and Objects365 add."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.boxes import fault_text, place_boxes
from fewtags.formats.coco_places import find_places, outlines_to_points, without_outlines
from fewtags.formats.common import ReadOptions, close_images, distinct, named_classes, plain_text, read_json, split_name
from fewtags.formats.locate import Located, folder_of, locate, spelling
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, LabelTable, Notes, ValueReading
from fewtags.text import some

_Record = dict[str, Any]

_OBJECTS365 = re.compile(r"images/v\d/patch\d+/objects365_v\d_\d+\.jpg")
_FLAGS = {"isfake": "positive (a picture of the object)", "isreflected": "positive (a reflection of the object)"}


def read_coco(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a COCO instances file.

    - Classes come in the order of their category ids and are called by name; categories that share a name stay apart
      (ids "crane#7" and "crane#9", both displayed as "crane").
    - An annotation says that its class is present, and where: `bbox` in pixels of the declared width and height, which
      may differ from those of the photo file. A box that cannot be used is left out; its label is kept.
    - `places` "points": a point in place of each box, drawn anywhere in the mask (`segmentation`: polygons, or run
      lengths, compressed or not), or in the box where no pixel is in the mask; sides below a pixel are widened to one.
      It hangs on `point_seed` and the annotation's id alone. About 0.2 ms for each annotation. "none": labels only.
    - Images without annotations stay. What is not annotated is unknown, or absent if `complete`.
    - LVIS: `neg_category_ids` are known to be absent; `not_exhaustive_category_ids` says nothing about presence.
    - Objects365: `isfake` and `isreflected` change nothing. Its names, images/v1/patch8/objects365_v1_00420917.jpg, are
      also found as patch8/objects365_v1_00420917.jpg, as its archives unpack, and without folders.
    - An entry `split` of the images is taken.

    Args:
        path: the JSON file.
        images: folder that `file_name` is relative to; None looks beside the file.
        options: `complete`, `crowd`, `places` and `point_seed` count.

    Returns:
        a table with the images in the order of the file.

    Raises:
        DataError: not a COCO file, contradictory ids, most photos missing, or no usable annotation.
    """
    options = options or ReadOptions()
    file = _load(path, outlines_to_points(options.point_seed) if options.places == "points" else without_outlines)
    classes, category = _classes(file)
    entries = _entries(file, images)
    objects = _objects(file, entries, category)
    photos = entries.photos
    open_ = objects.crowd & (options.crowd == "unknown")
    facts = objects.take(~open_)
    records, sizes = [file.annotations[i] for i in facts.index.tolist()], entries.sizes[facts.image]
    where = find_places(records, facts.pixels, facts.boxed, sizes, options)
    placed = place_boxes(where.pixels, where.given, facts.image, entries.sizes, photos, where.points)
    absent, bad = _negatives(file, entries, category)
    n, c = len(photos.keys), len(classes)
    closed, covers = (
        close_images(n, c, objects.image[open_], objects.class_[open_]) if options.complete else (None, None)
    )
    faults = [
        Excluded(
            _name(file.annotations[i], i), f"{fault_text(fault, point)}; its label is kept", str(path), "bad-place"
        )
        for i, fault, point in zip(facts.index.tolist(), placed.fault.tolist(), where.points.tolist(), strict=True)
        if fault
    ]
    image = np.concatenate([facts.image, absent[:, 0]])
    class_ = np.concatenate([facts.class_, absent[:, 1]])
    named = distinct(np.concatenate([objects.image * c + objects.class_, absent @ [c, 1]]))
    notes = Notes(
        _readings(path, objects, options, len(absent), n, n * c - len(named))
        + _flag_readings(file)
        + _split_readings(path, entries),
        (*entries.excluded, *objects.excluded, *bad, *faults),
        tuple(f"{path.name}: {text}" for text in where.messages)
        + placed.messages
        + _messages(file, entries, objects, len(faults), "points" if options.places == "points" else "boxes"),
        placed.warnings,
    )
    return LabelTable.build(
        photos.keys,
        classes,
        image=image,
        class_=class_,
        state=np.repeat([Label.POSITIVE, Label.NEGATIVE], [len(facts.image), len(absent)]),
        locations=np.concatenate([placed.locations, np.full((len(absent), 4), np.nan)]),
        source=path.name,
        complete_set=closed,
        complete_classes=covers,
        root=photos.root,
        split=entries.splits,
        notes=photos.notes + notes,
    )


@final
@dataclass(frozen=True)
class _File:
    path: Path
    images: list[_Record]
    annotations: list[_Record]
    categories: list[_Record]


def _load(path: Path, hook: Callable[[_Record], _Record]) -> _File:
    data = read_json(path, hook)
    if isinstance(data, list):
        raise DataError(
            f"{path}: a list, as detectors write their results; pass the file with images, annotations and categories."
        )
    parts = []
    for key in ("images", "annotations", "categories"):
        part = data.get(key) if isinstance(data, dict) else None
        if not isinstance(part, list):
            found = some(list(data), 8) if isinstance(data, dict) else repr(data)[:40]
            raise DataError(f"{path}: expected a list {key!r} as in COCO instances files; the file holds {found}.")
        if (wrong := next((i for i, record in enumerate(part) if not isinstance(record, dict)), None)) is not None:
            raise DataError(f"{path}: {key}[{wrong}] is {part[wrong]!r:.40}; expected an object.")
        parts.append(part)
    return _File(path, *parts)


def _classes(file: _File) -> tuple[ClassNames, dict[Any, int]]:
    """The vocabulary, and the class of each category id."""
    names: dict[int | str, str] = {}
    for i, record in enumerate(file.categories):
        key, name = record.get("id"), plain_text(record.get("name"))
        if not isinstance(key, int | str) or not name:
            raise DataError(
                f"{file.path}: categories[{i}] has id {key!r} and name {record.get('name')!r}; both must be given."
            )
        if key in names:
            raise DataError(
                f"{file.path}: category id {key!r} stands for {names[key]!r} and for {name!r}; renumber one."
            )
        names[key] = name
    if not names:
        raise DataError(f"{file.path}: there are no categories, so there is nothing to learn.")
    order = sorted(names, key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0, str(key)))
    return named_classes({key: names[key] for key in order}), {key: i for i, key in enumerate(order)}


@final
@dataclass(frozen=True)
class _Entries:
    """The images of a file: row of each image id in `photos.keys` (-1: left out), and per row its size and split."""

    row: dict[Any, int]
    photos: Located
    sizes: NDArray[np.float64]
    splits: list[str] | None
    split_words: Counter[str]
    excluded: tuple[Excluded, ...]


def _entries(file: _File, images: Path | None) -> _Entries:
    path = file.path
    named: dict[Any, str] = {}
    excluded = []
    for i, record in enumerate(file.images):
        key, name = record.get("id"), _file_name(record)
        if not isinstance(key, int | str):
            raise DataError(f"{path}: images[{i}] has id {key!r}; expected a number.")
        if named.get(key, name) != name:
            raise DataError(f"{path}: image id {key!r} stands for {named[key]!r} and for {name!r}; renumber one.")
        named[key] = name
        if not name:
            excluded.append(Excluded(f"image {key}", "has no file_name", str(path), "unusable"))
    present = [key for key, name in named.items() if name]
    above = folder_of(path)
    split = path.stem.split("_")[-1]
    beside = [near / part for near in (above, above.parent) for part in ("", "images", split, f"images/{split}")]
    names: Sequence[str] = [named[key] for key in present]
    if names and all(map(_OBJECTS365.fullmatch, names)):
        variants = [["/".join(name.split("/")[-last:]) for name in names] for last in (4, 2, 1)]
        names = spelling(variants, file=path, images=images, beside=beside)
    photos = locate(names, file=path, images=images, beside=beside)
    row = dict.fromkeys(named, -1) | dict(zip(present, photos.image.tolist(), strict=True))
    sizes = np.full((len(photos.keys), 2), np.nan)
    splits, words = [""] * len(photos.keys), Counter[str]()
    several: dict[int, Excluded] = {}
    for record in file.images:
        if (i := row[record["id"]]) >= 0:
            size = _number(record.get("width")), _number(record.get("height"))
            if np.any(sizes[i] != size) and np.isfinite([*sizes[i], *size]).all():
                raise DataError(
                    f"{path}: {photos.keys[i]!r} has {sizes[i][0]:g} x {sizes[i][1]:g} pixels and, as image id "
                    f"{record['id']!r}, {size[0]:g} x {size[1]:g}; mend one of them."
                )
            sizes[i] = size
            if word := plain_text(record.get("split")):
                words[word] += 1
                if splits[i] not in ("", split_name(word)):
                    reason = f"is in {splits[i]} and in {split_name(word)}; the first of them counts"
                    several[i] = Excluded(photos.keys[i], reason, str(path), "splits")
                splits[i] = splits[i] or split_name(word)
    return _Entries(row, photos, sizes, splits if words else None, words, (*excluded, *several.values()))


def _file_name(record: _Record) -> str:
    """LVIS gives the address of the photo only, whose last two parts are folder and file."""
    if name := plain_text(record.get("file_name")):
        return name
    return "/".join(plain_text(record.get("coco_url")).rstrip("/").split("/")[-2:])


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


@final
@dataclass(frozen=True)
class _Objects:
    """Annotations of known images and categories: position in the file, image, class, corners in pixels.

    Attributes:
        boxed: whether there is a box.
        crowd: whether it stands for a group.
        excluded: annotations without image or category.
        orphans: how many belong to photos that were left out.
    """

    index: NDArray[np.int64]
    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    pixels: NDArray[np.float64]
    boxed: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    excluded: tuple[Excluded, ...] = ()
    orphans: int = 0

    def take(self, mask: NDArray[np.bool_]) -> _Objects:
        """Some of them."""
        return _Objects(
            self.index[mask], self.image[mask], self.class_[mask], self.pixels[mask], self.boxed[mask], self.crowd[mask]
        )


_LEFT_OUT, _UNKNOWN = -1, -2


def _objects(file: _File, entries: _Entries, category: Mapping[Any, int]) -> _Objects:
    records, n = file.annotations, len(file.annotations)
    try:
        image = np.fromiter((entries.row.get(r.get("image_id"), _UNKNOWN) for r in records), np.int64, n)
        class_ = np.fromiter((category.get(r.get("category_id"), _UNKNOWN) for r in records), np.int64, n)
    except TypeError:
        raise DataError(f"{file.path}: an annotation has a list or object as image_id or category_id.") from None
    crowd = np.fromiter((bool(r.get("iscrowd")) for r in records), np.bool_, n)
    excluded = []
    for i in np.flatnonzero((image == _UNKNOWN) | (class_ == _UNKNOWN)).tolist():
        key, part = ("image_id", "images") if image[i] == _UNKNOWN else ("category_id", "categories")
        reason = f"{key} {records[i].get(key)!r} is not among the {part}"
        excluded.append(Excluded(_name(records[i], i), reason, str(file.path), "unusable"))
    if n and len(excluded) == n:
        hint = " (panoptic and caption files are not read)" if "category_id" not in records[0] else ""
        raise DataError(f"{file.path}: none of the {n:,} annotations is usable{hint}: {excluded[0].reason}.")
    keep = (image >= 0) & (class_ >= 0)
    pixels, boxed = _corners(records)
    orphans = int(((image == _LEFT_OUT) & (class_ >= 0)).sum())
    found = _Objects(np.arange(n), image, class_, pixels, boxed, crowd).take(keep)
    return replace(found, excluded=tuple(excluded), orphans=orphans)


def _corners(records: Sequence[_Record]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """x0, y0, x1, y1 of `bbox` (x, y, width, height), NaN where that is not four numbers; and whether there is one."""
    nothing = [math.nan] * 4
    boxes = [r.get("bbox") or nothing for r in records]
    boxed = np.fromiter((bool(r.get("bbox")) for r in records), np.bool_, len(records))
    try:
        found = np.array(boxes, np.float64).reshape(-1, 4)
        regular = len(found) == len(records)
    except (TypeError, ValueError, OverflowError):
        regular = False
    if not regular:
        found = np.array([[*map(_number, b)] if isinstance(b, list) and len(b) == 4 else nothing for b in boxes])
    found[:, 2:] += found[:, :2]
    return found, boxed


def _name(record: _Record, position: int) -> str:
    return f"annotation {record.get('id', f'[{position}]')}"


def _negatives(
    file: _File, entries: _Entries, category: Mapping[Any, int]
) -> tuple[NDArray[np.int64], tuple[Excluded, ...]]:
    """int64 [K, 2] (image, class) of LVIS's explicit negatives."""
    cells: dict[tuple[int, int], None] = {}
    excluded = []
    for record in file.images:
        keys = record.get("neg_category_ids") or []
        for key in keys if isinstance(keys, list) else [keys]:
            image = entries.row[record["id"]]
            class_ = category.get(key, _UNKNOWN) if isinstance(key, int | str) else _UNKNOWN
            if class_ == _UNKNOWN:
                reason = f"neg_category_ids names {key!r}, which is not among the categories"
                excluded.append(Excluded(f"image {record['id']}", reason, str(file.path), "unusable"))
            elif image >= 0:
                cells[image, class_] = None
    return np.array(list(cells), np.int64).reshape(-1, 2), tuple(excluded)


def _readings(
    path: Path, objects: _Objects, options: ReadOptions, absent: int, images: int, unnamed: int
) -> tuple[ValueReading, ...]:
    crowd = int(objects.crowd.sum())
    unboxed = int((~objects.boxed & ~objects.crowd).sum())
    silent = images - len(np.unique(objects.image))
    rest = "negative (complete)" if options.complete else "unknown"
    kinds = (
        ("annotation with a box", "positive", len(objects.image) - crowd - unboxed),
        ("annotation without a box", "positive", unboxed),
        ("annotation with iscrowd", options.crowd, crowd),
        ("class in neg_category_ids", "negative", absent),
        ("class without annotation in an image", rest, unnamed),
        ("image without annotation", "kept", silent),
    )
    return tuple(ValueReading(path.name, value, meaning, count) for value, meaning, count in kinds if count)


def _flag_readings(file: _File) -> tuple[ValueReading, ...]:
    counts = {flag: sum(bool(record.get(flag)) for record in file.annotations) for flag in _FLAGS}
    where = file.path.name
    return tuple(ValueReading(where, f"annotation with {flag}", _FLAGS[flag], n) for flag, n in counts.items() if n)


def _split_readings(path: Path, entries: _Entries) -> tuple[ValueReading, ...]:
    words = sorted(entries.split_words.items())
    return tuple(ValueReading(f"{path.name}, split", word, f"split {split_name(word)!r}", n) for word, n in words)


def _messages(file: _File, entries: _Entries, objects: _Objects, faults: int, places: str) -> tuple[str, ...]:
    path = file.path.name
    lvis = sum(bool(record.get("not_exhaustive_category_ids")) for record in file.images)
    repeated = [name for name, n in Counter(r["name"].strip() for r in file.categories).items() if n > 1]
    joined = sum(i >= 0 for i in entries.row.values()) - len(entries.photos.keys)
    said = (
        (joined, f"{path}: {joined:,} image ids name a photo that another one names, and are joined with it"),
        (len(objects.excluded), f"{path}: {len(objects.excluded):,} annotations left out, see the excluded list"),
        (objects.orphans, f"{path}: {objects.orphans:,} annotations belong to photos that are left out"),
        (faults, f"{path}: {faults:,} {places} cannot be used, see the excluded list; the labels are kept"),
        (len(repeated), f"{path}: several categories are called {some(repeated)}; they stay apart"),
        (lvis, f"{path}: not_exhaustive_category_ids of {lvis:,} images ignored, it says nothing about presence"),
    )
    return tuple(text for count, text in said if count)
