"""Find the image, label and split columns of a text table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from fewtags.errors import DataError
from fewtags.formats.locate import is_photo
from fewtags.formats.options import Points, ReadOptions, fold
from fewtags.formats.sheet import Sheet, Words
from fewtags.text import some

Form = Literal["classes", "tags", "facts"]

_IMAGE = (
    *("image", "images", "image_name", "image_path", "image_file", "image_index", "image_id", "img", "img_path"),
    *("filename", "file_name", "file", "filepath", "file_path", "path", "photo"),
)
_TAGS = frozenset({"tag", "tags", "label", "labels", "class", "classes", "category", "categories", "keywords"})
_SPLIT = frozenset({"split", "subset", "partition"})
_SAMPLE = 100


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions of the columns of a sheet.

    Attributes:
        form: "classes", one column per class; "tags", one column of tags; "facts", one label a row, as `write_csv`.
        labels: the class columns, the tags column, or the column of the class and that of the state if there is one.
        messages: which columns were found, and which are ignored.
        point: columns with x and y of a point.
        unit: unit of x and y.
        size: columns with the width and height of the photo in pixels.
    """

    form: Form
    image: int
    labels: tuple[int, ...]
    split: int | None
    messages: tuple[str, ...]
    point: tuple[int, int] | None = None
    unit: Points | None = None
    size: tuple[int, int] | None = None


def find_layout(sheet: Sheet, options: ReadOptions) -> Layout:
    """Find image, label and split columns by the options, the header and the values.

    A column is a class if at least half of its values are words for present and absent. So a few wrong values are
    errors; they do not turn the column into an ignored one.

    Raises:
        DataError: the columns of images or labels are not clear; the option that names them is in the message.
    """
    words = Words(options)
    image = sheet.find(options.image_column) if options.image_column else _image_column(sheet)
    chosen = None if options.columns is None else tuple(sheet.find(name) for name in options.columns)
    others = [j for j in range(len(sheet.header)) if j != image]
    split = next((j for j in others if fold(sheet.header[j]) in _SPLIT), None)
    if split is not None and (split in (chosen or ()) or _share(sheet, split, words) == 1.0):
        split = None
    rest = [j for j in others if j != split]
    names = {fold(sheet.header[j]): j for j in rest}
    point, unit = _point_columns(sheet, names, options)
    if chosen is not None:
        form: Form = "tags" if len(chosen) == 1 and _are_tags(sheet, chosen[0], words, options) else "classes"
        labels = chosen
    elif {"class", "state"} <= names.keys():
        form, labels = "facts", (names["class"], names["state"])
    elif point:
        found = [names["class"]] if "class" in names else [j for name, j in names.items() if name in _TAGS]
        if len(found) != 1:
            what = (
                f"{some([sheet.header[j] for j in found])} may all be" if found else "no column is called 'class' for"
            )
            raise DataError(f"{sheet.path}: {what} the class of each point; pass as columns the one that is.")
        form, labels = "facts", (found[0],)
    else:
        form, labels = _label_columns(sheet, rest, words, options)
    if form == "tags" and point and chosen is not None:
        form, labels = "facts", (*labels, *([names["state"]] if "state" in names else []))
    if form != "facts":
        point, unit = None, None
    sized = unit == "pixels" and {"width", "height"} <= names.keys()
    size = (names["width"], names["height"]) if sized else None
    used = {*labels, *(point or ()), *(size or ())}
    used |= {names[corner] for corner in ("x0", "y0", "x1", "y1") if form == "facts" and corner in names}
    label_names = [sheet.header[j] for j in labels]
    labelled = f"{len(labels):,} class columns {some(label_names)}" if form == "classes" else "one label a row"
    if form == "tags":
        labelled = f"tags in {label_names[0]!r}"
    messages = [
        f"{sheet.path.name}: {len(sheet):,} rows, cells separated by {sheet.delimiter!r}; images in "
        f"{sheet.header[image]!r}, {labelled}"
        + (f", points in {unit} in {' and '.join(repr(sheet.header[j]) for j in point)}" if point else "")
        + (f", split in {sheet.header[split]!r}" if split else "")
    ]
    for j in rest:
        if j not in used:
            name = sheet.header[j] or "(without a name)"
            examples = some([value for value, _ in sheet.values[j].most_common()], 3)
            messages.append(f"{sheet.path.name}: column {name!r} ignored, its values are {examples}")
    return Layout(
        form=form, image=image, labels=labels, split=split, messages=tuple(messages), point=point, unit=unit, size=size
    )


