"""Scores of a teacher, from a table: one score a row, or a column for each class as `fewtags predict --wide` writes.

`ScoreTable` has names of photos and classes as the table writes them; `engine.teacher` matches them to the labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, number_of
from fewtags.formats.csv_layout import IMAGE_COLUMNS
from fewtags.formats.frames import is_frame, plain_frame
from fewtags.formats.options import fold
from fewtags.formats.rated import SCORE_NAMES
from fewtags.formats.sheet import read_sheet
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable
from fewtags.text import counted, quoted, some

CLASS_COLUMNS = ("class", "class_id", "label", "tag", "category")
EXPECTED = "expected the columns image, class and score, or image and one column of scores for each class"
_BLANK = frozenset({"", "nan", "na", "n/a", "<na>", "null", "none"})


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreTable:
    """Scores as a table states them, one for each of R different cells.

    Attributes:
        where: the file, or a word for a table in memory.
        images: names of the images.
        classes: the vocabulary.
        image: int64 [R], positions in `images`.
        class_: int64 [R], positions in `classes`.
        score: float64 [R], in 0..1.
    """

    where: str
    images: tuple[str, ...]
    classes: ClassNames
    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    score: NDArray[np.float64]


@final
@dataclass(frozen=True)
class _Columns:
    """Columns by name, and the place of a row for messages."""

    where: str
    values: Mapping[str, Sequence[Any] | NDArray[Any]]
    at: Callable[[int], str]


def read_scores(path: Path) -> ScoreTable:
    """Read a CSV or Parquet file of scores.

    Long form: the columns image, class and score (or probability), and an optional column name with display names.
    Wide form: a column image, and a column of scores for each class. Blank and missing cells have no score.

    Raises:
        DataError: there is no such file, a column is missing, or a cell is not a number in 0..1.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; give a CSV or Parquet file with scores: {EXPECTED}.")
    if path.suffix.lower() == ".parquet":
        try:
            table = pq.read_table(path)
            table.validate(full=True)  # that text is UTF-8
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}).") from None
        values = {clean_name(name): _plain(column) for name, column in zip(table.column_names, table, strict=True)}
        return _scores(_Columns(str(path), values, lambda row: f"{path} row {row + 1}"))
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise DataError(f"{path}: scores are read from files that end in .csv or .parquet; {EXPECTED}.")
    sheet = read_sheet(path)
    values = dict(zip(sheet.header, sheet.columns, strict=True))
    return _scores(_Columns(str(path), values, sheet.at))


def scores_of(given: object, table: LabelTable) -> ScoreTable:
    """Return scores that are given in Python: a path, a DataFrame in one of the forms of `read_scores`, or an array.

    An array, float [N, C], has the rows and classes of the training labels `table`; NaN means that there is no score.

    Raises:
        DataError: it is something else, an array of another shape, or a cell is not a number in 0..1.
    """
    if isinstance(given, str | Path):
        return read_scores(Path(given))
    if is_frame(given):
        frame, places = plain_frame(given)
        values = {name: _plain_series(frame[name]) for name in frame.columns}
        return _scores(_Columns("the DataFrame", values, lambda row: f"the DataFrame, {places[row]}"))
    if not isinstance(given, np.ndarray):
        kind = f"an object of the type {type(given).__name__}"
        raise DataError(f"{kind} cannot be read as scores; give a path, a pandas DataFrame, or an array [N, C].")
    if given.shape != (len(table), len(table.classes)) or given.dtype.kind not in "fiub":
        raise DataError(
            f"the scores are an array {list(given.shape)} of the dtype {given.dtype}; expected numbers "
            f"[{len(table)}, {len(table.classes)}], a row for each image of the training labels and a column for each "
            "class."
        )
    names = table.images.to_pylist()
    return _wide(
        _Columns("the array", {}, lambda row: f"the row of {quoted(names[row])} in the array"),
        names,
        table.classes,
        given,
    )


def _scores(columns: _Columns) -> ScoreTable:
    plain = {re.sub(r"[\s\-]+", "_", fold(name)): name for name in columns.values}
    image = next((plain[word] for word in IMAGE_COLUMNS if word in plain), None)
    if image is None:
        raise DataError(
            f"{columns.where}: no column is called 'image'; {EXPECTED}. It has {some([*columns.values], 12)}."
        )
    names = [_text(columns, image, row) for row in range(len(columns.values[image]))]
    class_ = next((plain[word] for word in CLASS_COLUMNS if word in plain), None)
    score = next((name for word, name in plain.items() if word in SCORE_NAMES), None)
    if class_ is not None and score is not None:
        return _long(columns, names, class_, score, plain.get("name"))
    classes = [name for name in columns.values if name != image]
    if not classes:
        raise DataError(f"{columns.where}: there is no column beside {image!r}; {EXPECTED}.")
    values = np.stack([_numbers(columns, name) for name in classes], 1) if names else np.zeros((0, len(classes)))
    return _wide(columns, names, ClassNames.of(classes), values)


