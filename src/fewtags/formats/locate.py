"""From the image names in an annotation file to image keys and photo files."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.photos.decode import EXTENSIONS
from fewtags.table.table import Excluded, Notes
from fewtags.text import some


@final
@dataclass(frozen=True)
class ImageKeys:
    """The photos that annotations speak of.

    Attributes:
        keys: N unique image keys, in the order of first appearance.
        image: int64 [R], position in `keys` of each name given to `locate`; -1: left out.
        root: the folder that the keys are relative to; None: not given and not found.
        notes: what was left out or spelt differently.
    """

    keys: list[str]
    image: NDArray[np.int64]
    root: Path | None
    notes: Notes


def locate(names: Sequence[str], *, file: Path, images: Path | None = None, beside: Sequence[Path] = ()) -> ImageKeys:
    """Turn the image names of an annotation file into keys, and look for the photos.

    A name without the extension of a photo means the only photo of that name ("train_0" is train_0.jpg).

    Args:
        names: R names as written in the file, repeats allowed.
        file: the annotation file; absolute and `../` paths are understood from its folder.
        images: folder that the names are relative to. None: the first of `beside` that holds most of a sample of them.
        beside: where photos usually are for this format.

    Raises:
        DataError: `images` is no folder, or less than half of the photos are in it; one path tried is shown.
    """
    if images is not None and not images.is_dir():
        raise DataError(f"{str(images)!r} is not a folder; pass as images the folder that holds the photos.")
    distinct = list(dict.fromkeys(names))
    root = images or _guess_root(distinct, file, beside)
    folder = None if root is None else _Folder(root)
    found: dict[str, str] = {}
    excluded = []
    respelt = 0
    for name in distinct:
        key = key_of(name, file, root)
        actual = key if folder is None or key is None else folder.find(key)
        if actual is not None:
            found[name] = actual
            respelt += actual != key
        elif key is None:
            excluded.append(Excluded(name, "lies outside the images folder", str(file), "missing"))
        else:
            excluded.append(Excluded(name, f"photo not found: {root}/{key}", str(file), "missing"))
    if len(excluded) * 2 > len(distinct):
        raise DataError(_mostly_missing(excluded, len(distinct), file, root))
    messages = [] if images else [f"photos: {root or 'none found beside the file; give --images FOLDER to use them'}"]
    if excluded:
        messages.append(f"{file.name}: {len(excluded):,} of {len(distinct):,} photos left out, they are not there")
    if respelt:
        messages.append(f"{file.name}: {respelt:,} names stand for a file that is spelt with an extension or otherwise")
    warnings = _one_photo(found, file, root)
    position = {key: i for i, key in enumerate(dict.fromkeys(found.values()))}
    index = {name: position[key] for name, key in found.items()}
    image = np.fromiter((index.get(name, -1) for name in names), np.int64, len(names))
    return ImageKeys(list(position), image, root, Notes((), tuple(excluded), tuple(messages), warnings))


def _one_photo(found: Mapping[str, str], file: Path, root: Path | None) -> tuple[str, ...]:
    """A warning where names that differ only in case or in the encoding of accents were taken for one photo."""
    spelt: dict[tuple[str, str], dict[str, None]] = {}
    for name, actual in found.items():
        key = key_of(name, file, root) or name
        spelt.setdefault((actual, _loose(key)), {})[key] = None
    if not (alike := [" = ".join(keys) for keys in spelt.values() if len(keys) > 1]):
        return ()
    return (
        f"{file.name}: {len(alike):,} photos are called by several names that differ only in case or in how accents "
        f"are encoded, {some(alike, 3)}; the labels of all of them are joined. Rename them if they are different "
        "photos.",
    )


def spelling(
    variants: Sequence[Sequence[str]], *, file: Path, images: Path | None = None, beside: Sequence[Path] = ()
) -> Sequence[str]:
    """The way to write image names under which the photos are there, for tools that prefix or shorten their names.

    Args:
        variants: ways to write the same R names, the likeliest first. One that makes equal what another keeps apart is
            not taken: equal file names in different folders are different photos.
        file: see `locate`.
        images: see `locate`.
        beside: see `locate`.

    Returns:
        the first variant of which most of a sample is there; the first of all where there is none.
    """
    apart = [list(dict.fromkeys(names)) for names in variants]
    whole = max(map(len, apart))
    usable = [i for i, distinct in enumerate(apart) if len(distinct) == whole]
    roots = beside if images is None else [images]
    return variants[next((i for i in usable if _guess_root(apart[i], file, roots) is not None), usable[0])]


def folder_of(file: Path) -> Path:
    """The folder a file is in, absolute and without `..`, so that it can be shown and gone up from."""
    return Path(os.path.normpath(file.absolute())).parent


def is_photo(name: str) -> bool:
    """Whether a file name has the extension of a photo, in any case."""
    return extension(name) in EXTENSIONS


def extension(name: str) -> str:
    """The extension of a file name or path, lower case with its dot; "" for none."""
    stem, dot, last = name.rpartition(".")
    return f".{last.lower()}" if dot and stem and "/" not in last else ""


# Names that are keys already: no leading dot or slash, no backslash or colon, no empty, "." or ".." part.
_PLAIN = re.compile(r"(?![./])(?:[^/\\:.]|\.(?!\.?(?:/|$))|/(?![/.]|$))+")


def key_of(name: str, file: Path, root: Path | None) -> str | None:
    """The image key of a name in an annotation file: relative to the root, forward slashes; None if it leaves the root.

    Keys never contain `..`, so that whoever writes a file per key stays inside the output folder.
    """
    name = name.strip()
    if _PLAIN.fullmatch(name):
        return name
    text = posixpath.normpath(name.replace("\\", "/"))
    absolute = text.startswith("/") or re.match(r"[A-Za-z]:/", text) is not None
    if not absolute and text != ".." and not text.startswith("../"):
        return text if text != "." else None
    target = Path(text) if absolute else Path(posixpath.normpath(file.parent.absolute().as_posix() + "/" + text))
    base = file.parent if root is None else root
    for candidate in (base.absolute(), base.resolve()):
        if target.is_relative_to(candidate) and target != candidate:
            return target.relative_to(candidate).as_posix()
    return None


@final
class _Folder:
    """Files below a root; each directory is listed once, which is much faster than asking for every file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listed: dict[str, tuple[set[str], dict[str, list[str]]]] = {}

    def find(self, key: str) -> str | None:
        """The key of the photo, allowing for another Unicode form, another case and a missing extension."""
        parent, slash, name = key.rpartition("/")
        if parent not in self._listed:
            self._listed[parent] = self._list(parent)
        names, alike = self._listed[parent]
        if name in names:
            return key
        others = alike.get(_loose(name), [])
        if len(others) == 1:
            return parent + slash + others[0]
        return None

    def _list(self, parent: str) -> tuple[set[str], dict[str, list[str]]]:
        try:
            with os.scandir(self.root / parent) as entries:
                names = {entry.name for entry in entries}
        except (OSError, ValueError):  # no such folder, or a path that cannot be one
            return set(), {}
        alike: dict[str, list[str]] = {}
        for name in names:
            form = _loose(name)
            alike.setdefault(form, []).append(name)
            if is_photo(form):
                alike.setdefault(form.rpartition(".")[0], []).append(name)
        return names, alike


