"""LabelMe: a JSON file for each photo, beside it or in a folder of its own."""

import json

import pytest
from annotated import save_photo, write_text
from seen import facts, labels, readings

from fewtags.errors import DataError
from fewtags.formats.labelme import read_labelme
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import detect, read
from fewtags.labels import Label

P, N = Label.POSITIVE, Label.NEGATIVE
BOX = (0.1, 0.1, 0.3, 0.3)
CORNERS = [[20, 10], [60, 30]]


def shape(label="cat", kind="rectangle", points=CORNERS, **more):
    return {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}, **more}


@pytest.fixture
def write(tmp_path):
    """Writes a file of LabelMe for a photo of 200 x 100; `drop` are keys that are left out."""

    def write(name, *shapes, path=None, drop=(), **more):
        content = {"version": "5.4.1", "flags": {}, "shapes": [*shapes], "imagePath": path or f"{name}.jpg"}
        content |= {"imageData": None, "imageHeight": 100, "imageWidth": 200, **more}
        content = {key: value for key, value in content.items() if key not in drop}
        return write_text(tmp_path / f"{name}.json", json.dumps(content))

    return write


@pytest.mark.parametrize(
    ("kind", "points", "corners"),
    [
        ("rectangle", CORNERS, BOX),
        ("rectangle", [[60, 10], [20, 30]], BOX),
        ("rectangle", [[20, 10], [60, 10], [60, 30], [20, 30]], BOX),
        ("polygon", [[20, 10], [60, 20], [40, 30]], BOX),
        (None, [[20, 10], [60, 20], [40, 30]], BOX),
        ("Polygon", [[20, 10], [60, 20], [40, 30]], BOX),
        ("circle", [[40, 20], [46, 28]], (0.15, 0.1, 0.25, 0.3)),
        ("line", CORNERS, BOX),
        ("linestrip", [[20, 10], [60, 20], [40, 30]], BOX),
        ("mask", [[20, 10], [59, 29]], BOX),
        ("rotation", [[20, 20], [40, 10], [60, 20], [40, 30]], BOX),
        ("point", [[20, 10]], (0.1, 0.1, 0.1, 0.1)),
    ],
)
def test_shapes(write, kind, points, corners):
    """The photo is 200 x 100. A circle has its centre and a point on it: radius 10. A mask includes its last pixel."""
    table = read(write("a", shape(kind=kind, points=points)).parent)
    assert facts(table) == [("a.jpg", "cat", P, corners)]
    assert (table.notes.excluded, table.notes.warnings) == ((), ())


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        (shape(points=[]), "bad-place", "coordinates that are not numbers"),
        (shape(points=None), "bad-place", "coordinates that are not numbers"),
        (shape(points=[[1, 2], [3]]), "bad-place", "coordinates that are not numbers"),
        (shape(points=[["x", 2], [3, 4]]), "bad-place", "coordinates that are not numbers"),
        (shape(points=[[1, 2]]), "bad-place", "no width or no height"),
        (shape(kind="circle", points=[[1, 2]]), "bad-place", "coordinates that are not numbers"),
        (shape(kind="point", points=[]), "bad-place", "coordinates that are not numbers"),
        (shape(kind="cuboid"), "unread-place", "its shape_type 'cuboid' is not read"),
        (shape(points=[[300, 10], [400, 20]]), "bad-place", "outside the photo"),
        (shape(label=""), "unusable", "has no label"),
        (shape(label=None), "unusable", "has no label"),
        (shape(label=["cat"]), "unusable", "has no label"),
        ("cat", "unusable", "is 'cat', not an object"),
    ],
)
def test_shapes_that_cannot_be_used_are_listed(write, given, kind, reason):
    table = read(write("a", shape("dog"), given).parent)
    ((excluded),) = table.notes.excluded
    assert (excluded.kind, excluded.item.partition(" (")[0]) == (kind, "a.json, shape 2")
    assert reason in excluded.reason
    assert labels(table)["a.jpg"] == ({"dog": P} if kind == "unusable" else {"cat": P, "dog": P})


def test_flags_of_photos_are_tags(write, tmp_path):
    write("a", flags={"cat": True, "dog": False, "owl": False})
    write("b", shape("dog", flags={"blurred": True}), flags={"cat": False})
    write("c", flags={})
    table = read(tmp_path)
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"dog": P}, "c.jpg": {}}
    assert readings(table) == {
        "flag 'cat' = true": ("positive", 1),
        "flag 'cat' = false": ("unknown, nobody has ticked it", 1),
        "flag 'dog' = false": ("unknown, nobody has ticked it", 1),
        "flag 'owl' = false": ("unknown, nobody has ticked it", 1),
        "shape 'dog', rectangle": ("positive, with its box", 1),
        "attribute 'blurred' = 'True'": ("not used", 1),
        "class that is not named in a file": ("unknown", 4),
        "file without a shape or a flag that is true": ("nothing known", 1),
    }
    complete = read(tmp_path, options=ReadOptions(complete=True))
    assert labels(complete) == {
        "a.jpg": {"cat": P, "dog": N, "owl": N},
        "b.jpg": {"cat": N, "dog": P, "owl": N},
        "c.jpg": {"cat": N, "dog": N, "owl": N},
    }


