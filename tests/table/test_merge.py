"""Merging: what each source is complete for, images by file, classes by id."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewtags.table.merge
from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable, Notes


def table_of(labels, classes, names=None, **more):
    """A table from {key: {class: state}}."""
    vocabulary = ClassNames.of(classes, names)
    facts = [(i, vocabulary.index(c), s) for i, of in enumerate(labels.values()) for c, s in of.items()]
    image, class_, state = np.array(facts, int).reshape(-1, 3).T
    return LabelTable.build(list(labels), vocabulary, image=image, class_=class_, state=state, **more)


def known(table):
    """{key: {class: state}} without the unknown cells."""
    dense = table.matrix.dense()
    return {
        key: {c: int(s) for c, s in zip(table.classes.ids, row, strict=True) if s != Label.UNKNOWN}
        for key, row in zip(table.images.to_pylist(), dense, strict=True)
    }


CATS = table_of({"a.jpg": {"cat": 1}, "b.jpg": {}}, ["cat"], source="cats.csv")
DOGS = table_of({"b.jpg": {"dog": 1}, "c.jpg": {"dog": -1}}, ["dog", "bird"], source="dogs.json")


def test_what_a_source_does_not_label_stays_unknown():
    assert known(merge({"cats": CATS, "dogs": DOGS})) == {
        "a.jpg": {"cat": 1},
        "b.jpg": {"dog": 1},
        "c.jpg": {"dog": -1},
    }


def test_a_source_that_is_complete_for_a_class_completes_its_images_for_that_class_only():
    """Cats are complete for cats: b has none, a's dogs stay unknown, c was never looked at for cats."""
    table = merge({"cats": CATS, "dogs": DOGS}, complete_classes={"cats": ["cat"]})
    assert known(table) == {"a.jpg": {"cat": 1}, "b.jpg": {"cat": -1, "dog": 1}, "c.jpg": {"dog": -1}}


def test_an_image_of_two_complete_sources_is_complete_for_both():
    """Only b is in both sources; its row of `complete_classes` is a third one."""
    table = merge({"cats": CATS, "dogs": DOGS}, complete_classes={"cats": ["cat"], "dogs": ["dog", "bird"]})
    assert known(table) == {
        "a.jpg": {"cat": 1},
        "b.jpg": {"cat": -1, "dog": 1, "bird": -1},
        "c.jpg": {"dog": -1, "bird": -1},
    }
    assert sorted(table.complete_classes.sum(1).tolist()) == [1, 2, 3]


def test_what_tables_say_about_themselves_is_kept_and_complete_classes_come_on_top():
    complete = replace(CATS, complete_set=np.array([-1, 0], np.int16), complete_classes=np.array([[True]]))
    assert known(merge({"cats": complete, "dogs": DOGS}))["b.jpg"] == {"cat": -1, "dog": 1}
    both = merge({"cats": complete, "dogs": DOGS}, complete_classes={"cats": ["bird"]})
    assert known(both)["b.jpg"] == {"cat": -1, "dog": 1, "bird": -1}
    assert known(both)["a.jpg"] == {"cat": 1, "bird": -1}


def test_classes_and_images_come_in_order_of_appearance():
    table = merge([DOGS, CATS])
    assert table.classes.ids == ("dog", "bird", "cat")
    assert table.images.to_pylist() == ["b.jpg", "c.jpg", "a.jpg"]


def test_contradicting_sources_make_the_cell_unknown():
    other = table_of({"a.jpg": {"cat": -1}}, ["cat"])
    table = merge({"one": CATS, "two": other})
    assert known(table)["a.jpg"] == {}
    assert str(table.summary().contradicting[0]) == "a.jpg: cat is positive in one: cats.csv, negative in two"


def test_facts_carry_their_source():
    assert merge({"cats.csv": CATS, "dogs": DOGS}).facts["source"].to_pylist() == [
        "cats.csv",
        "dogs: dogs.json",
        "dogs: dogs.json",
    ]
    assert merge([CATS, DOGS]).facts["source"].to_pylist() == ["cats.csv", "dogs.json", "dogs.json"]
    assert merge([CATS, DOGS], complete_classes={"1": ["cat"]}).matrix.counts(Label.NEGATIVE).tolist() == [1, 1, 0]


def test_merging_one_table_changes_no_label():
    complete = replace(
        DOGS, complete_set=np.array([-1, 1], np.int16), complete_classes=np.array([[True, False], [False, True]])
    )
    assert merge([complete]).fingerprint == complete.fingerprint


# --- reference


