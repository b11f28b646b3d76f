"""Where each photo is in a shard. Indexes are made once and kept in the cache folder of the user."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.errors import DataError, DiskError
from fewtags.files import replacing
from fewtags.shards import remote
from fewtags.shards.places import is_compressed, is_url

CACHE_VARIABLE = "FEWTAGS_CACHE"
"""Environment variable that names another folder for what is made again if it is removed; empty: nothing is kept."""
_FORMAT = "1"
_MOST_OPEN = 256


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Index:
    """The files of a shard, in its order.

    Attributes:
        names: large binary [n], distinct names with forward slashes.
        rank: int64 [n], positions in `names`, sorted by name.
        starts: int64 [n], byte at which a file begins in a tar file; row of it in a Parquet file.
        sizes: int64 [n], bytes of each file; -1 where this is not known without reading it (Parquet).
        signature: changes with the shard.
        about: "kind", and what a reader found out.
    """

    names: pa.LargeBinaryArray
    rank: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    signature: str
    about: dict[str, Any]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def damage(self) -> str:
        """What is wrong with the shard, or ""."""
        return str(self.about.get("damage", ""))

    def find(self, name: str) -> int:
        """Return the position of a file; -1 if there is none of that name."""
        begins, letters, rank = self._columns
        wanted = os.fsencode(name)
        at = bisect_left(range(len(rank)), wanted, key=lambda n: bytes(letters[begins[rank[n]] : begins[rank[n] + 1]]))
        found = rank[at] if at < len(rank) else -1
        return found if found >= 0 and bytes(letters[begins[found] : begins[found + 1]]) == wanted else -1

    @cached_property
    def _columns(self) -> tuple[memoryview, memoryview, memoryview]:
        """Where names begin, their bytes, and the ranks: ten times faster to index than the arrays."""
        _, offsets, letters = self.names.buffers()
        begins = memoryview(offsets).cast("q")[self.names.offset :] if offsets else memoryview(b"")
        return begins, memoryview(letters or b""), np.ascontiguousarray(self.rank).data


def make_index(
    names: Iterable[bytes], starts: Sequence[int], sizes: Sequence[int], *, signature: str, about: dict[str, Any]
) -> Index:
    """Make an index of files in the order of their bytes."""
    order = np.argsort(np.array(starts, np.int64), kind="stable")
    column = pa.array(names, pa.large_binary()).take(pa.array(order))
    return Index(
        names=column,
        rank=np.asarray(pc.sort_indices(column), np.int64),
        starts=np.array(starts, np.int64)[order],
        sizes=np.array(sizes, np.int64)[order],
        signature=signature,
        about=about,
    )


def cache_folder() -> Path | None:
    """Return the folder for what can be made again: FEWTAGS_CACHE, or fewtags in the usual one; None: nowhere."""
    if (given := os.environ.get(CACHE_VARIABLE)) is not None:
        return Path(given) if given else None
    with suppress(RuntimeError):  # the user has no home
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fewtags"
    return None


_OPEN: dict[int, OrderedDict[str, Index]] = {}
_LOCKS: dict[int, Lock] = {}


def index_of(shard: str) -> Index:
    """Return the index of a shard: from memory, from the cache folder, or made now. A changed shard is read again.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the file cannot be used as a shard.
    """
    process = os.getpid()  # a fork may copy a held lock
    known = _OPEN.setdefault(process, _OPEN.get(os.getppid(), OrderedDict()).copy())
    with _LOCKS.setdefault(process, Lock()):
        found = known.get(shard)
        if found is not None and is_url(shard):  # asked once by each process
            return found
        signature = signature_of(shard)[1]
        if found is not None and found.signature == signature:
            known.move_to_end(shard)
            return found
        known[shard] = found = _load(shard, signature) or _make(shard, signature)
        while len(known) > _MOST_OPEN:
            known.popitem(last=False)
        return found


def signature_of(shard: str) -> tuple[int, str]:
    """Return the size of a file, and a text that changes with it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if is_url(shard):
        return remote.signature(shard)
    status = os.stat(shard)  # noqa: PTH116  # a Path for each photo costs more than the rest
    return status.st_size, f"{status.st_size} {status.st_mtime_ns}"


def _make(shard: str, signature: str) -> Index:
    from fewtags.shards.parquet import index_parquet
    from fewtags.shards.tar import index_tar

    shown = remote.url_of(shard)
    columns = shard.lower().endswith(".parquet")
    try:
        if is_url(shard):
            file = remote.open_in_parts(shard) if columns else remote.open_file(shard)
        else:
            file = Path(shard).open("rb")  # noqa: SIM115
        with file, remote.asking(shard):
            made = index_parquet(file, shown, signature) if columns else index_tar(file, shown, signature)
    except PermissionError as error:
        raise DataError(f"{shown}: cannot be opened ({error.strerror}); check its permissions.") from error
    _save(shard, made)
    return made


def _file(shard: str) -> Path | None:
    folder = cache_folder()
    name = remote.url_of(shard) if is_url(shard) else os.path.realpath(shard)
    digest = blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return None if folder is None else folder / "shards" / f"{digest}.arrow"


def _save(shard: str, index: Index) -> None:
    """Keep an index in the cache folder, if that can be written."""
    if (path := _file(shard)) is None:
        return
    about = {"format": _FORMAT, "signature": index.signature, "about": json.dumps(index.about)}
    columns = {"name": index.names, "rank": index.rank, "start": index.starts, "size": index.sizes}
    table = pa.table(columns).replace_schema_metadata(about)
    with suppress(OSError, DiskError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
            writer.write_table(table)


def _load(shard: str, signature: str) -> Index | None:
    """Return the index in the cache folder; None if there is none of this state of the shard.

    The file is mapped, so that processes share its memory.
    """
    if (path := _file(shard)) is None or not path.exists():
        return None
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks()
        about = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if about.get("format") != _FORMAT or about.get("signature") != signature:
            return None
        names = table["name"].chunk(0) if len(table) else pa.array([], pa.large_binary())
        return Index(
            names=names,
            rank=table["rank"].to_numpy(),
            starts=table["start"].to_numpy(),
            sizes=table["size"].to_numpy(),
            signature=signature,
            about=json.loads(about["about"]),
        )
    except (OSError, ValueError, LookupError, pa.ArrowException):  # damaged: it is made again
        return None


def refuse_compressed(shard: str) -> None:
    """Raise `DataError` for a name of a compressed tar file, before anything is read."""
    if is_compressed(shard):
        raise DataError(
            f"{shard}: is compressed, so no photo can be read without all before it; unpack it to a .tar file."
        )
