"""Pascal VOC: one XML file per photo in `Annotations`, and the lists of `ImageSets/Main`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.boxes import FAULTS, Placed, place_boxes
from fewtags.formats.common import ReadOptions, close_images, distinct_facts, xml_trouble
from fewtags.formats.locate import Located, extension, is_photo, locate
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, LabelTable, Notes, ValueReading

_DIFFICULT = {"unknown": Label.UNKNOWN, "positive": Label.POSITIVE, "negative": Label.NEGATIVE}
_SPLITS = {"train": "train", "val": "val", "test": "test", "trainval": "train"}
_CLASS_LIST = re.compile(r"(.+)_(?:train|val|trainval|test)")
_NO_BOX = (math.nan,) * 4


def read_voc(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a folder in the layout of Pascal VOC, or a folder of its XML files.

    - An object says that its class is present, and where; boxes count pixels from 1 and include the last one. A box
      that cannot be used is left out; its label is kept.
    - Objects marked difficult are unknown by default. If they are to be negative, a class that has another object in
      the photo is still positive.
    - `ImageSets/Main/CLASS_SPLIT.txt` says present (1), absent (-1) or difficult (0) of whole photos. `train.txt`,
      `val.txt` and `test.txt` name the splits; `trainval.txt` counts as train for photos in none of them.
    - What is not named is unknown, or absent if `complete` and the photo has an XML file.
    - Photos that are only listed, or that lie in the photo folder of a data set without lists, are images with nothing
      known.

    Args:
        path: the folder with `Annotations` or `ImageSets`, or one with XML files.
        images: folder of the photos, which are called like the XML files. None looks for `JPEGImages` or `images`, and
            for photos beside the XML files.
        options: `complete` and `difficult` count.

    Returns:
        a table with the classes sorted by name and the images by path.

    Raises:
        DataError: nothing to read, XML that is broken or dangerous, lists with other lines, or most photos missing.
    """
    options = options or ReadOptions()
    source = _read(path)
    classes = ClassNames.of(source.classes())
    if not len(classes):
        raise DataError(f"{path}: no XML file or class list here names a class; is this a folder in VOC layout?")
    names = source.names()
    photos = _photos(names, source, images)
    row = dict(zip(names, photos.image.tolist(), strict=True))
    stated = _stated(source, row, classes, _DIFFICULT[options.difficult])
    open_ = stated.state == Label.UNKNOWN
    facts = stated.take(~open_ & ~stated.overruled())
    boxed: NDArray[np.bool_] = ~np.isnan(facts.pixels[:, 0])
    placed = place_boxes(facts.pixels, boxed, facts.image, _sizes(source, row, photos), photos)
    keep = distinct_facts(facts.image, facts.class_, facts.state, ~np.isnan(placed.locations[:, 0]))
    closed, covers = None, None
    if options.complete:
        closed, covers = close_images(len(photos.keys), len(classes), stated.image[open_], stated.class_[open_])
        annotated = np.isin(np.arange(len(closed)), [row[name] for name in source.pages])
        closed[~annotated] = -1
    return LabelTable.build(
        photos.keys,
        classes,
        image=facts.image[keep],
        class_=facts.class_[keep],
        state=facts.state[keep],
        locations=placed.locations[keep],
        source=path.resolve().name,
        complete_set=closed,
        complete_classes=covers,
        root=photos.root,
        split=_splits(source, row, len(photos.keys)),
        notes=photos.notes + _notes(source, stated, facts, placed, options, len(photos.keys) * len(classes)),
    )


@final
@dataclass(frozen=True)
class _Object:
    name: str
    difficult: bool
    corners: tuple[float, ...] | None


@final
@dataclass(frozen=True)
class _Page:
    """One XML file."""

    file: Path
    filename: str
    size: tuple[float, float]
    objects: tuple[_Object, ...]
    nameless: int


@final
@dataclass(frozen=True)
class _Source:
    """Everything in a VOC folder.

    Attributes:
        path: the folder as given.
        folder: where the XML files are.
        base: where `JPEGImages` would be.
        pages: XML file of each photo name.
        states: (photo, class, 1 or 0 or -1) of the class lists.
        splits: split of each listed photo.
        lists: lines of each split list.
        several: photos in more than one split, sorted.
    """

    path: Path
    folder: Path
    base: Path
    pages: Mapping[str, _Page]
    states: Sequence[tuple[str, str, int]]
    splits: Mapping[str, str]
    lists: Mapping[str, int]
    several: Sequence[str]

    def names(self) -> list[str]:
        """All photos that are spoken of, sorted."""
        return sorted({*self.pages, *self.splits, *(name for name, _, _ in self.states)})

    def classes(self) -> list[str]:
        """All classes, sorted."""
        return sorted({o.name for p in self.pages.values() for o in p.objects} | {c for _, c, _ in self.states})


