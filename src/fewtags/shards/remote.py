"""Files behind URLs, through fsspec. Each process opens its own connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO, cast, final

from fewtags.errors import DataError, FewtagsError
from fewtags.shards.places import is_url

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Protocol -> the extra of fewtags that installs what it needs; for others, fsspec's own text says it."""
AHEAD = 8 * 2**20
"""Bytes that are read at once where photos are read in the order of a shard."""
_NEAR = 2**20


def url_of(text: str) -> str:
    """Return a URL with its two slashes, and a local path as it is."""
    if not is_url(text):
        return text
    scheme, _, rest = text.partition(":/")
    return f"{scheme}://{rest.lstrip('/')}"


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it; fsspec keeps file systems, for each process its own.

    Raises:
        DataError: a package is missing, or the protocol is not known.
    """
    import fsspec.core
    from fsspec.registry import known_implementations

    url = url_of(url)
    protocol = url.partition(":")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        needed = known_implementations.get(protocol, {}).get("err", str(error))
        cure = f"pip install 'fewtags[{EXTRAS[protocol]}]'" if protocol in EXTRAS else str(needed).rstrip(".")
        raise DataError(f"{url}: {protocol}:// needs another package: {cure}.") from error
    except ValueError as error:
        known = "write s3://, gs://, hf://, https:// or a path"
        raise DataError(f"{url}: {protocol}:// is not a protocol that fsspec knows; {known}.") from error
    return system, cast(str, path)


@contextmanager
def asking(url: str) -> Iterator[None]:
    """Turn the errors of a server into a `DataError` in one sentence; `FileNotFoundError` stays what it is.

    Errors about a local path stay what they are.
    """
    try:
        yield
    except (FewtagsError, FileNotFoundError):
        raise
    except Exception as error:  # every protocol has its own exceptions
        if not is_url(url):
            raise
        lines = str(error).strip().splitlines() or ["without a message"]
        raise DataError(
            f"{url_of(url)}: cannot be read ({type(error).__name__}: {lines[0][:200].rstrip('.')}); check the address, "
            "your access and the network."
        ) from error


def missing(url: str) -> DataError:
    """Return the error about a URL at which there is nothing."""
    return DataError(f"{url_of(url)} does not exist; check the bucket or host, and the path in it.")


def exists(url: str) -> bool:
    """Return whether there is something at a URL."""
    system, path = file_system(url)
    with asking(url):
        try:
            system.info(path)
        except FileNotFoundError:
            return False
    return True


def is_dir(url: str) -> bool:
    """Return whether there is a folder at a URL."""
    system, path = file_system(url)
    with asking(url):
        return bool(system.isdir(path))


def matches(pattern: str) -> list[str]:
    """Return the sorted URLs that match a pattern."""
    system, path = file_system(pattern)
    with asking(pattern):
        return [system.unstrip_protocol(found) for found in sorted(system.glob(path))]


def files_below(url: str) -> dict[str, int]:
    """Return the path below a folder, and the size (-1: unknown), of all files in it, sorted."""
    system, path = file_system(url)
    start = path.rstrip("/") + "/"
    with asking(url):
        found = system.find(path, detail=True)
    return {
        name.removeprefix(start): -1 if info.get("size") is None else int(info["size"])
        for name, info in sorted(found.items())
        if name.startswith(start)
    }


def open_file(url: str) -> BinaryIO:
    """Open a file to read it from the beginning to the end, with seeks forward."""
    system, path = file_system(url)
    with asking(url):
        return cast(BinaryIO, system.open(path, "rb", block_size=AHEAD // 2, cache_type="readahead"))


def open_in_parts(url: str) -> BinaryIO:
    """Open a file to read parts of it, each of them once."""
    system, path = file_system(url)
    with asking(url):
        return cast(BinaryIO, system.open(path, "rb", cache_type="none"))


def signature(url: str) -> tuple[int, str]:
    """Return the size of a file (-1: unknown), and a text that changes with it: of its size, time and ETag.

    Raises:
        FileNotFoundError: there is nothing.
    """
    system, path = file_system(url)
    with asking(url):
        info = system.info(path)
    text = repr(sorted((key, value) for key, value in info.items() if isinstance(key, str)))
    size = -1 if info.get("size") is None else int(info["size"])
    return size, blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


@final
@dataclass
class _Block:
    """The bytes that were read last from a file."""

    lock: threading.Lock
    start: int = 0
    content: bytes = b""
    end: int = -1  # where the last photo ended


_MOST_BLOCKS = 16
_BLOCKS: dict[tuple[int, str], _Block] = {}
_GUARDS: dict[int, threading.Lock] = {}


def read_range(url: str, start: int, stop: int) -> bytes:
    """Return the bytes start..stop of a file.

    If they follow those that were read last, `AHEAD` bytes are read at once: photos in the order of a shard need one
    request for many of them. In random order, each photo is a request of its own.
    """
    key = (os.getpid(), url)
    with _GUARDS.setdefault(key[0], threading.Lock()):  # one per process: a fork may copy a held lock
        block = _BLOCKS.pop(key, None) or _Block(threading.Lock())
        _BLOCKS[key] = block
        while len(_BLOCKS) > _MOST_BLOCKS:
            del _BLOCKS[next(iter(_BLOCKS))]
    system, path = file_system(url)
    with block.lock:
        at = start - block.start
        if at < 0 or stop > block.start + len(block.content):
            follows = block.end <= start <= block.end + _NEAR if block.end >= 0 else start <= _NEAR
            with asking(url):
                content = bytes(system.cat_file(path, start=start, end=max(stop, start + AHEAD) if follows else stop))
            if not follows:
                block.end = stop
                return content[: stop - start]
            block.start, block.content, at = start, content, 0
        block.end = max(block.end, stop)
        return block.content[at : at + stop - start]


def read_whole(url: str) -> bytes:
    """Return the bytes of a file."""
    system, path = file_system(url)
    with asking(url):
        return bytes(system.cat_file(path))
