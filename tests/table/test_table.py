"""The label table: building, matrix, fingerprint, subset, splits of the source."""

import hashlib
import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import FACTS, Excluded, LabelTable, Notes, ValueReading

CLASSES = ClassNames.of(["cat", "dog", "bird"])


def facts_table(keys, facts, classes=CLASSES, **more):
    """A table from (image, class, state) or (image, class, state, box) tuples."""
    nowhere = (np.nan,) * 4
    return LabelTable.build(
        keys,
        classes,
        image=np.array([f[0] for f in facts], int),
        class_=np.array([f[1] for f in facts], int),
        state=np.array([f[2] for f in facts], int),
        locations=np.array([f[3] if len(f) > 3 else nowhere for f in facts], float).reshape(-1, 4),
        **more,
    )


@st.composite
def tables(draw):
    """Small tables with repeated and contradicting facts, boxes, complete sets and split names."""
    n, c, s = draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
    box = st.sampled_from([(np.nan,) * 4, (0.0, 0.25, 0.5, 1.0), (0.5, 0.5, 0.5, 0.5)])
    fact = st.tuples(st.integers(0, n - 1), st.integers(0, c - 1), st.sampled_from([-1, 1]), box)
    facts = draw(st.lists(fact, max_size=10)) if n else []
    bits = st.lists(st.booleans(), min_size=c, max_size=c)
    return facts_table(
        [f"{i}.jpg" for i in range(n)],
        facts,
        ClassNames.of([f"c{j}" for j in range(c)]),
        complete_set=np.array(draw(st.lists(st.integers(-1, s - 1), min_size=n, max_size=n)), int),
        complete_classes=np.array(draw(st.lists(bits, min_size=s, max_size=s)), bool).reshape(s, c),
        split=draw(st.none() | st.lists(st.sampled_from(["train", "val", ""]), min_size=n, max_size=n)),
    )


def dense_reference(table):
    """What the class docstring says, one cell after the other."""
    out = np.zeros((len(table), len(table.classes)), np.int8)
    facts = table.facts.to_pylist()
    for i in range(len(table)):
        for j in range(len(table.classes)):
            states = {f["state"] for f in facts if (f["image"], f["class"]) == (i, j)}
            if len(states) == 1:
                out[i, j] = states.pop()
            elif not states and table.complete_set[i] >= 0 and table.complete_classes[table.complete_set[i], j]:
                out[i, j] = Label.NEGATIVE
    return out


# --- build


def test_build_by_hand():
    """A point, a box, a fact without a location: what was put in stands in the columns."""
    table = facts_table(
        ["a.jpg", "b.jpg"],
        [(0, 1, 1, (0.5, 0.25, 0.5, 0.25)), (0, 1, 1, (0, 0, 1, 0.5)), (1, 2, -1)],
        source="boxes.json",
        root=Path("photos"),
        split=["train", "val"],
    )
    assert len(table) == 2
    assert table.facts.schema == FACTS
    assert table.facts.drop_columns("source").to_pylist() == [
        {"image": 0, "class": 1, "state": 1, "x0": 0.5, "y0": 0.25, "x1": 0.5, "y1": 0.25},
        {"image": 0, "class": 1, "state": 1, "x0": 0.0, "y0": 0.0, "x1": 1.0, "y1": 0.5},
        {"image": 1, "class": 2, "state": -1, "x0": None, "y0": None, "x1": None, "y1": None},
    ]
    assert table.facts["source"].to_pylist() == ["boxes.json"] * 3
    assert table.split_names.to_pylist() == ["train", "val"]
    assert repr(table) == "LabelTable(2 images, 3 classes, 3 facts, root='photos')"


def test_an_empty_table_and_one_without_classes():
    empty = facts_table([], [])
    assert (len(empty), empty.matrix.shape) == (0, (0, 3))
    bare = facts_table(["a.jpg"], [], ClassNames.of([]))
    assert bare.matrix.shape == (1, 0)
    assert repr(bare) == "LabelTable(1 images, 0 classes, 0 facts)"


