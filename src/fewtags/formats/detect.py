"""Which form labels are in, told from a path and a look into what is there."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from fewtags.errors import ConfigError, DataError
from fewtags.formats.locate import extension, is_photo
from fewtags.formats.openimages_files import files_beside, is_openimages, named_by
from fewtags.formats.yolo_layout import CLASS_FILES, names_classes
from fewtags.text import suggest

Format = Literal["folder", "csv", "coco", "voc", "yolo", "openimages", "labelstudio", "cvat", "parquet"]

_ONLY_FOLDERS, _ONLY_FILES = ("folder", "voc"), ("csv", "coco", "labelstudio", "parquet")
_EXPECTED = (
    "expected a folder of class folders, a VOC folder (with Annotations/ or ImageSets/), a YOLO folder or data.yaml, a "
    ".csv, .tsv or .txt table, a COCO or Label Studio .json, a CVAT .xml, OpenImages .csv files, or a .parquet label "
    "table"
)
_SPLITS = ("train", "val", "valid", "validation", "test")


def detect(path: Path, given: str | None = None) -> tuple[Format, str]:
    """The format of a path, and why it is taken for that.

    Args:
        path: what to read.
        given: a format that is insisted on.

    Raises:
        DataError: no such file, no known form, the marks of several forms, or another kind of path than `given` needs.
        ConfigError: `given` is not one of the known formats.
    """
    known: dict[str, Format] = {name: name for name in get_args(Format)}
    if given is not None and given not in known:
        raise ConfigError(f"format {given!r} is not known{suggest(given, known)}; known: {', '.join(known)}.")
    if not path.exists():
        raise DataError(f"{str(path)!r} does not exist{_neighbour(path)}; {_EXPECTED}.")
    if given is not None:
        if given in (_ONLY_FILES if path.is_dir() else _ONLY_FOLDERS):
            raise DataError(f"{path} is {'a folder' if path.is_dir() else 'a file'}, which format {given!r} is not.")
        return known[given], "as said"
    return _folder(path) if path.is_dir() else _file(path)


def _folder(path: Path) -> tuple[Format, str]:
    marks = dict(_marks(path))
    if len(marks) > 1:
        what = " and ".join(f"{name} ({why})" for name, why in marks.items())
        first = next(iter(marks))
        raise DataError(f"{path} could be {what}; say which: format={first} (--set data.format={first}), for example.")
    return next(iter(marks.items()), ("folder", "it has no mark of another format"))


def _marks(path: Path) -> Iterator[tuple[Format, str]]:
    """The formats that a folder has marks of."""
    voc = [part for part in ("Annotations", "ImageSets") if (path / part).is_dir() or path.name == part]
    if voc:
        yield "voc", f"{voc[0]}/"
    if (path / "annotations.xml").is_file():
        yield "cvat", "annotations.xml"
    if yolo := _yolo_mark(path):
        yield "yolo", yolo
    if tables := [file for file in files_beside(path) if is_openimages(file)]:
        yield "openimages", f"{tables[0].name} has the columns {named_by(tables[0])}"


def _yolo_mark(path: Path) -> str:
    if named := [file.name for file in sorted(path.iterdir()) if names_classes(file)]:
        return f"{named[0]} has names"
    if (path / "obj.names").is_file():
        return "obj.names"
    for folder in (path, *(path / split for split in _SPLITS)):
        labels = folder if folder.name == "labels" else folder / "labels"
        if labels.is_dir() and any(file.name != "classes.txt" for file in labels.rglob("*.txt")):
            return f"label files in {labels.relative_to(path.parent).as_posix()}/"
    if any((path / name).is_file() for name in CLASS_FILES):
        names = {entry.name for entry in path.iterdir()}
        if any(is_photo(name) and f"{name.rpartition('.')[0]}.txt" in names for name in names):
            return "classes.txt, and label files beside photos"
    return ""


def _file(path: Path) -> tuple[Format, str]:
    match extension(path.name):
        case ".csv" if is_openimages(path):
            return "openimages", f"it has the columns {named_by(path)}"
        case ".csv" | ".tsv" | ".txt":
            return "csv", "a text table by its ending"
        case ".json":
            listed = _first_character(path) == "["
            return ("labelstudio", "its JSON is a list") if listed else ("coco", "its JSON is an object")
        case ".xml":
            return "cvat", "one XML file"
        case ".yaml" | ".yml":
            return "yolo", "a YAML file"
        case ".parquet":
            return "parquet", "by its ending"
        case ending:
            raise DataError(f"{path}: the ending {ending!r} tells no known format; {_EXPECTED}, or pass format=.")


def _first_character(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(4096).decode("utf-8-sig", "ignore").lstrip()[:1]


def _neighbour(path: Path) -> str:
    folder = path.absolute().parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f" (did you mean {str(path.with_name(close[0]))!r}?)" if close else ""
