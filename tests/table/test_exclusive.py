"""Groups of classes of which one is present."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewtags.errors import ConfigError
from fewtags.labels import ClassNames
from fewtags.table.exclusive import ClassGroups, settle
from fewtags.table.table import LabelTable

NAMES = ClassNames.of(["day", "night", "dusk", "cat"])
ALWAYS, MOST = (
    ClassGroups(exactly_one=(("day", "night", "dusk"),)),
    ClassGroups(at_most_one=(("day", "night", "dusk"),)),
)


def table(rows, complete=None, names=NAMES):
    dense = np.array(rows, np.int8)
    image, class_ = np.nonzero(dense)
    return LabelTable.build(
        [f"{i}.jpg" for i in range(len(dense))],
        names,
        image=image,
        class_=class_,
        state=dense[image, class_],
        complete_set=None if complete is None else np.array(complete),
        complete_classes=None if complete is None else np.ones((1, len(names)), np.bool_),
    )


ROWS = [[1, 0, 0, 0], [-1, -1, 0, 0], [1, 1, 0, 1], [-1, -1, -1, 0], [0, -1, 0, 0]]


def test_exactly_one_by_hand():
    """One positive excludes the rest; two negatives of three leave the third; two positives or none contradict."""
    found = ALWAYS.applied(table(ROWS), "train")
    assert found.matrix.dense().tolist() == [
        [1, -1, -1, 0],
        [-1, -1, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 0],
        [0, -1, 0, 0],
    ]
    assert found.notes.messages == (
        "train: exactly one of day, night, dusk: 2 negative labels and 1 positive label follow from known ones",
    )
    assert [(e.item, e.reason, e.where, e.kind) for e in found.notes.excluded] == [
        ("2.jpg", "day and night are present, but exactly one of day, night, dusk is possible", "train", "group"),
        ("3.jpg", "all are absent, but exactly one of day, night, dusk is possible", "train", "group"),
    ]
    assert found.summary().contradictions == 0


def test_at_most_one_by_hand():
    """No class may be present, so that two negatives say nothing about the third."""
    found = MOST.applied(table(ROWS), "val")
    assert found.matrix.dense().tolist() == [
        [1, -1, -1, 0],
        [-1, -1, 0, 0],
        [0, 0, 0, 1],
        [-1, -1, -1, 0],
        [0, -1, 0, 0],
    ]
    assert [e.item for e in found.notes.excluded] == ["2.jpg"]


def test_implied_negatives_of_complete_photos_may_contradict():
    """Complete photos: the first has day, the second nothing, the third two of the group. cat stays absent."""
    found = ALWAYS.applied(table([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]], [0, 0, 0]), "train")
    assert found.matrix.dense().tolist() == [[1, -1, -1, -1], [0, 0, 0, -1], [0, 0, 0, -1]]
    assert [e.item for e in found.notes.excluded] == ["1.jpg", "2.jpg"]


@given(hnp.arrays(np.int8, st.tuples(st.integers(1, 5), st.integers(2, 4)), elements=st.sampled_from([-1, 0, 1])))
@pytest.mark.parametrize("always", [True, False])
def test_equal_to_all_possible_photos(always, states):
    """What follows is what all photos that fit the known labels have in common."""
    size = states.shape[1]
    photos = [np.where(np.arange(size) == c, 1, -1) for c in range(size)] + ([] if always else [np.full(size, -1)])
    found, against = settle(states, always)
    for row, out, wrong in zip(states, found, against, strict=True):
        fits = np.array([p for p in photos if ((row == 0) | (row == p)).all()])
        assert wrong == (len(fits) == 0)
        common = [int(v[0]) if len(set(v.tolist())) == 1 else 0 for v in fits.T] if len(fits) else [0] * size
        assert out.tolist() == common


def test_twice_is_once():
    once = ALWAYS.applied(table(ROWS), "train")
    assert ALWAYS.applied(once, "train").fingerprint == once.fingerprint


def test_labels_of_an_array_are_settled_alike():
    found, messages = ALWAYS.settled(np.array(ROWS, np.int8), NAMES)
    assert found.tolist() == ALWAYS.applied(table(ROWS), "").matrix.dense().tolist()
    assert messages[-1] == (
        "warning: 2 photos contradict the model's group, exactly one of day, night, dusk; these labels count as unknown"
    )


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (
            {"exactly_one": (("day", "nihgt"),)},
            "data.exactly_one: 'nihgt' is not a class of these labels (did you mean",
        ),
        ({"at_most_one": (("day",),)}, "data.at_most_one: a group needs two classes or more, got ['day']"),
        ({"exactly_one": (("day", "night"),), "at_most_one": (("night", "cat"),)}, "class 'night' occurs twice in"),
        ({"exactly_one": (("day", "day"),)}, "class 'day' occurs twice in"),
    ],
)
def test_refused(groups, text):
    with pytest.raises(ConfigError) as caught:
        ClassGroups(**groups).resolved(NAMES)
    assert text in str(caught.value)


def test_display_names():
    names = ClassNames.of(["c1", "c2"], ["day", "night"])
    assert ClassGroups(exactly_one=(("day", "c2"),)).resolved(names).exactly_one == (("c1", "c2"),)