def _long(columns: _Columns, names: list[str], class_: str, score: str, display: str | None) -> ScoreTable:
    texts = [clean_name(_text(columns, class_, row)) for row in range(len(names))]
    ids = dict.fromkeys(texts)
    shown: dict[str, str] = {}
    if display is not None and display != class_:
        for text, name in zip(texts, columns.values[display], strict=True):
            shown.setdefault(text, clean_name(str(name)) or text)
    classes = ClassNames.of(ids, [shown.get(text, text) for text in ids])
    column = np.fromiter(map({text: n for n, text in enumerate(ids)}.__getitem__, texts), np.int64, len(texts))
    return _table(columns, names, classes, np.arange(len(names)), column, _numbers(columns, score))


def _wide(columns: _Columns, names: Sequence[str], classes: ClassNames, values: NDArray[Any]) -> ScoreTable:
    row, column = np.divmod(np.arange(values.size), max(len(classes), 1))
    return _table(columns, names, classes, row, column, values.astype(np.float64).reshape(-1))


def _table(
    columns: _Columns,
    names: Sequence[str],
    classes: ClassNames,
    row: NDArray[np.int64],
    class_: NDArray[np.int64],
    score: NDArray[np.float64],
) -> ScoreTable:
    """Check the scores [R] of rows and classes, and drop those that are NaN."""
    if len(wrong := np.flatnonzero(~np.isnan(score) & ~((score >= 0) & (score <= 1)))):
        first = int(wrong[0])
        more = f" ({len(wrong) - 1:,} more such cells)" if len(wrong) > 1 else ""
        raise DataError(
            f"{columns.at(int(row[first]))}: the score of {classes.ids[class_[first]]!r} is {score[first]:g}, which is "
            f"not in 0..1{more}. Scores are probabilities: divide per cents by 100, and apply the sigmoid to logits."
        )
    position = {name: n for n, name in enumerate(dict.fromkeys(names))}
    image = np.fromiter(map(position.__getitem__, names), np.int64, len(names))[row]
    kept = np.flatnonzero(~np.isnan(score))
    if not len(kept):
        raise DataError(f"{columns.where}: there is no score; {EXPECTED}.")
    cell = (image * len(classes) + class_)[kept]
    order = np.argsort(cell, kind="stable")
    repeated = np.flatnonzero(np.diff(cell[order]) == 0)
    before, after = kept[order[repeated]], kept[order[repeated + 1]]
    if len(clash := np.flatnonzero(score[before] != score[after])):
        one, two = int(before[clash[0]]), int(after[clash[0]])
        name, class_id = names[int(row[one])], classes.ids[class_[one]]
        raise DataError(
            f"{columns.at(int(row[two]))}: {name!r} and {class_id!r} have the score {score[two]:g}, but {score[one]:g} "
            f"in {columns.at(int(row[one])).removeprefix(columns.where).strip()} "
            f"({counted(len(clash), 'such cell')}); keep one of them."
        )
    kept = np.setdiff1d(kept, after, assume_unique=True)
    return ScoreTable(
        where=columns.where,
        images=tuple(position),
        classes=classes,
        image=image[kept],
        class_=class_[kept],
        score=score[kept],
    )


def _plain(column: pa.ChunkedArray) -> Sequence[Any] | NDArray[Any]:
    """Return a column as an array of numbers if it has numbers, else as a list."""
    number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    values: Sequence[Any] | NDArray[Any] = column.cast(pa.float64()).to_numpy() if number else column.to_pylist()
    return values


def _plain_series(series: Any) -> Sequence[Any] | NDArray[Any]:
    """Return a column of a data frame as an array if it has numbers, else as a list; None for missing values."""
    if series.dtype.kind in "fiu":
        values: NDArray[Any] = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return values
    return [None if missing else value for value, missing in zip(series, series.isna(), strict=True)]


def _text(columns: _Columns, column: str, row: int) -> str:
    value = columns.values[column][row]
    text = str(value).strip() if value is not None and value == value else ""  # NaN differs from itself
    if not text:
        raise DataError(f"{columns.at(row)}: there is no {column}; fill it in, or remove the row.")
    return text


def _numbers(columns: _Columns, name: str) -> NDArray[np.float64]:
    """Return a column as numbers; NaN for blanks."""
    values = columns.values[name]
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        return values.astype(np.float64)
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if isinstance(value, str):
            if fold(value) in _BLANK:
                continue
            found[row] = number_of(value)
            if np.isnan(found[row]):
                raise DataError(
                    f"{columns.at(row)}, column {name!r}: {value!r} is not a number. If the column is not one of "
                    "scores, remove it."
                )
        elif isinstance(value, int | float | np.number):
            found[row] = float(value)
        elif value is not None:
            raise DataError(
                f"{columns.at(row)}, column {name!r}: {value!r} is not a number. If the column is not one of scores, "
                "remove it."
            )
    return found
