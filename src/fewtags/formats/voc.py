"""Pascal VOC: one XML file per photo in `Annotations`, and the lists of `ImageSets/Main`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final
from xml.etree.ElementTree import ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import distinct, is_hidden, is_split, text_of, xml_trouble
from fewtags.formats.locate import ImageKeys, extension, is_photo, locate
from fewtags.formats.masks import Outline
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.rated import Scores
from fewtags.formats.stated import Labels, Source, Stated, count_messages, value_readings
from fewtags.formats.voc_page import VocObject, VocPage, read_page
from fewtags.labels import ClassNames, Label
from fewtags.photos.pillow import DAMAGE, open_picture
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, quoted, some

_STATES = {"unknown": Label.UNKNOWN, "positive": Label.POSITIVE, "negative": Label.NEGATIVE}
_SPLITS = {"train": "train", "val": "val", "test": "test", "trainval": "train"}
_CLASS_LIST = re.compile(r"(.+)_(?:train|val|trainval|test)")
_NO_SIZE = (math.nan, math.nan)


def recognise(path: Path) -> str:
    """Return the mark of VOC in a folder, or "" if there is none."""
    marks = [part for part in ("Annotations", "ImageSets") if (path / part).is_dir() or path.name == part]
    if marks == ["Annotations"] and _has_only_json(path if path.name == "Annotations" else path / "Annotations"):
        return ""
    if marks:
        return f"{marks[0]}/"
    if (folder := _annotations(path)) is not None and _has_page(folder):
        return f"{folder.name}/ has VOC files"
    splits = sorted(entry for entry in path.iterdir() if is_split(entry.name) and entry.is_dir())
    return next((f"{split.name}/ has VOC files" for split in splits if _has_page(split)), "")


def _has_only_json(folder: Path) -> bool:
    """Return whether a folder has JSON files and no XML file."""
    endings = {extension(file.name) for file in folder.iterdir() if not is_hidden(file.name)}
    return ".json" in endings and ".xml" not in endings and not any(file.is_dir() for file in folder.iterdir())


def _annotations(path: Path) -> Path | None:
    """Return the folder `Annotations`, in any case."""
    named = sorted(entry for entry in path.iterdir() if fold(entry.name) == "annotations" and entry.is_dir())
    return named[0] if named else None


def _has_page(folder: Path) -> bool:
    """Return whether the first XML file of a folder is of VOC; Roboflow writes them beside the photos of a split."""
    files = sorted(file for file in folder.iterdir() if extension(file.name) == ".xml" and not is_hidden(file.name))
    try:
        return bool(files) and bool(read_page(files[0]))
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        return False


def read_voc(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a folder in the layout of Pascal VOC, or a folder of its XML files.

    - An object states that its class is present, and where. Boxes count pixels from 1 and include the last one. A box
      that cannot be used is left out; its label is kept. Without <bndbox>, the bounding box of <polygon> (as Roboflow
      and LabelMe write it) or <robndbox> (roLabelImg, DIOR-R) is read; other places are listed.
    - With `places="points"` or "outlines", a random point is drawn in each object of `SegmentationObject/NAME.png`, or
      else in its polygon or rotated box.
    - Objects with <deleted> 1 are left out. Objects with scores between 0 and 1 are refused, as results of a detector.
    - Objects marked difficult are unknown by default. If they are read as negative, a class with another object in the
      photo is still positive.
    - `ImageSets/Main/CLASS_SPLIT.txt` states whether a class is present (1), absent (-1) or difficult (0) in a photo.
      `train.txt`, `val.txt` and `test.txt` name the splits; `trainval.txt` is train for photos in none of them.
    - Classes that are not named are unknown, or absent if `complete` and the photo has an XML file.
      Lists of other names that name a split, such as training.txt, are read as well. Without lists, folders that are
      called like splits are the splits.
    - Photos that are only listed, and photos without XML file of a data set without lists, are images with nothing
      known. Hidden files are ignored.
    - Photos have the names of the XML files. They are in `images`, or else in `JPEGImages`, a folder `images`, or
      beside the XML files. Classes are sorted by name, images by path.

    Raises:
        DataError: no class is named, XML is broken or dangerous, a list has other lines, or most photos are missing.
    """
    options = options or ReadOptions()
    folder = _read(path)
    classes = ClassNames.of(folder.classes())
    if not len(classes):
        raise DataError(f"{path}: no XML file or class list here names a class; is this a folder in VOC layout?")
    names = folder.names()
    photos = _photos(names, folder, images)
    stated = _state(folder, dict(zip(names, photos.image.tolist(), strict=True)), classes, options)
    labels = stated.labels()
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=photos,
        unit="pixels",
        origin=stated.origins.__getitem__,
        sizes=np.array([folder.pages[n].size if n in folder.pages else _NO_SIZE for n in names]).reshape(-1, 2),
        complete=np.array([options.complete and name in folder.pages for name in names], np.bool_),
        splits=[folder.splits.get(name, "") for name in names] if folder.splits else None,
        notes=_notes(folder, labels, photos, len(classes), options),
    ).table()


