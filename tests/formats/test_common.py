import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.formats.common import (
    close_images,
    distinct,
    distinct_facts,
    named_classes,
    number_of,
    plain_text,
    read_json,
    split_name,
)
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable
from fewtags.text import some

X = float("nan")


def ints(*values):
    return np.array(values, np.int64)


def test_closing_everything_but_some_cells():
    """Images 0 and 3 leave class 1 open, image 2 leaves 0 and 2: two sets, numbered as they come, and row 0 for all."""
    closed, covers = close_images(4, 3, ints(3, 2, 0, 2, 0), ints(1, 2, 1, 0, 1))
    assert closed.tolist() == [1, 0, 2, 1]
    assert covers.tolist() == [[True, True, True], [True, False, True], [False, True, False]]


def test_closing_without_open_cells():
    closed, covers = close_images(2, 3, ints(), ints())
    assert (closed.tolist(), covers.tolist()) == ([0, 0], [[True] * 3])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=30))
def test_closed_cells_are_negative_and_open_ones_unknown(cells):
    image, class_ = np.array(cells, np.int64).reshape(-1, 2).T
    closed, covers = close_images(6, 5, image, class_)
    classes = ClassNames.of("abcde")
    table = LabelTable.build(
        [*"uvwxyz"], classes, image=ints(), class_=ints(), state=ints(), complete_set=closed, complete_classes=covers
    )
    expected = np.full((6, 5), Label.NEGATIVE)
    for i, c in cells:
        expected[i, c] = Label.UNKNOWN
    np.testing.assert_array_equal(table.matrix.dense(), expected)


def test_too_many_sets_of_open_classes():
    """16 classes have 65,536 sets; int16 numbers 32,767 beside the first."""
    sets = np.arange(1, 1 << 16)
    image, class_ = np.nonzero(sets[:, None] >> np.arange(16) & 1)
    with pytest.raises(DataError, match="more than 32,767 different sets of uncertain classes cannot be stored"):
        close_images(len(sets), 16, image, class_)


def test_distinct_facts_keep_locations_and_one_of_the_rest():
    """0, 1: both located. 2: says less than they. 3: another class. 4: the opposite. 5: as 4."""
    image, class_, state = ints(7, 7, 7, 7, 7, 7), ints(1, 1, 1, 2, 1, 1), ints(1, 1, 1, 1, -1, -1)
    located = np.array([True, True, False, False, False, False])
    assert distinct_facts(image, class_, state, located).tolist() == [True, True, False, True, True, False]


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 2, st.sampled_from([-1, 1]), st.booleans()), max_size=20))
def test_distinct_facts_say_the_same_as_all(facts):
    image, class_, state, located = np.array(facts, np.int64).reshape(-1, 4).T
    keep = distinct_facts(image, class_, state, located.astype(bool))
    assert {f[:3] for f, k in zip(facts, keep, strict=True) if k} == {f[:3] for f in facts}
    assert all(k for f, k in zip(facts, keep, strict=True) if f[3])
    alone = [f[:3] for f, k in zip(facts, keep, strict=True) if k and not f[3]]
    assert len(set(alone)) == len(alone)


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("Train", "train"), (" TRAINING ", "train"), ("valid", "val"), ("dev", "val"), ("Testing", "test")),
        *(("fold 3", "fold 3"), ("Extra ", "Extra"), ("", "")),
    ],
)
def test_split_names(text, name):
    assert split_name(text) == name


def test_some_of_a_list():
    assert some([]) == ""
    assert some(["a"]) == "'a'"
    assert some([*"abcdefg"]) == "'a', 'b', 'c', 'd', 'e' and 2 more"


def test_classes_of_one_name_stay_apart():
    classes = named_classes({3: "crane", 0: "cup", 9: "crane"})
    assert (classes.ids, classes.names) == (("crane#3", "cup", "crane#9"), ("crane", "cup", "crane"))


def test_json_is_read_with_a_hook(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert read_json(tmp_path / "a.json") == [{"a": 1}]
    assert read_json(tmp_path / "a.json", len) == [1]


def test_numbers_that_only_python_reads_are_none():
    assert [number_of(text) for text in (" 1.5 ", "-2e3", "+.5", "inf")] == [1.5, -2000.0, 0.5, np.inf]
    assert np.isnan([number_of(text) for text in ("1_000", "\u0663", "", "1,5", "nan", "0x1f")]).all()


def test_texts_that_no_file_can_hold_are_empty():
    assert [plain_text(value) for value in (" a ", "\ud800", 3, None)] == ["a", "", "", ""]
