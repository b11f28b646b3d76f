"""Write predictions to files."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from fewtags.cli.chunks import Chunk, Chunks, describe_job
from fewtags.cli.progress import counting, say
from fewtags.engine.model import ModelInfo
from fewtags.engine.onnx_net import Predictor
from fewtags.engine.predict import Engine, Prediction, decide, predict_photos
from fewtags.errors import ConfigError
from fewtags.nets.zero_shot import ZeroShotNet
from fewtags.shards.places import place
from fewtags.text import MOST_NAMED, counted, printable, safe_cell

FORMATS = (".csv", ".parquet", ".jsonl")
ROWS_PER_GROUP, CELLS_PER_GROUP = 50_000, 20_000_000
CHUNK_SECONDS = 10.0
"""Seconds of work that a kill loses at most, beside the batch that is computed."""
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")


def text_name(path: Path) -> str:
    r"""Return a path as UTF-8 text; other bytes and control characters become `\xNN`, and backslashes are then doubled.

    Different paths give different texts: in a path that spells `\xNN` itself, backslashes are doubled, too.

    >>> print(text_name(Path("caf\udce9.jpg")), text_name(Path(r"caf\xe9.jpg")), text_name(Path("café.jpg")))
    caf\xe9.jpg caf\\xe9.jpg café.jpg
    """
    raw = os.fsencode(path)
    name = raw.decode("utf-8", "surrogateescape")
    if not _ESCAPE.search(name) and printable(name) == name and "\n" not in name and "\t" not in name:
        return name
    text = printable(raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))
    return text.replace("\n", r"\x0a").replace("\t", r"\x09")


def escaped_names(names: Sequence[str]) -> str:
    """Return one line about photos whose names `text_name` changed."""
    return (
        f"{counted(len(names), 'photo has', 'photos have')} a name that is not UTF-8 or has control characters, "
        f"written with \\xNN for these bytes and \\\\ for a backslash: {names[0]}{', ...' if len(names) > 1 else ''}"
    )


def no_effect_on_wide(option: str) -> str:
    """Return why an option about tags cannot be given with --wide."""
    return f"--wide writes the probabilities of all classes, so {option} has no effect; remove one option."


@final
class PredictionWriter:
    """Write predictions to CSV, Parquet or JSON lines; the file gets its name when it is complete.

    Long form (default): image, class, name, probability, threshold; one row per tag, best first. A photo without a tag
    has no row and is counted. Wide form: image, then one column per class with its probability. Photos that cannot be
    read get a table of their own beside the file, NAME.unreadable.ENDING: image, reason.

    Without a file, CSV is written to stdout. `raw` writes texts into CSV cells unchanged, see `text.safe_cell`.

    Attributes:
        photos: number of photos that are done, with those of an interrupted command.
    """

    def __init__(
        self,
        out: Path | None,
        info: ModelInfo,
        wide: bool,
        max_tags: int | None,
        *,
        raw: bool = False,
    ) -> None:
        self._format = ".csv" if out is None else out.suffix.lower()
        if self._format not in FORMATS:
            raise ConfigError(f"--out {out}: expected a file ending in {', '.join(FORMATS)}.")
        if wide and max_tags is not None:
            raise ConfigError(no_effect_on_wide("--max-tags"))
        if wide and "image" in info.class_ids:
            raise ConfigError("a class is named 'image', like the column of the photos; leave out --wide.")
        self.out, self.info, self.wide, self.max_tags = out, info, wide, max_tags
        self.settings: dict[str, Any] = {"wide": wide, "max_tags": max_tags, "raw": raw}
        self.thresholds = np.array(info.thresholds)
        words, numbers = (
            (("image",), info.class_ids) if wide else (("image", "class", "name"), ("probability", "threshold"))
        )
        self.schema = pa.schema([(w, pa.string()) for w in words] + [(number, pa.float64()) for number in numbers])
        self._group = max(1, min(ROWS_PER_GROUP, CELLS_PER_GROUP // len(self.schema)))
        self._cell: Callable[[str], str] = str if raw else safe_cell
        self.photos = 0
        self._chunks: Chunks | None = None
        self._streamed: list[Chunk] = []
        self._batch = 1
        self._begin()

    def _begin(self) -> None:
        """Begin a chunk."""
        self._images: list[str] = []
        self._tags: list[tuple[str, str, str, float, float]] = []
        self._prob: list[NDArray[np.float64]] = []
        self._photos, self._untagged = 0, 0
        self._escaped: list[str] = []
        self._failed: list[tuple[str, str]] = []
        self._since = time.monotonic()

    @property
    def unreadable(self) -> Path | None:
        """The table of the photos that cannot be read."""
        return None if self.out is None else self.out.with_name(f"{self.out.stem}.unreadable{self.out.suffix}")

    @property
    def _complete(self) -> list[Chunk]:
        return self._streamed if self._chunks is None else self._chunks.complete

    @contextmanager
    def writing(self, job: Mapping[str, str], batch_size: int, *, restart: bool = False) -> Iterator[None]:
        """Open the file; at the end, write what is left and complete it.

        If a command with the same `job` (`describe_job`) was interrupted, its photos are done: give those after
        `photos` to `add`. Chunks end with a batch, so that the batches are those of a command that was not interrupted.

        Raises:
            CheckpointError: another process writes the same file.
            ConfigError: the command that was interrupted had another job; `restart` drops what it did.
        """
        self._batch = batch_size
        if self.out is None:
            sys.stdout.write(self._header(self.schema.names))
            yield
            self._flush()
            return
        self._chunks = Chunks(self.out, job)
        with self._chunks.open(restart):
            self.photos, self._since = self._chunks.photos, time.monotonic()
            yield
            self._flush()
            with self._chunks.publishing(self.out) as temporary:
                self._join(temporary, self._chunks.paths())
            self._write_unreadable(self._chunks)
            self._chunks.finish()

    def add(self, found: Prediction) -> None:
        """Add one prediction."""
        self.photos += 1
        self._photos += 1
        image = text_name(place(str(found.path)))
        if image != str(found.path):
            self._escaped.append(image)
        if found.prob is None:
            self._failed.append((image, found.error.removeprefix(f"{found.path}: ")))
        elif self.wide:
            self._images.append(image)
            self._prob.append(found.prob.round(6))
        else:
            self._add_tags(image, found.prob)
        if self._photos % self._batch == 0 and self._is_due():
            self._flush()

    def _add_tags(self, image: str, prob: NDArray[np.float64]) -> None:
        ids, names = self.info.class_ids, self.info.classes.display
        tags = decide(prob, self.thresholds, self.max_tags, self.info.groups)
        self._untagged += not len(tags)
        for c in tags:
            row = (image, ids[c], names[c], round(float(prob[c]), 6), round(float(self.thresholds[c]), 6))
            self._tags.append(row)

    def _is_due(self) -> bool:
        full = max(len(self._images), len(self._tags)) >= self._group
        return self._chunks is None or full or time.monotonic() >= self._since + CHUNK_SECONDS

    def _flush(self) -> None:
        """End the chunk; a closed pipe raises here, not when the interpreter ends."""
        chunk = Chunk(self._photos, self._untagged, tuple(self._escaped), tuple(self._failed))
        if self._chunks is None:
            sys.stdout.write(self._text(self._table()))
            sys.stdout.flush()
            self._streamed.append(chunk)
        elif chunk.photos:
            self._chunks.add(chunk, lambda path: self._write(path, self._table()))
        self._begin()

    def _table(self) -> pa.Table:
        if not self.wide:
            columns: Iterable[Any] = zip(*self._tags, strict=True) if self._tags else [()] * len(self.schema)
        else:
            columns = [self._images, *np.stack(self._prob).T] if self._prob else [()] * len(self.schema)
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)], schema=self.schema)

    def _write(self, path: Path, table: pa.Table, start: str = "") -> None:
        if self._format == ".parquet":
            pq.write_table(table, path)
        else:
            path.write_text(start + self._text(table), "utf-8", newline="")

    def _text(self, table: pa.Table) -> str:
        if self._format == ".jsonl":
            return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
        columns = [
            [self._cell(value) for value in column.to_pylist()]
            if pa.types.is_string(column.type)
            else column.to_pylist()
            for column in table.columns
        ]
        return csv_lines(zip(*columns, strict=True))

    def _header(self, names: Sequence[str]) -> str:
        return csv_lines([map(self._cell, names)]) if self._format == ".csv" else ""

    def _join(self, out: Path, chunks: list[Path]) -> None:
        """Write a file from its chunks. Row groups have the same number of rows, wherever the chunks end."""
        if self._format != ".parquet":
            with out.open("wb") as file:
                file.write(self._header(self.schema.names).encode())
                for path in chunks:
                    with path.open("rb") as chunk:
                        shutil.copyfileobj(chunk, file)
            return
        rows = self.schema.empty_table()
        with pq.ParquetWriter(out, self.schema) as parquet:
            for path in chunks:
                rows = pa.concat_tables([rows, pq.read_table(path)])
                while rows.num_rows >= self._group:
                    parquet.write_table(rows.slice(0, self._group))
                    rows = rows.slice(self._group)
            if rows.num_rows:
                parquet.write_table(rows)

    def _write_unreadable(self, chunks: Chunks) -> None:
        """Write the table of the photos that cannot be read, or remove that of an earlier command."""
        assert self.unreadable is not None
        rows = [row for chunk in self._complete for row in chunk.failed]
        if not rows:
            self.unreadable.unlink(missing_ok=True)
            return
        table = pa.table([*map(list, zip(*rows, strict=True))], ["image", "reason"])
        with chunks.publishing(self.unreadable) as temporary:
            self._write(temporary, table, self._header(table.column_names))

    @property
    def failed(self) -> int:
        """Number of photos that could not be read."""
        return sum(len(chunk.failed) for chunk in self._complete)

    def notes(self) -> Iterator[str]:
        """Say which photos have no row, or another name than their file."""
        if untagged := sum(chunk.untagged for chunk in self._complete):
            yield f"{untagged:,} of {self.photos:,} photos have no tag and no row; --wide writes all photos."
        escaped = [name for chunk in self._complete for name in chunk.escaped]
        if escaped:
            yield escaped_names(escaped)
        failed = [f"skipped: {image}: {reason}" for chunk in self._complete for image, reason in chunk.failed]
        if self.out is None:
            yield from failed
            return
        yield from failed[:MOST_NAMED]
        if len(failed) > MOST_NAMED:
            yield f"skipped: {len(failed) - MOST_NAMED:,} more, see {self.unreadable}"


@final
@dataclass(frozen=True)
class PredictOptions:
    """How photos go through a net.

    Attributes:
        device: of the net.
        batch_size: photos per batch.
        workers: processes of the local engine that decode photos; 0: none.
        restart: drop what a command did that was interrupted.
        engine: computes the predictions; None: this process.
    """

    device: torch.device
    batch_size: int
    workers: int
    restart: bool = False
    engine: Engine | None = None


def write_predictions(
    net: Predictor | ZeroShotNet,
    info: ModelInfo,
    paths: Sequence[Path],
    writer: PredictionWriter,
    options: PredictOptions,
    task: str,
) -> int:
    """Predict photos, show the progress under the name `task`, and return the number of photos that cannot be read.

    What an interrupted command did counts for every engine, because all engines give the same numbers.
    """
    size, job = options.batch_size, {}

    def local(paths: Sequence[Path]) -> Iterator[Prediction]:
        return predict_photos(net, info, paths, options.device, batch_size=size, workers=options.workers)

    engine = options.engine or local
    if writer.out is not None:
        settings = {**writer.settings, "batch": size, "device": options.device.type}
        job = describe_job(net, info, paths, settings)
    with counting(task, quiet=writer.out is None) as tick, writer.writing(job, size, restart=options.restart):
        if writer.photos:
            say(f"continuing after {writer.photos:,} of {counted(len(paths), 'photo')}")
        rest = paths[writer.photos :]
        for done, one in enumerate(engine(rest), 1):
            writer.add(one)
            tick(done, len(rest))
    say(*writer.notes())
    return writer.failed


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as lines of a CSV file."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
