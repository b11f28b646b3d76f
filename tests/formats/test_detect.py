import re

import pytest

from fewtags.errors import ConfigError, DataError
from fewtags.formats.detect import detect

OPEN_IMAGES = "ImageID,Source,LabelName,Confidence\n"


@pytest.fixture
def write(tmp_path):
    """Writes text files below tmp_path; a name that ends with a slash is a folder."""

    def write(files):
        for name, text in files.items():
            file = tmp_path / name
            if name.endswith("/"):
                file.mkdir(parents=True, exist_ok=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("files", "found", "why"),
    [
        ({"cat/a.jpg": "", "dog/b.jpg": ""}, "folder", "it has no mark of another format"),
        ({"labels/a.jpg": "", "images/b.jpg": ""}, "folder", "it has no mark of another format"),
        ({"classes.txt": "cat", "cat/a.jpg": "", "notes.yaml": "a: 1"}, "folder", "it has no mark of another format"),
        ({"Annotations/": ""}, "voc", "Annotations/"),
        ({"ImageSets/": ""}, "voc", "ImageSets/"),
        ({"data.yaml": "names: [a]", "train/images/a.jpg": ""}, "yolo", "data.yaml has names"),
        ({"obj.names": "a", "obj/a.jpg": ""}, "yolo", "obj.names"),
        ({"images/a.jpg": "", "labels/train/a.txt": ""}, "yolo", "label files in {name}/labels/"),
        ({"train/labels/a.txt": ""}, "yolo", "label files in {name}/train/labels/"),
        ({"classes.txt": "a", "a.jpg": "", "a.txt": ""}, "yolo", "classes.txt, and label files beside photos"),
        ({"annotations.xml": ""}, "cvat", "annotations.xml"),
        ({"x.csv": "a,b\n", "y.csv": OPEN_IMAGES}, "openimages", "y.csv has the columns ImageID and LabelName"),
        ({"labels/y.csv": OPEN_IMAGES}, "openimages", "y.csv has the columns ImageID and LabelName"),
    ],
)
def test_folders(write, files, found, why):
    folder = write(files)
    assert detect(folder) == (found, why.format(name=folder.name))


def test_folders_of_annotations_stand_for_themselves(write):
    write({"a/Annotations/x.xml": "", "b/labels/a.txt": ""})
    assert detect(write({}) / "a/Annotations")[0] == "voc"
    assert detect(write({}) / "b/labels") == ("yolo", "label files in labels/")


def test_the_marks_of_two_formats(write):
    folder = write({"Annotations/": "", "labels/a.txt": ""})
    with pytest.raises(DataError) as error:
        detect(folder)
    assert str(error.value) == (
        f"{folder} could be voc (Annotations/) and yolo (label files in {folder.name}/labels/); say which: "
        "format=voc (--set data.format=voc), for example."
    )
    assert detect(folder, "yolo") == ("yolo", "as said")


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.csv", "image,tags\n", ("csv", "a text table by its ending")),
        ("a.CSV", OPEN_IMAGES, ("openimages", "it has the columns ImageID and LabelName")),
        (
            "p.csv",
            "ImageId,X,Y,Label,EstimatedYesNo\n",
            ("openimages", "it has the columns ImageId and EstimatedYesNo"),
        ),
        ("a.tsv", OPEN_IMAGES, ("csv", "a text table by its ending")),
        ("a.json", ' \n {"images": []}', ("coco", "its JSON is an object")),
        ("a.json", "\ufeff [1]", ("labelstudio", "its JSON is a list")),
        ("a.json", "", ("coco", "its JSON is an object")),
        ("a.xml", "<x/>", ("cvat", "one XML file")),
        ("a.yml", "", ("yolo", "a YAML file")),
        ("a.parquet", "", ("parquet", "by its ending")),
    ],
)
def test_files(write, name, text, found):
    assert detect(write({name: text}) / name) == found


def test_what_cannot_be(write):
    folder = write({"a.xlsx": "", "b.csv": ""})
    with pytest.raises(DataError, match=r"a\.xlsx: the ending '\.xlsx' tells no known format; expected a folder of"):
        detect(folder / "a.xlsx")
    for format in ("csv", "coco", "labelstudio", "parquet"):
        with pytest.raises(DataError, match=re.escape(f"is a folder, which format {format!r} is not.")):
            detect(folder, format)
    for format in ("folder", "voc"):
        with pytest.raises(DataError, match=re.escape(f"is a file, which format {format!r} is not.")):
            detect(folder / "b.csv", format)
    for format in ("yolo", "openimages", "cvat"):
        assert detect(folder, format)[0] == detect(folder / "b.csv", format)[0] == format
    with pytest.raises(ConfigError) as error:
        detect(folder, "yolov8")
    assert str(error.value) == (
        "format 'yolov8' is not known (did you mean 'yolo'?); known: folder, csv, coco, voc, yolo, openimages, "
        "labelstudio, cvat, parquet."
    )
