"""Points in text tables; labels and boxes, one a row, are tested through `read_csv` in test_csv.py."""

import pytest
from seen import labels

from fewtags.errors import DataError
from fewtags.formats.csv import read_csv
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


@pytest.fixture
def read(tmp_path):
    def read(text, images=None, **options):
        file = tmp_path / "labels.csv"
        file.write_text(text)
        return read_csv(file, images, ReadOptions(**options))

    return read


def points(table):
    """(image, class, x, y) of each fact; both corners of a point are equal."""
    found = []
    for f in table.facts.to_pylist():
        assert (f["x0"], f["y0"]) == (f["x1"], f["y1"])
        place = (None, None) if f["x0"] is None else (round(f["x0"], 6), round(f["y0"], 6))
        found.append((table.images[f["image"]].as_py(), table.classes.ids[f["class"]], *place))
    return found


def readings(table):
    return {(r.where.removeprefix("labels.csv, "), r.value): (r.meaning, r.count) for r in table.notes.readings}


def test_points_in_fractions(read):
    text = "image,class,x,y\nb.jpg,dog,0.25,0.5\nb.jpg,dog,1,0\na.jpg,cat,,\nc.jpg,,,\nd.jpg,None,,\n"
    table = read(text, points="fractions")
    assert points(table) == [
        ("b.jpg", "dog", 0.25, 0.5),
        ("b.jpg", "dog", 1.0, 0.0),
        ("a.jpg", "cat", None, None),
    ]
    assert labels(table) == {"b.jpg": {"dog": P}, "a.jpg": {"cat": P}, "c.jpg": {}, "d.jpg": {"cat": N, "dog": N}}
    assert readings(table) == {
        ("column 'class'", "(blank)"): ("nothing known", 1),
        ("column 'class'", "None"): ("none of the classes", 1),
        ("column 'class'", "cat"): ("positive", 1),
        ("column 'class'", "dog"): ("positive", 2),
        ("columns 'x' and 'y'", "x, y"): ("a point, in fractions", 2),
        ("columns 'x' and 'y'", "(blank)"): ("no region", 3),
    }
    assert read(text, points="fractions", none_folder="").classes.ids == ("None", "cat", "dog")
    assert labels(read(text, points="fractions", complete=True))["b.jpg"] == {"cat": N, "dog": P}


def test_points_in_pixels_of_the_photo(read, make_photo):
    """The photo is 200 x 100. One that is turned is 100 x 200 to whoever points at it."""
    make_photo("a.jpg", 1, size=(200, 100))
    make_photo("b.jpg", 2, size=(200, 100), orientation=6)
    table = read("image,class,x_px,y_px\na.jpg,cat,50,25\nb.jpg,cat,50,50\n")
    assert points(table) == [("a.jpg", "cat", 0.25, 0.25), ("b.jpg", "cat", 0.5, 0.25)]
    assert readings(table)["columns 'x_px' and 'y_px'", "x, y"] == ("a point, in pixels", 2)
    assert (
        "1 photo is turned or mirrored by EXIF; the file does not show the frame of the points, and the "
        "displayed one is assumed" in table.notes.messages
    )


def test_points_in_pixels_of_a_size_that_is_given(read, make_photo):
    """100 x 50 is a smaller copy of "a", and of "b" as it is stored, whose orientation 6 has x' = 1 - y, y' = x."""
    make_photo("a.jpg", 1, size=(200, 100))
    make_photo("b.jpg", 2, size=(200, 100), orientation=6)
    table = read("image,class,x,y,width,height\na.jpg,cat,50,25,100,50\nb.jpg,cat,25,10,100,50\n", points="pixels")
    assert points(table) == [("a.jpg", "cat", 0.5, 0.5), ("b.jpg", "cat", 0.8, 0.25)]
    assert "1 photo is turned by EXIF, and the points with the photo" in table.notes.messages


@pytest.mark.parametrize(
    ("rows", "trouble"),
    [
        ("a.jpg,cat,5,5,wide,100", "row 2, column 'width': 'wide' is not a number of pixels; fix the cell, or leave"),
        (
            "a.jpg,cat,5,5,200,0",
            "row 2, column 'height': '0' is not a number of pixels; fix the cell, or leave it blank.",
        ),
        (
            "a.jpg,cat,5,5,200,100\na.jpg,dog,5,5,400,100",
            "row 3, column 'width': '400', but an earlier row has 200; fix one of them.",
        ),
        ("a.jpg,cat,1_0,5,200,100", "row 2, column 'x_px': '1_0' is not a number of pixels; fix the cell, or leave it"),
        ("a.jpg,cat,\u0663,5,200,100", "row 2, column 'x_px': '\u0663' is not a number of pixels; fix the cell"),
    ],
)
def test_numbers_that_would_move_points_are_refused(read, tmp_path, rows, trouble):
    with pytest.raises(DataError) as error:
        read(f"image,class,x_px,y_px,width,height\n{rows}\n")
    assert str(error.value).startswith(f"{tmp_path}/labels.csv {trouble}")