@st.composite
def sources(draw):
    """Two or three tables over shared keys and classes, some complete, and what each source is complete for."""
    tables, complete_classes = {}, {}
    for name in ("x", "y", "z")[: draw(st.integers(1, 3))]:
        classes = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
        keys = draw(st.lists(st.sampled_from("123456"), unique=True))
        cell = st.sampled_from([None, -1, 1])
        labels = {key: {c: s for c in classes if (s := draw(cell)) is not None} for key in keys}
        table = table_of(labels, classes)
        if draw(st.booleans()):
            rows = np.array([[draw(st.booleans()) for _ in classes] for _ in range(2)])
            table = replace(
                table, complete_set=np.array([draw(st.integers(-1, 1)) for _ in keys], np.int16), complete_classes=rows
            )
        tables[name] = table
    every = sorted({c for t in tables.values() for c in t.classes.ids})
    for name in tables:
        if draw(st.booleans()):
            complete_classes[name] = draw(st.lists(st.sampled_from(every), unique=True))
    return tables, complete_classes


@given(sources())
def test_merge_equals_the_reference(made):
    """Per cell: what facts agree on; without facts, negative if any source of the image is complete for the class."""
    tables, complete_classes = made
    merged = merge(tables, complete_classes)
    facts, absent = {}, set()
    for name, table in tables.items():
        for fact in table.facts.to_pylist():
            cell = (table.images[fact["image"]].as_py(), table.classes.ids[fact["class"]])
            facts.setdefault(cell, set()).add(fact["state"])
        for i, key in enumerate(table.images.to_pylist()):
            absent |= {(key, c) for c in complete_classes.get(name, [])}
            if table.complete_set[i] >= 0:
                absent |= {
                    (key, c)
                    for c, on in zip(table.classes.ids, table.complete_classes[table.complete_set[i]], strict=True)
                    if on
                }
    expected = {key: {} for table in tables.values() for key in table.images.to_pylist()}
    for key in expected:
        for c in merged.classes.ids:
            states = facts.get((key, c), {-1} if (key, c) in absent else set())
            if len(states) == 1:
                expected[key][c] = states.pop()
    assert known(merged) == expected
    assert len(merged.facts) == sum(len(t.facts) for t in tables.values())
    assert len(np.unique(merged.complete_classes, axis=0)) == len(merged.complete_classes)


# --- folders


def test_tables_of_one_folder_keep_it():
    one, other = CATS.with_root("photos"), DOGS.with_root("photos/../photos")
    assert merge([one, other]).root == Path("photos")
    assert merge([one, DOGS]).root == Path("photos")  # A table without a folder is about the same images.
    assert len(merge([one, other])) == 3


def test_equal_keys_in_different_folders_are_different_images(tmp_path):
    table = merge({"cats": CATS.with_root(tmp_path / "home"), "dogs": DOGS.with_root(tmp_path / "work")})
    assert table.root == tmp_path.resolve()
    assert table.images.to_pylist() == ["home/a.jpg", "home/b.jpg", "work/b.jpg", "work/c.jpg"]


def test_one_file_named_from_two_folders_is_one_image(tmp_path):
    inside = table_of({"a.jpg": {"dog": 1}}, ["dog"]).with_root(tmp_path / "train")
    outside = table_of({"train/a.jpg": {"cat": 1}, "b.jpg": {}}, ["cat"]).with_root(tmp_path)
    table = merge([inside, outside])
    assert table.root == tmp_path.resolve()
    assert known(table) == {"train/a.jpg": {"dog": 1, "cat": 1}, "b.jpg": {}}


def test_prefix_keeps_equal_keys_of_tables_without_folders_apart():
    table = merge({"x": CATS, "y": DOGS}, prefix=True)
    assert table.images.to_pylist() == ["x/a.jpg", "x/b.jpg", "y/b.jpg", "y/c.jpg"]
    assert table.root is None


# --- splits and notes


def test_split_names_are_joined():
    one = replace(CATS, split_names=pa.array(["train", ""]))
    other = replace(DOGS, split_names=pa.array(["val", None]))
    assert merge([one, other]).split_names.to_pylist() == ["train", "val", ""]
    assert merge([CATS, other]).split_names.to_pylist() == ["", "val", ""]
    assert merge([CATS, DOGS]).split_names is None


def test_an_image_in_two_splits_is_refused():
    one = replace(CATS, split_names=pa.array(["train", "train"]))
    other = replace(DOGS, split_names=pa.array(["val", "val"]))
    with pytest.raises(DataError) as error:
        merge({"cats": one, "dogs": other})
    assert str(error.value) == (
        "'b.jpg' is in split 'train' and, in 'dogs', in split 'val' (1 such images); decide on one, or drop "
        "the split names "
        "of one source."
    )


