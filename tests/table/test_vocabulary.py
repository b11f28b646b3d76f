"""Class names that differ only in spelling: which are the same, what is matched, what is renamed."""

import unicodedata

import numpy as np
import pytest

from fewtags.errors import ConfigError
from fewtags.labels import ClassNames, Label
from fewtags.table.merge import common_vocabulary, match_images, merge
from fewtags.table.table import LabelTable
from fewtags.table.vocabulary import Matching, folded, look_alikes, match_classes, rename_as_asked

P, N, U = 1, -1, 0


def table(rows, classes, **more):
    """A table from rows of P, N and U by image, one number a class."""
    dense = np.array(list(rows.values()), np.int8).reshape(len(rows), len(classes))
    image, class_ = np.nonzero(dense)
    names = classes if isinstance(classes, ClassNames) else ClassNames.of(classes)
    return LabelTable.build([*rows], names, image=image, class_=class_, state=dense[image, class_], **more)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Bicycle", "bicycle"),
        ("traffic light", "traffic_light"),
        ("traffic light", "Traffic-Light"),
        ("trafficLight", "traffic light"),
        (" cat ", "cat"),
        ("cat\u00a0tail", "cat tail"),
        ("cat  tail", "cat tail"),
        ("cat\u200b", "cat"),
        ("\ufeffcat", "cat"),
        ("Käse", unicodedata.normalize("NFD", "käse")),
        ("ＣＡＴ", "cat"),
        ("STRASSE", "straße"),
        ("_cat", "cat"),
        ("t\u2013shirt", "T-shirt"),
    ],
)
def test_names_that_differ_only_in_spelling(one, other):
    assert folded(one) == folded(other)
    assert Matching.of(ClassNames.of([one]), ClassNames.of([other])).pairs == {one: other}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cat", "cats"),
        ("1 1", "11"),
        ("1-1", "11"),
        ("-cat", "cat"),
        ("-1", "1"),
        ("C++", "C"),
        ("a.b", "ab"),
        ("+", "-"),
    ],
)
def test_names_that_differ_in_more_than_spelling(one, other):
    assert folded(one) != folded(other)
    assert Matching.of(ClassNames.of([one]), ClassNames.of([other])).pairs == {}


def test_a_name_of_separators_alone_is_compared_as_it_is():
    assert folded("_") == "_"
    assert folded("_") != folded("__")


def test_an_equal_id_comes_first_and_its_look_alike_is_reported():
    found = Matching.of(ClassNames.of(["cat", "Cat"]), ClassNames.of(["Cat", "dog"]))
    assert (dict(found.pairs), dict(found.unclear)) == ({}, {"cat": ["Cat"]})


def test_several_candidates_are_reported_with_the_cure():
    found = Matching.of(ClassNames.of(["CAT"]), ClassNames.of(["Cat", "cat"]))
    assert found.pairs == {}
    assert found.notes("the model", "val").warnings == (
        "val: class 'CAT' looks like 'Cat', 'cat' of the model and is not matched. If it is the same class, pass "
        "ReadOptions(rename=('CAT=Cat',)).",
    )
    both = Matching.of(ClassNames.of(["Traffic light", "TRAFFIC LIGHT"]), ClassNames.of(["traffic_light"]))
    assert both.pairs == {}
    assert "ReadOptions(rename=('Traffic light=traffic_light',))." in both.notes("train").warnings[0]


def test_an_id_is_matched_to_a_display_name():
    """A sheet says "cat", where OpenImages has an id of its own; two ids with one name are two classes."""
    images = ClassNames(("/m/1", "/m/2"), ("Cat", "Dog"))
    assert Matching.of(ClassNames.of(["cat"]), images).pairs == {"cat": "/m/1"}
    assert Matching.of(images, ClassNames.of(["cat"])).pairs == {"/m/1": "cat"}
    found = Matching.of(ClassNames(("n7",), ("cat",)), images)
    assert (found.pairs, dict(found.unclear)) == ({}, {"n7": ["/m/1"]})


