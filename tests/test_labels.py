"""Labels: the vocabulary, and the sparse matrix against a dense one written down cell by cell."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.labels import Batch, ClassNames, Label, LabelMatrix, Locations, Places, SecondView
from fewtags.text import suggest

# --- ClassNames


def test_class_names_positions_and_membership():
    names = ClassNames.of(["n02084071", "n02121808"], ["dog", "cat"])
    assert len(names) == 2
    assert names.index("n02121808") == 1
    assert "n02084071" in names
    assert "dog" not in names  # A display name is no id.
    assert names.display == ("dog", "cat")


def test_ids_are_the_display_names_unless_given():
    assert ClassNames.of(["cat", "dog"]).names == ("cat", "dog")


def test_an_iterator_of_ids_is_read_once():
    assert ClassNames.of(iter(["cat", "dog"])) == ClassNames(("cat", "dog"), ("cat", "dog"))


def test_two_classes_with_one_display_name_stay_two_and_can_be_told_apart():
    names = ClassNames.of(["n01", "n02", "n03"], ["crane", "crane", "cap"])
    assert len(names) == 3
    assert names.display == ("crane [n01]", "crane [n02]", "cap")


def test_vocabularies_are_equal_by_value_and_can_be_keys():
    assert {ClassNames.of(["a"]): 1}[ClassNames.of(["a"])] == 1


@pytest.mark.parametrize(
    ("ids", "names", "message"),
    [
        (
            ["cat", "dog", "cat"],
            None,
            "class id 'cat' occurs more than once; ids must be unique (display names may repeat).",
        ),
        (["cat", ""], None, "an empty string is not a class id; give every class a name."),
        (["cat", "dog"], ["Cat"], "2 class ids but 1 display names; give one name per id."),
    ],
)
def test_bad_vocabularies(ids, names, message):
    with pytest.raises(DataError) as error:
        ClassNames.of(ids, names)
    assert str(error.value) == message


def test_an_unknown_class_suggests_the_nearest():
    with pytest.raises(DataError) as error:
        ClassNames.of(["bird", "cat"]).index("brid")
    assert str(error.value) == "'brid' is not a class (did you mean 'bird'?)."
    assert suggest("zebra", ["bird", "cat"]) == ""


# --- LabelMatrix


@st.composite
def matrices(draw):
    """A matrix made cell by cell, with a dense copy made by the three rules of the docstring."""
    n, c, s = draw(st.integers(0, 6)), draw(st.integers(0, 5)), draw(st.integers(0, 3))
    complete_classes = np.array(
        draw(st.lists(st.lists(st.booleans(), min_size=c, max_size=c), min_size=s, max_size=s)), bool
    )
    complete_classes = complete_classes.reshape(s, c)
    complete_set = np.array(draw(st.lists(st.integers(-1, s - 1), min_size=n, max_size=n)), np.int16)
    # None: no entry. Entries may say UNKNOWN (contradictions do), and then override implied negatives.
    cell = st.sampled_from([None, None, Label.NEGATIVE, Label.UNKNOWN, Label.POSITIVE])
    named = draw(st.lists(st.lists(cell, min_size=c, max_size=c), min_size=n, max_size=n))
    indptr, classes, states = [0], [], []
    dense = np.full((n, c), Label.UNKNOWN, np.int8)
    for i in range(n):
        for j in range(c):
            if named[i][j] is not None:
                classes.append(j)
                states.append(int(named[i][j]))
                dense[i, j] = named[i][j]
            elif complete_set[i] >= 0 and complete_classes[complete_set[i], j]:
                dense[i, j] = Label.NEGATIVE
        indptr.append(len(classes))
    matrix = LabelMatrix(
        np.array(indptr, np.int64),
        np.array(classes, np.int32),
        np.array(states, np.int8),
        complete_set,
        complete_classes,
    )
    return matrix, dense, named


def test_cells_by_hand():
    """Image 0 is complete for classes 0 and 2 and has class 2; image 1 lacks class 1; image 2 has no entry.

    So image 0 is: absent (implied), unknown (not in the set), present (entry).
    """
    matrix = LabelMatrix(
        indptr=np.array([0, 1, 2, 2]),
        classes=np.array([2, 1], np.int32),
        states=np.array([1, -1], np.int8),
        complete_set=np.array([0, -1, -1], np.int16),
        complete_classes=np.array([[True, False, True]]),
    )
    assert matrix.shape == (3, 3)
    assert matrix.dense().tolist() == [[-1, 0, 1], [0, -1, 0], [0, 0, 0]]
    assert matrix.counts(Label.POSITIVE).tolist() == [0, 0, 1]
    assert matrix.counts(Label.NEGATIVE).tolist() == [1, 1, 0]
    assert matrix.counts(Label.UNKNOWN).tolist() == [2, 2, 2]
    assert matrix.image_counts(Label.NEGATIVE).tolist() == [1, 1, 0]
    assert [cells.tolist() for cells in matrix.implied_negatives([1, 0])] == [[1], [0]]


def test_unknown_entries_override_implied_negatives():
    matrix = LabelMatrix(
        np.array([0, 1]),
        np.array([1], np.int32),
        np.array([0], np.int8),
        np.array([0], np.int16),
        np.ones((1, 2), bool),
    )
    assert matrix.dense().tolist() == [[-1, 0]]
    assert matrix.counts(Label.NEGATIVE).tolist() == [1, 0]


@given(matrices())
def test_dense_and_columns_equal_the_reference(made):
    matrix, dense, _ = made
    assert matrix.shape == dense.shape
    np.testing.assert_array_equal(matrix.dense(), dense)
    assert matrix.dense().dtype == np.int8
    for first in range(dense.shape[1] + 1):
        for last in range(first, dense.shape[1] + 1):
            np.testing.assert_array_equal(matrix.columns(first, last), dense[:, first:last])


@given(matrices(), st.data())
def test_rows_subset_and_implied_negatives_equal_the_reference(made, data):
    matrix, dense, named = made
    index = data.draw(st.lists(st.integers(0, len(dense) - 1), max_size=8)) if len(dense) else []
    np.testing.assert_array_equal(matrix.rows(index), dense[index] if index else dense[:0])
    part = matrix.subset(np.array(index, np.int64))
    np.testing.assert_array_equal(part.dense(), dense[index] if index else dense[:0])
    assert part.shape == (len(index), dense.shape[1])
    row, class_ = matrix.implied_negatives(index)
    expected = [
        (place, j)
        for place, i in enumerate(index)
        for j in range(dense.shape[1])
        if named[i][j] is None and dense[i, j] == Label.NEGATIVE
    ]
    assert list(zip(row.tolist(), class_.tolist(), strict=True)) == expected


@given(matrices(), st.data())
def test_single_cells_and_positives_equal_the_reference(made, data):
    """Cells in any order and repeated, and all of them in order, which are looked up the other way round."""
    matrix, dense, _ = made
    every = np.arange(dense.size)
    some = data.draw(st.lists(st.integers(0, dense.size - 1), max_size=12)) if dense.size else []
    for cells in (every, np.array(some, np.int64)):
        image, class_ = np.divmod(cells, max(dense.shape[1], 1))
        np.testing.assert_array_equal(matrix.at(image, class_), dense.reshape(-1)[cells])
    index = np.arange(len(dense))[::-1]
    row, class_ = matrix.positives(index)
    np.testing.assert_array_equal(np.stack([row, class_], 1), np.argwhere(dense[index] == Label.POSITIVE))


@given(matrices(), st.sampled_from(list(Label)))
def test_counts_equal_the_reference(made, state):
    matrix, dense, _ = made
    np.testing.assert_array_equal(matrix.counts(state), (dense == state).sum(0))
    np.testing.assert_array_equal(matrix.image_counts(state), (dense == state).sum(1))
    assert matrix.counts(state).dtype == matrix.image_counts(state).dtype == np.int64


@given(matrices())
def test_from_dense_is_the_inverse_of_dense(made):
    _, dense, _ = made
    again = LabelMatrix.from_dense(dense)
    np.testing.assert_array_equal(again.dense(), dense)
    assert not np.any(again.states == Label.UNKNOWN)
    assert np.all(again.complete_set == -1)


def test_locations_of_some_images():
    """Image 0 has two, image 1 none, image 2 one; asked for 2, 1, 0."""
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4) / 12
    locations = Locations(np.array([0, 2, 2, 3]), np.array([1, 0, 1], np.int32), boxes)
    row, classes, found = locations.rows([2, 1, 0])
    assert len(locations) == 3
    assert row.tolist() == [0, 2, 2]
    assert classes.tolist() == [1, 1, 0]
    np.testing.assert_array_equal(found, boxes[[2, 0, 1]])
    assert locations.rows([1])[2].shape == (0, 4)


def test_batch_moves_everything():
    places = Places(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4))
    labels = torch.zeros(2, 5, dtype=torch.int8)
    second_view = SecondView(torch.zeros(2, 3, 4, 4), torch.zeros(2, 2, 3))
    batch = Batch(
        images=torch.zeros(2, 3, 4, 4),
        labels=labels,
        index=torch.arange(2),
        views=torch.zeros(2, 2, 3),
        places=places,
        second_view=second_view,
    )
    moved = batch.to(torch.device("meta"))
    everything = (moved.images, moved.labels, moved.index, moved.views, *moved.places, *moved.second_view)
    assert {t.device.type for t in everything} == {"meta"}
    assert moved.labels.dtype == torch.int8
    bare = Batch(images=torch.zeros(2), labels=labels, index=torch.arange(2), views=torch.zeros(2)).to(
        torch.device("meta")
    )
    assert bare.places is None
    assert bare.second_view is None
