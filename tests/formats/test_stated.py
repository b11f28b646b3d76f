from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fewtags.formats.locate import ImageKeys
from fewtags.formats.options import ReadOptions
from fewtags.formats.stated import Source, Stated, mark_sources
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Notes

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
X = float("nan")


def source(stated, image=(0, 1), complete=(), empty=(), unit="pixels", size=(200.0, 100.0), **more):
    """A file with R names; `image` is the photo of each, -1 for none."""
    n = len(image)
    photos = ImageKeys([f"{i}.jpg" for i in range(max(image) + 1)], np.array(image), None, Notes())
    return Source(
        options=ReadOptions(),
        path=Path("labels.xml"),
        classes=ClassNames.of(["cat", "dog"]),
        labels=stated.labels(),
        photos=photos,
        unit=unit,
        sizes=np.full((n, 2), size),
        complete=np.isin(np.arange(n), complete),
        empty=np.isin(np.arange(n), empty),
        origin=lambda i: f"label {i}",
        **more,
    )


def corners(table):
    return [
        None if f["x0"] is None else tuple(round(f[n], 6) for n in ("x0", "y0", "x1", "y1"))
        for f in table.facts.to_pylist()
    ]


def test_boxes_and_points_in_pixels_and_fractions():
    stated = Stated()
    stated.add(0, 1, box=(20, 10, 60, 30))
    stated.add(1, 0, point=(100, 25))
    stated.add(1, 1)
    table = source(stated).table()
    assert corners(table) == [(0.1, 0.1, 0.3, 0.3), (0.5, 0.25, 0.5, 0.25), None]
    assert table.matrix.dense().tolist() == [[U, P], [P, P]]
    stated = Stated()
    stated.add(0, 1, box=(0.1, 0.1, 0.3, 0.3))
    stated.add(0, 0, point=(1.0, 0.25))
    assert corners(source(stated, unit="fractions", size=(X, X)).table()) == [
        (0.1, 0.1, 0.3, 0.3),
        (1.0, 0.25, 1.0, 0.25),
    ]


def test_unknown_leaves_its_cell_open():
    """Image 0 is closed but for the cat; image 1 is not closed."""
    stated = Stated()
    stated.add(0, 0, state=U, box=(20, 10, 60, 30))
    stated.add(1, 0)
    table = source(stated, complete=(0,)).table()
    assert table.matrix.dense().tolist() == [[U, N], [P, U]]
    assert len(table.facts) == 1


def test_none_of_the_classes_and_yet_a_class():
    """Image 1 says that nothing is there and names a cat: both facts stay, the place with the positive."""
    stated = Stated()
    stated.add(1, 0, box=(20, 10, 60, 30))
    table = source(stated, empty=(0, 1)).table()
    assert table.matrix.dense().tolist() == [[N, N], [U, N]]
    assert corners(table) == [(0.1, 0.1, 0.3, 0.3), None]
    assert table.facts["state"].to_pylist() == [P, N]
    assert table.notes.messages == (
        "labels.xml: 1 label is in an image that is stated to show none of the classes: unknown",
    )


def test_photos_that_are_not_there_take_their_labels_with_them():
    stated = Stated()
    for image in range(3):
        stated.add(image, 0, point=(300, 10))
    table = source(stated, image=(0, -1, 1), complete=(1,), splits=["train", "val", ""]).table()
    assert table.matrix.dense().tolist() == [[P, U], [P, U]]
    assert table.split_names.to_pylist() == ["train", ""]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        (f"label {i}", "its point lies outside the photo; its label is kept") for i in (0, 2)
    ]
    assert table.notes.messages == (
        "labels.xml: 2 boxes or points cannot be used, see the excluded list; the labels are kept",
        "labels.xml: 1 label belongs to a photo that is left out",
    )


def test_a_place_that_was_refused_is_said_once_and_in_order():
    stated = Stated()
    stated.add(0, 0, box=(5, 5, 5, 9))
    stated.add(0, 1, unread="its mask is not read")
    table = source(stated).table()
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("label 0", "its box has no width or no height; its label is kept", "bad-place"),
        ("label 1", "its mask is not read; its label is kept", "unread-place"),
    ]
    assert corners(table) == [None, None]


