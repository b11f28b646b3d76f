from pathlib import Path

import pytest
from seen import facts, labels, readings

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.formats.voc import read_voc
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def box(x0, y0, x1, y1):
    return f"<bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox>"


BOX = box(21, 11, 60, 30)


def thing(name, difficult=None, corners=BOX):
    hard = "" if difficult is None else f"<difficult>{difficult}</difficult>"
    return f"<object><name>{name}</name>{hard}{corners}</object>"


@pytest.fixture
def write(tmp_path):
    """Writes an XML file; the photo is 200 x 100."""

    def write(
        stem, *objects, filename=None, size="<size><width>200</width><height>100</height><depth>3</depth></size>"
    ):
        file = tmp_path / "Annotations" / f"{stem}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        name = f"<filename>{filename or Path(stem).name + '.jpg'}</filename>"
        file.write_text(f"<annotation>{name}{size}{''.join(objects)}</annotation>")

    return write


@pytest.fixture
def write_list(tmp_path):
    def write_list(name, text):
        file = tmp_path / "ImageSets/Main" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write_list


def test_objects_and_boxes(tmp_path, write):
    """Pixels count from 1 and the last is inside: xmin 21, xmax 60 of 200 is 20 to 60, .1 to .3; all is 1 to 200."""
    write("b", thing("dog"), thing("cat", 0, box(1, 1, 200, 100)), thing("dog", 0, box(101, 51, 150, 75)))
    write("a")
    table = read_voc(tmp_path)
    assert table.classes.ids == ("cat", "dog")
    assert table.images.to_pylist() == ["a.jpg", "b.jpg"]
    assert facts(table) == [
        ("b.jpg", "dog", P, (0.1, 0.1, 0.3, 0.3)),
        ("b.jpg", "cat", P, (0.0, 0.0, 1.0, 1.0)),
        ("b.jpg", "dog", P, (0.5, 0.5, 0.75, 0.75)),
    ]
    assert readings(table) == {
        "Annotations, object": ("positive", 3),
        "Annotations, photo without object": ("kept", 1),
        "class that is not named in a photo": ("unknown", 2),
    }
    assert (table.root, table.split_names) == (None, None)


@pytest.mark.parametrize(
    ("difficult", "expected"),
    [
        ("unknown", {"cat": P}),
        ("positive", {"cat": P, "dog": P}),
        ("negative", {"cat": P, "dog": N}),
    ],
)
def test_difficult_objects(tmp_path, write, difficult, expected):
    """The difficult cat beside a plain one changes nothing."""
    write("a", thing("dog", 1), thing("cat", 1), thing("cat", 0))
    table = read_voc(tmp_path, options=ReadOptions(difficult=difficult))
    assert labels(table) == {"a.jpg": expected}
    assert readings(table)["Annotations, object with difficult = 1"] == (difficult, 2)


def test_complete_leaves_difficult_classes_open(tmp_path, write):
    write("a", thing("dog", 1), thing("cat"))
    write("b", thing("cat", 1), thing("cat"), thing("cow"))
    write("c")
    table = read_voc(tmp_path, options=ReadOptions(complete=True))
    assert labels(table) == {
        "a.jpg": {"cat": P, "cow": N},
        "b.jpg": {"cat": P, "cow": P, "dog": N},
        "c.jpg": {"cat": N, "cow": N, "dog": N},
    }


def test_lists_of_classes(tmp_path, write_list):
    write_list("cat_train", "000005 -1\n000007  0\n000009  1\n")
    write_list("potted_plant_trainval", "000005 1\n\n000011 -1\n")
    table = read_voc(tmp_path)
    assert table.classes.ids == ("cat", "potted_plant")
    assert labels(table) == {
        "000005.jpg": {"cat": N, "potted_plant": P},
        "000007.jpg": {},
        "000009.jpg": {"cat": P},
        "000011.jpg": {"potted_plant": N},
    }
    assert readings(table) == {
        "ImageSets/Main, 1": ("positive", 2),
        "ImageSets/Main, 0": ("difficult: unknown", 1),
        "ImageSets/Main, -1": ("negative", 2),
        "class that is not named in a photo": ("unknown", 3),
    }
    hard = read_voc(tmp_path, options=ReadOptions(difficult="positive"))
    assert labels(hard)["000007.jpg"] == {"cat": P}


