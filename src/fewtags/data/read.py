"""Read labels in any known form into a label table."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal, get_args

from fewtags.data.formats.coco import read_coco
from fewtags.data.formats.common import ReadOptions
from fewtags.data.formats.folder import read_folder
from fewtags.data.formats.table_csv import read_csv
from fewtags.data.formats.voc import read_voc
from fewtags.data.storage import load
from fewtags.data.table import LabelTable
from fewtags.errors import ConfigError, DataError
from fewtags.labels import suggest

__all__ = ["Format", "ReadOptions", "read"]

Format = Literal["folder", "csv", "coco", "voc", "parquet"]

_ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".json": "coco",
    ".parquet": "parquet",
}
_EXPECTED = (
    "expected a folder of class folders, a VOC folder (with Annotations/ or ImageSets/), a .csv, .tsv or .txt table, "
    "a COCO .json, or a .parquet label table"
)
_USED: dict[Format, tuple[str, ...]] = {
    "folder": ("complete", "none_folder"),
    "csv": (
        *("complete", "blank", "uncertain", "none_folder", "image_column", "columns", "delimiter", "tags_separator"),
        *("positive_words", "negative_words", "unknown_words"),
    ),
    "coco": ("complete", "crowd"),
    "voc": ("complete", "difficult"),
    "parquet": (),
}


def read(
    path: Path | str,
    *,
    images: Path | str | None = None,
    format: Format | None = None,
    options: ReadOptions | None = None,
) -> LabelTable:
    """Read labels into a table. Blank is unknown, and nothing is left out without a note.

    The notes of the table hold how every value was understood, with counts, and what was left out and why.

    Args:
        path: a folder of class folders, a VOC folder, a CSV or TSV, a COCO JSON, or a Parquet label table.
        images: folder that the image names in a file are relative to; None looks in the usual places beside the file.
        format: None tells it from the path.
        options: how to read it.

    Raises:
        DataError: no such file, no known form, or contents that are not what they should be.
        ConfigError: `format` is not one of the known ones.
    """
    path, options = Path(path), options or ReadOptions()
    folder = None if images is None else Path(images)
    kind = _format(path, format)
    if kind == "folder" and folder is not None and folder.resolve() != path.resolve():
        raise DataError(
            f"{path} is read as class folders, which hold the photos themselves: leave images out, or pass the file "
            "with the labels."
        )
    table = _read(path, folder, kind, options)
    if unseen := options.without_effect(_USED[kind]):
        table = table.noting(f"{', '.join(unseen)}: no effect on the format {kind!r}")
    return table


def _read(path: Path, images: Path | None, kind: Format, options: ReadOptions) -> LabelTable:
    match kind:
        case "folder":
            return read_folder(path, options)
        case "csv":
            return read_csv(path, images, options)
        case "coco":
            return read_coco(path, images, options)
        case "voc":
            return read_voc(path, images, options)
        case "parquet":
            return load(path, root=images)


def _format(path: Path, format: str | None) -> Format:
    known: dict[str, Format] = {name: name for name in get_args(Format)}
    if format is not None and format not in known:
        raise ConfigError(f"format {format!r} is not known{suggest(format, known)}; known: {', '.join(known)}.")
    if not path.exists():
        raise DataError(f"{str(path)!r} does not exist{_neighbour(path)}; {_EXPECTED}.")
    if format is not None:
        if path.is_dir() != (format in ("folder", "voc")):
            raise DataError(f"{path} is {'a folder' if path.is_dir() else 'a file'}, which format {format!r} is not.")
        return known[format]
    if path.is_dir():
        voc = path.name == "Annotations" or any((path / part).is_dir() for part in ("Annotations", "ImageSets"))
        return "voc" if voc else "folder"
    if (ending := path.suffix.lower()) not in _ENDINGS:
        raise DataError(f"{path}: the ending {ending!r} tells no known format; {_EXPECTED}, or pass format=.")
    return _ENDINGS[ending]


def _neighbour(path: Path) -> str:
    folder = path.absolute().parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f" (did you mean {str(path.with_name(close[0]))!r}?)" if close else ""