def test_repeated_keys_are_refused():
    with pytest.raises(DataError) as error:
        facts_table(["a.jpg", "b.jpg", "a.jpg"], [])
    assert str(error.value) == "image key 'a.jpg' occurs 2 times; keys (relative paths) must be unique."


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ((2, 0, 1), "a fact names image number 2, but there are 2, counted from 0."),
        ((-1, 0, 1), "a fact names image number -1, but there are 2, counted from 0."),
        ((0, 3, 1), "a fact names class number 3, but there are 3, counted from 0."),
    ],
)
def test_facts_outside_the_table_are_refused(fact, message):
    with pytest.raises(DataError) as error:
        facts_table(["a.jpg", "b.jpg"], [fact])
    assert str(error.value) == message


def test_our_own_mistakes_fail_at_once():
    with pytest.raises(AssertionError, match="an unknown cell is not a fact"):
        facts_table(["a.jpg"], [(0, 0, 0)])
    with pytest.raises(AssertionError, match="location outside the image"):
        facts_table(["a.jpg"], [(0, 0, 1, (0.0, 0.0, 1.5, 1.0))])
    with pytest.raises(AssertionError, match=r"\(0, 3\)"):
        facts_table(["a.jpg"], [], complete_set=np.array([0]))


# --- matrix


def test_matrix_by_hand():
    """One class located twice is one label; a positive and a negative of one cell make it unknown."""
    table = facts_table(
        ["a.jpg", "b.jpg", "c.jpg"],
        [(2, 0, 1), (0, 1, 1, (0, 0, 0.5, 0.5)), (0, 1, 1, (0.5, 0.5, 1, 1)), (2, 2, -1), (2, 2, 1), (0, 0, -1)],
    )
    assert table.matrix.dense().tolist() == [[-1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert table.matrix.indptr.tolist() == [0, 2, 2, 4]
    assert table.matrix.classes.tolist() == [0, 1, 0, 2]
    assert table.matrix.states.tolist() == [-1, 1, 1, 0]


def test_a_contradiction_is_unknown_in_a_complete_image_too():
    table = facts_table(
        ["a.jpg"], [(0, 0, 1), (0, 0, -1)], complete_set=np.array([0]), complete_classes=np.ones((1, 3), bool)
    )
    assert table.matrix.dense().tolist() == [[0, -1, -1]]


@given(tables())
def test_matrix_equals_the_reference(table):
    np.testing.assert_array_equal(table.matrix.dense(), dense_reference(table))
    for row in range(len(table)):
        entries = table.matrix.classes[table.matrix.indptr[row] : table.matrix.indptr[row + 1]]
        assert np.all(np.diff(entries) > 0)


# --- fingerprint


def test_locations_are_those_of_positives_sorted_by_image():
    """A tag has no place, a negative's and a contradicted positive's place say nothing about where an object is."""
    point, box = (0.5, 0.25, 0.5, 0.25), (0.0, 0.0, 0.5, 1.0)
    facts = [(2, 0, 1, box), (0, 1, 1, point), (0, 1, 1), (0, 0, -1, box), (1, 2, 1, box), (1, 2, -1), (2, 0, 1, point)]
    locations = facts_table(["a", "b", "c"], facts).locations
    assert locations.indptr.tolist() == [0, 1, 1, 3]
    assert locations.classes.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(locations.boxes, np.array([point, box, point], np.float32))
    assert len(facts_table(["a"], [(0, 0, 1)]).locations) == 0


def test_the_fingerprint_never_changes():
    """Runs on disk carry it: another value for the same table would refuse to resume them."""
    table = facts_table(
        ["a.jpg", "ü.jpg"],
        [(0, 1, 1, (0, 0, 0.5, 1)), (1, 0, -1)],
        complete_set=np.array([-1, 0]),
        complete_classes=np.array([[True, False, True]]),
    )
    parts = (
        b'[["cat", "dog", "bird"], ["cat", "dog", "bird"]]',
        struct.pack("<2q", 5, 5),  # characters, not bytes
        "a.jpgü.jpg".encode(),
        struct.pack("<iibffff", 0, 1, 1, 0, 0, 0.5, 1) + struct.pack("<iibffff", 1, 0, -1, *[math.nan] * 4),
        struct.pack("<2i", -1, 0),
        bytes([0b10100000]),
    )
    said = b"fewtags label table 1\n" + b"".join(struct.pack("<q", len(part)) + part for part in parts)
    assert table.fingerprint == hashlib.sha256(said).hexdigest()
    assert table.fingerprint == "f60cc6983ea5c014a88581f9363e92441bb49c9dc78dee288df9fc95ed7b5c36"


@given(tables(), st.randoms(use_true_random=False))
def test_the_fingerprint_ignores_the_order_of_facts_and_what_changes_no_label(table, random):
    order = list(range(len(table.facts)))
    random.shuffle(order)
    # The sets in another order, with one that no image uses and an empty one.
    padded = np.concatenate(
        [np.zeros((1, len(table.classes)), bool), table.complete_classes[::-1], ~table.complete_classes[:1]]
    )
    renumbered = np.where(table.complete_set >= 0, len(table.complete_classes) - table.complete_set, 0).astype(np.int16)
    marks = pa.array(["elsewhere"] * len(order), pa.string()).dictionary_encode()
    other = replace(
        table,
        facts=table.facts.take(pa.array(order, pa.int64())).set_column(7, FACTS.field(7), marks),
        complete_set=renumbered,
        complete_classes=padded,
        root=Path("somewhere"),
        split_names=None,
        notes=Notes(messages=("read twice",)),
    )
    assert other.fingerprint == table.fingerprint


def test_the_order_of_two_boxes_of_one_class_does_not_matter():
    boxes = [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 0, 1, (0.5, 0.5, 1, 1))]
    assert facts_table(["a"], boxes).fingerprint == facts_table(["a"], boxes[::-1]).fingerprint


def test_equal_sets_with_two_numbers_are_one():
    complete_set, complete_classes = np.array([0, 1]), np.ones((2, 3), bool)
    one = facts_table(["a", "b"], [], complete_set=np.array([0, 0]), complete_classes=complete_classes[:1])
    assert (
        facts_table(["a", "b"], [], complete_set=complete_set, complete_classes=complete_classes).fingerprint
        == one.fingerprint
    )


@pytest.mark.parametrize(
    "other",
    [
        facts_table(["b", "a"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)]),
        facts_table(["a", "c"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)]),
        facts_table(["a", "b", "c"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)]),
        facts_table(["a", "b"], [(0, 0, 1), (0, 1, -1)]),
        facts_table(["a", "b"], [(0, 0, 1, (0, 0, 0.5, 0.25)), (0, 1, -1)]),
        facts_table(["a", "b"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, 1)]),
        facts_table(["a", "b"], [(1, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)]),
        facts_table(["a", "b"], [(0, 0, 1, (0, 0, 0.5, 0.5))]),
        facts_table(["a", "b"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)], ClassNames.of(["cat", "dog", "fly"])),
        facts_table(
            ["a", "b"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)], ClassNames.of(CLASSES.ids, ["Cat", "dog", "bird"])
        ),
        facts_table(
            ["a", "b"],
            [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)],
            complete_set=np.array([-1, 0]),
            complete_classes=np.array([[False, False, True]]),
        ),
    ],
    ids=["order", "key", "images", "no box", "box", "state", "image", "facts", "class", "name", "complete"],
)
def test_the_fingerprint_changes_with_the_content(other):
    table = facts_table(["a", "b"], [(0, 0, 1, (0, 0, 0.5, 0.5)), (0, 1, -1)])
    assert other.fingerprint != table.fingerprint


