"""metadata.jsonl of Hugging Face (imagefolder): a JSON object for each photo, with `file_name` and its labels."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.cells import is_list, is_nested, text_of_list, text_of_value
from fewtags.formats.common import clean_name, finite_number, is_split, plain_text, split_name, text_of
from fewtags.formats.csv import read_table
from fewtags.formats.csv_cells import SEPARATORS, cut, given_separator
from fewtags.formats.csv_layout import IMAGE_COLUMNS, find_layout
from fewtags.formats.locate import locate, usual_folders
from fewtags.formats.options import ReadOptions
from fewtags.formats.rated import Scores
from fewtags.formats.sheet import Sheet
from fewtags.formats.stated import Source, Stated, value_readings
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable, Notes
from fewtags.text import counted, setting, some, suggest

_Record = dict[str, Any]
_NAME = "metadata.jsonl"
_BOXES = ("bbox", "bboxes", "boxes")
_CLASSES = ("categories", "category", "category_id", "labels", "label", "classes", "class", "names", "name")


def recognise(path: Path) -> str:
    """Return why a path is a file of JSON objects that name photos, or a folder with a metadata.jsonl; else ""."""
    if path.is_dir():
        files = [file for file, _ in _files(path)]
        return f"it has {files[0].relative_to(path).as_posix()}" if files else ""
    with path.open("rb") as stream:
        first = next((line for line in stream if line.strip()), b"")
    try:
        record = json.loads(first.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return ""
    named = isinstance(record, dict) and any(key in record for key in IMAGE_COLUMNS)
    return "its lines are objects that name photos" if named else ""


def _files(path: Path) -> list[tuple[Path, str]]:
    """Return the files of a data set, each with the folder that its names are relative to ("" for the path itself)."""
    if not path.is_dir():
        return [(path, "")]
    if (path / _NAME).is_file():
        return [(path / _NAME, "")]
    parts = sorted(part for part in path.iterdir() if is_split(part.name) and (part / _NAME).is_file())
    return [(part / _NAME, part.name) for part in parts]


def read_metadata(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a metadata.jsonl, or a folder with one, or with one in each of its folders train, validation and test.

    - Each line is an object; `file_name` (or another usual name, or `image_column`) is a photo, relative to the file.
    - A column `objects` has the boxes of a photo, {"bbox": [[x, y, width, height]], "categories": [...]} in pixels, or
      a list with an object for each box. A category that is a number is called by it; `data.names` gives it a name.
      `width` and `height` are the size of the photo. Other columns beside `objects` are not read. Objects with scores
      between 0 and 1 are results of a detector, which are refused.
    - Without boxes, the columns are read as those of a CSV (see `read_csv`): a class for each column of true and false
      (or 1 and 0, null is unknown), or a column of tags: a text, or a list.
    - A caption (a column `text` with sentences) is not a tag, and is refused.
    - The split is the column `split`, or the folder of the file.

    Raises:
        DataError: a line is not an object with a photo, labels are missing or not clear, or most photos are missing.
    """
    options = options or ReadOptions()
    files = _files(path)
    if not files:
        raise DataError(f"{path}: expected a {_NAME}, in the folder itself or in its folders train and test.")
    rows = [row for file, folder in files for row in _rows(file, folder)]
    if not rows:
        raise DataError(f'{path}: the file is empty; expected lines such as {{"file_name": "a.jpg", "tags": ["cat"]}}.')
    key = _image_key(path, rows, options)
    for row in rows:
        if not plain_text(row.record.get(key)):
            raise DataError(f"{row.at}: {key!r} is {row.record.get(key)!r}; expected the name of a photo.")
    beside = usual_folders(files[0][0]) if path.is_file() else [path, path / "images"]
    return read_rows(path, rows, key, images, options, beside)


def read_rows(
    path: Path,
    rows: Sequence[Row],
    key: str,
    images: Path | None,
    options: ReadOptions,
    beside: Sequence[Path] = (),
    *,
    null_is_unknown: bool = False,
) -> LabelTable:
    """Read the labels in the fields of rows, whose photos are in the field `key`; see `read_metadata`.

    A null in place of boxes is a photo without boxes, unless `null_is_unknown`.
    """
    if objects := next((name for name in _columns(rows) if any(_has_boxes(row.record.get(name)) for row in rows)), ""):
        table = _read_objects(path, rows, (key, objects), images, options, beside)
        return _leave_unknown(table, rows, key, [objects]) if null_is_unknown else table
    sheet = _sheet(path, rows, key, options)
    nested = [name for name in _columns(rows) if any(is_nested(row.record.get(name)) for row in rows)]
    try:
        layout = find_layout(sheet, options)
    except DataError as error:
        raise DataError(f"{error}{_nested_text(nested)}") from None
    labels = {sheet.header[column] for column in layout.labels}
    _refuse_unclear(rows, labels, options)
    table = read_table(sheet, layout, images, options, beside)
    table = _leave_unknown(table, rows, key, [name for name in _columns(rows) if clean_name(name) in labels])
    if not nested:
        return table
    warning = f"{path.resolve().name}: the columns {some(nested)} have objects or lists of lists, and are not read"
    return replace(table, notes=table.notes + Notes(warnings=(warning,)))


