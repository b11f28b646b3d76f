"""Doubts about a tree of class folders: what else it may be, and which of its folders may not be classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from fewtags.errors import DataError
from fewtags.formats.celeba import is_counted_list
from fewtags.formats.common import is_hidden
from fewtags.formats.folder_walk import Files
from fewtags.formats.locate import PHOTO_FOLDERS, extension
from fewtags.formats.options import fold
from fewtags.formats.texts import kind_of, several_in_one
from fewtags.text import counted, quoted, setting, some

_TABLES = frozenset({".csv", ".tsv", ".json", ".jsonl", ".parquet"})


_MASK_FOLDERS = frozenset(
    [
        *("mask", "masks", "segmentation", "segmentations", "segmentationclass", "segmentationobject", "gt"),
        *("groundtruth", "ground_truth", "annotation", "annotations", "label", "labels", "seg", "trimaps"),
    ]
)


_MOST_TEXTS = 50


def class_folder(key: str, split: bool) -> str:
    """Return the class folder of a photo, or ""."""
    parts = key.split("/")[int(split) :]
    return parts[0] if len(parts) > 1 else ""


def _with_texts(root: Path, files: Files) -> str:
    """Return how many photos have a text file of the same name, and how to read it; "" if none has one."""
    named = [stem for key in files.photos if (stem := key.rpartition(".")[0]) in files.texts]
    if not named:
        return ""
    texts = [(root / f"{stem}.txt") for stem in named[:_MOST_TEXTS]]
    kind = kind_of([file.read_bytes().decode("utf-8", "ignore") for file in texts if file.is_file()])
    start = f"{counted(len(named), 'photo has', 'photos have')} a text file of the same name"
    if kind == "numbers":
        return f"{start} with numbers, as labels of YOLO; to read these, add data.yaml or classes.txt with the classes"
    if kind == "captions":
        return f"{start} with a caption, and captions are not tags; write the tags of each photo instead"
    return f"{start}; to read tags from them, pass {setting('format', 'tagfiles')}"


def no_classes_text(root: Path, files: Files, meaning: Mapping[str, tuple[str, ...]]) -> str:
    """Return what is there instead of class folders, and what to do."""
    if meaning:
        return f"{root}: there is no class folder beside {some([*meaning])}; make one folder for each class."
    start = f"{root}: no class folders with photos in them"
    if tagged := _with_texts(root, files):
        return f"{start}, but {tagged}."
    if xml := files.others["*.xml"]:
        return f"{start}, but {counted(xml, 'XML file')}; for VOC annotations pass {setting('format', 'voc')}."
    if tables := label_files(root):
        return f"{start}, but label files; pass one of them instead of the folder: {some(tables)}."
    what = f"{counted(len(files.photos), 'photo')} without a folder" if files.photos else "no photos at all"
    return f"{start}, {what}; expected {root}/CLASS/PHOTO.jpg, or the file with the labels."


def label_files(root: Path, folders: Sequence[str] = ()) -> list[str]:
    """Return the names of files that may have labels, in a folder and directly below it in some `folders`."""
    places = (root, *(root / name for name in folders))
    files = sorted(file for place in places for file in place.iterdir() if _may_have_labels(file))
    return [file.relative_to(root).as_posix() for file in files if not is_hidden(file.name)]


def _may_have_labels(file: Path) -> bool:
    return extension(file.name) in _TABLES or (file.is_file() and is_counted_list(file))


def check_single_folder(root: Path, files: Files, name: str) -> None:
    """Refuse a tree of one class folder that looks like something else."""
    if all(key.count("/") != 1 for key in files.photos):
        trouble = "is the only folder, and has folders but no photos; if these are the classes, pass "
        trouble += quoted(str(root / name))
    elif tables := label_files(root):
        trouble = "would be the only class, and there are label files; pass one of them instead of the folder: "
        trouble += some(tables)
    elif fold(name) in PHOTO_FOLDERS:
        trouble = f"would be the only class, but its name says only that it has photos; expected {root}/CLASS/PHOTO.jpg"
        if xml := files.others["*.xml"]:
            trouble = f"would be the only class, and there {'is' if xml == 1 else 'are'} {counted(xml, 'XML file')}; "
            trouble += f"for VOC annotations pass {setting('format', 'voc')}"
        elif len(files.photos) and (tagged := _with_texts(root, files)):
            trouble = f"would be the only class, but {tagged}"
    else:
        return
    raise DataError(f"{root}: {quoted(name)} {trouble}.")


def tree_warnings(root: Path, files: Files, folder: Mapping[str, str], split: bool) -> tuple[str, ...]:
    """Return warnings about photos of an unknown kind, classes that vanish with them, and tag files beside photos."""
    found = []
    if files.unknown:
        here = {*folder.values()}
        lost = sorted({name for key in files.unknown if (name := class_folder(key, split)) and name not in here})
        endings = sorted({extension(key) for key in files.unknown})
        text = f"{root}: {counted(len(files.unknown), 'file has', 'files have')} an unknown ending "
        text += f"({', '.join(endings)}), which is not read"
        if lost:
            text += f"; {some(lost)} {'has' if len(lost) == 1 else 'have'} no other files, so "
            text += "this class is lost" if len(lost) == 1 else "these classes are lost"
        found.append(f"{text}. Convert photos to JPEG or PNG.")
    if tagged := _with_texts(root, files):
        found.append(f"{root}: {tagged}. The text files are not read.")
    found += [
        f"{root}: {name!r} is read as a class, but its photos have the names of photos in other folders, as masks "
        "have. If it is not a class, move it out of the folder."
        for name in mask_folders(folder)
    ]
    found += [
        f"{root}: the folder {name!r} is read as one class, but its parts are classes themselves. If its photos show "
        "both, put a comma between the names."
        for name in several_in_one(filter(None, folder.values()))
    ]
    found += _deeper(root, folder, split)
    return tuple(found)


def without_photos(files: Files, folder: Mapping[str, str], split: bool) -> tuple[str, ...]:
    """Return a message about folders at the place of classes that have no photo in any split and no unread file."""
    depth, said = 1 + split, {class_folder(key, split) for key in files.unknown}
    full = {"/".join(key.split("/")[:depth]) for key in files.photos}
    bare = [key for key in files.folders if key.count("/") + 1 == depth and key not in full]
    names = sorted({key.rpartition("/")[2] for key in bare} - {*folder.values()} - said)
    if not names:
        return ()
    one, many = "folder has no photos and is not a class", "folders have no photos and are not classes"
    return (f"{counted(len(names), one, many)}: {some(names)}",)


def mask_folders(folder: Mapping[str, str]) -> list[str]:
    """Return the class folders that are called like masks and have a photo for each of some photos elsewhere."""
    stems: dict[str, set[str]] = defaultdict(set)
    for key, name in folder.items():
        stems[name].add(key.rpartition("/")[2].rpartition(".")[0])
    masks = [name for name in sorted(stems) if fold(name) in _MASK_FOLDERS]
    others = {stem for name, own in stems.items() if name not in masks for stem in own}
    return [name for name in masks if stems[name] <= others]


def _deeper(root: Path, folder: Mapping[str, str], split: bool) -> list[str]:
    """Return a warning if no photo lies directly in a class folder: the folders below may be the classes."""
    parts = {key: key.split("/")[split + 1 : -1] for key, name in folder.items() if name}
    below = sorted({inside[0] for inside in parts.values() if inside})
    if not parts or not all(parts.values()) or len(below) < 2:
        return []
    return [
        f"{root}: no photo lies directly in {some(sorted({*folder.values()} - {''}), 3)}. These are read as the "
        f"classes, and the folders below them, {some(below, 3)}, are not. If those are the classes, move them up."
    ]
