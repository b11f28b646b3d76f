"""Make the questions of a model in a process of its own, so that the page stays quick."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import final

import numpy as np

from fewtags.engine.model import load_model, model_path
from fewtags.engine.predict import ScoredTable, matched, score_table
from fewtags.errors import DataError, FewtagsError
from fewtags.files import write_text
from fewtags.review.orders import DEFAULT_ORDER
from fewtags.review.questions import Question, add_evidence, run_share, suggest_from
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

MOST_QUESTIONS = 20_000
PER_CLASS = 300
CHUNK = 64
"""Photos between two reports of progress."""
EVIDENCE_CHUNK = 256
"""Questions whose evidence is found at once; they are published after each chunk."""
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


Publish = Callable[[list[Question], bool], None]
"""Takes questions, and whether they are all there are; else they are the same as before, with evidence."""


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


def write_questions(path: Path, questions: Sequence[Question]) -> None:
    """Write questions to a file."""
    write_text(path, json.dumps([asdict(question) for question in questions]))


def read_questions(path: Path) -> list[Question]:
    """Read what `write_questions` wrote."""
    rows = json.loads(path.read_text("utf-8"))
    return [Question(**{**row, "box": None if row["box"] is None else tuple(row["box"])}) for row in rows]


def _work(pipe: Connection, run: Path, asked: Path, known: Path, order: str | None, cpu: bool) -> None:
    with suppress(OSError):
        os.nice(NICE)
    try:
        questions: dict[tuple[str, str], Question] = {}
        for found in make_questions(run, load(asked), order=order, cpu=cpu, tell=pipe.send):
            pipe.send((found, not questions))
            questions |= {(q.image, q.class_): q for q in found}
        write_questions(known, [*questions.values()])
        pipe.send(Progress(doing="ready", finished=True))
    except BrokenPipeError:
        pass  # the server has gone
    except (FewtagsError, OSError) as error:
        with suppress(BrokenPipeError):
            pipe.send(Progress(error=str(error)))


def make_questions(
    run: Path, table: LabelTable, *, order: str | None, cpu: bool, tell: Callable[[Progress], None]
) -> Iterator[list[Question]]:
    """Yield all questions about a table without evidence; then the same ones with evidence, some at a time.

    Raises:
        DataError: no photo can be read, or the model knows none of the classes.
    """
    net, info = load_model(run)
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
    asked = suggest_from(
        scored,
        info,
        table,
        run_share(run, info),
        order=order or DEFAULT_ORDER,
        limit=MOST_QUESTIONS,
        per_class=PER_CLASS,
    )
    yield asked
    for start in range(0, len(asked), EVIDENCE_CHUNK):
        tell(Progress("looks for the evidence", start, len(asked)))
        yield add_evidence(asked[start : start + EVIDENCE_CHUNK], net, info, table, cpu=cpu)
