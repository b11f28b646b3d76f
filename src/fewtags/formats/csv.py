"""CSV and TSV: a column of tags, one column per class, or one label a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import ReadOptions, close_images, distinct, distinct_facts, fold, split_name
from fewtags.formats.csv_layout import Layout, find_layout
from fewtags.formats.csv_rows import label_rows, place_points
from fewtags.formats.csv_stated import CsvStated, check_words
from fewtags.formats.delimited import Sheet, read_sheet
from fewtags.formats.locate import folder_of, locate
from fewtags.formats.words import Meaning, Words
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Notes, ValueReading
from fewtags.text import some

_SEPARATORS = ("|", ";", ",")


def read_csv(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a text table with a header, in one of three forms.

    - One column per class, with words for present (1, true, yes, y, positive, present), absent (0, false, no, n,
      negative, absent), uncertain (-1, u, uncertain) and nothing (empty, NaN, NA, null). Classes come in the order of
      the columns. Uncertain and empty cells are unknown unless the options say otherwise.
    - A column of tags. Classes are sorted by name. A tag that is not there is unknown; an empty cell says nothing, and
      the tag `none_folder` says that none of the classes is there.
    - One label a row, in the columns image, class, state, and x0, y0, x1, y1 for a location: what `write_csv` writes.
      Or image, class, and x, y of a point, in what `points` says; the names x_px, y_px say pixels.

    Rows of the same image are joined. Where they contradict each other, both facts are kept, which the table takes as
    unknown. A column `split` (subset, partition) names the split.

    Args:
        path: the file, UTF-8.
        images: folder that the image names are relative to; None looks beside the file and in `images`.
        options: all but `difficult` and `crowd` count.

    Returns:
        a table with the images in order of appearance.

    Raises:
        DataError: broken quotes, no image column, a value that is no word (its cell is named), most photos missing.
    """
    options = options or ReadOptions()
    sheet = read_sheet(path, options.delimiter)
    layout = find_layout(sheet, options)
    names = sheet.columns[layout.image]
    if (empty := next((i for i, name in enumerate(names) if not name.strip()), None)) is not None:
        raise DataError(f"{sheet.at(empty, layout.image)}: there is no image name; fill it in, or remove the row.")
    stated = {"classes": _class_columns, "tags": _tags, "facts": label_rows}[layout.form](sheet, layout, options)
    if not len(stated.classes):
        raise DataError(f"{path}: no row names a class, so there is nothing to learn.")
    above = folder_of(path)
    photos = locate(names, file=path, images=images, beside=[above, above / "images", above.parent / "images"])
    n, c = len(photos.keys), len(stated.classes)
    locations, placed = place_points(sheet, layout, stated, photos)
    image, class_, state, locations = _facts(replace(stated, locations=locations), photos.image)
    closed, covers = np.full(n, -1, np.int16), np.ones((1, c), np.bool_)
    if (shut := _images(stated.closes, photos.image)).size:
        open_image, open_class = photos.image[stated.open[:, 0]], stated.open[:, 1]
        closing, covers = close_images(n, c, open_image[open_image >= 0], open_class[open_image >= 0])
        closed[shut] = closing[shut]
    splits, split_readings = _splits(sheet, layout, photos.image, n)
    messages = layout.messages + stated.messages + _row_messages(sheet, layout, stated, photos.image)
    return LabelTable.build(
        photos.keys,
        stated.classes,
        image=image,
        class_=class_,
        state=state,
        locations=locations,
        source=path.name,
        complete_set=closed,
        complete_classes=covers,
        root=photos.root,
        split=splits,
        notes=photos.notes + Notes(stated.readings + split_readings, (), messages, stated.warnings) + placed,
    )