def test_lists_of_splits(tmp_path, write, write_list):
    """d is in trainval only, which counts as train; e is in no list; f is listed without annotation."""
    for stem in "abcde":
        write(stem, thing("cat"))
    write_list("train", "a\n")
    write_list("val", "b\na\n")
    write_list("trainval", "a\nb\nd\n")
    write_list("test", "c\nf\n")
    table = read_voc(tmp_path)
    assert dict(zip(table.images.to_pylist(), table.split_names.to_pylist(), strict=True)) == {
        "a.jpg": "train",
        "b.jpg": "val",
        "c.jpg": "test",
        "d.jpg": "train",
        "e.jpg": "",
        "f.jpg": "test",
    }
    assert labels(table)["f.jpg"] == {}
    assert readings(table)["ImageSets/Main/trainval.txt"] == ("split 'train'", 3)
    assert f"{tmp_path.name}: 1 photo is in several of the lists train, val and test; the first of them counts" in (
        table.notes.messages
    )
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("a", "is in several of the lists train, val and test; the first of them counts", "splits")
    ]


def test_xml_and_list_say_the_same_once(tmp_path, write, write_list):
    write("a", thing("cat"))
    write_list("cat_train", "a 1\n")
    write_list("cat_trainval", "a 1\n")
    assert facts(read_voc(tmp_path)) == [("a.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3))]


def test_xml_and_list_contradict_each_other(tmp_path, write, write_list):
    write("a", thing("cat"))
    write_list("cat_train", "a -1\n")
    table = read_voc(tmp_path)
    assert labels(table) == {"a.jpg": {}}
    assert table.summary().contradictions == 1


def test_photos_are_called_like_the_xml_files(tmp_path, write, make_photo):
    """The name in the file is of no use: tools write whatever the photo was called at the time."""
    write("sub/a", thing("cat"), filename="IMG_1.png")
    write("b.v1", thing("cat"))
    make_photo("JPEGImages/sub/a.jpeg", 1, size=(200, 100))
    make_photo("JPEGImages/b.v1.jpg", 2, size=(200, 100))
    make_photo("JPEGImages/without.jpg", 3)
    table = read_voc(tmp_path)
    assert table.root == tmp_path / "JPEGImages"
    assert labels(table) == {"b.v1.jpg": {"cat": P}, "sub/a.jpeg": {"cat": P}, "without.jpg": {}}
    assert f"{table.root}: 1 photo has no XML file: nothing is known there" in table.notes.messages


def test_photos_without_xml_stay_open_even_if_complete(tmp_path, write, make_photo):
    write("a", thing("cat"), thing("dog"))
    make_photo("JPEGImages/a.jpg", 1)
    make_photo("JPEGImages/b.jpg", 2)
    table = read_voc(tmp_path, options=ReadOptions(complete=True))
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P}, "b.jpg": {}}


def test_photos_that_no_list_names_are_left_alone(tmp_path, write, write_list, make_photo):
    write("a", thing("cat"))
    write_list("train", "a\n")
    make_photo("JPEGImages/a.jpg", 1)
    make_photo("JPEGImages/b.jpg", 2)
    assert read_voc(tmp_path).images.to_pylist() == ["a.jpg"]


def test_a_folder_of_xml_files_beside_their_photos(tmp_path, write, make_photo):
    write("a", thing("cat"))
    make_photo("Annotations/a.png", size=(200, 100))
    for folder in (tmp_path / "Annotations", tmp_path):
        table = read_voc(folder)
        assert (table.root, labels(table)) == (tmp_path / "Annotations", {"a.png": {"cat": P}})
    (tmp_path / "Annotations").rename(tmp_path / "mine")
    assert labels(read_voc(tmp_path / "mine")) == {"a.png": {"cat": P}}


