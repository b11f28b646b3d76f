"""Names of places: local paths, URLs, and shards, which are tar and Parquet files with photos in them.

A photo in a shard is named as if the shard were a folder: `photos-000.tar/cat/1.jpg`. So the root of a label table and
its keys work for shards as they do for folders.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import final

from fewtags.errors import DataError

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(?=[^/])")
_COMPRESSED = r"tgz|tbz2?|txz|tar\.(?:gz|bz2|xz|zst|lz4)"
_SHARD = re.compile(rf"\.(?:tar|parquet|{_COMPRESSED})(?=/|$)", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")


@final
class Url(PosixPath):
    """A URL as a path, so that `root / key` and `relative_to` work. Two slashes in a row are one, except the first."""

    def __str__(self) -> str:
        text = super().__str__()
        if not (found := _URL.match(text)):  # a part of a URL, of `relative_to`
            return text
        return f"{found[1]}://{text[found.end() :]}"

    def __fspath__(self) -> str:
        return str(self)

    def absolute(self) -> Url:
        """Return the URL itself."""
        return self

    def resolve(self, strict: bool = False) -> Url:  # noqa: ARG002
        """Return the URL itself."""
        return self

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether there is something at the URL; a `DataError` if the server cannot be asked."""
        from fewtags.shards.remote import exists

        return exists(str(self))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is a folder; a `DataError` if the server cannot be asked."""
        from fewtags.shards.remote import is_dir

        return is_dir(str(self))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether it is a file; a `DataError` if the server cannot be asked."""
        return self.exists() and not self.is_dir()


def is_url(text: str) -> bool:
    """Return whether a text is a URL, or one that went through `Path` and lost a slash.

    >>> is_url("s3://bucket/a.jpg"), is_url("s3:/bucket/a.jpg"), is_url("C:/a.jpg"), is_url("a/b.jpg")
    (True, True, False, False)
    """
    return _URL.match(text) is not None


def place(given: Path | str) -> Path:
    """Return a path, or a `Url` for a URL; file:// is a path.

    >>> str(place(Path("s3://bucket/a.jpg"))), str(place("a/b.jpg"))
    ('s3://bucket/a.jpg', 'a/b.jpg')
    """
    text = os.fspath(given)
    if not (found := _URL.match(text)):
        return given if isinstance(given, Path) else Path(given)
    return Path("/" + text[found.end() :]) if found[1] == "file" else Url(text)


def is_shard(name: str) -> bool:
    """Return whether a name has the ending of a shard, also of one that is compressed, which cannot be read."""
    found = None
    for found in _SHARD.finditer(name):  # noqa: B007
        pass
    return found is not None and found.end() == len(name)


def is_compressed(name: str) -> bool:
    """Return whether a name has the ending of a compressed tar file."""
    return re.search(rf"\.(?:{_COMPRESSED})$", name, re.IGNORECASE) is not None


def splits(path: str) -> Iterator[tuple[str, str]]:
    """Yield the shard and the name of the photo in it, for each way to read a path; a folder may be called x.tar.

    >>> list(splits("data/x.tar/cat/1.jpg"))
    [('data/x.tar', 'cat/1.jpg')]
    """
    for found in _SHARD.finditer(path):
        if found.end() < len(path):
            yield path[: found.end()], path[found.end() + 1 :]


def spread(pattern: str) -> list[str]:
    """Return the names that braces stand for, as a shell does.

    >>> spread("x-{08..10}.tar"), spread("{a,b}.tar")
    (['x-08.tar', 'x-09.tar', 'x-10.tar'], ['a.tar', 'b.tar'])
    """
    if found := _RANGE.search(pattern):
        low, high = found[1], found[2]
        width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
        words = [f"{n:0{width}d}" for n in range(int(low), int(high) + 1)]
        if not words:
            raise DataError(f"{pattern}: {found[0]} has no number; write the smaller one first.")
    elif found := _LIST.search(pattern):
        words = found[1].split(",")
    else:
        return [pattern]
    start, end = pattern[: found.start()], pattern[found.end() :]
    return [*itertools.chain.from_iterable(spread(start + word + end) for word in words)]


def expand(given: Path | str) -> list[Path]:
    """Return the places that a path, a URL or a pattern names: `{000..009}`, `{a,b}`, `*`, `?`, `[...]`.

    A path that exists is not a pattern, whatever its characters.

    Raises:
        DataError: nothing matches a pattern.
    """
    whole = place(given)
    text = str(whole)
    if not re.search(r"[*?\[{]", text) or (not isinstance(whole, Url) and os.path.lexists(text)):
        return [whole]
    out: list[Path] = []
    for one in spread(text):
        if not glob.has_magic(one) or (isinstance(whole, Url) and text.startswith("http")):  # ? begins a query
            out.append(place(one))
            continue
        if isinstance(whole, Url):
            from fewtags.shards.remote import matches

            found = matches(one)
        else:
            found = sorted(glob.glob(one, recursive=True))  # noqa: PTH207  # a text may have a root or `**`
        if not found:
            raise DataError(f"{one}: nothing has such a name; check the pattern and the folder.")
        out += map(place, found)
    return out
