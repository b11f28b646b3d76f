import json

import numpy as np
import pytest
from PIL import Image

from fewtags.errors import ConfigError, DataError
from fewtags.transfer.dense.scenes import coco_scenes, voc_scenes

SQUARE = [[10.0, 20.0, 30.0, 20.0, 30.0, 40.0, 10.0, 40.0]]


def photo(path, width=60, height=50):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (90, 90, 90)).save(path)


def annotation(image, category, bbox, **more):
    return {"image_id": image, "category_id": category, "bbox": bbox, **more}


def write(folder, annotations, photos=2, **changed):
    """`photos` photos of 60 x 50 pixels with the ids 10, 11, ..., categories 7 (cat) and 3 (dog)."""
    entries = []
    for n in range(photos):
        photo(folder / "photos" / f"{n}.jpg")
        entries.append({"id": 10 + n, "file_name": f"{n}.jpg", "width": 60, "height": 50, "license": 1})
    content = {
        "info": {}, "images": entries, "annotations": annotations,
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}], **changed,
    }  # fmt: skip
    (folder / "instances.json").write_text(json.dumps(content))
    return coco_scenes(folder / "instances.json", folder / "photos")


# --- COCO


def test_coco_boxes_classes_and_crowds(tmp_path):
    """bbox is x, y, width, height; category ids 3 and 7 become classes 0 and 1."""
    crowd = {"size": [50, 60], "counts": [0, 5, 2995]}
    scenes = write(
        tmp_path,
        [
            annotation(11, 7, [10, 20, 20, 20], area=400.5, segmentation=SQUARE),
            annotation(11, 3, [0, 0, 5, 4], iscrowd=1, segmentation=crowd),
        ],
    )
    assert scenes.classes == ("dog", "cat")
    assert [len(scene.boxes) for scene in scenes.scenes] == [0, 2]
    scene = scenes.scenes[1]
    assert scene.boxes.tolist() == [[10, 20, 30, 40], [0, 0, 5, 4]]
    assert scene.classes.tolist() == [1, 0]
    assert scene.ignored.tolist() == [False, True]
    assert scene.areas.tolist() == [400.5, 20]
    assert scenes.trainable(scene).tolist() == [True, False]
    assert len(scenes.with_objects()) == 1


def test_masks_at_the_stated_size_and_at_another(tmp_path):
    """A square of 20 x 20 pixels; in a photo of half the size 10 x 10, half as far from the corner."""
    runs = {"size": [50, 60], "counts": [0, 50 * 20, 50 * 40]}
    scenes = write(
        tmp_path,
        [
            annotation(10, 3, [10, 20, 20, 20], segmentation=SQUARE),
            annotation(10, 3, [0, 0, 20, 50], segmentation=runs),
        ],
    )
    scene = scenes.scenes[0]
    full, half = scene.mask(0, 50, 60), scene.mask(0, 25, 30)
    assert full[20:40, 10:30].all()
    assert full.sum() == 400
    assert half[10:20, 5:15].all()
    assert half.sum() == 100
    assert scene.scaled(0, 25, 30) == [[5, 10, 15, 10, 15, 20, 5, 20]]
    assert scene.mask(1, 50, 60)[:, :20].all()
    assert scene.mask(1, 25, 30).sum() == 25 * 10


def test_a_photo_with_an_object_without_outline_is_left_out(tmp_path):
    scenes = write(
        tmp_path,
        [
            annotation(10, 3, [1, 1, 5, 5], segmentation=SQUARE),
            annotation(10, 3, [1, 1, 5, 5]),
            annotation(11, 3, [1, 1, 5, 5], segmentation=SQUARE),
            annotation(11, 3, [1, 1, 9, 9], iscrowd=1),
        ],
    )
    kept = scenes.with_outlines()
    assert [scene.image.name for scene in kept.scenes] == ["1.jpg"]
    assert kept.notes == ("1 of 2 photos are left out: an object has no outline",)
    bare = write(tmp_path, [annotation(10, 3, [1, 1, 5, 5])])
    with pytest.raises(
        DataError, match=r"^no photo has outlines \(segmentation\) of its objects; train on boxes only:"
    ):
        bare.with_outlines()