def test_two_names_of_one_photo():
    """They are joined; the first split is used, and a message reports the difference."""
    stated = Stated()
    stated.add(0, 0)
    stated.add(1, 0, box=(20, 10, 60, 30))
    stated.add(1, 1)
    table = source(stated, image=(0, 0), splits=["train", "val"]).table()
    assert corners(table) == [(0.1, 0.1, 0.3, 0.3), None]
    assert table.split_names.to_pylist() == ["train"]
    assert table.notes.messages == ("labels.xml: 1 image is in several splits; the first of them counts",)
    (clash,) = table.notes.excluded
    assert (clash.reason, clash.kind) == ("is in train and in val; the first of them counts", "splits")


def test_a_class_whose_photos_are_all_left_out_is_named():
    """Photo 1 is missing: with it go the only dog, one of two cats, and the known absence of a bird."""
    stated = Stated()
    for image, class_, state in ((0, 0, P), (1, 0, P), (1, 1, P), (0, 2, P), (1, 2, N)):
        stated.add(image, class_, state=state)
    classes = ClassNames.of(["cat", "dog", "bird"])
    table = replace(source(stated, image=(0, -1)), classes=classes).table()
    assert table.notes.messages == ("labels.xml: 3 labels belong to photos that are left out",)
    assert table.notes.warnings == ("labels.xml: all photos with 'dog' are left out, so nothing is known of it",)
    assert not replace(source(stated), classes=classes).table().notes.warnings


def test_sources():
    stated = Stated()
    stated.add(0, 0, source=1)
    stated.add(0, 1)
    table = source(stated, sources=("labels.xml", "labels.xml: auto")).table()
    assert table.facts["source"].to_pylist() == ["labels.xml: auto", "labels.xml"]
    assert source(stated).table().facts["source"].to_pylist() == ["labels.xml"] * 2


def test_marked_sources_change_no_label():
    zeros = np.zeros(1, np.int64)
    table = LabelTable.build(["a.jpg"], ClassNames.of(["cat"]), image=zeros, class_=zeros, state=zeros + 1)
    assert mark_sources(table, ["x"], zeros) is table
    marked = mark_sources(table, ["x", "y"], zeros + 1)
    assert marked.facts["source"].to_pylist() == ["y"]
    assert marked.fingerprint == table.fingerprint


labels = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1), st.sampled_from([P, N, U]), st.booleans()), max_size=20
)


@given(labels, *[st.sets(st.integers(0, 4))] * 3)
def test_tables_agree_with_a_plain_loop(rows, closed, nothing, gone):
    stated = Stated()
    for image, class_, state, placed in rows:
        stated.add(image, class_, state=state, box=(0, 0, 50, 50) if placed else None)
    position = iter(range(5))
    image = [-1 if i in gone else next(position) for i in range(5)]
    if len(gone) == 5:
        return
    dense = source(stated, image=image, complete=[*closed], empty=[*nothing]).table().matrix.dense()
    for i in set(range(5)) - gone:
        for c in range(2):
            states = {state for j, k, state, _ in rows if (j, k) == (i, c)}
            if (i in nothing and P in states) or {P, N} <= states:
                expected = U
            elif P in states or N in states:
                expected = P if P in states else N
            else:
                expected = N if i in closed | nothing and U not in states else U
            assert dense[image[i], c] == expected


def test_sizes_that_are_not_known():
    stated = Stated()
    stated.add(0, 0, point=(3, 4))
    table = source(stated, size=(X, X)).table()
    assert table.notes.excluded[0].reason == (
        "its point cannot be placed: the width and height of the photo are not known; its label is kept"
    )


def test_a_size_that_one_of_two_names_declares():
    stated = Stated()
    stated.add(0, 0, box=(20, 10, 60, 30))
    made = source(stated, image=(0, 0))
    assert corners(replace(made, sizes=np.array([(200.0, 100.0), (X, X)])).table()) == [(0.1, 0.1, 0.3, 0.3)]


def test_photos_without_regions_are_not_opened(tmp_path):
    """The file does not exist."""
    stated = Stated()
    stated.add(0, 0)
    made = source(stated)
    photos = replace(made.photos, root=tmp_path)
    assert replace(made, photos=photos).table().notes.messages == ()


def test_nothing_stated():
    table = replace(source(Stated(), complete=(0,)), splits=None).table()
    assert (len(table.facts), table.matrix.dense().tolist()) == (0, [[N, N], [U, U]])
