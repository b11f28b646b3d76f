"""COCO JSON: `images`, `annotations` and `categories`, with the additions of LVIS and Objects365."""

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
from fewtags.formats.common import (
    distinct,
    ends_of,
    finite_number,
    first_character,
    is_hidden,
    is_split,
    named_classes,
    plain_text,
    read_json,
    split_name,
    without,
)
from fewtags.formats.datumaro import is_datumaro
from fewtags.formats.json_kinds import kind_of_json
from fewtags.formats.labelme import is_labelme
from fewtags.formats.locate import ImageKeys, folder_of, locate, spelling
from fewtags.formats.masks import key_of, outlines_to_points
from fewtags.formats.options import ReadOptions
from fewtags.formats.rated import scores_of_records
from fewtags.formats.stated import Labels, Source, count_messages, value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, LabelTable, Notes, ValueReading
from fewtags.text import quoted, setting, some

_Record = dict[str, Any]

_OBJECTS365 = re.compile(r"images/v\d/patch\d+/objects365_v\d_\d+\.jpg")
_FLAGS = {
    "ignore": "positive, as the others",
    "isfake": "positive (a picture of the object)",
    "isreflected": "positive (a reflection of the object)",
}


def recognise(path: Path) -> str:
    """Return why a path is a COCO file, or a folder with one in each folder of a split; "" if it is neither."""
    if path.is_dir():
        files = _files_of_splits(path)
        return f"{files[0][1].relative_to(path).as_posix()} is a COCO file" if files else ""
    other = first_character(path) == "[" or is_datumaro(path) or is_labelme(path)
    return "" if other else "its JSON is an object"


def _files_of_splits(path: Path) -> list[tuple[str, Path]]:
    """Return each folder of a split and the only COCO file in it, as Roboflow writes them."""
    found = []
    for folder in sorted(entry for entry in path.iterdir() if is_split(entry.name) and entry.is_dir()):
        files = [file for file in sorted(folder.glob("*.json")) if not is_hidden(file.name) and _is_coco(file)]
        if len(files) == 1:
            found.append((folder.name, files[0]))
    return found


def _is_coco(file: Path) -> bool:
    text = ends_of(file)
    return text.lstrip().startswith("{") and any(f'"{key}"' in text for key in ("annotations", "categories"))


