"""CSV and TSV: a column of tags, one column per class, or one label a row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.celeba import (
    check_list,
    is_celeba,
    is_counted_list,
    photo_folders,
    read_counted_list,
    with_partition,
    with_states,
)
from fewtags.formats.common import distinct
from fewtags.formats.csv_cells import MISSING, is_blank, vector_classes, vectors
from fewtags.formats.csv_layout import Layout, find_layout
from fewtags.formats.csv_rows import Form, label_rows, photo_sizes
from fewtags.formats.csv_split import Splits
from fewtags.formats.csv_tags import tags_of_rows
from fewtags.formats.hill import is_number_list
from fewtags.formats.locate import ImageKeys, locate, usual_folders
from fewtags.formats.openimages_files import is_openimages
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.sheet import Sheet, read_sheet
from fewtags.formats.stated import Labels, Source, count_messages, value_readings
from fewtags.formats.texts import are_captions, captions_text
from fewtags.formats.words import Meaning, check_words, words_of
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Notes
from fewtags.text import quoted, some

_MEANINGS = list(Meaning)


def recognise(path: Path) -> str:
    """Return why a file is a text table, or "" if it is a CSV of OpenImages or a list of photos and class numbers."""
    return "" if is_openimages(path) or is_number_list(path) else "a text table by its ending"


def read_csv(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a text table with a header, in one of three forms.

    - One column per class, with words for present (1, true, yes, y, positive, present), absent (0, false, no, n,
      negative, absent), uncertain (-1, u, uncertain) and blank (empty, NaN, NA, null). The classes are in the order of
      the columns. Uncertain and blank cells are unknown by default, see the options.
    - A column of tags, or numbered columns (tag1, tag2) that have one list of tags. Classes are sorted by name. Other
      tags are unknown, and an empty cell states nothing; the tag `none_folder` states that the image shows none of the
      classes.
    - One label a row, in the columns image, class, state, and x0, y0, x1, y1 for a location: what `write_csv` writes.
      Or image, class, and x, y of a point in the unit `points`; columns named x_px, y_px are in pixels.

    Lists in the shape of CelebA (a count, a row of names, a row of 1 and -1 for each photo, between blanks) and tables
    with its attributes have one column per class, in which -1 means absent.

    Rows of the same image are joined. If they contradict each other, both facts are kept, and the table takes the cell
    as unknown. A column `split` (subset, partition) names the split. Images are in order of appearance.

    Raises:
        DataError: broken quotes, no image column, a value without a meaning (its cell is named), or missing photos.
    """
    options = options or ReadOptions()
    check_list(path)
    listed = options.delimiter is None and is_counted_list(path)
    sheet, notes = read_counted_list(path) if listed else (read_sheet(path, options.delimiter), Notes())
    sheet, beside = sheet.without_blank_rows(), usual_folders(path)
    if listed and options.columns is None:
        options = options.model_copy(update={"columns": sheet.header[1:]})
    if listed or is_celeba(sheet):
        (options, meaning), (sheet, splits) = with_states(sheet, options, whole=listed), with_partition(sheet)
        notes, beside = notes + meaning + splits, photo_folders(beside)
    table = read_table(sheet, find_layout(sheet, options), images, options, beside)
    return replace(table, notes=notes + table.notes)


def read_table(
    sheet: Sheet,
    layout: Layout,
    images: Path | None,
    options: ReadOptions,
    beside: Sequence[Path],
    *,
    annotated: NDArray[np.bool_] | None = None,
) -> LabelTable:
    """Return the labels of a text table whose columns are known, see `read_csv`.

    Args:
        sheet: R rows.
        layout: the columns.
        images: folder that the image names are relative to.
        options: how labels are read.
        beside: where the photos usually are.
        annotated: bool [R], rows that can state that classes are absent; None: all.
    """
    path = sheet.path
    names = sheet.coded[layout.image]
    if (unnamed := names.each(lambda name: not name.strip(), np.bool_)).any():
        empty = int(unnamed.argmax())
        raise DataError(f"{sheet.at(empty, layout.image)}: there is no image name; {_without_image(sheet, empty)}.")
    form = {"classes": _class_columns, "tags": _tags, "facts": label_rows}[layout.form](sheet, layout, options)
    if not len(form.classes):
        raise DataError(f"{path}: no row names a class, so there is nothing to learn.")
    photos = locate(names, file=path, images=images, beside=beside)
    if layout.splits is not None:
        _check_splits(sheet, layout.image, layout.splits, photos)
    notes = Notes(
        form.notes.readings + (layout.splits.readings if layout.splits else ()),
        (),
        layout.messages + form.notes.messages + _row_messages(sheet, layout, form, photos),
        layout.warnings + form.notes.warnings,
    )
    return Source(
        options=options,
        path=path,
        classes=form.classes,
        labels=form.labels,
        photos=photos,
        unit=form.unit,
        origin=lambda i: sheet.at(int(form.labels.image[i])),
        sizes=photo_sizes(sheet, layout, photos) if form.unit == "pixels" else None,
        complete=form.complete if annotated is None else form.complete & annotated,
        empty=form.empty if annotated is None or form.empty is None else form.empty & annotated,
        splits=layout.splits.names if layout.splits else None,
        notes=notes,
    ).table()


