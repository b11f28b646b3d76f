"""Read several label files into one table; each is a source with a name, a format and a coverage of its own."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from fewtags.errors import ConfigError, DataError
from fewtags.formats.class_names import name_classes
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import detect, read
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable
from fewtags.text import counted, setting, some, suggest


def source_names(sources: Sequence[str | Path]) -> list[str]:
    """Return a name for each path: its shortest end that no other path has.

    >>> source_names(["cats/train.csv", "dogs/train.csv", "birds.json"])
    ['cats/train.csv', 'dogs/train.csv', 'birds.json']

    Raises:
        DataError: a path is given twice.
    """
    parts = [Path(source).resolve().parts for source in sources]
    names = []
    for source, own in zip(sources, parts, strict=True):
        if parts.count(own) > 1:
            raise DataError(f"{source} is given twice; give each file once.")
        others = [other for other in parts if other != own]
        length = next(
            n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in others) or n == len(own)
        )
        names.append("/".join(own[-length:]))
    return names


def covered_classes(
    words: Sequence[str], paths: Sequence[str | Path], key: str = "data.covers"
) -> dict[str, tuple[str, ...]]:
    """Return the classes that sources cover, by source, from words "SOURCE=CLASS,CLASS"; see `find_source`.

    Words about other sources than `paths` are left out. A class with a comma in its name is written in quotes.

    >>> covered_classes(["a.csv=cat,dog", 'b.json="cat, big"'], ["a.csv", "b.json"])
    {'a.csv': ('cat', 'dog'), 'b.json': ('cat, big',)}

    Raises:
        ConfigError: a word has no "=" or no class.
    """
    covers: dict[str, tuple[str, ...]] = {}
    for word in words:
        # A path may contain "=" itself.
        cuts = [(word[:i], word[i + 1 :]) for i, c in enumerate(word) if c == "="]
        if not cuts:
            raise ConfigError(f"{key}: {word!r} is not SOURCE=CLASS,CLASS; write it as in {key}='a.csv=cat,dog'.")
        found = [(name, rest) for start, rest in cuts if (name := find_source(start, paths)) is not None]
        if not found:
            continue
        name, rest = found[0]
        classes = tuple(c for row in csv.reader([rest], skipinitialspace=True) for c in map(str.strip, row) if c)
        if not classes:
            raise ConfigError(f"{key}: {word!r} names no class; write it as in {key}='{name}=cat,dog'.")
        covers[name] = (*covers.get(name, ()), *classes)
    return covers


def find_source(word: str, paths: Sequence[str | Path]) -> str | None:
    """Return the name of the source that a word means, by its path or by the end of it; None if none does.

    Raises:
        ConfigError: the word means several sources.
    """
    word = word.strip()
    names = source_names(paths)
    same = [name for name, path in zip(names, paths, strict=True) if word == str(path)]
    ends = [
        name
        for name, path in zip(names, paths, strict=True)
        if word and Path(path).resolve().parts[-len(Path(word).parts) :] == Path(word).parts
    ]
    found = same or ends
    if len(found) > 1:
        raise ConfigError(f"{word!r} may be {some(found)}; write more of the path.")
    return found[0] if found else None


def refuse_unknown_sources(words: Sequence[str], paths: Sequence[str], key: str) -> None:
    """Raise a ConfigError if a word of a setting, SOURCE or SOURCE=..., names none of the label files."""
    for word in words:
        starts = [word, *(word[:i] for i, c in enumerate(word) if c == "=")]
        if not any(find_source(start, [path]) for start in starts for path in paths):
            shown = word.partition("=")[0] if "=" in word else word
            hint = suggest(shown, [name for path in paths for name in (path, Path(path).name)])
            raise ConfigError(
                f"{key}: {shown!r} is not one of the label files{hint}; there are {', '.join(map(repr, paths))}."
            )


def read_sources(
    paths: Sequence[str | Path],
    *,
    images: Sequence[str | Path] = (),
    format: str | None = None,
    options: ReadOptions | None = None,
    covers: Sequence[str] = (),
    complete: Sequence[str] = (),
) -> LabelTable:
    """Read label files, each by its own format, and merge them; see `merge` for what becomes of their labels.

    A source covers the classes that it names: a class that it does not cover is unknown in its images, even where they
    are completely annotated.

    Args:
        paths: the files or folders.
        images: the folder of the photos of all files, or one folder for each file, in their order.
        format: name of the format of all files; None detects each.
        options: how to read them.
        covers: words "SOURCE=CLASS,CLASS" for sources that cover other classes than those they name.
        complete: sources in which the classes that they cover and do not name are absent.

    Raises:
        DataError: a file cannot be used, or the files do not fit together.
        ConfigError: a setting names none of the files.
    """
    options = options or ReadOptions()
    names_file = options.names
    options = options.model_copy(update={"names": None})  # of all files together
    if len(images) not in (0, 1, len(paths)):
        flag = setting("images", "FOLDER")
        raise ConfigError(
            f"there are {len(images)} folders of photos for {counted(len(paths), 'label file')}; give {flag} once for "
            "all files, or once for each file in their order."
        )
    closed = {find_source(word, paths) for word in complete}
    names = source_names(paths)
    tables: dict[str, LabelTable] = {}
    own: dict[str, ReadOptions] = {}
    for n, (name, path) in enumerate(zip(names, paths, strict=True)):
        folder = images[n] if len(images) == len(paths) else images[0] if images else None
        if len(paths) > 1 and len(images) == 1 and detect(Path(path), format)[0] == "folder":
            folder = None  # class folders contain their photos
        own[name] = options.model_copy(update={"complete": options.complete or name in closed})
        tables[name] = read(path, images=folder, format=format, options=own[name])
    wanted = covered_classes(covers, paths)
    if len(tables) == 1 and not wanted:
        whole = tables[names[0]]
    else:
        whole = merge(_with_folders(tables, paths, format, own), covers=wanted)
    return whole if names_file is None else name_classes({"": whole}, names_file)[""]


def _with_folders(
    tables: Mapping[str, LabelTable], paths: Sequence[str | Path], format: str | None, own: Mapping[str, ReadOptions]
) -> dict[str, LabelTable]:
    """Look for photos that were not found beside their file in the only folder of the photos of the other files."""
    folders = list(dict.fromkeys(table.root.resolve() for table in tables.values() if table.root is not None))
    out = dict(tables)
    for (name, table), path in zip(tables.items(), paths, strict=True):
        if table.root is not None or not folders:
            continue
        if len(folders) == 1:
            try:
                found = read(path, images=folders[0], format=format, options=own[name])
            except DataError:
                found = table
            if found.root is not None:
                out[name] = found.noting(f"{name}: the photos are looked for in {folders[0]}, as those of other files")
                continue
        raise DataError(
            f"{path}: the photos are not found beside the file, and those of the other files are in "
            f"{some([*map(str, folders)])}. Give a folder of photos for each file, in the order of the files: "
            f"{setting('images', 'FOLDER')}, once for each."
        )
    return out


def merge_given(given: Mapping[str, LabelTable] | Sequence[LabelTable]) -> LabelTable:
    """Merge tables that were read one by one; those of a sequence are named by their file, or else by their number."""
    if isinstance(given, Mapping):
        return merge(given)
    named: dict[str, LabelTable] = {}
    for number, table in enumerate(given, 1):
        marks = {mark for mark in table.facts["source"].cast("string").unique().to_pylist() if mark}
        name = next(iter(marks)) if len(marks) == 1 else str(number)
        named[name if name not in named else str(number)] = table
    return merge(named)
