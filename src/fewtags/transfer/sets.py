"""Readers of the eight classification sets of MLS, table 5, as published by their makers; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from torchvision import datasets

from fewtags.errors import ConfigError, DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.voc import read_voc
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable
from fewtags.text import counted, suggest
from fewtags.transfer.task import Task, TaskKind, make_task

Listed = list[tuple[Path, str]]
"""Photos with the name of their only class."""


@final
@dataclass(frozen=True)
class TransferSet:
    """A published data set: the folder of its archive (or torchvision's name for it), and what that must contain.

    `sizes` are the numbers of training photos (train and val together), test photos and classes.
    """

    folder: str
    kind: TaskKind
    sizes: tuple[int, int, int]
    content: str


SETS: Mapping[str, TransferSet] = {
    "voc2007": TransferSet(
        "VOC2007", "multi", (5011, 4952, 20), "Annotations/, ImageSets/Main/, JPEGImages/ of trainval and test"
    ),
    "cub200": TransferSet(
        "CUB_200_2011",
        "single",
        (5994, 5794, 200),
        "images/ and images.txt, classes.txt, image_class_labels.txt, train_test_split.txt",
    ),
    "flowers": TransferSet(
        "flowers-102", "single", (2040, 6149, 102), "jpg/, imagelabels.mat and setid.mat, as published"
    ),
    "cars": TransferSet(
        "stanford_cars", "single", (8144, 8041, 196), "cars_train/, cars_test/, devkit/, cars_test_annos_withlabels.mat"
    ),
    "aircraft": TransferSet(
        "fgvc-aircraft-2013b",
        "single",
        (6667, 3333, 100),
        "data/ with images/, variants.txt, images_variant_trainval.txt and images_variant_test.txt",
    ),
    "indoor67": TransferSet("indoor67", "single", (5360, 1340, 67), "Images/, TrainImages.txt and TestImages.txt"),
    "pets": TransferSet(
        "oxford-iiit-pet", "single", (3680, 3669, 37), "images/, annotations/ with trainval.txt and test.txt"
    ),
    "dtd": TransferSet("dtd", "single", (3760, 1880, 47), "dtd/ with images/ and labels/"),
}


def read_set(name: str, place: Path, *, any_size: bool = False) -> Task:
    """Read one of `SETS` from its folder, or from the parent of the folder with its usual name.

    - The training photos are the official train and val photos (flowers, aircraft, DTD partition 1, VOC2007).
    - In single-label sets, every other class is known to be absent.
    - VOC2007: a class is unknown in a photo if all of its objects there are difficult.
    - `any_size` accepts numbers of photos or classes other than the published ones.

    Raises:
        ConfigError: the name is unknown.
        DataError: the set is missing, incomplete, or (unless `any_size`) not of the published size.
    """
    if name not in SETS:
        raise ConfigError(f"--as {name}: not a known set{suggest(name, SETS)}; known: {', '.join(SETS)}.")
    known = SETS[name]
    inside = place / known.folder
    folder = inside if place.absolute().name != known.folder and inside.is_dir() else place.absolute()
    try:
        train, test = _voc2007(folder) if name == "voc2007" else _single(name, folder)
    # torchvision raises RuntimeError for missing files; broken lists and .mat files raise the other errors.
    except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{place} cannot be read as {name}: {error}. Expected the folder {known.folder}, with {known.content}."
        ) from None
    task = make_task(train, test, name=name, kind=known.kind)
    found = (len(task.train), len(task.test), task.classes)
    if found != known.sizes and not any_size:
        raise DataError(
            f"{place}: {name} has {_sizes(*known.sizes)}, but this folder has {_sizes(*found)}. Complete the set, or "
            "pass --any-size and do not compare the result with published ones."
        )
    return task


def _sizes(train: int, test: int, classes: int) -> str:
    photos = f"{counted(train, 'training photo')}, {counted(test, 'test photo')}"
    return f"{photos} and {counted(classes, 'class', 'classes')}"


def _voc2007(folder: Path) -> tuple[LabelTable, LabelTable]:
    whole = read_voc(folder, options=ReadOptions(complete=True, difficult="unknown"))
    named = whole.named_splits()
    if "test" not in named:
        raise DataError(f"{folder}/ImageSets/Main has no test.txt; unpack the test archive into the same folder.")
    names = np.array(whole.split_names.to_pylist())  # type: ignore[union-attr]
    return whole.subset(np.isin(names, ("train", "val"))), named["test"]


def _single(name: str, folder: Path) -> tuple[LabelTable, LabelTable]:
    listed = _by_torchvision(name, folder) if name in _TORCHVISION else _READERS[name](folder)
    classes = ClassNames.of(sorted({c for photos in listed for _, c in photos}))
    missing = [path for photos in listed for path, _ in photos if not path.is_file()]
    if missing:
        raise DataError(
            f"{name}: {counted(len(missing), 'photo is', 'photos are')} missing, for example {missing[0]}; unpack the "
            "archive again."
        )
    train, test = (_table(folder, photos, classes) for photos in listed)
    return train, test


def _table(root: Path, photos: Listed, classes: ClassNames) -> LabelTable:
    n = len(photos)
    return LabelTable.build(
        [path.relative_to(root).as_posix() for path, _ in photos],
        classes,
        image=np.arange(n),
        class_=np.array([classes.index(c) for _, c in photos], np.int64),
        state=np.full(n, Label.POSITIVE),
        source=root.name,
        complete_set=np.zeros(n, np.int16),
        complete_classes=np.ones((1, len(classes)), np.bool_),
        root=root,
    )


_TORCHVISION: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "flowers": (datasets.Flowers102, ("train", "val")),
    "cars": (datasets.StanfordCars, ("train",)),
    "aircraft": (partial(datasets.FGVCAircraft, annotation_level="variant"), ("trainval",)),
    "dtd": (partial(datasets.DTD, partition=1), ("train", "val")),
}
"""Sets that torchvision reads: its class, and its names of our training photos."""


def _by_torchvision(name: str, folder: Path) -> tuple[Listed, Listed]:
    wanted = SETS[name].folder
    if folder.name != wanted:  # torchvision looks for this name
        raise DataError(f"the folder of {name} must be named {wanted}, got {folder}; rename it.")
    make, training = _TORCHVISION[name]

    def part(*splits: str) -> Listed:
        # With `loader=Path`, a photo is its path, and is not decoded.
        made = [make(folder.parent, split, loader=Path) for split in splits]
        items = [(data, *data[i]) for data in made for i in range(len(data))]
        return [(path, f"{c + 1:03d}" if name == "flowers" else data.classes[c]) for data, path, c in items]

    return part(*training), part("test")


def _pets(folder: Path) -> tuple[Listed, Listed]:
    """A photo per line: its name (the breed and a number), and three numbers that are not used."""

    def part(split: str) -> Listed:
        names = [name for name, _ in _pairs(folder / "annotations" / f"{split}.txt")]
        return [(folder / "images" / f"{name}.jpg", name.rsplit("_", 1)[0]) for name in names]

    return part("trainval"), part("test")


def _cub200(folder: Path) -> tuple[Listed, Listed]:
    """`images.txt` (number, path), `image_class_labels.txt` (number, class), `train_test_split.txt` (1: training)."""
    photos, label, training = (
        dict(_pairs(folder / f"{name}.txt")) for name in ("images", "image_class_labels", "train_test_split")
    )
    classes = dict(_pairs(folder / "classes.txt"))
    parts: tuple[Listed, Listed] = ([], [])
    for number, path in photos.items():
        parts[training[number] != "1"].append((folder / "images" / path, classes[label[number]]))
    return parts


def _indoor67(folder: Path) -> tuple[Listed, Listed]:
    """A path per line, whose folder is the class."""

    def part(name: str) -> Listed:
        lines = (line.strip() for line in (folder / name).read_text("utf-8").splitlines())
        return [(folder / "Images" / line, line.split("/")[0]) for line in lines if line]

    return part("TrainImages.txt"), part("TestImages.txt")


def _pairs(file: Path) -> Sequence[tuple[str, str]]:
    """Read the first word and the rest of every line."""
    pairs = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        words = line.split(maxsplit=1)
        if len(words) == 2:
            pairs.append((words[0], words[1].strip()))
        elif words:
            raise DataError(f"{file} row {number}: {line!r}; expected two values separated by a space. Fix the row.")
    return pairs


_READERS: Mapping[str, Callable[[Path], tuple[Listed, Listed]]] = {
    "cub200": _cub200,
    "indoor67": _indoor67,
    "pets": _pets,
}