def _without_image(sheet: Sheet, row: int) -> str:
    """Return what to do about a row without an image name, which may be a second row of headers."""
    cells = [cell for column in sheet.columns if (cell := column[row].strip())]
    names = [name for name in sheet.header if name]
    if row == 0 and len(cells) > 1 and all(math.isnan(sheet.number(cell)) for cell in cells):
        return f"if it is a second row of headers, write one row with a name for each column, beside {some(names, 3)}"
    return "fill it in, or remove the row"


def _class_columns(sheet: Sheet, layout: Layout, options: ReadOptions) -> Form:
    words = words_of(sheet, options)
    check_words(sheet, layout.labels, words)
    columns = [sheet.coded[j].each(lambda value: _MEANINGS.index(words.needed(value)), np.int64) for j in layout.labels]
    where = f"{sheet.path.name}, class columns"
    values = [sheet.values[j] for j in layout.labels]
    absent = options.complete or options.blank == "negative"
    notes = Notes(
        words.readings(where, values, "negative" if absent else "unknown"), warnings=words.unsure(where, values)
    )
    return _states(sheet, layout, [sheet.header[j] for j in layout.labels], columns, notes, absent)


def _vectors(sheet: Sheet, layout: Layout, options: ReadOptions) -> Form | None:
    """Return what cells such as "1 0 NaN" state; None if the tags are not vectors."""
    (column,) = layout.labels
    words = words_of(sheet, options)
    if (found := vectors(sheet, column, words, options)) is None:
        return None
    names = vector_classes(sheet, column)
    code = {value: [_MEANINGS.index(meaning) for meaning in meanings] for value, meanings in found.items()}
    rows = np.array([code[value] for value in sheet.columns[column]], np.int64).reshape(-1, len(names))
    counts = Counter(meaning for value, meanings in found.items() for meaning in meanings * sheet.values[column][value])
    absent = options.complete or options.blank == "negative"
    blank = "negative" if absent else "unknown"
    where = f"{sheet.path.name}, column {sheet.header[column]!r}, a number for each class"
    read = (
        (words_, blank if meaning is Meaning.BLANK else meaning.value, counts[meaning])
        for words_, meaning in (
            *(("1", Meaning.POSITIVE), ("0", Meaning.NEGATIVE), ("-1", Meaning.OPEN), ("NaN or blank", Meaning.BLANK)),
        )
    )
    return _states(sheet, layout, names, list(rows.T), Notes(value_readings(where, read)), absent)


def _states(
    sheet: Sheet,
    layout: Layout,
    classes: Sequence[str],
    columns: Sequence[NDArray[np.int64]],
    notes: Notes,
    absent: bool,
) -> Form:
    """Return labels from the position in `_MEANINGS` of each cell: one array [R] per class."""
    found: dict[Meaning, list[NDArray[np.int64]]] = {meaning: [] for meaning in Meaning}
    for k, code in enumerate(columns):
        for i, meaning in enumerate(Meaning):
            rows = np.flatnonzero(code == i)
            found[meaning].append(np.stack([rows, np.full(len(rows), k)], 1))
    stated = (Meaning.POSITIVE, Meaning.NEGATIVE, Meaning.OPEN)
    parts = [np.concatenate(found[meaning]) for meaning in stated]
    cells = np.concatenate(parts)
    state = np.repeat(np.array([meaning.label for meaning in stated], np.int8), [len(part) for part in parts])
    order = np.lexsort((cells[:, 1], cells[:, 0]))
    lacking = np.concatenate([parts[1], *found[Meaning.BLANK]]) if absent else parts[1]
    first = [
        f"{text} {some([classes[k] for k in np.sort(part[part[:, 0] == 0, 1])], 3)}"
        for text, part in (("is", parts[0]), ("is not", lacking))
        if (part[:, 0] == 0).any()
    ]
    shown = "; ".join(first) or "is unknown"
    sample = (f"{sheet.path.name}: {quoted(sheet.columns[layout.image][0])} {shown}",) if len(sheet) else ()
    return Form(
        classes=ClassNames.of(classes),
        labels=Labels.of_images(cells[order, 0], cells[order, 1], state[order]),
        complete=np.full(len(sheet), absent),
        notes=notes + Notes(messages=sample),
    )