def read_coco(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a COCO instances file.

    - Classes are ordered by category id and called by name. Categories that share a name stay apart (ids "crane#7" and
      "crane#9", both displayed as "crane").
    - An annotation states that its class is present, and where: `bbox` is in pixels of the declared width and height,
      which may differ from those of the photo file. A box that cannot be used is left out; its label is kept.
    - `places="points"`: a random point replaces each box. It is drawn in the mask (`segmentation`: polygons, or run
      lengths, compressed or not), or in the box if no mask has a pixel; sides below a pixel are widened to one. The
      point depends on `point_seed` and the id of the annotation only. This takes about 0.2 ms per annotation.
      `places="outlines"`: the same, but objects without a mask keep their box. `places="none"`: labels only.
    - Images without annotations are kept. Classes without annotation are unknown, or absent if `complete`.
    - Annotations with a `score` between 0 and 1 are results of a detector, which are refused.
    - LVIS: classes in `neg_category_ids` are absent; `not_exhaustive_category_ids` says nothing about presence.
    - Objects365: `isfake` and `isreflected` change nothing. Photos with names like
      images/v1/patch8/objects365_v1_00420917.jpg are also found in patch8/, as its archives unpack, or without folders.
    - The entry `split` of an image names its split. `path` can be a folder with train/, valid/ or test/ that have a
      COCO file each, with the photos beside it; classes are then the same if they have the same name.
    - Lists can be objects with an entry for each id. An id that is a text in one list and a number in another is the
      same id.
    - `file_name` is relative to `images`, or to a usual folder beside the file. Images are in the order of the file.

    Raises:
        DataError: the file is not a COCO file, ids contradict each other, most photos are missing, no annotation
            can be used, or annotations have scores of a model.
    """
    options = options or ReadOptions()
    file = _load(path, outlines_to_points(options.point_seed) if options.draws_points else without("segmentation"))
    classes, category = _classes(file)
    row, photos = _find_images(file, images)
    objects, unusable = _objects(file, row, category)
    absent, bad = _negatives(file, row, category, photos)
    sizes = _sizes(file, photos)
    a, m = len(absent), len(objects.index)
    labels = Labels(
        image=np.concatenate([objects.image, absent[:, 0]]),
        class_=np.concatenate([objects.class_, absent[:, 1]]),
        state=np.concatenate([_states(objects, options), np.full(a, Label.NEGATIVE, np.int8)]),
        corners=np.concatenate([objects.corners, np.full((a, 4), np.nan)]),
        located=np.concatenate([objects.boxed, np.zeros(a, np.bool_)]),
        point=np.zeros(m + a, np.bool_),
        source=np.zeros(m + a, np.int64),
        inner=_inner(file, objects, a) if options.draws_points else None,
    )
    messages = _messages(file, row, photos, len(unusable))
    notes = Notes(_readings(file, objects, labels, photos, options), (*unusable, *bad), messages)
    notes += scores_of_records("annotation", file.annotations).notes(path, len(file.annotations))
    splits = [split_name(plain_text(record.get("split"))) for record in file.images]
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=photos,
        unit="pixels",
        origin=lambda i: _name(file.annotations[objects.index[i]], int(objects.index[i])),
        sizes=sizes,
        complete=np.full(len(file.images), options.complete),
        splits=splits if any(split for split, i in zip(splits, photos.image, strict=True) if i >= 0) else None,
        notes=notes,
        keep_repeats=True,
        key=lambda i: key_of(file.annotations[objects.index[i]]),
    ).table()


def published_order(path: Path, images: Path | None = None) -> tuple[list[str], ClassNames]:
    """Return the order of a COCO file that the single-positive labels of Cole et al. (CVPR 2021) need.

    Returns:
        the keys of the images with an annotation, sorted by image id as text ("10" before "9"); the classes in the
        order of `categories`.

    Raises:
        DataError: as `read_coco`; the photo of an annotated image is missing; two image ids have the same photo.
    """
    file = _load(path, without("segmentation"))
    classes, category = _classes(file)
    row, photos = _find_images(file, images)
    annotated = {row.get(record.get("image_id"), -1) for record in file.annotations} - {-1}
    order = sorted(annotated, key=lambda i: str(file.images[i]["id"]))
    if missing := [i for i in order if photos.image[i] < 0]:
        raise DataError(
            f"{path}: the photos of {len(missing):,} of {len(order):,} annotated images are missing or have no name "
            f"(the first: id {file.images[missing[0]]['id']!r}), but each image changes the random labels of those "
            "after it. Give the folder with all photos (--images FOLDER), or use --protocol single."
        )
    keys = [photos.keys[photos.image[i]] for i in order]
    if twice := [key for key, n in Counter(keys).items() if n > 1]:
        raise DataError(f"{path}: {quoted(twice[0])} is the photo of several image ids; give each photo one id.")
    first = list(dict.fromkeys(category[record["id"]] for record in file.categories))
    return keys, ClassNames.of([classes.ids[i] for i in first], [classes.names[i] for i in first])


@final
@dataclass(frozen=True)
class _File:
    path: Path
    images: list[_Record]
    annotations: list[_Record]
    categories: list[_Record]


def _load(path: Path, hook: Callable[[_Record], _Record]) -> _File:
    if path.is_dir():
        return _join(path, [(name, _load(file, hook)) for name, file in _files_of_splits(path)])
    data = read_json(path, hook)
    if isinstance(data, list):
        raise DataError(
            f"{path}: a list, as detectors write their results; pass the file with images, annotations and categories."
        )
    parts = []
    for key in ("images", "annotations", "categories"):
        part = data.get(key) if isinstance(data, dict) else None
        if isinstance(part, dict) and all(isinstance(record, dict) for record in part.values()):
            part = [{"id": key} | record for key, record in part.items()]
        if not isinstance(part, list):
            found = some([*data], 8) if isinstance(data, dict) else repr(data)[:40]
            if isinstance(data, dict) and key in data:
                found = f"{key!r}, but it is {'an object' if isinstance(part, dict) else repr(part)[:40]}"
            hint = ""
            if isinstance(data, dict) and "items" in data:
                hint = f" It looks like Datumaro JSON: pass {setting('format', 'datumaro')}."
            if isinstance(data, dict) and (kind := kind_of_json(data)):
                raise DataError(f"{path}: {kind}.")
            raise DataError(f"{path}: expected a list {key!r} as in COCO instances files; the file has {found}.{hint}")
        if (wrong := next((i for i, record in enumerate(part) if not isinstance(record, dict)), None)) is not None:
            raise DataError(f"{path}: {key}[{wrong}] is {part[wrong]!r:.40}; expected an object.")
        parts.append(part)
    return _File(path, *parts)


def _join(path: Path, parts: Sequence[tuple[str, _File]]) -> _File:
    """Join the files of splits: ids begin with the folder, categories with one name are one."""
    if not parts:
        raise DataError(f"{path}: expected train/, valid/ or test/ with a COCO file in each; or pass one file.")
    joined = _File(path, [], [], [])
    known: dict[str, _Record] = {}
    for folder, file in parts:
        own = {record.get("id"): plain_text(record.get("name")) for record in file.categories}
        for record in file.categories:
            known.setdefault(plain_text(record.get("name")), record | {"id": plain_text(record.get("name"))})
        for record in file.images:
            name = _file_name(record)
            given: _Record = {"id": f"{folder}/{record.get('id')}", "file_name": name and f"{folder}/{name}"}
            absent = record.get("neg_category_ids")
            if isinstance(absent, list):
                given["neg_category_ids"] = [_alike(own, key) for key in absent]
            joined.images.append({"split": folder} | record | given)
        for record in file.annotations:
            given = {key: f"{folder}/{record.get(key)}" for key in ("id", "image_id")}
            joined.annotations.append(record | given | {"category_id": _alike(own, record.get("category_id"))})
    joined.categories.extend(known.values())
    return joined


def _alike(names: Mapping[Any, str], key: object) -> object:
    """Return the name of a category id, or the id if there is none; a text and a number can be the same id."""
    if not isinstance(key, int | float | str):
        return key
    return names.get(key) or next((name for other, name in names.items() if str(other) == str(key)), key)


def _both_kinds(row: dict[Any, int]) -> dict[Any, int]:
    """Return the positions of ids, found as text or as number: "7" and 7 are one id unless the file has both."""
    other = {str(key) if isinstance(key, int) else _whole(key): i for key, i in row.items()}
    return {key: i for key, i in other.items() if key is not None} | row


def _whole(text: str) -> int | None:
    """Return the number that is written like this, without leading zeros or signs; None for other texts."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 and str(int(text)) == text else None


def _classes(file: _File) -> tuple[ClassNames, dict[Any, int]]:
    """Return the vocabulary, and the class of each category id."""
    names: dict[int | str, str] = {}
    for i, record in enumerate(file.categories):
        key, name, path = record.get("id"), plain_text(record.get("name")), file.path
        if not isinstance(key, int | str) or not name:
            given = f"id {key!r} and name {record.get('name')!r}"
            raise DataError(f"{path}: categories[{i}] has {given}; both must be given.")
        if key in names:
            raise DataError(f"{path}: category id {key!r} is used for {names[key]!r} and for {name!r}; renumber one.")
        names[key] = name
    if not names:
        raise DataError(f"{file.path}: there are no categories, so there is nothing to learn.")
    order = sorted(names, key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0, str(key)))
    return named_classes({key: names[key] for key in order}), _both_kinds({key: i for i, key in enumerate(order)})


