"""Photos without labels, for pretraining: a label table without classes, from any folder or file."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fewtags.check.photo_findings import TINY
from fewtags.errors import DataError
from fewtags.formats.celeba import is_counted_list
from fewtags.formats.common import split_name, text_of
from fewtags.formats.folder_walk import Files, walk
from fewtags.formats.locate import extension, folder_of, is_photo, locate
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.formats.sheet import DELIMITERS
from fewtags.labels import ClassNames, Label
from fewtags.photos.scan import Tick, scan
from fewtags.shards.places import Url, is_shard, place
from fewtags.table.content import photo_paths, same_content
from fewtags.table.storage import is_label_table
from fewtags.table.table import Excluded, LabelTable, Notes, fact_table
from fewtags.text import counted, quoted, setting, some

MOST_COMPARED = 50_000
"""Copies are searched in sets of at most this many photos: in larger ones, too many files agree in size by chance."""

MOST_FOLDERS = 1000
"""Most folders whose names are taken as classes."""
_BLOCK = 16_384
_LISTS = (".txt", ".csv", ".tsv")
_MASKS = frozenset({"segmentationclass", "segmentationobject", "annotations", "mask", "masks", "stuffthingmaps"})


def unlabelled(
    path: Path | str,
    images: Path | str | None = None,
    *,
    format: str | None = None,
    options: ReadOptions | None = None,
    keep_labels: bool = False,
) -> LabelTable:
    """Find photos, and drop what is known about them.

    - A folder: all photos below it, sorted. Names of folders are not used; links are followed, except in circles;
      hidden files are skipped. (With `images` or a `format` other than "folder", it is read as annotations.)
    - A shard (a tar file, or a Parquet file with photos), a URL, or a folder without photos but with shards: the photos
      in them, in the order of the shards.
    - A text file with one path a line (.txt, .csv or .tsv): these photos, in its order, each once. A line without an
      extension is the only photo of that name. The first line is a header if the second is a photo and it is not.
    - Any file that `read` can read: the photos that it names. See there for the other arguments.

    The table has no classes, except with `keep_labels`: those of a label file, or the names of class folders. It has
    the folder of the photos, and its notes list what was left out.

    Raises:
        DataError: the path does not exist, has no photo or no known format, or photos are not where the file says.
    """
    path, folder = place(path), None if images is None else place(images)
    inside = isinstance(path, Url) or (is_shard(path.name) and path.is_file() and not is_label_table(path))
    if (inside or path.is_dir()) and folder is None and format in (None, "folder"):
        files = walk(path, shards=True)
        classes = _folder_classes(files.photos) if keep_labels else None
        table = _table(files.photos, path, files.notes + _folder_notes(path, files, classes))
        table = table if classes is None else _in_classes(table, classes)
    elif path.is_file() and format is None and (lines := _listed(path)):
        table = _from_list(path, folder, lines)
    else:
        labelled = read(path, images=folder, format=format, options=options)
        table = _kept_labels(path, labelled) if keep_labels else _without_labels(path, labelled)
    if not len(table):
        seen = [f"{reading.value} {reading.count:,}" for reading in table.notes.readings]
        seen += [f"{e.item}: {e.reason}" for e in table.notes.excluded[:3]]
        found = f"; there are {', '.join(seen)}" if seen else ""
        expected = "Expected a folder with photos in it, or a file that names them."
        raise DataError(f"{path}: there is no photo{found}. {expected}")
    if table.root is None:
        raise DataError(
            f"{path}: its photos, such as {quoted(table.images[0].as_py())}, are not beside it; pass the folder that "
            f"their names are relative to: {setting('images', 'FOLDER')}."
        )
    return table


def check_photos(table: LabelTable, *, decode: bool = True, progress: Tick | None = None) -> LabelTable:
    """Return the table without the photos that cannot be read; its notes list each of them with the reason.

    Decoding finds truncated photos, and copies if there are at most `MOST_COMPARED` photos. Without `decode`, only
    headers are read. `progress` is called from time to time with the number of photos read and to read.

    Raises:
        DataError: no photo is left, or the table has no folder.
    """
    if table.root is None:
        raise DataError("the table does not know where its photos are; set their folder with with_root(FOLDER).")
    excluded: list[Excluded] = []
    usable = np.ones(len(table), np.bool_)
    tiny = 0
    for start in range(0, len(table), _BLOCK):
        keys = table.images.slice(start, _BLOCK).to_pylist()
        tick = None if progress is None else lambda done, _, start=start: progress(start + done, len(table))
        seen = scan([str(table.root / key) for key in keys], decode=decode, progress=tick)
        tiny += int(((seen.width > 0) & (np.minimum(seen.width, seen.height) < TINY)).sum())
        for n in sorted(seen.unusable):
            usable[start + n] = False
            gone = n in seen.missing
            reason = "no such file" if gone else seen.unreadable[n]
            excluded.append(Excluded(keys[n], reason, str(table.root), "missing" if gone else "unreadable"))
    if not usable.any():
        example = f", for example {excluded[0].item}: {excluded[0].reason}" if excluded else ": there is none"
        raise DataError(f"no photo can be read{example}.")
    kept = table if usable.all() else table.subset(usable)
    messages = [f"{counted(len(excluded), 'photo')} left out: not readable, see the excluded list"] if excluded else []
    if decode and len(kept) <= MOST_COMPARED and (copies := same_content(photo_paths(kept))):
        extra = sum(map(len, copies)) - len(copies)
        messages.append(f"{counted(extra, 'photo is a copy', 'photos are copies')} of others, byte for byte, and kept")
    side = f"a side shorter than {TINY} pixels; check that this is intended"
    warnings = (f"{counted(tiny, 'photo has', 'photos have')} {side}",) if tiny else ()
    return replace(kept, notes=kept.notes + Notes((), tuple(excluded), tuple(messages), warnings))


def _table(keys: Sequence[str], root: Path | None, notes: Notes) -> LabelTable:
    none = np.zeros(0, np.int64)
    return LabelTable.build(keys, ClassNames.of(()), image=none, class_=none, state=none, root=root, notes=notes)


def _folder_classes(keys: Sequence[str]) -> list[str] | None:
    """Return the class folder of each photo: the first below the root, or below a folder of a split.

    None if photos lie outside of folders, if there are fewer than two folders, or if a folder has fewer than two photos
    on average.
    """
    places = [key.split("/")[:-1] for key in keys]
    names = ["/".join((parts[1:] if parts and split_name(parts[0]) else parts)[:1]) for parts in places]
    count = len(set(names))
    return names if "" not in names and 2 <= count <= min(len(keys) // 2, MOST_FOLDERS) else None


def _in_classes(table: LabelTable, names: Sequence[str]) -> LabelTable:
    """Return the table with one class for each photo, and all other classes absent."""
    known = sorted(set(names))
    places = {name: place for place, name in enumerate(known)}
    rows, column = np.arange(len(table)), np.array([places[name] for name in names])
    return LabelTable.build(
        table.images.to_pylist(),
        ClassNames.of(known),
        image=rows,
        class_=column,
        state=np.full(len(table), Label.POSITIVE, np.int8),
        complete_set=np.zeros(len(table), np.int16),
        complete_classes=np.ones((1, len(known)), np.bool_),
        root=table.root,
        notes=table.notes,
    )


def _folder_notes(root: Path, files: Files, classes: Sequence[str] | None = None) -> Notes:
    """Return how a tree of photos was read, and what may be unexpected."""
    parents = Counter(key.rpartition("/")[0] for key in files.photos)
    tops: dict[str, list[str]] = {}
    masks: Counter[str] = Counter()
    for parent, count in parents.items():
        parts = parent.split("/")
        tops.setdefault(split_name(parts[0]), []).append(parts[0])
        masks.update({part: count for part in parts if part.casefold() in _MASKS})
    uses = "are not used"
    if classes is not None:
        uses += f" for training, only to log how many nearest photos share one of {len(set(classes)):,} names"
    inside = f" in {counted(len(parents), 'folder')}; folder names {uses}" if parents.keys() - {""} else ""
    messages = [f"{root}: {counted(len(files.photos), 'photo')}{inside}"]
    others = sorted({name for split in ("val", "test") for name in tops.get(split, [])})
    if others and "train" in tops:
        train = root / tops["train"][0]
        messages.append(f"{root}: photos in {some(others)} are used, too; to leave them out, pass {train}")
    warnings = tuple(
        f"{root}: {counted(count, 'picture')} in folders called {name!r} may be masks and not photos; move that folder "
        "out if they are."
        for name, count in sorted(masks.items())
    )
    return Notes((), (), tuple(messages), warnings)


def _listed(path: Path) -> list[str]:
    """Return the stripped lines of a text file that lists photos; none if it is of another kind."""
    if (ending := extension(path.name)) not in _LISTS or is_counted_list(path):
        return []
    lines = [stripped for line in io.StringIO(text_of(path), newline=None) if (stripped := line.strip())]
    if not lines:
        raise DataError(f"{path}: the file is empty; expected the path of a photo in each line.")
    cells = any(mark in lines[0] for mark in DELIMITERS)
    return [] if cells and not (ending == ".txt" and is_photo(lines[0])) else lines


def _from_list(path: Path, images: Path | None, lines: Sequence[str]) -> LabelTable:
    messages = [f"{path.name}: read as a list, one photo a line"]
    if not is_photo(lines[0]) and any(map(is_photo, lines[1:2])):
        messages.append(f"{path.name}: its first line, {quoted(lines[0])}, is read as a header")
        lines = lines[1:]
    if repeats := len(lines) - len(set(lines)):
        messages.append(f"{path.name}: {counted(repeats, 'line repeats', 'lines repeat')} another one; each photo once")
    found = locate(lines, file=path, images=images, beside=[folder_of(path)])
    return _table(found.keys, found.root, Notes(messages=tuple(messages)) + found.notes)


def _kept_labels(path: Path, table: LabelTable) -> LabelTable:
    """Return the table with the notes of `_without_labels`, except that its labels are used for a diagnostic."""
    bare, old = _without_labels(path, table).notes, "are not used"
    uses = "are not used for training, only to log how many nearest photos share a class"
    messages = tuple(line.replace(old, uses) if line.endswith(old) else line for line in bare.messages)
    return replace(table, notes=replace(bare, messages=messages))


def _without_labels(path: Path, table: LabelTable) -> LabelTable:
    """Return the table without its labels and without the notes about them."""
    none = np.zeros(0, np.int64)
    messages = [*table.notes.messages, f"{path.name}: its labels ({len(table.classes):,} classes) are not used"]
    if table.split_names is not None:
        sizes = Counter(name or "no split" for name in table.split_names.to_pylist())
        text = ", ".join(f"{name} {count:,}" for name, count in sizes.items())
        messages.append(f"{path.name}: names splits ({text}); the photos of all of them are used")
    return replace(
        table,
        classes=ClassNames.of(()),
        facts=fact_table(none, none, none),
        complete_set=np.full(len(table), -1, np.int16),
        complete_classes=np.zeros((0, 0), np.bool_),
        notes=replace(
            table.notes,
            readings=(),
            excluded=tuple(e for e in table.notes.excluded if e.kind not in ("bad-place", "unread-place")),
            messages=tuple(messages),
        ),
    )
