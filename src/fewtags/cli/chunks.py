"""A table that is written in chunks beside its file, so that a command that was killed continues after the last one.

The chunks are in a hidden folder, `.NAME.partial` for the file NAME. At the end they are joined and removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fewtags.cli.progress import say
from fewtags.engine.inference import CompiledBackbone
from fewtags.engine.model import ModelInfo
from fewtags.engine.onnx_net import OnnxNet, Predictor
from fewtags.engine.run_lock import LOCK_FILE, locked
from fewtags.engine.tensor_files import checksum
from fewtags.errors import ConfigError
from fewtags.files import remove_temporary_files, replacing, write_text, writing
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.decode import PIXEL_LIMIT_VARIABLE
from fewtags.text import counted

if TYPE_CHECKING:
    from fewtags.nets.zero_shot import ZeroShotNet

FORMAT = 1
JOB_FILE = "job.json"


@final
@dataclass(frozen=True)
class Chunk:
    """What is known about the photos of a chunk beside its rows.

    Attributes:
        photos: their number.
        untagged: number of photos without a row.
        escaped: written names of photos whose names are not UTF-8.
        failed: the written name of each photo that could not be read, and why.
    """

    photos: int
    untagged: int = 0
    escaped: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


def describe_job(
    net: Predictor | ZeroShotNet, info: ModelInfo, paths: Sequence[Path], settings: Mapping[str, object]
) -> dict[str, str]:
    """Return checksums of all that a table depends on: the model, its settings, and the list of photos."""
    weights = checksum(net.state_dict())
    if isinstance(net, OnnxNet):
        with net.path.open("rb") as file:
            weights = hashlib.file_digest(file, "sha256").hexdigest()
    listed = hashlib.sha256()
    for path in paths:
        listed.update(os.fsencode(path) + b"\0")
    rest = {**asdict(info), **settings, "limit": os.environ.get(PIXEL_LIMIT_VARIABLE)}
    if isinstance(net, SpatialNet):
        rest |= {"precision": net.precision, "compiled": isinstance(net.backbone, CompiledBackbone)}
    return {
        "model": weights,
        "settings": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest(),
        "photos": listed.hexdigest(),
    }


@final
class Chunks:
    """The chunks of one table. Other processes are kept out while it is open.

    Args:
        out: the file of the table. Its chunks have the same ending.
        job: what the table depends on, see `describe_job`.

    Attributes:
        complete: the chunks that are on disk, in order.
    """

    def __init__(self, out: Path, job: Mapping[str, str]) -> None:
        self.out, self._job = out, {"format": str(FORMAT), **job}
        place = out.resolve() if out.is_symlink() else out
        self._folder = place.with_name(f".{place.name}.partial")
        self.complete: list[Chunk] = []
        self._finished = False

    @property
    def photos(self) -> int:
        """Number of photos in the complete chunks."""
        return sum(chunk.photos for chunk in self.complete)

    def paths(self) -> list[Path]:
        """The files with the rows of the complete chunks, in order."""
        return [self._path(n) for n in range(len(self.complete))]

    def _path(self, n: int) -> Path:
        return self._folder / f"{n:08d}{self.out.suffix.lower()}"

    @contextmanager
    def open(self, restart: bool) -> Iterator[None]:
        """Read the chunks that an interrupted command left; `restart` drops them. An error or a kill keeps them.

        Raises:
            CheckpointError: another process writes the same table.
            ConfigError: the chunks belong to another job.
        """
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self._folder):
                if restart:
                    self._remove()
                self._read()
                try:
                    yield
                except BaseException:
                    if self.complete:
                        kept = counted(self.photos, "photo is", "photos are")
                        say(f"{kept} kept; the same command continues after them.")
                    raise
                finally:
                    if self._finished or not self.complete:
                        self._remove()
        finally:
            with suppress(OSError):  # there are chunks to continue from, or another process has begun
                self._folder.rmdir()

    def _read(self) -> None:
        remove_temporary_files(self._folder)
        before = _load(self._folder / JOB_FILE)
        if before is None:
            self._remove()
        while self._path(len(self.complete)).exists() and (content := self._state(len(self.complete))) is not None:
            failed = tuple((name, reason) for name, reason in content["failed"])
            self.complete.append(Chunk(content["photos"], content["untagged"], tuple(content["escaped"]), failed))
        if self.complete and before != self._job:
            raise ConfigError(
                f"{self.out}: a command that was interrupted after {counted(self.photos, 'photo')} had "
                f"{self._differences(before or {})}. Repeat that command to continue it, or pass --restart to drop "
                "its photos."
            )
        write_text(self._folder / JOB_FILE, json.dumps(self._job))

    def _state(self, n: int) -> dict[str, Any] | None:
        return _load(self._path(n).with_suffix(".json"))

    def _differences(self, before: Mapping[str, str]) -> str:
        names = [name for name in ("model", "settings", "photos") if before.get(name) != self._job[name]]
        return " and ".join({"model": "another model"}.get(name, f"other {name}") for name in names) or "another format"

    def add(self, chunk: Chunk, write: Callable[[Path], None]) -> None:
        """Write a chunk; it counts once its state is written."""
        path = self._path(len(self.complete))
        with replacing(path) as temporary:
            write(temporary)
        write_text(path.with_suffix(".json"), json.dumps(asdict(chunk)))
        self.complete.append(chunk)

    @contextmanager
    def publishing(self, path: Path) -> Iterator[Path]:
        """Yield the path of a temporary file in the hidden folder, which a kill may leave; at the end it is renamed."""
        path = path.resolve() if path.is_symlink() else path
        temporary = self._folder / f"joined{path.suffix}"
        with replacing(temporary) as part:
            yield part
        with writing(path):
            temporary.replace(path)

    def finish(self) -> None:
        """Remove the chunks when this is closed: the table is written."""
        self._finished = True

    def _remove(self) -> None:
        # Without this file, the others count for nothing, also if this process is killed now.
        (self._folder / JOB_FILE).unlink(missing_ok=True)
        for path in self._folder.iterdir():
            if path.name != LOCK_FILE:
                path.unlink()


def _load(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if it does not exist or is damaged, so that its chunk is made again."""
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return content
