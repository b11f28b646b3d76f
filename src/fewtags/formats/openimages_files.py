"""The CSV files of OpenImages: the kind of each file, and its rows as arrays."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.common import number_of, text_of
from fewtags.formats.options import fold
from fewtags.labels import Label

FileKind = Literal["labels", "boxes", "points", "images", "classes", "others"]
Encoded = tuple[Sequence[str], NDArray[np.int64]]
"""A column of words: the distinct words, and the position of each row's word among them."""

_BOX = ("XMin", "YMin", "XMax", "YMax")
_POINT = ("X", "Y")
_ANSWERS = {"yes": Label.POSITIVE, "no": Label.UNKNOWN, "unsure": Label.UNKNOWN}
"""What an answer about a point states about the whole photo: "no" states nothing about other places."""
_FLAGS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
_NAMED: Mapping[FileKind, tuple[str, str]] = {"images": ("ImageID", "Subset"), "points": ("ImageId", "Label")}
"""Columns of the image and of the class (for an image list: the subset), for files with other names than usual."""
ANNOTATION_FOLDERS = ("annotations", "labels", "metadata")
_WORDS = pa.dictionary(pa.int32(), pa.string())
_CLASS_KEY = re.compile(r"/[a-z]+/\w+")
_LONGEST_HEADER = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """R rows of a file.

    Attributes:
        class_: class ids; for an image list, the subsets.
        state: int8 [R], values of `Label`, about the whole photo.
        confidence: confidence as written; for points, the answers.
        source: int64 [R], position in `sources`.
        corners: float64 [R, 4] x0, y0, x1, y1 or, twice, x, y; NaN without a region.
        boxed: whether the file has boxes.
        pointed: whether the file has points.
        flags: bool [R], the rows in which a flag is 1.
    """

    file: Path
    image: Encoded
    class_: Encoded
    state: NDArray[np.int8]
    confidence: Encoded
    source: NDArray[np.int64]
    sources: Sequence[str]
    corners: NDArray[np.float64]
    boxed: bool = False
    pointed: bool = False
    flags: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.state)


def kind_of(file: Path) -> FileKind:
    """Return what a CSV file contains, by its header; class descriptions of old versions have none."""
    if file.suffix.lower() != ".csv" or not file.is_file():
        return "others"
    cells = _header(file)
    header = {*cells}
    if {"ImageID", "LabelName", *_BOX} <= header:
        return "boxes"
    if {"ImageID", "LabelName", "Confidence"} <= header:
        return "labels"
    if {"ImageId", "Label", "EstimatedYesNo", *_POINT} <= header:
        return "points"
    if {"ImageID", "Subset"} <= header:
        return "images"
    named = len(cells) == 2 and _CLASS_KEY.fullmatch(cells[0]) is not None
    return "classes" if named or {"LabelName", "DisplayName"} <= header else "others"


def _header(file: Path) -> list[str]:
    with file.open("rb") as stream:
        line = stream.readline(_LONGEST_HEADER).decode("utf-8-sig", "replace").strip()
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def is_openimages(file: Path) -> bool:
    """Return whether a CSV file has labels, boxes or points of OpenImages."""
    return kind_of(file) in ("labels", "boxes", "points")


def named_by(file: Path) -> str:
    """Return the columns that identify a file of labels, boxes or points."""
    return "ImageId and EstimatedYesNo" if kind_of(file) == "points" else "ImageID and LabelName"


def files_beside(folder: Path) -> list[Path]:
    """Return the CSV files of a folder, and of its folders with a usual name for annotations."""
    return [file for part in (".", *ANNOTATION_FOLDERS) for file in sorted((folder / part).glob("[!.]*.csv"))]


def find_files(path: Path) -> dict[FileKind, list[Path]]:
    """Return the files to read, by kind: those of a folder, or one file with the names and image lists beside it.

    Raises:
        DataError: none of them has labels, boxes or points.
    """
    found: dict[FileKind, list[Path]] = {kind: [] for kind in get_args(FileKind)}
    for file in files_beside(path if path.is_dir() else path.parent):
        found[kind_of(file)].append(file)
    if not path.is_dir():
        kind = kind_of(path)
        found |= {"labels": [], "boxes": [], "points": [], "others": [], kind: [path]}
    if not found["labels"] and not found["boxes"] and not found["points"]:
        raise DataError(
            f"{path}: no CSV with the columns ImageID, LabelName and Confidence (labels), or also XMin, XMax, YMin and "
            "YMax (boxes), or with ImageId, X, Y, Label and EstimatedYesNo (points), as in OpenImages."
        )
    return found


