import json

import numpy as np
import pytest
from seen import facts, labels, readings

from fewtags.errors import DataError
from fewtags.formats.coco import read_coco
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
X = None


def image(key, name, width=200, height=100, **more):
    return {"id": key, "file_name": name, "width": width, "height": height, **more}


def annotation(key, image_id, category_id, bbox=(20, 10, 40, 20), **more):
    return {"id": key, "image_id": image_id, "category_id": category_id, "bbox": list(bbox), "iscrowd": 0, **more}


CATEGORIES = [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 17, "name": "cat"}]


@pytest.fixture
def write(tmp_path):
    def write(images, annotations, categories=CATEGORIES, **more):
        file = tmp_path / "instances.json"
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories, **more}))
        return file

    return write


def test_classes_boxes_and_silent_images(write):
    """Classes come by id, not by name or place in the file. 20 10 40 20 of 200 x 100 is .1 .1 to .3 .3."""
    file = write(
        [image(7, "b.jpg"), image(3, "sub/ä.jpg"), image(5, "c.jpg")],
        [annotation(1, 3, 90), annotation(2, 3, 90, (0, 0, 200, 50)), annotation(3, 7, 1, (100, 50, 50, 25))],
    )
    table = read_coco(file)
    assert table.classes.ids == table.classes.names == ("person", "cat", "toothbrush")
    assert table.images.to_pylist() == ["b.jpg", "sub/ä.jpg", "c.jpg"]
    assert facts(table) == [
        ("sub/ä.jpg", "toothbrush", P, (0.1, 0.1, 0.3, 0.3)),
        ("sub/ä.jpg", "toothbrush", P, (0.0, 0.0, 1.0, 0.5)),
        ("b.jpg", "person", P, (0.5, 0.5, 0.75, 0.75)),
    ]
    assert labels(table) == {"b.jpg": {"person": P}, "sub/ä.jpg": {"toothbrush": P}, "c.jpg": {}}
    assert readings(table) == {
        "annotation with a box": ("positive", 3),
        "class without annotation in an image": ("unknown", 7),
        "image without annotation": ("kept", 1),
    }
    assert (table.root, table.split_names) == (None, None)


def test_complete_closes_every_image(write):
    table = read_coco(
        write([image(1, "a.jpg"), image(2, "b.jpg")], [annotation(1, 1, 17)]), options=ReadOptions(complete=True)
    )
    nothing = {"person": N, "cat": N, "toothbrush": N}
    assert labels(table) == {"a.jpg": nothing | {"cat": P}, "b.jpg": nothing}
    assert readings(table)["class without annotation in an image"] == ("negative (complete)", 5)


def test_crowd(write):
    file = write([image(1, "a.jpg")], [annotation(1, 1, 17, iscrowd=1), annotation(2, 1, 1)])
    assert facts(read_coco(file))[0] == ("a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))
    assert readings(read_coco(file))["annotation with iscrowd"] == ("positive", 1)
    left_open = read_coco(file, options=ReadOptions(crowd="unknown", complete=True))
    assert labels(left_open) == {"a.jpg": {"person": P, "toothbrush": N}}
    assert readings(left_open)["annotation with iscrowd"] == ("unknown", 1)


def test_categories_with_one_name_stay_two(write):
    categories = [{"id": 9, "name": "crane"}, {"id": 2, "name": "cup"}, {"id": 7, "name": "crane"}]
    table = read_coco(write([image(1, "a.jpg")], [annotation(1, 1, 9)], categories))
    assert table.classes.ids == ("cup", "crane#7", "crane#9")
    assert table.classes.names == ("cup", "crane", "crane")
    assert labels(table) == {"a.jpg": {"crane#9": P}}
    assert "instances.json: several categories are called 'crane'; they stay apart" in table.notes.messages


@pytest.mark.parametrize(
    ("bbox", "fault"),
    [
        ([20, 10, 0, 20], "has no width or no height"),
        ([20, 10, 40, -20], "has no width or no height"),
        ([-50, 10, 40, 20], "lies outside the photo"),
        ([20, float("nan"), 40, 20], "has coordinates that are not numbers"),
        ([20, 10, 40], "has coordinates that are not numbers"),
        ([20, 10, 40, "wide"], "has coordinates that are not numbers"),
        ([20, 10, 40, None], "has coordinates that are not numbers"),
        ([[1], 2, 3, 4], "has coordinates that are not numbers"),
        ({"x": 1}, "has coordinates that are not numbers"),
        ([20, 10, 40, 10**400], "has coordinates that are not numbers"),
    ],
)
def test_a_box_that_cannot_be_used_leaves_the_label(write, bbox, fault):
    file = write([image(1, "a.jpg")], [annotation(4, 1, 17) | {"bbox": bbox}, annotation(5, 1, 1)])
    table = read_coco(file)
    assert facts(table) == [("a.jpg", "cat", P, None), ("a.jpg", "person", P, (0.1, 0.1, 0.3, 0.3))]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("annotation 4", f"its box {fault}; its label is kept")
    ]
    assert (
        "instances.json: 1 box or point cannot be used, see the excluded list; its label is kept"
        in table.notes.messages
    )


