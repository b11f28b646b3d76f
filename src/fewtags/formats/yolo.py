"""YOLO: a text file per photo with one object a row, in fractions of the photo."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import Corners, Point, bounds, count_hidden, named_classes, number_of, text_of
from fewtags.formats.locate import ImageKeys, is_photo, locate, spelling
from fewtags.formats.masks import Outline
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Source, Stated, count_messages, value_readings
from fewtags.formats.texts import kind_of
from fewtags.formats.yolo_layout import CLASS_FILES, LARGEST_LABELS, SPLITS, YoloFolder, find_yolo, names_classes
from fewtags.table.table import Excluded, LabelTable, Notes, ValueReading
from fewtags.text import counted

# Boxes can exceed their photo by a little; larger numbers are pixels.
_LARGEST = 2.0
_SAMPLE = 20


def recognise(path: Path) -> str:
    """Return the mark of YOLO in a path, or "" if there is none."""
    if not path.is_dir():
        return "a YAML file"
    if named := [file.name for file in sorted(path.iterdir()) if names_classes(file)]:
        return f"{named[0]} has names"
    if (path / "obj.names").is_file():
        return "obj.names"
    for folder in (path, *(path / split for split in SPLITS)):
        labels = folder if folder.name == "labels" else folder / "labels"
        if labels.is_dir() and any(file.name != "classes.txt" for file in labels.rglob("*.txt")):
            return f"label files in {labels.relative_to(path.parent).as_posix()}/"
    if any((path / name).is_file() for name in CLASS_FILES):
        names = {entry.name for entry in path.iterdir()}
        texts = [
            path / text
            for name in sorted(names)
            if is_photo(name) and (text := f"{name.rpartition('.')[0]}.txt") in names
        ]
        if texts and kind_of([text_of(file) for file in texts[:_SAMPLE]]) in ("", "numbers"):
            return "classes.txt, and label files beside photos"
    return ""


def read_yolo(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a YOLO data set: photos in `images`, and for each a text file of that name in `labels`.

    - A row is `class cx cy w h`, or a class and the corners of a polygon (three or more; oriented boxes have four).
      The bounding box of a polygon and the box of a pose (`kpt_shape` in the YAML file) are read; with
      `places="points"` or "outlines", a random point in each polygon. All numbers are fractions of the photo as it is
      displayed.
    - Class numbers refer to `names` of `data.yaml` (a list, or number: name), or to the lines of `classes.txt`. Classes
      that share a name stay apart (ids "crane#0" and "crane#5").
    - Classes that are not named are unknown. With `complete`, they are absent in photos that have a label file; an
      empty label file then states that the photo shows none of the classes. Photos without a label file stay unknown.
    - Splits are those of `data.yaml`, or else the folders train, val (valid, validation) and test.
    - `path` is `data.yaml`, or a folder with that or with `classes.txt`; `images` contains the photos if they are
      elsewhere. Classes are in the order of their numbers.

    Raises:
        DataError: class names are missing, a row is of another kind, or most photos are missing.
    """
    options = options or ReadOptions()
    found = find_yolo(path)
    classes = named_classes(found.names)
    rows = _read(found, options)
    photos = _locate(found, path, images)
    unnamed = f"is not among the {counted(len(classes), 'name')}"
    excluded = [
        Excluded(_origin(found, image, line), f"class {number} {unnamed}", str(found.root), "unusable")
        for image, line, number in rows.unknown_class
    ]
    if excluded and not len(rows.stated):
        raise DataError(
            f"{path}: none of the {len(excluded):,} rows has a class of {found.named_in}; the first is class "
            f"{rows.unknown_class[0][2]}."
        )
    labelled = np.array([label is not None for label in found.labels], np.bool_)
    messages = tuple(f"{path.resolve().name}: {text}" for text in found.messages)
    messages += count_messages(
        path, [(len(excluded), "row left out, see the excluded list", "rows left out, see the excluded list")]
    )
    hidden = value_readings(path.resolve().name, [("hidden files", "skipped", count_hidden(found.root))])
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=rows.stated.labels(),
        photos=photos,
        unit="fractions",
        complete=labelled & options.complete,
        origin=lambda i: _origin(found, rows.file[i], rows.line[i]),
        splits=found.splits if any(found.splits) else None,
        notes=Notes(_readings(found, rows, classes.ids, options) + hidden, (*excluded, *found.repeated), messages),
    ).table()


@final
@dataclass(kw_only=True)
class _Rows:
    """The rows of all label files.

    Attributes:
        file: image of each label.
        line: line of each label in its file.
        unknown_class: image, line and class number of rows whose class has no name.
        polygons: number of rows with a polygon.
        empty: number of label files without a row.
        uses: number of rows of each class number.
    """

    stated: Stated = field(default_factory=Stated)
    file: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    unknown_class: list[tuple[int, int, int]] = field(default_factory=list)
    polygons: int = 0
    empty: int = 0
    uses: Counter[int] = field(default_factory=Counter)


def _origin(found: YoloFolder, image: int, line: int) -> str:
    """Return the name of a row of a label file for messages."""
    file = found.labels[image]
    assert file is not None
    shown = file.relative_to(found.root) if file.is_relative_to(found.root) else file
    return f"{shown.as_posix()} row {line}"


