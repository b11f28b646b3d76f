import io
import json
import tarfile
from typing import get_args

import numpy as np
import pytest

from fewtags.config.pretrain import PretrainDataConfig
from fewtags.config.sections import DataConfig
from fewtags.errors import ConfigError, DataError
from fewtags.formats import FORMATS, list_formats
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import ClassNames, Label
from fewtags.table.storage import save
from fewtags.table.table import LabelTable


def touch(path, data="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data)
    return path


def shard(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in (("a.jpg", b"x"), ("a.json", b'{"tags": ["cat"]}')):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def one_of_each(tmp_path):
    """The statement "a.jpg shows a cat", in every format."""
    xml = "<annotation><filename>a.jpg</filename><object><name>cat</name></object></annotation>"
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 5}],
        "categories": [{"id": 5, "name": "cat"}],
    }
    touch(tmp_path / "folder/cat/a.jpg")
    touch(tmp_path / "tags/a.jpg")
    touch(tmp_path / "voc/Annotations/a.xml", xml)
    touch(tmp_path / "lists/ImageSets/Main/cat_train.txt", "a 1\n")
    touch(tmp_path / "yolo/labels/a.txt", "0 .5 .5 .2 .2\n")
    touch(tmp_path / "oi/l.csv", "ImageID,LabelName,Confidence\na,cat,1\n")
    touch(tmp_path / "oi/c.csv", "LabelName,DisplayName\ncat,cat\n")
    task = {
        "data": {"image": "a.jpg"},
        "annotations": [{"result": [{"type": "choices", "value": {"choices": ["cat"]}}]}],
    }
    items = {
        "categories": {"label": {"labels": [{"name": "cat"}]}},
        "items": [{"id": "a", "annotations": [{"type": "label", "label_id": 0}], "image": {"path": "a.jpg"}}],
    }
    labelme = {"shapes": [{"label": "cat", "points": [[0, 0], [2, 1]], "shape_type": "rectangle"}]}
    labelme |= {"imagePath": "a.jpg", "imageWidth": 2, "imageHeight": 1}
    shapes = '<annotations><image name="a.jpg" width="2" height="1"><tag label="cat"/></image></annotations>'
    touch(tmp_path / "cvat/annotations.xml", shapes)
    for folder in ("hill", "real"):
        touch(tmp_path / folder / "classes.txt", "cat\n")
    touch(tmp_path / "real/a.jpg")
    touch(tmp_path / "nus/ConceptsList/Concepts81.txt", "cat\n")
    touch(tmp_path / "nus/ImageList/Imagelist.txt", "a.jpg\n")
    touch(tmp_path / "nus/AllLabels/Labels_cat.txt", "1\n")
    touch(tmp_path / "cub/images.txt", "1 a.jpg\n")
    touch(tmp_path / "cub/attributes/attributes.txt", "1 cat\n")
    touch(tmp_path / "cub/attributes/image_attribute_labels.txt", "1 1 1 3 2.5\n")
    ids, zeros = ClassNames.of(["cat"]), np.zeros(1, np.int64)
    save(LabelTable.build(["a.jpg"], ids, image=zeros, class_=zeros, state=zeros + 1), tmp_path / "t.parquet")
    return {
        "folder": tmp_path / "folder",
        "voc": tmp_path / "voc",
        "voc xml": tmp_path / "voc/Annotations",
        "voc lists": tmp_path / "lists",
        "coco": touch(tmp_path / "c.JSON", json.dumps(coco)),
        "csv": touch(tmp_path / "c.csv", "image,tags\na.jpg,cat\n"),
        "tsv": touch(tmp_path / "c.tsv", "image\ttags\na.jpg\tcat\n"),
        "txt": touch(tmp_path / "c.txt", "image;cat\na.jpg;yes\n"),
        "points": touch(tmp_path / "p.csv", "image,class,x_px,y_px,width,height\na.jpg,cat,1,1,2,2\n"),
        "yolo": touch(tmp_path / "yolo/data.yaml", "names: [cat]\n").parent,
        "yolo yaml": tmp_path / "yolo/data.yaml",
        "openimages": tmp_path / "oi",
        "openimages csv": tmp_path / "oi/l.csv",
        "labelstudio": touch(tmp_path / "ls.json", json.dumps([task])),
        "cvat": tmp_path / "cvat",
        "cvat xml": tmp_path / "cvat/annotations.xml",
        "datumaro": touch(tmp_path / "dm/annotations/default.json", json.dumps(items)).parent.parent,
        "datumaro json": tmp_path / "dm/annotations/default.json",
        "labelme": touch(tmp_path / "lm/a.json", json.dumps(labelme)).parent,
        "labelme json": tmp_path / "lm/a.json",
        "metadata": touch(tmp_path / "hf/metadata.jsonl", '{"file_name": "a.jpg", "tags": ["cat"]}\n'),
        "tagfiles": touch(tmp_path / "tags/a.txt", "cat").parent,
        "shards": shard(tmp_path / "shards/x.tar").parent,
        "shards tar": tmp_path / "shards/x.tar",
        "hill": touch(tmp_path / "hill/list.txt", "a.jpg,0\n"),
        "real": touch(tmp_path / "real/real.json", "[[0]]"),
        "nuswide": tmp_path / "nus",
        "cub": tmp_path / "cub",
        "parquet": tmp_path / "t.parquet",
    }