# An L of 3 pixels in 2 x 2, as polygon and as run lengths of 200 x 100 pixels: column 60 has rows 30 and 31, 61 has 31.
L = [[60, 30, 61, 30, 61, 31, 62, 31, 62, 32, 60, 32]]
L_RUNS = {"size": [100, 200], "counts": [6030, 2, 99, 1, 20000 - 6132]}
L_PIXELS = {(60, 30), (60, 31), (61, 31)}


def points(table, size=(200, 100)):
    """Pixel of each fact's place, which has to be a point."""
    boxes = table.locations.boxes
    assert (boxes[:, :2] == boxes[:, 2:]).all()
    return [tuple(pixel) for pixel in (boxes[:, :2] * size).astype(int).tolist()]


@pytest.mark.parametrize("mask", [L, L_RUNS], ids=["polygon", "run lengths"])
def test_a_point_is_drawn_in_each_mask(write, mask):
    """The box is larger than the mask; 60 draws from 3 pixels miss one with probability 3 (2/3)^60 < 1e-10."""
    file = write([image(1, "a.jpg")], [annotation(i, 1, 17, (0, 0, 200, 100), segmentation=mask) for i in range(60)])
    table = read_coco(file, options=ReadOptions(places="points"))
    assert set(points(table)) == L_PIXELS
    assert len(np.unique(table.locations.boxes[:, 0])) == 60  # anywhere in the pixel, not at its corner
    assert "instances.json: 60 points drawn in masks, 0 in boxes without a mask; point_seed 0" in table.notes.messages


def test_a_point_hangs_on_seed_and_id_alone(write):
    """Not on the order of the file, nor on what else is in it."""
    one, two, three = (annotation(i, 1, 17, segmentation=L) for i in (5, 6, 7))
    options = ReadOptions(places="points", complete=True)
    whole = read_coco(write([image(1, "a.jpg")], [one, two, three]), options=options)
    back = read_coco(write([image(1, "a.jpg")], [three, one]), options=options)
    assert back.locations.boxes.tolist() == whole.locations.boxes[[2, 0]].tolist()
    other = read_coco(write([image(1, "a.jpg")], [one, two, three]), options=ReadOptions(places="points", point_seed=1))
    assert not np.isin(other.locations.boxes, whole.locations.boxes).any()
    nameless = [{k: v for k, v in record.items() if k != "id"} for record in (one, one | {"bbox": [20, 10, 40, 21]})]
    first, second = read_coco(write([image(1, "a.jpg")], nameless), options=options).locations.boxes
    again = read_coco(write([image(1, "a.jpg")], nameless[::-1]), options=options).locations.boxes
    assert (again == [second, first]).all()
    assert (first != second).all()