def _find_images(file: _File, images: Path | None) -> tuple[dict[Any, int], ImageKeys]:
    """Return the position of each image id in the list of images, and the photos of that list."""
    path = file.path
    names = [_file_name(record) for record in file.images]
    row: dict[Any, int] = {}
    excluded = []
    for i, (record, name) in enumerate(zip(file.images, names, strict=True)):
        key = record.get("id")
        if isinstance(key, float) and key.is_integer():
            key = record["id"] = int(key)
        if not isinstance(key, int | str):
            raise DataError(f"{path}: images[{i}] has id {key!r}; expected a whole number or a text.")
        if (first := names[row.setdefault(key, i)]) != name:
            raise DataError(f"{path}: image id {key!r} is used for {first!r} and for {name!r}; renumber one.")
        if not name:
            excluded.append(Excluded(f"image {key}", "has no file_name", str(path), "unusable"))
    above = folder_of(path)
    split = path.stem.split("_")[-1]
    beside = (
        [path]
        if path.is_dir()
        else [near / part for near in (above, above.parent) for part in ("", "images", split, f"images/{split}")]
    )
    given: Sequence[str] = [name for name in names if name]
    if given and all(map(_OBJECTS365.fullmatch, given)):
        variants = [["/".join(name.split("/")[-last:]) for name in given] for last in (4, 2, 1)]
        given = spelling(variants, file=path, images=images, beside=beside)
    photos = locate(given, file=path, images=images, beside=beside)
    image = np.full(len(names), -1, np.int64)
    image[np.array([bool(name) for name in names], np.bool_)] = photos.image
    return _both_kinds(row), replace(photos, image=image, notes=photos.notes + Notes(excluded=tuple(excluded)))