def test_a_blank_size_is_that_of_another_row(read):
    table = read("image,class,x_px,y_px,width,height\na.jpg,cat,50,25,200,100\na.jpg,dog,100,50,,\n")
    assert points(table) == [("a.jpg", "cat", 0.25, 0.25), ("a.jpg", "dog", 0.5, 0.5)]


def test_a_state_of_minus_one_without_a_zero_is_reported(read):
    table = read("image,class,state\na.jpg,cat,1\nb.jpg,cat,-1\n")
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {}}
    assert [w.partition(",")[0] for w in table.notes.warnings] == ["labels.csv"]
    assert "column 'state': no word means absent (0), and -1 is read as uncertain" in table.notes.warnings[0]


def test_points_that_cannot_be_placed_leave_the_label(read, make_photo, tmp_path):
    """b is not there: its rows go. Nothing tells the size of photos that nobody has."""
    make_photo("p/a.jpg", 1, size=(200, 100))
    make_photo("p/c.jpg", 2, size=(200, 100))
    text = "image,class,x_px,y_px\nb.jpg,cat,1,1\na.jpg,cat,500,25\na.jpg,dog,5,25\nc.jpg,dog,,\n"
    table = read(text, tmp_path / "p")
    assert points(table) == [
        ("a.jpg", "cat", None, None),
        ("a.jpg", "dog", 0.025, 0.25),
        ("c.jpg", "dog", None, None),
    ]
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded][1:] == [
        (f"{tmp_path}/labels.csv row 3", "its point lies outside the photo; its label is kept", "bad-place")
    ]
    assert "labels.csv: 1 box or point cannot be used, see the excluded list; its label is kept" in table.notes.messages
    alone = read(text)
    assert [p[2:] for p in points(alone)] == [(None, None)] * 4
    assert {e.reason for e in alone.notes.excluded} == {
        "its point cannot be placed: the width and height of the photo are not known; its label is kept"
    }


def test_points_with_states(read):
    text = "image,class,state,x,y\na.jpg,cat,positive,0.5,0.5\na.jpg,dog,negative,,\nb.jpg,cat,unknown,,\n"
    table = read(text, points="fractions", complete=True)
    assert labels(table) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {"dog": N}}
    assert points(table) == [("a.jpg", "cat", 0.5, 0.5), ("a.jpg", "dog", None, None)]


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        (
            "image,class,x,y\na.jpg,cat,12,0.5\n",
            "fractions",
            "row 2, column 'x': '12' is not in 0..1; divide pixels by the width or height of the photo.",
        ),
        (
            "image,class,x,y\na.jpg,cat,12,inf\n",
            "pixels",
            "row 2, column 'y': 'inf' is not a number of pixels; fix the cell, or leave it blank.",
        ),
        (
            "image,class,x,y\na.jpg,cat,3,4\na.jpg,cat,3,\n",
            "pixels",
            "row 3: there is only one of 'x' and 'y'; give both, or neither.",
        ),
        (
            "image,class,x,y\na.jpg,cat,3,4\na.jpg,,3,4\n",
            "pixels",
            "row 3: a point locates a class, but the row states no class to be present.",
        ),
        (
            "image,class,state,x,y\na.jpg,cat,0,3,4\n",
            "pixels",
            "row 2: a point locates a class, but the row states no class to be present.",
        ),
        (
            "image,class,x,y\na.jpg,cat,3,4\na.jpg,none,3,4\n",
            "pixels",
            "row 3: a point locates a class, but the row states no class to be present.",
        ),
    ],
)
def test_broken_points(read, tmp_path, text, unit, message):
    with pytest.raises(DataError) as error:
        read(text, points=unit)
    assert str(error.value) == f"{tmp_path}/labels.csv {message}"


def test_points_and_boxes_do_not_share_a_table(read):
    with pytest.raises(DataError, match="has columns of points and 'x0' of a box; keep one kind in the table"):
        read("image,class,x_px,y_px,x0,y0,x1,y1\na.jpg,cat,3,4,0,0,1,1\n")


@pytest.mark.parametrize("name", ["class", "label"])
def test_boxes_beside_a_class_without_a_state_are_positives_with_places(read, name):
    """A table with a class a row and boxes in fractions is unambiguous."""
    table = read(f"image,{name},x0,y0,x1,y1\na.jpg,cat,.1,.2,.3,.4\nb.jpg,dog,,,,\n")
    assert table.facts["state"].to_pylist() == [1, 1]
    assert [None if x is None else round(x, 4) for x in table.facts["x0"].to_pylist()] == [0.1, None]
    assert not table.notes.warnings


def test_boxes_in_pixels_are_not_read_as_fractions(read):
    with pytest.raises(DataError, match=r"'10' is not in 0..1; divide pixels"):
        read("image,class,x0,y0,x1,y1\na.jpg,cat,10,20,30,40\nb.jpg,dog,12,21,33,44\n")
    pixels = read("image,label,x0,y0,x1,y1\na.jpg,cat,10,20,30,40\nb.jpg,dog,12,21,33,44\n")
    assert pixels.facts["x0"].null_count == 2
    assert any("beside the labels are not read" in warning for warning in pixels.notes.warnings)
