"""Labels in shards: members of tar files beside the photos, and columns of Parquet files."""

import io
import json
import os
import re
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from seen import labels

from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import detect, read
from fewtags.formats.scores import read_scores
from fewtags.labels import Label

POSITIVE, NEGATIVE = Label.POSITIVE, Label.NEGATIVE
IMAGE = {"image": {"_type": "Image"}}
PETS = {"names": ["cat", "dog"], "_type": "ClassLabel"}


def photo(n):
    stream = io.BytesIO()
    Image.new("RGB", (20, 10), (n, 0, 0)).save(stream, "JPEG")
    return stream.getvalue()


def tar(path, members, photos=3):
    """A tar file of photos 0.jpg, 1.jpg, ... and other members by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in {**{f"{n}.jpg": photo(n) for n in range(photos)}, **members}.items():
            member, content = tarfile.TarInfo(name), content if isinstance(content, bytes) else content.encode()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def parquet(path, columns, features=None):
    """A Parquet file of photos, with Hugging Face's description of the columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = len(next(iter(columns.values())))
    table = pa.table({"image": [{"bytes": photo(n), "path": None} for n in range(rows)], **columns})
    if features is not None:
        about = {"huggingface": json.dumps({"info": {"features": {**IMAGE, **features}}})}
        table = table.replace_schema_metadata(about)
    pq.write_table(table, path)
    return path


def test_json_members(tmp_path):
    members = {"0.json": '{"tags": ["cat", "dog"], "sha256": "1f"}', "1.json": '{"tags": ["dog"], "sha256": "2f"}'}
    table = read(tar(tmp_path / "x.tar", members))
    assert labels(table) == {
        "0.jpg": {"cat": POSITIVE, "dog": POSITIVE},
        "1.jpg": {"dog": POSITIVE},
        "2.jpg": {},
    }
    assert table.root == tmp_path / "x.tar"


@pytest.mark.parametrize("values", [("0", "1", "0"), ("cat", "dog, small", "cat")])
def test_class_members(tmp_path, values):
    """A number is the name of a class, and neither yes nor no; a comma belongs to the name."""
    table = read(tar(tmp_path / "x.tar", {f"{n}.cls": value for n, value in enumerate(values)}))
    assert labels(table) == {f"{n}.jpg": {value: POSITIVE} for n, value in enumerate(values)}


def test_text_counts_without_other_labels(tmp_path):
    text = {f"{n}.txt": word for n, word in enumerate(("cat", "dog", "cat\ndog"))}
    assert labels(read(tar(tmp_path / "x.tar", text)))["2.jpg"] == {"cat": POSITIVE, "dog": POSITIVE}
    table = read(tar(tmp_path / "y.tar", {**text, "0.cls": "owl"}))
    assert table.classes.ids == ("owl",)
    assert "y.tar: 3 members *.txt beside other labels are not read" in table.notes.messages


def test_names_that_begin_with_a_blank(tmp_path):
    """They are the names of other photos than those without it."""
    names = ("0", " 0", " d/1", "2 ")
    photos = {f"{name}.jpg": photo(n) for n, name in enumerate(names)}
    members = {f"{name}.cls": f"c{n}" for n, name in enumerate(names)}
    table = read(tar(tmp_path / "x.tar", {**photos, **members}, photos=0))
    assert labels(table) == {f"{name}.jpg": {f"c{n}": POSITIVE} for n, name in enumerate(names)}
    assert not table.notes.excluded


@pytest.mark.parametrize("ending", ["txt", "labels", "tags"])
def test_one_line_beside_several(tmp_path, ending):
    """A comma is asked about, also if other photos have a line for each tag, unless a part of it is a tag elsewhere."""
    path = tar(tmp_path / "x.tar", {f"{n}.{ending}": text for n, text in enumerate(("cat, dog", "red owl\nbird"))})
    with pytest.raises(DataError, match=rf"x\.tar/0\.{ending}, column '.*': 'cat, dog' may be 2 tags, or one name"):
        read(path)
    split = read(path, options=ReadOptions(tags_separator=","))
    assert labels(split)["0.jpg"] == {"cat": POSITIVE, "dog": POSITIVE}
    assert split.classes.ids == ("bird", "cat", "dog", "red owl")
    assert read(path, options=ReadOptions(tags_separator="|")).classes.ids == ("bird", "cat, dog", "red owl")
    clear = tar(tmp_path / "y.tar", {f"{n}.{ending}": text for n, text in enumerate(("cat, dog", "red owl\ncat"))})
    assert read(clear).classes.ids == ("cat", "dog", "red owl")
    lines = tar(tmp_path / "z.tar", {f"{n}.{ending}": text for n, text in enumerate(("red owl", "red owl\ncat"))})
    assert read(lines).classes.ids == ("cat", "red owl")


