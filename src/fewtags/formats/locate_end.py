"""Find photos whose name in the file is an address, or a path on another computer, by the end of the path."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import final
from urllib.parse import parse_qs, unquote, urlsplit

from fewtags.formats.common import is_hidden, is_split
from fewtags.photos.decode import EXTENSIONS
from fewtags.photos.listing import Listing, list_shards, list_url
from fewtags.shards.places import Url, is_shard
from fewtags.text import counted, quoted

MOST_FILES = 300_000
"""A folder with more files is not searched: it is the disk of the user rather than a data set."""

_UPLOAD = re.compile(r"[0-9a-f]{8}-(?=.)")
_WEB = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def loose(name: str) -> str:
    """Return the form in which names of files are compared: in one Unicode form, without upper case."""
    return unicodedata.normalize("NFC", name).casefold()


def is_address(name: str) -> bool:
    r"""Return whether a name is an address ("https://..."), or a path from the root of a disk ("C:\...", "/...")."""
    return bool(_WEB.match(name) or re.match(r"[A-Za-z]:[\\/]|[\\/]", name))


def path_of(name: str) -> str:
    r"""Return the path in an address or in a name with percent-encoding or a query, with forward slashes.

    >>> path_of("https://host/up/a%20b.jpg?token=1"), path_of(r"C:\set\a.jpg")
    ('up/a b.jpg', 'C:/set/a.jpg')
    >>> path_of("/data/local-files/?d=set/b.jpg"), path_of("what?.jpg")
    ('set/b.jpg', 'what?.jpg')
    """
    text = name.strip()
    try:
        parts = urlsplit(text)
        queries = [value for values in parse_qs(parts.query).values() for value in values]
    except ValueError:
        return text.replace("\\", "/")
    if queries and not _is_photo(parts.path) and (named := [value for value in queries if _is_photo(value)]):
        text = named[0].lstrip("/")
    elif _WEB.match(text):
        text = unquote(parts.path).lstrip("/")
    elif "?" in text and _is_photo(text.partition("?")[0]):
        text = unquote(text.partition("?")[0])
    else:
        text = unquote(text)
    return text.replace("\\", "/")


def _is_photo(name: str) -> bool:
    return Path(name).suffix.lower() in EXTENSIONS


@final
class PhotosBelow:
    """All photos below a folder, by file name; hidden files and folders are skipped.

    If `split` is not "", folders of other splits are skipped as well. With `shards`, the root may be a shard or a URL,
    and a folder without photos has those of the shards in it.
    """

    def __init__(self, root: Path | None, split: str = "", *, shards: bool = False) -> None:
        self._split, self._shards = split, shards
        self._named: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        if root is not None:
            self._search(root)

    @classmethod
    def among(cls, paths: Iterable[str]) -> PhotosBelow:
        """Return given photos, by their paths with forward slashes and without a slash at the beginning."""
        found = cls(None)
        for path in paths:
            found._add(tuple(path.split("/")))
        return found

    def _add(self, parts: tuple[str, ...]) -> None:
        self._named[loose(parts[-1])].append(parts)
        self._named[loose(Path(parts[-1]).stem)].append(parts)

    def _search(self, root: Path) -> None:
        if self._shards and (isinstance(root, Url) or root.is_file()):
            self._add_all(list_url(root) if isinstance(root, Url) else list_shards(root, [""]))
            return
        seen, archives = 0, []
        for parent, folders, names in os.walk(root):
            seen += len(names) + len(folders)
            if seen > MOST_FILES:
                self._named.clear()
                break
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            inside = Path(parent).relative_to(root).parts
            for name in names:
                if _is_photo(name) and not is_hidden(name):
                    self._add((*inside, name))
                elif self._shards and is_shard(name) and not is_hidden(name):
                    archives.append("/".join((*inside, name)))
        if archives and not self._named:
            self._add_all(list_shards(root, sorted(archives)))

    def _add_all(self, found: Listing) -> None:
        for key in found.photos:
            self._add(tuple(key.split("/")))

    def ends(self, name: str) -> tuple[list[str], int]:
        """Return the keys that have the longest common end with a name, and the number of its common parts."""
        wanted = [part for part in path_of(name).split("/") if part not in ("", ".", "..")]
        if not wanted:
            return [], 0
        files = self._named.get(loose(wanted[-1]), [])
        if not files and (shorter := _UPLOAD.sub("", wanted[-1], count=1)) != wanted[-1]:
            files = self._named.get(loose(shorter), [])
        splits = {split for part in wanted[:-1] if (split := is_split(part))} or {self._split} - {""}
        files = [file for file in files if not splits or not _other_split(file, splits)]
        common = [1 + _common_end(file[:-1], wanted[:-1]) for file in files]
        most = max(common, default=0)
        return ["/".join(file) for file, n in zip(files, common, strict=True) if n == most], most


def _other_split(file: Sequence[str], splits: set[str]) -> bool:
    named = {split for part in file[:-1] if (split := is_split(part))}
    return bool(named) and not named & splits


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if loose(a) != loose(b)), min(len(one), len(other)))


def find_by_end(
    names: Iterable[str], root: Path | PhotosBelow, *, taken: Iterable[str] = (), split: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Find photos below a folder, or among given ones, by as much of the end of their name as is unique.

    Photos in folders of another split than the name, or else than `split`, are not used. A photo that another name has
    (`taken`, or a name with a longer common end) is not used again.

    Returns:
        The key of each name that is found, and why others are not: several photos, or several names, could be meant.
    """
    photos, used = root if isinstance(root, PhotosBelow) else PhotosBelow(root, split), {*taken}
    claims: dict[str, list[tuple[int, str]]] = defaultdict(list)
    why = {}
    for name in names:
        keys, common = photos.ends(name)
        keys = [key for key in keys if key not in used]
        if len(keys) > 1:
            why[name] = f"could be {quoted(keys[0])} or {quoted(keys[1])}; write more of the path"
        elif keys:
            claims[keys[0]].append((common, name))
    found: dict[str, str] = {}
    for key, claimed in claims.items():
        most = max(claimed)[0]
        first = [name for common, name in claimed if common == most]
        if len({path_of(name) for name in first}) == 1:
            found |= dict.fromkeys(first, key)
        else:
            why |= dict.fromkeys(first, f"could be {quoted(key)}, and so could {counted(len(first) - 1, 'other name')}")
    return found, why
