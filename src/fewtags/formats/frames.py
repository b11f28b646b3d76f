"""Label tables from pandas data frames, which are read as text tables."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.cells import is_list, is_nested, text_of_list, text_of_value
from fewtags.formats.common import clean_name
from fewtags.formats.csv import read_table
from fewtags.formats.csv_layout import IMAGE_COLUMNS, find_layout
from fewtags.formats.locate import is_photo
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.read import finished
from fewtags.formats.sheet import Sheet
from fewtags.table.table import LabelTable, Notes
from fewtags.text import some

_NAME = Path("DataFrame")


def is_frame(value: object) -> TypeGuard[Any]:
    """Whether a value is a pandas DataFrame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def from_pandas(frame: Any, *, images: Path | str | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Make a label table from a DataFrame with a column of paths, and class columns or a column of tags.

    It is read as a CSV: 1, 0 and NaN (or pd.NA, None) are positive, negative and unknown, see the guide. A cell of tags
    is a text or a list. An index with a name is a column, too, and an index of photo names without one.

    Args:
        frame: the DataFrame.
        images: folder that the paths are relative to; None for the working directory, or the common folder of absolute
            paths.
        options: how to read the labels.

    Raises:
        DataError: it is not a DataFrame, it is empty, two columns have one name, or its content cannot be read.
    """
    if not is_frame(frame):
        raise DataError(f"from_pandas got an object of the type {type(frame).__name__}; expected a pandas DataFrame.")
    options = options or ReadOptions()
    shown, places = plain_frame(frame)
    names, columns, nested = [], [], []
    for name in shown.columns:
        cells = _cells(shown[name])
        if cells is None:
            nested.append(name)
        else:
            names.append(name)
            columns.append(cells)
    if not len(shown) or len(names) < 2:
        have = f"the columns {some(names)}" if names else "no columns"
        rows = f"{len(shown):,} rows and {have}" + (f" ({_nested(nested)})" if nested else "")
        raise DataError(f"DataFrame: it has {rows}; expected a row for each photo, with a column of names and labels.")
    folder = None if images is None else Path(images)
    if folder is None:
        columns, folder = _with_common_folder(columns)
    lines = np.arange(len(shown), dtype=np.int64)
    sheet = Sheet(
        path=_NAME,
        delimiter="",
        header=tuple(names),
        columns=tuple(columns),
        lines=lines,
        places=tuple(f"DataFrame, {place}" for place in places),
    )
    table = read_table(sheet, find_layout(sheet, options), folder, options, [])
    if nested:
        table = replace(table, notes=table.notes + Notes(warnings=(f"DataFrame: {_nested(nested)}",)))
    return finished(table, "csv", options)


def _nested(names: Sequence[str]) -> str:
    return f"{some(names)} not read: objects, bytes, complex numbers or lists of lists"


def plain_frame(frame: Any) -> tuple[Any, list[str]]:
    """Return a frame with different texts as names of its columns, and what to call its rows in messages.

    An index with a name is a column, and an index of names of photos if there is no column of them.

    Raises:
        DataError: names of columns have several levels, are missing or occur twice, or an index has no clear name.
    """
    if frame.columns.nlevels > 1:
        raise DataError(
            f"DataFrame: the names of its columns have {frame.columns.nlevels} levels, such as "
            f"{frame.columns[0]!r}; join them: frame.columns = ['_'.join(name) for name in frame.columns]."
        )
    names = [text_of_value(name) and clean_name(str(name)) for name in frame.columns]
    if "" in names:
        raise DataError(
            f"DataFrame: column {names.index('') + 1} is called {frame.columns[names.index('')]!r}; give it a name."
        )
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise DataError(f"DataFrame: several columns are called {twice[0]!r}; rename them.")
    places = [f"row {text_of_value(label)!s}" for label in frame.index]
    shown = frame.set_axis(names, axis=1).reset_index(drop=True)
    photos = any(fold(name).replace(" ", "_") in IMAGE_COLUMNS for name in names)
    for level in range(frame.index.nlevels):
        values, name = frame.index.get_level_values(level), frame.index.names[level]
        if name is None and frame.index.nlevels == 1 and (photos or not any(map(_is_photo, values[:100]))):
            continue
        if name is None and not any(map(_is_photo, values[:100])):
            raise DataError(f"DataFrame: level {level} of its index has no name; name it, or drop it with reset_index.")
        text = "image" if name is None else clean_name(str(name))
        if text not in names:
            shown.insert(0, text, values)
            names.append(text)
        elif [*map(text_of_value, values)] != [*map(text_of_value, shown[text])]:
            raise DataError(f"DataFrame: its index and a column are both called {text!r}, and differ; rename one.")
    return shown, places


def _is_photo(value: object) -> bool:
    return isinstance(value, str | Path) and is_photo(str(value))


def _cells(series: Any) -> list[str] | None:
    """Return the cells of a column as texts; None if they are of a kind that is not read."""
    if series.dtype.kind in "biuf":  # few distinct values, also with millions of rows
        codes, values = series.factorize()
        texts = [*map(text_of_value, values), ""]
        return [texts[code] for code in codes.tolist()]
    values = [*series]
    if any(map(is_nested, values)):
        return None
    return [*map(text_of_list if any(map(is_list, values)) else text_of_value, values)]


def _with_common_folder(columns: Sequence[list[str]]) -> tuple[list[list[str]], Path]:
    """Return columns in which absolute paths are relative to their common folder, and this folder."""
    found = list(columns)
    for j, column in enumerate(columns):
        if column and all(Path(text).is_absolute() for text in column):
            folder = Path(os.path.commonpath([str(Path(text).parent) for text in column]))
            found[j] = [str(Path(text).relative_to(folder)) for text in column]
            return found, folder
    return found, Path.cwd()