def _class_columns(sheet: Sheet, layout: Layout, options: ReadOptions) -> CsvStated:
    words = Words(options)
    classes = ClassNames.of(sheet.header[j] for j in layout.labels)
    check_words(sheet, layout.labels, words)
    found: dict[Meaning, list[NDArray[np.int64]]] = {meaning: [] for meaning in Meaning}
    for k, j in enumerate(layout.labels):
        number = {value: list(Meaning).index(words.needed(value)) for value in sheet.values[j]}
        code = np.fromiter(map(number.__getitem__, sheet.columns[j]), np.int64, len(sheet))
        for i, meaning in enumerate(Meaning):
            rows = np.flatnonzero(code == i)
            found[meaning].append(np.stack([rows, np.full(len(rows), k)], 1))
    cells = {meaning: np.concatenate(parts) for meaning, parts in found.items()}
    positive, negative = cells[Meaning.POSITIVE], cells[Meaning.NEGATIVE]
    both = np.concatenate([positive, negative])
    state = np.repeat(np.array([Label.POSITIVE, Label.NEGATIVE], np.int8), [len(positive), len(negative)])
    order = np.lexsort((both[:, 1], both[:, 0]))
    absent = options.complete or options.blank == "negative"
    where = f"{sheet.path.name}, class columns"
    values = [sheet.values[j] for j in layout.labels]
    readings = words.readings(where, values, "negative" if absent else "unknown")
    return CsvStated(
        classes,
        both[order, 0],
        both[order, 1],
        state[order],
        np.full((len(both), 4), np.nan),
        cells[Meaning.OPEN],
        np.full(len(sheet), absent),
        np.zeros(len(sheet), np.bool_),
        readings,
        (_first_row(sheet, layout, positive, negative),) if len(sheet) else (),
        warnings=words.unsure(where, values),
    )


def _first_row(sheet: Sheet, layout: Layout, positive: NDArray[np.int64], negative: NDArray[np.int64]) -> str:
    said = [
        f"{text} {some([sheet.header[layout.labels[k]] for k in cells[cells[:, 0] == 0, 1]], 3)}"
        for text, cells in (("is", positive), ("is not", negative))
        if (cells[:, 0] == 0).any()
    ]
    return f"{sheet.path.name}: {sheet.columns[layout.image][0]!r} {'; '.join(said) or 'is unknown'}"


def _tags(sheet: Sheet, layout: Layout, options: ReadOptions) -> CsvStated:
    (column,) = layout.labels
    values = sheet.values[column]
    blank = {value for value in values if fold(value) in {"", "nan"}}
    separator = _separator(sheet, column, [value for value in values if value not in blank], options)
    cells = {value: () if value in blank else _cut(value, separator) for value in values}
    none = fold(options.none_folder)
    uses: Counter[str] = Counter()
    says_none = set()
    for value, tags in cells.items():
        uses.update(dict.fromkeys(tags, values[value]))
        if none and any(fold(tag) == none for tag in tags):
            says_none.add(value)
            if len(tags) > 1:
                raise DataError(
                    f"{sheet.first(column, value)}: {value!r} says both {none!r} and a class; mend the cell."
                )
    classes = ClassNames.of(sorted(tag for tag in uses if not none or fold(tag) != none))
    number = {
        value: () if value in says_none else [classes.index(tag) for tag in tags] for value, tags in cells.items()
    }
    per_row = [number[value] for value in sheet.columns[column]]
    count = np.fromiter(map(len, per_row), np.int64, len(sheet))
    empty = np.fromiter((value in blank for value in sheet.columns[column]), np.bool_, len(sheet))
    nothing = np.fromiter((value in says_none for value in sheet.columns[column]), np.bool_, len(sheet))
    if options.blank == "negative":
        nothing |= empty
    absent = options.complete or options.blank == "negative"
    where = f"{sheet.path.name}, column {sheet.header[column]!r}"
    kinds = (
        *((tag, "none of the classes" if fold(tag) == none else "positive", n) for tag, n in sorted(uses.items())),
        ("(blank)", "none of the classes" if absent else "nothing known", int(empty.sum())),
    )
    total = int(count.sum())
    return CsvStated(
        classes,
        np.repeat(np.arange(len(sheet)), count),
        np.fromiter((c for classes_ in per_row for c in classes_), np.int64, total),
        np.full(total, Label.POSITIVE, np.int8),
        np.full((total, 4), np.nan),
        np.zeros((0, 2), np.int64),
        nothing | options.complete,
        nothing,
        tuple(ValueReading(where, value, meaning, n) for value, meaning, n in kinds if n),
        (f"{sheet.path.name}: tags cut at {separator!r}" if separator else f"{sheet.path.name}: one tag a row",),
    )


