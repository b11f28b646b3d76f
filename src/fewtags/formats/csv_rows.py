"""Text tables with one label a row: a class, perhaps a state, perhaps a box or a point."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.boxes import fault_text, place_boxes
from fewtags.formats.common import ReadOptions, fold, number_of
from fewtags.formats.csv_layout import Layout
from fewtags.formats.csv_stated import CsvStated, check_words
from fewtags.formats.delimited import Sheet
from fewtags.formats.locate import Located
from fewtags.formats.words import Meaning, Words
from fewtags.labels import ClassNames, Label
from fewtags.table.table import Excluded, Notes, ValueReading

_CORNERS = ("x0", "y0", "x1", "y1")


def label_rows(sheet: Sheet, layout: Layout, options: ReadOptions) -> CsvStated:
    """What a table with one label a row states.

    Without a column of states, a class that is named is present, and `none_folder` says that none is.

    Raises:
        DataError: a row with half a statement or half a place, a point of an absent class, or coordinates that are
            no numbers.
    """
    words = Words(options)
    names = [name.strip() for name in sheet.columns[layout.labels[0]]]
    corners, points = _corners(sheet), _points(sheet, layout)
    warnings: tuple[str, ...] = ()
    if len(layout.labels) == 2:
        said = _states(sheet, layout, names, words)
        column, values = f"{sheet.path.name}, column {sheet.header[layout.labels[1]]!r}", sheet.values[layout.labels[1]]
        readings, warnings = words.readings(column, [values], "nothing known"), words.unsure(column, [values])
        nothing = np.zeros(len(sheet), np.bool_)
    else:
        said = [Meaning.POSITIVE if name else Meaning.BLANK for name in names]
        nothing = np.array([bool(name) and fold(name) == fold(options.none_folder) for name in names], np.bool_)
        said = [Meaning.BLANK if none else meaning for none, meaning in zip(nothing, said, strict=True)]
        readings = _class_readings(sheet, layout, names, nothing)
    label = np.fromiter((meaning.label for meaning in said), np.int8, len(sheet))
    if points is not None:
        _check_points(sheet, layout, points, label)
        readings += _point_readings(sheet, layout, points)
        if layout.unit == "fractions":
            corners = np.tile(points, 2)
    classes = ClassNames.of(sorted({name for name, none in zip(names, nothing, strict=True) if name and not none}))
    class_ = np.fromiter((classes.index(n) if n in classes else -1 for n in names), np.int64, len(sheet))
    facts = np.flatnonzero(label != Label.UNKNOWN)
    open_ = np.flatnonzero(np.fromiter((meaning is Meaning.OPEN for meaning in said), np.bool_, len(sheet)))
    return CsvStated(
        classes,
        facts,
        class_[facts],
        label[facts],
        corners[facts],
        np.stack([open_, class_[open_]], 1),
        nothing | options.complete,
        nothing,
        readings,
        pixels=points[facts] if points is not None and layout.unit == "pixels" else None,
        warnings=warnings,
    )


def place_points(sheet: Sheet, layout: Layout, stated: CsvStated, photos: Located) -> tuple[NDArray[np.float64], Notes]:
    """Locations [F, 4] of the facts of a table, with points in pixels turned into fractions of the displayed photo.

    The size that pixels are of is that of the columns `width` and `height`, or else of the photo.
    """
    if stated.pixels is None:
        return stated.locations, Notes()
    here = np.flatnonzero(photos.image[stated.row] >= 0)
    image = photos.image[stated.row[here]]
    sizes = _sizes(sheet, layout, photos)
    pixels = stated.pixels[here]
    given: NDArray[np.bool_] = ~np.isnan(pixels[:, 0])
    placed = place_boxes(np.tile(pixels, 2), given, image, sizes, photos, given)
    locations = stated.locations.copy()
    locations[here] = placed.locations
    faults = tuple(
        Excluded(
            sheet.at(int(stated.row[i])), f"{fault_text(fault, True)}; its label is kept", str(sheet.path), "bad-place"
        )
        for i, fault in zip(here.tolist(), placed.fault.tolist(), strict=True)
        if fault
    )
    said = (f"{sheet.path.name}: {len(faults):,} points cannot be used, see the excluded list; the labels are kept",)
    return locations, Notes((), faults, placed.messages + (said if faults else ()), placed.warnings)


def _sizes(sheet: Sheet, layout: Layout, photos: Located) -> NDArray[np.float64]:
    """Width and height [N, 2] of each photo as the table says them, NaN where it does not."""
    sizes = np.full((len(photos.keys), 2), np.nan)
    for axis, j in enumerate(layout.size or ()):
        for i in np.flatnonzero(photos.image >= 0).tolist():
            if not (text := sheet.columns[j][i]).strip():
                continue
            value, before = number_of(text), sizes[photos.image[i], axis]
            if not (math.isfinite(value) and value > 0):
                raise DataError(f"{sheet.at(i, j)}: {text!r} is no number of pixels; mend the cell, or leave it blank.")
            if value != before and not math.isnan(before):
                raise DataError(
                    f"{sheet.at(i, j)}: {text!r}, but the photo has {before:g} in a row before; mend one of them."
                )
            sizes[photos.image[i], axis] = value
    return sizes


def _states(sheet: Sheet, layout: Layout, names: list[str], words: Words) -> list[Meaning]:
    column = layout.labels[1]
    check_words(sheet, [column], words)
    meanings = {value: words.needed(value) for value in sheet.values[column]}
    said = [meanings[value] for value in sheet.columns[column]]
    for i, (name, meaning) in enumerate(zip(names, said, strict=True)):
        if bool(name) == (meaning is Meaning.BLANK):
            raise DataError(
                f"{sheet.at(i)}: the class is {name!r} and the state {sheet.columns[column][i]!r}; give both, or "
                "neither for an image with nothing known."
            )
    return said


def _corners(sheet: Sheet) -> NDArray[np.float64]:
    """Locations [R, 4] of a sheet with one label a row, NaN where there is none."""
    names = {fold(name): j for j, name in enumerate(sheet.header)}
    columns = [names[corner] for corner in _CORNERS if corner in names]
    if not columns:
        return np.full((len(sheet), 4), np.nan)
    if len(columns) < 4:
        missing = [corner for corner in _CORNERS if corner not in names]
        raise DataError(f"{sheet.path}: a location needs the columns x0, y0, x1 and y1, but {missing[0]!r} is missing.")
    found = np.full((len(sheet), 4), np.nan)
    for k, j in enumerate(columns):
        for i, text in enumerate(sheet.columns[j]):
            if text.strip():
                found[i, k] = _fraction(text, sheet, i, j)
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
    """The points [R, 2] in the unit of the layout, NaN where there is none."""
    if layout.point is None:
        return None
    if corners := [name for name in sheet.header if fold(name) in _CORNERS]:
        raise DataError(
            f"{sheet.path}: has columns of points and {corners[0]!r} of a box; leave one kind in the table."
        )
    found = np.full((len(sheet), 2), np.nan)
    for k, j in enumerate(layout.point):
        for i, text in enumerate(sheet.columns[j]):
            if text.strip():
                found[i, k] = _fraction(text, sheet, i, j) if layout.unit == "fractions" else _pixel(text, sheet, i, j)
    return found


def _check_points(sheet: Sheet, layout: Layout, points: NDArray[np.float64], label: NDArray[np.int8]) -> None:
    given = ~np.isnan(points)
    assert layout.point is not None
    x, y = (sheet.header[j] for j in layout.point)
    for wrong, trouble in (
        (given.any(1) & ~given.all(1), f"there is only one of {x!r} and {y!r}; give both, or neither"),
        (given.any(1) & (label != Label.POSITIVE), "a point says where a class is, but no class is said to be there"),
    ):
        if wrong.any():
            raise DataError(f"{sheet.at(int(np.argmax(wrong)))}: {trouble}.")


def _class_readings(
    sheet: Sheet, layout: Layout, names: list[str], nothing: NDArray[np.bool_]
) -> tuple[ValueReading, ...]:
    where = f"{sheet.path.name}, column {sheet.header[layout.labels[0]]!r}"
    none = {name for name, is_none in zip(names, nothing, strict=True) if is_none}
    return tuple(
        ValueReading(
            where,
            name or "(blank)",
            "none of the classes" if name in none else "positive" if name else "nothing known",
            n,
        )
        for name, n in sorted(Counter(names).items())
    )


def _point_readings(sheet: Sheet, layout: Layout, points: NDArray[np.float64]) -> tuple[ValueReading, ...]:
    assert layout.point is not None
    where = f"{sheet.path.name}, columns {' and '.join(repr(sheet.header[j]) for j in layout.point)}"
    given = int((~np.isnan(points[:, 0])).sum())
    counts = (("x, y", f"a point, in {layout.unit}", given), ("(blank)", "no place", len(points) - given))
    return tuple(ValueReading(where, value, meaning, n) for value, meaning, n in counts if n)


def _fraction(text: str, sheet: Sheet, row: int, column: int) -> float:
    value = number_of(text)
    if not 0.0 <= value <= 1.0:
        raise DataError(
            f"{sheet.at(row, column)}: {text!r} is not in 0..1; divide pixels by the width or height of the photo."
        )
    return value


def _pixel(text: str, sheet: Sheet, row: int, column: int) -> float:
    value = number_of(text)
    if not math.isfinite(value):
        raise DataError(f"{sheet.at(row, column)}: {text!r} is no number of pixels; mend the cell, or leave it blank.")
    return value