def test_a_folder_of_photos_that_is_given(tmp_path, write, make_photo):
    write("a", thing("cat"))
    write("b", thing("cat"))
    write("gone", thing("dog"))
    for key in ("p/a.jpg", "p/b.jpg", "p/more.jpg"):
        make_photo(key)
    table = read_voc(tmp_path, tmp_path / "p")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"cat": P}}
    assert table.classes.ids == ("cat", "dog")
    assert [e.item for e in table.notes.excluded] == ["gone"]


def test_boxes_follow_a_photo_that_exif_turns(tmp_path, write, make_photo):
    """Stored 200 x 100 with orientation 8: x' = y, y' = 1 - x."""
    write("a", thing("cat"))
    make_photo("JPEGImages/a.jpg", size=(200, 100), orientation=8)
    assert facts(read_voc(tmp_path)) == [("a.jpg", "cat", P, (0.1, 0.7, 0.3, 0.9))]


@pytest.mark.parametrize(
    ("corners", "fault"),
    [
        (box(60, 11, 21, 30), "its box has no width or no height"),
        (box(300, 11, 340, 30), "its box lies outside the photo"),
        (box("x", 11, 60, 30), "its box has coordinates that are not numbers"),
        (box("nan", "nan", "nan", "nan"), "its box has coordinates that are not numbers"),
        ("<bndbox/>", "its box has coordinates that are not numbers"),
    ],
)
def test_a_box_that_cannot_be_used_leaves_the_label(tmp_path, write, corners, fault):
    write("a", thing("dog", corners=""), thing("cat", corners=corners))
    table = read_voc(tmp_path)
    assert facts(table) == [("a.jpg", "dog", P, None), ("a.jpg", "cat", P, None)]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("a.xml, object 2 (cat)", f"{fault}; its label is kept")
    ]


def test_boxes_of_parts_are_not_boxes_of_the_object(tmp_path, write):
    part = f"<part><name>head</name>{box(1, 1, 2, 2)}</part>"
    write("a", f"<object><name>person</name>{part}{box(21, 11, 60, 30)}</object>")
    table = read_voc(tmp_path)
    assert facts(table) == [("a.jpg", "person", P, (0.1, 0.1, 0.3, 0.3))]


def test_objects_without_a_name_are_left_out(tmp_path, write):
    write("a", thing(""), thing("cat"))
    table = read_voc(tmp_path)
    assert len(table.facts) == 1
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("a.xml", "1 objects have no name", "unusable")
    ]


def test_a_missing_size(tmp_path, write):
    write("a", thing("cat"), size="")
    assert facts(read_voc(tmp_path)) == [("a.jpg", "cat", P, None)]


BOMB = """<!DOCTYPE annotation [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]>
<annotation><filename>&c;</filename></annotation>"""
OUTWARD = (
    '<!DOCTYPE annotation [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>'
)


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (BOMB, "defines XML entities, which annotations do not need and attacks are made of"),
        (OUTWARD, "defines XML entities, which annotations do not need and attacks are made of"),
        ("<annotation><object>", "is not valid XML (no element found: line 1, column 20)"),
        ("", "is not valid XML (no element found: line 1, column 0)"),
        ("<html/>", "begins with <html> instead of <annotation>"),
    ],
)
def test_broken_and_dangerous_xml(tmp_path, write, text, trouble):
    write("a", thing("cat"))
    for stem in ("b", "c"):
        (tmp_path / f"Annotations/{stem}.xml").write_text(text)
    with pytest.raises(DataError) as error:
        read_voc(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/Annotations/b.xml: {trouble} (1 other XML files cannot be read either); fix or remove it."
    )


def test_broken_encodings(tmp_path, write):
    write("a", thing("cat"))
    (tmp_path / "Annotations/b.xml").write_bytes(b'<?xml version="1.0" encoding="klingon"?><annotation/>')
    with pytest.raises(DataError, match=r"b\.xml: .*fix or remove it\.$"):
        read_voc(tmp_path)