def test_shards_with_labels_in_different_fields(tmp_path):
    """A class in .cls and a field `label` are two columns, of which one would not be read. Captions are not labels."""
    classes = tar(tmp_path / "a" / "x-0.tar", {"0.cls": "0", "1.cls": "1"})
    for write in (
        lambda: tar(tmp_path / "a" / "x-1.tar", {"1.json": '{"label": 0}', "2.json": '{"label": 1}'}),
        lambda: parquet(tmp_path / "a" / "x-1.parquet", {"label": ["0", "1"]}),
    ):
        other = write()
        at = f"{other}/1.json" if other.suffix == ".tar" else f"{other} row 1"
        with pytest.raises(DataError) as error:
            read(tmp_path / "a")
        assert str(error.value) == (
            f"{tmp_path / 'a'}: the labels of {classes}/0.cls are in 'labels', and those of {at} in 'label'. Write "
            "them in the same way, or read the shards one by one; if some are not labels, name the others: "
            "ReadOptions(columns=('labels',))."
        )
        assert read(tmp_path / "a", options=ReadOptions(columns=("labels",))).classes.ids == ("0", "1")
        other.unlink()
    tar(tmp_path / "a" / "x-1.tar", {"1.json": '{"labels": 0}', "2.json": '{"labels": [1]}'})
    assert labels(read(tmp_path / "a"))["x-1.tar/2.jpg"] == {"1": POSITIVE}
    tar(
        tmp_path / "a" / "x-1.tar", {"0.txt": "Two cats sleep on a red sofa", "1.txt": "A dog plays outside in the sun"}
    )
    assert labels(read(tmp_path / "a"))["x-1.tar/0.jpg"] == {}


def test_a_class_beside_tags(tmp_path):
    """A .cls is one class, whatever its name; what is in .tags is asked about."""
    path = tar(tmp_path / "x.tar", {"0.cls": "cat, small", "1.tags": "owl, cat"})
    with pytest.raises(DataError, match=r"x\.tar/1\.tags: 'labels' is 'owl, cat', which may be several tags or one"):
        read(path)
    assert read(path, options=ReadOptions(tags_separator=",")).classes.ids == ("cat", "cat, small", "owl")


def test_captions_are_refused(tmp_path):
    text = {"0.txt": "Two cats sleep on a red sofa", "1.txt": "A dog plays outside in the sun"}
    with pytest.raises(
        DataError, match=r"x\.tar/0\.txt, column 'text': .* looks like a caption, and captions are not tags"
    ):
        read(tar(tmp_path / "x.tar", text))


def test_keys_of_webdataset_and_lone_members(tmp_path):
    members = {"7.left.jpg": photo(7), "7.right.jpg": photo(8), "7.labels.json": '["cat"]', "9.json": '["dog"]'}
    table = read(tar(tmp_path / "x.tar", members, photos=0))
    assert labels(table) == {"7.left.jpg": {"cat": POSITIVE}, "7.right.jpg": {"cat": POSITIVE}}
    assert "x.tar: 1 member with labels, but without a photo of that name" in table.notes.messages


def test_folders_in_a_tar_file_are_classes(tmp_path):
    folders = {f"{name}/{n}.jpg": photo(n) for name in ("cat", "dog") for n in (0, 1)}
    assert labels(read(tar(tmp_path / "x.tar", folders, photos=0)))["dog/1.jpg"] == {"dog": POSITIVE}
    several = {f"{name}/{n}.jpg": photo(n) for name in ("images", "cat") for n in (0, 1)}
    with pytest.raises(DataError, match="folders do not name classes; write the labels into a CSV of photo names"):
        read(tar(tmp_path / "y.tar", several, photos=0))


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", r"x\.tar/0\.json: not JSON \(.*\); correct it\."), (b"\xff\xfe\xfa", r"x\.tar/0\.json: is not UTF-8 \(")],
)
def test_broken_members(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(tar(tmp_path / "x.tar", {"0.json": content}))


def test_a_damaged_shard_is_refused(tmp_path):
    """Photos without their labels would count as photos without any."""
    path = tar(tmp_path / "x.tar", {"0.cls": "1"})
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match=r"x\.tar: is damaged: it ends within the file .*; copy it again\."):
        read(path)


