"""The file of answers: rows are only added, and every step is on the disk before the call returns."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from fewtags.errors import DataError, DiskError
from fewtags.formats.answers import (
    EVERY_STEP,
    SCHEMA,
    SCHEMA_VERSION,
    Answer,
    State,
    read_cells,
    refuse_other_schema,
    settle,
)

_TOTALS = "SELECT who, count(*), sum(seconds) FROM answers JOIN valid_steps v ON v.id = step GROUP BY who"
Corners = tuple[float, float, float, float]
"""x0, y0, x1, y1 in 0..1 of the displayed photo; a point has x0 = x1 and y0 = y1."""


class CellKey(NamedTuple):
    """One class of one photo: the folder of the photos, the key of the photo relative to it, and the class id."""

    folder: str
    image: str
    class_: str


@final
@dataclass(frozen=True)
class Given:
    """An answer to one question: the cell, the answer, the seconds it took, and what the page showed."""

    cell: CellKey
    answer: Answer
    seconds: float = 0.0
    shown: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Step:
    """One action of a person: its number, who, when (seconds since 1970), and its answers."""

    id: int
    who: str
    at: float
    cells: tuple[tuple[CellKey, Answer], ...]


@final
class AnswerStore:
    """Writes the answers of a run, and knows the state of every cell.

    One process writes at a time; threads of it may share a store. The database is in WAL mode and synchronised at each
    commit, so neither a killed process nor a power cut loses a step that was returned.

    Args:
        path: the file; it is made if it does not exist.

    Raises:
        DataError: the file is another database, or damaged.
        DiskError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        new = not path.exists()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            if not new:
                (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                new = tables == 0  # a process was killed before it made them
            if not new:
                refuse_other_schema(self._db, path)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            if new:
                self._db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            self._cells = {CellKey(c.folder, c.image, c.class_): dict(c.says) for c in read_cells(self._db)}
            self._disputed = {cell for cell, says in self._cells.items() if settle([*says.values()]) == "disputed"}
            self._totals = {who: (int(count), float(seconds)) for who, count, seconds in self._db.execute(_TOTALS)}
        except sqlite3.OperationalError as error:
            raise DiskError(f"cannot write {path}: {error}; make its folder writable, or make room.") from error
        except sqlite3.Error as error:
            raise DataError(f"{path} cannot be read as answers: {error}. Restore it from a copy.") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # --- writing

    def answer(
        self, who: str, given: Sequence[Given], *, request: str | None = None, regions: Iterable[Corners] = ()
    ) -> int:
        """Add one step with answers and, if there is one answer, points and boxes; return the number of the step.

        A `request` that was added before adds nothing and returns its step: a page repeats a request whose reply it
        did not get.

        Raises:
            DiskError: nothing was written.
        """
        marks = [*regions]
        assert given, "a step without answers"
        assert len(given) == 1 or not marks, "regions belong to one answer"

        def write(step: int) -> None:
            self._db.executemany(
                "INSERT INTO answers (step, folder, image, class, answer, seconds, shown) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(step, *g.cell, g.answer, g.seconds, json.dumps(g.shown, ensure_ascii=False)) for g in given],
            )
            self._db.executemany(
                "INSERT INTO regions (step, folder, image, class, x0, y0, x1, y1) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(step, *given[0].cell, *corners) for corners in marks],
            )

        with self._lock:
            step, added = self._add_step(who, request, write)
            if added:
                for one in given:
                    self._cells.setdefault(one.cell, {})[who] = one.answer
                    self._mark(one.cell)
                self._count(who, [one.seconds for one in given], 1)
            return step

    def note(self, who: str, folder: str, image: str, text: str, *, request: str | None = None) -> int:
        """Add a note about a photo; it replaces the one before, and an empty one removes it."""

        def write(step: int) -> None:
            row = (step, folder, image, text)
            self._db.execute("INSERT INTO notes (step, folder, image, note) VALUES (?, ?, ?, ?)", row)

        with self._lock:
            return self._add_step(who, request, write)[0]

    def add_class(self, who: str, class_: str, *, request: str | None = None) -> int:
        """Add a class that the model does not know."""

        def write(step: int) -> None:
            self._db.execute("INSERT INTO classes (step, class) VALUES (?, ?)", (step, class_))

        with self._lock:
            return self._add_step(who, request, write)[0]

    def undo(self, who: str, *, request: str | None = None) -> Step | None:
        """Take back the last step of a person that is still valid; return it, or None if there is none.

        The step stays in the file: the undo is a row of its own.
        """
        with self._lock:
            if request is not None and (before := self._requested(request)) is not None:
                (undone,) = self._db.execute("SELECT undoes FROM steps WHERE id = ?", (before,)).fetchone()
                return self._step(undone)
            last = self._db.execute(
                "SELECT max(id) FROM steps AS s WHERE who = ? AND undoes IS NULL AND NOT EXISTS "
                "(SELECT 1 FROM steps WHERE undoes = s.id)",
                (who,),
            ).fetchone()[0]
            if last is None:
                return None
            self._add_step(who, request, lambda _: None, undoes=last)
            step = self._step(last)
            for key, _ in step.cells:
                self._reload(key)
            rows = self._db.execute("SELECT seconds FROM answers WHERE step = ?", (last,))
            self._count(who, [seconds for (seconds,) in rows], -1)
            return step

    def _add_step(self, who: str, request: str | None, write: Any, undoes: int | None = None) -> tuple[int, bool]:
        """Add a step and what `write` adds to it, in one transaction; return its number, and whether it is new."""
        if request is not None and (before := self._requested(request)) is not None:
            return before, False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                row = (request, who, time.time(), undoes)
                step = self._db.execute(
                    "INSERT INTO steps (request, who, at, undoes) VALUES (?, ?, ?, ?)", row
                ).lastrowid
                assert step is not None
                write(step)
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise DiskError(f"cannot write {self.path}: {error}; the last answer is not saved. Make room.") from error
        return step, True

    def _requested(self, request: str) -> int | None:
        found = self._db.execute("SELECT id FROM steps WHERE request = ?", (request,)).fetchone()
        return None if found is None else int(found[0])

    # --- reading

    def state(self, cell: CellKey) -> State | None:
        """Return what follows from the answers about a cell; None if nobody answered."""
        says = self._cells.get(cell)
        return settle([*says.values()]) if says else None

    def says(self, cell: CellKey) -> dict[str, Answer]:
        """Return the last answer of each person about a cell."""
        return dict(self._cells.get(cell, {}))

    def disputed(self) -> list[tuple[CellKey, dict[str, Answer]]]:
        """Return the cells about which people disagree, with the answer of each."""
        with self._lock:
            return [(cell, self.says(cell)) for cell in sorted(self._disputed)]

    @property
    def disputes(self) -> int:
        """The number of cells about which people disagree."""
        return len(self._disputed)

    def answered(self) -> dict[CellKey, State]:
        """Return the state of all cells with an answer."""
        with self._lock:
            return {cell: settle([*says.values()]) for cell, says in self._cells.items() if says}

    def regions(self, cell: CellKey) -> list[Corners]:
        """Return the points and boxes of a cell."""
        with self._lock:
            return self._db.execute(
                "SELECT x0, y0, x1, y1 FROM regions JOIN valid_steps v ON v.id = step "
                "WHERE folder = ? AND image = ? AND class = ? ORDER BY regions.id",
                cell,
            ).fetchall()

    def note_of(self, folder: str, image: str) -> str:
        """Return the last note about a photo; "" if there is none."""
        with self._lock:
            row = self._db.execute(
                "SELECT note FROM notes JOIN valid_steps v ON v.id = step WHERE folder = ? AND image = ? "
                "ORDER BY notes.id DESC LIMIT 1",
                (folder, image),
            ).fetchone()
        return "" if row is None else str(row[0])

    def new_classes(self) -> list[str]:
        """Return the classes that people added, in order."""
        with self._lock:
            rows = self._db.execute("SELECT class FROM classes JOIN valid_steps v ON v.id = step ORDER BY classes.id")
            return [*dict.fromkeys(class_ for (class_,) in rows)]

    def history(self, who: str | None = None, *, before: int = EVERY_STEP, limit: int = 50) -> list[Step]:
        """Return the last valid steps with answers before a step, newest first: of one person, or of all."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id FROM valid_steps AS v WHERE id < ? AND (? IS NULL OR who = ?) "
                "AND EXISTS (SELECT 1 FROM answers WHERE step = v.id) ORDER BY id DESC LIMIT ?",
                (before, who, who, limit),
            ).fetchall()
            return [self._step(step) for (step,) in rows]

    def totals(self, who: str | None = None) -> tuple[int, float]:
        """Return the number of valid answers, and their mean seconds (0 if there is none): of one person, or of all."""
        with self._lock:
            rows = [row for name, row in self._totals.items() if who in (None, name)]
        count = sum(n for n, _ in rows)
        return count, sum(seconds for _, seconds in rows) / count if count else 0.0

    def people(self) -> list[str]:
        """Return everybody who took a step."""
        with self._lock:
            return [who for (who,) in self._db.execute("SELECT DISTINCT who FROM steps ORDER BY id")]

    def _step(self, step: int) -> Step:
        who, at = self._db.execute("SELECT who, at FROM steps WHERE id = ?", (step,)).fetchone()
        rows = self._db.execute("SELECT folder, image, class, answer FROM answers WHERE step = ? ORDER BY id", (step,))
        return Step(step, who, at, tuple((CellKey(*key), answer) for *key, answer in rows))

    def _count(self, who: str, seconds: Sequence[float], sign: int) -> None:
        count, total = self._totals.get(who, (0, 0.0))
        self._totals[who] = (count + sign * len(seconds), total + sign * sum(seconds))

    def _reload(self, cell: CellKey) -> None:
        rows = self._db.execute(
            "SELECT who, answer, max(answers.id) FROM answers JOIN valid_steps v ON v.id = step "
            "WHERE folder = ? AND image = ? AND class = ? GROUP BY who",
            cell,
        ).fetchall()
        self._cells[cell] = {who: answer for who, answer, _ in rows}
        if not rows:
            del self._cells[cell]
        self._mark(cell)

    def _mark(self, cell: CellKey) -> None:
        """Remember whether people disagree about a cell."""
        if self.state(cell) == "disputed":
            self._disputed.add(cell)
        else:
            self._disputed.discard(cell)