def test_broken_lists(tmp_path, write_list):
    write_list("cat_train", "a 1\nb 2\n")
    with pytest.raises(DataError) as error:
        read_voc(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/ImageSets/Main/cat_train.txt row 2: 'b 2'; expected a photo and 1, 0 or -1, for example "
        "'000005 -1'."
    )
    (tmp_path / "ImageSets/Main/cat_train.txt").write_bytes(b"\xff 1\n")
    with pytest.raises(DataError, match=r"cat_train\.txt: not UTF-8 text \(byte 0\); save it as UTF-8\."):
        read_voc(tmp_path)


def test_nothing_to_learn(tmp_path, write):
    with pytest.raises(
        DataError, match=r"no XML file or class list here names a class; is this a folder in VOC layout\?"
    ):
        read_voc(tmp_path)
    write("a")
    with pytest.raises(DataError, match="no XML file or class list here names a class"):
        read_voc(tmp_path)
    with pytest.raises(DataError, match="is not a folder; pass the one with Annotations"):
        read_voc(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("word", "state"),
    [("true", U), ("Yes", U), ("1.0", U), ("", P), ("false", P), ("Unspecified", P), ("2", P), ("n/a", P)],
)
def test_difficult_in_other_words(tmp_path, write, word, state):
    """A word that says neither yes nor no is taken as 0, with a reading; it does not end the data set."""
    write("a", thing("cat", word), thing("dog"))
    table = read_voc(tmp_path)
    assert labels(table)["a.jpg"] == {"dog": P} | ({} if state == U else {"cat": state})
    unclear = {value: meaning for value, meaning in readings(table).items() if value.startswith("difficult = ")}
    expected = set() if word in ("true", "Yes", "1.0", "", "false") else {f"difficult = {word!r}"}
    assert {*unclear} == expected


def test_folders_of_splits_without_lists(tmp_path, make_photo):
    """Roboflow writes photos and XML files into train, valid and test; hidden files are counted."""
    for split in ("train", "valid", "test_set"):
        make_photo(f"{split}/a.jpg")
        (tmp_path / split / "a.xml").write_text(f"<annotation>{thing('cat')}</annotation>")
        (tmp_path / split / "._a.xml").write_text("Mac OS X")
    table = read(tmp_path)
    assert table.split_names.to_pylist() == ["test", "train", "val"]
    assert readings(table)["hidden files"] == ("skipped", 3)


def test_lists_of_other_names(tmp_path, write, write_list):
    for stem in "abc":
        write(stem, thing("cat"))
    write_list("training", "a\n")
    write_list("my_validation", "b\n")
    write_list("._val", "\0")
    write_list("fold1", "c\n")
    (tmp_path / "ImageSets/Main/my_validation.txt").rename(tmp_path / "ImageSets/Main/validation_set.txt")
    table = read_voc(tmp_path)
    assert table.split_names.to_pylist() == ["train", "val", ""]
    assert "the lists 'fold1.txt' are not read" in table.notes.warnings[0]


def test_spellings_of_the_folder_and_of_endings(tmp_path, write, make_photo):
    """A folder `annotations` beside `images` was read as the class "images"."""
    write("a", thing("dog"))
    write("b", thing("cat"))
    (tmp_path / "Annotations/b.xml").rename(tmp_path / "Annotations/b.XML")
    (tmp_path / "Annotations").rename(tmp_path / "annotations")
    for n, name in enumerate("ab"):
        make_photo(f"images/{name}.jpg", n)
    table = read(tmp_path)
    assert table.notes.messages[0] == f"{tmp_path.name}: read as voc, annotations/ has VOC files"
    assert labels(table) == {"a.jpg": {"dog": P}, "b.jpg": {"cat": P}}


def rotated(cx, cy, w, h, angle):
    tags = {"cx": cx, "cy": cy, "w": w, "h": h, "angle": angle}
    return f"<robndbox>{''.join(f'<{tag}>{n}</{tag}>' for tag, n in tags.items())}</robndbox>"