def test_a_polygon_without_an_inside_is_not_an_outline(tmp_path):
    """Two corners, or an odd number of coordinates; detectron2 drops them, too."""
    segmentations = ([[1, 1, 5, 5]], [[1, 1, 5, 5, 9, 9, 2]], [[1, 1, 5, 5], *SQUARE], [])
    scenes = write(tmp_path, [annotation(10, 3, [1, 1, 5, 5], segmentation=one) for one in segmentations])
    first, second, third, fourth = scenes.scenes[0].outlines
    assert (first, second, fourth) == (None, None, None)
    assert np.array_equal(third, SQUARE)


def test_boxes_without_area_are_not_trained_on(tmp_path):
    scenes = write(tmp_path, [annotation(10, 3, [1, 1, 0, 5])])
    assert scenes.trainable(scenes.scenes[0]).tolist() == [False]
    with pytest.raises(DataError, match=r"^no photo has a box to train on; give photos with annotated objects\.$"):
        scenes.with_objects()


def test_the_seed_selects_the_held_out_photos(tmp_path):
    scenes = write(tmp_path, [], photos=10)
    names = [[scene.image.name for scene in part.scenes] for part in scenes.hold_out(0.3, 0)]
    assert [len(part) for part in names] == [7, 3]
    assert sorted(names[0] + names[1]) == [f"{n}.jpg" for n in range(10)]
    again, other = scenes.hold_out(0.3, 0), scenes.hold_out(0.3, 1)
    assert [scene.image.name for scene in again[1].scenes] == names[1]
    assert [scene.image.name for scene in other[1].scenes] != names[1]
    with pytest.raises(
        ConfigError, match=r"^--hold-out 0\.01: of 10 photos, none is left to train or test on; change it\.$"
    ):
        scenes.hold_out(0.01, 0)


def test_a_photo_of_another_shape_is_refused(tmp_path):
    scenes = write(tmp_path, [])
    photo(tmp_path / "photos" / "0.jpg", 30, 25)
    assert scenes.scenes[0].pixels().shape == (25, 30, 3)
    photo(tmp_path / "photos" / "0.jpg", 50, 60)
    with pytest.raises(
        DataError, match=r"0\.jpg has 50 x 60 pixels, but its annotation states 60 x 50, which is another aspect"
    ):
        scenes.scenes[0].pixels()


@pytest.mark.parametrize(
    ("annotations", "changed", "words"),
    [
        ([annotation(99, 3, [1, 1, 5, 5])], {}, r"json, annotation 1: no image has the id 99; fix or remove it\.$"),
        ([annotation(10, 4, [1, 1, 5, 5])], {}, r"json, annotation 1: no category has the id 4; fix it\.$"),
        ([annotation(10, 3, [1, 1, 5])], {}, r"json is not a COCO instances file: annotations\.0\.bbox\.3: Field req"),
        ([], {"images": [{"id": 1, "file_name": "no.jpg", "width": 9, "height": 9}]},
         r"^1 of 1 photos are not in .*photos, for example no\.jpg; give the folder of the photos\.$"),
        ([], {"images": [{"id": 1, "file_name": "0.jpg", "width": 0, "height": 9}]},
         r"^image 1 \(0\.jpg\) has no size; add its width and height\.$"),
        ([], {"images": [{"id": 1, "file_name": "0.jpg", "width": 9, "height": 9}] * 2},
         r"json has two images with the same id; give each image its own id\.$"),
    ],
)  # fmt: skip
def test_wrong_coco_files_are_refused(tmp_path, annotations, changed, words):
    with pytest.raises(DataError, match=words):
        write(tmp_path, annotations, **changed)


