"""Tags in text files beside photos: photo.jpg and photo.txt, as training tools for picture generators use them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import is_hidden, is_split, text_of
from fewtags.formats.csv import read_table
from fewtags.formats.csv_layout import Layout
from fewtags.formats.csv_split import Splits
from fewtags.formats.folder_walk import walk
from fewtags.formats.locate import is_photo
from fewtags.formats.options import ReadOptions
from fewtags.formats.sheet import Sheet
from fewtags.formats.stated import count_messages, value_readings
from fewtags.formats.texts import kind_of
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, flag, setting, some

_MOST_PHOTOS, _MOST_TEXTS = 500, 50
_LARGEST = 1 << 20
_REPEATS = re.compile(r"\d+_.+")
"""A folder whose photos a training tool repeats, such as 10_cat."""


def recognise(path: Path) -> str:
    """Return why a folder is of this format, or "" if it is not.

    Raises:
        DataError: the photos have tags, and are in folders that may be classes.
    """
    photos, pairs = _sample(path)
    if not pairs or 2 * len(pairs) < photos or kind_of([_start(file) for file in pairs[:_MOST_TEXTS]]) != "tags":
        return ""
    tops = {file.relative_to(path).parts[0] for file in pairs if file.parent != path}
    if len(tops) > 1 and not all(is_split(top) or _REPEATS.fullmatch(top) for top in tops):
        classes = some(sorted(tops))
        as_tags, as_classes = setting("format", "tagfiles"), setting("format", "folder")
        raise DataError(
            f"{path}: its photos have text files with tags, and are in folders that may be classes ({classes}). Pass "
            f"{as_tags} to read the tags, or {as_classes} to read the folders as classes."
        )
    return f"text files with tags beside photos, such as {pairs[0].relative_to(path).as_posix()}"


def _sample(path: Path) -> tuple[int, list[Path]]:
    """Return how many photos were seen, and the text files of the same name beside them."""
    photos, pairs = 0, []
    for folder, inside, files in os.walk(path):
        inside[:] = sorted(name for name in inside if not is_hidden(name))
        names = {*files}
        for name in sorted(name for name in files if is_photo(name) and not is_hidden(name)):
            photos += 1
            pairs += [Path(folder, text) for text in _texts_of(name) if text in names]
        if photos >= _MOST_PHOTOS:
            break
    return photos, pairs


def _texts_of(name: str) -> list[str]:
    """Return the possible names of the text file of a photo."""
    stem = name.rpartition(".")[0]
    return [f"{stem}.txt", f"{stem}.TXT"]


def _start(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(1 << 16).decode("utf-8-sig", "ignore")


def read_tagfiles(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a folder of photos and text files of the same name with their tags.

    - Tags are separated by commas and line breaks, or by `tags_separator`. Without any comma, they are separated as in
      a column of tags of a CSV. A backslash before a bracket is dropped.
    - Other tags than those of a photo are unknown, or absent if `complete`. A blank file states nothing; with
      `complete`, or `blank="negative"`, it states that the photo shows none of the classes.
    - Photos without a text file are images with nothing known, also with `complete`.
    - Folders called train, val or test are splits. Names of other folders are not used. Hidden files are skipped.
    - Classes are sorted by name, images by path.

    Raises:
        DataError: no photo has a text file, the files have numbers or captions instead of tags, or are not UTF-8.
    """
    options = options or ReadOptions()
    if images is not None and images.resolve() != path.resolve():
        raise DataError(f"{path} has the photos beside their text files: leave {flag('images')} out.")
    files = walk(path)
    texts = [_text(path, key) if key.rpartition(".")[0] in files.texts else None for key in files.photos]
    filled = [text for text in texts if text is not None and text.strip()]
    if not filled:
        raise DataError(f"{path}: no photo has a text file of the same name with tags in it, such as a.jpg and a.txt.")
    if kind_of(filled) == "numbers":
        raise DataError(
            f"{path}: the text files have numbers, as labels of YOLO; add data.yaml or classes.txt with the names of "
            f"the classes, and pass {setting('format', 'yolo')}."
        )
    if options.tags_separator is None and any("," in text for text in filled):
        options = options.model_copy(update={"tags_separator": ","}) if kind_of(filled) == "tags" else options
    has = np.array([text is not None for text in texts], np.bool_)
    photos = {key.rpartition(".")[0] for key in files.photos}
    orphans = sorted(files.texts - photos)
    where = path.resolve().name
    excluded = [Excluded(f"{key}.txt", "no photo beside it has its name", str(path)) for key in orphans]
    tops = {key: is_split(key.partition("/")[0]) if "/" in key else "" for key in files.photos}
    splits = [tops[key] for key in files.photos]
    counts = Counter(splits)
    read = value_readings(where, ((f"folder of {s}", f"split {s!r}", n) for s, n in sorted(counts.items()) if s))
    sheet = Sheet(
        path=path,
        delimiter="",
        header=("photo", "text files"),
        columns=(files.photos, [text or "" for text in texts]),
        lines=np.ones(len(texts), np.int64),
        places=tuple(f"{path}/{key.rpartition('.')[0]}.txt" for key in files.photos),
    )
    layout = Layout(
        form="tags",
        image=0,
        labels=(1,),
        splits=Splits((), splits, read) if any(splits) else None,
        messages=(
            f"{where}: {counted(int(has.sum()), 'photo has', 'photos have')} a text file with tags, "
            f"{counted(int((~has).sum()), 'has', 'have')} none and nothing is known about "
            f"{'it' if (~has).sum() == 1 else 'them'}",
            *count_messages(
                path,
                [
                    (
                        *(len(orphans), "text file has no photo, see the excluded list"),
                        "text files have no photo, see the excluded list",
                    )
                ],
            ),
        ),
    )
    table = read_table(sheet, layout, path, options, [path], annotated=has)
    kept = replace(files.notes, readings=tuple(r for r in files.notes.readings if r.value != "*.txt"))
    return replace(table, notes=table.notes + kept + Notes(excluded=tuple(excluded)))


def _text(path: Path, key: str) -> str:
    """Return the contents of the text file of a photo."""
    names: Sequence[str] = _texts_of(key)
    file = next(path / name for name in names if (path / name).is_file())
    return re.sub(r"\\([()\[\]])", r"\1", text_of(file, _LARGEST, "a file of tags"))