def _separator(sheet: Sheet, column: int, values: Sequence[str], options: ReadOptions) -> str:
    """What separates the tags; "" where each cell holds one."""
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
    # Names with blanks ("traffic light") bring as many words as different cells; tags are few, and come in many sets.
    tags = {tag for value in values for tag in value.split()}
    return " " if len(tags) < len({value.strip() for value in values}) else ""


def _cut(value: str, separator: str) -> tuple[str, ...]:
    parts = value.split(separator) if separator else [value]
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _images(rows: NDArray[np.bool_], image: NDArray[np.int64]) -> NDArray[np.int64]:
    """The images of some rows, those that were left out excepted."""
    found = distinct(image[rows])
    return found[found >= 0]


def _facts(
    stated: CsvStated, image_of_row: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8], NDArray[np.float64]]:
    """Facts about images: image, class, state, locations."""
    image = image_of_row[stated.row]
    nothing = np.isin(image, _images(stated.nothing, image_of_row)) & (stated.state == Label.POSITIVE)
    # Another row says that none of the classes is there: both facts stay.
    every = np.concatenate([np.flatnonzero(image >= 0), np.flatnonzero(nothing)])
    state = stated.state[every]
    own = int((image >= 0).sum())
    image, class_, locations = image[every], stated.class_[every], stated.locations[every]
    state[own:], locations[own:] = Label.NEGATIVE, np.nan
    keep = distinct_facts(image, class_, state, ~np.isnan(locations[:, 0]))
    return image[keep], class_[keep], state[keep], locations[keep]


def _splits(
    sheet: Sheet, layout: Layout, image: NDArray[np.int64], images: int
) -> tuple[list[str] | None, tuple[ValueReading, ...]]:
    if layout.split is None:
        return None, ()
    column = sheet.columns[layout.split]
    names = {value: split_name(value) for value in sheet.values[layout.split]}
    splits: list[str | None] = [None] * images
    for i, (value, position) in enumerate(zip(column, image.tolist(), strict=True)):
        if position >= 0:
            name = names[value]
            if splits[position] not in (None, name):
                photo = sheet.columns[layout.image][i]
                raise DataError(
                    f"{sheet.at(i, layout.split)}: the photo {photo!r} is in {value!r} and in {splits[position]!r}; "
                    "put it in one split."
                )
            splits[position] = name
    where = f"{sheet.path.name}, column {sheet.header[layout.split]!r}"
    readings = tuple(
        ValueReading(where, value.strip() or "(blank)", f"split {names[value]!r}" if names[value] else "no split", n)
        for value, n in sorted(sheet.values[layout.split].items())
    )
    return [split or "" for split in splits], readings


def _row_messages(sheet: Sheet, layout: Layout, stated: CsvStated, image: NDArray[np.int64]) -> tuple[str, ...]:
    """What joining rows of the same image did; in the form with one label a row, that is what they are for."""
    known = image[stated.row] >= 0
    cell = image[stated.row] * np.int64(len(stated.classes)) + stated.class_
    present, absent = (distinct(cell[known & (stated.state == state)]) for state in (Label.POSITIVE, Label.NEGATIVE))
    both = int(np.isin(present, absent, assume_unique=True, kind="sort").sum())
    none = np.isin(_images(stated.nothing, image), distinct(image[stated.row]), assume_unique=True)
    kept = image[image >= 0]
    repeated = len(kept) - len(distinct(kept)) if layout.form != "facts" else 0
    said = (
        (repeated, f"{repeated:,} rows speak of an image that has a row already, and are joined with it"),
        (both, f"{both:,} labels are present in one row and absent in another: unknown"),
        (none.sum(), f"{none.sum():,} images have tags in one row and none of the classes in another: unknown"),
    )
    return tuple(f"{sheet.path.name}: {text}" for count, text in said if count)