def _nested_text(nested: Sequence[str]) -> str:
    if not nested:
        return ""
    return f" The columns {some(nested)} have objects or lists of lists, which are not read; write lists of names."


@final
@dataclass(frozen=True)
class Row:
    """A line of a file; `folder` is the one that its names are relative to. `place` is its name in messages, if any."""

    file: Path
    line: int
    folder: str
    record: _Record
    place: str = ""

    @property
    def at(self) -> str:
        """Where it is, for messages."""
        return self.place or f"{self.file} row {self.line}"

    def photo(self, key: str) -> str:
        """Return the name of its photo, which the field `key` has; `locate` decides whether blanks belong to it."""
        name = str(self.record[key])
        return f"{self.folder}/{name.strip()}" if self.folder else name

    @property
    def split(self) -> str:
        """Its split, by its field or by its folder; "" for none."""
        return split_name(plain_text(self.record.get("split")) or self.folder)


def _rows(file: Path, folder: str) -> list[Row]:
    found = []
    for number, line in enumerate(text_of(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file} row {number}: not JSON ({error}); each line must be one object.") from None
        if not isinstance(record, dict):
            raise DataError(f'{file} row {number}: {line[:40]!r}; expected an object such as {{"file_name": "a.jpg"}}.')
        found.append(Row(file, number, folder, record))
    return found


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.record))


def _image_key(path: Path, rows: Sequence[Row], options: ReadOptions) -> str:
    columns = _columns(rows)
    if (given := options.image_column) is not None:
        if given not in columns:
            raise DataError(f"{path}: no row has {given!r}{suggest(given, columns)}; there are {some(columns, 12)}.")
        return given
    found = next((name for name in ("file_name", *IMAGE_COLUMNS) if name in columns), None)
    if found is None:
        cure = setting("image_column", "NAME")
        raise DataError(f"{path}: no row has 'file_name'; there are {some(columns, 12)}. Pass {cure}.")
    return found


def _has_boxes(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(part, dict) and any(key in part for key in _BOXES) for part in value)
    return isinstance(value, dict) and any(key in value for key in _BOXES)


def _refuse_unclear(rows: Sequence[Row], labels: Collection[str], options: ReadOptions) -> None:
    """Raise DataError if a column of labels has lists, and a text that may be one name or several."""
    if options.tags_separator is not None:
        return
    for name in _columns(rows):
        if clean_name(name) not in labels or not any(is_list(row.record.get(name)) for row in rows):
            continue
        for row in rows:
            value = row.record.get(name)
            if isinstance(value, str) and (mark := next((mark for mark in SEPARATORS if mark in value), "")):
                other = next((other for other in SEPARATORS if other not in value), "tab")
                raise DataError(
                    f"{row.at}: {name!r} is {value[:60]!r}, which may be several tags or one name; other rows have "
                    f"lists. Write a list there, too; or pass {setting('tags_separator', mark)} if {mark!r} separates "
                    f"tags, or {setting('tags_separator', other)} if it belongs to the name."
                )


def _sheet(path: Path, rows: Sequence[Row], key: str, options: ReadOptions) -> Sheet:
    """Return the rows as a text table; columns of objects are left out. A text beside lists is a list, too."""
    columns = _columns(rows)
    values = {name: [row.record.get(name) for row in rows] for name in columns}
    kept, texts = [], []
    for name in columns:
        if any(map(is_nested, values[name])):
            continue
        listed = any(map(is_list, values[name]))
        kept.append(clean_name(name))
        if listed:
            separator = given_separator(options)
            values[name] = [cut(value, separator) if isinstance(value, str) else value for value in values[name]]
        texts.append([*map(text_of_list if listed else text_of_value, values[name])])
    texts[kept.index(clean_name(key))] = [row.photo(key) for row in rows]
    if "split" not in kept and any(row.folder for row in rows):
        kept.append("split")
        texts.append([row.split for row in rows])
    if twice := [name for name, n in Counter(kept).items() if n > 1]:
        raise DataError(f"{path}: several columns are called {twice[0]!r}; rename them.")
    lines = np.array([row.line for row in rows], np.int64)
    places = tuple(row.at for row in rows)
    return Sheet(path=path, delimiter="", header=tuple(kept), columns=tuple(texts), lines=lines, places=places)


def _leave_unknown(table: LabelTable, rows: Sequence[Row], key: str, fields: Sequence[str]) -> LabelTable:
    """Return the table without complete labels of the photos whose fields with labels are all null: nothing is known.

    A field that a row lacks is as a blank cell; an empty list says that there is no label.
    """
    keys = table.images.to_pylist()
    names = {row.photo(key) for row in rows if fields and all(_is_null(row.record.get(f, _ABSENT)) for f in fields)}
    names = (names & {*keys}) | {name.strip() for name in names - {*keys}}
    unknown = np.array([name in names for name in keys], np.bool_) & (table.complete_set >= 0)
    if not unknown.any():
        return table
    text = f"{counted(int(unknown.sum()), 'photo')} whose labels are null: unknown, although labels are complete"
    return replace(table, complete_set=np.where(unknown, np.int16(-1), table.complete_set)).noting(text)