def test_flags_that_are_something_else(write, tmp_path):
    write("a", flags={"cat": 1, "dog": 0, "owl": None, "emu": "yes", "": True})
    table = read(tmp_path)
    assert labels(table) == {"a.jpg": {"cat": P}}
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("a.json, flag 'emu'", "is 'yes'; expected true or false"),
        ("a.json", "has a flag without a name"),
    ]


def test_names_for_none_and_absence(write, tmp_path):
    write("a", flags={"none": True})
    write("b", shape("cat"), shape("__ignore__"), flags={"-dog": True})
    write("c", shape("dog"))
    table = read(tmp_path)
    assert labels(table) == {"a.jpg": {"cat": N, "dog": N}, "b.jpg": {"cat": P, "dog": N}, "c.jpg": {"dog": P}}
    assert readings(table)["shape '__ignore__'"] == ("left out", 1)


@pytest.mark.parametrize(
    ("file", "named", "photo"),
    [
        ("a", "a.jpg", "a.jpg"),
        ("a", r"C:\Users\ana\set\a.jpg", "a.jpg"),
        ("a", "/home/ana/set/a.jpg", "a.jpg"),
        ("a", "old_name.jpg", "a.jpg"),
        ("a", "", "a.jpg"),
        ("a", "A.JPG", "a.jpg"),
        ("labels/a", r"..\images\a.jpg", "images/a.jpg"),
        ("labels/a", "../images/a.jpg", "images/a.jpg"),
        ("labels/a", "a.jpg", "images/a.jpg"),
        ("labels/a", "a.jpg", "a.jpg"),
        ("labels/train/a", "a.jpg", "images/train/a.jpg"),
        ("labels/train/a", r"..\..\images\train\a.jpg", "images/train/a.jpg"),
        ("batch 1/a", "a.jpg", "batch 1/a.jpg"),
        ("labels/a", r"..\images\sub\a.jpg", "images/sub/a.jpg"),
    ],
)
def test_where_the_photo_is(write, tmp_path, file, named, photo):
    save_photo(tmp_path / photo, (200, 100))
    write(file, shape(), path=named or " ")
    table = read(tmp_path)
    assert [str((table.root / key).relative_to(tmp_path)) for key in table.images.to_pylist()] == [photo]
    assert [fact[1:] for fact in facts(table)] == [("cat", P, BOX)]
    assert table.notes.warnings == ()


def test_photos_in_a_folder_that_is_given(write, tmp_path):
    save_photo(tmp_path / "photos/a.jpg", (200, 100))
    write("json/a", shape(), path=r"..\raw\a.jpg")
    table = read(tmp_path / "json", images=tmp_path / "photos")
    assert (table.root, table.images.to_pylist()) == (tmp_path / "photos", ["a.jpg"])


def test_equal_names_in_folders_stay_apart(write, tmp_path):
    for folder, content in (("train", 0), ("val", 90)):
        save_photo(tmp_path / folder / "a.jpg", (200, 100), content)
        write(f"{folder}/a", shape("cat" if folder == "train" else "dog"), path="a.jpg")
    table = read(tmp_path)
    assert labels(table) == {"train/a.jpg": {"cat": P}, "val/a.jpg": {"dog": P}}
    assert table.split_names.to_pylist() == ["train", "val"]


def test_two_files_about_one_photo_are_joined(write, tmp_path):
    save_photo(tmp_path / "a.jpg", (200, 100))
    write("a", shape())
    write("a 2", shape("dog"), path="a.jpg")
    assert labels(read(tmp_path)) == {"a.jpg": {"cat": P, "dog": P}}


def test_a_photo_that_is_missing_is_named_with_the_folder(write, tmp_path):
    for n, name in enumerate("abc"):
        write(name, shape())
        if name != "c":
            save_photo(tmp_path / f"{name}.jpg", (200, 100), 50 * n)
    table = read(tmp_path)
    assert [e.item for e in table.notes.excluded] == ["c.jpg"]
    assert f"{tmp_path.name}: 1 of 3 photos left out: not found" in table.notes.messages


@pytest.mark.parametrize("more", [{"kind": "mask", "mask": "???"}, {"kind": "mask"}, {"kind": "polygon"}])
def test_outlines_that_cannot_be_drawn_are_counted(write, tmp_path, more):
    table = read(write("a", shape(**more)), options=ReadOptions(places="points"))
    assert any("1 in boxes without a mask (1 has an outline that is damaged" in m for m in table.notes.messages)


def test_photos_without_a_file_are_kept(write, tmp_path):
    for n, name in enumerate("ab"):
        save_photo(tmp_path / f"{name}.jpg", (200, 100), 50 * n)
    write("a", shape())
    table = read(tmp_path)
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {}}
    assert any("1 photo has no file of LabelMe: nothing is known there" in m for m in table.notes.messages)
    complete = read(tmp_path, options=ReadOptions(complete=True))
    assert complete.complete_set.tolist() == [0, -1]


