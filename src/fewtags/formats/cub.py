"""Attributes of Caltech-UCSD Birds-200-2011 (CUB): images.txt and attributes/."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import named_classes, text_of
from fewtags.formats.locate import locate
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Labels, Source, value_readings
from fewtags.labels import Label
from fewtags.table.table import LabelTable, Notes

_IMAGES, _LABELS, _SPLIT = "images.txt", "attributes/image_attribute_labels.txt", "train_test_split.txt"
_NAMES = ("attributes/attributes.txt", "attributes.txt", "../attributes.txt")
"""Where the names of the attributes are: the archive has them beside the folder."""


def recognise(path: Path) -> str:
    """Return the mark of CUB in a folder, or "" if there is none."""
    return _LABELS if (path / _LABELS).is_file() and (path / _IMAGES).is_file() else ""


def read_cub(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read the attributes of the photos as classes: `is_present` 1 is present, 0 is absent.

    The certainty of the annotator and the seconds are not used, as in Cole et al. (CVPR 2021). The split is train or
    test, from train_test_split.txt. The species (classes.txt) are not read; the folders of the photos name them.

    Raises:
        DataError: a file is missing, a row is damaged, or most photos are missing.
    """
    options = options or ReadOptions()
    listed = _numbered(path / _IMAGES)
    names_file = next((path / name for name in _NAMES if (path / name).is_file()), None)
    if names_file is None:
        raise DataError(f"{path}: the names of the attributes are missing: attributes.txt, in it or beside it.")
    attributes = _numbered(names_file)
    classes = named_classes({int(key): name for key, name in attributes.items()})
    image, class_, present = _labels(path / _LABELS, [*listed], [*attributes])
    stated = np.bincount(image, minlength=len(listed)) >= len(classes)
    kept = present | ~stated[image]  # absences of a complete image follow from that
    state = np.where(present, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
    labels = Labels.of_images(image[kept], class_[kept], state[kept])
    readings = [("is_present 1", "positive", int(present.sum())), ("is_present 0", "negative", int((~present).sum()))]
    names = [*listed.values()]
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=locate(names, file=path / _IMAGES, images=images, beside=[path / "images", path]),
        unit="fractions",
        origin=lambda i: names[int(labels.image[i])],
        complete=stated,
        splits=_splits(path / _SPLIT, [*listed]),
        notes=Notes(value_readings(Path(_LABELS).name, readings)),
    ).table()


def _numbered(file: Path) -> dict[str, str]:
    """Return the names of a file with a number and a name on each line, by number."""
    found: dict[str, str] = {}
    for row, line in enumerate(text_of(file).splitlines(), 1):
        number, _, name = line.strip().partition(" ")
        if not number.isdigit() or not name.strip() or number in found:
            raise DataError(f"{file} line {row}: expected a number of its own and a name, got {line[:80]!r}.")
        found[number] = name.strip()
    if not found:
        raise DataError(f"{file} is empty.")
    return found


def _labels(
    file: Path, images: Sequence[str], attributes: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the image, the attribute and the presence of each row; later columns are not read."""
    row_of, class_of = ({key: n for n, key in enumerate(keys)} for keys in (images, attributes))
    image, class_, present = [], [], []
    for row, line in enumerate(text_of(file).splitlines(), 1):
        words = line.split(None, 3)
        if len(words) < 3 or words[2] not in ("0", "1"):
            raise DataError(f"{file} line {row}: expected image, attribute and 0 or 1, got {line[:80]!r}.")
        if words[0] not in row_of or words[1] not in class_of:
            raise DataError(f"{file} line {row}: image {words[0]} or attribute {words[1]} is not in the lists.")
        image.append(row_of[words[0]])
        class_.append(class_of[words[1]])
        present.append(words[2] == "1")
    return np.array(image, np.int64), np.array(class_, np.int64), np.array(present, np.bool_)


def _splits(file: Path, images: Sequence[str]) -> list[str] | None:
    if not file.is_file():
        return None
    named = _numbered(file)
    return [{"1": "train", "0": "test"}.get(named.get(key, ""), "") for key in images]
