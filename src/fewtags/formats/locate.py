"""Find the photos of the image names in an annotation file."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.columns import Column
from fewtags.formats.common import is_split
from fewtags.formats.locate_end import PhotosBelow, find_by_end, is_address, loose, path_of
from fewtags.photos.decode import EXTENSIONS
from fewtags.photos.listing import list_shards, list_url
from fewtags.shards.places import Url, is_shard, splits
from fewtags.shards.remote import missing
from fewtags.table.table import Excluded, Notes
from fewtags.text import counted, quoted, setting, some

PHOTO_FOLDERS = frozenset({"images", "image", "img", "imgs", "photos", "pictures", "jpegimages", "data", "upload"})
"""Names of folders that say nothing but that photos are in them, in lower case."""


@final
@dataclass(frozen=True)
class ImageKeys:
    """The image keys of R names in an annotation file.

    Attributes:
        keys: N unique image keys, in the order of first appearance.
        image: int64 [R], position in `keys` of each name; -1 if its photo is left out.
        root: the folder that the keys are relative to; None: not given and not found.
        notes: which photos were left out or have another spelling.
    """

    keys: list[str]
    image: NDArray[np.int64]
    root: Path | None
    notes: Notes


def locate(
    names: Sequence[str],
    *,
    file: Path,
    images: Path | None = None,
    beside: Sequence[Path] = (),
    otherwise: Mapping[str, str] | None = None,
) -> ImageKeys:
    """Convert the image names of an annotation file to keys, and look for the photos.

    A name without the extension of a photo is the only photo of that name ("train_0" is train_0.jpg). Addresses, paths
    of another computer, and all names if most of them do not exist, are found by the end of their path, see
    `find_by_end`.

    Args:
        names: R names as written in the file; names may repeat.
        file: the annotation file; absolute and `../` paths are resolved from its folder.
        images: folder that the names are relative to. None: the first of `beside` with most of a sample of them.
        beside: where photos usually are for this format.
        otherwise: a second name of photos that are not found by the first.

    Raises:
        DataError: `images` is not a folder, or has less than half of the photos.
    """
    check_images(images)
    rows = Column.of(names)
    distinct = rows.words
    second = _unique(otherwise or {})
    root = images or _guess_root(distinct, file, beside) or _guess_root([*second.values()], file, beside)
    root = root or _root_by_end([second.get(name, name) for name in distinct], file, beside)
    found, missing = _find(distinct, file, root)
    ends: dict[str, str] = {}
    why: dict[str, str] = {}
    if root is not None:
        others = {name: second[name] for name in missing if name in second}
        by_second, _ = _find([*others.values()], file, root)
        found |= {name: by_second[other] for name, other in others.items() if other in by_second}
        far = [name for name in missing if name not in found]
        if len(far) * 2 <= len(distinct):
            far = [name for name in far if missing[name] is None or is_address(name) or path_of(name) != name]
        if far:
            called = {second.get(name, name): name for name in far}
            below = PhotosBelow(root, _split_of(file), shards=images is not None)
            by_end, unclear = find_by_end(called, below, taken=found.values())
            ends, why = ({called[name]: text for name, text in part.items()} for part in (by_end, unclear))
            found |= ends
    excluded = []
    for name, key in missing.items():
        if name not in found:
            reason = "is outside the images folder" if key is None else f"photo not found: {root}/{key}"
            excluded.append(Excluded(name, why.get(name, reason), str(file), "missing"))
    found = {name: found[name] for name in distinct if name in found}
    respelt = sum(name != key and key != key_of(name, file, root) for name, key in found.items()) - len(ends)
    if len(excluded) * 2 > len(distinct):
        raise DataError(_mostly_missing(excluded, len(distinct), file, root))
    unfound = f"none found beside the file; give {setting('images', 'FOLDER')} to use them"
    messages = [] if images else [f"photos: {root or unfound}"]
    if excluded:
        messages.append(f"{file.name}: {len(excluded):,} of {len(distinct):,} photos left out: not found")
    if respelt:
        messages.append(
            f"{file.name}: {counted(respelt, 'name lacks', 'names lack')} the ending of the file, or differ in spelling"
        )
    if ends:
        example = next(iter(ends))
        messages.append(
            f"{file.name}: {counted(len(ends), 'photo')} found by the end of the path, for example "
            f"{quoted(ends[example])} for {quoted(example)}"
        )
    warnings = _one_photo(found, file, root) + _elsewhere(ends, file)
    position = {key: i for i, key in enumerate(dict.fromkeys(found.values()))}
    index = {name: position[key] for name, key in found.items()}
    image = rows.each(lambda name: index.get(name, -1), np.int64)
    return ImageKeys(list(position), image, root, Notes((), tuple(excluded), tuple(messages), warnings))


def _find(names: Sequence[str], file: Path, root: Path | None) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the photos of names, and the key of each name whose photo does not exist (None: outside the root)."""
    folder = None if root is None else _Folder(root)
    found: dict[str, str] = {}
    missing: dict[str, str | None] = {}
    for name in names:
        key = key_of(name, file, root)
        actual = key if folder is None or key is None else folder.find_exactly(name) or folder.find(key)
        if actual is None:
            missing[name] = key
        else:
            found[name] = actual
    return found, missing