SQUARE = "<polygon><x1>20</x1><y1>10</y1><x2>60</x2><y2>10</y2><x3>20</x3><y3>30</y3></polygon>"
FOUR = "".join(
    f"<x_{side}>{x}</x_{side}><y_{side}>{y}</y_{side}>"
    for side, x, y in (("left_top", 40, 10), ("right_top", 60, 20), ("right_bottom", 40, 30), ("left_bottom", 20, 20))
)
INSIDE = (0.1, 0.1, 0.3, 0.3)


@pytest.mark.parametrize(
    ("place", "corners"),
    [
        (SQUARE, INSIDE),
        (
            "<polygon><user>x</user><pt><x>20</x><y>10</y></pt><pt><x>60</x><y>30</y></pt></polygon>",
            INSIDE,
        ),
        (SQUARE.replace("60", "40") + SQUARE.replace(">20<", ">40<"), INSIDE),
        (f"<robndbox>{FOUR}</robndbox>", INSIDE),
        (rotated(40, 20, 40, 20, 0), INSIDE),
        (rotated(40, 20, 20, 40, 1.5707963), INSIDE),
        (rotated(40, 20, 40, 20, -3.1415927), INSIDE),
        (box(1, 1, 20, 10) + SQUARE, (0.0, 0.0, 0.1, 0.1)),
        ("<bndbox/>" + SQUARE, INSIDE),
        ("<segmented>1</segmented>", None),
    ],
)
def test_outlines_instead_of_boxes(tmp_path, write, place, corners):
    """Corners count from 0: 20 to 60 of 200, and 10 to 30 of 100. A box beside an outline is the place."""
    write("a", thing("cat", corners=place))
    table = read_voc(tmp_path)
    assert facts(table) == [("a.jpg", "cat", P, corners)]
    assert table.notes.excluded == ()


@pytest.mark.parametrize(
    ("place", "kind", "reason"),
    [
        (SQUARE.replace(">60<", ">x<"), "bad-place", "coordinates that are not numbers"),
        ("<polygon/>", "bad-place", "coordinates that are not numbers"),
        (rotated(40, 20, -40, 20, 0), "bad-place", "coordinates that are not numbers"),
        (rotated(40, 20, 40, "", 0), "bad-place", "coordinates that are not numbers"),
        (rotated(40, 20, 40, 20, 45), "unread-place", "the angle of its <robndbox> is 45, but angles are in radians"),
        ("<ellipse><cx>4</cx></ellipse>", "unread-place", "its place is written as <ellipse>, which is not read"),
    ],
)
def test_places_that_cannot_be_read_are_listed(tmp_path, write, place, kind, reason):
    write("a", thing("cat", corners=place))
    table = read_voc(tmp_path)
    assert facts(table) == [("a.jpg", "cat", P, None)]
    ((excluded),) = table.notes.excluded
    assert (excluded.item, excluded.kind) == ("a.xml, object 1 (cat)", kind)
    assert reason in excluded.reason


def test_readings_of_outlines_and_deleted_objects(tmp_path, write):
    gone = "<deleted>1</deleted>"
    write("a", thing("cat", corners=SQUARE), thing("cat", corners=rotated(40, 20, 4, 4, 1)), thing("dog", corners=gone))
    write("b", thing("cat", corners="<deleted>0</deleted>"))
    table = read_voc(tmp_path)
    assert table.classes.ids == ("cat",)
    found = readings(table)
    assert found["Annotations, object with a polygon"] == ("its bounding box", 1)
    assert found["Annotations, object with a robndbox"] == ("its bounding box", 1)
    assert found["Annotations, object with deleted = 1"] == ("left out", 1)
    assert found["Annotations, object without a place"] == ("its label only", 1)


def test_results_of_a_detector_are_refused(tmp_path, write):
    write("a", thing("cat"), thing("cat", corners=BOX + "<confidence>0.5</confidence>"))
    with pytest.raises(DataError, match=r"'confidence' between 0 and 1 \(0\.5 to 0\.5\) in 1 of 2 objects"):
        read_voc(tmp_path)