@pytest.mark.parametrize("mask", [None, [], [[60.6, 30, 61.4, 30, 61.4, 40]], {"size": [100, 200], "counts": [20000]}])
def test_a_point_is_drawn_in_the_box_where_the_mask_has_no_pixel(write, mask):
    """Objects365 has no masks at all. The box 20 10 40 20 has pixels 20 to 59 and 10 to 29."""
    records = [annotation(i, 1, 17, **({} if mask is None else {"segmentation": mask})) for i in range(40)]
    table = read_coco(write([image(1, "a.jpg")], records), options=ReadOptions(places="points"))
    x, y = np.array(points(table)).T
    assert (x >= 20).all()
    assert (x < 60).all()
    assert (y >= 10).all()
    assert (y < 30).all()
    assert x.max() - x.min() > 20
    why = " (40 have an outline that is damaged or has no pixel)" if mask else ""
    message = f"instances.json: 0 points drawn in masks, 40 in boxes without a mask{why}; point_seed 0"
    assert message in table.notes.messages


def test_with_outlines_objects_without_a_mask_keep_their_box(write):
    records = [
        annotation(1, 1, 17, (0, 0, 200, 100), segmentation=L),
        annotation(2, 1, 1),
        annotation(3, 1, 90, segmentation=[[60.6, 30, 61.4, 30, 61.4, 40]]),  # no pixel
    ]
    file = write([image(1, "a.jpg")], records)
    table = read_coco(file, options=ReadOptions(places="outlines"))
    (point,), boxes = table.locations.boxes[:1], table.locations.boxes[1:]
    drawn = read_coco(file, options=ReadOptions(places="points")).locations.boxes[0]
    assert point.tolist() == drawn.tolist()
    assert boxes.tolist() == read_coco(file).locations.boxes[1:].tolist()
    message = "instances.json: 1 point drawn in masks, 2 boxes without a mask stay boxes"
    assert any(text.startswith(message) for text in table.notes.messages)


def test_points_where_there_is_no_place_or_a_broken_one(write):
    records = [
        annotation(1, 1, 17) | {"bbox": None},
        annotation(2, 1, 1, (300, 10, 40, 20)),
        annotation(3, 1, 90, (300, 10, 40, 20), segmentation=L),
    ]
    table = read_coco(write([image(1, "a.jpg")], records), options=ReadOptions(places="points"))
    assert labels(table) == {"a.jpg": {"cat": P, "person": P, "toothbrush": P}}
    assert len(table.locations) == 1
    assert set(points(table)) <= L_PIXELS
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("annotation 2", "its point lies outside the photo; its label is kept")
    ]
    assert (
        "instances.json: 1 box or point cannot be used, see the excluded list; its label is kept"
        in table.notes.messages
    )


def test_places_may_be_left_out(write):
    file = write([image(1, "a.jpg")], [annotation(1, 1, 17, segmentation=L), annotation(2, 1, 1, (0, 0, 0, 0))])
    table = read_coco(file, options=ReadOptions(places="none"))
    assert facts(table) == [("a.jpg", "cat", P, None), ("a.jpg", "person", P, None)]
    assert table.notes.excluded == ()


@pytest.mark.parametrize("bbox", [None, [], "absent"])
def test_an_annotation_without_a_box_is_a_label(write, bbox):
    one = annotation(1, 1, 17) | {"bbox": bbox}
    table = read_coco(write([image(1, "a.jpg")], [{k: v for k, v in one.items() if v != "absent"}]))
    assert facts(table) == [("a.jpg", "cat", P, None)]
    assert table.notes.excluded == ()
    assert readings(table)["annotation without a box"] == ("positive", 1)


def test_boxes_that_reach_out_are_cut(write):
    table = read_coco(write([image(1, "a.jpg")], [annotation(1, 1, 17, (-20, 50, 80, 80))]))
    assert facts(table) == [("a.jpg", "cat", P, (0.0, 0.5, 0.3, 1.0))]
    assert "1 box reached beyond the photo and cut at its edge" in table.notes.messages


@pytest.mark.parametrize(
    "size", [{}, {"width": None, "height": 100}, {"width": 0, "height": 0}, {"width": "w", "height": 1}]
)
def test_a_photo_without_a_size(write, size):
    table = read_coco(write([{"id": 1, "file_name": "a.jpg", **size}], [annotation(1, 1, 17)]))
    assert facts(table) == [("a.jpg", "cat", P, None)]
    assert "the width and height of the photo are not known" in table.notes.excluded[0].reason