def _tags(sheet: Sheet, layout: Layout, options: ReadOptions) -> Form:
    if len(layout.labels) == 1 and (form := _vectors(sheet, layout, options)) is not None:
        return form
    for column in layout.labels:
        _refuse_captions(sheet, column, options)
    found = tags_of_rows(sheet, layout.labels, options)
    classes = ClassNames.of(sorted(tag for tag in found.uses if not options.is_none(tag)))
    number = {
        key: () if key in found.nothing else [classes.index(tag) for tag in tags] for key, tags in found.tags.items()
    }
    per_row = [number[key] for key in found.keys]
    count = np.fromiter(map(len, per_row), np.int64, len(sheet))
    empty = np.fromiter((not found.tags[key] for key in found.keys), np.bool_, len(sheet))
    nothing = np.fromiter((key in found.nothing for key in found.keys), np.bool_, len(sheet))
    missing = np.logical_and.reduce([_are_missing(sheet.columns[column]) for column in layout.labels])
    if options.blank == "negative":
        nothing |= empty & ~missing
    names = [sheet.header[column] for column in layout.labels]
    where = f"{sheet.path.name}, column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
    absent = options.complete or options.blank == "negative"
    rows = (
        *((tag, options.meaning(tag), n) for tag, n in sorted(found.uses.items())),
        *((f"{word!r} beside a class", "no further tag", n) for word, n in sorted(found.fillers.items())),
        ("(blank)", "none of the classes" if absent else "nothing known", int((empty & ~missing).sum())),
        ("NA or null", "nothing known", int(missing.sum())),
    )
    total = int(count.sum())
    cells = [(value, n) for column in layout.labels for value, n in sheet.values[column].items()]
    nan = sum(n for value, n in cells if not is_blank(value) and re.search(r"(?i)(?<!\w)nan(?!\w)", value))
    lost = sum(n for value, n in cells if fold(value) in MISSING)
    beside = "NaN beside tags; it states nothing"
    messages = (
        f"{sheet.path.name}: {found.how}",
        *count_messages(
            sheet.path,
            [
                (nan, f"cell has {beside}", f"cells have {beside}"),
                (lost, "cell is NA or null, which states nothing", "cells are NA or null, which states nothing"),
            ],
        ),
    )
    return Form(
        classes=classes,
        labels=Labels.of_images(
            np.repeat(np.arange(len(sheet)), count),
            np.fromiter((c for classes_ in per_row for c in classes_), np.int64, total),
            np.full(total, Label.POSITIVE, np.int8),
        ),
        complete=options.complete & ~missing,
        empty=nothing,
        notes=Notes(value_readings(where, rows), messages=messages, warnings=tuple(found.warnings)),
    )


def _are_missing(cells: Sequence[str]) -> NDArray[np.bool_]:
    """Return which cells say that nothing is known, as opposed to blank cells and to names for none of the classes."""
    known = {cell: fold(cell) in MISSING for cell in dict.fromkeys(cells)}
    return np.fromiter((known[cell] for cell in cells), np.bool_, len(cells))


def _refuse_captions(sheet: Sheet, column: int, options: ReadOptions) -> None:
    values = sheet.values[column]
    parts = {value: re.split(r"\s*[,;|\n]\s*", value.strip()) for value in values if not is_blank(value)}
    in_photos = (parts[value] for value in sheet.columns[column] if value in parts)
    if options.tags_separator is None and (caption := are_captions(in_photos)):
        value = next(value for value in parts if caption in parts[value])
        raise DataError(f"{sheet.first(column, value)}: {captions_text(caption)}")


def _check_splits(sheet: Sheet, image_column: int, splits: Splits, photos: ImageKeys) -> None:
    """Raise an error for a photo in two splits."""
    first: dict[int, int] = {}
    for i, image in enumerate(photos.image.tolist()):
        if image >= 0 and splits.names[first.setdefault(image, i)] != splits.names[i]:
            photo, before = sheet.columns[image_column][i], first[image]
            value, other = (some([sheet.columns[j][row].strip() for j in splits.columns]) for row in (i, before))
            raise DataError(
                f"{sheet.at(i, splits.columns[0])}: the photo {quoted(photo)} is in {value} and in {other}; put it in "
                "one split."
            )


def _row_messages(sheet: Sheet, layout: Layout, form: Form, photos: ImageKeys) -> tuple[str, ...]:
    """Describe how the rows of an image were joined; a table with one label a row joins rows without a message."""
    labels, image = form.labels, photos.image[form.labels.image]
    cell = image * np.int64(len(form.classes)) + labels.class_
    present, absent = (
        distinct(cell[(image >= 0) & (labels.state == state)]) for state in (Label.POSITIVE, Label.NEGATIVE)
    )
    kept = photos.image[photos.image >= 0]
    joined = len(kept) - len(distinct(kept)) if layout.form != "facts" else 0
    clashes = int(np.isin(present, absent, assume_unique=True, kind="sort").sum())
    counts = (
        (
            *(joined, "row names an image that has a row already, and is joined with it"),
            "rows name images that have a row already, and are joined with them",
        ),
        (
            *(clashes, "label is present in one row and absent in another: unknown"),
            "labels are present in one row and absent in another: unknown",
        ),
    )
    return count_messages(sheet.path, counts)
