import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seen import facts, labels, readings

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.yolo import read_yolo
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
YAML = "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"


@pytest.fixture
def write(tmp_path):
    """Writes text files below tmp_path."""

    def write(files):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write


def test_boxes_polygons_and_splits(tmp_path, write, make_photo):
    """Centre .2 .2, size .2 .2 is .1 .1 to .3 .3; the polygon's corners span .5 .25 to .75 .75."""
    make_photo("images/train/a.jpg", 1)
    make_photo("images/train/sub/b.v1.png", 2)
    make_photo("images/val/c.jpg", 3)
    write(
        {
            "data.yaml": YAML,
            "labels/train/a.txt": "1 0.2 0.2 0.2 0.2\n\n0 0.5 0.25 0.75 0.5 0.5 0.75\n",
            "labels/train/sub/b.v1.txt": "0 0.5 0.5 1 1",
            "labels/val/c.txt": "",
        }
    )
    table = read_yolo(tmp_path / "data.yaml")
    assert table.root == tmp_path
    assert table.classes.ids == ("cat", "dog")
    assert facts(table) == [
        ("images/train/a.jpg", "dog", P, (0.1, 0.1, 0.3, 0.3)),
        ("images/train/a.jpg", "cat", P, (0.5, 0.25, 0.75, 0.75)),
        ("images/train/sub/b.v1.png", "cat", P, (0.0, 0.0, 1.0, 1.0)),
    ]
    assert table.split_names.to_pylist() == ["train", "train", "val"]
    assert readings(table) == {
        "class 0": ("positive: cat", 2),
        "class 1": ("positive: dog", 1),
        "row with a polygon": ("positive, with its bounding box", 1),
        "label file without rows": ("nothing known (complete: none of the classes)", 1),
        "class that is not named in a photo": ("unknown", 3),
        "split train": ("split 'train'", 2),
        "split val": ("split 'val'", 1),
    }
    assert table.notes.messages[0] == f"photos: {tmp_path}"
    assert table.notes.excluded == ()


def test_an_empty_label_file_is_none_of_the_classes_only_if_complete(tmp_path, write, make_photo):
    """a: a cat. b: looked at, nothing there. c: nobody looked."""
    for i, name in enumerate("abc"):
        make_photo(f"images/{name}.jpg", i)
    write({"classes.txt": "cat\ndog\n", "labels/a.txt": "0 .5 .5 .2 .2\n", "labels/b.txt": " \n"})
    table = read_yolo(tmp_path)
    assert labels(table) == {"images/a.jpg": {"cat": P}, "images/b.jpg": {}, "images/c.jpg": {}}
    assert readings(table)["photo without a label file"] == ("nothing known", 1)
    complete = read_yolo(tmp_path, options=ReadOptions(complete=True))
    assert labels(complete) == {
        "images/a.jpg": {"cat": P, "dog": N},
        "images/b.jpg": {"cat": N, "dog": N},
        "images/c.jpg": {},
    }
    assert readings(complete)["label file without rows"] == ("none of the classes (complete)", 1)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ("[cat, dog]", ("cat", "dog")),
        ("\n  - cat\n  - dog", ("cat", "dog")),
        ("{1: dog, 0: cat}", ("cat", "dog")),
        ("{0: cat, 1: dog, 17: no}", ("cat", "dog", "no")),
        ("[no, 1e3]", ("no", "1e3")),  # a YAML reader with types makes them False and 1000.0
        ("[crane, crane]", ("crane#0", "crane#1")),
    ],
)
def test_names(tmp_path, write, names, ids):
    write({"data.yaml": f"names: {names}\n", "labels/a.txt": "1 .5 .5 .2 .2\n"})
    table = read_yolo(tmp_path / "data.yaml")
    assert table.classes.ids == ids
    assert labels(table) == {"images/a.jpg": {ids[1]: P}}