def _read(path: Path) -> _Source:
    if not path.is_dir():
        raise DataError(f"{str(path)!r} is not a folder; pass the one with Annotations/ or ImageSets/ in it.")
    folder = path / "Annotations" if (path / "Annotations").is_dir() else path
    base = path.parent if path.name == "Annotations" else path
    pages, broken = {}, []
    for file in sorted(folder.rglob("*.xml")):
        try:
            pages[file.relative_to(folder).with_suffix("").as_posix()] = _page(file)
        except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
            broken.append(f"{file}: {xml_trouble(error)}")
    if broken:
        more = f" ({len(broken) - 1:,} other XML files cannot be read either)" if len(broken) > 1 else ""
        raise DataError(f"{broken[0]}{more}; mend or remove it.")
    splits: dict[str, str] = {}
    lines: Counter[str] = Counter()
    several: set[str] = set()
    states: dict[tuple[str, str, int], None] = {}
    main = base / "ImageSets" / "Main"
    for word, split in _SPLITS.items():
        for name in _first_words(main / f"{word}.txt"):
            lines[word] += 1
            if splits.setdefault(name, split) != split and word != "trainval":
                several.add(name)
    for file in sorted(main.glob("*.txt")):
        if file.stem not in _SPLITS and (match := _CLASS_LIST.fullmatch(file.stem)):
            states.update(dict.fromkeys((name, match[1], state) for name, state in _class_list(file)))
    return _Source(path, folder, base, pages, list(states), splits, lines, sorted(several))


def _page(file: Path) -> _Page:
    root = defusedxml.ElementTree.fromstring(file.read_bytes())
    if root.tag != "annotation":
        raise ValueError(f"begins with <{root.tag}> where <annotation> was expected")
    found = [_object(element) for element in root.iterfind("object")]
    objects = tuple(o for o in found if o.name)
    size = _number(root.findtext("size/width")), _number(root.findtext("size/height"))
    return _Page(file, (root.findtext("filename") or "").strip(), size, objects, len(found) - len(objects))


def _object(element: Element) -> _Object:
    box = element.find("bndbox")
    corners = None
    if box is not None:
        # Infinite: a box that is given but cannot be used, apart from one that is not given.
        x0, y0, x1, y1 = (_number(box.findtext(key), math.inf) for key in ("xmin", "ymin", "xmax", "ymax"))
        corners = (x0 - 1, y0 - 1, x1, y1)
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in {"0", "1"}:
        raise ValueError(f"has <difficult>{difficult}</difficult>, expected 0 or 1")
    return _Object((element.findtext("name") or "").strip(), difficult == "1", corners)


def _number(text: str | None, otherwise: float = math.nan) -> float:
    try:
        number = float(text or "nan")
    except ValueError:
        return otherwise
    return number if math.isfinite(number) else otherwise


def _text_lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text (byte {error.start:,}); save it as UTF-8.") from None


def _first_words(file: Path) -> list[str]:
    return [line.split()[0] for line in _text_lines(file) if line.strip()] if file.is_file() else []


def _class_list(file: Path) -> list[tuple[str, int]]:
    states = {"1": 1, "+1": 1, "-1": -1, "0": 0}
    found = []
    for number, line in enumerate(_text_lines(file), 1):
        words = line.split()
        if len(words) == 2 and words[1] in states:
            found.append((words[0], states[words[1]]))
        elif words:
            raise DataError(f"{file} row {number}: {line!r}; expected a photo and 1, 0 or -1, for example '000005 -1'.")
    return found


def _photos(names: Sequence[str], source: _Source, images: Path | None) -> Located:
    """The photos of all names; without lists also those of the photo folder that nothing speaks of."""
    base, folder = source.base, source.folder
    beside = [base / "JPEGImages", base / "images", folder, base]
    photos = locate(names, file=source.path, images=images, beside=beside)
    if photos.root is None:
        endings = [extension(source.pages[name].filename) if name in source.pages else "" for name in names]
        keys = [f"{name}{ending or '.jpg'}" for name, ending in zip(names, endings, strict=True)]
        return replace(photos, keys=keys)
    if source.splits or source.states or images is not None:
        return photos
    known = set(photos.keys)
    found = (f.relative_to(photos.root).as_posix() for f in photos.root.rglob("*") if is_photo(f.name) and f.is_file())
    extra = sorted(key for key in found if key not in known and not key.startswith("."))
    said = (f"{len(extra):,} photos in {photos.root} have no XML file: nothing is known about them",) if extra else ()
    return replace(photos, keys=photos.keys + extra, notes=photos.notes + Notes(messages=said))


