"""Read the answers of a review as label tables. `fewtags.review.store` writes the file; nothing here changes it.

The file is an SQLite database, to which rows are only added. A *step* is one action of a person: an answer, a page of
answers, a point, a box, a note, a new class, or an undo, which names the step that it takes back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final
from urllib.parse import quote

import numpy as np

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.answered import ANSWERS
from fewtags.table.table import LabelTable

ANSWERS_FILE = "answers.sqlite"
"""Name of the file in a run folder."""

Answer = Literal["yes", "no", "unsure"]
State = Literal["yes", "no", "unsure", "disputed"]

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS steps (
    id INTEGER PRIMARY KEY,
    request TEXT UNIQUE,              -- of the page: a repeated request adds nothing
    who TEXT NOT NULL,
    at REAL NOT NULL,                 -- seconds since 1970
    undoes INTEGER REFERENCES steps   -- the step that this one takes back
);
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL REFERENCES steps,
    folder TEXT NOT NULL,             -- of the photos; image is relative to it
    image TEXT NOT NULL,
    class TEXT NOT NULL,
    answer TEXT NOT NULL CHECK (answer IN ('yes', 'no', 'unsure')),
    seconds REAL NOT NULL,            -- from the moment the question was visible
    shown TEXT NOT NULL               -- JSON: what the page showed
);
CREATE TABLE IF NOT EXISTS regions (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL REFERENCES steps,
    folder TEXT NOT NULL,
    image TEXT NOT NULL,
    class TEXT NOT NULL,
    x0 REAL NOT NULL, y0 REAL NOT NULL, x1 REAL NOT NULL, y1 REAL NOT NULL,  -- fractions; a point has x0 = x1, y0 = y1
    CHECK (0 <= x0 AND x0 <= x1 AND x1 <= 1 AND 0 <= y0 AND y0 <= y1 AND y1 <= 1)
);
CREATE TABLE IF NOT EXISTS notes (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL REFERENCES steps,
    folder TEXT NOT NULL,
    image TEXT NOT NULL,
    note TEXT NOT NULL                -- an empty note removes the one before
);
CREATE TABLE IF NOT EXISTS classes (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL REFERENCES steps,
    class TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS answers_cell ON answers (image, class);
CREATE INDEX IF NOT EXISTS answers_step ON answers (step);
CREATE INDEX IF NOT EXISTS regions_cell ON regions (image, class);
CREATE INDEX IF NOT EXISTS steps_undoes ON steps (undoes);
CREATE VIEW IF NOT EXISTS valid_steps AS
    SELECT * FROM steps WHERE undoes IS NULL AND id NOT IN (SELECT undoes FROM steps WHERE undoes IS NOT NULL);
"""

_VALID = """
WITH valid AS (
    SELECT id, who, at FROM steps WHERE undoes IS NULL AND id <= :until
    AND id NOT IN (SELECT undoes FROM steps WHERE undoes IS NOT NULL AND id <= :until)
)
"""
_LATEST = (
    _VALID
    + """
SELECT folder, image, class, who, answer, max(answers.id) FROM answers JOIN valid ON valid.id = answers.step
GROUP BY folder, image, class, who ORDER BY folder, image, class, who
"""
)
_REGIONS = (
    _VALID
    + "SELECT folder, image, class, x0, y0, x1, y1 FROM regions JOIN valid ON valid.id = step ORDER BY regions.id"
)
_CLASSES = _VALID + "SELECT class FROM classes JOIN valid ON valid.id = step ORDER BY classes.id"
EVERY_STEP = 2**62


@final
@dataclass(frozen=True)
class Cell:
    """What people say about one class in one photo.

    Attributes:
        folder: of the photos.
        image: key of the photo, relative to the folder.
        class_: id of the class.
        says: the last answer of each person.
        regions: points and boxes, x0, y0, x1, y1 in 0..1 of the displayed photo.
    """

    folder: str
    image: str
    class_: str
    says: tuple[tuple[str, Answer], ...]
    regions: tuple[tuple[float, float, float, float], ...] = ()

    @property
    def state(self) -> State:
        """What follows from all answers, see `settle`."""
        return settle([answer for _, answer in self.says])


def settle(answers: Sequence[Answer]) -> State:
    """Return what follows from the last answers of several people: they must not contradict each other.

    Someone who is unsure contradicts nobody.

    >>> settle(["yes", "unsure"]), settle(["no", "yes"]), settle(["unsure"])
    ('yes', 'disputed', 'unsure')
    """
    given = {answer for answer in answers if answer != "unsure"}
    return "disputed" if len(given) > 1 else given.pop() if given else "unsure"