# --- VOC

OBJECT = (
    "<object><name>{name}</name><difficult>{hard}</difficult><bndbox><xmin>{0}</xmin><ymin>{1}</ymin>"
    "<xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object>"
)


def write_voc(root, name, objects, split="trainval"):
    base = root / "VOC2007"
    photo(base / "JPEGImages" / f"{name}.jpg")
    for folder in ("Annotations", "ImageSets/Main"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    objects_xml = "".join(OBJECT.format(*box, name=word, hard=hard) for word, box, hard in objects)
    size = "<size><width>60</width><height>50</height><depth>3</depth></size>"
    (base / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{objects_xml}</annotation>")
    with (base / "ImageSets/Main" / f"{split}.txt").open("a") as file:
        file.write(f"{name}\n")


def test_voc_boxes_count_from_one_and_difficult_objects_are_trained_on(tmp_path):
    """Pixels 11 to 30 of 1, 2, ... are x from 10 to 30."""
    write_voc(tmp_path, "000005", [("cat", (11, 21, 30, 40), 0), ("tvmonitor", (1, 1, 60, 50), 1)])
    scenes = voc_scenes(tmp_path, "2007", "trainval")
    scene = scenes.scenes[0]
    assert scene.boxes.tolist() == [[10, 20, 30, 40], [0, 0, 60, 50]]
    assert scene.classes.tolist() == [7, 19]
    assert scene.ignored.tolist() == [False, True]
    assert scene.areas.tolist() == [400, 3000]
    assert scenes.trainable(scene).all()
    assert (len(scenes.classes), scenes.classes[7]) == (20, "cat")


def test_wrong_voc_files_are_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"trainval\.txt does not exist; give the VOCdevkit folder, with VOC2007 in it\.$"
    ):
        voc_scenes(tmp_path, "2007", "trainval")
    write_voc(tmp_path, "1", [("zebra", (1, 1, 5, 5), 0)])
    with pytest.raises(DataError, match=r"1\.xml: 'zebra' is not one of the 20 classes of VOC; fix or remove it\.$"):
        voc_scenes(tmp_path, "2007", "trainval")
    page = tmp_path / "VOC2007/Annotations/1.xml"
    page.write_text("<annotation><size><width>60</width></size></annotation>")
    with pytest.raises(DataError, match=r"1\.xml: has no width and height of the photo \(size\); fix or remove it\.$"):
        voc_scenes(tmp_path, "2007", "trainval")
    page.write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>')
    with pytest.raises(DataError, match=r"1\.xml: defines XML entities.*fix or remove it\.$"):
        voc_scenes(tmp_path, "2007", "trainval")
    page.unlink()
    with pytest.raises(
        DataError, match=r"1\.xml does not exist, but the split lists its photo; unpack the annotations again\.$"
    ):
        voc_scenes(tmp_path, "2007", "trainval")


def test_pixels_of_a_voc_scene(tmp_path):
    write_voc(tmp_path, "1", [], "test")
    assert np.array_equal(voc_scenes(tmp_path, "2007", "test").scenes[0].pixels().shape, (50, 60, 3))


@pytest.mark.parametrize("counts", ["garbage!!", [5, 3], [0, 5000]])
def test_damaged_run_lengths_are_refused_when_the_file_is_read(tmp_path, counts):
    """Before anything is trained; with the image and its size."""
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(tmp_path / "a.png")
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 64, "height": 48}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {
                "image_id": 1,
                "category_id": 1,
                "bbox": [0, 0, 9, 9],
                "segmentation": {"counts": counts, "size": [48, 64]},
            }
        ],
    }
    (tmp_path / "i.json").write_text(json.dumps(content))
    with pytest.raises(
        DataError, match=r"^image 1 \(a\.png\): the run lengths of an object are damaged, or do not cover 64"
    ):
        coco_scenes(tmp_path / "i.json", tmp_path)
