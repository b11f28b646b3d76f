"""Answers of people count more than other sources, and reach every split."""

import numpy as np
import pytest

from fewtags.labels import ClassNames
from fewtags.table.answered import answered, has_answers, with_answers, without_answers
from fewtags.table.table import LabelTable


@pytest.fixture
def make(tmp_path):
    """Make a table of photos that are bytes, with facts (image, class, state)."""

    def build(folder, keys, facts, classes=("cat", "dog"), source="tags.csv", **more):
        for key in keys:
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / key).write_bytes(f"{folder}/{key}".encode() * 50)
        rows = np.array([(keys.index(i), classes.index(c), s) for i, c, s in facts], int).reshape(-1, 3)
        return LabelTable.build(
            keys,
            ClassNames.of(classes),
            image=rows[:, 0],
            class_=rows[:, 1],
            state=rows[:, 2],
            source=source,
            root=tmp_path / folder,
            **more,
        )

    return build


def test_answers_overrule_and_join(make):
    train = make("one", ["a", "b", "c"], [("a", "cat", 1), ("b", "cat", 1)])
    answers = make("one", ["b", "a"], [("b", "cat", -1), ("a", "dog", 1), ("a", "cat", 1)], source="answers of first")
    out = with_answers({"train": train, "val": make("two", ["x"], [])}, [answers])
    assert out["train"].matrix.dense().tolist() == [[1, 1], [-1, 0], [0, 0]]
    assert out["train"].images.to_pylist() == ["a", "b", "c"]
    assert out["val"].matrix.dense().tolist() == [[0, 0]]
    (listed,) = out["train"].notes.lists
    assert (listed.code, str(listed)) == ("overruled", "1 label contradicts an answer, which counts (b: cat)")
    assert out["train"].notes.messages[-1] == "answers of first: 3 in train"
    sources = out["train"].facts["source"].to_pylist()
    assert sorted(sources) == ["answers of first"] * 3 + ["tags.csv"]


def test_a_dispute_makes_a_known_cell_unknown(make):
    train = make("one", ["a"], [("a", "cat", 1)])
    out = with_answers({"train": train}, [make("one", ["a"], [("a", "cat", 1), ("a", "cat", -1)])])["train"]
    assert out.matrix.dense().tolist() == [[0, 0]]
    assert [str(found) for found in out.notes.lists] == ["1 answer is disputed, so it is unknown (a: cat)"]


def test_a_dispute_makes_an_implied_negative_unknown_and_a_yes_makes_it_positive(make):
    complete = {"complete_set": np.zeros(2, np.int16), "complete_classes": np.ones((1, 2), np.bool_)}
    train = make("one", ["a", "b"], [("a", "cat", 1)], **complete)
    assert train.matrix.dense().tolist() == [[1, -1], [-1, -1]]
    answers = make("one", ["a", "b"], [("a", "dog", 1), ("b", "cat", 1), ("b", "cat", -1)])
    assert with_answers({"train": train}, [answers])["train"].matrix.dense().tolist() == [[1, 1], [0, -1]]


def test_every_split_gets_its_answers_and_new_photos_join_training(make):
    train, val = make("one", ["a"], [("a", "cat", 1)]), make("two", ["x"], [("x", "cat", 1)])
    own, new = make("two", ["x"], [("x", "dog", -1)]), make("three", ["n"], [("n", "dog", 1)])
    out = with_answers({"train": train, "val": val}, [own, new])
    assert out["val"].matrix.dense().tolist() == [[1, -1]]
    assert out["train"].images.to_pylist() == ["one/a", "three/n"]
    assert out["train"].matrix.dense().tolist() == [[1, 0], [0, 1]]
    assert out["train"].notes.messages[-2:] == ("1 photo with answers only join training", "tags.csv: 1 in train")


def test_a_copy_of_a_validation_photo_does_not_join_training(make, tmp_path):
    train, val = make("one", ["a"], [("a", "cat", 1)]), make("two", ["x"], [("x", "cat", 1)])
    answers = make("one", ["a", "copy"], [("copy", "dog", 1)])
    (tmp_path / "one" / "copy").write_bytes((tmp_path / "two" / "x").read_bytes())
    out = with_answers({"train": train, "val": val}, [answers])
    assert out["train"].images.to_pylist() == ["a"]


def test_photos_that_moved_are_found_by_key(make, tmp_path):
    train = make("one", ["a"], [("a", "cat", 1)])
    answers = make("one", ["a"], [("a", "dog", 1)]).with_root(tmp_path / "gone")
    out = with_answers({"train": train}, [answers])["train"]
    assert out.matrix.dense().tolist() == [[1, 1]]


def test_a_new_class_and_another_spelling(make):
    train = make("one", ["a", "b"], [("a", "cat", 1)])
    answers = make("one", ["a", "b"], [("a", "Dog", 1), ("b", "zebra", 1)], classes=("Dog", "zebra"))
    out = with_answers({"train": train}, [answers])["train"]
    assert out.classes.ids == ("cat", "dog", "zebra")
    assert out.matrix.dense().tolist() == [[1, 1, 0], [0, 0, 1]]


def test_without_answers_nothing_changes(make):
    tables = {"train": make("one", ["a"], [("a", "cat", 1)])}
    assert with_answers(tables, []) == tables
    out = with_answers(tables, [make("one", ["a"], [])])["train"]
    assert out.fingerprint == tables["train"].fingerprint


def test_answered_cells_and_the_others(make):
    """Facts of answers and of files in one table; an answer that agrees with a file leaves the file's fact."""
    train = make("one", ["a", "b"], [("a", "cat", 1)])
    assert answered(train) is None
    assert not has_answers(train)
    assert not has_answers(make("one", ["a"], []))
    assert without_answers(train) is train
    answers = make("one", ["b", "a"], [("b", "cat", -1), ("a", "dog", 1), ("a", "cat", 1)], source="answers of first")
    both = with_answers({"train": train}, [answers])["train"]
    assert answered(both).dense().tolist() == [[1, 1], [-1, 0]]
    assert has_answers(both)
    assert not has_answers(without_answers(both))
    assert without_answers(both).matrix.dense().tolist() == [[1, 0], [0, 0]]