def _unique(otherwise: Mapping[str, str]) -> dict[str, str]:
    """Return the second names that are of one photo only."""
    uses = Counter(otherwise.values())
    return {name: other for name, other in otherwise.items() if other and uses[other] == 1}


def _elsewhere(ends: Mapping[str, str], file: Path) -> tuple[str, ...]:
    """Return a warning if photos were found in another folder than their name says."""
    apart = [f"{name} = {key}" for name, key in ends.items() if folders_differ(path_of(name), key)]
    if not apart:
        return ()
    return (
        f"{file.name}: {counted(len(apart), 'photo was', 'photos were')} found in another folder than the name says, "
        f"{some(apart, 2)}. Check them: photos of the same name in different folders are often different.",
    )


def folders_differ(name: str, key: str) -> bool:
    """Whether a photo that was found by the end of its path is in a folder of another name, except `PHOTO_FOLDERS`."""
    named, found = (loose(text).split("/")[-2:-1] for text in (name, key))
    return bool(named and found) and named != found and found[0] not in PHOTO_FOLDERS


def _one_photo(found: Mapping[str, str], file: Path, root: Path | None) -> tuple[str, ...]:
    """Return a warning if names that differ only in case or in the encoding of accents were taken for one photo."""
    spelt: dict[tuple[str, str], dict[str, None]] = {}
    uses = Counter(found.values())
    for name, actual in found.items():
        if uses[actual] == 1:
            continue
        key = key_of(name, file, root) or name
        spelt.setdefault((actual, loose(key)), {})[key] = None
    if not (alike := [" = ".join(keys) for keys in spelt.values() if len(keys) > 1]):
        return ()
    return (
        f"{file.name}: {counted(len(alike), 'photo is', 'photos are')} called by several names that differ only in "
        f"case or in how accents are encoded, {some(alike, 3)}; the labels of all names are joined. Rename them if "
        "they are different photos.",
    )


def spelling(
    variants: Sequence[Sequence[str]], *, file: Path, images: Path | None = None, beside: Sequence[Path] = ()
) -> Sequence[str]:
    """Choose the spelling of image names whose photos exist, for tools that prefix or shorten the names.

    `variants` are spellings of the same R names, the likeliest first. Returns the first variant with photos for most of
    a sample, or else the first one. A variant with fewer distinct names than another is not chosen: equal file names in
    different folders are different photos. For the other arguments, see `locate`.
    """
    apart = [list(dict.fromkeys(names)) for names in variants]
    whole = max(map(len, apart))
    usable = [i for i, distinct in enumerate(apart) if len(distinct) == whole]
    roots = beside if images is None else [images]
    return variants[next((i for i in usable if _guess_root(apart[i], file, roots) is not None), usable[0])]


def folder_of(file: Path) -> Path:
    """Return the folder of a file, absolute and without `..`, so that it can be shown and has parents."""
    return Path(os.path.normpath(file.absolute())).parent


def usual_folders(file: Path) -> list[Path]:
    """Return where the photos of an annotation file usually are: beside it, or in a folder `images`."""
    above = folder_of(file)
    return [above, above / "images", above.parent / "images"]


def check_images(images: Path | None) -> None:
    """Raise `DataError` if the given folder of photos is not a folder."""
    if images is None or (is_shard(images.name) and images.is_file()):
        return
    if not images.is_dir():
        if isinstance(images, Url) and not images.exists():
            raise missing(str(images))
        raise DataError(
            f"{quoted(str(images))} is not a folder; pass the folder with the photos: {setting('images', 'FOLDER')}."
        )


def is_photo(name: str) -> bool:
    """Return whether a file name has the extension of a photo, in any case."""
    return extension(name) in EXTENSIONS


def extension(name: str) -> str:
    """Return the extension of a file name or path, in lower case with its dot, or ""."""
    stem, dot, last = name.rpartition(".")
    return f".{last.lower()}" if dot and stem and "/" not in last else ""


# Names that are keys already: no leading dot or slash, no backslash or colon, no empty, "." or ".." part.
_PLAIN = re.compile(r"(?![./])(?:[^/\\:.]|\.(?!\.?(?:/|$))|/(?![/.]|$))+")