def _loose(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte
        return False


def _guess_root(names: Sequence[str], file: Path, beside: Sequence[Path]) -> Path | None:
    if names and all(name.startswith("/") for name in names):
        common = Path(os.path.commonpath([name.rpartition("/")[0] or "/" for name in names]))
        return common if common.is_dir() else None
    sample = names[:: max(1, len(names) // 20)][:20]
    for root in beside:
        if root.is_dir():
            folder = _Folder(root)
            keys = [key_of(name, file, root) for name in sample]
            if sum(key is not None and folder.find(key) is not None for key in keys) * 2 > len(sample):
                return root
    return None


def _mostly_missing(excluded: Sequence[Excluded], total: int, file: Path, root: Path | None) -> str:
    """Error text; where another folder would do, it is named."""
    first = excluded[0]
    start = f"{file}: {len(excluded):,} of {total:,} photos are not there; {first.item!r} {first.reason}."
    if root is None:
        return f"{start} Pass as images the folder that all of them are in."
    parts = first.item.replace("\\", "/").strip("/").split("/")
    for drop in range(1, len(parts)):
        if _is_file(root.joinpath(*parts[drop:])):
            extra = tuple(parts[:drop])
            if root.absolute().parts[-drop:] == extra:
                return f"{start} Pass {str(root.absolute().parents[drop - 1])!r} as images instead."
            return f"{start} Cut {'/'.join(extra)!r} off the paths in the file: the photos are in {str(root)!r} itself."
    below = sorted(entry for entry in root.iterdir() if entry.is_dir())
    for folder in below[:100]:
        if _is_file(folder / first.item):
            return f"{start} It is in {str(folder)!r}: pass that as images."
    return f"{start} Pass as images the folder that the paths in the file are relative to."
