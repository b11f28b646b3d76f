import re
import subprocess
import sys

import pytest

from fewtags.errors import ConfigError, DataError
from fewtags.formats import FORMATS, list_formats
from fewtags.formats.read import detect

LABELME = '{"shapes": [], "imagePath": "a.jpg"}'
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
        ({"cat/a.jpg": "", "dog/b.jpg": ""}, "folder", "it contains no label files of a known format"),
        ({"labels/a.jpg": "", "images/b.jpg": ""}, "folder", "it contains no label files of a known format"),
        (
            {"classes.txt": "cat", "cat/a.jpg": "", "notes.yaml": "a: 1"},
            "folder",
            "it contains no label files of a known format",
        ),
        ({"Annotations/": ""}, "voc", "Annotations/"),
        ({"ImageSets/": ""}, "voc", "ImageSets/"),
        ({"data.yaml": "names: [a]", "train/images/a.jpg": ""}, "yolo", "data.yaml has names"),
        ({"obj.names": "a", "obj/a.jpg": ""}, "yolo", "obj.names"),
        ({"images/a.jpg": "", "labels/train/a.txt": ""}, "yolo", "label files in {name}/labels/"),
        ({"train/labels/a.txt": ""}, "yolo", "label files in {name}/train/labels/"),
        ({"classes.txt": "a", "a.jpg": "", "a.txt": ""}, "yolo", "classes.txt, and label files beside photos"),
        ({"annotations.xml": ""}, "cvat", "annotations.xml"),
        ({"a.json": LABELME, "a.jpg": ""}, "labelme", "a.json is a file of LabelMe"),
        ({"Annotations/a.json": LABELME, "a.jpg": ""}, "labelme", "Annotations/a.json is a file of LabelMe"),
        ({"train/a.json": LABELME, "train/a.jpg": "", "val/b.jpg": ""}, "labelme", "train/a.json is a file of LabelMe"),
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
        f"{folder} could be voc (Annotations/) and yolo (label files in {folder.name}/labels/); pass the one to read, "
        "as in format='voc'."
    )
    assert detect(folder, "yolo") == ("yolo", "as given")


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
        ("a.json", '{"shapes": [], "imagePath": "a.jpg"}', ("labelme", "its JSON has shapes of LabelMe")),
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
    folder = write({"a.docx": "", "b.csv": ""})
    with pytest.raises(DataError, match=r"a\.docx: no known format has the ending '\.docx'; expected a folder of"):
        detect(folder / "a.docx")
    kinds = dict.fromkeys(("folder", "voc", "nuswide", "cub", "tagfiles"), (True, False))
    kinds |= dict.fromkeys(
        ("coco", "yolo", "openimages", "cvat", "datumaro", "labelme", "metadata", "shards"), (True, True)
    )
    for name in FORMATS:
        for path, readable in zip((folder, folder / "b.csv"), kinds.get(name, (False, True)), strict=True):
            if readable:
                assert detect(path, name) == (name, "as given")
            else:
                needed = "a file, not a folder" if path == folder else "a folder, not a file"
                with pytest.raises(DataError, match=re.escape(f"{path}: format {name!r} is read from {needed}.")):
                    detect(path, name)
    with pytest.raises(ConfigError) as error:
        detect(folder, "yolov8")
    assert str(error.value) == (f"format 'yolov8' is not known (did you mean 'yolo'?); known: {', '.join(FORMATS)}.")


def test_lists_of_formats_in_words():
    assert list_formats("title") == (
        "class folders, CSV, COCO, VOC, YOLO, OpenImages, Label Studio, CVAT, Datumaro, LabelMe, metadata.jsonl, text "
        "files of tags, shards with labels, Hill lists, ImageNet ReaL, NUS-WIDE, CUB attributes or a Parquet label "
        "table"
    )
    assert list_formats("expected").startswith("a folder of class folders, a .csv, .tsv or .txt table, a COCO .json, ")


def test_the_list_of_formats_imports_no_reader():
    """The settings and the command line import it."""
    code = (
        "import sys, fewtags.config.sections; from fewtags.formats import check_path; "
        "print([m for m in ('torch', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