KINDS = ("folder", "voc", "voc xml", "voc lists", "coco", "csv", "tsv", "txt", "points", "yolo", "yolo yaml")
KINDS += (
    "openimages",
    "openimages csv",
    "labelstudio",
    "cvat",
    "cvat xml",
    "datumaro",
    "datumaro json",
    "labelme",
    "labelme json",
    "metadata",
    "tagfiles",
    "shards",
    "shards tar",
    "hill",
    "real",
    "nuswide",
    "cub",
    "parquet",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_told_from_the_path_and_says_the_same(one_of_each, kind):
    table = read(str(one_of_each[kind]))
    assert [key.rpartition("/")[2] for key in table.images.to_pylist()] == ["a.jpg"]
    assert table.classes.ids == ("cat",)
    assert table.matrix.dense().tolist() == [[Label.POSITIVE]]
    format = {"tsv": "csv", "txt": "csv", "points": "csv"}.get(kind, kind.split()[0])
    assert table.notes.messages[0].startswith(f"{one_of_each[kind].name}: read as {format}, ")


@pytest.mark.parametrize(("kind", "format"), [("voc xml", "voc"), *((name, name) for name in FORMATS)])
def test_a_format_that_is_given(one_of_each, kind, format):
    table = read(one_of_each[kind], format=format)
    assert len(table) == 1
    assert not any("read as" in message for message in table.notes.messages)


def test_photos_that_are_given(one_of_each, tmp_path):
    touch(tmp_path / "p/a.jpg")
    for kind in set(KINDS) - {"folder", "tagfiles"}:
        assert read(one_of_each[kind], images=str(tmp_path / "p")).root == tmp_path / "p"
    with pytest.raises(DataError, match="is read as class folders, which contain the photos: leave images out"):
        read(one_of_each["folder"], images=tmp_path / "p")
    assert len(read(one_of_each["folder"], images=one_of_each["folder"])) == 1


def test_options_reach_the_reader(one_of_each):
    for kind in set(KINDS) - {"parquet", "voc lists"}:
        table = read(str(one_of_each[kind]), options=ReadOptions(complete=True))
        assert table.complete_set.tolist() == [0], kind


def test_options_without_effect_are_reported(one_of_each):
    table = read(one_of_each["coco"], options=ReadOptions(complete=True, blank="negative", columns=("cat",)))
    assert table.notes.messages[-1] == "blank, columns: no effect on the format 'coco'"


def test_every_option_has_an_effect_somewhere():
    in_readers = {name for format in FORMATS.values() for name in format.options}
    # `read` itself renames, and names are those of all files together.
    assert in_readers | {"rename", "names"} == ReadOptions.model_fields.keys()


@pytest.mark.parametrize("settings", [DataConfig, PretrainDataConfig])
def test_settings_know_every_format(settings):
    (formats, none) = get_args(settings.model_fields["format"].annotation)
    assert (get_args(formats), none) == (tuple(FORMATS), type(None))


def test_folders_with_the_marks_of_two_formats(one_of_each, tmp_path):
    touch(tmp_path / "yolo/Annotations/a.xml", (tmp_path / "voc/Annotations/a.xml").read_text())
    with pytest.raises(
        DataError, match=r"could be voc \(Annotations/\) and yolo \(data\.yaml has names\); pass the one to read"
    ):
        read(one_of_each["yolo"])
    assert read(one_of_each["yolo"], format="voc").classes.ids == ("cat",)


def test_a_path_that_is_not_there(one_of_each, tmp_path):
    with pytest.raises(DataError) as error:
        read(tmp_path / "foldr")
    assert str(error.value) == (
        f"'{tmp_path}/foldr' does not exist (did you mean '{tmp_path}/folder'?); expected {list_formats('expected')}."
    )
    with pytest.raises(DataError, match=r"'.*/nowhere/at/all' does not exist; expected a folder"):
        read(tmp_path / "nowhere/at/all")


def test_an_ending_that_tells_nothing(tmp_path):
    with pytest.raises(
        DataError,
        match=r"a\.docx: no known format has the ending '\.docx'; expected .*, or pass format='NAME'\.",
    ):
        read(touch(tmp_path / "a.docx"))
    with pytest.raises(DataError, match="labels: the file name has no ending; expected a folder of"):
        read(touch(tmp_path / "labels"))


def test_formats_that_do_not_fit(one_of_each):
    with pytest.raises(
        ConfigError, match=r"format 'coc' is not known \(did you mean 'coco'\?\); known: folder, csv, coco,"
    ):
        read(one_of_each["coco"], format="coc")
    with pytest.raises(DataError, match=r"folder: format 'csv' is read from a file, not a folder\."):
        read(one_of_each["folder"], format="csv")
    with pytest.raises(DataError, match=r"c\.csv: format 'voc' is read from a folder, not a file\."):
        read(one_of_each["csv"], format="voc")
