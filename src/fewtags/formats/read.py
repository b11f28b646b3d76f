"""Read labels in any known form into a label table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fewtags.errors import DataError
from fewtags.formats.coco import read_coco
from fewtags.formats.common import ReadOptions
from fewtags.formats.csv import read_csv
from fewtags.formats.cvat import read_cvat
from fewtags.formats.detect import Format, detect
from fewtags.formats.folder import read_folder
from fewtags.formats.labelstudio import read_labelstudio
from fewtags.formats.openimages import read_openimages
from fewtags.formats.voc import read_voc
from fewtags.formats.yolo import read_yolo
from fewtags.table.storage import load
from fewtags.table.table import LabelTable, Notes

__all__ = ["Format", "ReadOptions", "read"]

_USED: dict[Format, tuple[str, ...]] = {
    "folder": ("complete", "none_folder"),
    "csv": (
        *("complete", "blank", "uncertain", "none_folder", "image_column", "columns", "delimiter", "tags_separator"),
        *("positive_words", "negative_words", "unknown_words", "points"),
    ),
    "coco": ("complete", "crowd", "places", "point_seed"),
    "voc": ("complete", "difficult"),
    "yolo": ("complete",),
    "openimages": ("complete", "crowd"),
    "labelstudio": ("complete", "none_folder", "image_column", "columns"),
    "cvat": ("complete", "none_folder"),
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
        path: a folder of class folders, a VOC, YOLO or OpenImages folder, a CSV or TSV, a COCO or Label Studio JSON, a
            CVAT XML, a YOLO YAML, or a Parquet label table.
        images: folder that the image names in a file are relative to; None looks in the usual places beside the file.
        format: None tells it from the path and what is there, and says why.
        options: how to read it.

    Raises:
        DataError: no such file, no known form or the marks of several, or contents that are not what they should be.
        ConfigError: `format` is not one of the known ones.
    """
    path, options = Path(path), options or ReadOptions()
    folder = None if images is None else Path(images)
    kind, why = detect(path, format)
    if kind == "folder" and folder is not None and folder.resolve() != path.resolve():
        raise DataError(
            f"{path} is read as class folders, which hold the photos themselves: leave --images out, or name the file "
            "with the labels in its place."
        )
    table = _read(path, folder, kind, options)
    if format is None:
        told = Notes(messages=(f"{path.resolve().name}: read as {kind}, {why}",))
        table = replace(table, notes=told + table.notes)
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
        case "yolo":
            return read_yolo(path, images, options)
        case "openimages":
            return read_openimages(path, images, options)
        case "labelstudio":
            return read_labelstudio(path, images, options)
        case "cvat":
            return read_cvat(path, images, options)
        case "parquet":
            return load(path, root=images)
