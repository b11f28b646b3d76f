"""The eight classification sets of MLS, table 5, in the form that their makers give them out; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from torchvision import datasets

from fewtags.errors import ConfigError, DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.voc import read_voc
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable
from fewtags.text import counted, suggest
from fewtags.transfer.task import Kind, Task, make_task

Listed = list[tuple[Path, str]]
"""Photos with the name of their one class."""


@final
@dataclass(frozen=True)
class TransferSet:
    """One of the sets.

    Attributes:
        folder: what its archive unpacks to, or torchvision's name for it.
        kind: one class per photo, or several.
        classes: how many there are.
        train: training photos (train and val together).
        test: test photos.
        needs: what has to be in the folder.
    """

    folder: str
    kind: Kind
    classes: int
    train: int
    test: int
    needs: str


SETS: Mapping[str, TransferSet] = {
    "voc2007": TransferSet(
        "VOC2007", "multi", 20, 5011, 4952, "Annotations/, ImageSets/Main/ and JPEGImages/ of trainval and of test"
    ),
    "cub200": TransferSet(
        "CUB_200_2011", "single", 200, 5994, 5794,
        "images/, images.txt, classes.txt, image_class_labels.txt, train_test_split.txt",
    ),
    "flowers": TransferSet(
        "flowers-102", "single", 102, 2040, 6149, "jpg/, imagelabels.mat and setid.mat, as they were given out"
    ),
    "cars": TransferSet(
        "stanford_cars", "single", 196, 8144, 8041,
        "cars_train/, cars_test/, devkit/ with cars_meta.mat and cars_train_annos.mat, cars_test_annos_withlabels.mat",
    ),
    "aircraft": TransferSet(
        "fgvc-aircraft-2013b", "single", 100, 6667, 3333,
        "data/ with images/, variants.txt, images_variant_trainval.txt and images_variant_test.txt",
    ),
    "indoor67": TransferSet("indoor67", "single", 67, 5360, 1340, "Images/, TrainImages.txt and TestImages.txt"),
    "pets": TransferSet(
        "oxford-iiit-pet", "single", 37, 3680, 3669, "images/, annotations/ with trainval.txt and test.txt"
    ),
    "dtd": TransferSet("dtd", "single", 47, 3760, 1880, "dtd/ with images/ and labels/"),
}  # fmt: skip


def read_set(name: str, place: Path, *, any_size: bool = False) -> Task:
    """Read one of `SETS`.

    - Training is on the official train and val photos together (flowers, aircraft, DTD partition 1, VOC2007).
    - Every photo of the single-class sets is known not to show any other class.
    - VOC2007: classes of which a photo has difficult objects only are unknown in it.

    Args:
        name: of the set.
        place: its folder, or the one that holds it under its usual name.
        any_size: take it even if it has another number of photos or classes than published.

    Raises:
        ConfigError: no such set.
        DataError: it is not there, incomplete, or (unless `any_size`) of another size than published.
    """
    if name not in SETS:
        raise ConfigError(f"{name!r} is no set that is known here{suggest(name, SETS)}; one of {', '.join(SETS)}.")
    known = SETS[name]
    inside = place / known.folder
    folder = inside if place.absolute().name != known.folder and inside.is_dir() else place.absolute()
    try:
        train, test = _voc2007(folder) if name == "voc2007" else _single(name, folder)
    # torchvision's words for what is not there; broken lists and .mat files end in the others.
    except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{place} cannot be read as {name}: {error}. A folder {known.folder} (or what it is called) with "
            f"{known.needs} was expected."
        ) from None
    task = make_task(train, test, name=name, kind=known.kind)
    found = (len(task.train), len(task.test), task.classes)
    published = (known.train, known.test, known.classes)
    if found != published and not any_size:
        raise DataError(
            f"{place}: {name} has {_sizes(*published)}, but here are {_sizes(*found)}. Complete the set, or pass "
            "--any-size, and do not compare the result with published ones."
        )
    return task


def _sizes(train: int, test: int, classes: int) -> str:
    return (
        f"{counted(train, 'training photo')}, {counted(test, 'test photo')} and {counted(classes, 'class', 'classes')}"
    )


def _voc2007(folder: Path) -> tuple[LabelTable, LabelTable]:
    whole = read_voc(folder, options=ReadOptions(complete=True, difficult="unknown"))
    named = whole.named_splits()
    if "test" not in named:
        raise DataError(f"{folder}/ImageSets/Main has no test.txt; unpack the test archive over the other one.")
    names = np.array(whole.split_names.to_pylist())  # type: ignore[union-attr]
    return whole.subset(np.isin(names, ("train", "val"))), named["test"]


def _single(name: str, folder: Path) -> tuple[LabelTable, LabelTable]:
    listed = _READERS[name](folder)
    classes = ClassNames.of(sorted({c for photos in listed for _, c in photos}))
    missing = [path for photos in listed for path, _ in photos if not path.is_file()]
    if missing:
        raise DataError(
            f"{name}: {counted(len(missing), 'photo')} not there, for example {missing[0]}; unpack it again."
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
        closed=np.zeros(n, np.int16),
        covers=np.ones((1, len(classes)), np.bool_),
        root=root,
    )


def _torchvision_root(name: str, folder: Path) -> Path:
    """Where torchvision looks for its folder of a fixed name.

    Raises:
        DataError: the folder has another name.
    """
    wanted = SETS[name].folder
    if folder.name != wanted:
        raise DataError(f"the folder of {name} has to be called {wanted} (got {folder}); rename it.")
    return folder.parent


# torchvision's data sets hold their lists in attributes without a public name; reading them decodes no photo.


def _flowers(folder: Path) -> tuple[Listed, Listed]:
    root = _torchvision_root("flowers", folder)

    def part(split: str) -> Listed:
        found = datasets.Flowers102(root, split)
        return [(path, f"{c + 1:03d}") for path, c in zip(found._image_files, found._labels, strict=True)]

    return part("train") + part("val"), part("test")


def _cars(folder: Path) -> tuple[Listed, Listed]:
    root = _torchvision_root("cars", folder)

    def part(split: str) -> Listed:
        found = datasets.StanfordCars(root, split)
        return [(Path(path), found.classes[c]) for path, c in found._samples]

    return part("train"), part("test")


def _aircraft(folder: Path) -> tuple[Listed, Listed]:
    root = _torchvision_root("aircraft", folder)

    def part(split: str) -> Listed:
        found = datasets.FGVCAircraft(root, split, annotation_level="variant")
        return [(Path(p), found.classes[c]) for p, c in zip(found._image_files, found._labels, strict=True)]

    return part("trainval"), part("test")


def _pets(folder: Path) -> tuple[Listed, Listed]:
    root = _torchvision_root("pets", folder)

    def part(split: str) -> Listed:
        # The breed is the name of the photo up to its number.
        return [(path, path.stem.rsplit("_", 1)[0]) for path in datasets.OxfordIIITPet(root, split)._images]

    return part("trainval"), part("test")


def _dtd(folder: Path) -> tuple[Listed, Listed]:
    root = _torchvision_root("dtd", folder)

    def part(split: str) -> Listed:
        return [(path, path.parent.name) for path in datasets.DTD(root, split, partition=1)._image_files]

    return part("train") + part("val"), part("test")


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
    """A path per line, with its class for a folder."""

    def part(name: str) -> Listed:
        lines = (line.strip() for line in (folder / name).read_text("utf-8").splitlines())
        return [(folder / "Images" / line, line.split("/")[0]) for line in lines if line]

    return part("TrainImages.txt"), part("TestImages.txt")


def _pairs(file: Path) -> Sequence[tuple[str, str]]:
    """The two words of every line.

    Raises:
        DataError: a line with fewer.
    """
    pairs = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        words = line.split(maxsplit=1)
        if len(words) == 2:
            pairs.append((words[0], words[1].strip()))
        elif words:
            raise DataError(f"{file} row {number}: {line!r}; expected a number and what it stands for.")
    return pairs


_READERS: Mapping[str, Callable[[Path], tuple[Listed, Listed]]] = {
    "cub200": _cub200,
    "flowers": _flowers,
    "cars": _cars,
    "aircraft": _aircraft,
    "indoor67": _indoor67,
    "pets": _pets,
    "dtd": _dtd,
}
