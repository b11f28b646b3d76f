"""CSV and TSV: a column of tags, one column per class, or one label a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import distinct, split_name
from fewtags.formats.csv_layout import Layout, find_layout
from fewtags.formats.csv_rows import Form, label_rows, photo_sizes
from fewtags.formats.locate import ImageKeys, locate, usual_folders
from fewtags.formats.openimages_files import is_openimages
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.sheet import Meaning, Sheet, Words, check_words, read_sheet
from fewtags.formats.stated import Labels, Source, count_messages, value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Notes, ValueReading
from fewtags.text import some

_SEPARATORS = ("|", ";", ",")


def recognise(path: Path) -> str:
    """Return why a file is a text table, or "" if it is a CSV of OpenImages."""
    return "" if is_openimages(path) else "a text table by its ending"


def read_csv(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a text table with a header, in one of three forms.

    - One column per class, with words for present (1, true, yes, y, positive, present), absent (0, false, no, n,
      negative, absent), uncertain (-1, u, uncertain) and blank (empty, NaN, NA, null). The classes are in the order of
      the columns. Uncertain and blank cells are unknown by default, see the options.
    - A column of tags. Classes are sorted by name. Other tags are unknown, and an empty cell states nothing; the tag
      `none_folder` states that the image shows none of the classes.
    - One label a row, in the columns image, class, state, and x0, y0, x1, y1 for a location: what `write_csv` writes.
      Or image, class, and x, y of a point in the unit `points`; columns named x_px, y_px are in pixels.

    Rows of the same image are joined. If they contradict each other, both facts are kept, and the table takes the cell
    as unknown. A column `split` (subset, partition) names the split. Images are in order of appearance.

    Raises:
        DataError: broken quotes, no image column, a value without a meaning (its cell is named), or missing photos.
    """
    options = options or ReadOptions()
    sheet = read_sheet(path, options.delimiter)
    layout = find_layout(sheet, options)
    names = sheet.columns[layout.image]
    if (empty := next((i for i, name in enumerate(names) if not name.strip()), None)) is not None:
        raise DataError(f"{sheet.at(empty, layout.image)}: there is no image name; fill it in, or remove the row.")
    form = {"classes": _class_columns, "tags": _tags, "facts": label_rows}[layout.form](sheet, layout, options)
    if not len(form.classes):
        raise DataError(f"{path}: no row names a class, so there is nothing to learn.")
    photos = locate(names, file=path, images=images, beside=usual_folders(path))
    splits, split_readings = _splits(sheet, layout, photos)
    notes = Notes(
        form.notes.readings + split_readings,
        (),
        layout.messages + form.notes.messages + _row_messages(sheet, layout, form, photos),
        form.notes.warnings,
    )
    return Source(
        path=path,
        classes=form.classes,
        labels=form.labels,
        photos=photos,
        unit=form.unit,
        origin=lambda i: sheet.at(int(form.labels.image[i])),
        sizes=photo_sizes(sheet, layout, photos) if form.unit == "pixels" else None,
        complete=form.complete,
        empty=form.empty,
        splits=splits,
        notes=notes,
    ).table()


def _class_columns(sheet: Sheet, layout: Layout, options: ReadOptions) -> Form:
    words = Words(options)
    check_words(sheet, layout.labels, words)
    found: dict[Meaning, list[NDArray[np.int64]]] = {meaning: [] for meaning in Meaning}
    for k, j in enumerate(layout.labels):
        number = {value: list(Meaning).index(words.needed(value)) for value in sheet.values[j]}
        code = np.fromiter(map(number.__getitem__, sheet.columns[j]), np.int64, len(sheet))
        for i, meaning in enumerate(Meaning):
            rows = np.flatnonzero(code == i)
            found[meaning].append(np.stack([rows, np.full(len(rows), k)], 1))
    stated = (Meaning.POSITIVE, Meaning.NEGATIVE, Meaning.OPEN)
    parts = [np.concatenate(found[meaning]) for meaning in stated]
    cells = np.concatenate(parts)
    state = np.repeat(np.array([meaning.label for meaning in stated], np.int8), [len(part) for part in parts])
    order = np.lexsort((cells[:, 1], cells[:, 0]))
    absent = options.complete or options.blank == "negative"
    where = f"{sheet.path.name}, class columns"
    values = [sheet.values[j] for j in layout.labels]
    first = [
        f"{text} {some([sheet.header[layout.labels[k]] for k in part[part[:, 0] == 0, 1]], 3)}"
        for text, part in (("is", parts[0]), ("is not", parts[1]))
        if (part[:, 0] == 0).any()
    ]
    shown = "; ".join(first) or "is unknown"
    return Form(
        classes=ClassNames.of(sheet.header[j] for j in layout.labels),
        labels=Labels.of_images(cells[order, 0], cells[order, 1], state[order]),
        complete=np.full(len(sheet), absent),
        notes=Notes(
            words.readings(where, values, "negative" if absent else "unknown"),
            messages=(f"{sheet.path.name}: {sheet.columns[layout.image][0]!r} {shown}",) if len(sheet) else (),
            warnings=words.unsure(where, values),
        ),
    )


