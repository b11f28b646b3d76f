"""Lists of photos with numbers of classes, as published with the Hill and SPLC losses (Zhang et al., 2021)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import text_of
from fewtags.formats.locate import is_photo, locate, usual_folders
from fewtags.formats.numbered import labels_of, names_beside
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Source, value_readings
from fewtags.table.table import LabelTable, Notes
from fewtags.text import quoted

_LINE = re.compile(r"\s*([^,]+?)\s*,((?:\s*\d+)*)\s*")


def recognise(path: Path) -> str:
    """Return why a text file is such a list, or "" if it is not."""
    return "its first line is a photo and numbers" if is_number_list(path) else ""


def is_number_list(path: Path) -> bool:
    """Whether the first line of a .txt file is a photo and numbers of classes."""
    if path.suffix.lower() != ".txt":
        return False
    with path.open("rb") as stream:
        first = stream.readline(4096).decode("utf-8-sig", "ignore")
    match = _LINE.fullmatch(first)
    return match is not None and is_photo(match[1])


def read_hill(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read lines such as `COCO_train2014_000000050518.jpg, 8 41`: a photo, and the numbers of its positive classes.

    The names of the classes are the lines of a file classes.txt beside the list (line 1 is class 0); without it they
    are called by their number. Other classes are unknown, or absent in photos with a number if `complete`.

    Raises:
        DataError: a line has another form, no line has a number, or most photos are missing.
    """
    options = options or ReadOptions()
    names: list[str] = []
    numbers: list[list[int]] = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        if (match := _LINE.fullmatch(line)) is None:
            raise DataError(
                f"{path} line {number}: expected a photo and numbers, as in a.jpg, 8 41; got {quoted(line[:80])}."
            )
        names.append(match[1])
        numbers.append([int(word) for word in match[2].split()])
    if not any(numbers):
        raise DataError(f"{path}: no line has the number of a class, so there is nothing to learn.")
    classes, labels = names_beside(path, 1 + max(map(max, filter(None, numbers)))), labels_of(numbers)
    unnamed = labels.count_unnamed(len(names), len(classes))
    closed = np.array([options.complete and bool(row) for row in numbers], np.bool_)
    rest = "negative (complete)" if options.complete else "unknown"
    readings = [("number", "positive", len(labels.image)), ("class that is not named", rest, unnamed)]
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=locate(names, file=path, images=images, beside=usual_folders(path)),
        unit="fractions",
        origin=lambda i: names[int(labels.image[i])],
        complete=closed,
        notes=Notes(value_readings(path.name, readings)),
    ).table()