def test_the_size_of_the_photo_stands_in(write, make_photo):
    make_photo("a.jpg", size=(200, 100))
    table = read_coco(write([{"id": 1, "file_name": "a.jpg"}], [annotation(1, 1, 17)]))
    assert facts(table) == [("a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))]


def test_boxes_follow_a_photo_that_exif_turns(write, make_photo):
    """Stored 200 x 100 with orientation 6: x' = 1 - y, y' = x."""
    make_photo("images/a.jpg", size=(200, 100), orientation=6)
    table = read_coco(write([image(1, "a.jpg")], [annotation(1, 1, 17)]))
    assert facts(table) == [("a.jpg", "cat", P, (0.7, 0.1, 0.9, 0.3))]
    assert "1 photo is turned by EXIF, and the boxes with the photo" in table.notes.messages


def test_unknown_ids_are_left_out_with_a_reason(write):
    file = write([image(1, "a.jpg")], [annotation(1, 1, 17), annotation(2, 8, 17), annotation(3, 1, 2)])
    table = read_coco(file, options=ReadOptions())
    assert len(table.facts) == 1
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("annotation 2", "image_id 8 is not among the images", "unusable"),
        ("annotation 3", "category_id 2 is not among the categories", "unusable"),
    ]
    assert "instances.json: 2 annotations left out, see the excluded list" in table.notes.messages


def test_annotations_without_ids(write):
    table = read_coco(write([image(1, "a.jpg")], [annotation(1, 1, 17), {"bbox": [1, 2, 3, 4]}]))
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("annotation [1]", "image_id None is not among the images")
    ]


def test_photos_that_are_not_there(write, make_photo, tmp_path):
    make_photo("p/a.jpg", size=(200, 100))
    make_photo("p/b.jpg", size=(200, 100))
    file = write(
        [image(1, "a.jpg"), image(2, "gone.jpg"), image(3, "b.jpg")], [annotation(i, i, 17) for i in (1, 2, 3)]
    )
    table = read_coco(file, tmp_path / "p")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"cat": P}}
    assert [(e.item, e.kind) for e in table.notes.excluded] == [("gone.jpg", "missing")]
    assert "instances.json: 1 label belongs to a photo that is left out" in table.notes.messages


def test_an_image_of_two_sizes_is_refused(write):
    """Its boxes would be scaled by the wrong one."""
    file = write([image(1, "a.jpg"), image(2, "a.jpg", 400, 200)], [annotation(1, 1, 17), annotation(2, 2, 1)])
    with pytest.raises(DataError) as error:
        read_coco(file)
    assert str(error.value) == (f"{file}: 'a.jpg' has 200 x 100 pixels and, as image id 2, 400 x 200; fix one of them.")


def test_an_image_in_two_splits(write):
    images = [image(1, "a.jpg", split="train"), image(2, "a.jpg", split="val"), image(3, "b.jpg", split="val")]
    table = read_coco(write(images, [annotation(1, 1, 17)]))
    assert table.split_names.to_pylist() == ["train", "val"]
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("a.jpg", "is in train and in val; the first of them counts", "splits")
    ]


def test_lvis(write):
    """No file names but addresses; explicit negatives; "not exhaustive" says nothing about presence."""
    url = "http://images.cocodataset.org/train2017/000000000009.jpg"
    entry = {"id": 9, "width": 200, "height": 100, "coco_url": url}
    lists = {"neg_category_ids": [1, 17, 5], "not_exhaustive_category_ids": [90]}
    table = read_coco(write([entry | lists, image(2, "b.jpg", neg_category_ids=[])], [annotation(1, 9, 90)]))
    assert labels(table) == {"train2017/000000000009.jpg": {"toothbrush": P, "person": N, "cat": N}, "b.jpg": {}}
    assert readings(table)["class in neg_category_ids"] == ("negative", 2)
    assert [e.reason for e in table.notes.excluded] == ["neg_category_ids names 5, which is not among the categories"]
    assert any("1 image has not_exhaustive_category_ids, which are ignored" in m for m in table.notes.messages)


@pytest.mark.parametrize("ids", [3, {"a": 1}, [[1]], [None], "person"])
def test_broken_lists_of_absent_classes(write, ids):
    table = read_coco(write([image(1, "a.jpg", neg_category_ids=ids)], [annotation(1, 1, 17)]))
    assert labels(table) == {"a.jpg": {"cat": P}}
    assert "which is not among the categories" in table.notes.excluded[0].reason