def _tags(sheet: Sheet, layout: Layout, options: ReadOptions) -> Form:
    (column,) = layout.labels
    values = sheet.values[column]
    blank = {value for value in values if fold(value) in {"", "nan"}}
    separator = _separator(sheet, column, [value for value in values if value not in blank], options)
    cells = {value: () if value in blank else _cut(value, separator) for value in values}
    uses: Counter[str] = Counter()
    says_none = set()
    for value, tags in cells.items():
        uses.update(dict.fromkeys(tags, values[value]))
        if any(map(options.is_none, tags)):
            says_none.add(value)
            if len(tags) > 1:
                none = fold(options.none_folder)
                raise DataError(f"{sheet.first(column, value)}: {value!r} has both {none!r} and a class; fix the cell.")
    classes = ClassNames.of(sorted(tag for tag in uses if not options.is_none(tag)))
    number = {
        value: () if value in says_none else [classes.index(tag) for tag in tags] for value, tags in cells.items()
    }
    per_row = [number[value] for value in sheet.columns[column]]
    count = np.fromiter(map(len, per_row), np.int64, len(sheet))
    empty = np.fromiter((value in blank for value in sheet.columns[column]), np.bool_, len(sheet))
    nothing = np.fromiter((value in says_none for value in sheet.columns[column]), np.bool_, len(sheet))
    if options.blank == "negative":
        nothing |= empty
    where = f"{sheet.path.name}, column {sheet.header[column]!r}"
    absent = options.complete or options.blank == "negative"
    rows = (
        *((tag, "none of the classes" if options.is_none(tag) else "positive", n) for tag, n in sorted(uses.items())),
        ("(blank)", "none of the classes" if absent else "nothing known", int(empty.sum())),
    )
    cut = f"tags split at {separator!r}" if separator else "one tag a row"
    total = int(count.sum())
    return Form(
        classes=classes,
        labels=Labels.of_images(
            np.repeat(np.arange(len(sheet)), count),
            np.fromiter((c for classes_ in per_row for c in classes_), np.int64, total),
            np.full(total, Label.POSITIVE, np.int8),
        ),
        complete=np.full(len(sheet), options.complete),
        empty=nothing,
        notes=Notes(value_readings(where, rows), messages=(f"{sheet.path.name}: {cut}",)),
    )


def _separator(sheet: Sheet, column: int, values: Sequence[str], options: ReadOptions) -> str:
    """Return the character between the tags; "" if each cell has one tag."""
    if options.tags_separator is not None:
        return {"space": " ", "tab": "\t"}.get(options.tags_separator, options.tags_separator)
    if lists := [value for value in values if value.strip().startswith("[") and value.strip().endswith("]")]:
        raise DataError(
            f"{sheet.first(column, lists[0])}: {lists[0]!r} looks like a list of a programming language; write the "
            "tags as cat|dog."
        )
    seen = {mark: [value for value in values if mark in value] for mark in _SEPARATORS}
    used = [mark for mark, cells in seen.items() if cells]
    if len(used) > 1:
        one, other = seen[used[0]][0], seen[used[1]][0]
        raise DataError(
            f"{sheet.first(column, one)}: {some(used)} may all separate tags, as in {one!r} and {other!r}; pass "
            "tags_separator."
        )
    if used:
        return used[0]
    # Names with blanks ("traffic light") have as many words as distinct cells; tags are few, in many combinations.
    tags = {tag for value in values for tag in value.split()}
    return " " if len(tags) < len({value.strip() for value in values}) else ""


def _cut(value: str, separator: str) -> tuple[str, ...]:
    parts = value.split(separator) if separator else [value]
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _splits(sheet: Sheet, layout: Layout, photos: ImageKeys) -> tuple[list[str] | None, tuple[ValueReading, ...]]:
    """Return the split of each row; a photo in two splits is an error."""
    if layout.split is None:
        return None, ()
    column = sheet.columns[layout.split]
    names = {value: split_name(value) for value in sheet.values[layout.split]}
    first: dict[int, str] = {}
    for i, (value, image) in enumerate(zip(column, photos.image.tolist(), strict=True)):
        if image >= 0 and (other := first.setdefault(image, names[value])) != names[value]:
            photo = sheet.columns[layout.image][i]
            raise DataError(
                f"{sheet.at(i, layout.split)}: the photo {photo!r} is in {value!r} and in {other!r}; put it in one "
                "split."
            )
    rows = (
        (value.strip() or "(blank)", f"split {names[value]!r}" if names[value] else "no split", n)
        for value, n in sorted(sheet.values[layout.split].items())
    )
    where = f"{sheet.path.name}, column {sheet.header[layout.split]!r}"
    return [names[value] for value in column], value_readings(where, rows)


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
        (joined, "rows name an image that has a row already, and are joined with it"),
        (clashes, "labels are present in one row and absent in another: unknown"),
    )
    return count_messages(sheet.path, counts)
