"""NUS-WIDE: the official folder of lists, or the arrays of Cole et al. (CVPR 2021) for the photos found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, split_name, text_of
from fewtags.formats.locate import locate
from fewtags.formats.numbered import distinct
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Labels, Source, value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Notes

_LISTS, _CONCEPTS = "ImageList", "ConceptsList/Concepts81.txt"
_SPLITS = ("Train", "Val", "Test")
_ARRAYS = ("train", "val")


def recognise(path: Path) -> str:
    """Return the mark of NUS-WIDE in a folder, or "" if there is none."""
    if (path / _array("train", "labels")).is_file() and (path / _array("train", "images")).is_file():
        return _array("train", "labels")
    return _LISTS + "/" if (path / _CONCEPTS).is_file() and (path / _LISTS).is_dir() else ""


def read_nuswide(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    r"""Read the 81 concepts as classes; both layouts state 1 (present) or 0 (absent) for each photo and concept.

    - The official folder: names in ImageList/TrainImagelist.txt (Test, Val), or ImageList/Imagelist.txt if there are no
      splits; concepts in ConceptsList/Concepts81.txt; labels in TrainTestLabels/Labels_CONCEPT_Train.txt, or
      AllLabels/Labels_CONCEPT.txt, in the folder or its Groundtruth/.
    - Arrays of `format_nus.py` of Cole et al.: formatted_train_images.npy and formatted_train_labels.npy, and val.
      Concepts are called by number if there is no Concepts81.txt.

    Photos are in Flickr/ or images/, with the folders that the lists name (`actor\0001_2124494179.jpg`).

    Raises:
        DataError: a file is missing or damaged, lengths differ, or most photos are missing.
    """
    options = options or ReadOptions()
    arrays = (path / _array("train", "labels")).is_file()
    names, splits, dense, classes = _from_arrays(path) if arrays else _from_lists(path)
    image, class_ = np.nonzero(dense)
    labels = Labels.of_images(image, class_, np.full(len(image), Label.POSITIVE, np.int8))
    readings = [("1", "positive", len(image)), ("0", "negative", dense.size - len(image))]
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=locate(names, file=path / "ImageList", images=images, beside=[path / "Flickr", path / "images", path]),
        unit="fractions",
        origin=lambda i: names[int(image[i])],
        complete=np.ones(len(names), np.bool_),
        splits=splits if any(splits) else None,
        notes=Notes(value_readings("labels", readings)),
    ).table()


_Read = tuple[list[str], list[str], NDArray[np.bool_], ClassNames]
"""Names and splits of N images, bool [N, C], and the classes."""


def _from_lists(path: Path) -> _Read:
    concepts = _lines(path / _CONCEPTS)
    names: list[str] = []
    splits: list[str] = []
    parts: list[NDArray[np.bool_]] = []
    there = [
        (split, f"{split}Imagelist.txt") for split in _SPLITS if (path / _LISTS / f"{split}Imagelist.txt").is_file()
    ]
    for split, file in there or [("", "Imagelist.txt")]:
        own = [line.strip().replace("\\", "/") for line in _lines(path / _LISTS / file)]
        end = f"_{split}" if split else ""
        folder = "TrainTestLabels" if split else "AllLabels"
        columns = [_column(_found(path, f"{folder}/Labels_{name}{end}.txt"), len(own)) for name in concepts]
        parts.append(np.stack(columns, 1))
        names += own
        splits += [split_name(split)] * len(own)
    return names, splits, np.concatenate(parts), distinct(concepts, path / _CONCEPTS)


def _from_arrays(path: Path) -> _Read:
    names: list[str] = []
    splits: list[str] = []
    parts: list[NDArray[np.bool_]] = []
    for split in _ARRAYS:
        if not (path / _array(split, "images")).is_file():
            continue
        own, labels = (_load(path / _array(split, what)) for what in ("images", "labels"))
        if labels.ndim != 2 or len(own) != len(labels) or not np.isin(labels, (0, 1)).all():
            raise DataError(
                f"{path / _array(split, 'labels')}: expected 0 or 1 for each of {len(own):,} images and class."
            )
        names += [str(name).replace("\\", "/") for name in own.tolist()]
        splits += [split] * len(own)
        parts.append(labels == 1)
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError(f"{path}: the arrays have different numbers of classes: {[part.shape[1] for part in parts]}.")
    concepts = path / _CONCEPTS
    ids = _lines(concepts) if concepts.is_file() else [str(c) for c in range(parts[0].shape[1])]
    if len(ids) != parts[0].shape[1]:
        raise DataError(f"{concepts} has {len(ids)} names, but the arrays have {parts[0].shape[1]} classes.")
    return names, splits, np.concatenate(parts), distinct(ids, concepts)


def _array(split: str, what: str) -> str:
    return f"formatted_{split}_{what}.npy"


def _load(file: Path) -> NDArray[np.generic]:
    try:
        found: NDArray[np.generic] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: not an array of numbers or texts ({error}).") from None
    return found


def _lines(file: Path) -> list[str]:
    """Return the lines of a text file without blank ones."""
    if not file.is_file():
        raise DataError(f"{file} is missing.")
    return [clean_name(line) for line in text_of(file).splitlines() if line.strip()]


def _found(path: Path, name: str) -> Path:
    return next((place for place in (path / name, path / "Groundtruth" / name) if place.is_file()), path / name)


def _column(file: Path, count: int) -> NDArray[np.bool_]:
    words = _lines(file)
    if len(words) != count:
        raise DataError(f"{file} has {len(words):,} lines, but its list has {count:,} photos.")
    if other := next((row for row, word in enumerate(words, 1) if word not in ("0", "1")), 0):
        raise DataError(f"{file} line {other}: expected 0 or 1, got {words[other - 1][:80]!r}.")
    return np.array([word == "1" for word in words], np.bool_)
