"""Class folders: the folder of a photo is its class; a photo in several folders has several classes."""

from __future__ import annotations

import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, is_split, is_utf8, joined_names
from fewtags.formats.locate import extension, is_photo
from fewtags.formats.negatives import name_warnings
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import value_readings
from fewtags.formats.texts import kind_of
from fewtags.labels import ClassNames, Label
from fewtags.photos.listing import Listing, list_shards, list_url, with_shards
from fewtags.shards.places import Url, is_shard
from fewtags.table.content import same_content
from fewtags.table.table import Excluded, LabelTable, Listed, Notes, ValueReading
from fewtags.text import counted, flag, setting, some

_NO_PHOTOS = frozenset(
    f".{ending}"
    for ending in (
        *("txt", "xml", "json", "jsonl", "csv", "tsv", "yaml", "yml", "md", "pdf", "html", "db", "ini", "npy", "npz"),
        *("zip", "log", "py", "parquet", "names", "data", "cache", "doc", "docx", "xls", "xlsx", "mp4", "mov", "avi"),
    )
)
"""Endings of files that are certainly not photos; a file with another ending may be a photo of an unknown kind."""


_MOST_TEXTS = 50


def read_folder(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:
    """Read a tree of class folders.

    - The class is the folder below the root, at any depth of the photo. If all folders below the root are called train,
      val (valid, validation) or test, they are the splits, and the class is the folder below them. If train and another
      split have folders of the same name, photos outside the splits are left out.
    - "cat,dog" is a folder of photos with both; `none_folder` has photos that show none of the classes.
    - Photos with the same bytes are one image with the labels of all their folders; its key is the first path in
      sorted order. Copies in different splits stay apart: the user decides which one to remove.
    - Photos directly in the root (or split) are images with nothing known. With `complete`, the other photos show no
      other class than those of their folders.
    - Symbolic links are followed. Hidden files are ignored. Classes are sorted by name, images by path.

    Raises:
        DataError: the folder does not exist or has no class folders, folders may be splits or classes, the name of a
            folder contradicts itself, or `images` is another folder.
    """
    options = options or ReadOptions()
    if images is not None and images.resolve() != path.resolve():
        raise DataError(
            f"{path} is read as class folders, which contain the photos: leave {flag('images')} out, or pass the file "
            f"with the labels instead of the folder. ({flag('val-images')} and {flag('test-images')}: photos of "
            f"{flag('val')} and {flag('test')} only.)"
        )
    files = walk(path)
    split, excluded = _split_level(path, files.photos)
    photos = [key for key in files.photos if key not in {e.item for e in excluded}] if excluded else files.photos
    folder = {key: _class_folder(key, split) for key in photos}
    meaning = {name: _tags(name, options, path) for name in sorted({*folder.values()} - {""})}
    named = {tag for tags in meaning.values() for tag in tags}
    classes = ClassNames.of(sorted({options.absent(tag) or tag for tag in named}))
    if not len(classes):
        raise DataError(_no_classes(path, files, meaning))
    if len(meaning) == 1 and not split:
        _check_single_folder(path, files, *meaning)
    equal = same_content([str(path / key) for key in photos])
    copies = [[photos[i] for i in positions] for positions in equal]
    # The key of an image is the first path with its content in its split.
    first = {key: key for key in photos}
    for group in copies:
        for same in _by_split(group, split):
            first.update(dict.fromkeys(same, same[0]))
    keys = sorted({*first.values()})
    position = {key: i for i, key in enumerate(keys)}
    labelled, nothing = np.zeros((2, len(keys)), np.bool_)
    cells: set[tuple[int, int]] = set()
    denied: set[tuple[int, int]] = set()
    for key, name in folder.items():
        if name:
            i = position[first[key]]
            labelled[i] = True
            nothing[i] |= not meaning[name]
            for tag in meaning[name]:
                absent = options.absent(tag)
                (denied if absent else cells).add((i, classes.index(absent or tag)))
    facts = [(i, c, Label.POSITIVE) for i, c in sorted(cells)]
    facts += [(i, c, Label.NEGATIVE) for i, c in sorted(denied)]
    # For a photo in a class folder and in the `none` folder both facts are kept: the table takes the cell as unknown.
    facts += [(i, c, Label.NEGATIVE) for i, c in sorted(cells - denied) if nothing[i]]
    image, class_, state = np.array(facts, np.int64).reshape(-1, 3).T
    messages, lists = _messages(first, split), _copy_lists(copies, first, split)
    said = {(i, c) for i, c in cells if nothing[i]} | (cells & denied)
    if contradictory := len({i for i, _ in said}):
        messages += (f"{contradictory:,} photos are in a class folder and in one that says no to it: unknown",)
    if options.complete:
        messages += ("complete: other classes than those of its folders are absent from a photo",)
    if excluded:
        messages += (f"{len(excluded):,} photos are in none of the splits and are left out, see the excluded list",)
    warnings = _warnings(path, files, folder, split) + name_warnings(named, options, path.resolve().name)
    warnings += joined_names(str(path), (tag for name in meaning for tag in name.split(",")))
    return LabelTable.build(
        keys,
        classes,
        image=image,
        class_=class_,
        state=state,
        source=path.resolve().name,
        complete_set=np.where(labelled if options.complete else nothing, 0, -1),
        complete_classes=np.ones((1, len(classes)), np.bool_),
        root=path,
        split=[is_split(key.split("/")[0]) for key in keys] if split else None,
        notes=files.notes + Notes(_readings(path, folder, meaning, options), excluded, messages, warnings, lists),
    )


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """The files below a root.

    Attributes:
        photos: paths of photos, relative to the root, with forward slashes, sorted; in shards, in their order.
        others: number of other files (and hidden folders) of each kind.
        notes: readings of the other files; the excluded list has photos and folders that cannot be used.
        unknown: sorted paths of files with an unknown ending, which may be photos.
        texts: paths of text files, without the ending.
        in_shards: the photos are in shards or behind a URL.
    """

    photos: list[str]
    others: Counter[str]
    notes: Notes
    unknown: list[str] = field(default_factory=list)
    texts: frozenset[str] = frozenset()
    in_shards: bool = False


def walk(root: Path, *, any_name: bool = False, shards: bool = False) -> Files:
    """Find all photos below a folder. Links are followed, except in circles; hidden files and folders are skipped.

    Names that are not UTF-8 cannot be keys of a table. They are excluded unless `any_name` is true. With `shards`, the
    root may be a shard or a `Url`, and a folder without photos has those of the shards in it, in their order.

    Raises:
        DataError: the path is not a folder.
    """
    if shards and isinstance(root, Url):
        return _listed(list_url(root), root, any_name)
    if shards and is_shard(root.name) and root.is_file():
        return _listed(list_shards(root, [""]), root, any_name)
    if not root.is_dir():
        raise DataError(f"{str(root)!r} is not a folder; pass the folder that contains the class folders.")
    photos: list[str] = []
    unknown: list[str] = []
    texts: set[str] = set()
    others: Counter[str] = Counter()
    excluded: list[Excluded] = []
    archives: list[str] = []
    # Each folder has the (device, inode) of itself and of all folders above: a link back to one of them is a circle.
    top = root.stat()
    stack = [("", frozenset({(top.st_dev, top.st_ino)}))]
    while stack:
        folder, above = stack.pop()
        for entry in _listing(root, folder, excluded):
            name = entry.name
            key = f"{folder}/{name}" if folder else name
            if name.startswith(".") or name == "__MACOSX":
                others["(hidden)"] += 1
            elif not any_name and not is_utf8(name):
                excluded.append(Excluded(ascii(key), "the name is not valid UTF-8; rename it", str(root), "unreadable"))
            elif (status := _status(entry, key, root, excluded)) is None:
                continue
            elif stat.S_ISDIR(status.st_mode):
                if (identity := (status.st_dev, status.st_ino)) in above:
                    excluded.append(Excluded(key, "a link to a folder that contains it", str(root)))
                else:
                    stack.append((key, above | {identity}))
            elif not is_photo(name):
                if shards and is_shard(name):
                    archives.append(key)
                    continue
                if extension(name) == ".txt":
                    texts.add(key.rpartition(".")[0])
                elif extension(name) and extension(name) not in _NO_PHOTOS:
                    unknown.append(key)
                others[f"*{extension(name)}" if extension(name) else "(no extension)"] += 1
            elif status.st_size == 0:
                excluded.append(Excluded(key, "empty file", str(root), "unreadable"))
            else:
                photos.append(key)
    if archives:
        found = with_shards(Listing(photos, others, excluded), root, archives)
        if not photos:
            return _listed(found, root, any_name)
    left_out = tuple(sorted(excluded, key=lambda e: e.item))
    readings = value_readings(str(root), ((kind, _meaning(kind), n) for kind, n in sorted(others.items())))
    messages = (f"{len(excluded):,} files or folders left out, see the excluded list",) if excluded else ()
    return Files(
        photos=sorted(photos),
        others=others,
        notes=Notes(readings, left_out, messages),
        unknown=sorted(unknown),
        texts=frozenset(texts),
    )


def _listed(found: Listing, root: Path, any_name: bool) -> Files:
    """Return the files of a listing of shards."""
    names = found.photos if any_name else [name for name in found.photos if is_utf8(name)]
    kept, excluded = {*names}, [*found.excluded]
    if len(names) < len(found.photos):
        reason = "the name is not valid UTF-8; rename it"
        excluded += [
            Excluded(ascii(name), reason, str(root), "unreadable") for name in found.photos if name not in kept
        ]
    kinds = sorted(found.others.items())
    readings = value_readings(str(root), ((kind, "ignored, not a photo", n) for kind, n in kinds))
    notes = Notes(readings, tuple(excluded), tuple(found.messages))
    return Files(photos=names, others=found.others, notes=notes, in_shards=True)


def _meaning(kind: str) -> str:
    known = not kind.startswith("*") or kind[1:] in _NO_PHOTOS
    return "ignored, not a photo" if known else "ignored, an unknown ending"


def _listing(root: Path, folder: str, excluded: list[Excluded]) -> list[os.DirEntry[str]]:
    """Return all entries of a folder."""
    try:
        with os.scandir(root / folder) as entries:
            return [*entries]
    except OSError as error:
        excluded.append(Excluded(folder, f"folder cannot be read: {error.strerror}", str(root), "unreadable"))
        return []


def _status(entry: os.DirEntry[str], key: str, root: Path, excluded: list[Excluded]) -> os.stat_result | None:
    try:
        return os.stat(entry.path)  # noqa: PTH116  # on Windows, entry.stat() has no identity
    except OSError as error:
        excluded.append(Excluded(key, f"cannot be read: {error.strerror}", str(root), "unreadable"))
    return None


def _split_level(root: Path, keys: Sequence[str]) -> tuple[bool, tuple[Excluded, ...]]:
    """Return whether the folders below the root are splits, and the photos outside of them.

    A single folder with the name of a split may be a class ("train" of photos of trains). It is a split if its photos
    are all in folders of their own.
    """
    inside: dict[str, set[str]] = defaultdict(set)  # folders in each folder; "" where photos lie in it
    for parts in (key.split("/") for key in keys):
        if len(parts) > 1:
            inside[parts[0]].add(parts[1] if len(parts) > 2 else "")
    splits = sorted(top for top in inside if is_split(top))
    others = sorted({*inside} - {*splits})
    if not splits:
        _check_levels(root, inside)
        return False, ()
    if not others and not any(inside[top] - {""} for top in splits):
        raise DataError(
            f"{root}: {some(splits)} {'has' if len(splits) == 1 else 'have'} photos but no class folders; expected "
            f"{root}/{splits[0]}/CLASS/PHOTO.jpg. If it is a class and not a split, rename it."
        )
    train, rest = (
        {name for top in splits if (is_split(top) == "train") == wanted for name in inside[top] if name}
        for wanted in (True, False)
    )
    if others and not train & rest:
        only_classes = any(len(inside[top]) > 1 and "" not in inside[top] for top in splits)
        if len({*map(is_split, splits)}) == 1 and not only_classes:
            return False, ()
        raise DataError(
            f"{root}: looks like splits ({some(splits)}) plus {some(others)}. If they are splits, move the other "
            "folders into one of them, or elsewhere; if all of them are classes, rename those with the name of a "
            "split."
        )
    reason = f"is in none of the splits {', '.join(splits)}"
    return True, tuple(
        Excluded(key, reason, str(root), "splits") for key in keys if "/" not in key or key.split("/")[0] in others
    )


def _check_levels(root: Path, inside: Mapping[str, set[str]]) -> None:
    """Refuse folders that have no photos themselves and share the names of their folders: these may be the classes."""
    shared = [name for name, n in Counter(name for names in inside.values() for name in names).items() if n > 1]
    if len(inside) > 1 and not any("" in names for names in inside.values()) and len(shared) > 1:
        raise DataError(
            f"{root}: {some(sorted(inside))} have no photos themselves, but folders of the same names, "
            f"{some(sorted(shared))}. If they are splits, call them train, val and test; if they are the classes, move "
            f"the photos up into them; otherwise move {some(sorted(shared), 2)} directly below one folder."
        )


def _class_folder(key: str, split: bool) -> str:
    """Return the class folder of a photo, or ""."""
    parts = key.split("/")[int(split) :]
    return parts[0] if len(parts) > 1 else ""


def _tags(folder: str, options: ReadOptions, root: Path) -> tuple[str, ...]:
    """Return the classes that a folder name states; the `none` folder states no class."""
    tags = tuple(dict.fromkeys(clean_name(tag) for tag in folder.split(",") if clean_name(tag)))
    nothing = [tag for tag in tags if options.is_none(tag)]
    if not tags:
        raise DataError(f"{root}: the folder {folder!r} names no class; rename it.")
    if nothing and len(tags) > 1:
        raise DataError(f"{root}: the folder {folder!r} says both {nothing[0]!r} and a class; rename it.")
    return () if nothing else tags


def _no_classes(root: Path, files: Files, meaning: Mapping[str, tuple[str, ...]]) -> str:
    if meaning:
        return f"{root}: there is no class folder beside {some([*meaning])}; make one folder for each class."
    start = f"{root}: no class folders with photos in them"
    if tagged := _with_texts(root, files):
        return f"{start}, but {tagged}."
    if xml := files.others["*.xml"]:
        return f"{start}, but {xml:,} XML files; for VOC annotations pass {setting('format', 'voc')}."
    if tables := _label_files(root):
        return f"{start}, but label files; pass one of them instead of the folder: {some(tables)}."
    what = f"{len(files.photos):,} photos without a folder" if files.photos else "no photos at all"
    return f"{start}, {what}; expected {root}/CLASS/PHOTO.jpg, or the file with the labels."


def _with_texts(root: Path, files: Files) -> str:
    """Return how many photos have a text file of the same name, and how to read it; "" if none has one."""
    named = [stem for key in files.photos if (stem := key.rpartition(".")[0]) in files.texts]
    if not named:
        return ""
    texts = [(root / f"{stem}.txt") for stem in named[:_MOST_TEXTS]]
    kind = kind_of([file.read_bytes().decode("utf-8", "ignore") for file in texts if file.is_file()])
    start = f"{counted(len(named), 'photo has', 'photos have')} a text file of the same name"
    if kind == "numbers":
        return f"{start} with numbers, as labels of YOLO; to read these, add data.yaml or classes.txt with the classes"
    if kind == "captions":
        return f"{start} with a caption, and captions are not tags; write the tags of each photo instead"
    return f"{start}; to read tags from them, pass {setting('format', 'tagfiles')}"


def _label_files(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.suffix.lower() in {".csv", ".tsv", ".json", ".jsonl", ".parquet"})


def _check_single_folder(root: Path, files: Files, name: str) -> None:
    """Refuse a tree of one class folder that looks like something else."""
    if all(key.count("/") != 1 for key in files.photos):
        trouble = (
            f"is the only folder, and has folders but no photos; if these are the classes, pass {str(root / name)!r}"
        )
    elif tables := _label_files(root):
        trouble = "would be the only class, and there are label files; pass one of them instead of the folder: "
        trouble += some(tables)
    else:
        return
    raise DataError(f"{root}: {name!r} {trouble}.")


def _by_split(keys: Iterable[str], split: bool) -> list[list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        groups[is_split(key.split("/")[0]) if split else ""].append(key)
    return list(groups.values())


def _readings(
    root: Path, folder: Mapping[str, str], meaning: Mapping[str, tuple[str, ...]], options: ReadOptions
) -> tuple[ValueReading, ...]:
    counts = Counter(folder.values())
    labels = {name: _label_of(tags, options) for name, tags in meaning.items()}
    rows = [(f"{name}/", label, counts[name]) for name, label in labels.items()]
    return value_readings(str(root), [*rows, ("(in no class folder)", "nothing known", counts[""])])


def _label_of(tags: Sequence[str], options: ReadOptions) -> str:
    """Return what a folder states, for its reading."""
    present = [tag for tag in tags if not options.absent(tag)]
    parts = [f"positive: {', '.join(present)}"] if present else []
    return "; ".join([*parts, *(options.meaning(tag) for tag in tags if options.absent(tag))]) or "none of the classes"


def _messages(first: Mapping[str, str], split: bool) -> tuple[str, ...]:
    """Return how the tree was read."""
    tops = sorted({key.split("/")[0] for key in first if "/" in key})
    messages = [
        f"splits: {', '.join(tops)}; the class is the folder below" if split else "class = folder below the root"
    ]
    if deeper := sum(len(key.split("/")) > 2 + split for key in first):
        messages.append(f"{deeper:,} photos are deeper than their class folder and belong to it")
    return tuple(messages)


def _warnings(root: Path, files: Files, folder: Mapping[str, str], split: bool) -> tuple[str, ...]:
    """Return warnings about photos of an unknown kind, classes that vanish with them, and tag files beside photos."""
    found = []
    if files.unknown:
        here = {*folder.values()}
        lost = sorted({name for key in files.unknown if (name := _class_folder(key, split)) and name not in here})
        endings = sorted({extension(key) for key in files.unknown})
        text = f"{root}: {len(files.unknown):,} files have an unknown ending ({', '.join(endings)}) and are not read"
        text += f"; the folders {some(lost)} have no other files, so these classes are lost" if lost else ""
        found.append(f"{text}. If they are photos, convert them to JPEG or PNG.")
    if tagged := _with_texts(root, files):
        found.append(f"{root}: {tagged}. The text files are not read.")
    return tuple(found)


def _copy_lists(copies: Sequence[Sequence[str]], first: Mapping[str, str], split: bool) -> tuple[Listed, ...]:
    """Return which copies were joined, and which photos are in several splits."""
    lists = []
    if joined := tuple(f"{key} = {first[key]}" for key in sorted(first) if first[key] != key):
        merged = len({first[key] for key in first if first[key] != key})
        text = (
            f"{counted(len(joined), 'copy', 'copies')} of {counted(merged, 'photo')} joined: equal bytes; each photo "
            "has the labels of all its folders"
        )
        lists.append(Listed("joined-copies", text, joined))
    if leaks := tuple(" = ".join(group) for group in copies if len(_by_split(group, split)) > 1):
        are = counted(len(leaks), "photo is", "photos are")
        lists.append(Listed("copies-across-splits", f"{are} in several splits, with equal bytes", leaks))
    return tuple(lists)