def answers_path(place: Path | str) -> Path:
    """Return the path of the answers in a run folder, or the path of a file unchanged.

    Raises:
        DataError: there is no such file.
    """
    place = Path(place)
    path = place / ANSWERS_FILE if place.is_dir() else place
    if not path.exists():
        where = f"{place} has no answers ({ANSWERS_FILE})" if place.is_dir() else f"{place} does not exist"
        raise DataError(f"{where}; give a run whose photos were reviewed with `fewtags review RUN`.")
    return path


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of answers for reading.

    Raises:
        DataError: the file is not one, is damaged, or was written by a newer version.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            refuse_other_schema(connection, path)
            yield connection
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read as answers: {error}. Restore it from a copy.") from error


def refuse_other_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a DataError if a database is not a file of answers of this version."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != SCHEMA_VERSION:
        what = "a newer version of fewtags wrote it" if found > SCHEMA_VERSION else "it is another database"
        raise DataError(f"{path} cannot be read as answers: {what}.")


def last_step(path: Path) -> int:
    """Return the number of the last step of a file; 0 if there is none."""
    with reading(path) as connection:
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM steps").fetchone()
    return int(last)


def read_cells(connection: sqlite3.Connection, until: int = EVERY_STEP) -> list[Cell]:
    """Return all cells with an answer, by folder, image and class, as of the step `until`."""
    regions: dict[tuple[str, str, str], list[tuple[float, float, float, float]]] = {}
    for folder, image, class_, *corners in connection.execute(_REGIONS, {"until": until}):
        x0, y0, x1, y1 = map(float, corners)
        regions.setdefault((folder, image, class_), []).append((x0, y0, x1, y1))
    says: dict[tuple[str, str, str], list[tuple[str, Answer]]] = {}
    for folder, image, class_, who, answer, _ in connection.execute(_LATEST, {"until": until}):
        says.setdefault((folder, image, class_), []).append((who, answer))
    return [Cell(*key, tuple(given), tuple(regions.get(key, ()))) for key, given in says.items()]


def read_answers(place: Path | str, until: int | None = None) -> list[LabelTable]:
    """Return the answers in a run folder, or in a file, as one label table for each folder of photos.

    Confirmed cells are positive, with their points and boxes, and denied cells negative. A disputed cell has a positive
    and a negative fact, which makes it unknown in every table; a cell that everybody is unsure about has none. The
    source of the facts is "answers of RUN".

    Args:
        place: the run folder or file.
        until: number of the last step that counts; None for all. Later steps change nothing then, not even an undo.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    path = answers_path(place)
    with reading(path) as connection:
        step = EVERY_STEP if until is None else until
        cells = read_cells(connection, step)
        new = [class_ for (class_,) in connection.execute(_CLASSES, {"until": step})]
    classes = ClassNames.of(dict.fromkeys([*(cell.class_ for cell in cells), *new]))
    name = path.parent.name if path.name == ANSWERS_FILE else path.name
    by_folder: dict[str, list[Cell]] = {}
    for cell in cells:
        by_folder.setdefault(cell.folder, []).append(cell)
    return [_table(folder, own, classes, f"{ANSWERS}{name}") for folder, own in by_folder.items()]


def _table(folder: str, cells: Sequence[Cell], classes: ClassNames, source: str) -> LabelTable:
    images = {key: n for n, key in enumerate(dict.fromkeys(cell.image for cell in cells))}
    rows: list[tuple[int, int, int]] = []
    corners: list[tuple[float, ...]] = []
    nowhere = (np.nan,) * 4
    for cell in cells:
        place = images[cell.image], classes.index(cell.class_)
        if cell.state in ("yes", "disputed"):
            found = cell.regions or (nowhere,)
            rows += [(*place, Label.POSITIVE)] * len(found)
            corners += found
        if cell.state in ("no", "disputed"):
            rows.append((*place, Label.NEGATIVE))
            corners.append(nowhere)
    image, class_, state = np.array(rows, np.int64).reshape(-1, 3).T
    return LabelTable.build(
        [*images],
        classes,
        image=image,
        class_=class_,
        state=state,
        locations=np.array(corners, np.float64).reshape(-1, 4),
        source=source,
        root=Path(folder),
    )