def key_of(name: str, file: Path, root: Path | None) -> str | None:
    """Return the image key of a name: relative to the root, with forward slashes; None if it is outside the root.

    Keys never contain `..`, so that files written per key stay inside the output folder.
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
    """Files below a root; each directory is listed once, which is much faster than a check of every file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listed: dict[str, tuple[set[str], dict[str, list[str]]]] = {}
        self._shards: dict[str, dict[str, set[str]]] = {}
        self._remote: dict[str, set[str]] | None = None

    def find(self, key: str) -> str | None:
        """Return the key of a photo that may have another Unicode form, another case or an extension, or None."""
        parent, slash, name = key.rpartition("/")
        if parent not in self._listed:
            self._listed[parent] = self._list(parent)
        names, alike = self._listed[parent]
        others = [name] if name in names else alike.get(loose(name), [])
        return parent + slash + others[0] if len(others) == 1 else None

    def find_exactly(self, name: str) -> str | None:
        """Return a name that begins or ends with a blank, if it is that of a file; in most tables blanks are noise."""
        return name if name != name.strip() and _PLAIN.fullmatch(name) and self.find(name) == name else None

    def _list(self, parent: str) -> tuple[set[str], dict[str, list[str]]]:
        try:
            with os.scandir(self.root / parent) as entries:
                names = {entry.name for entry in entries}
        except (OSError, ValueError):  # no such folder, a path that cannot be one, or a shard
            names = self._elsewhere(parent)
        alike: dict[str, list[str]] = {}
        for name in names:
            form = loose(name)
            alike.setdefault(form, []).append(name)
            if is_photo(form):
                alike.setdefault(form.rpartition(".")[0], []).append(name)
        return names, alike

    def _elsewhere(self, parent: str) -> set[str]:
        """Return the names of the photos in a folder within a shard, or behind a URL."""
        shard = next((shard for shard, _ in splits(f"{self.root / parent}/-") if Path(shard).is_file()), None)
        if isinstance(self.root, Url):
            if self._remote is None:
                self._remote = group_by_folder(list_url(self.root).photos)
            return self._remote.get(parent, set())
        if shard is None:
            return set()
        if shard not in self._shards:
            self._shards[shard] = group_by_folder(list_shards(Path(shard), [""]).photos)
        inside = f"{self.root / parent}".removeprefix(shard).lstrip("/")
        return self._shards[shard].get(inside, set())


def group_by_folder(keys: Sequence[str]) -> dict[str, set[str]]:
    """Return the names in each folder of keys."""
    out: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        folder, _, name = key.rpartition("/")
        out[folder].add(name)
    return out


def path_is(what: Callable[[Path], bool], path: Path) -> bool:
    """Return `what(path)`, such as `Path.is_file(path)`; False if the name is too long or has a null character."""
    try:
        return what(path)
    except (OSError, ValueError):
        return False


def _root_by_end(names: Sequence[str], file: Path, beside: Sequence[Path]) -> Path | None:
    """Return the first folder below which most of a sample of names are found by the end of their path."""
    # A bare name may be anywhere.
    sample = [name for name in _sample(names) if is_address(name) or "/" in path_of(name)]
    above = folder_of(file)
    # Above the file there may be anything; the deepest folder is the most specific one.
    near = [root for root in dict.fromkeys(beside) if root.is_dir() and (root == above or root not in above.parents)]
    for root in sorted(near, key=lambda root: -len(root.absolute().parts)):
        if len(find_by_end(sample, root, split=_split_of(file))[0]) * 2 > len(_sample(names)):
            return root
    return None


def _split_of(file: Path) -> str:
    """Return the split that the name of a file says, such as instances_val2017.json."""
    return is_split(file.stem.rpartition("_")[2])


def _sample(names: Sequence[str]) -> Sequence[str]:
    return names[:: max(1, len(names) // 20)][:20]


def _guess_root(names: Sequence[str], file: Path, beside: Sequence[Path]) -> Path | None:
    sample = _sample(names)
    if names and all(name.startswith("/") for name in names):
        common = Path(os.path.commonpath([name.rpartition("/")[0] or "/" for name in names]))
        if common.is_dir() and any(path_is(Path.is_file, Path(name)) for name in sample):
            return common
    for root in beside:
        if root.is_dir():
            folder = _Folder(root)
            keys = [folder.find_exactly(name) or key_of(name, file, root) for name in sample]
            if sum(key is not None and folder.find(key) is not None for key in keys) * 2 > len(sample):
                return root
    return None


def _mostly_missing(excluded: Sequence[Excluded], total: int, file: Path, root: Path | None) -> str:
    """Return the text of an error."""
    first = excluded[0]
    start = f"{file}: {len(excluded):,} of {total:,} photos do not exist; {quoted(first.item)} {first.reason}."
    if root is None:
        return f"{start} Pass the folder with all of them: {setting('images', 'FOLDER')}."
    return f"{start} Pass the folder that the paths in the file are relative to: {setting('images', 'FOLDER')}."