def _file_name(record: _Record) -> str:
    """Return the name of a photo; LVIS gives its address only, whose last two parts are folder and file."""
    if name := plain_text(record.get("file_name")):
        return name
    return "/".join(plain_text(record.get("coco_url")).rstrip("/").split("/")[-2:])


def _sizes(file: _File, photos: ImageKeys) -> NDArray[np.float64]:
    """Return the declared width and height of each entry of the list of images, float64 [R, 2]."""
    sizes = np.full((len(file.images), 2), np.nan)
    first: dict[int, int] = {}
    for i, (record, image) in enumerate(zip(file.images, photos.image.tolist(), strict=True)):
        sizes[i] = finite_number(record.get("width")), finite_number(record.get("height"))
        if image < 0 or not np.isfinite(sizes[i]).all():
            continue
        if np.any(sizes[i] != (before := sizes[first.setdefault(image, i)])):
            raise DataError(
                f"{file.path}: {quoted(photos.keys[image])} has {before[0]:g} x {before[1]:g} pixels and, as image id "
                f"{record['id']!r}, {sizes[i][0]:g} x {sizes[i][1]:g}; fix one of them."
            )
    return sizes


@final
@dataclass(frozen=True, kw_only=True)
class _Objects:
    """M annotations of known images and categories.

    Attributes:
        index: int64 [M], position in the list of annotations.
        image: int64 [M], position in the list of images.
        class_: int64 [M], the class.
        crowd: bool [M], whether it is a group of objects.
        boxed: bool [M], whether it has a box.
        corners: float64 [M, 4] x0, y0, x1, y1 of the box in pixels; NaN if broken.
    """

    index: NDArray[np.int64]
    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    boxed: NDArray[np.bool_]
    corners: NDArray[np.float64]


def _objects(file: _File, row: Mapping[Any, int], category: Mapping[Any, int]) -> tuple[_Objects, tuple[Excluded, ...]]:
    records, n = file.annotations, len(file.annotations)
    try:
        image = np.fromiter((row.get(r.get("image_id"), -1) for r in records), np.int64, n)
        class_ = np.fromiter((category.get(r.get("category_id"), -1) for r in records), np.int64, n)
    except TypeError:
        raise DataError(f"{file.path}: an annotation has a list or object as image_id or category_id.") from None
    excluded = []
    for i in np.flatnonzero((image < 0) | (class_ < 0)).tolist():
        key, part = ("image_id", "images") if image[i] < 0 else ("category_id", "categories")
        reason = f"{key} {records[i].get(key)!r} is not among the {part}"
        excluded.append(Excluded(_name(records[i], i), reason, str(file.path), "unusable"))
    if n and len(excluded) == n:
        hint = " (panoptic and caption files are not read)" if "category_id" not in records[0] else ""
        ids = row if "image_id" in excluded[0].reason else category
        if not hint and ids:
            hint = f" (the ids there are like {next(reversed(ids))!r})"
        raise DataError(f"{file.path}: none of the {n:,} annotations is usable{hint}: {excluded[0].reason}.")
    index = np.flatnonzero((image >= 0) & (class_ >= 0))
    kept = [records[i] for i in index.tolist()]
    corners, boxed = _corners(kept)
    found = _Objects(
        index=index,
        image=image[index],
        class_=class_[index],
        crowd=np.fromiter((bool(r.get("iscrowd")) for r in kept), np.bool_, len(kept)),
        boxed=boxed,
        corners=corners,
    )
    return found, tuple(excluded)


def _states(objects: _Objects, options: ReadOptions) -> NDArray[np.int8]:
    return np.where(objects.crowd & (options.crowd == "unknown"), Label.UNKNOWN, Label.POSITIVE).astype(np.int8)


def _inner(file: _File, objects: _Objects, absent: int) -> NDArray[np.float64]:
    """Return the points that were drawn in outlines, see `Labels.inner`."""
    nothing = (math.nan, math.nan)
    drawn = [file.annotations[i].get("inner", nothing) for i in objects.index.tolist()] + [nothing] * absent
    return np.array(drawn, np.float64).reshape(-1, 2)


