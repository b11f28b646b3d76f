"""LabelMe: a JSON file for each photo, with the shapes and flags that people gave it."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import (
    Point,
    attribute_readings,
    ends_of,
    finite_number,
    is_hidden,
    is_split,
    plain_text,
    read_json,
)
from fewtags.formats.labelme_shapes import KINDS, place_of
from fewtags.formats.locate import PHOTO_FOLDERS, ImageKeys, extension, is_photo, locate, spelling, usual_folders
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.rated import Scores
from fewtags.formats.stated import Source, Stated, count_messages, value_readings
from fewtags.labels import ClassNames
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, setting, some

_Record = dict[str, Any]
_SHAPES = re.compile(r'"shapes"\s*:\s*\[|"shape_type"\s*:')
_PHOTO = re.compile(r'"image(?:Path|Height|Data)"\s*:')
_OTHER = re.compile(r'"(?:annotations|categories)"\s*:\s*[\[{]')
_IGNORED = frozenset({"__ignore__"})
_LABEL_FOLDERS = frozenset({"labels", "label", "annotations", "annotation", "json", "jsons", "labelme"})
_MOST_FOLDERS, _MOST_FILES = 200, 3
_NO_SIZE = (float("nan"), float("nan"))


def recognise(path: Path) -> str:
    """Return why a path is a file of LabelMe, or a folder with such files in it; "" if it is neither.

    Raises:
        DataError: the files are beside photos in folders that may be classes.
    """
    if not path.is_dir():
        return "its JSON has shapes of LabelMe" if is_labelme(path) else ""
    found, tops = "", set()
    for folder, names in _folders(path):
        tops |= {folder.relative_to(path).parts[0]} if folder != path and any(map(is_photo, names)) else set()
        files = [folder / name for name in names if extension(name) == ".json"][:_MOST_FILES]
        if not found and (file := next(filter(is_labelme, files), None)) is not None:
            found = file.relative_to(path).as_posix()
    classes = sorted(top for top in tops if fold(top) not in PHOTO_FOLDERS and not is_split(top))
    if found and len(classes) > 1:
        raise DataError(
            f"{path}: there are files of LabelMe, such as {found}, and photos in folders that may be classes "
            f"({some(classes)}). Pass {setting('format', 'labelme')} to read the files, or "
            f"{setting('format', 'folder')} to read the folders as classes."
        )
    return f"{found} is a file of LabelMe" if found else ""


def is_labelme(file: Path) -> bool:
    """Return whether a JSON file is of LabelMe: an object with shapes and the name, size or data of a photo."""
    text = ends_of(file)
    whole = text.lstrip().startswith("{") and _SHAPES.search(text) and _PHOTO.search(text)
    return bool(whole) and _OTHER.search(text) is None


def _folders(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the first folders of a tree, each with the sorted names of its files."""
    for number, (folder, inside, files) in enumerate(os.walk(path)):
        if number >= _MOST_FOLDERS:
            return
        inside[:] = sorted(name for name in inside if not is_hidden(name))
        yield Path(folder), sorted(name for name in files if not is_hidden(name))