def _read(found: YoloFolder, options: ReadOptions) -> _Rows:
    position = {number: i for i, number in enumerate(found.names)}
    rows, broken = _Rows(stated=Stated(options)), []
    for image, file in enumerate(found.labels):
        if file is None:
            continue
        blank = True
        for line, text in enumerate(text_of(file, LARGEST_LABELS).splitlines(), 1):
            if not (words := text.split()):
                continue
            blank = False
            try:
                number, corners, polygon = _object(words, found.keypoints)
            except ValueError as error:
                broken.append(f"{file} row {line}: {error}")
                continue
            if number not in position:
                rows.unknown_class.append((image, line, number))
                continue
            rows.file.append(image)
            rows.line.append(line)
            rows.uses[number] += 1
            rows.polygons += bool(polygon)
            outline = Outline.of_polygon(polygon, fractions=True) if polygon else None
            origin = _origin(found, image, line) if outline and options.draws_points else None
            rows.stated.add(image, position[number], box=corners, outline=outline, origin=origin)
        rows.empty += blank
    if broken:
        more = f" ({len(broken) - 1:,} more such rows)" if len(broken) > 1 else ""
        raise DataError(f"{broken[0]}{more}; fix or remove it.")
    return rows


def _object(words: Sequence[str], keypoints: int) -> tuple[int, Corners, Sequence[Point]]:
    """Return the class number, the corners of the box and those of the polygon, if any; `ValueError` for other rows."""
    count = len(words)
    if any("," in word for word in words):
        raise ValueError(f"{' '.join(words)[:60]!r} has commas; write blanks between the numbers, and decimal points")
    if keypoints and count not in (5, 5 + keypoints):
        raise ValueError(
            f"{count} numbers, but kpt_shape says 5 + {keypoints} = {5 + keypoints}: class, centre x and y, width and "
            "height, and the keypoints"
        )
    pose = keypoints and count == 5 + keypoints
    polygon = not pose and count >= 7 and count % 2 == 1
    if count != 5 and not pose and not polygon:
        hint = " (is the last one the confidence of a prediction?)" if count == 6 else ""
        raise ValueError(
            f"{count} numbers{hint}; expected class, centre x and y, width and height, or a class and the x and y of "
            "three or more corners"
        )
    first, *numbers = map(number_of, words)
    if any(
        math.isnan(n) and word.lower().lstrip("+-") != "nan" for n, word in zip((first, *numbers), words, strict=True)
    ):
        raise ValueError(f"{' '.join(words)[:60]!r} is not a row of numbers")
    if not (first >= 0 and first == int(min(first, 1e9))):
        raise ValueError(f"{words[0]!r} is not the number of a class")
    for text, number in zip(words[1:], numbers if polygon else numbers[:4], strict=False):
        if abs(number) > _LARGEST:
            raise ValueError(f"{text!r} is not a fraction; divide pixels by the width or height of the photo")
    if polygon and (count - 5) % 3 == 0 and {*words[7::3]} <= {"0", "1", "2"}:
        raise ValueError(
            f"{count} numbers that look like a box and {(count - 5) // 3} keypoints with x, y and visibility; add "
            f"kpt_shape: [{(count - 5) // 3}, 3] to the YAML file"
        )
    if polygon:
        corners = [*zip(numbers[::2], numbers[1::2], strict=True)]
        return int(first), bounds(corners), corners
    cx, cy, w, h = numbers[:4]
    return int(first), (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), ()


def _locate(found: YoloFolder, path: Path, images: Path | None) -> ImageKeys:
    names = found.images
    if images is not None:
        outer = ["/".join(part for part in name.split("/") if part != "images") for name in names]
        inner = [f"/{name}".rpartition("/images/")[2].lstrip("/") for name in names]
        names = spelling([names, outer, inner], file=path, images=images)
        return locate(names, file=path, images=images)
    if found.photos:
        photos = locate(names, file=path, images=found.root)
        return replace(photos, notes=Notes(messages=(f"photos: {found.root}",)) + photos.notes)
    return locate([name if is_photo(name) else f"{name}.jpg" for name in names], file=path)


def _readings(found: YoloFolder, rows: _Rows, ids: Sequence[str], options: ReadOptions) -> tuple[ValueReading, ...]:
    where = found.named_in.name if found.named_in.suffix != ".txt" else found.root.name
    class_of = dict(zip(found.names, ids, strict=True))
    nothing = "none of the classes (complete)" if options.complete else "nothing known (complete: none of the classes)"
    unlabelled = sum(label is None for label in found.labels)
    unnamed = rows.stated.labels().count_unnamed(len(found.images), len(ids))
    rest = "negative where there is a label file (complete)" if options.complete else "unknown"
    kinds = (
        *((f"class {number}", f"positive: {class_of[number]}", rows.uses[number]) for number in sorted(rows.uses)),
        ("row with a polygon", "positive, with its bounding box", rows.polygons),
        ("label file without rows", nothing, rows.empty),
        ("photo without a label file", "nothing known", unlabelled),
        ("class that is not named in a photo", rest, unnamed),
    )
    splits = (
        (f"split {split or '(none)'}", f"split {split!r}" if split else "no split", n)
        for split, n in sorted(Counter(found.splits).items())
        if any(found.splits)
    )
    return value_readings(where, (*kinds, *splits))
