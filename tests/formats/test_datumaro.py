"""Datumaro JSON: types of annotations, subsets, attributes, and what is not read."""

import json

import numpy as np
import pytest
from annotated import save_photo, write_text

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label


def item(name, *annotations, **more):
    return {"id": name, "annotations": [*annotations], "image": {"path": f"{name}.jpg", "size": [20, 40]}} | more


def of(kind, label=0, **more):
    return {"type": kind, "label_id": label} | more


def write(root, *items, subset="default", labels=("cat", "dog", "owl")):
    categories = {"label": {"labels": [{"name": name, "parent": ""} for name in labels]}}
    content = {"dm_format_version": "1.0", "infos": {}, "categories": categories, "items": items}
    return write_text(root / f"annotations/{subset}.json", json.dumps(content))


@pytest.fixture
def root(tmp_path):
    save_photo(tmp_path / "images/a.jpg", (40, 20))
    return tmp_path


REGIONS = [
    (of("bbox", bbox=[4, 2, 20, 10]), (0.1, 0.1, 0.6, 0.6)),
    (of("polygon", points=[4, 2, 24, 2, 4, 12]), (0.1, 0.1, 0.6, 0.6)),
    (of("polyline", points=[4, 2, 24, 12]), (0.1, 0.1, 0.6, 0.6)),
    (of("ellipse", points=[4, 2, 24, 12]), (0.1, 0.1, 0.6, 0.6)),
    (of("rotated_bbox", rotated_bbox=[14, 7, 10, 20, 90]), (0.1, 0.1, 0.6, 0.6)),
    (of("mask", rle={"size": [20, 40], "counts": [82, 10, 370, 10, 328]}), None),
    (of("skeleton", elements=[{"points": [4, 2], "visibility": [2]}, {"points": [24, 12], "visibility": [2]}]), None),
    (of("label"), ()),
]


@pytest.mark.parametrize(("annotation", "corners"), REGIONS, ids=[a["type"] for a, _ in REGIONS])
def test_types(root, annotation, corners):
    """The mask has the pixels 2 to 11 of the columns 4 and 23 of a photo of 40 x 20."""
    write(root, item("a", annotation))
    table = read(root)
    assert table.root == root / "images"
    assert table.classes.ids == ("cat", "dog", "owl")
    assert table.matrix.dense().tolist() == [[1, 0, 0]]
    wanted = (0.1, 0.1, 0.6, 0.6) if corners is None else corners
    assert np.allclose(table.locations.boxes, [wanted] if wanted else np.zeros((0, 4)))
    assert table.notes.excluded == ()


def test_points_and_what_is_not_seen(root):
    write(root, item("a", of("points", points=[4, 2, 24, 12, 30, 5], visibility=[2, 0, 1])))
    assert np.allclose(read(root).locations.boxes, [[0.1, 0.1, 0.1, 0.1], [0.75, 0.25, 0.75, 0.25]])


def test_subsets_are_splits_and_their_labels_are_joined_by_name(root):
    """The same number means another class in another file; a photo may be in images/SUBSET."""
    save_photo(root / "images/val/b.jpg", (40, 20))
    (root / "images/train").mkdir()
    (root / "images/a.jpg").rename(root / "images/train/a.jpg")
    write(root, item("a", of("label", 1)), subset="train")
    write(root, item("b", of("label", 1)), subset="val", labels=("owl", "emu"))
    table = read(root)
    assert table.images.to_pylist() == ["train/a.jpg", "val/b.jpg"]
    assert table.split_names.to_pylist() == ["train", "val"]
    assert table.classes.ids == ("cat", "dog", "owl", "emu")
    assert [np.flatnonzero(row).tolist() for row in table.matrix.dense()] == [[1], [3]]


def test_what_is_not_read_is_listed(root):
    attributes = {"occluded": True, "colour": "red"}
    given = [
        of("label", attributes=attributes),
        {"type": "caption", "caption": "a cat"},
        of("bbox", 7, bbox=[1, 1, 2, 2]),
        of("bbox", None, bbox=[1, 1, 2, 2]),
    ]
    write(root, item("a", *given), item("b"))
    save_photo(root / "images/b.jpg", (40, 20))
    table = read(root)
    readings = {r.value: (r.meaning, r.count) for r in table.notes.readings}
    assert readings["label 'cat'"] == ("positive", 1)
    assert readings["attribute 'colour' = 'red'"] == ("not used", 1)
    assert readings["annotation of type 'caption'"] == ("ignored, it names no class that is read", 1)
    assert readings["bbox without a label"] == ("ignored", 1)
    assert readings["item without annotations"] == ("nothing known", 1)
    assert [e.reason for e in table.notes.excluded] == ["label_id 7 is not among the 3 labels"]


def test_results_of_a_detector_are_refused(root):
    write(root, item("a", of("bbox", bbox=[1, 1, 2, 2], attributes={"score": 0.75})))
    with pytest.raises(DataError, match=r"'score' between 0 and 1 \(0\.75 to 0\.75\) in 1 of 1 annotation, as in the"):
        read(root)


def test_crowds(root):
    crowd = of("bbox", 1, bbox=[4, 2, 20, 10], attributes={"is_crowd": True})
    write(root, item("a", of("label", 0), crowd))
    assert read(root).matrix.dense().tolist() == [[1, 1, 0]]
    table = read(root, options=ReadOptions(crowd="unknown", complete=True))
    assert table.matrix.dense().tolist() == [[1, Label.UNKNOWN, Label.NEGATIVE]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": {"label": {"labels": [{}]}}}, r"labels\[0\] is {}; expected an object with a name"),
        ({"categories": {"label": {"labels": []}}}, "names no label, so there is nothing to learn"),
        ({"items": {}}, "expected 'categories' and a list 'items' as Datumaro writes them"),
        ({"items": [3]}, r"items\[0\] is 3; expected an object"),
        ({"items": [{"id": "a", "annotations": {}, "x": 1}, {"id": "b", "annotations": 4}]}, "of item b are 4"),
    ],
)
def test_broken_files(root, change, message):
    file = write(root, item("a", of("label")))
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=message):
        read(file, format="datumaro")


def test_masks_that_are_too_large_are_not_drawn(root):
    write(root, item("a", of("mask", rle={"size": [1 << 15, 1 << 15], "counts": [1, 2]})))
    table = read(root)
    assert table.matrix.dense()[0, 0] == Label.POSITIVE
    assert "its label is kept" in table.notes.excluded[0].reason
