"""OpenImages: CSV files of verified image labels, of boxes and of points, and of names of the class ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.by_id import photos_by_id
from fewtags.formats.common import count_hidden, distinct, split_name
from fewtags.formats.locate import folder_of
from fewtags.formats.openimages_files import (
    FileKind,
    Rows,
    describe,
    files_beside,
    find_files,
    is_openimages,
    named_by,
    read_rows,
)
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.stated import SEVERAL_SPLITS, Labels, Source, value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, LabelTable, Notes, ValueReading
from fewtags.text import counted

_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|val|test)(?:[^a-z]|$)")
_KINDS: tuple[FileKind, ...] = ("labels", "boxes", "points")


def recognise(path: Path) -> str:
    """Return which columns show that a file, or a file of a folder, is of OpenImages; "" without such columns."""
    if not path.is_dir():
        return f"it has the columns {named_by(path)}" if is_openimages(path) else ""
    tables = [file for file in files_beside(path) if is_openimages(file)]
    return f"{tables[0].name} has the columns {named_by(tables[0])}" if tables else ""


def read_openimages(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read label, box and point files of OpenImages (V4 to V7).

    - A label with Confidence 1 states that its class is present, with 0 that it is absent: people verified both. Labels
      of a machine (Source "machine", or another Confidence) are guesses, and their classes stay unknown.
    - A box states that its class is present, and where. `IsGroupOf` boxes are groups of objects, see `crowd`.
      `IsDepiction` (a drawing of the object) and the other flags change nothing.
    - A point answered "yes" states that its class is present, and where. "no" states that the class is not at that
      point, and nothing about the rest of the photo: it stays unknown, and so does a class with the answer "unsure".
      Votes are not used.
    - Classes are called by the name in the class descriptions. Classes that share a name stay apart (ids
      "Crane#/m/..."), and classes without a name are called by their id. The class hierarchy is not used.
    - Classes that are not named are unknown, or absent if `complete`.
    - The split is in the names of the files, or in the column Subset of an image list.
    - OpenImages is rarely downloaded as a whole: images without a photo are left out and counted.
    - `path` is one file, with the class descriptions beside it, or a folder with several files. `images` contains the
      photos, at any depth. By default they are in the folder of the files or at most two levels below, or beside that
      folder if it is called annotations, labels or metadata.
    - Classes are sorted by id, images are in the order of the files.

    Raises:
        DataError: there is no file of labels, boxes or points, a row is of another kind, or `images` has no photo.
    """
    options = options or ReadOptions()
    files = find_files(path)
    parts = [read_rows(file) for kind in _KINDS for file in files[kind]]
    if not any(len(rows) for rows in parts):
        raise DataError(f"{path}: no row names a class, so there is nothing to learn.")
    ids, image = _numbered(rows.image for rows in parts)
    keys, class_ = _numbered(rows.class_ for rows in parts)
    classes, order = _classes(keys, describe(files["classes"]))
    labels = _labels(parts, image, order[class_], options)
    photos = photos_by_id(ids, path, images)
    splits, messages, several = _splits(ids, parts, image, files["images"])
    sources = [f"{rows.file.name}: {word}" if word else rows.file.name for rows in parts for word in rows.sources]
    ends = np.cumsum([len(rows) for rows in parts])

    def origin(i: int) -> str:
        part = int(np.searchsorted(ends, i, "right"))
        return f"{parts[part].file.name} row {i - (ends[part - 1] if part else 0) + 2}"

    rest = "negative (complete)" if options.complete else "unknown"
    unnamed = ("class that is not named in an image", rest, labels.count_unnamed(len(ids), len(classes)))
    above = path if path.is_dir() else folder_of(path)
    hidden = ("hidden files", "skipped", count_hidden(above, *([] if photos.root is None else [photos.root])))
    readings = _readings(parts, options) + value_readings(path.name, [unnamed, hidden])
    nameless = sum(key == class_id for key, class_id in zip(keys, np.array(classes.ids)[order], strict=True))
    if nameless:
        messages += (f"{nameless:,} classes have no name in a file of class descriptions, and are called by their id",)
    messages += tuple(text for rows in parts for text in _point_messages(rows))
    messages += tuple(f"{file.name} has neither labels, boxes nor points, and is ignored" for file in files["others"])
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=labels,
        photos=photos,
        unit="fractions",
        complete=np.full(len(ids), options.complete),
        origin=origin,
        splits=splits,
        sources=(path.resolve().name, *sources),
        notes=Notes(readings, several, messages),
    ).table()


