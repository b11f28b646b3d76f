"""Text tables with one label a row: a class, perhaps a state, perhaps a box or a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, joined_names
from fewtags.formats.csv_layout import Layout
from fewtags.formats.locate import ImageKeys
from fewtags.formats.options import Points, ReadOptions, fold
from fewtags.formats.sheet import Sheet
from fewtags.formats.stated import Labels, value_readings
from fewtags.formats.words import Meaning, Words, check_words, words_of
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Notes

_CORNERS = ("x0", "y0", "x1", "y1")


@final
@dataclass(frozen=True, kw_only=True)
class Form:
    """What the rows of a sheet state, in any of the three forms of a table.

    Attributes:
        classes: the vocabulary.
        labels: the labels; `image` is a row.
        complete: bool [R], rows that annotate their image completely.
        empty: bool [R], rows that state that their image shows none of the classes; None: no row.
        notes: how the values were read.
        unit: unit of the corners.
    """

    classes: ClassNames
    labels: Labels
    complete: NDArray[np.bool_]
    notes: Notes
    empty: NDArray[np.bool_] | None = None
    unit: Literal["pixels", "displayed"] = "displayed"


def label_rows(sheet: Sheet, layout: Layout, options: ReadOptions) -> Form:
    """Return what a table with one label a row states.

    Without a column of states, a named class is present; `none_folder` states that no class is present.

    Raises:
        DataError: a row with half a statement or half a region, a point of an absent class, or coordinates that are not
            numbers.
    """
    words = words_of(sheet, options)
    texts = sheet.coded[layout.labels[0]]
    names = texts.mapped(clean_name)
    corners, points = _corners(sheet), _points(sheet, layout)
    column = f"{sheet.path.name}, column {sheet.header[layout.labels[0]]!r}"
    warnings = joined_names(column, texts.words)
    named = names.each(bool, np.bool_)
    empty = np.zeros(len(sheet), np.bool_)
    if len(layout.labels) == 2:
        meanings = _states(sheet, layout, names, named, words)
        state = sheet.coded[layout.labels[1]].each(lambda value: meanings[value].label, np.int8)
        where, values = f"{sheet.path.name}, column {sheet.header[layout.labels[1]]!r}", sheet.values[layout.labels[1]]
        readings, unsure = words.readings(where, [values], "nothing known"), words.unsure(where, [values])
        warnings += unsure
    else:
        empty = names.each(lambda name: bool(name) and options.is_none(name), np.bool_)
        state = np.where(named & ~empty, np.int8(Label.POSITIVE), np.int8(Label.UNKNOWN))
        counts = sorted(names.counts().items())
        readings = value_readings(column, ((name or "(blank)", _class_meaning(name, options), n) for name, n in counts))
    if points is not None and layout.point is not None:
        axes = [sheet.header[j] for j in layout.point]
        _check_points(sheet, axes, points, state)
        given = int((~np.isnan(points[:, 0])).sum())
        kinds = (("x, y", f"a point, in {layout.unit}", given), ("(blank)", "no region", len(points) - given))
        readings += value_readings(f"{sheet.path.name}, columns {' and '.join(map(repr, axes))}", kinds)
        corners = np.tile(points, 2)
    rows = np.flatnonzero(named & ~empty)  # `_states` refuses a state without a class, and a class without a state
    used = np.bincount(names.codes[rows], minlength=len(names.words)).tolist()
    classes = ClassNames.of(sorted(name for name, n in zip(names.words, used, strict=True) if n))
    located: NDArray[np.bool_] = ~np.isnan(corners[rows, 0])
    return Form(
        classes=classes,
        labels=Labels(
            image=rows,
            class_=names.each(lambda name: classes.index(name) if name in classes else -1, np.int64)[rows],
            state=state[rows],
            corners=corners[rows],
            located=located,
            point=located & (points is not None),
            source=np.zeros(len(rows), np.int64),
        ),
        complete=np.full(len(sheet), options.complete),
        empty=empty,
        notes=Notes(readings, warnings=warnings),
        unit="pixels" if layout.unit == "pixels" else "displayed",
    )


def photo_sizes(sheet: Sheet, layout: Layout, photos: ImageKeys) -> NDArray[np.float64]:
    """Return the width and height that the table declares for the photo of each row, float64 [R, 2]; NaN if unknown."""
    sizes = np.full((len(photos.keys), 2), np.nan)
    for axis, j in enumerate(layout.size or ()):
        for i in np.flatnonzero(photos.image >= 0).tolist():
            if not (text := sheet.columns[j][i]).strip():
                continue
            value, before = sheet.number(text), sizes[photos.image[i], axis]
            if not _is_valid(value, "pixels") or value <= 0:
                raise DataError(_not_pixels(sheet, i, j))
            if value != before and not math.isnan(before):
                raise DataError(f"{sheet.at(i, j)}: {text!r}, but an earlier row has {before:g}; fix one of them.")
            sizes[photos.image[i], axis] = value
    return np.where(photos.image[:, None] >= 0, sizes[photos.image], np.nan)


def _states(
    sheet: Sheet, layout: Layout, names: Sequence[str], named: NDArray[np.bool_], words: Words
) -> dict[str, Meaning]:
    """The meaning of each state; every row has a class and a state, or neither."""
    column = layout.labels[1]
    check_words(sheet, [column], words)
    meanings = {value: words.needed(value) for value in sheet.values[column]}
    wrong = named == sheet.coded[column].each(lambda value: meanings[value] is Meaning.BLANK, np.bool_)
    if wrong.any():
        i = int(wrong.argmax())
        raise DataError(
            f"{sheet.at(i)}: the class is {names[i]!r} and the state {sheet.columns[column][i]!r}; give both, or "
            "neither for an image with nothing known."
        )
    return meanings


def _corners(sheet: Sheet) -> NDArray[np.float64]:
    """Return the boxes [R, 4] of a sheet with one label a row; NaN without a box."""
    names = {fold(name): j for j, name in enumerate(sheet.header)}
    columns = [names[corner] for corner in _CORNERS if corner in names]
    if not columns:
        return np.full((len(sheet), 4), np.nan)
    if len(columns) < 4:
        missing = [corner for corner in _CORNERS if corner not in names]
        raise DataError(f"{sheet.path}: a location needs the columns x0, y0, x1 and y1, but {missing[0]!r} is missing.")
    found = _numbers(sheet, columns, "fractions")
    given = ~np.isnan(found)
    wrong = (given.any(1) & ~given.all(1)) | (found[:, 0] > found[:, 2]) | (found[:, 1] > found[:, 3])
    if wrong.any():
        i = int(np.argmax(wrong))
        corners = ", ".join(sheet.columns[j][i] or "(blank)" for j in columns)
        raise DataError(
            f"{sheet.at(i)}: the location {corners} is not x0 <= x1, y0 <= y1; give all four corners, or none."
        )
    return found


def _points(sheet: Sheet, layout: Layout) -> NDArray[np.float64] | None:
    """Return the points [R, 2] in the unit of the layout; NaN without a point."""
    if layout.point is None:
        return None
    if corners := [name for name in sheet.header if fold(name) in _CORNERS]:
        raise DataError(f"{sheet.path}: has columns of points and {corners[0]!r} of a box; keep one kind in the table.")
    return _numbers(sheet, layout.point, layout.unit)


def _check_points(sheet: Sheet, names: Sequence[str], points: NDArray[np.float64], label: NDArray[np.int8]) -> None:
    given = ~np.isnan(points)
    half = given.any(1) & ~given.all(1)
    if half.any():
        where, (x, y) = sheet.at(int(np.argmax(half))), names
        raise DataError(f"{where}: there is only one of {x!r} and {y!r}; give both, or neither.")
    wrong = given.any(1) & (label != Label.POSITIVE)
    if wrong.any():
        where = sheet.at(int(np.argmax(wrong)))
        raise DataError(f"{where}: a point locates a class, but the row states no class to be present.")


def _class_meaning(name: str, options: ReadOptions) -> str:
    if not name:
        return "nothing known"
    return options.meaning(name)


def _numbers(sheet: Sheet, columns: Sequence[int], unit: Points | None) -> NDArray[np.float64]:
    """Return the numbers [R, k] of some columns, NaN for blank cells."""
    found = np.full((len(sheet), len(columns)), np.nan)
    for k, j in enumerate(columns):
        column = sheet.coded[j]
        values = [sheet.number(text) if text.strip() else math.nan for text in column.words]
        for text, value in zip(column.words, values, strict=True):
            if text.strip() and not _is_valid(value, unit):
                raise DataError(_not_valid(sheet, column.index(text), j, unit))
        found[:, k] = np.array(values, np.float64)[column.codes]
    return found


def _is_valid(value: float, unit: Points | None) -> bool:
    return 0.0 <= value <= 1.0 if unit == "fractions" else math.isfinite(value)


def _not_valid(sheet: Sheet, row: int, column: int, unit: Points | None) -> str:
    if unit != "fractions":
        return _not_pixels(sheet, row, column)
    text = sheet.columns[column][row]
    return f"{sheet.at(row, column)}: {text!r} is not in 0..1; divide pixels by the width or height of the photo."


def _not_pixels(sheet: Sheet, row: int, column: int) -> str:
    text = sheet.columns[column][row]
    return f"{sheet.at(row, column)}: {text!r} is not a number of pixels; fix the cell, or leave it blank."
