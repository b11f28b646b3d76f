"""Photos that are found by the end of the path in their name, in every reader that has names of photos."""

import json

import pytest

from fewtags.errors import DataError
from fewtags.formats.locate import locate
from fewtags.formats.locate_end import find_by_end
from fewtags.formats.read import read

ADDRESSES = {
    r"..\..\label-studio\upload\4\a b.jpg": "windows, relative",
    r"C:\Users\me\set\a b.jpg": "windows, absolute",
    "/home/other/set/a b.jpg": "absolute",
    "https://host/data/upload/4/a%20b.jpg": "address",
    "https://host/a%20b.jpg?token=1f&size=2": "address with a query",
    "gs://bucket/set/a b.jpg": "bucket",
    "file:///home/other/a b.jpg": "file address",
    "/data/local-files/?d=set/a%20b.jpg": "served file",
    "set/a%20b.jpg?v=2": "query without an address",
    "set/0a1b2c3d-a b.jpg": "prefix of an upload",
}


@pytest.mark.parametrize("name", ADDRESSES, ids=ADDRESSES.values())
def test_names_that_point_elsewhere(tmp_path, make_photo, name):
    make_photo("images/a b.jpg")
    found = locate([name], file=tmp_path / "x.json", beside=[tmp_path, tmp_path / "images"])
    assert (found.keys, found.root) == (["a b.jpg"], tmp_path / "images")
    assert f"found by the end of the path, for example 'a b.jpg' for '{name}'" in found.notes.messages[1]


def test_as_much_of_the_end_counts_as_is_unique(tmp_path, make_photo):
    """s/1/a.jpg and s/2/a.jpg are told apart by their folder; t/a.jpg could be each of them."""
    make_photo("s/1/a.jpg")
    make_photo("s/2/a.jpg", 1)
    found, why = find_by_end(["x/2/a.jpg", "x/1/a.jpg"], tmp_path)
    assert (found, why) == ({"x/2/a.jpg": "s/2/a.jpg", "x/1/a.jpg": "s/1/a.jpg"}, {})
    found, why = find_by_end(["x/t/a.jpg"], tmp_path)
    assert (found, why) == ({}, {"x/t/a.jpg": "could be 's/1/a.jpg' or 's/2/a.jpg'; write more of the path"})


def test_two_names_do_not_share_a_photo(tmp_path, make_photo):
    make_photo("a.jpg")
    found, why = find_by_end(["x/a.jpg", "y/a.jpg"], tmp_path)
    assert not found
    assert why["x/a.jpg"] == "could be 'a.jpg', and so could 1 other name"
    assert find_by_end(["x/a.jpg"], tmp_path, taken=["a.jpg"]) == ({}, {})


def test_folders_of_other_splits_and_hidden_ones_are_not_searched(tmp_path, make_photo):
    for key in ("val/a.jpg", ".trash/b.jpg", "__MACOSX/c.jpg", "._d.jpg"):
        make_photo(key)
    assert find_by_end(["train/a.jpg", "b.jpg", "c.jpg", "._d.jpg"], tmp_path) == ({}, {})
    assert find_by_end(["x/a.jpg"], tmp_path, split="train") == ({}, {})
    assert find_by_end(["x/a.jpg"], tmp_path, split="val")[0] == {"x/a.jpg": "val/a.jpg"}


def test_another_folder_than_the_name_says_is_a_warning(tmp_path, make_photo):
    make_photo("p/siteB/a.jpg")
    found = locate(["siteA/a.jpg"], file=tmp_path / "x.csv", images=tmp_path / "p")
    assert found.keys == ["siteB/a.jpg"]
    assert (
        "1 photo was found in another folder than the name says, 'siteA/a.jpg = siteB/a.jpg'"
        in (found.notes.warnings[0])
    )


def test_a_few_missing_photos_are_missing(tmp_path, make_photo):
    """Most names exist as they are written, so the others are not searched elsewhere."""
    for name in ("s/a.jpg", "s/b.jpg", "t/c.jpg"):
        make_photo(name)
    found = locate(["s/a.jpg", "s/b.jpg", "s/c.jpg"], file=tmp_path / "x.csv", images=tmp_path)
    assert [e.item for e in found.notes.excluded] == ["s/c.jpg"]


def test_every_reader_finds_them(tmp_path, make_photo):
    for name in ("a.jpg", "b.jpg"):
        make_photo(f"images/{name}", size=(64, 48))
    names = ["C:\\x\\a.jpg", "https://host/up/b.jpg?x=1"]
    (tmp_path / "t.csv").write_text("image,tags\n" + "".join(f"{name},cat\n" for name in names))
    coco = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [{"id": i, "image_id": i, "category_id": 0} for i in range(2)],
        "categories": [{"id": 0, "name": "cat"}],
    }
    (tmp_path / "c.json").write_text(json.dumps(coco))
    choice = {"type": "choices", "from_name": "c", "value": {"choices": ["cat"]}}
    tasks = [{"data": {"image": name}, "annotations": [{"result": [choice]}]} for name in names]
    (tmp_path / "l.json").write_text(json.dumps(tasks))
    pages = "".join(f'<image id="{i}" name="{n}"><tag label="cat"/></image>' for i, n in enumerate(names))
    (tmp_path / "v.xml").write_text(f"<annotations>{pages}</annotations>")
    (tmp_path / "Annotations").mkdir()
    for i, name in enumerate(names):
        xml = f"<annotation><filename>{name}</filename><object><name>cat</name></object></annotation>"
        (tmp_path / f"Annotations/{i}.xml").write_text(xml)
    for path in ("t.csv", "c.json", "l.json", "v.xml", ""):
        table = read(tmp_path / path)
        assert (table.images.to_pylist(), len(table.facts)) == (["a.jpg", "b.jpg"], 2), path


def test_a_file_name_that_several_xml_files_give_is_not_used(tmp_path, make_photo):
    make_photo("JPEGImages/image.jpg")
    (tmp_path / "Annotations").mkdir()
    for i in range(2):
        xml = "<annotation><filename>image.jpg</filename><object><name>cat</name></object></annotation>"
        (tmp_path / f"Annotations/{i}.xml").write_text(xml)
    with pytest.raises(DataError, match="2 of 2 photos do not exist"):
        read(tmp_path, images=tmp_path / "JPEGImages")
