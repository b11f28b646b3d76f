"""Read labels of any known format into a label table, and detect the format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fewtags.errors import DataError
from fewtags.formats import FOLDER, FORMATS, check_path, list_formats
from fewtags.formats.class_names import name_classes
from fewtags.formats.locate import extension
from fewtags.formats.options import ReadOptions
from fewtags.formats.sheet import SPREADSHEET
from fewtags.shards.places import place
from fewtags.table.table import LabelTable, Notes
from fewtags.table.vocabulary import rename_as_asked
from fewtags.text import setting

__all__ = ["ReadOptions", "detect", "read"]


def read(
    path: Path | str, *, images: Path | str | None = None, format: str | None = None, options: ReadOptions | None = None
) -> LabelTable:
    """Read labels into a table. Blank cells are unknown, and nothing is left out without a note.

    The notes of the table list how each value was read, with counts, and what was left out and why.

    Args:
        path: a file or folder with labels, in one of `fewtags.formats.FORMATS`.
        images: folder that the image names are relative to; None looks in the usual places beside the file.
        format: name of the format; None detects it, and a message gives the reason.
        options: how to read the labels.

    Raises:
        DataError: the path does not exist, has the marks of no or of several formats, or its contents are wrong.
        ConfigError: the format is not known.
    """
    path, options = Path(path), options or ReadOptions()
    name, why = detect(path, format)
    table = FORMATS[name].read(path, None if images is None else place(images), options)
    if format is None:
        first = Notes(messages=(f"{path.resolve().name}: read as {name}, {why}",))
        table = replace(table, notes=first + table.notes)
    return finished(table, name, options)


def finished(table: LabelTable, name: str, options: ReadOptions) -> LabelTable:
    """Return a table that a reader made, with the names that the options ask for.

    `name` is that of the format; options that it does not use are reported.
    """
    if unused := options.without_effect({*FORMATS[name].options, "rename", "names"}):
        table = table.noting(f"{', '.join(unused)}: no effect on the format {name!r}")
    table = rename_as_asked(table, options.rename)
    return table if options.names is None else name_classes({"": table}, options.names)[""]


def detect(path: Path, given: str | None = None) -> tuple[str, str]:
    """Return the name of a path's format, and the reason. A `given` format is only checked.

    Raises:
        DataError: the path has the marks of no or of several formats; or see `fewtags.formats.check_path`.
        ConfigError: `given` is not a known format.
    """
    check_path(path, given)
    if given is not None:
        return given, "as given"
    expected = f"expected {list_formats('expected')}"
    ending = FOLDER if path.is_dir() else extension(path.name)
    asked = [f for name, f in FORMATS.items() if name != "folder" and ending in f.endings]
    if ending in (".xlsx", ".xlsm", ".xls", ".ods", ".numbers"):
        raise DataError(f"{path}: {SPREADSHEET}")
    if not asked:
        what = f"no known format has the ending {ending!r}" if ending else "the file name has no ending"
        raise DataError(f"{path}: {what}; {expected}, or pass {setting('format')}.")
    marks = {f.name: why for f in asked if (why := f.recognise(path))}
    if len(marks) > 1:
        found, first = " and ".join(f"{name} ({why})" for name, why in marks.items()), next(iter(marks))
        raise DataError(f"{path} could be {found}; pass the one to read, as in {setting('format', first)}.")
    if not marks and ending != FOLDER:
        names = " or ".join(f.name for f in asked)
        raise DataError(f"{path}: not recognised as {names}; {expected}, or pass {setting('format')}.")
    return next(iter(marks.items()), ("folder", "it contains no label files of a known format"))