def test_poses_and_oriented_boxes(tmp_path, write):
    """Two keypoints of three numbers follow the box; without kpt_shape, four corners do, in any order."""
    write({"data.yaml": "names: [cat]\nkpt_shape: [2, 3]\n", "labels/a.txt": "0 .2 .2 .2 .2 .1 .1 2 .9 .9 0\n"})
    assert facts(read_yolo(tmp_path)) == [("images/a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))]
    write({"data.yaml": "names: [cat]\n", "labels/a.txt": "0 .2 .1 .3 .2 .2 .3 .1 .2\n"})
    assert facts(read_yolo(tmp_path)) == [("images/a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))]


@pytest.mark.parametrize(
    ("row", "trouble"),
    [
        (
            "0 .5 .5 .2 .2 .9",
            "6 numbers (is the last one the confidence of a prediction?); expected class, centre x and y, width and "
            "height, or a class and the x and y of three or more corners",
        ),
        (
            "0 .5 .5",
            "3 numbers; expected class, centre x and y, width and height, or a class and the x and y of three or more "
            "corners",
        ),
        ("0,.5,.5,.2,.2", "'0,.5,.5,.2,.2' has commas; write blanks between the numbers, and decimal points"),
        ("0 0,5 0,5 0,2 0,2", "'0 0,5 0,5 0,2 0,2' has commas; write blanks between the numbers, and decimal points"),
        ("0 .5 .5 .2 wide", "'0 .5 .5 .2 wide' is not a row of numbers"),
        ("0 1_0 .5 .2 .2", "'0 1_0 .5 .2 .2' is not a row of numbers"),
        ("0 .5 \u0663 .2 .2", "'0 .5 \u0663 .2 .2' is not a row of numbers"),
        ("-1 .5 .5 .2 .2", "'-1' is not the number of a class"),
        ("0.5 .5 .5 .2 .2", "'0.5' is not the number of a class"),
        ("nan .5 .5 .2 .2", "'nan' is not the number of a class"),
        ("inf .5 .5 .2 .2", "'inf' is not the number of a class"),
        ("0 320 240 20 20", "'320' is not a fraction; divide pixels by the width or height of the photo"),
        ("0 .5 .5 .2 inf", "'inf' is not a fraction; divide pixels by the width or height of the photo"),
        ("0 .1 .1 .9 .1 .9 480", "'480' is not a fraction; divide pixels by the width or height of the photo"),
    ],
)
def test_rows_that_are_something_else(tmp_path, write, row, trouble):
    write({"classes.txt": "cat", "labels/a.txt": f"0 .5 .5 .2 .2\n{row}\n", "labels/b.txt": f"{row}\n"})
    with pytest.raises(DataError) as error:
        read_yolo(tmp_path)
    assert str(error.value) == f"{tmp_path}/labels/a.txt row 2: {trouble} (1 more such rows); fix or remove it."


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("0 .5 .5 0 .2", "its box has no width or no height"),
        ("0 1.5 .5 .2 .2", "its box lies outside the photo"),
        ("0 nan .5 .2 .2", "its box has coordinates that are not numbers"),
        ("0 .1 .1 .5 .1 nan .5", "its box has coordinates that are not numbers"),
    ],
)
def test_a_box_that_cannot_be_used_leaves_the_label(tmp_path, write, row, fault):
    write({"classes.txt": "cat", "labels/a.txt": row})
    table = read_yolo(tmp_path)
    assert facts(table) == [("images/a.jpg", "cat", P, None)]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("labels/a.txt row 1", f"{fault}; its label is kept"),
    ]


def test_boxes_that_reach_out_are_cut_and_rounding_is_not_said(tmp_path, write):
    """.95 + .1 / 2 is 1.0000000000000002 in floats; .98 + .1 is 1.08."""
    write({"classes.txt": "cat", "labels/a.txt": "0 .95 .5 .1 1\n0 .98 .5 .2 1\n"})
    table = read_yolo(tmp_path)
    assert [f[3] for f in facts(table)] == [(0.9, 0.0, 1.0, 1.0), (0.88, 0.0, 1.0, 1.0)]
    assert "1 box reached beyond the photo and cut at its edge" in table.notes.messages


def test_classes_without_a_name_are_left_out(tmp_path, write):
    write({"classes.txt": "cat\n", "labels/a.txt": "0 .5 .5 .2 .2\n7 .5 .5 .2 .2\n"})
    table = read_yolo(tmp_path)
    assert labels(table) == {"images/a.jpg": {"cat": P}}
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("labels/a.txt row 2", "class 7 is not among the 1 name")
    ]
    assert f"{tmp_path.name}: 1 row left out, see the excluded list" in table.notes.messages
    write({"labels/a.txt": "7 .5 .5 .2 .2\n"})
    with pytest.raises(DataError, match=r"none of the 1 rows has a class of .*classes\.txt; the first is class 7\."):
        read_yolo(tmp_path)