def _numbered(columns: Iterable[tuple[Sequence[str], NDArray[np.int64]]]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the values of several encoded columns in order of appearance, and the number of each row's value."""
    number: dict[str, int] = {}
    codes = [np.array([number.setdefault(v, len(number)) for v in values], np.int64)[code] for values, code in columns]
    return list(number), np.concatenate(codes)


def _classes(keys: Sequence[str], described: Mapping[str, str]) -> tuple[ClassNames, NDArray[np.int64]]:
    """Return the vocabulary, and the class of each key. A name is unique if it is so among all descriptions."""
    uses = Counter(described.values())
    names = [described.get(key, key) for key in keys]
    ids = [name if uses[name] < 2 else f"{name}#{key}" for key, name in zip(keys, names, strict=True)]
    by_id = dict(sorted(zip(ids, names, strict=True)))
    position = {class_id: i for i, class_id in enumerate(by_id)}
    return ClassNames.of(by_id, by_id.values()), np.array([position[i] for i in ids], np.int64)


def _labels(parts: Sequence[Rows], image: NDArray[np.int64], class_: NDArray[np.int64], options: ReadOptions) -> Labels:
    state = np.concatenate([rows.state for rows in parts])
    group = np.concatenate([rows.flags.get("IsGroupOf", np.zeros(len(rows), np.bool_)) for rows in parts])
    if options.crowd == "unknown":
        state[group] = Label.UNKNOWN
    corners = np.concatenate([rows.corners for rows in parts])
    located = np.concatenate([np.full(len(rows), rows.boxed or rows.pointed) for rows in parts])
    point = np.concatenate([np.full(len(rows), rows.pointed) for rows in parts])
    first = np.cumsum([1, *(len(rows.sources) for rows in parts)])[:-1]
    source = np.concatenate([rows.source + start for rows, start in zip(parts, first, strict=True)])
    return Labels(image=image, class_=class_, state=state, corners=corners, located=located, point=point, source=source)


def _splits(
    ids: Sequence[str], parts: Sequence[Rows], image: NDArray[np.int64], lists: Sequence[Path]
) -> tuple[list[str] | None, tuple[str, ...], tuple[Excluded, ...]]:
    """Return the split of each image: that of the first file that names it, or of an image list."""
    splits, start = [""] * len(ids), 0
    clashes: dict[int, Excluded] = {}
    for rows in parts:
        named = _SPLIT.findall(rows.file.name.lower())
        split = split_name(named[0]) if named else ""
        for i in distinct(image[start : start + len(rows)]).tolist() if split else ():
            if splits[i] not in ("", split):
                reason = f"is in {splits[i]} and in {split}; the first of them counts"
                clashes[i] = Excluded(ids[i], reason, rows.file.name, "splits")
            splits[i] = splits[i] or split
        start += len(rows)
    number = {key: i for i, key in enumerate(ids)}
    messages = []
    for file in lists:
        rows = read_rows(file)
        (names, code), (words, word) = rows.image, rows.class_
        known = [number.get(name, -1) for name in names]
        for k, w in zip(code.tolist(), word.tolist(), strict=True):
            if known[k] >= 0 and not splits[known[k]]:
                splits[known[k]] = split_name(words[w])
        messages.append(
            f"{file.name}: {sum(k < 0 for k in known):,} of {counted(len(names), 'image')} without a label or box here"
        )
    if clashes:
        messages.append(counted(len(clashes), *SEVERAL_SPLITS))
    return splits if any(splits) else None, tuple(messages), tuple(clashes.values())


def _point_messages(rows: Rows) -> tuple[str, ...]:
    """Return how the answers other than yes were read."""
    counts = Counter(fold(rows.confidence[0][code]) for code in rows.confidence[1].tolist() if rows.pointed)
    answers = (
        (
            *("no", "point answered 'no' states nothing about the rest of the photo"),
            "points answered 'no' state nothing about the rest of the photo",
        ),
        ("unsure", "point answered 'unsure' states nothing", "points answered 'unsure' state nothing"),
    )
    return tuple(
        f"{rows.file.name}: {counted(counts[word], one, many)}; the class stays unknown there"
        for word, one, many in answers
        if counts[word]
    )


_FLAGS = {
    "IsOccluded": "positive, as the others",
    "IsTruncated": "positive, as the others",
    "IsDepiction": "positive (a picture of the object)",
    "IsInside": "positive (seen from its inside)",
}


def _readings(parts: Sequence[Rows], options: ReadOptions) -> tuple[ValueReading, ...]:
    readings: tuple[ValueReading, ...] = ()
    for rows in parts:
        counts = Counter(zip(rows.source.tolist(), rows.confidence[1].tolist(), strict=True))
        what = "box" if rows.boxed else "point" if rows.pointed else "label"
        column = "EstimatedYesNo" if rows.pointed else "Confidence"
        positive = f"positive, with its {what}" if rows.boxed or rows.pointed else "positive"
        unknown = "unknown (nothing about the rest of the photo)" if rows.pointed else "unknown (not verified)"
        meaning = {Label.POSITIVE: positive, Label.NEGATIVE: "negative", Label.UNKNOWN: unknown}
        kinds = []
        for (source, code), n in sorted(counts.items()):
            state = Label(int(rows.state[(rows.source == source) & (rows.confidence[1] == code)][0]))
            where = f"Source {rows.sources[source] or '(none)'}, {column} {rows.confidence[0][code]}"
            kinds.append((f"{what}, {where}", meaning[state], n))
        flags = _FLAGS | {"IsGroupOf": f"{options.crowd} (a group of objects)"}
        kinds += [(f"box, {flag} = 1", flags[flag], int(values.sum())) for flag, values in rows.flags.items()]
        readings += value_readings(rows.file.name, kinds)
    return readings