def _point_columns(
    sheet: Sheet, names: Mapping[str, int], options: ReadOptions
) -> tuple[tuple[int, int] | None, Points | None]:
    """Return the columns of points and their unit, which the header (x_px, y_px) or the option gives; never guessed."""
    if {"x_px", "y_px"} <= names.keys():
        if options.points == "fractions":
            raise DataError(f"{sheet.path}: the columns x_px and y_px are pixels, but the option points is fractions.")
        return (names["x_px"], names["y_px"]), "pixels"
    if {"x", "y"} <= names.keys():
        if options.points is not None:
            return (names["x"], names["y"]), options.points
        if options.columns is None and _TAGS & names.keys():
            raise DataError(
                f"{sheet.path}: are the columns 'x' and 'y' points in pixels or in fractions of the photo? Pass points "
                "(--set data.points=pixels, or fractions), or call them x_px and y_px; if they are not points, pass as "
                "columns those with labels."
            )
    elif options.points is not None:
        raise DataError(
            f"{sheet.path}: points is {options.points!r}, but there are no columns x and y; there are "
            f"{some(sheet.header, 12)}."
        )
    return None, None


def _image_column(sheet: Sheet) -> int:
    plain = [re.sub(r"[\s\-]+", "_", fold(name)) for name in sheet.header]
    named = [j for alias in _IMAGE for j, name in enumerate(plain) if name == alias]
    photos = [j for j, column in enumerate(sheet.columns) if _are_photos(column)]
    for candidates in ([j for j in named if j in photos], named, photos if len(photos) == 1 else []):
        if candidates:
            return candidates[0]
    raise DataError(
        f"{sheet.path}: no column is called 'image' or has photo names; its columns are {some(sheet.header, 12)}. "
        "Pass image_column."
    )


def _are_photos(column: Sequence[str]) -> bool:
    sample = [value for value in column[:_SAMPLE] if value.strip()]
    return bool(sample) and sum(map(is_photo, map(str.strip, sample))) * 2 > len(sample)


def _share(sheet: Sheet, column: int, words: Words) -> float:
    """Return the share of words for present, absent and uncertain among values that are not blank or unknown."""
    counts = sheet.values[column].items()
    labels = sum(n for value, n in counts if words.is_label(value))
    filled = labels + sum(n for value, n in counts if words.meaning(value) is None)
    return labels / filled if filled else 0.0


def _blank(sheet: Sheet, column: int, words: Words) -> bool:
    return all(words.meaning(value) is not None and not words.is_label(value) for value in sheet.values[column])


def _are_tags(sheet: Sheet, column: int, words: Words, options: ReadOptions) -> bool:
    return options.tags_separator is not None or (
        _share(sheet, column, words) < 0.5 and not _blank(sheet, column, words)
    )


def _label_columns(
    sheet: Sheet, rest: Sequence[int], words: Words, options: ReadOptions
) -> tuple[Form, tuple[int, ...]]:
    named = [j for j in rest if sheet.header[j]]
    exact = [j for j in named if fold(sheet.header[j]) in _TAGS]
    about = [j for j in named if _TAGS & set(re.split(r"[^a-z]+", fold(sheet.header[j])))]
    share = {j: _share(sheet, j, words) for j in named}
    certain = [j for j in named if share[j] == 1.0 and j not in exact]
    tags = [j for j in (about if not exact and not certain else exact) if _are_tags(sheet, j, words, options)]
    if len(tags) > 1 or (tags and len(certain) > 1):
        names = some([sheet.header[j] for j in (*tags, *certain)])
        raise DataError(
            f"{sheet.path}: {names} may all be labels; pass as columns the one of tags, or those of the classes."
        )
    if tags:
        return "tags", tuple(tags)
    classes = [j for j in named if share[j] >= 0.5]
    if len(classes) == 1 and classes[0] in exact:
        name, values = sheet.header[classes[0]], some(sorted(sheet.values[classes[0]]))
        raise DataError(
            f"{sheet.path}: the values of {name!r} ({values}) may state whether {name!r} is present, or name classes; "
            f"pass columns=({name!r},) for the former, tags_separator for the latter."
        )
    if classes:
        return "classes", tuple(j for j in named if j in classes or _blank(sheet, j, words))
    texts = [j for j in named if not _blank(sheet, j, words)]
    if len(texts) == 1:
        return "tags", tuple(texts)
    raise DataError(
        f"{sheet.path}: it is not clear which of {some([sheet.header[j] for j in named], 12)} has labels; pass as "
        "columns the one of tags, or one per class."
    )