def read_labelme(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read the JSON files of LabelMe below a folder, or one file.

    - A shape states that its class is present, and where: rectangles, the bounding box of polygons, circles, lines,
      strips and masks, and points, in pixels. With `places="points"` or "outlines", a random point is drawn in each
      polygon, circle and mask.
    - A flag of the photo that is true states that the class with its name is present. LabelMe writes false for each
      flag that nobody has ticked, so false is unknown, or absent if `complete`. Flags of shapes are listed.
    - A file without shapes and flags is a photo about which nothing is known. Other classes are unknown, or absent if
      `complete`.
    - `imagePath` is relative to the file, with slashes of any system; a photo that is not there is looked for in the
      usual folders, and by the name of the file. Embedded photos (`imageData`) are not used.
    - Photos without a file are images with nothing known. If all files are in folders called train, val or test, these
      are the splits. Classes are sorted by name.

    Raises:
        DataError: a file is broken, no file names a class, shapes have scores of a model, or most photos are missing.
    """
    options = options or ReadOptions()
    files = [path] if path.is_file() else sorted(_files(path))
    read = _Files(options=options, root=path if path.is_dir() else path.parent, stated=Stated(options))
    for file in files:
        read.file(file)
    if not read.names:
        raise DataError(f"{path}: there is no JSON file of LabelMe, with 'shapes' and 'imagePath' in it.")
    if not read.classes:
        raise DataError(f"{path}: no shape and no flag that is true names a class, so there is nothing to learn.")
    classes = ClassNames.of(sorted(read.classes))
    order = np.array([classes.index(name) for name in read.classes], np.int64)
    labels = read.stated.labels()
    photos = _photos(path, read, images)
    splits = [next((s for part in folder.split("/") if (s := is_split(part))), "") for folder in read.folders]
    scores = read.scores.notes(path, sum(n for (kind, _), n in read.kinds.items() if kind.startswith("shape")))
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=replace(labels, class_=order[labels.class_]),
        photos=photos,
        unit="pixels",
        sizes=np.array(read.sizes, np.float64).reshape(-1, 2),
        complete=np.full(len(read.names), options.complete),
        origin=read.stated.origins.__getitem__,
        splits=splits if all(splits) else None,
        notes=_notes(path, read, options) + scores,
    ).table()


def _files(path: Path) -> Iterator[Path]:
    for folder, inside, names in os.walk(path):
        inside[:] = sorted(name for name in inside if not is_hidden(name))
        yield from (Path(folder, name) for name in names if extension(name) == ".json" and not is_hidden(name))


@final
@dataclass(kw_only=True)
class _Files:
    """The contents of the files; grows while they are read. Names, stems, folders and sizes have one entry per file.

    Attributes:
        root: the folder that `folders` are relative to.
        names: `imagePath` with forward slashes, or else the name of the file.
        stems: name of each file without its ending, with the ending of its photo.
        classes: position of each class by name.
        kinds: number of shapes and flags of each kind and class, and how they were read.
        attributes: values of each flag of shapes, with counts.
        embedded: number of files with `imageData`.
        others: JSON files that are not of LabelMe.
        silent: number of files without a shape or a flag that is true.
    """

    options: ReadOptions
    root: Path
    stated: Stated
    names: list[str] = field(default_factory=list)
    stems: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    sizes: list[Point] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    attributes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    scores: Scores = field(default_factory=lambda: Scores(what="shape"))
    embedded: int = 0
    others: list[str] = field(default_factory=list)
    silent: int = 0
    excluded: list[Excluded] = field(default_factory=list)

    def file(self, file: Path) -> None:
        """Read one file."""
        data = read_json(file, self._without_data)
        inside = file.relative_to(self.root)
        if not isinstance(data, dict) or not {"shapes", "imagePath"} & data.keys():
            self.others.append(inside.as_posix())
            return
        shapes: object = data.get("shapes") or []
        flags: object = data.get("flags") or {}
        if not isinstance(shapes, list) or not isinstance(flags, dict):
            wrong, kind = ("flags", "an object") if isinstance(shapes, list) else ("shapes", "a list")
            raise DataError(f"{file}: {wrong} is {data[wrong]!r:.40}; expected {kind}, as LabelMe writes it.")
        named = plain_text(data.get("imagePath")).replace("\\", "/")
        self.stems.append(f"{file.stem}{extension(named) or '.jpg'}")
        self.names.append(posixpath.normpath(named) if named else self.stems[-1])
        self.folders.append("" if str(inside.parent) == "." else inside.parent.as_posix())
        self.sizes.append((finite_number(data.get("imageWidth")), finite_number(data.get("imageHeight"))))
        before = len(self.stated)
        for name, value in flags.items():
            self._flag(inside.as_posix(), name, value)
        for i, shape in enumerate(shapes, 1):
            where = f"{inside.as_posix()}, shape {i}"
            if isinstance(shape, dict):
                self._shape(where, shape)
            else:
                self.leave_out(where, f"is {shape!r:.40}, not an object")
        self.silent += len(self.stated) == before

    def _without_data(self, record: _Record) -> _Record:
        self.embedded += bool(record.pop("imageData", None))
        return record

    def leave_out(self, name: str, reason: str) -> None:
        """Add an item to the excluded list."""
        self.excluded.append(Excluded(name, reason, str(self.root), "unusable"))

    def _flag(self, file: str, name: str, value: object) -> None:
        class_name = plain_text(name)
        if value is None or value is False or (isinstance(value, int) and value == 0):
            unticked = "negative (complete)" if self.options.complete else "unknown, nobody has ticked it"
            self.kinds[f"flag {class_name!r} = false", unticked] += 1
            if self.options.complete and class_name:
                self.classes.setdefault(class_name, len(self.classes))
        elif value is not True and value != 1:
            self.leave_out(f"{file}, flag {class_name!r}", f"is {value!r:.40}; expected true or false")
        elif not class_name:
            self.leave_out(file, "has a flag without a name")
        else:
            self.kinds[f"flag {class_name!r} = true", "positive"] += 1
            class_ = self.classes.setdefault(class_name, len(self.classes))
            self.stated.add(len(self.names) - 1, class_, origin=f"{file}, flag {class_name!r}")

    def _shape(self, where: str, shape: _Record) -> None:
        given = shape.get("label")
        label = str(given) if isinstance(given, int) and not isinstance(given, bool) else plain_text(given)
        kind = fold(plain_text(shape.get("shape_type"))) or "polygon"
        if not label:
            self.leave_out(where, "has no label")
            return
        if label in _IGNORED:
            self.kinds[f"shape {label!r}", "left out"] += 1
            return
        flags = shape.get("flags")
        for key, value in flags.items() if isinstance(flags, dict) else ():
            self.attributes[str(key)][str(value)] += 1
        for key, value in shape.items():
            self.scores.add(key, value)
        place = place_of(shape, kind, drawn=self.options.draws_points)
        meaning = KINDS.get(kind, "positive, its place is not read")
        self.kinds[f"shape {label!r}, {kind if kind in KINDS else 'of another kind'}", meaning] += 1
        image, class_ = len(self.names) - 1, self.classes.setdefault(label, len(self.classes))
        origin = f"{where} ({label})"
        for point in place.points:
            self.stated.add(image, class_, point=point, origin=origin)
        if not place.points:
            outline, unread = place.outline, place.unread
            self.stated.add(image, class_, box=place.box, outline=outline, unread=unread, origin=origin)


def _photos(path: Path, read: _Files, images: Path | None) -> ImageKeys:
    """Find the photos: by the path in each file, in the usual folders, or by the name of the file."""
    below = [re.sub(r"^(?:\.\./)+", "", name) for name in read.names]
    bare = [name.rpartition("/")[2] for name in read.names]
    outer = [folder.partition("/")[2] if _is_for_labels(folder) else folder for folder in read.folders]
    variants = [
        _joined(read.folders, read.names),
        _joined(outer, below),
        below,
        _joined(read.folders, bare),
        _joined(outer, bare),
        bare,
    ]
    # A path that leaves the folder is that of the disk.
    variants = [[_absolute(path, name) for name in names] for names in variants]
    beside = usual_folders(path) if path.is_file() else [path, path / "images", path.parent / "images", path.parent]
    names = spelling(variants, file=path, images=images, beside=beside)
    stems = spelling(
        [_joined(read.folders, read.stems), _joined(outer, read.stems)], file=path, images=images, beside=beside
    )
    second = dict(zip(names, stems, strict=True))
    photos = locate(names, file=path, images=images, beside=beside, otherwise=second)
    if images is not None or photos.root is None or path.is_file() or not photos.root.is_relative_to(path):
        return photos
    known = {*photos.keys}
    found = (
        (folder / name).relative_to(photos.root).as_posix()
        for folder, names in _folders_below(photos.root)
        for name in names
        if is_photo(name)
    )
    extra = sorted(key for key in found if key not in known)
    text = (
        f"{photos.root}: {counted(len(extra), 'photo has', 'photos have')} no file of LabelMe: nothing is known there"
    )
    notes = photos.notes + Notes(messages=(text,) if extra else ())
    return replace(photos, keys=photos.keys + extra, notes=notes)


def _folders_below(root: Path) -> Iterator[tuple[Path, list[str]]]:
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if not is_hidden(name)]
        yield Path(folder), [name for name in names if not is_hidden(name)]


def _absolute(path: Path, name: str) -> str:
    """Return a name that leaves the folder of the labels as an absolute path; other names as they are."""
    above = path.parent if path.is_file() else path
    return posixpath.normpath(f"{above.absolute().as_posix()}/{name}") if name.startswith("../") else name


def _is_for_labels(folder: str) -> bool:
    return fold(folder.partition("/")[0]) in _LABEL_FOLDERS


def _joined(folders: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return paths; an absolute name, also one of Windows, stays as it is."""
    return [
        name if re.match(r"/|[A-Za-z]:", name) else posixpath.normpath(posixpath.join(folder, name))
        for folder, name in zip(folders, names, strict=True)
    ]


def _notes(path: Path, read: _Files, options: ReadOptions) -> Notes:
    unnamed = read.stated.labels().count_unnamed(len(read.names), len(read.classes))
    rest = "negative (complete)" if options.complete else "unknown"
    rows = [
        *((kind, meaning, n) for (kind, meaning), n in sorted(read.kinds.items())),
        *attribute_readings(read.attributes),
        ("class that is not named in a file", rest, unnamed),
        ("file without a shape or a flag that is true", "nothing known" if not options.complete else rest, read.silent),
    ]
    counts = (
        (
            *(len(read.excluded), "shape or flag left out, see the excluded list"),
            "shapes or flags left out, see the excluded list",
        ),
        (
            *(read.embedded, "file has its photo embedded (imageData), which is not used"),
            "files have their photos embedded (imageData), which are not used",
        ),
    )
    where = path.resolve().name
    others = f"{where}: {counted(len(read.others), 'JSON file is', 'JSON files are')} not of LabelMe, and not read: "
    messages = count_messages(path, counts) + ((others + some(read.others, 3),) if read.others else ())
    return Notes(value_readings(where, rows), tuple(read.excluded), messages)