_ABSENT = object()
"""In place of the value of a field that a row does not have."""


def _is_null(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_null, value))
    return value is None or (isinstance(value, float) and math.isnan(value))


def _read_objects(
    path: Path,
    rows: Sequence[Row],
    keys: tuple[str, str],
    images: Path | None,
    options: ReadOptions,
    beside: Sequence[Path],
) -> LabelTable:
    """Read boxes: `keys` are those of the photo and of its objects."""
    key, column = keys
    found: list[tuple[int, str, object]] = []
    for i, row in enumerate(rows):
        found += [(i, name, box) for name, box in _objects(row, column)]
    classes = ClassNames.of(sorted({name for _, name, _ in found}))
    if not len(classes):
        raise DataError(f"{path}: no object in {column!r} has a class, so there is nothing to learn.")
    stated = Stated(options)
    for n, (i, name, box) in enumerate(found, 1):
        numbers = [finite_number(x) for x in box] if isinstance(box, list) and len(box) == 4 else [math.nan] * 4
        x, y, width, height = numbers
        corners = None if box is None else (x, y, x + width, y + height)
        stated.add(i, classes.index(name), box=corners, origin=f"{rows[i].file.name} row {rows[i].line}, object {n}")
    where = path.resolve().name
    unnamed = stated.labels().count_unnamed(len(rows), len(classes))
    counts = Counter(name for _, name, _ in found)
    readings = value_readings(
        f"{where}, column {column!r}",
        [
            *((name, options.meaning(name), n) for name, n in sorted(counts.items())),
            ("class that is not named", "negative (complete)" if options.complete else "unknown", unnamed),
            ("photo without objects", "kept", len(rows) - len({i for i, _, _ in found})),
        ],
    )
    used = {key, column, "split", "width", "height", "image_id", "id"}
    ignored = [name for name in _columns(rows) if name not in used]
    messages = [
        f"{where}: {counted(len(rows), 'row')}; images in {key!r}, boxes (x, y, width, height in pixels) in {column!r}"
    ]
    warnings = (f"{where}: the columns {some(ignored)} beside {column!r} are not read",) if ignored else ()
    scores = Scores(what="object")
    for row in rows:
        _add_scores(scores, row.record.get(column))
    splits = [row.split for row in rows]
    return Source(
        options=options,
        path=path,
        classes=classes,
        labels=stated.labels(),
        photos=locate([row.photo(key) for row in rows], file=rows[0].file, images=images, beside=beside),
        unit="pixels",
        origin=stated.origins.__getitem__,
        sizes=np.array(
            [[finite_number(row.record.get(side)) for side in ("width", "height")] for row in rows], np.float64
        ),
        complete=np.full(len(rows), options.complete),
        splits=splits if any(splits) else None,
        notes=Notes(readings, (), tuple(messages), warnings) + scores.notes(path, len(found)),
    ).table()


def _add_scores(scores: Scores, value: object) -> None:
    """Add the scores of the objects of a row: an object with lists, or a list of objects."""
    for part in value if isinstance(value, list) else [value]:
        for key, given in part.items() if isinstance(part, dict) else ():
            for one in given if isinstance(given, list) else [given]:
                scores.add(key, one)


def _first_list(value: dict[str, Any], keys: Sequence[str]) -> list[Any] | None:
    """Return the first of these entries that is a list."""
    return next((value[key] for key in keys if isinstance(value.get(key), list)), None)


def _objects(row: Row, column: str) -> list[tuple[str, object]]:
    """Return the class and the box of each object of a row; None for an object without a box."""
    value = row.record.get(column)
    if not value:
        return []
    if not _has_boxes(value) and not isinstance(value, dict):
        raise DataError(f"{row.at}: {column!r} is {value!r:.60}; expected bbox and categories of each object.")
    boxes: list[Any]
    if isinstance(value, list):
        boxes = [next(part[key] for key in _BOXES if key in part) for part in value]
        labels = [next((part[key] for key in _CLASSES if key in part), None) for part in value]
    else:
        labels = _first_list(value, _CLASSES) or []
        found = _first_list(value, _BOXES)
        boxes = [None] * len(labels) if found is None else found
    if len(boxes) != len(labels):
        raise DataError(
            f"{row.at}: {column!r} has {counted(len(boxes), 'box', 'boxes')} and "
            f"{counted(len(labels), 'class', 'classes')} ({', '.join(_CLASSES[:3])}); give each box one."
        )
    names = [plain_text(text_of_value(label)) if isinstance(label, str | int) else "" for label in labels]
    if "" in names:
        wrong = labels[names.index("")]
        raise DataError(f"{row.at}: an object in {column!r} has the class {wrong!r}; expected a name or a number.")
    return [*zip(names, boxes, strict=True)]