def _corners(records: Sequence[_Record]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return x0, y0, x1, y1 of each `bbox` (x, y, width, height), NaN for broken ones, and whether it exists."""
    nothing = [math.nan] * 4
    boxes = [r.get("bbox") or nothing for r in records]
    boxed = np.fromiter((bool(r.get("bbox")) for r in records), np.bool_, len(records))
    try:
        found = np.array(boxes, np.float64).reshape(-1, 4)
        regular = len(found) == len(records)
    except (TypeError, ValueError, OverflowError):
        regular = False
    if not regular:
        found = np.array([[*map(finite_number, b)] if isinstance(b, list) and len(b) == 4 else nothing for b in boxes])
    found[:, 2:] += found[:, :2]
    return found, boxed


def _name(record: _Record, position: int) -> str:
    return f"annotation {record.get('id', f'[{position}]')}"


def _negatives(
    file: _File, row: Mapping[Any, int], category: Mapping[Any, int], photos: ImageKeys
) -> tuple[NDArray[np.int64], tuple[Excluded, ...]]:
    """Return the cells that LVIS states to be absent, int64 [K, 2] (image, class)."""
    cells: dict[tuple[int, int], tuple[int, int]] = {}
    excluded = []
    for record in file.images:
        keys = record.get("neg_category_ids") or []
        for key in keys if isinstance(keys, list) else [keys]:
            image, class_ = row[record["id"]], category.get(key, -1) if isinstance(key, int | str) else -1
            if class_ < 0:
                reason = f"neg_category_ids names {key!r}, which is not among the categories"
                excluded.append(Excluded(f"image {record['id']}", reason, str(file.path), "unusable"))
            elif (photo := int(photos.image[image])) >= 0:
                cells.setdefault((photo, class_), (image, class_))
    return np.array(list(cells.values()), np.int64).reshape(-1, 2), tuple(excluded)


def _readings(
    file: _File, objects: _Objects, labels: Labels, photos: ImageKeys, options: ReadOptions
) -> tuple[ValueReading, ...]:
    image, where = photos.image[objects.image], file.path.name
    used = image >= 0
    c, absent = len(file.categories), int((labels.state == Label.NEGATIVE).sum())
    crowd = int((used & objects.crowd).sum())
    unboxed = int((used & ~objects.boxed & ~objects.crowd).sum())
    cells = photos.image[labels.image] * c + labels.class_
    named = distinct(cells[photos.image[labels.image] >= 0])
    rest = "negative (complete)" if options.complete else "unknown"
    rows = (
        ("annotation with a box", "positive", int(used.sum()) - crowd - unboxed),
        ("annotation without a box", "positive", unboxed),
        ("annotation with iscrowd", options.crowd, crowd),
        ("class in neg_category_ids", "negative", absent),
        ("class without annotation in an image", rest, len(photos.keys) * c - len(named)),
        ("image without annotation", "kept", len(photos.keys) - len(distinct(image[used]))),
        *(
            (f"annotation with {flag}", _FLAGS[flag], sum(bool(r.get(flag)) for r in file.annotations))
            for flag in _FLAGS
        ),
    )
    splits = Counter(plain_text(r.get("split")) for r, i in zip(file.images, photos.image, strict=True) if i >= 0)
    words = ((word, f"split {split_name(word)!r}", n) for word, n in sorted(splits.items()) if word)
    return value_readings(where, rows) + value_readings(f"{where}, split", words)


def _messages(file: _File, row: Mapping[Any, int], photos: ImageKeys, unusable: int) -> tuple[str, ...]:
    uses = Counter(plain_text(record["name"]) for record in file.categories)
    repeated = [name for name, n in uses.items() if n > 1]
    lvis = sum(bool(record.get("not_exhaustive_category_ids")) for record in file.images)
    ignored = "not_exhaustive_category_ids, which are ignored: they say nothing about presence"
    joined = int((photos.image[[*{*row.values()}]] >= 0).sum()) - len(photos.keys) if row else 0
    counts = (
        (
            *(joined, "image id names a photo that another one names, and is joined with it"),
            "image ids name photos that other ones name, and are joined with them",
        ),
        (
            *(unusable, "annotation left out, see the excluded list"),
            "annotations left out, see the excluded list",
        ),
        (lvis, f"image has {ignored}", f"images have {ignored}"),
    )
    apart = [f"{file.path.name}: several categories are called {some(repeated)}; they stay apart"] if repeated else []
    return (*count_messages(file.path, counts), *apart)