def test_photos_that_exif_turns(tmp_path, write, make_photo):
    """Nothing declares a size, so the displayed frame is assumed, and a message reports it."""
    make_photo("images/a.jpg", size=(20, 10), orientation=6)
    write({"classes.txt": "cat", "labels/a.txt": "0 .2 .2 .2 .2\n"})
    table = read_yolo(tmp_path)
    assert facts(table) == [("images/a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))]
    assert (
        "1 photo is turned or mirrored by EXIF; the file does not show the frame of the boxes, and the displayed "
        "one is assumed" in table.notes.messages
    )


def test_label_files_without_a_photo(tmp_path, write, make_photo):
    for name in "ab":
        make_photo(f"images/{name}.jpg")
    write({"classes.txt": "cat", **{f"labels/{name}.txt": "0 .5 .5 .2 .2\n" for name in "abz"}})
    table = read_yolo(tmp_path)
    assert labels(table) == {"images/a.jpg": {"cat": P}, "images/b.jpg": {"cat": P}}
    assert [(e.item, e.reason) for e in table.notes.excluded] == [("images/z", f"photo not found: {tmp_path}/images/z")]


def test_photos_elsewhere(tmp_path, write, make_photo):
    for name in ("train/a", "val/b"):
        make_photo(f"photos/{name}.jpg")
    write({"yolo/data.yaml": YAML, **{f"yolo/labels/{n}.txt": "0 .5 .5 .2 .2\n" for n in ("train/a", "val/b")}})
    without = read_yolo(tmp_path / "yolo/data.yaml")
    assert (without.root, without.images.to_pylist()) == (None, ["images/train/a.jpg", "images/val/b.jpg"])
    table = read_yolo(tmp_path / "yolo/data.yaml", tmp_path / "photos")
    assert labels(table) == {"train/a.jpg": {"cat": P}, "val/b.jpg": {"cat": P}}
    assert (table.root, table.split_names.to_pylist()) == (tmp_path / "photos", ["train", "val"])


def test_photos_elsewhere_in_a_layout_of_roboflow(tmp_path, write, make_photo):
    make_photo("photos/a.jpg")
    write({"y/data.yaml": "train: ../train/images\nnames: [cat]\n", "y/train/labels/a.txt": "0 .5 .5 .2 .2\n"})
    assert labels(read_yolo(tmp_path / "y", tmp_path / "photos")) == {"a.jpg": {"cat": P}}


rows = st.lists(
    st.tuples(st.integers(0, 2), *[st.floats(0.05, 0.95)] * 2, *[st.floats(0.01, 0.09)] * 2), min_size=1, max_size=6
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows)
def test_rows_agree_with_a_plain_loop(tmp_path, write, rows):
    write(
        {
            "classes.txt": "a\nb\nc\n",
            "labels/x.txt": "\n".join(" ".join(map(repr, row)) for row in rows),
            "labels/y.txt": "0 .5 .5 1 1",
        }
    )
    table = read_yolo(tmp_path)
    got = [[f["class"], *(f[n] for n in ("x0", "y0", "x1", "y1"))] for f in table.facts.to_pylist() if f["image"] == 0]
    expected = [[c, cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2] for c, cx, cy, w, h in rows]
    np.testing.assert_allclose(got, np.clip(expected, 0, 2), atol=1e-6)


def test_nothing_to_read(tmp_path, write):
    with pytest.raises(DataError, match=re.escape("no file names the class numbers; expected names in")):
        read_yolo(tmp_path)
    write({"data.yaml": "names: [cat]\n"})
    with pytest.raises(
        DataError, match=re.escape("there is no label file of a photo; expected images/ and, beside it, labels/.")
    ):
        read_yolo(tmp_path)


@pytest.mark.parametrize("row", ["0 .1 .2 .1 .1 .1 .8 2 .1 .9 2", "0 .1 .2 .1 .1 .5 .5", "0 .1 .2 .1 .1 .5"])
def test_pose_rows_of_another_length_are_refused(tmp_path, write, make_photo, row):
    make_photo("images/train/a.jpg")
    make_photo("images/val/b.jpg")
    write({"data.yaml": YAML + "kpt_shape: [2, 2]\n", "labels/train/a.txt": row})
    with pytest.raises(DataError, match=f"row 1: {len(row.split())} numbers, but kpt_shape says 5 \\+ 4 = 9"):
        read_yolo(tmp_path)


def test_pose_rows_without_a_shape_are_not_polygons(tmp_path, write, make_photo):
    make_photo("images/train/a.jpg")
    make_photo("images/val/b.jpg")
    write({"data.yaml": YAML, "labels/train/a.txt": "0 .5 .5 .2 .2 .4 .5 2 .6 .5 0\n"})
    with pytest.raises(DataError, match=r"11 numbers that look like a box and 2 keypoints.*add kpt_shape: \[2, 3\]"):
        read_yolo(tmp_path)


def test_splits_of_other_names(tmp_path, write, make_photo):
    for name in ("images/training_set/a.jpg", "images/dev/b.jpg"):
        make_photo(name, len(name))
        write({name.replace("images", "labels").replace(".jpg", ".txt"): "0 .5 .5 .2 .2"})
    write({"classes.txt": "cat\n"})
    assert read_yolo(tmp_path).split_names.to_pylist() == ["val", "train"]
    write({"data.yaml": "training: images/training_set\ndev: images/dev\nnames: [cat]\n"})
    assert sorted(read_yolo(tmp_path / "data.yaml").split_names.to_pylist()) == ["train", "val"]