def test_boxes(tmp_path):
    objects = {"objects": [{"bbox": [2, 1, 8, 4], "category": "cat"}], "width": 20, "height": 10}
    table = read(tar(tmp_path / "x.tar", {"1.json": json.dumps(objects)}))
    (fact,) = table.facts.to_pylist()
    assert [round(fact[side], 3) for side in ("x0", "y0", "x1", "y1")] == [0.1, 0.1, 0.5, 0.5]


def test_class_labels_of_hugging_face(tmp_path):
    """-1 and null are hidden labels; an empty list says nothing unless the labels are complete."""
    single = parquet(tmp_path / "a.parquet", {"label": [0, 1, -1]}, {"label": PETS})
    assert detect(single) == ("shards", "it has a column of photos")
    assert labels(read(single)) == {"row-0": {"cat": POSITIVE}, "row-1": {"dog": POSITIVE}, "row-2": {}}
    several = {"labels": pa.array([[0, 1], [1], [], None], pa.list_(pa.int64()))}
    for kind in ({"feature": PETS, "_type": "Sequence"}, {"feature": PETS, "_type": "List"}, [PETS]):
        table = read(parquet(tmp_path / "b.parquet", several, {"labels": kind}))
        assert labels(table)["row-0"] == {"cat": POSITIVE, "dog": POSITIVE}
        assert labels(table)["row-1"] == {"dog": POSITIVE}
    complete = read(tmp_path / "b.parquet", options=ReadOptions(complete=True))
    assert labels(complete)["row-1"] == {"cat": NEGATIVE, "dog": POSITIVE}


def test_boxes_with_class_labels(tmp_path):
    objects = [{"bbox": [[2.0, 1, 8, 4]], "category": [n % 2], "id": [n]} for n in range(3)]
    kinds = {"bbox": {"_type": "List", "feature": {"dtype": "float64", "_type": "Value"}}, "category": PETS}
    for kind in ({"feature": kinds, "_type": "Sequence"}, {key: [value] for key, value in kinds.items()}):
        columns = {"objects": objects, "width": [20] * 3, "height": [10] * 3}
        table = read(parquet(tmp_path / "a.parquet", columns, {"objects": kind}))
        assert [fact["class"] for fact in table.facts.to_pylist()] == [0, 1, 0]
        assert table.classes.ids == ("cat", "dog")


def test_class_columns(tmp_path):
    columns = {"cat": [1, 0, None], "dog": [True, None, False], "embedding": [b"1", b"2", b"3"]}
    table = read(parquet(tmp_path / "a.parquet", columns))
    assert labels(table)["row-0"] == {"cat": POSITIVE, "dog": POSITIVE}
    assert labels(table)["row-2"] == {"dog": NEGATIVE}