@final
@dataclass(frozen=True)
class _Stated:
    """Everything that objects and lists state, one row each: image, class, state, corners in pixels (NaN: none).

    `difficult` and `listed` tell what kind of statement it is, `origin` where it stands.
    """

    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    state: NDArray[np.int64]
    pixels: NDArray[np.float64]
    difficult: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    origin: NDArray[np.object_]

    def take(self, mask: NDArray[np.bool_]) -> _Stated:
        """Some rows."""
        parts = (self.image[mask], self.class_[mask], self.state[mask], self.pixels[mask])
        return _Stated(*parts, self.difficult[mask], self.listed[mask], self.origin[mask])

    @property
    def cell(self) -> NDArray[np.int64]:
        """One number for image and class."""
        return self.image * np.int64(self.class_.max(initial=0) + 1) + self.class_

    def overruled(self) -> NDArray[np.bool_]:
        """Difficult objects read as absent, of a class that has another object in the photo."""
        negative: NDArray[np.bool_] = self.difficult & (self.state == Label.NEGATIVE)
        return negative & np.isin(self.cell, self.cell[self.state == Label.POSITIVE])


def _stated(source: _Source, row: Mapping[str, int], classes: ClassNames, difficult: Label) -> _Stated:
    rows = [
        (row[name], classes.index(o.name), difficult if o.difficult else Label.POSITIVE, o.difficult, False, origin)
        for name, page in source.pages.items()
        for i, o in enumerate(page.objects, 1)
        for origin in (f"{page.file.name}, object {i} ({o.name})",)
    ]
    corners = [o.corners or _NO_BOX for page in source.pages.values() for o in page.objects]
    listed = [
        (row[name], classes.index(class_), difficult if state == 0 else Label(state), state == 0, True, "")
        for name, class_, state in source.states
    ]
    table = np.array(rows + listed, np.object_).reshape(-1, 6)
    pixels = np.array(corners + [_NO_BOX] * len(listed), np.float64).reshape(-1, 4)
    image, class_, state = table[:, :3].astype(np.int64).T
    found = _Stated(image, class_, state, pixels, table[:, 3].astype(bool), table[:, 4].astype(bool), table[:, 5])
    return found.take(image >= 0)


def _sizes(source: _Source, row: Mapping[str, int], photos: Located) -> NDArray[np.float64]:
    sizes = np.full((len(photos.keys), 2), np.nan)
    for name, page in source.pages.items():
        if row[name] >= 0:
            sizes[row[name]] = page.size
    return sizes


def _splits(source: _Source, row: Mapping[str, int], images: int) -> list[str] | None:
    if not source.splits:
        return None
    splits = [""] * images
    for name, split in source.splits.items():
        if row[name] >= 0:
            splits[row[name]] = split
    return splits


def _notes(source: _Source, stated: _Stated, facts: _Stated, placed: Placed, options: ReadOptions, cells: int) -> Notes:
    where = source.path.resolve().name
    objects, hard = stated.take(~stated.listed), options.difficult
    lists = Counter(state for _, _, state in source.states)
    rest = "negative where there is an XML file (complete)" if options.complete else "unknown"
    kinds = (
        ("Annotations, object", "positive", int((~objects.difficult).sum())),
        ("Annotations, object with difficult = 1", hard, int(objects.difficult.sum())),
        ("Annotations, photo without object", "kept", sum(not page.objects for page in source.pages.values())),
        *(
            (f"ImageSets/Main, {k}", v, lists[k])
            for k, v in ((1, "positive"), (0, f"difficult: {hard}"), (-1, "negative"))
        ),
        *((f"ImageSets/Main/{word}.txt", f"split {_SPLITS[word]!r}", n) for word, n in source.lists.items()),
        ("class that is not named in a photo", rest, cells - len(np.unique(stated.cell))),
    )
    faults = [
        Excluded(origin, f"{FAULTS[fault]}; its label is kept", str(source.folder), "bad-place")
        for origin, fault in zip(facts.origin, placed.fault, strict=True)
        if fault
    ]
    nameless = [
        Excluded(page.file.name, f"{page.nameless} objects have no name", str(source.folder), "unusable")
        for page in source.pages.values()
        if page.nameless
    ]
    said = (
        (len(faults), "boxes cannot be used, see the excluded list; the labels are kept"),
        (len(nameless), "XML files have objects without a name, which are left out"),
        (len(source.several), "photos are in several of the lists train, val and test; the first of them counts"),
    )
    messages = tuple(f"{where}: {count:,} {text}" for count, text in said if count)
    readings = tuple(ValueReading(where, kind, meaning, count) for kind, meaning, count in kinds if count)
    split = "is in several of the lists train, val and test; the first of them counts"
    several = [Excluded(name, split, str(source.base), "splits") for name in source.several]
    return Notes(readings, (*nameless, *several, *faults), placed.messages + messages, placed.warnings)
