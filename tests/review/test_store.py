"""The file of answers: what is saved, undone, disputed; and what training gets of it."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.formats.answers import answers_path, last_step, read_answers, settle
from fewtags.review.store import AnswerStore, CellKey, Given

CELL = CellKey("/photos", "a.jpg", "dog")
OTHER = CellKey("/photos", "b.jpg", "cat")


@pytest.fixture
def store(tmp_path):
    made = AnswerStore(tmp_path / "answers.sqlite")
    yield made
    made.close()


def facts(folder, until=None):
    """(image, class, state, corners) of all facts."""
    rows = []
    for table in read_answers(folder, until):
        for fact in table.facts.to_pylist():
            corners = tuple(fact[c] for c in ("x0", "y0", "x1", "y1"))
            where = None if corners[0] is None else tuple(round(c, 3) for c in corners)
            rows.append((table.images[fact["image"]].as_py(), table.classes.ids[fact["class"]], fact["state"], where))
    return sorted(rows, key=str)


def test_yes_no_unsure_become_facts(store, tmp_path):
    store.answer(
        "ann",
        [Given(CELL, "yes", 1.5, {"page": "photo"}), Given(OTHER, "no"), Given(CELL._replace(class_="cat"), "unsure")],
    )
    assert facts(tmp_path) == [("a.jpg", "dog", 1, None), ("b.jpg", "cat", -1, None)]
    assert store.totals("ann") == (3, 0.5)
    assert store.totals("bob") == (0, 0.0)
    (table,) = read_answers(tmp_path)
    assert table.root == Path("/photos")
    assert table.facts["source"][0].as_py() == f"answers of {tmp_path.name}"
    shown = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT shown, seconds FROM answers").fetchone()
    assert shown == ('{"page": "photo"}', 1.5)


def test_points_and_boxes_are_regions_of_positives(store, tmp_path):
    store.answer("ann", [Given(CELL, "yes")], regions=[(0.25, 0.5, 0.25, 0.5)])
    store.answer("ann", [Given(CELL, "yes")], regions=[(0.25, 0.25, 0.5, 0.75)])
    assert facts(tmp_path) == [
        ("a.jpg", "dog", 1, (0.25, 0.25, 0.5, 0.75)),
        ("a.jpg", "dog", 1, (0.25, 0.5, 0.25, 0.5)),
    ]
    store.answer("ann", [Given(CELL, "no")])
    assert facts(tmp_path) == [("a.jpg", "dog", -1, None)]


def test_a_dispute_is_unknown(store, tmp_path):
    store.answer("ann", [Given(CELL, "yes")])
    store.answer("bob", [Given(CELL, "no")])
    assert store.state(CELL) == "disputed"
    assert store.disputed() == [(CELL, {"ann": "yes", "bob": "no"})]
    (table,) = read_answers(tmp_path)
    assert table.matrix.dense().tolist() == [[0]]
    store.answer("bob", [Given(CELL, "unsure")])
    assert store.state(CELL) == "yes"
    store.answer("bob", [Given(CELL, "yes")])
    assert facts(tmp_path) == [("a.jpg", "dog", 1, None)]


def test_undo_without_limit_takes_back_own_steps_only(store, tmp_path):
    for answer in ("yes", "no", "unsure"):
        store.answer("ann", [Given(CELL, answer, 2.0)])
    store.answer("bob", [Given(OTHER, "yes")])
    store.answer("ann", [Given(CELL, "yes"), Given(OTHER, "yes")])
    seen = []
    while (step := store.undo("ann")) is not None:
        assert step.who == "ann"
        seen.append((len(step.cells), store.says(CELL).get("ann")))
    assert seen == [(2, "unsure"), (1, "no"), (1, "yes"), (1, None)]
    assert store.totals("ann") == (0, 0.0)
    assert facts(tmp_path) == [("b.jpg", "cat", 1, None)]
    rows = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT count(*) FROM answers").fetchone()
    assert rows == (6,)  # nothing was deleted


def test_a_repeated_request_adds_nothing(store):
    first = store.answer("ann", [Given(CELL, "yes")], request="request-1")
    assert store.answer("ann", [Given(CELL, "yes")], request="request-1") == first
    undone = store.undo("ann", request="request-2")
    assert store.undo("ann", request="request-2") == undone
    assert undone.id == first
    assert store.totals() == (0, 0.0)
    assert store.state(CELL) is None


def test_notes_and_classes_can_be_undone(store):
    store.note("ann", "/photos", "a.jpg", "blurred")
    store.note("ann", "/photos", "a.jpg", "")
    assert store.note_of("/photos", "a.jpg") == ""
    store.undo("ann")
    assert store.note_of("/photos", "a.jpg") == "blurred"
    store.add_class("ann", "zebra")
    assert store.new_classes() == ["zebra"]
    store.undo("ann")
    assert store.new_classes() == []


def test_a_reopened_store_knows_everything(store, tmp_path):
    store.answer("ann", [Given(CELL, "yes", 3.0)], regions=[(0.5, 0.5, 0.5, 0.5)])
    store.answer("bob", [Given(OTHER, "no")])
    store.undo("bob")
    again = AnswerStore(tmp_path / "answers.sqlite")
    assert again.answered() == {CELL: "yes"}
    assert again.totals() == (1, 3.0)
    assert again.regions(CELL) == [(0.5, 0.5, 0.5, 0.5)]
    assert again.people() == ["ann", "bob"]
    assert [step.cells for step in again.history()] == [((CELL, "yes"),)]
    again.close()


def test_later_steps_change_nothing_before(store, tmp_path):
    store.answer("ann", [Given(CELL, "yes")])
    until = last_step(tmp_path / "answers.sqlite")
    store.undo("ann")
    store.answer("ann", [Given(CELL, "no"), Given(OTHER, "yes")])
    assert facts(tmp_path, until) == [("a.jpg", "dog", 1, None)]
    assert len(facts(tmp_path)) == 2


def test_folders_become_tables(store, tmp_path):
    store.answer("ann", [Given(CELL, "yes"), Given(CELL._replace(folder="/others"), "no")])
    assert [(t.root, t.images.to_pylist()) for t in read_answers(tmp_path)] == [
        (Path("/others"), ["a.jpg"]),
        (Path("/photos"), ["a.jpg"]),
    ]


def test_regions_outside_the_photo_are_refused(store):
    with pytest.raises(sqlite3.IntegrityError):
        store.answer("ann", [Given(CELL, "yes")], regions=[(0.5, 0.5, 1.5, 0.6)])
    assert store.totals() == (0, 0.0)
    assert store.answered() == {}


def test_files_that_are_not_answers(tmp_path):
    with pytest.raises(DataError, match=r"has no answers \(answers.sqlite\); give a run whose photos were reviewed"):
        answers_path(tmp_path)
    with pytest.raises(DataError, match="nothing does not exist"):
        answers_path(tmp_path / "nothing")
    (tmp_path / "answers.sqlite").write_bytes(b"not a database, but long enough to be looked at" * 40)
    for read in (read_answers, lambda folder: AnswerStore(folder / "answers.sqlite")):
        with pytest.raises(DataError, match="cannot be read as answers: file is not a database"):
            read(tmp_path)
    (tmp_path / "answers.sqlite").unlink()
    other = sqlite3.connect(tmp_path / "answers.sqlite")
    other.execute("CREATE TABLE t (a)")
    other.close()
    with pytest.raises(DataError, match="it is another database"):
        AnswerStore(tmp_path / "answers.sqlite")
    new = sqlite3.connect(tmp_path / "answers.sqlite")
    new.execute("PRAGMA user_version = 7")
    new.close()
    with pytest.raises(DataError, match="a newer version of fewtags wrote it"):
        read_answers(tmp_path)


def test_settle():
    assert settle([]) == "unsure"
    assert settle(["yes", "yes", "unsure"]) == "yes"
    assert settle(["no", "unsure", "yes"]) == "disputed"


WRITER = """
import sys
from pathlib import Path
from fewtags.review.store import AnswerStore, CellKey, Given

store = AnswerStore(Path(sys.argv[1]))
for n in range(10**6):
    store.answer("ann", [Given(CellKey("/photos", f"{n}.jpg", "dog"), "yes")])
    print(n, flush=True)
"""


def test_a_killed_writer_loses_nothing(tmp_path):
    path = tmp_path / "answers.sqlite"
    for count in (1, 4, 9):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        saved = [int(writer.stdout.readline()) for _ in range(count)][-1]
        os.kill(writer.pid, signal.SIGKILL)
        saved = int(([saved, *map(int, writer.stdout.read().split())])[-1])
        writer.wait()
        writer.stdout.close()
        store = AnswerStore(path)
        assert len(store.answered()) >= saved + 1
        store.answer("ann", [Given(CELL, "no")])
        store.close()
        (table,) = read_answers(path)
        assert np.all(table.matrix.dense()[:saved] == 1)