def test_half_characters_are_no_names(write):
    """JSON can write them, UTF-8 cannot."""
    table = read_coco(write([image(1, "a.jpg"), image(2, "\ud800.jpg", split="\udfff")], [annotation(1, 1, 17)]))
    assert [(e.item, e.reason) for e in table.notes.excluded] == [("image 2", "has no file_name")]
    with pytest.raises(DataError, match=r"categories\[0\] has id 1 and name '\\ud800'; both must be given"):
        read_coco(write([], [], [{"id": 1, "name": "\ud800"}]))


OBJECTS365 = ("images/v1/patch8/objects365_v1_00420917.jpg", "images/v2/patch16/objects365_v2_00908726.jpg")


@pytest.mark.parametrize("parts", [4, 2, 1])
@pytest.mark.parametrize("where", ["train", "images/train"])
def test_objects365(tmp_path, make_photo, parts, where):
    """Its names have folders that its archives unpack without; some tools leave out the others too."""
    keys = ["/".join(name.split("/")[-parts:]) for name in OBJECTS365]
    for i, key in enumerate(keys):
        make_photo(f"{where}/{key}", i, size=(200, 100))
    images = [image(420917, OBJECTS365[0], license=5, url=""), image(908726, OBJECTS365[1], license=5, url="")]
    flags = {"isfake": 0, "isreflected": 0, "area": 800.0}
    annotations = [
        annotation(51, 420917, 365, **flags),
        annotation(52, 908726, 1, **{**flags, "isfake": 1}),
        annotation(53, 908726, 1, **{**flags, "isreflected": 1}),
    ]
    names = [{"id": 1, "name": "Person"}, {"id": 365, "name": "Wild Bird "}]
    file = tmp_path / "annotations/zhiyuan_objv2_train.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": names}))
    table = read_coco(file)
    assert (table.root, table.images.to_pylist()) == (tmp_path / where, keys)
    assert table.classes.ids == ("Person", "Wild Bird")
    assert labels(table) == {keys[0]: {"Wild Bird": P}, keys[1]: {"Person": P}}
    assert facts(table)[0] == (keys[0], "Wild Bird", P, (0.1, 0.1, 0.3, 0.3))
    assert readings(table)["annotation with isfake"] == ("positive (a picture of the object)", 1)
    assert readings(table)["annotation with isreflected"] == ("positive (a reflection of the object)", 1)
    assert read_coco(file, tmp_path / where).images.to_pylist() == keys


def test_only_names_of_objects365_are_shortened(write, make_photo, tmp_path):
    make_photo("a.jpg")
    table = read_coco(write([image(1, "images/v1/patch8/a.jpg")], [annotation(1, 1, 17)]), tmp_path)
    assert any("found by the end of the path" in text for text in table.notes.messages)


def test_present_and_absent_at_once_is_unknown(write):
    table = read_coco(write([image(1, "a.jpg", neg_category_ids=[17])], [annotation(1, 1, 17)]))
    assert labels(table) == {"a.jpg": {}}
    assert len(table.facts) == 2


def test_two_entries_of_one_photo_are_joined(write):
    file = write([image(1, "a.jpg", split="valid"), image(2, "./a.jpg")], [annotation(1, 1, 17), annotation(2, 2, 1)])
    table = read_coco(file)
    assert labels(table) == {"a.jpg": {"cat": P, "person": P}}
    assert table.split_names.to_pylist() == ["val"]
    assert (
        "instances.json: 1 image id names a photo that another one names, and is joined with it" in table.notes.messages
    )
    assert readings(table)["valid"] == ("split 'val'", 1)


def test_an_image_without_a_name_is_left_out(write):
    table = read_coco(write([image(1, "a.jpg"), {"id": 2}], [annotation(1, 1, 17), annotation(2, 2, 17)]))
    assert table.images.to_pylist() == ["a.jpg"]
    assert ("image 2", "has no file_name") in [(e.item, e.reason) for e in table.notes.excluded]


