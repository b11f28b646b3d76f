"""Which question or label comes next: in the order of the model, not answered yet, not shown to somebody else."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from fewtags.formats.answers import Answer
from fewtags.review.questions import Question
from fewtags.review.store import AnswerStore, CellKey
from fewtags.review.suspicious import Suspicion

LEASE_SECONDS = 600.0
"""A question that was shown to somebody, and not answered, is kept from others for this time."""


@final
@dataclass(frozen=True)
class Asked:
    """A question about a photo in a folder: about an unknown cell, or about a label that may be wrong."""

    folder: str
    question: Question | Suspicion

    @property
    def cell(self) -> CellKey:
        """The cell that it is about."""
        return CellKey(self.folder, self.question.image, self.question.class_)


@final
class Queue:
    """Hands out questions. Two sessions never get the same one at the same time; a reloaded page gets its own again.

    Threads may share a queue. `clock` returns seconds.
    """

    def __init__(self, store: AnswerStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._asked: dict[CellKey, Asked] = {}
        self._of_class: dict[str, list[CellKey]] = {}
        self._closed: set[CellKey] = set()
        self._closed_of_class: Counter[str] = Counter()
        self._leases: dict[CellKey, tuple[str, float]] = {}
        self._skipped: defaultdict[str, dict[CellKey, None]] = defaultdict(dict)

    def load(self, questions: Sequence[Asked]) -> None:
        """Replace the questions, for example by those of a new model."""
        cells = {asked.cell: asked for asked in questions}
        of_class: dict[str, list[CellKey]] = {}
        for cell in cells:
            of_class.setdefault(cell.class_, []).append(cell)
        with self._lock:
            self._asked, self._of_class = cells, of_class
            self._closed = {cell for cell in self._asked if self._store.state(cell) is not None}
            self._closed_of_class = Counter(cell.class_ for cell in self._closed)

    def improve(self, questions: Sequence[Asked]) -> None:
        """Replace questions by the same ones with more evidence; their order stays."""
        with self._lock:
            self._asked |= {asked.cell: asked for asked in questions if asked.cell in self._asked}

    def __len__(self) -> int:
        return len(self._asked)

    def find(self, cell: CellKey) -> Asked | None:
        """Return the question about a cell; None if it is not asked about."""
        return self._asked.get(cell)

    def next(self, session: str, who: str, count: int, class_: str | None = None) -> list[Asked]:
        """Return the next questions of a session, at most `count`, and keep them from other sessions.

        Skipped questions come last. `class_` is an id; None asks about all classes.
        """
        with self._lock:
            skipped = self._skipped[session]
            source = self._asked if class_ is None else self._of_class.get(class_, [])
            found: list[Asked] = []
            later: dict[CellKey, Asked] = {}
            for cell in source:
                if len(found) == count:
                    break
                if not self._open(cell, who) or not self._free(cell, session):
                    continue
                if cell in skipped:
                    later[cell] = self._asked[cell]
                else:
                    found.append(self._asked[cell])
            found += [later[cell] for cell in skipped if cell in later][: count - len(found)]
            until = self._clock() + LEASE_SECONDS
            self._leases |= {asked.cell: (session, until) for asked in found}
            return found

    def skip(self, session: str, cell: CellKey) -> None:
        """Move a question to the end of a session's questions, and let others have it."""
        with self._lock:
            self._skipped[session].pop(cell, None)
            self._skipped[session][cell] = None
            if self._leases.get(cell, ("", 0.0))[0] == session:
                del self._leases[cell]

    def refresh(self, cells: Sequence[CellKey]) -> None:
        """Take note of cells that were answered, or whose answers were taken back; nobody is shown them any more."""
        with self._lock:
            for cell in cells:
                self._leases.pop(cell, None)
                closed = cell in self._asked and self._store.state(cell) is not None
                if closed != (cell in self._closed):
                    self._closed ^= {cell}
                    self._closed_of_class[cell.class_] += 1 if closed else -1

    def open_counts(self) -> dict[str, int]:
        """Return the number of questions without an answer, by class."""
        with self._lock:
            return {c: len(own) - self._closed_of_class[c] for c, own in self._of_class.items()}

    @property
    def answered(self) -> int:
        """The number of questions that have an answer."""
        return len(self._closed)

    def _open(self, cell: CellKey, who: str) -> bool:
        """Whether a person may be asked: nobody answered, or only others who are unsure."""
        says: dict[str, Answer] = self._store.says(cell)
        return not says or (who not in says and {*says.values()} == {"unsure"})

    def _free(self, cell: CellKey, session: str) -> bool:
        owner, until = self._leases.get(cell, (session, 0.0))
        return owner == session or until <= self._clock()