def test_notes_of_all_sources_and_of_the_merge():
    crane = table_of({"a.jpg": {"n1": 1}}, ["n1"], ["crane"], notes=Notes(messages=("read one",)))
    machine = table_of({"a.jpg": {"n2": 1}}, ["n2"], ["crane"])
    assert merge({"birds": crane, "sites": machine}).notes.messages == (
        "read one",
        "merged 2 sources (birds 1, sites 1 images) into 1 image, 2 classes",
        "classes 'n1', 'n2' are all called 'crane' and stay apart, because their ids differ",
    )


def test_a_positive_that_another_source_implies_absent_is_kept_and_reported():
    """Cats are complete, and b shows none; the other source sees one in b, twice. In a they agree."""
    other = table_of({"b.jpg": {"cat": 1}, "a.jpg": {"cat": 1}}, ["cat"])
    table = merge({"cats": CATS, "more": other, "again": other}, complete_classes={"cats": ["cat"]})
    assert known(table) == {"a.jpg": {"cat": 1}, "b.jpg": {"cat": 1}}
    (found,) = [found for found in table.notes.lists if found.code == "overruled"]
    assert found.items == ("b.jpg: cat",)
    assert found.message == (
        "1 label is positive in 'more' or 'again', but 'cats' has the image, is complete for the class and does not "
        "name it there; they count as positive. Decide which source is right."
    )


# --- display names


def test_a_display_name_wins_over_a_repeated_id():
    bare, named = table_of({"a": {}}, ["n1"]), table_of({"a": {}}, ["n1"], ["tench"])
    assert merge([bare, named]).classes.names == ("tench",)
    assert merge([named, bare]).classes.names == ("tench",)
    assert merge([bare, named, named]).classes.names == ("tench",)


def test_two_display_names_for_one_id_are_refused():
    coco, voc = table_of({"a": {}}, ["3"], ["cat"]), table_of({"a": {}}, ["3"], ["dog"])
    with pytest.raises(DataError) as error:
        merge({"plain": table_of({"a": {}}, ["3"]), "coco": coco, "voc": voc})
    assert str(error.value) == (
        "class id '3' is called 'cat' in 'coco' and 'dog' in 'voc'. If both are the same class, give it the "
        "same display "
        "name in both sources; if not, give it another id in one."
    )


# --- errors


@pytest.mark.parametrize(
    ("complete_classes", "message"),
    [
        ({"cat": ["cat"]}, "complete_classes names 'cat', which is not a source; the sources are 'cats', 'dogs'."),
        (
            {"cats": ["catt"]},
            "complete_classes of 'cats' has a class that no source has: 'catt' is not a class (did you mean 'cat'?).",
        ),
        ({"cats": "cat"}, "complete_classes of 'cats' is the string 'cat'; give a list of class ids."),
    ],
)
def test_bad_complete_classes(complete_classes, message):
    with pytest.raises(DataError) as error:
        merge({"cats": CATS, "dogs": DOGS}, complete_classes=complete_classes)
    assert str(error.value) == message


def test_nothing_to_merge():
    with pytest.raises(DataError, match="there is nothing to merge; give at least one label table"):
        merge([])


def test_a_table_without_a_folder_between_two_folders(tmp_path):
    tables = {"a": CATS.with_root(tmp_path / "a"), "b": CATS.with_root(tmp_path / "b"), "c": DOGS}
    with pytest.raises(DataError) as error:
        merge(tables)
    folders = ", ".join(str((tmp_path / name).resolve()) for name in "ab")
    assert str(error.value) == (
        f"the images of 'c' have no folder, and the other sources have different ones ({folders}); say which with "
        "`with_root`."
    )


def test_prefix_is_not_for_folders():
    with pytest.raises(DataError, match="prefix names images 'source/key', which is not a path in 'photos'"):
        merge({"cats": CATS.with_root("photos"), "dogs": DOGS}, prefix=True)


def test_folders_on_different_drives(monkeypatch):
    def no_common_path(paths):
        raise ValueError("Paths don't have the same drive")

    monkeypatch.setattr(fewtags.table.merge.os.path, "commonpath", no_common_path)
    with pytest.raises(DataError, match=r"no folder contains .*one, .*two together; move or link the photos into one"):
        merge([CATS.with_root("one"), DOGS.with_root("two")])


def test_more_cover_sets_than_fit(monkeypatch):
    monkeypatch.setattr(fewtags.table.merge, "MAX_COMPLETE_SETS", 2)
    with pytest.raises(DataError) as error:
        merge({"cats": CATS, "dogs": DOGS}, complete_classes={"cats": ["cat"], "dogs": ["dog"]})
    assert str(error.value) == (
        "the sources are complete for 3 different sets of classes; a table can have at most 2. "
        "Merge fewer sources at once."
    )