def test_ids_may_be_text_and_the_file_may_have_a_byte_order_mark(write):
    file = write([image("x", "a.jpg")], [annotation(1, "x", "c")], [{"id": "c", "name": "cat"}])
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert labels(read_coco(file)) == {"a.jpg": {"cat": P}}


def test_polygons_are_not_needed(write):
    one = annotation(1, 1, 17, segmentation=[[1.0, 2.0] * 10]) | {"keypoints": [1, 2, 3]}
    assert len(read_coco(write([image(1, "a.jpg")], [one])).facts) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"images": [', "line 1, column 13: not valid JSON (Expecting value); is the file complete?"),
        ("[]", "a list, as detectors write their results; pass the file with images, annotations and categories."),
        ('{"images": []}', "expected a list 'annotations' as in COCO instances files; the file has 'images'."),
        ("3", "expected a list 'images' as in COCO instances files; the file has 3."),
        ('{"images": [1], "annotations": []}', "images[0] is 1; expected an object."),
        (
            '{"images": [], "annotations": [], "categories": []}',
            "there are no categories, so there is nothing to learn.",
        ),
    ],
)
def test_files_that_are_something_else(tmp_path, text, message):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(DataError) as error:
        read_coco(file)
    assert str(error.value).removeprefix(str(file)).lstrip(": ") == message


@pytest.mark.parametrize("data", [b"\xff\xfe{", b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}"])
def test_hostile_files_are_our_error(tmp_path, data):
    file = tmp_path / "a.json"
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.json: not "):
        read_coco(file)


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], "category id 1 is used for 'a' and for 'b'; renumber one."),
        ([{"id": 1}], "categories[0] has id 1 and name None; both must be given."),
        ([{"id": [1], "name": "a"}], "categories[0] has id [1] and name 'a'; both must be given."),
        ([{"id": 1, "name": " "}], "categories[0] has id 1 and name ' '; both must be given."),
    ],
)
def test_broken_categories(write, categories, message):
    file = write([image(1, "a.jpg")], [], categories)
    with pytest.raises(DataError) as error:
        read_coco(file)
    assert str(error.value) == f"{file}: {message}"


def test_broken_image_ids(write):
    with pytest.raises(DataError, match=r"image id 1 is used for 'a\.jpg' and for 'b\.jpg'; renumber one\."):
        read_coco(write([image(1, "a.jpg"), image(1, "b.jpg")], []))
    with pytest.raises(DataError, match=r"images\[0\] has id None; expected a whole number or a text\."):
        read_coco(write([{"file_name": "a.jpg"}], []))
    with pytest.raises(DataError, match="an annotation has a list or object as image_id or category_id"):
        read_coco(write([image(1, "a.jpg")], [annotation(1, [1], 17)]))


def test_no_usable_annotation_is_an_error(write):
    with pytest.raises(
        DataError,
        match=r"none of the 1 annotations is usable .the ids there are like 1.: image_id 'x' is not among the images",
    ):
        read_coco(write([image(1, "a.jpg")], [annotation(1, "x", 17)]))
    with pytest.raises(DataError, match=r"usable \(panoptic and caption files are not read\)"):
        read_coco(write([image(1, "a.jpg")], [{"image_id": 1, "segments_info": []}]))


def test_random_files_agree_with_a_plain_loop(write):
    """All good annotations of a made-up file, one by one, give the facts that the arrays give."""
    rng = np.random.default_rng(0)
    images = [image(int(k) * 3, f"{k}.jpg", int(w), int(h)) for k, (w, h) in enumerate(rng.integers(50, 400, (20, 2)))]
    annotations = [
        annotation(k, int(rng.integers(20)) * 3, int(rng.choice([1, 17, 90])), rng.uniform(0, 40, 4).round(2).tolist())
        for k in range(200)
    ]
    by_id = {entry["id"]: entry for entry in images}
    names = {c["id"]: c["name"] for c in CATEGORIES}
    expected = []
    for a in annotations:
        entry, (x, y, w, h) = by_id[a["image_id"]], a["bbox"]
        corners = x / entry["width"], y / entry["height"], (x + w) / entry["width"], (y + h) / entry["height"]
        expected.append((entry["file_name"], names[a["category_id"]], P, tuple(np.clip(corners, 0, 1))))
    got = facts(read_coco(write(images, annotations)))
    assert [f[:3] for f in got] == [f[:3] for f in expected]
    np.testing.assert_allclose([f[3] for f in got], [f[3] for f in expected], atol=1e-6)