@final
@dataclass(frozen=True, kw_only=True)
class _Folder:
    """The contents of a VOC folder.

    Attributes:
        path: the folder as given.
        xml: the folder of the XML files.
        base: the folder in which `JPEGImages` is expected.
        states: (photo, class, 1 or 0 or -1) of the class lists.
        lists: split and number of lines of each split list or folder of a split.
        unread: lists that name no split.
        hidden: number of hidden files.
        several: photos in more than one split, sorted.
    """

    path: Path
    xml: Path
    base: Path
    pages: Mapping[str, VocPage]
    states: Sequence[tuple[str, str, int]]
    splits: Mapping[str, str]
    lists: Mapping[str, tuple[str, int]]
    unread: Sequence[str]
    hidden: int
    several: Sequence[str]

    def names(self) -> list[str]:
        """Return all photos that are named, sorted."""
        return sorted({*self.pages, *self.splits, *(name for name, _, _ in self.states)})

    def classes(self) -> list[str]:
        """Return all classes, sorted."""
        return sorted({o.name for p in self.pages.values() for o in p.objects} | {c for _, c, _ in self.states})


def _read(path: Path) -> _Folder:
    if not path.is_dir():
        raise DataError(f"{quoted(str(path))} is not a folder; pass the one with Annotations/ or ImageSets/ in it.")
    folder = _annotations(path) or path
    base = path.parent if fold(path.name) == "annotations" else path
    pages, broken, hidden = {}, [], 0
    for file in sorted(file for file in folder.rglob("*") if extension(file.name) == ".xml"):
        name = file.relative_to(folder).with_suffix("").as_posix()
        if is_hidden(name):
            hidden += 1
            continue
        try:
            pages[name] = read_page(file)
        except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
            broken.append(f"{file}: {xml_trouble(error)}")
    if broken:
        more = f" ({len(broken) - 1:,} other XML files cannot be read either)" if len(broken) > 1 else ""
        raise DataError(f"{broken[0]}{more}; fix or remove it.")
    lists = _lists(base)
    splits, lines = lists.splits, lists.lines
    if not splits and not lists.states:
        tops = {name: is_split(name.partition("/")[0]) for name in pages if "/" in name}
        if all(tops.values()):
            splits = tops
            for name, split in tops.items():
                folder_name = f"{name.partition('/')[0]}/"
                lines[folder_name] = split, lines.get(folder_name, (split, 0))[1] + 1
    return _Folder(
        path=path,
        xml=folder,
        base=base,
        pages=pages,
        states=list(lists.states),
        splits=splits,
        lists=lines,
        several=sorted(lists.several),
        unread=lists.unread,
        hidden=hidden + lists.hidden,
    )


@final
@dataclass(kw_only=True)
class _Lists:
    """The contents of `ImageSets`, see `_Folder`; grows while they are read."""

    splits: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[str, int]] = field(default_factory=dict)
    several: set[str] = field(default_factory=set)
    states: dict[tuple[str, str, int], None] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    hidden: int = 0

    def add_split(self, file: Path, split: str) -> None:
        """Add the photos that a list names; those of `trainval.txt` only if no other list has them."""
        names = [name for name in first_words(file) if not is_hidden(name)]
        self.lines[f"ImageSets/{file.parent.name}/{file.name}".replace("ImageSets/ImageSets", "ImageSets")] = (
            split,
            len(names),
        )
        for name in names:
            if self.splits.setdefault(name, split) != split and file.stem != "trainval":
                self.several.add(name)


