"""Class folders: the folder of a photo is its class; a photo in several folders has several classes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import clean_name, is_split, joined_names
from fewtags.formats.folder_doubts import (
    check_single_folder,
    class_folder,
    label_files,
    mask_folders,
    no_classes_text,
    tree_warnings,
    without_photos,
)
from fewtags.formats.folder_walk import walk
from fewtags.formats.negatives import name_warnings
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import value_readings
from fewtags.labels import ClassNames, Label
from fewtags.table.content import same_content
from fewtags.table.table import Excluded, LabelTable, Listed, Notes, ValueReading
from fewtags.text import counted, flag, quoted, some


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
    folder = {key: class_folder(key, split) for key in photos}
    meaning = {name: _tags(name, options, path) for name in sorted({*folder.values()} - {""})}
    named = {tag for tags in meaning.values() for tag in tags}
    classes = ClassNames.of(sorted({options.absent(tag) or tag for tag in named}))
    if not len(classes):
        raise DataError(no_classes_text(path, files, meaning))
    masks = mask_folders(folder)
    if len(plain := [name for name in meaning if name not in masks]) == 1 and not split:
        check_single_folder(path, files, plain[0])
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
    messages, lists = _messages(first, split) + without_photos(files, folder, split), _copy_lists(copies, first, split)
    said = {(i, c) for i, c in cells if nothing[i]} | (cells & denied)
    if contradictory := len({i for i, _ in said}):
        messages += (
            counted(contradictory, "photo is in a folder", "photos are in folders")
            + " of a class and of its absence: unknown",
        )
    if options.complete:
        messages += ("complete: other classes than those of its folders are absent from a photo",)
    if excluded:
        messages += (
            counted(
                len(excluded),
                "photo is in none of the splits and is left out, see the excluded list",
                "photos are in none of the splits and are left out, see the excluded list",
            ),
        )
    warnings = tree_warnings(path, files, folder, split) + name_warnings(named, options, path.resolve().name)
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
        start = f"{root}: {some(splits)} {'has' if len(splits) == 1 else 'have'} photos but no class folders"
        if tables := label_files(root, splits):
            raise DataError(
                f"{start}, but there are label files, {some(tables)}; pass that of train instead of the folder, and "
                f"those of the other splits with {flag('val')} and {flag('test')}."
            )
        raise DataError(
            f"{start}; expected {root}/{splits[0]}/CLASS/PHOTO.jpg. If it is a class and not a split, rename it."
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
        if all(map(is_split, shared)):
            raise DataError(
                f"{root}: the folders {some(sorted(inside))} have splits in them, {some(sorted(shared))}; put the "
                f"splits above the classes, as in {root}/{min(shared)}/{min(inside)}/PHOTO.jpg."
            )
        raise DataError(
            f"{root}: {some(sorted(inside))} have no photos themselves, but folders of the same names, "
            f"{some(sorted(shared))}. If they are splits, call them train, val and test; if they are the classes, move "
            f"the photos up into them; otherwise move {some(sorted(shared), 2)} directly below one folder."
        )


def _tags(folder: str, options: ReadOptions, root: Path) -> tuple[str, ...]:
    """Return the classes that a folder name states; the `none` folder states no class."""
    tags = tuple(dict.fromkeys(clean_name(tag) for tag in folder.split(",") if clean_name(tag)))
    nothing = [tag for tag in tags if options.is_none(tag)]
    if not tags:
        raise DataError(f"{root}: the folder {quoted(folder)} names no class; rename it.")
    if nothing and len(tags) > 1:
        raise DataError(f"{root}: the folder {quoted(folder)} says both {nothing[0]!r} and a class; rename it.")
    return () if nothing else tags


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
        messages.append(
            counted(
                deeper,
                "photo is deeper than its class folder and belongs to it",
                "photos are deeper than their class folder and belong to it",
            )
        )
    return tuple(messages)


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
