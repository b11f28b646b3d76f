"""One vocabulary for several tables, and the rows of complete labels that belong to a table."""

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.merge import common_vocabulary, match_images, with_classes
from fewtags.table.table import LabelTable


def table(images, classes, cells, *, complete_set=None, complete_classes=None):
    """A table of (image, class, state) cells, by name; `complete_set`: the images that are complete for row 0."""
    names = classes if isinstance(classes, ClassNames) else ClassNames.of(classes)
    return LabelTable.build(
        images,
        names,
        image=np.array([images.index(i) for i, _, _ in cells], int),
        class_=np.array([names.index(c) for _, c, _ in cells], int),
        state=np.array([s for _, _, s in cells], int),
        complete_set=None if complete_set is None else np.array([0 if i in complete_set else -1 for i in images]),
        complete_classes=complete_classes,
    )


def cells(table):
    """class id -> states of all images, in words that need no positions."""
    return dict(zip(table.classes.ids, table.matrix.dense().T.tolist(), strict=True))


def test_a_class_keeps_its_labels_under_another_vocabulary():
    before = table(["a", "b"], ["cat", "dog"], [("a", "cat", 1), ("b", "dog", -1)])
    after = with_classes(before, ClassNames.of(["dog", "emu", "cat"]))
    assert after.classes.ids == ("dog", "emu", "cat")
    assert cells(after) == {"dog": [0, -1], "emu": [0, 0], "cat": [1, 0]}
    assert (after.root, after.notes, len(after)) == (before.root, before.notes, 2)


def test_a_complete_image_stays_complete_for_the_same_classes():
    """Image a says: a cat and nothing else of cat and dog. It says nothing about emus."""
    before = table(
        ["a", "b"], ["cat", "dog"], [("a", "cat", 1)], complete_set=["a"], complete_classes=np.ones((1, 2), bool)
    )
    assert cells(before) == {"cat": [1, 0], "dog": [-1, 0]}
    assert cells(with_classes(before, ClassNames.of(["emu", "dog", "cat"]))) == {
        "emu": [0, 0], "dog": [-1, 0], "cat": [1, 0],
    }  # fmt: skip


def test_the_same_vocabulary_changes_nothing():
    before = table(["a"], ["cat"], [("a", "cat", 1)])
    assert with_classes(before, ClassNames.of(["cat"])) is before


def test_a_vocabulary_must_hold_all_classes():
    with pytest.raises(DataError) as error:
        with_classes(table(["a"], ["cat", "dog"], []), ClassNames.of(["cat", "emu"]))
    assert str(error.value) == "class 'dog' of the table is not in the vocabulary (cat, emu, ...)."


def test_the_common_vocabulary_is_the_union_in_order_of_appearance():
    train = table(["a"], ["dog", "cat"], [("a", "dog", 1)])
    val = table(["b"], ["emu", "cat"], [("b", "emu", 1), ("b", "cat", -1)])
    tables = common_vocabulary({"train": train, "val": val})
    assert [t.classes.ids for t in tables.values()] == [("dog", "cat", "emu")] * 2
    assert cells(tables["train"]) == {"dog": [1], "cat": [0], "emu": [0]}
    assert cells(tables["val"]) == {"dog": [0], "cat": [-1], "emu": [1]}
    assert tables["train"].notes.messages == ("train: 1 class occurs in other splits only, and is unknown here: 'emu'",)
    assert tables["val"].notes.messages == ("val: 1 class occurs in other splits only, and is unknown here: 'dog'",)


def test_labels_to_measure_on_that_share_no_class_are_refused():
    train, val = table(["a"], ["dog", "cat"], [("a", "dog", 1)]), table(["b"], ["emu"], [("b", "emu", 1)])
    text = r"^val: none of its classes 'emu' is a class of the training labels, 'dog', 'cat'\. Give other labels as val"
    with pytest.raises(DataError, match=text):
        common_vocabulary({"train": train, "val": val})
    empty = table(["b"], [], [])
    assert common_vocabulary({"train": train, "val": empty})["val"].classes.ids == ("dog", "cat")
    assert common_vocabulary({"one": train, "two": val})["two"].classes.ids == ("dog", "cat", "emu")


def test_equal_vocabularies_say_nothing():
    train, val = table(["a"], ["cat"], [("a", "cat", 1)]), table(["b"], ["cat"], [])
    tables = common_vocabulary({"train": train, "val": val})
    assert (tables["train"].fingerprint, tables["val"].fingerprint) == (train.fingerprint, val.fingerprint)
    assert not any(t.notes.messages for t in tables.values())


def test_two_names_for_one_class_are_refused():
    train = table(["a"], ClassNames(("1", "2"), ("cat", "dog")), [])
    val = table(["b"], ClassNames(("2",), ("wolf",)), [])
    with pytest.raises(DataError) as error:
        common_vocabulary({"train": train, "val": val})
    assert str(error.value).startswith("class id '2' is called 'dog' in 'train' and 'wolf' in 'val'.")


def test_one_name_for_two_classes_stays_two():
    names = ClassNames(("n1", "n2"), ("crane", "crane"))
    tables = common_vocabulary({"train": table(["a"], names, [("a", "n2", 1)]), "val": table(["b"], names, [])})
    assert tables["val"].classes == names


def test_complete_labels_are_matched_by_image():
    truth = table(["c", "a", "b"], ["dog", "cat"], [("a", "cat", 1), ("b", "dog", -1), ("c", "cat", -1)])
    single = table(["b", "a"], ["cat", "dog", "emu"], [("a", "cat", 1)])
    matched = match_images(truth, single)
    assert matched.images.to_pylist() == ["b", "a"]
    assert cells(matched) == {"cat": [Label.UNKNOWN, 1], "dog": [-1, 0], "emu": [0, 0]}


def test_complete_labels_must_know_every_image():
    truth = table(["a"], ["cat"], [])
    with pytest.raises(DataError) as error:
        match_images(truth, table(["a", "x", "y"], ["cat"], []))
    assert str(error.value) == "the complete labels lack 2 of 3 images, for example 'x'."


def test_complete_labels_may_not_have_classes_of_their_own():
    with pytest.raises(DataError, match=r"class 'dog' of the table is not in the vocabulary \(cat"):
        match_images(table(["a"], ["cat", "dog"], []), table(["a"], ["cat"], []))


def test_no_image_at_all():
    matched = match_images(table(["a"], ["cat"], [("a", "cat", 1)]), table([], ["cat"], []))
    assert len(matched) == 0