def _lists(base: Path) -> _Lists:
    """Read the lists of `ImageSets/Main`, or of `ImageSets` if there is no such folder."""
    found = _Lists()
    main = next((part for part in (base / "ImageSets" / "Main", base / "ImageSets") if part.is_dir()), None)
    files = sorted(main.glob("*.txt")) if main is not None else []
    found.hidden = sum(is_hidden(file.name) for file in files)
    files = [file for file in files if not is_hidden(file.name)]
    named = {file: _SPLITS.get(file.stem) or is_split(file.stem) for file in files}
    # trainval comes last: its photos are in train or val, if those lists exist.
    for file in sorted((file for file in files if named[file]), key=lambda file: (file.stem == "trainval", file)):
        found.add_split(file, named[file])
    for file in (file for file in files if not named[file]):
        if match := _CLASS_LIST.fullmatch(file.stem):
            found.states |= dict.fromkeys((name, match[1], state) for name, state in _class_list(file))
        else:
            found.unread.append(file.name)
    return found


def first_words(file: Path) -> list[str]:
    """Return the first word of each line that is not blank: the photos of a list."""
    return [line.split()[0] for line in text_of(file).splitlines() if line.strip()]


def _class_list(file: Path) -> list[tuple[str, int]]:
    states = {"1": 1, "+1": 1, "-1": -1, "0": 0}
    found = []
    for number, line in enumerate(text_of(file).splitlines(), 1):
        words = line.split()
        if len(words) == 2 and words[1] in states:
            found.append((words[0], states[words[1]]))
        elif words:
            raise DataError(
                f"{file} row {number}: {quoted(line)}; expected a photo and 1, 0 or -1, for example '000005 -1'."
            )
    return found


def _photos(names: Sequence[str], folder: _Folder, images: Path | None) -> ImageKeys:
    """Find the photos of all names and, without lists, the photos of the folder that have no name."""
    base, xml = folder.base, folder.xml
    beside = [base / "JPEGImages", base / "images", xml, base]
    called = {name: page.filename for name, page in folder.pages.items() if page.filename}
    photos = locate(names, file=folder.path, images=images, beside=beside, otherwise=called)
    if photos.root is None:
        endings = [extension(folder.pages[name].filename) if name in folder.pages else "" for name in names]
        keys = [f"{name}{ending or '.jpg'}" for name, ending in zip(names, endings, strict=True)]
        return replace(photos, keys=keys)
    if folder.splits or folder.states or images is not None:
        return photos
    known = set(photos.keys)
    found = (f.relative_to(photos.root).as_posix() for f in photos.root.rglob("*") if is_photo(f.name) and f.is_file())
    masks = ("SegmentationClass/", "SegmentationObject/")
    extra = sorted(key for key in found if key not in known and not is_hidden(key) and not key.startswith(masks))
    text = f"{photos.root}: {counted(len(extra), 'photo has', 'photos have')} no XML file: nothing is known there"
    notes = photos.notes + Notes(messages=(text,) if extra else ())
    return replace(photos, keys=photos.keys + extra, notes=notes)


def _state(folder: _Folder, image: Mapping[str, int], classes: ClassNames, options: ReadOptions) -> Stated:
    """Return what objects and class lists state.

    A difficult object that is read as absent is left out if its class has another object in the photo.
    """
    rows: list[tuple[str, str, str, VocObject | None, str, int]] = [
        (
            name,
            o.name,
            "difficult" if o.difficult else "positive",
            o,
            f"{page.file.name}, object {i} ({o.name})",
            i,
        )
        for name, page in folder.pages.items()
        for i, o in enumerate(page.objects, 1)
    ]
    words = {1: "positive", 0: "difficult", -1: "negative"}
    rows += [(name, class_, words[state], None, "", 0) for name, class_, state in folder.states]
    meaning = _STATES | {"difficult": _STATES[options.difficult]}
    positive = {(image[name], class_) for name, class_, word, *_ in rows if meaning[word] == Label.POSITIVE}
    position = {name: i for i, name in enumerate(image)}
    stated, masks = Stated(options), _Masks(folder)
    for name, class_, word, found, origin, i in rows:
        state = meaning[word]
        if word == "difficult" and state == Label.NEGATIVE and (image[name], class_) in positive:
            continue
        image_class = position[name], classes.index(class_)
        if found is None:
            stated.add(*image_class, state=state, origin=origin)
            continue
        outline = (masks.outline(name, i) or found.outline) if options.draws_points else None
        unread = found.unread
        stated.add(*image_class, state=state, box=found.corners, outline=outline, unread=unread, origin=origin)
    return stated


