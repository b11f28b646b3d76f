"""ImageNet ReaL (Beyer et al., "Are we done with ImageNet?", 2020): real.json, a list of class numbers a photo."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.by_id import photos_by_id
from fewtags.formats.common import is_hidden, read_json
from fewtags.formats.locate import ImageKeys, check_images, is_photo, usual_folders
from fewtags.formats.numbered import NAMES_FILE, labels_of, names_beside
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Source, value_readings
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable, Notes
from fewtags.text import setting

PHOTO = "ILSVRC2012_val_{:08d}"
_START = re.compile(rb"\s*\[\s*\[\s*(?:\d|\])")


def recognise(path: Path) -> str:
    """Return why a JSON file is a list of lists of numbers, or "" if it is not."""
    return "its JSON is a list of lists of numbers" if is_list_of_lists(path) else ""


def is_list_of_lists(path: Path) -> bool:
    """Whether a JSON file begins with a list in a list: of numbers, or empty."""
    with path.open("rb") as stream:
        return _START.match(stream.read(4096)) is not None


def read_real(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a JSON file with a list of class numbers for each photo; the n-th list is about ILSVRC2012_val_0000000n.

    Photos may be in class folders. If none has such a name, the lists are about all photos in the order of their names.
    Classes are called by the lines of a file classes.txt beside the JSON file (line 1 is class 0), else by the WordNet
    ids of ImageNet if the photos are ImageNet's, else by number.

    A photo with an empty list is one on which the annotators did not agree: nothing is known about it. In the other
    photos, classes that are not listed are unknown, or absent if `complete`, which is how ReaL is evaluated.

    Raises:
        DataError: the JSON is something else, names no class, or its length is not the number of photos.
    """
    options, content = options or ReadOptions(), read_json(path)
    if not isinstance(content, list) or not all(isinstance(row, list) for row in content):
        raise DataError(f"{path}: expected a list of lists of class numbers, one for each photo.")
    for n, row in enumerate(content):
        for value in row:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise DataError(f"{path}: list {n + 1} has {value!r}, which is not the number of a class.")
    if not any(content):
        raise DataError(f"{path}: no list has the number of a class, so there is nothing to learn.")
    photos, of_imagenet = _photos(path, images, len(content))
    labels, count = labels_of(content), 1 + max(map(max, filter(None, content)))
    known = imagenet_ids() if of_imagenet and not (path.parent / NAMES_FILE).is_file() else ()
    classes = ClassNames.of(known) if len(known) >= count else names_beside(path, count)
    rest = "negative (complete)" if options.complete else "unknown"
    readings = [
        ("number", "positive", len(labels.image)),
        ("class that is not listed", rest, labels.count_unnamed(len(content), len(classes))),
    ]
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=photos,
        unit="fractions",
        origin=lambda i: f"list {int(labels.image[i]) + 1}",
        complete=np.array([options.complete and bool(row) for row in content], np.bool_),
        notes=Notes(value_readings(path.name, readings)),
    ).table()


def _photos(path: Path, images: Path | None, count: int) -> tuple[ImageKeys, bool]:
    """Return the photos of the lists, and whether they are those of ImageNet."""
    check_images(images)
    folders = [folder for folder in (usual_folders(path) if images is None else [images]) if folder.is_dir()]
    for folder in folders:
        inside = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if is_photo(file.name))
        keys = sorted((key for key in inside if not is_hidden(key)), key=lambda key: key.rpartition("/")[2])
        if any(key.rpartition("/")[2].startswith(PHOTO[:15]) for key in keys):
            return photos_by_id([PHOTO.format(n + 1) for n in range(count)], path, folder), True
        if keys and len(keys) == count:
            return ImageKeys(keys, np.arange(count), folder, Notes(messages=(f"photos: {folder}",))), False
        if keys and images is not None:
            raise DataError(
                f"{path} has {count:,} lists, but {folder} has {len(keys):,} photos, none called {PHOTO.format(1)}; "
                "without these names, the n-th list is about the n-th photo, so the numbers must be equal."
            )
    message = f"photos: none found beside the file; give {setting('images', 'FOLDER')} to use them"
    names = [f"{PHOTO.format(n + 1)}.JPEG" for n in range(count)]
    return ImageKeys(names, np.arange(count), None, Notes(messages=(message,))), True


@cache
def imagenet_ids() -> tuple[str, ...]:
    """The WordNet ids of the 1,000 classes of ImageNet in their order, from a file of timm, which is not imported."""
    spec = find_spec("timm")
    places = [] if spec is None or spec.submodule_search_locations is None else [*spec.submodule_search_locations]
    file = Path(places[0]) / "data/_info/imagenet_synsets.txt" if places else Path()
    return tuple(file.read_text("utf-8").split()) if file.is_file() else ()