def test_keys_cannot_run_into_each_other():
    """ "a" + "bc" and "ab" + "c" are the same letters."""
    assert facts_table(["a", "bc"], []).fingerprint != facts_table(["ab", "c"], []).fingerprint


# --- subset


@given(tables(), st.data())
def test_subset_equals_the_rows_of_the_whole(table, data):
    index = data.draw(st.permutations(range(len(table)))) if len(table) else []
    index = index[: data.draw(st.integers(0, len(index)))]
    part = table.subset(index)
    np.testing.assert_array_equal(part.matrix.dense(), table.matrix.dense()[np.array(index, int)])
    assert part.images.to_pylist() == [f"{i}.jpg" for i in index]
    assert part.classes == table.classes
    if table.split_names is not None:
        assert part.split_names.to_pylist() == [table.split_names[i].as_py() for i in index]
    wanted = [f for i in index for f in table.facts.to_pylist() if f["image"] == i]
    found = sorted(part.facts.to_pylist(), key=lambda f: f["image"])
    assert [{**f, "image": index[f["image"]]} for f in found] == wanted


def test_subset_by_mask_is_subset_by_position_and_a_subset_of_all_is_the_same_table():
    table = facts_table(["a", "b", "c"], [(0, 0, 1), (2, 1, 1)])
    mask = np.array([True, False, True])
    assert table.subset(mask).images.to_pylist() == ["a", "c"]
    assert table.subset(mask).fingerprint == table.subset([0, 2]).fingerprint
    assert table.subset(range(3)).fingerprint == table.fingerprint