@final
class _Masks:
    """Reads the outlines of objects from `SegmentationObject`: pictures with the number of the object in each pixel."""

    def __init__(self, folder: _Folder) -> None:
        self._base, self._pages = folder.base / "SegmentationObject", folder.pages
        self._name, self._numbers = "", np.zeros((0, 0), np.uint8)

    def outline(self, name: str, number: int) -> Outline | None:
        """Return the outline of an object (counted from 1) of a photo; None without a picture.

        Raises:
            DataError: the picture cannot be read, or has another size than the XML file says.
        """
        if name != self._name:
            self._name, self._numbers = name, self._read(name)
        return Outline.of_mask(self._numbers == number) if self._numbers.size else None

    def _read(self, name: str) -> NDArray[np.uint8]:
        file = self._base / f"{name}.png"
        page = self._pages[name]
        if not file.is_file() or page.nameless or page.deleted:  # then the numbers of the objects are not known
            return np.zeros((0, 0), np.uint8)
        size = page.size
        try:
            with open_picture(file) as picture:
                if all(map(math.isfinite, size)) and picture.size != size:
                    sides = f"{picture.width} x {picture.height}, but the XML file says {size[0]:g} x {size[1]:g}"
                    raise DataError(f"{file}: {sides}; fix one of them, or remove the picture.")
                if picture.mode not in ("P", "L"):
                    raise DataError(
                        f"{file}: mode {picture.mode}; expected a picture with numbers of objects (P or L)."
                    )
                return np.array(picture, np.uint8)
        except DAMAGE as error:
            raise DataError(f"{file}: cannot be read ({error}); fix or remove it.") from None


def _notes(folder: _Folder, labels: Labels, photos: ImageKeys, classes: int, options: ReadOptions) -> Notes:
    where, hard = folder.path.resolve().name, options.difficult
    here = dict(zip(folder.names(), (photos.image >= 0).tolist(), strict=True))
    difficult = Counter(o.difficult for name, page in folder.pages.items() for o in page.objects if here[name])
    unclear = Counter(o.unclear for p in folder.pages.values() for o in p.objects if o.unclear)
    shapes = Counter(o.shape for name, page in folder.pages.items() for o in page.objects if here[name])
    lists = Counter(state for _, _, state in folder.states)
    image = photos.image[labels.image]
    named = distinct(image[image >= 0] * classes + labels.class_[image >= 0])
    rest = "negative where there is an XML file (complete)" if options.complete else "unknown"
    rows = (
        ("Annotations, object", "positive", difficult[False]),
        ("Annotations, object with difficult = 1", hard, difficult[True]),
        *((f"Annotations, object with a {word}", "its bounding box", shapes[word]) for word in ("polygon", "robndbox")),
        ("Annotations, object without a place", "its label only", shapes[""]),
        ("Annotations, object with deleted = 1", "left out", sum(page.deleted for page in folder.pages.values())),
        ("Annotations, photo without object", "kept", sum(not page.objects for page in folder.pages.values())),
        ("ImageSets/Main, 1", "positive", lists[1]),
        ("ImageSets/Main, 0", f"difficult: {hard}", lists[0]),
        ("ImageSets/Main, -1", "negative", lists[-1]),
        *((where, f"split {split!r}", n) for where, (split, n) in folder.lists.items()),
        *((f"difficult = {word!r}", "taken as 0: not difficult", n) for word, n in sorted(unclear.items())),
        ("hidden files", "skipped", folder.hidden),
        ("class that is not named in a photo", rest, len(photos.keys) * classes - len(named)),
    )
    nameless = [
        Excluded(page.file.name, f"{page.nameless} objects have no name", str(folder.xml), "unusable")
        for page in folder.pages.values()
        if page.nameless
    ]
    reason = "is in several of the lists train, val and test; the first of them counts"
    several = [Excluded(name, reason, str(folder.base), "splits") for name in folder.several]
    counts = (
        (
            *(len(nameless), "XML file has objects without a name, which are left out"),
            "XML files have objects without a name, which are left out",
        ),
        (
            *(len(several), "photo is in several of the lists train, val and test; the first of them counts"),
            "photos are in several of the lists train, val and test; the first of them counts",
        ),
    )
    lost = f"{where}: the lists {some(folder.unread)} are not read, because their names tell no split or class"
    warnings = (f"{lost}; rename those that are splits to train.txt, val.txt or test.txt.",) if folder.unread else ()
    scores = Scores(what="object")
    objects = [o for page in folder.pages.values() for o in page.objects]
    for key, value in (score for o in objects for score in o.scores):
        scores.add(key, value)
    notes = Notes(value_readings(where, rows), (*nameless, *several), count_messages(folder.path, counts), warnings)
    return notes + scores.notes(folder.path, len(objects))
