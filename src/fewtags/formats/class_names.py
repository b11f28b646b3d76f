"""Display names of classes whose ids say nothing to people, such as n02012849: a file with ids and names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, read_json, text_of
from fewtags.formats.options import fold
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable
from fewtags.text import counted, some, suggest

_ID = ("id", "class", "class_id", "classid", "wnid", "synset", "mid", "labelname", "label", "code")
_NAME = ("name", "names", "class_name", "display_name", "displayname", "display", "title", "description", "words")


def read_names(path: Path) -> dict[str, str]:
    """Return the display name of each class id in a file.

    - CSV or text: an id and a name in each row, between them a comma, tab or semicolon, or else the first blank, as in
      `n02012849 crane`. A header such as `id,name` is recognised, and its columns may have any order.
    - JSON: an object {"n02012849": "crane"}, a list of objects with `id` and `name`, or ImageNet's
      {"0": ["n02012849", "crane"]}.

    Raises:
        DataError: the file cannot be read, a row is not an id and a name, or an id has two names.
    """
    if not path.is_file():
        raise DataError(f"data.names: {path} is not a file; give a CSV or JSON file with the columns id and name.")
    pairs = _json_pairs(path) if path.suffix.lower() == ".json" else _text_pairs(path)
    names: dict[str, str] = {}
    for where, class_id, name in pairs:
        if not class_id or not name:
            raise DataError(f"{where}: expected an id and a name, such as n02012849,crane.")
        if names.setdefault(class_id, name) != name:
            raise DataError(f"{where}: {class_id!r} is called {name!r} here and {names[class_id]!r} before; keep one.")
    if not names:
        raise DataError(f"{path}: there is no row with an id and a name, such as n02012849,crane.")
    return names


def _json_pairs(path: Path) -> Iterator[tuple[str, str, str]]:
    content = read_json(path)
    pairs: list[tuple[Any, Any]]
    if isinstance(content, dict):
        pairs = [
            (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else (key, value)
            for key, value in content.items()
        ]
    elif isinstance(content, list):
        pairs = [
            (record.get("id"), record.get("name")) if isinstance(record, dict) else (None, None) for record in content
        ]
    else:
        raise DataError(f'{path}: expected an object such as {{"n02012849": "crane"}}.')
    for n, (class_id, name) in enumerate(pairs, 1):
        key = str(class_id) if isinstance(class_id, int) and not isinstance(class_id, bool) else class_id
        texts = [clean_name(text) if isinstance(text, str) else "" for text in (key, name)]
        yield f"{path}, entry {n}", texts[0], texts[1]


def _text_pairs(path: Path) -> Iterator[tuple[str, str, str]]:
    lines = [(n, line) for n, line in enumerate(text_of(path).splitlines(), 1) if line.strip()]
    # n02012849 crane, bird: the id ends at the first blank; "id,name" has no blank before its separator.
    first = re.compile(r"[^\s,;\t\"']+ +\S")
    blank = all(first.match(line) for _, line in lines)
    separator = next((c for c in ("\t", ";", ",") if all(c in line for _, line in lines)), "")
    if blank and separator != "\t":
        separator = ""
    if not separator and not blank:
        n, line = next(((n, line) for n, line in lines if not first.match(line)), (1, ""))
        raise DataError(f"{path} row {n}: {line[:60]!r} is not an id and a name; write it as n02012849,crane.")
    rows = [
        (n, next(csv.reader([line], delimiter=separator, skipinitialspace=True)) if separator else line.split(None, 1))
        for n, line in lines
    ]
    columns = (0, 1)
    if rows:
        header = [fold(cell) for cell in rows[0][1]]
        found = [next((header.index(word) for word in words if word in header), None) for words in (_ID, _NAME)]
        if found[0] is not None and found[1] is not None:
            columns, rows = (found[0], found[1]), rows[1:]
    for n, row in rows:
        if len(row) <= max(columns):
            raise DataError(f"{path} row {n}: {counted(len(row), 'cell')}; expected an id and a name.")
        if columns == (0, 1) and len(row) > 2 and all(len(cells) <= 2 for _, cells in rows if cells is not row):
            raise DataError(
                f'{path} row {n}: {len(row)} cells; write a name with a {separator!r} in quotes, as in "a, b".'
            )
        yield f"{path} row {n}", clean_name(row[columns[0]]), clean_name(row[columns[1]])


def name_classes(tables: Mapping[str, LabelTable], file: str | Path) -> dict[str, LabelTable]:
    """Return the tables with the display names of a file; the ids of classes do not change.

    The file may name more classes than the labels have, such as all of ImageNet.

    Raises:
        DataError: the file cannot be used; or it has an id that is not a class, while a class has no name in it.
    """
    path = Path(file)
    names = read_names(path)
    known = dict.fromkeys(i for table in tables.values() for i in table.classes.ids)
    unknown, unnamed = [i for i in names if i not in known], [i for i in known if i not in names]
    if unknown and (unnamed or len(unknown) == len(names)):
        without = f"; {counted(len(unnamed), 'class has', 'classes have')} no name there, {some(unnamed, 3)}"
        raise DataError(
            f"{path}: {some(unknown, 3)} {'is' if len(unknown) == 1 else 'are'} not the id of a class"
            f"{suggest(unknown[0], unnamed or known)}{without if unnamed else ''}. Fix or remove these ids."
        )
    named = len(known) - len(unnamed)
    message = f"{path.name}: display names for {named:,} of {counted(len(known), 'class', 'classes')}"
    if unnamed:
        message += f"; {some(unnamed, 3)} {'has' if len(unnamed) == 1 else 'have'} no name in it"
    if unknown:
        message += f"; {counted(len(unknown), 'other id', 'other ids')} not used, {some(unknown, 3)}"
    return {
        split: replace(
            table,
            classes=ClassNames.of(
                table.classes.ids,
                [names.get(i, name) for i, name in zip(table.classes.ids, table.classes.names, strict=True)],
            ),
        ).noting(message)
        for split, table in tables.items()
    }
