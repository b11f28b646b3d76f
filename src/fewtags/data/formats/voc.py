"""Pascal VOC: one XML file per photo in `Annotations`, and the lists of `ImageSets/Main`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray

from fewtags.data.formats.boxes import FAULTS, Placed, place_boxes
from fewtags.data.formats.common import ReadOptions, close_images, some
from fewtags.data.formats.photos import Located, extension, is_photo, locate
from fewtags.data.table import Excluded, LabelTable, Notes, ValueReading
from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label

_SPLITS = {"train": "train", "val": "val", "test": "test", "trainval": "train"}
_CLASS_LIST = re.compile(r"(.+)_(?:train|val|trainval|test)")


def read_voc(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a folder in the layout of Pascal VOC, or a folder of its XML files.

    - An object says that its class is present, and where; boxes count pixels from 1 and include the last one. A box that
      cannot be used is left out, its label kept.
    - Objects marked difficult are unknown by default. If they are to be negative, a class with another object that is
      not difficult is still positive.
    - `ImageSets/Main/CLASS_SPLIT.txt` says present (1), absent (-1) or difficult (0) of whole photos; `train.txt`,
      `val.txt` and `test.txt` name the splits, `trainval.txt` counts as train where it is alone.
    - What is not named is unknown, or absent if `complete` and the photo has an XML file.
    - Photos that are listed, or lie in the photo folder of a data set without lists, stay without annotation.

    Args:
        path: the folder with `Annotations` or `ImageSets`, or one with XML files.
        images: folder of the photos, which are called like the XML files; None looks for `JPEGImages` or `images`, or for
            photos beside the XML files.
        options: `complete` and `difficult` count.

    Returns:
        a table with the classes sorted by name and the images by path.

    Raises:
        DataError: nothing to read, XML that is broken or dangerous, lists with other lines, or most photos missing.
    """
    options = options or ReadOptions()
    base = path.parent if path.name == "Annotations" else path
    folder = path / "Annotations" if (path / "Annotations").is_dir() else path
    pages = _read_pages(folder)
    lists = _read_lists(base / "ImageSets" / "Main")
    if not pages and not lists.names:
        raise DataError(f"{path}: no XML files in {folder.name}/ and no lists in ImageSets/Main/; is this a VOC folder?")
    classes = ClassNames.of(sorted({o.name for page in pages.values() for o in page.objects} | lists.classes))
    if not len(classes):
        raise DataError(f"{path}: no annotation names a class, so there is nothing to learn.")
    photos = _photos(path, base, images, pages, lists)
    row = {name: int(i) for name, i in zip(_names(pages, lists), photos.image, strict=True)}
    ...