def test_splits_by_the_names_of_shards(tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test-00000-of-00001"):
        parquet(tmp_path / f"data/{name}.parquet", {"label": [0, 1]}, {"label": PETS})
    (tmp_path / "README.md").write_text("# A data set")
    table = read(tmp_path)
    assert sorted(table.split_names.to_pylist()) == ["test"] * 2 + ["train"] * 4 + ["val"] * 2
    assert table.images[0].as_py() == "data/test-00000-of-00001.parquet/row-0"


def test_what_is_not_read_as_shards(tmp_path):
    """Photos or label files beside the shards, and label tables: the formats that were there before count."""
    tar(tmp_path / "a/x.tar", {"0.cls": "1"})
    assert detect(tmp_path / "a")[0] == "shards"
    (tmp_path / "a/tags.csv").write_text("image,tags\n0.jpg,cat\n")
    assert detect(tmp_path / "a")[0] == "folder"
    tar(tmp_path / "b/x.tar", {"0.cls": "1"})
    (tmp_path / "b/9.jpg").write_bytes(photo(9))
    assert detect(tmp_path / "b")[0] == "folder"


def test_no_labels_at_all(tmp_path):
    message = "write the labels into a CSV of photo names and pass it, with --images for the shards"
    for path in (tar(tmp_path / "x.tar", {}), parquet(tmp_path / "a.parquet", {"id": ["a", "b"]})):
        with pytest.raises(DataError, match=re.escape(message)):
            read(path)


def test_photos_without_labels_stay_unknown_beside_complete_labels(tmp_path):
    complete = ReadOptions(complete=True)
    table = read(tar(tmp_path / "x.tar", {"0.json": '{"tags": ["cat"]}', "1.json": '{"tags": []}'}), options=complete)
    assert labels(table) == {"0.jpg": {"cat": POSITIVE}, "1.jpg": {"cat": NEGATIVE}, "2.jpg": {}}
    columns = {"labels": pa.array([[0, 1], [], None], pa.list_(pa.int64())), "id": [4, 5, 6]}
    kinds = {"labels": {"feature": PETS, "_type": "Sequence"}}
    table = read(parquet(tmp_path / "a.parquet", columns, kinds), options=complete)
    assert labels(table)["5"] == {"cat": NEGATIVE, "dog": NEGATIVE}
    assert labels(table)["6"] == {}


def not_utf8(values):
    return pa.array(values, pa.binary()).view(pa.string())


def test_text_that_is_not_utf8(tmp_path):
    """Names of photos are bytes, as names of files are; labels are text."""
    path = parquet(tmp_path / "a.parquet", {"path": not_utf8([b"a\xf4.jpg", b"b.jpg"]), "tags": ["cat", "dog"]})
    found, _ = find_photos([path])
    assert [os.fsencode(photo.name) for photo in found] == [b"a\xf4.jpg", b"b.jpg"]
    with pytest.raises(
        DataError, match=r"a\.parquet: the name 'a\\udcf4\.jpg' of a photo is not valid UTF-8; rename it\."
    ):
        read(path)
    parquet(path, {"tags": not_utf8([b"cat", b"d\xf4g"])})
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as a Parquet file \(.*UTF8"):
        read(path)
    pq.write_table(pa.table({"image": ["a.jpg"], "class": not_utf8([b"\xf4"]), "score": [0.5]}), path)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet \(.*UTF8"):
        read_scores(path)


def test_photos_without_labels_of_every_kind_stay_unknown(tmp_path):
    """Also beside boxes, class columns and numbers, where labels are complete."""
    for n, fields in enumerate(({"objects": [{"bbox": [2, 1, 8, 4], "category": "cat"}]}, {"cat": 1}, {"label": 3})):
        path = tar(tmp_path / f"{n}.tar", {"0.json": json.dumps({**fields, "width": 20, "height": 10})})
        found = labels(read(path, options=ReadOptions(complete=True)))
        assert len(found["0.jpg"]) == 1
        assert found["1.jpg"] == {}
    hidden = {"labels": pa.array([[0], [-1], None], pa.list_(pa.int64()))}
    path = parquet(tmp_path / "a.parquet", hidden, {"labels": {"feature": PETS, "_type": "List"}})
    assert labels(read(path, options=ReadOptions(complete=True)))["row-1"] == {}


def test_a_label_without_its_photo_is_not_that_of_others(tmp_path):
    members = {f"IMG.00{n}.jpg": photo(n) for n in (1, 2)}
    members |= {"IMG.001.cls": "cat", "IMG.002.cls": "dog", "IMG.003.cls": "fish"}
    table = read(tar(tmp_path / "x.tar", members, photos=0))
    assert labels(table) == {"IMG.001.jpg": {"cat": POSITIVE}, "IMG.002.jpg": {"dog": POSITIVE}}
    assert "x.tar: 1 member with labels, but without a photo of that name" in table.notes.messages


def test_two_members_with_labels_of_one_photo(tmp_path):
    with pytest.raises(DataError, match=r"0\.cls and 0\.tags both have the field 'labels' of 0\.jpg; keep one of them"):
        read(tar(tmp_path / "x.tar", {"0.cls": "cat", "0.tags": "red"}))


def test_classes_beside_other_fields(tmp_path):
    """A class of two values is not a column of yes and no, and names with separators stay whole."""
    members = {f"{n}.cls": str(n % 2) for n in range(3)} | {f"{n}.json": '{"is_gray": true}' for n in range(3)}
    table = read(tar(tmp_path / "x.tar", members))
    assert table.classes.ids == ("0", "1")
    assert "x.tar: 3 members *.json beside other labels are not read" in table.notes.messages
    kinds = {"label": {"names": ["a;b", "tench, Tinca tinca"], "_type": "ClassLabel"}}
    columns = {"label": [0, 1], "is_gray": [True, False]}
    assert read(parquet(tmp_path / "a.parquet", columns, kinds)).classes.ids == ("a;b", "tench, Tinca tinca")


def test_splits_in_a_tar_file_and_after_the_name_of_the_set(tmp_path):
    folders = {
        f"{split}/{name}/{n}.jpg": photo(n) for n in (0, 1) for split in ("train", "val") for name in ("cat", "dog")
    }
    table = read(tar(tmp_path / "x.tar", folders, photos=0))
    assert sorted(set(table.split_names.to_pylist())) == ["train", "val"]
    assert table.classes.ids == ("cat", "dog")
    for name in ("imagenet1k-train-0000", "imagenet1k-validation-00"):
        tar(tmp_path / f"wds/{name}.tar", {f"{n}.cls": "cat" for n in range(3)})
    assert sorted(set(read(tmp_path / "wds").split_names.to_pylist())) == ["train", "val"]


def test_a_folder_of_img2dataset(tmp_path):
    """A Parquet file and a JSON file of each tar file are about the download, and so are the fields of a photo."""
    about = {"key": "0", "status": "success", "watermark": 0, "original_width": 1, "error_message": None}
    members = {f"{n}.json": json.dumps({**about, "tags": [("cat", "dog")[n % 2]]}) for n in range(3)}
    tar(tmp_path / "00000.tar", members)
    pq.write_table(pa.table({"url": ["a"], "status": ["success"]}), tmp_path / "00000.parquet")
    (tmp_path / "00000_stats.json").write_text("{}")
    assert read(tmp_path).classes.ids == ("cat", "dog")


def test_odd_columns(tmp_path):
    path = parquet(tmp_path / "a.parquet", {"tags": ["cat", "dog"], "at": pa.array([1, 2], pa.timestamp("ns"))})
    assert read(path).classes.ids == ("cat", "dog")
    table = pq.read_table(path)
    pq.write_table(table.append_column("tags", table["tags"]), path)
    with pytest.raises(DataError, match=r"a\.parquet: has 2 columns 'tags'; keep one of them"):
        read(path)


@pytest.mark.parametrize("column", ["name", "id", "file", "image_id"])
def test_labels_in_a_column_that_usually_names_photos(tmp_path, column):
    """It is read if the user names it; a message or the error says that it was left out, if it cannot name photos."""
    path = parquet(tmp_path / "a.parquet", {column: ["cat", "dog", "cat"]})
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value) == (
        f"{path}: no photo has labels beside it, and folders do not name classes. The columns '{column}' are not read, "
        f"since they usually name photos; if they have labels, pass ReadOptions(columns=('{column}',)); or write the "
        "labels into a CSV of photo names and pass it, with --images for the shards."
    )
    named = ReadOptions(columns=(column,))
    assert labels(read(path, options=named)) == {
        f"row-{n}": {name: POSITIVE} for n, name in enumerate(("cat", "dog", "cat"))
    }
    beside = parquet(tmp_path / "b.parquet", {column: ["cat", "dog", "cat"], "tags": ["red", "blue", "red"]})
    table = read(beside)
    assert table.classes.ids == ("blue", "red")
    assert table.notes.warnings[0] == (
        f"b.parquet: the column '{column}' is not read as labels, and does not name photos: 'cat' is in 2 rows. If it "
        f"has labels, pass ReadOptions(columns=('{column}',))"
    )
    assert read(beside, options=named).classes.ids == ("cat", "dog")
    ids = parquet(tmp_path / "c.parquet", {column: ["u", "v", "w"], "tags": ["red", "blue", "red"]})
    assert not read(ids).notes.warnings  # every row has another: names of photos, or of something else


def test_class_labels_of_splits_and_of_columns_called_name(tmp_path):
    """A split is not a label, and a column of classes is one whatever it is called."""
    parts = {"split": {"names": ["train", "val"], "_type": "ClassLabel"}}
    table = read(parquet(tmp_path / "a.parquet", {"split": [0, 1], "tags": ["cat", "dog"]}, parts))
    assert (table.classes.ids, table.split_names.to_pylist()) == (("cat", "dog"), ["train", "val"])
    table = read(parquet(tmp_path / "b.parquet", {"name": [0, 1]}, {"name": PETS}))
    assert table.classes.ids == ("cat", "dog")
