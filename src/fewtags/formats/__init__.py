"""Readers of annotation formats, one module each, and `FORMATS`, the only list of them.

Detection, `read`, the setting `data.format`, help and error messages derive from `FORMATS`. A new reader is a module
and an entry here, see docs/write_a_reader.md. Importing this package imports no reader.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from fewtags.errors import ConfigError, DataError
from fewtags.text import suggest

if TYPE_CHECKING:
    from fewtags.formats.options import ReadOptions
    from fewtags.table.table import LabelTable

    FormatName = str
    Reader = Callable[[Path, Path | None, ReadOptions | None], LabelTable]


FOLDER = "/"
"""The ending of paths that are folders."""


@final
@dataclass(frozen=True)
class Format:
    """An annotation format.

    The module `fewtags.formats.NAME` has two functions: `read_NAME(path, images, options)` returns a `LabelTable`, and
    `recognise(path)` returns why a path is of this format, or "" if it is not. It is called for paths with one of the
    `endings`. A folder that no format recognises is read as class folders.

    Attributes:
        name: value of the setting `data.format`.
        title: its usual name, for help.
        expected: what to pass, for error messages.
        endings: extensions of a single file in lower case, and `FOLDER` if folders are read.
        options: names of the `ReadOptions` that have an effect.
    """

    name: str
    title: str
    expected: str
    endings: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def read(self) -> Reader:
        """The reader; imports its module."""
        reader: Reader = getattr(import_module(f"{__name__}.{self.name}"), f"read_{self.name}")
        return reader

    @property
    def recognise(self) -> Callable[[Path], str]:
        """The function that recognises the format; imports its module."""
        recognise: Callable[[Path], str] = import_module(f"{__name__}.{self.name}").recognise
        return recognise


_PLACES = ("places", "point_seed")
_CSV = (
    *(
        "complete",
        "blank",
        "uncertain",
        "none_folder",
        "absent_prefix",
        "image_column",
        "columns",
        "delimiter",
        "tags_separator",
    ),
    *("points", "positive_words", "negative_words", "unknown_words"),
    *_PLACES,
)
_NEGATIVES = ("none_folder", "absent_prefix")
_TASKS = ("complete", *_NEGATIVES, "image_column", "columns")
_VOC = "a VOC folder (with Annotations/ or ImageSets/)"

FORMATS = {
    f.name: f
    for f in (
        Format("folder", "class folders", "a folder of class folders", (FOLDER,), ("complete", *_NEGATIVES)),
        Format("csv", "CSV", "a .csv, .tsv or .txt table", (".csv", ".tsv", ".txt"), _CSV),
        Format(
            "coco",
            "COCO",
            "a COCO .json",
            (".json", FOLDER),
            ("complete", *_NEGATIVES, "crowd", *_PLACES),
        ),
        Format("voc", "VOC", _VOC, (FOLDER,), ("complete", *_NEGATIVES, "difficult", *_PLACES)),
        Format(
            "yolo", "YOLO", "a YOLO folder or data.yaml", (".yaml", ".yml", FOLDER), ("complete", *_NEGATIVES, *_PLACES)
        ),
        Format(
            "openimages",
            "OpenImages",
            "OpenImages .csv files",
            (".csv", FOLDER),
            ("complete", *_NEGATIVES, "crowd", *_PLACES),
        ),
        Format("labelstudio", "Label Studio", "a Label Studio .json", (".json",), (*_TASKS, *_PLACES)),
        Format("cvat", "CVAT", "a CVAT .xml", (".xml", FOLDER), ("complete", *_NEGATIVES, *_PLACES)),
        Format(
            "datumaro",
            "Datumaro",
            "a Datumaro .json or its folder",
            (".json", FOLDER),
            ("complete", *_NEGATIVES, "crowd", *_PLACES),
        ),
        Format(
            "labelme",
            "LabelMe",
            "a folder of LabelMe .json files",
            (".json", FOLDER),
            ("complete", *_NEGATIVES, *_PLACES),
        ),
        Format(
            "metadata",
            "metadata.jsonl",
            "a metadata.jsonl of Hugging Face or its folder",
            (".jsonl", FOLDER),
            tuple(name for name in _CSV if name not in ("delimiter", "points")),
        ),
        Format(
            "tagfiles",
            "text files of tags",
            "a folder of photos and .txt files with their tags",
            (FOLDER,),
            ("complete", "blank", *_NEGATIVES, "tags_separator"),
        ),
        Format(
            "shards",
            "shards with labels",
            "a .tar or .parquet file of photos, or a folder of them",
            (".tar", ".parquet", FOLDER),
            tuple(name for name in _CSV if name not in ("delimiter", "points", "image_column")),
        ),
        Format("hill", "Hill lists", "a .txt list of photos and class numbers", (".txt",), ("complete", *_NEGATIVES)),
        Format("real", "ImageNet ReaL", "real.json of ImageNet ReaL", (".json",), ("complete", *_NEGATIVES)),
        Format("nuswide", "NUS-WIDE", "a folder of NUS-WIDE", (FOLDER,), _NEGATIVES),
        Format("cub", "CUB attributes", "a folder of CUB-200-2011", (FOLDER,), _NEGATIVES),
        Format("parquet", "a Parquet label table", "a .parquet label table", (".parquet",)),
    )
}
"""Every format that can be read, by name."""

OUTLINED = frozenset({"coco", "voc", "yolo", "labelstudio", "cvat", "datumaro", "labelme"})
"""Formats whose objects can have outlines."""

if not TYPE_CHECKING:
    FormatName = Literal[tuple(FORMATS)]


def list_formats(attribute: Literal["title", "expected"]) -> str:
    """Return the titles of all formats, or what to pass for them, as a list in words.

    >>> list_formats("title").split(", ")[-2:]
    ['NUS-WIDE', 'CUB attributes or a Parquet label table']
    """
    words: list[str] = [getattr(format, attribute) for format in FORMATS.values()]
    return f"{', '.join(words[:-1])} or {words[-1]}"


def check_path(path: Path, given: str | None = None) -> None:
    """Check a path with labels and the format that the user gave, if any, without the import of a reader.

    Raises:
        DataError: the path does not exist, or is a folder although the format is read from files, or the reverse.
        ConfigError: the format is not known.
    """
    if given is not None and given not in FORMATS:
        raise ConfigError(f"format {given!r} is not known{suggest(given, FORMATS)}; known: {', '.join(FORMATS)}.")
    if not path.exists():
        parent = path.absolute().parent
        names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
        close = difflib.get_close_matches(path.name, names, n=1)
        hint = f" (did you mean {str(path.with_name(close[0]))!r}?)" if close else ""
        raise DataError(f"{str(path)!r} does not exist{hint}; expected {list_formats('expected')}.")
    if given is not None and path.is_dir() and FOLDER not in FORMATS[given].endings:
        raise DataError(f"{path}: format {given!r} is read from a file, not a folder.")
    if given is not None and not path.is_dir() and FORMATS[given].endings == (FOLDER,):
        raise DataError(f"{path}: format {given!r} is read from a folder, not a file.")