def test_subset_refuses_what_is_not_there():
    table = facts_table(["a", "b"], [])
    with pytest.raises(IndexError, match="positions are -1 to 0, but the table has 2 images"):
        table.subset([-1, 0])
    with pytest.raises(IndexError, match="positions are 2 to 2, but the table has 2 images"):
        table.subset([2])
    with pytest.raises(IndexError, match="the mask has 3 values, but the table has 2 images"):
        table.subset(np.array([True, False, True]))
    with pytest.raises(DataError, match="image key 'a' occurs 2 times"):
        table.subset([0, 0])


# --- splits of the source


def test_named_splits_lose_no_image():
    """The order is that of appearance; images in no split come under the empty name, whether that is "" or null."""
    table = facts_table(["a", "b", "c", "d"], [(1, 0, 1)], split=["val", "train", None, "val"])
    splits = table.named_splits()
    assert {name: part.images.to_pylist() for name, part in splits.items()} == {
        "val": ["a", "d"],
        "train": ["b"],
        "": ["c"],
    }
    assert list(splits) == ["val", "train", ""]
    assert splits["train"].matrix.dense().tolist() == [[1, 0, 0]]


def test_named_splits_without_names():
    with pytest.raises(DataError) as error:
        facts_table(["a"], []).named_splits()
    assert str(error.value) == "the source of this table names no splits; make one with split(val=0.1)."


# --- notes and root


def test_notes_add_up_and_print():
    reading = ValueReading("labels.csv, class columns", "(blank)", "unknown", 88400)
    assert str(reading) == "labels.csv, class columns: (blank) -> unknown (88,400)"
    notes = Notes((reading,)) + Notes(excluded=(Excluded("b.jpg", "unreadable"),), messages=("one",))
    table = facts_table(["a"], [], notes=notes).noting("two", "three")
    assert table.notes == Notes((reading,), (Excluded("b.jpg", "unreadable", ""),), ("one", "two", "three"))


def test_require_root_returns_the_folder_or_names_the_option():
    table = LabelTable.build(["a.jpg"], ClassNames.of(["cat"]), image=[0], class_=[0], state=[1])
    assert table.with_root("photos").require_root() == Path("photos")
    with pytest.raises(DataError, match=r"^the val labels do not say where the photos are; give their folder: images="):
        table.require_root("the val labels")


def test_with_root_changes_the_folder_and_nothing_else():
    table = facts_table(["a"], [(0, 0, 1)], root=Path("there"))
    assert table.with_root("here").root == Path("here")
    assert table.with_root(None).root is None
    assert table.with_root("here").fingerprint == table.fingerprint