@pytest.mark.parametrize(("given", "used"), [(1, "1"), ("1", 1), (1.0, 1)])
def test_an_id_as_text_and_as_number_is_one_id(write, given, used):
    table = read_coco(write([image(given, "a.jpg")], [annotation(1, used, 17)]))
    assert len(table.facts) == 1
    with pytest.raises(DataError, match="the ids there are like"):
        read_coco(write([image("1", "a.jpg")], [annotation(1, "01", 17)]))


def test_objects_instead_of_lists(write):
    file = write([image(1, "a.jpg")], [annotation(1, 1, 17)])
    data = json.loads(file.read_text())
    data["annotations"] = {str(a["id"]): a for a in data["annotations"]}
    data["images"] = {"1": {"file_name": "a.jpg"}}
    file.write_text(json.dumps(data))
    assert len(read_coco(file).facts) == 1
    data["categories"] = {"17": "cat"}
    file.write_text(json.dumps(data))
    with pytest.raises(
        DataError, match=r"expected a list 'categories'.*the file has 'categories', but it is an object"
    ):
        read_coco(file)
    file.write_text('{"categories": {}, "items": []}')
    with pytest.raises(DataError, match=r"looks like Datumaro JSON: pass format='datumaro'"):
        read_coco(file)


def test_a_coco_file_in_each_folder_of_a_split(tmp_path, make_photo):
    """Categories have other numbers in each file; equal names are one class, and photos stay apart."""
    for n, (folder, number) in enumerate([("train", 1), ("valid", 7)]):
        make_photo(f"{folder}/a.jpg", n)
        data = {
            "images": [{"id": 0, "file_name": "a.jpg"}],
            "annotations": [{"id": 0, "image_id": 0, "category_id": number}],
            "categories": [{"id": number, "name": "cat"}],
        }
        (tmp_path / folder / "_annotations.coco.json").write_text(json.dumps(data))
    table = read(tmp_path)
    assert (table.images.to_pylist(), table.classes.ids) == (["train/a.jpg", "valid/a.jpg"], ("cat",))
    assert (table.split_names.to_pylist(), len(table.facts)) == (["train", "val"], 2)


@pytest.mark.parametrize(
    "more", [{"score": 0.91}, {"score": "0.91"}, {"Confidence": 1e-3}, {"attributes": {"score": 0.5}}]
)
def test_results_of_a_detector_are_refused_like_a_table_of_predictions(write, more):
    """One of two annotations has a score: the file cannot be taken for labels of people."""
    file = write([image(1, "a.jpg")], [annotation(1, 1, 1), annotation(2, 1, 17, **more)])
    key, value = next((key, float(value)) for key, value in more.get("attributes", more).items())
    with pytest.raises(DataError) as error:
        read_coco(file)
    assert str(error.value) == (
        f"{file}: there is a {key!r} between 0 and 1 ({value:g} to {value:g}) in 1 of 2 annotations, as in the results "
        f"of a detector, and predictions are not labels. To train on those that people have checked, keep the right "
        f"ones, and remove {key!r} from them."
    )


@pytest.mark.parametrize(
    ("values", "messages", "warnings"),
    [
        ([1, 1.0], ["'score' of 2 of 2 annotations is not read: it is always 1"], 0),
        ([None, "good"], [], 0),
        ([True, False], [], 0),
        ([3, 5], [], 1),
        ([87.5, 12.5], [], 1),
        ([float("inf"), [0.5]], [], 0),
    ],
)
def test_scores_that_no_detector_gives_are_named(write, values, messages, warnings):
    file = write([image(1, "a.jpg")], [annotation(i, 1, 1, score=value) for i, value in enumerate(values)])
    table = read_coco(file)
    assert labels(table) == {"a.jpg": {"person": P}}
    assert [m.partition(": ")[2] for m in table.notes.messages if "score" in m] == messages
    assert [w for w in table.notes.warnings if "predictions, which are not labels" in w] == [*table.notes.warnings]
    assert len(table.notes.warnings) == warnings
