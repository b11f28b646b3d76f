"""Names of classes that a file numbers, and lists of numbers as labels, for several readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, text_of
from fewtags.formats.labels import Labels
from fewtags.labels import ClassNames, Label

NAMES_FILE = "classes.txt"


def names_beside(file: Path, count: int) -> ClassNames:
    """Return the vocabulary of a file with classes 0 to `count` - 1: the lines of classes.txt beside it, else numbers.

    Raises:
        DataError: classes.txt has too few names, or one twice.
    """
    path = file.parent / NAMES_FILE
    if not path.is_file():
        return ClassNames.of(map(str, range(count)))
    names = [clean_name(line) for line in text_of(path).splitlines() if line.strip()]
    if len(names) < count:
        raise DataError(f"{file}: class {count - 1} has no name in {path}, which has {len(names)} lines; complete it.")
    return distinct(names, path)


def distinct(names: Sequence[str], path: Path) -> ClassNames:
    """Return the classes of a list in which the position of a name is the number of its class.

    Raises DataError if a name occurs twice: two numbers cannot be one class.
    """
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise DataError(f"{path}: the name {twice!r} occurs twice; give each class its own.")
    return ClassNames.of(names)


def labels_of(numbers: Sequence[Sequence[int]]) -> Labels:
    """Return the positive labels of images, each with its numbers of classes."""
    image = np.repeat(np.arange(len(numbers)), [len(row) for row in numbers])
    class_ = np.fromiter((number for row in numbers for number in row), np.int64, len(image))
    return Labels.of_images(image, class_, np.full(len(image), Label.POSITIVE, np.int8))
