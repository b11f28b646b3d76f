"""Label tables from pandas data frames, which are read as the CSV that they would be saved to."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeGuard

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.table.table import LabelTable


def is_frame(value: object) -> TypeGuard[Any]:
    """Whether a value is a pandas DataFrame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def from_pandas(frame: Any, *, images: Path | str | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Make a label table from a DataFrame with a column of paths, and class columns or a column of tags.

    It is read as a CSV: 1, 0 and NaN are positive, negative and unknown, see the guide. An index with names of images
    is a column, too.

    Args:
        frame: the DataFrame.
        images: folder that the paths are relative to; None for the working directory, or the common folder of absolute
            paths.
        options: how to read the labels.

    Raises:
        DataError: it is not a DataFrame, or its content cannot be read.
    """
    if not is_frame(frame):
        raise DataError(f"from_pandas got an object of the type {type(frame).__name__}; expected a pandas DataFrame.")
    numbered = frame.index.dtype.kind in "iu" and frame.index.name is None
    shown = frame if numbered else frame.reset_index(names=frame.index.name or "image")
    if images is None:
        shown, images = _with_common_folder(shown)
    with tempfile.TemporaryDirectory(prefix="fewtags-") as folder:
        path = Path(folder) / "DataFrame.csv"
        shown.to_csv(path, index=False)
        try:
            return read(path, images=images, format="csv", options=options)
        except DataError as error:
            raise DataError(str(error).replace(str(path), "DataFrame")) from None


def _with_common_folder(frame: Any) -> tuple[Any, Path]:
    """Return a frame whose absolute paths are relative to their common folder, and this folder."""
    for column in frame.columns:
        values = [*frame[column]]
        if values and all(isinstance(value, str | Path) and Path(value).is_absolute() for value in values):
            folder = Path(os.path.commonpath([str(Path(value).parent) for value in values]))
            return frame.assign(**{str(column): [str(Path(value).relative_to(folder)) for value in values]}), folder
    return frame, Path.cwd()
