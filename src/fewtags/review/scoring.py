"""Make the questions of a model, and find the labels that it contradicts, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

import numpy as np

from fewtags.engine.inference import load_predictor
from fewtags.engine.machine import torch_device
from fewtags.engine.places import model_path
from fewtags.engine.predict import ScoredTable, matched, score_table
from fewtags.errors import DataError, FewtagsError
from fewtags.files import write_text
from fewtags.review.orders import DEFAULT_ORDER
from fewtags.review.questions import Box, Question, evidence_boxes, run_share, suggest_from
from fewtags.review.suspicious import Suspicion, find_suspicious
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

MOST_QUESTIONS = 20_000
PER_CLASS = 300
MOST_SUSPICIOUS = 1_000
CHUNK = 64
"""Photos between two reports of progress."""
EVIDENCE_CHUNK = 64
"""Photos whose evidence is found at once; their questions are published after each chunk."""
NICE = 10
"""The process yields to the page, which must answer at once."""


@final
@dataclass(frozen=True)
class Progress:
    """What the process is doing: photos (or questions) done and to do, and the error that ended it."""

    doing: str = "starts"
    done: int = 0
    total: int = 0
    error: str = ""
    finished: bool = False


@final
@dataclass(frozen=True)
class Found:
    """What a model asks about: unknown cells, and labels that may be wrong; the most useful first."""

    questions: list[Question] = field(default_factory=list)
    suspicious: list[Suspicion] = field(default_factory=list)


CellName = tuple[str, str]
"""Key of a photo, and id of a class."""
Publish = Callable[[Found, bool], None]
"""Takes what was found, and whether it is all there is; else it is part of what came before, with evidence."""


@final
class Scoring:
    """Makes the questions about a table with the model of a run, and publishes them.

    The questions are kept in `folder`; a later start with the same model and labels publishes them at once.

    Args:
        run: the run whose model asks.
        table: the photos, and what is known about them.
        folder: for the questions; it exists.
        publish: called from a thread of this process.
        order: a key of `orders.ORDERS`; None for the default.
        cpu: do not use a GPU.
    """

    def __init__(
        self, run: Path, table: LabelTable, folder: Path, publish: Publish, *, order: str | None, cpu: bool
    ) -> None:
        self.progress = Progress()
        self._publish = publish
        self._process: multiprocessing.process.BaseProcess | None = None
        known = questions_file(folder, run, table, order)
        if known.exists():
            with suppress(ValueError, TypeError, KeyError, OSError):  # else it is made again
                publish(read_questions(known), True)
                self.progress = Progress(doing="ready", finished=True)
                return
        save(table, folder / "asked.parquet", keep_root=True)
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe(duplex=False)
        arguments = (theirs, run, folder / "asked.parquet", known, order, cpu)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._listen, args=(mine,), daemon=True).start()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _listen(self, pipe: Connection) -> None:
        try:
            while True:
                got = pipe.recv()
                if isinstance(got, Progress):
                    self.progress = got
                else:
                    self._publish(*got)
        except (EOFError, OSError):
            if not self.progress.finished and not self.progress.error:
                self.progress = Progress(error="the process that makes the questions was ended; start review again.")


def questions_file(folder: Path, run: Path, table: LabelTable, order: str | None) -> Path:
    """Return where the questions of a model about a table are kept; another model or other labels have another file."""
    place = model_path(run)
    stat = place.stat()
    words = (place.resolve(), stat.st_mtime_ns, stat.st_size, table.fingerprint, table.root, order)
    name = hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=8).hexdigest()
    return folder / f"questions-{name}.json"


def write_questions(path: Path, found: Found) -> None:
    """Write what a model asks about to a file."""
    write_text(path, json.dumps(asdict(found)))


def read_questions(path: Path) -> Found:
    """Read what `write_questions` wrote."""
    content = json.loads(path.read_text("utf-8"))
    return Found(
        [Question(**_with_box(row)) for row in content["questions"]],
        [Suspicion(**_with_box(row)) for row in content["suspicious"]],
    )


def _with_box(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "box": None if row["box"] is None else tuple(row["box"])}


def _work(pipe: Connection, run: Path, asked: Path, known: Path, order: str | None, cpu: bool) -> None:
    with suppress(OSError):
        os.nice(NICE)
    try:
        parts: list[Found] = []
        for found in make_questions(run, load(asked), order=order, cpu=cpu, tell=pipe.send):
            pipe.send((found, not parts))
            parts.append(found)
        if parts:
            write_questions(known, improved(*parts))
        pipe.send(Progress(doing="ready", finished=True))
    except BrokenPipeError:
        pass  # the server has gone
    except (FewtagsError, OSError) as error:
        with suppress(BrokenPipeError):
            pipe.send(Progress(error=str(error)))


def improved(every: Found, *parts: Found) -> Found:
    """Return all questions and labels, those of the parts with their evidence."""
    questions = {(q.image, q.class_): q for found in (every, *parts) for q in found.questions}
    suspicious = {(s.image, s.class_): s for found in (every, *parts) for s in found.suspicious}
    return Found([*questions.values()], [*suspicious.values()])


def make_questions(
    run: Path, table: LabelTable, *, order: str | None, cpu: bool, tell: Callable[[Progress], None]
) -> Iterator[Found]:
    """Yield all questions about a table and its suspicious labels without evidence; then parts of them with evidence.

    Raises:
        DataError: no photo can be read, or the model knows none of the classes.
    """
    net, info = load_predictor(run, torch_device(cpu))
    table, _ = matched(info, table)
    parts: list[ScoredTable] = []
    problem: DataError | None = None
    for start in range(0, len(table), CHUNK):
        tell(Progress("looks at the photos", start, len(table)))
        rows = np.arange(start, min(start + CHUNK, len(table)))
        try:
            part = score_table(net, info, table.subset(rows), cpu=cpu)
        except DataError as error:  # of 64 photos, none can be read
            problem = error
            continue
        parts.append(ScoredTable(index=part.index + start, logits=part.logits, labels=part.labels))
    if not parts:
        raise problem or DataError("there is no photo to ask about.")
    scored = ScoredTable(
        index=np.concatenate([p.index for p in parts]),
        logits=np.concatenate([p.logits for p in parts]),
        labels=np.concatenate([p.labels for p in parts]),
    )
    tell(Progress("chooses the questions", len(table), len(table)))
    share = run_share(run, info)
    asked = suggest_from(
        scored, info, table, share, order=order or DEFAULT_ORDER, limit=MOST_QUESTIONS, per_class=PER_CLASS
    )
    wrong = find_suspicious(scored, info, table, share, limit=MOST_SUSPICIOUS)
    yield Found(asked, wrong)
    yield from with_evidence(Found(asked, wrong), lambda cells: evidence_boxes(cells, net, info, table, cpu=cpu), tell)


def with_evidence(
    every: Found,
    find: Callable[[list[CellName]], list[Box | None]],
    tell: Callable[[Progress], None],
    *,
    photos: int = EVIDENCE_CHUNK,
) -> Iterator[Found]:
    """Yield parts of what was found, with boxes: all about `photos` photos at a time, so each is looked at once.

    Of both kinds, the photos of the first ones come first. `find` returns the boxes of cells.
    """
    of_photo: dict[str, Found] = {}
    for question, suspicion in zip_longest(every.questions, every.suspicious):
        if question is not None:
            of_photo.setdefault(question.image, Found()).questions.append(question)
        if suspicion is not None:
            of_photo.setdefault(suspicion.image, Found()).suspicious.append(suspicion)
    parts = [*of_photo.values()]
    for start in range(0, len(parts), photos):
        tell(Progress("looks for the evidence", start, len(parts)))
        block = parts[start : start + photos]
        questions = [question for own in block for question in own.questions]
        wrong = [suspicion for own in block for suspicion in own.suspicious]
        asked = [(question.image, question.class_) for question in questions]
        boxes = iter(find(asked + [(suspicion.image, suspicion.class_) for suspicion in wrong]))
        yield Found([replace(q, box=next(boxes)) for q in questions], [replace(s, box=next(boxes)) for s in wrong])