def read_rows(file: Path) -> Rows:
    """Return the rows of a file of labels, boxes or points, or of an image list.

    Raises:
        DataError: a row does not fit the header; it is named.
    """
    kind = kind_of(file)
    columns = _columns(file, kind)
    image_name, class_name = _NAMED.get(kind, ("ImageID", "LabelName"))
    image, class_ = _encoded(columns[image_name]), _encoded(columns[class_name])
    rows = len(image[1])
    for name, (values, code) in ((image_name, image), (class_name, class_)):
        if "" in values:
            row = int(np.argmax(code == list(values).index(""))) + 2
            raise DataError(f"{file} row {row}: there is no {name}; fill it in, or remove the row.")
    alike: Encoded = ([""], np.zeros(rows, np.int64))
    sources, source = _encoded(columns["Source"]) if "Source" in columns else alike
    numbers = {"boxes": _BOX, "points": _POINT * 2}.get(kind)
    corners = np.full((rows, 4), np.nan)
    if numbers:
        corners = np.stack([columns[name].to_numpy().astype(np.float64) for name in numbers], 1)
    if kind == "points":
        confidence = _encoded(columns["EstimatedYesNo"])
        state = _answers(file, confidence)
    else:
        confidence = _encoded(columns["Confidence"]) if "Confidence" in columns else (["1"], alike[1])
        state = _states(file, confidence, kind == "boxes")
        state[np.isin(source, [i for i, word in enumerate(sources) if fold(word) == "machine"])] = Label.UNKNOWN
    return Rows(
        file=file,
        image=image,
        class_=class_,
        state=state,
        confidence=confidence,
        source=source,
        sources=sources,
        corners=corners,
        boxed=kind == "boxes",
        pointed=kind == "points",
        flags={name: _ones(file, name, _encoded(columns[name])) for name in _FLAGS if name in columns},
    )


def describe(files: Sequence[Path]) -> dict[str, str]:
    """Return the name of each class id, from files of class descriptions; the first that names it is used.

    Raises:
        DataError: a row has no id or name, or a file has two names for one id.
    """
    names: dict[str, str] = {}
    for file in files:
        reader = csv.reader(io.StringIO(text_of(file), newline=""), strict=True)
        try:
            rows = [row for row in reader if row]
        except csv.Error as error:
            raise DataError(f"{file} row {reader.line_num}: broken quotes ({error}); close each quoted cell.") from None
        key, name, own = 0, 1, dict[str, str]()
        if rows and {"LabelName", "DisplayName"} <= {*rows[0]}:
            key, name = rows[0].index("LabelName"), rows[0].index("DisplayName")
            rows = rows[1:]
        for row in rows:
            if len(row) <= max(key, name) or not row[key].strip() or not row[name].strip():
                text = ",".join(row)[:60]
                raise DataError(f"{file}: {text!r} is not an id and a name, such as '/m/011k07,Tortoise'.")
            called = row[name].strip()
            if (first := own.setdefault(row[key].strip(), called)) != called:
                raise DataError(f"{file}: {row[key]!r} is called {first!r} and {called!r}; remove one of the rows.")
        names = own | names
    return names


def _columns(file: Path, kind: FileKind) -> dict[str, pa.ChunkedArray]:
    header = _header(file)
    words = ["ImageID", "LabelName", "Source", "Confidence", *_FLAGS]
    if kind in _NAMED:
        words = [*_NAMED[kind], *(("Source", "EstimatedYesNo") if kind == "points" else ())]
    numbers = {"boxes": _BOX, "points": _POINT}.get(kind, ())
    if twice := next((name for name in (*words, *numbers) if header.count(name) > 1), None):
        raise DataError(f"{file}: several columns are called {twice!r}; rename or remove one.")
    types = dict.fromkeys((name for name in words if name in header), _WORDS)
    types |= dict.fromkeys(numbers, pa.float64())
    try:
        table = pa.csv.read_csv(
            file,
            # Error messages have row numbers with one thread only.
            read_options=pa.csv.ReadOptions(use_threads=False),
            convert_options=pa.csv.ConvertOptions(include_columns=list(types), column_types=types),
        )
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: its rows do not fit its header ({error}). Fix that row; cells are separated by commas, and the "
            "text is UTF-8."
        ) from None
    return {name: table[name] for name in types}


def _encoded(column: pa.ChunkedArray) -> Encoded:
    one = column.unify_dictionaries().combine_chunks()
    if isinstance(one, pa.ChunkedArray):
        return [], np.zeros(0, np.int64)
    values = [value.strip() for value in one.dictionary.to_pylist()]
    return values, one.indices.to_numpy().astype(np.int64)


def _check_values(file: Path, name: str, column: Encoded, allowed: Callable[[str], bool], expected: str) -> None:
    """Raise an error for the first row with a value that is not allowed."""
    values, code = column
    for i, value in enumerate(values):
        if not allowed(value):
            row = int(np.argmax(code == i)) + 2
            raise DataError(f"{file} row {row}: {name} is {value!r}; expected {expected}.")


def _ones(file: Path, name: str, column: Encoded) -> NDArray[np.bool_]:
    """Return the rows in which a flag is 1; the other values are 0, -1 (unknown) and blank."""
    _check_values(file, name, column, {"1", "0", "-1", ""}.__contains__, "1, 0 or -1")
    values, code = column
    return np.isin(code, [i for i, value in enumerate(values) if value == "1"])


def _answers(file: Path, answers: Encoded) -> NDArray[np.int8]:
    """Return what answers about points state about the whole photo."""
    _check_values(file, "EstimatedYesNo", answers, lambda word: fold(word) in _ANSWERS, "yes, no or unsure")
    values, code = answers
    return np.array([_ANSWERS[fold(value)] for value in values], np.int8)[code]


def _states(file: Path, confidence: Encoded, boxed: bool) -> NDArray[np.int8]:
    """Return positive for 1, negative for 0 of labels, and unknown for other values."""
    expected = "a number from 0 to 1"
    _check_values(file, "the Confidence", confidence, lambda text: 0.0 <= number_of(text) <= 1.0, expected)
    values, code = confidence
    known = {1.0: Label.POSITIVE, 0.0: Label.UNKNOWN if boxed else Label.NEGATIVE}
    return np.array([known.get(number_of(value), Label.UNKNOWN) for value in values], np.int8)[code]
