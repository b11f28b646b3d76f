"""What sources cover: labels of other classes are left out, and complete images are complete for these classes."""

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable


def _table(labels: dict[str, dict[str, int]], classes: list[str], complete: bool = False) -> LabelTable:
    cells = [(i, classes.index(c), s) for i, states in enumerate(labels.values()) for c, s in states.items()]
    image, class_, state = np.array(cells, np.int64).reshape(-1, 3).T
    return LabelTable.build(
        list(labels),
        ClassNames.of(classes),
        image=image,
        class_=class_,
        state=state,
        complete_set=np.full(len(labels), 0 if complete else -1),
        complete_classes=np.ones((1, len(classes)), np.bool_),
    )


CATS = _table({"a": {"cat": 1, "dog": 1}, "b": {"cat": -1}}, ["cat", "dog"])
DOGS = _table({"c": {"Dog": 1}, "d": {}}, ["Dog", "owl"], complete=True)


def _known(table: LabelTable) -> dict[str, dict[str, int]]:
    dense = table.matrix.dense()
    ids = table.classes.ids
    return {
        str(key): {ids[c]: int(row[c]) for c in np.flatnonzero(row != Label.UNKNOWN)}
        for key, row in zip(table.images.to_pylist(), dense, strict=True)
    }


def test_a_class_that_a_source_does_not_cover_stays_unknown_in_its_complete_images() -> None:
    table = merge({"cats": CATS, "dogs": DOGS})
    assert _known(table) == {
        "a": {"cat": 1, "dog": 1},
        "b": {"cat": -1},
        "c": {"dog": 1, "owl": -1},
        "d": {"dog": -1, "owl": -1},
    }


def test_labels_of_classes_that_a_source_does_not_cover_are_left_out_and_counted() -> None:
    table = merge({"cats": CATS, "dogs": DOGS}, covers={"cats": ["cat"]})
    assert _known(table)["a"] == {"cat": 1}
    assert "cats: 1 label of 'dog' left out: it does not cover these classes (covers)" in table.notes.messages


def test_a_complete_source_may_cover_more_than_it_names() -> None:
    table = merge({"cats": CATS, "dogs": DOGS}, covers={"dogs": ["dog", "owl", "CAT"]})
    assert _known(table)["d"] == {"cat": -1, "dog": -1, "owl": -1}


def test_counts_by_source() -> None:
    first, second = merge({"cats": CATS, "dogs": DOGS}).notes.lists
    assert str(first) == (
        "cats: 2 images, covers 2 of 3 classes; 2 positive and 1 negative labels (cat +1 -1; dog +1 -0)"
    )
    assert str(second) == (
        "dogs: 2 images, covers 2 of 3 classes; 1 positive and 3 negative labels (dog +1 -1; owl +0 -2)"
    )


@pytest.mark.parametrize(
    ("covers", "text"),
    [
        ({"cats": ["cow"]}, "covers of 'cats' has the class 'cow', which no source names"),
        ({"cats": []}, "covers of 'cats' has no class"),
        ({"cats": "cat"}, "covers of 'cats' is the text 'cat'; give a list"),
        ({"cows": ["cat"]}, "covers names 'cows', which is not a source; the sources are 'cats', 'dogs'"),
    ],
)
def test_wrong_coverage_is_an_error(covers: dict[str, list[str]], text: str) -> None:
    with pytest.raises(DataError, match=text):
        merge({"cats": CATS, "dogs": DOGS}, covers=covers)