def test_matched_classes_keep_their_labels_and_the_message_names_the_pairs():
    val = table({"a": [P, N], "b": [U, P]}, ["bicycle", "boat"])
    found = match_classes(val, ClassNames.of(["Boat", "Bicycle"]), "train", "val")
    assert found.classes.ids == ("Bicycle", "Boat")
    assert found.matrix.dense().tolist() == [[P, N], [U, P]]
    assert found.notes.messages == (
        "val: 2 class names are matched to train, because only the spelling differs: 'bicycle' = 'Bicycle', "
        "'boat' = 'Boat'",
    )


def test_splits_get_one_vocabulary():
    tables = common_vocabulary(
        {"train": table({"a": [P]}, ["Cat"]), "val": table({"b": [N]}, ["cat"]), "test": table({"c": [P]}, ["CAT"])}
    )
    assert [t.classes.ids for t in tables.values()] == [("Cat",)] * 3
    assert tables["val"].matrix.dense().tolist() == [[N]]
    assert "'CAT' = 'Cat'" in tables["test"].notes.messages[0]


def test_one_id_may_have_two_spellings_of_its_name():
    train, val = (table({name: [P]}, ClassNames(("1",), (name,))) for name in ("Cat", "cat"))
    assert common_vocabulary({"train": train, "val": val})["val"].classes.names == ("Cat",)


def test_sources_are_merged_under_one_name():
    merged = merge({"one": table({"a": [P]}, ["Cat"]), "two": table({"b": [P]}, ["cat"])})
    assert merged.classes.ids == ("Cat",)
    assert (
        "two: 1 class name is matched to one, because only the spelling differs: 'cat' = 'Cat'" in merged.notes.messages
    )


def test_complete_labels_are_matched_too():
    truth = match_images(table({"a": [P], "b": [N]}, ["cat"]), table({"b": [U]}, ["Cat"]))
    assert (truth.classes.ids, truth.matrix.dense().tolist()) == (("Cat",), [[N]])


def test_groups_of_look_alikes():
    assert look_alikes(ClassNames.of(["cat", "dog", "Cat", "hot dog", "hot_dog"])) == [
        ("cat", "Cat"),
        ("hot dog", "hot_dog"),
    ]
    assert look_alikes(ClassNames(("n1", "n2"), ("crane", "crane"))) == []


def test_renaming_joins_classes_as_asked():
    """Image a: complete, a Cat; b: complete, a cat; c: nothing known. A photo is complete only if both names are."""
    rows = {"a": [P, U, U], "b": [U, P, U], "c": [U, U, U]}
    before = table(
        rows, ["Cat", "cat", "dog"], complete_set=np.array([0, 1, -1]),
        complete_classes=np.array([[True, True, False], [False, True, True]]),
    )  # fmt: skip
    after = rename_as_asked(before, ["Cat=cat", "dog=Hund", "owl=Eule"])
    assert after.classes.ids == ("cat", "Hund")
    assert after.matrix.dense().tolist() == [[P, U], [P, N], [U, U]]
    assert after.complete_classes.tolist() == [[True, False], [False, True]]
    assert after.notes.messages == (
        "data.rename: class 'Cat' is joined with 'cat'",
        "data.rename: class 'dog' is renamed to 'Hund'",
        "data.rename: 'owl' is not a class of these labels; nothing renamed",
    )
    assert int((after.matrix.dense() == Label.POSITIVE).sum()) == 2


def test_renaming_takes_names_with_an_equals_sign_and_display_names():
    classes = ClassNames(("a=b", "n1"), ("a=b", "tabby"))
    assert rename_as_asked(table({"x": [P, P]}, classes), ["a=b=c", "tabby=cat"]).classes.ids == ("c", "cat")


@pytest.mark.parametrize("word", ["cat", "=cat", "cat=", " = "])
def test_a_renaming_without_two_names_is_refused(word):
    with pytest.raises(ConfigError, match="is not OLD=NEW"):
        rename_as_asked(table({"x": [P]}, ["cat"]), [word])