def test_embedded_photos_are_dropped_and_other_files_are_named(write, tmp_path):
    write("a", shape(), imageData="A" * 200_000)
    write_text(tmp_path / "config.json", '{"a": 1}')
    write_text(tmp_path / "list.json", "[1]")
    table = read(tmp_path)
    where = tmp_path.name
    assert f"{where}: 1 file has its photo embedded (imageData), which is not used" in table.notes.messages
    assert any(
        "2 JSON files are not of LabelMe, and not read: 'config.json', 'list.json'" in m for m in table.notes.messages
    )


@pytest.mark.parametrize("drop", [("imageHeight", "imageWidth"), ("flags",), ("imageData", "version"), ("imagePath",)])
def test_missing_keys(write, tmp_path, drop):
    save_photo(tmp_path / "a.jpg", (200, 100))
    table = read(write("a", shape(), drop=drop))
    assert facts(table) == [("a.jpg", "cat", P, BOX)]


def test_a_photo_of_another_shape_is_a_warning(write, tmp_path):
    save_photo(tmp_path / "a.jpg", (100, 100))
    (warning,) = read(write("a", shape())).notes.warnings
    assert "another aspect ratio than the file says" in warning


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path, encoding):
    content = {"shapes": [shape("Käse")], "imagePath": "ä.jpg", "imageWidth": 200, "imageHeight": 100}
    (tmp_path / "ä.JSON").write_bytes(json.dumps(content, ensure_ascii=False).encode(encoding))
    assert labels(read(tmp_path)) == {"ä.jpg": {"Käse": P}}


@pytest.mark.parametrize("order", [False, True])
def test_large_files_are_recognised_by_their_ends(tmp_path, order):
    content = {"version": "5", "flags": {}, "shapes": [shape()] * 900, "imagePath": "a.jpg", "imageData": "A" * 200_000}
    content |= {"imageHeight": 100, "imageWidth": 200}
    file = write_text(tmp_path / "a.json", json.dumps(content, sort_keys=order))
    assert detect(file)[0] == detect(tmp_path)[0] == "labelme"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"shapes": {}, "imagePath": "a.jpg"}', "no shape and no flag that is true names a class"),
        ('{"shapes": {"a": 1}, "imagePath": "a.jpg"}', "shapes is {'a': 1}; expected a list"),
        ('{"shapes": [], "flags": ["cat"], "imagePath": "a.jpg"}', r"flags is \['cat'\]; expected an object"),
        ('{"shapes": [], "flags": {"cat": false}, "imagePath": "a.jpg"}', "no shape and no flag that is true"),
        ('{"shapes": [{"label": "cat"', "not valid JSON"),
        ("{}", "there is no JSON file of LabelMe"),
        ("", "not valid JSON"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_labelme(write_text(tmp_path / "a.json", text))


def test_a_folder_without_files(tmp_path):
    with pytest.raises(DataError, match="there is no JSON file of LabelMe"):
        read(tmp_path, format="labelme")


def test_results_of_a_detector_are_refused(write):
    """X-AnyLabeling writes the score of a shape that a model drew, and null for one that a person drew."""
    file = write("a", shape(score=None), shape("dog", score=0.75))
    with pytest.raises(DataError, match=r"'score' between 0 and 1 \(0\.75 to 0\.75\) in 1 of 2 shapes"):
        read(file)


def test_class_folders_with_files_of_labelme_are_asked_about(write, tmp_path):
    for n, name in enumerate(("cat/1", "dog/2")):
        save_photo(tmp_path / f"{name}.jpg", (200, 100), 50 * n)
        write(name, shape("ear"), path=f"{name[-1]}.jpg")
    with pytest.raises(
        DataError, match=r"photos in folders that may be classes \('cat', 'dog'\)\. Pass format='labelme'"
    ):
        read(tmp_path)
    assert read(tmp_path, format="labelme").classes.ids == ("ear",)
    assert read(tmp_path, format="folder").classes.ids == ("cat", "dog")


@pytest.mark.parametrize(
    "text",
    [
        '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "shapes"}]}',
        '{"categories": {"label": {"labels": [{"name": "a"}]}}, "items": [{"id": "imagePath", "shapes": []}]}',
        '{"shapes": [], "title": "a drawing"}',
        '[{"shapes": [], "imagePath": "a.jpg"}]',
    ],
)
def test_files_of_others_are_not_taken(tmp_path, text):
    assert detect(write_text(tmp_path / "a.json", text))[0] != "labelme"


def test_yolo_beside_labelme_is_asked_about(write, tmp_path):
    write("images/a", shape(), path="a.jpg")
    write_text(tmp_path / "labels/a.txt", "0 .5 .5 .2 .2")
    with pytest.raises(DataError, match=r"could be yolo .* and labelme .*; pass the one to read"):
        read(tmp_path)
