import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seen import labels

from fewtags.errors import DataError
from fewtags.formats.csv import read_csv
from fewtags.formats.options import ReadOptions
from fewtags.labels import ClassNames, Label
from fewtags.table.storage import write_csv
from fewtags.table.table import LabelTable

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


@pytest.fixture
def read(tmp_path):
    def read(text, images=None, **options):
        file = tmp_path / "labels.csv"
        file.write_text(text)
        return read_csv(file, images, ReadOptions(**options))

    return read


def readings(table):
    return {(r.where.removeprefix("labels.csv, "), r.value): (r.meaning, r.count) for r in table.notes.readings}


# ---------------------------------------------------------------------------------------------------- class columns


WIDE = "image,zebra,cat,dog\nb.jpg,1,0,\na.jpg,,-1,nan\n"


def test_class_columns(read):
    table = read(WIDE)
    assert table.classes.ids == ("zebra", "cat", "dog")
    assert table.images.to_pylist() == ["b.jpg", "a.jpg"]
    assert labels(table) == {"b.jpg": {"zebra": P, "cat": N}, "a.jpg": {}}
    assert readings(table) == {
        ("class columns", "(blank)"): ("unknown", 2),
        ("class columns", "1"): ("positive", 1),
        ("class columns", "0"): ("negative", 1),
        ("class columns", "-1"): ("unknown (uncertain: ignore)", 1),
        ("class columns", "nan"): ("unknown", 1),
    }
    assert table.notes.messages[1:] == (
        "labels.csv: 2 rows, cells separated by ','; images in 'image', 3 class columns 'zebra', 'cat', 'dog'",
        "labels.csv: 'b.jpg' is 'zebra'; is not 'cat'",
    )


@pytest.mark.parametrize(("uncertain", "state"), [("ones", P), ("zeros", N)])
def test_uncertain_cells(read, uncertain, state):
    assert labels(read(WIDE, uncertain=uncertain))["a.jpg"] == {"cat": state}


@pytest.mark.parametrize("options", [{"blank": "negative"}, {"complete": True}])
def test_blank_means_absent_but_uncertain_stays_unknown(read, options):
    table = read(WIDE, **options)
    assert labels(table) == {"b.jpg": {"zebra": P, "cat": N, "dog": N}, "a.jpg": {"zebra": N, "dog": N}}
    assert readings(table)["class columns", "(blank)"] == ("negative", 2)


def test_own_words(read):
    table = read(
        "image,cat,dog\na.jpg,ja,nein\nb.jpg,weiss nicht,1\n",
        positive_words=("Ja",),
        negative_words=("nein",),
        unknown_words=("weiss nicht",),
    )
    assert labels(table) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {"dog": P}}


def test_an_unknown_word_names_its_cell_and_the_cure(read, tmp_path):
    """Rows come before columns: 'perhaps' in line 3 is met before 'maybe' in line 4."""
    with pytest.raises(DataError) as error:
        read("image,cat,dog\na.jpg,1,0\nb.jpg,0,perhaps\nc.jpg,maybe,1\nd.jpg,maybe,1\ne.jpg,1,1\nf.jpg,0,0\n")
    assert str(error.value) == (
        f"{tmp_path}/labels.csv row 3, column 'dog': 'perhaps' means neither present (1, yes, x) nor absent (0, no) (2 "
        "more such cells). Fix the cell, or say what the word means: ReadOptions(positive_words=('perhaps',)), or "
        "negative_words, or unknown_words. If some columns are not classes, list the classes: "
        "ReadOptions(columns=('CLASS', '...'))."
    )


def test_a_column_of_other_numbers_is_an_error_when_chosen(read):
    with pytest.raises(DataError, match=r"row 2, column 'age': '68' means neither present"):
        read("image,cat,age\na.jpg,1,68\n", columns=("cat", "age"))


def test_class_columns_of_1_and_minus_1_are_reported(read):
    text = "image,cat,dog\na.jpg,1,-1\nb.jpg,-1,1\n"
    table = read(text)
    assert labels(table) == {"a.jpg": {"cat": P}, "b.jpg": {"dog": P}}
    assert table.notes.warnings == (
        "labels.csv, class columns: no word means absent (0), and -1 is read as uncertain, so that 2 cells are "
        "unknown. If -1 means absent, pass ReadOptions(uncertain='zeros'); if it means uncertain, "
        "pass ReadOptions(unknown_words=('-1',)) to confirm it.",
    )
    cured = read(text, uncertain="zeros")
    assert labels(cured) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {"cat": N, "dog": P}}
    assert cured.notes.warnings == read(text, unknown_words=("-1",)).notes.warnings == ()


def test_a_box_of_a_photo_that_shows_none_of_the_classes_stays_with_its_positive(read):
    table = read("image,class,x,y\na.jpg,none,,\na.jpg,cat,0.5,0.5\n", points="fractions")
    facts = [(f["state"], f["x0"]) for f in table.facts.to_pylist()]
    assert facts == [(P, 0.5), (N, None)]


def test_rows_of_one_image_are_joined(read):
    table = read("image,cat,dog,cow\na.jpg,1,,0\nb.jpg,,,\na.jpg,1,0,\na.jpg,,,1\n")
    assert labels(table) == {"a.jpg": {"cat": P, "dog": N}, "b.jpg": {}}
    assert len(table.facts) == 4  # cat once, dog, cow twice
    assert table.summary().contradictions == 1
    assert table.notes.messages[-2:] == (
        "labels.csv: 2 rows name images that have a row already, and are joined with them",
        "labels.csv: 1 label is present in one row and absent in another: unknown",
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), *[st.sampled_from(["1", "0", "", "-1"])] * 3), min_size=1, max_size=10),
    complete=st.booleans(),
)
def test_class_columns_agree_with_a_plain_loop(read, rows, complete):
    """A cell that a row calls present and none absent is present, and so on; complete images have no other unknowns."""
    text = "image,a,b,c\n" + "".join(f"{i}.jpg,{','.join(cells)}\n" for i, *cells in rows)
    table = read("image,a,b,c\nzz.jpg,1,0,1\n" + text.split("\n", 1)[1], complete=complete)
    got = labels(table)
    for i in {row[0] for row in rows}:
        for k, name in enumerate("abc", 1):
            stated = {row[k] for row in rows if row[0] == i}
            if {"0", "1"} <= stated:
                expected = None
            elif "1" in stated:
                expected = P
            elif "0" in stated or (complete and "-1" not in stated):
                expected = N
            else:
                expected = None
            assert got[f"{i}.jpg"].get(name) == expected


# ------------------------------------------------------------------------------------------------------------- tags


@pytest.mark.parametrize(
    ("cells", "separator", "names"),
    [
        (["cat|dog", "dog", "hot dog|cat"], "|", ["cat", "dog", "hot dog"]),
        (["cat; dog", "dog;"], ";", ["cat", "dog"]),
        (['"cat, dog"', "dog"], ",", ["cat", "dog"]),
        (["clear primary", "haze", "haze primary", "clear", "primary"], " ", ["clear", "haze", "primary"]),
        (["traffic light", "stop sign", "car"], "", ["car", "stop sign", "traffic light"]),
        (["red car", "red bus", "blue car", "blue bus"], "", ["blue bus", "blue car", "red bus", "red car"]),
        (["cat", "dog"], "", ["cat", "dog"]),
        (["a|b", "a|b|a"], "|", ["a", "b"]),
    ],
)
def test_separators(read, cells, separator, names):
    table = read("image,tags\n" + "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells)))
    assert list(table.classes.ids) == names
    message = f"labels.csv: tags split at {separator!r}" if separator else "labels.csv: one tag a row"
    assert message in table.notes.messages
    assert not (table.matrix.dense() == N).any()


def test_a_separator_that_is_given(read):
    text = "image,tags\na.jpg,cat;dog,big\nb.jpg,big cow\n"
    with pytest.raises(DataError) as error:
        read(text.replace("cat;dog,big", '"cat;dog,big"'))
    assert str(error.value).endswith(
        "labels.csv row 2, column 'tags': ';', ',' may all separate tags, as in 'cat;dog,big' and 'cat;dog,big'; pass "
        "the one that does: ReadOptions(tags_separator=';')."
    )
    table = read(text.replace("cat;dog,big", '"cat;dog,big"'), tags_separator=";")
    assert table.classes.ids == ("big cow", "cat", "dog,big")
    assert read("image,tags\na.jpg,red car\nb.jpg,x1\n", tags_separator="space").classes.ids == ("car", "red", "x1")


def test_blank_and_none(read):
    text = "image,tags\na.jpg,cat|dog\nb.jpg,\nc.jpg,None\nd.jpg,NaN\n"
    table = read(text)
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P}, "b.jpg": {}, "c.jpg": {"cat": N, "dog": N}, "d.jpg": {}}
    assert readings(table) == {
        ("column 'tags'", "None"): ("none of the classes", 1),
        ("column 'tags'", "cat"): ("positive", 1),
        ("column 'tags'", "dog"): ("positive", 1),
        ("column 'tags'", "(blank)"): ("nothing known", 2),
    }
    absent = {"cat": N, "dog": N}
    assert labels(read(text, blank="negative")) == labels(table) | {"b.jpg": absent, "d.jpg": absent}
    assert read(text, none_folder="").classes.ids == ("None", "cat", "dog")
    assert labels(read(text.replace("None", "normal"), none_folder="normal"))["c.jpg"] == absent


def test_complete_tags(read):
    table = read("image,tags\na.jpg,cat\nb.jpg,\nc.jpg,dog\na.jpg,dog\n", complete=True)
    assert labels(table) == {
        "a.jpg": {"cat": P, "dog": P},
        "b.jpg": {"cat": N, "dog": N},
        "c.jpg": {"cat": N, "dog": P},
    }


def test_tags_in_one_row_and_none_in_another(read):
    table = read("image,tags\na.jpg,cat\na.jpg,none\nb.jpg,dog\n")
    assert labels(table) == {"a.jpg": {"dog": N}, "b.jpg": {"dog": P}}
    assert table.summary().contradictions == 1
    assert table.notes.messages[-1] == (
        "labels.csv: 1 label is in an image that is stated to show none of the classes: unknown"
    )


def test_one_tag_a_row(read):
    table = read("image,label\na.jpg,stop sign\nb.jpg,cat\na.jpg,cat\na.jpg,cat\n")
    assert labels(table) == {"a.jpg": {"stop sign": P, "cat": P}, "b.jpg": {"cat": P}}
    assert len(table.facts) == 3


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "none|cat",
            "row 2, column 'tags': 'none|cat' has both 'none' and a class; fix the cell, or pass "
            "ReadOptions(none_folder='') if 'none' is a class.",
        ),
        (
            "\"['cat', 'dog']\"",
            "row 2, column 'tags': \"['cat', 'dog']\" is a list, but 'x|z' is not; write all cells in one way, such as "
            "cat|dog.",
        ),
    ],
)
def test_broken_tags(read, cell, message):
    with pytest.raises(DataError) as error:
        read(f"image,tags\na.jpg,{cell}\nb.jpg,x|z\n")
    assert str(error.value).endswith(message)


# ------------------------------------------------------------------------------------------------- one label a row


def test_one_label_a_row(read):
    table = read(
        "image,class,state,x0,y0,x1,y1\n"
        "b.jpg,dog,positive,0.1,0.2,0.3,0.4\n"
        "b.jpg,dog,positive,0.5,0.5,0.5,0.5\n"
        "b.jpg,cat,negative,,,,\n"
        "b.jpg,cow,unknown,,,,\n"
        "a.jpg,,,,,,\n"
    )
    assert table.classes.ids == ("cat", "cow", "dog")
    assert labels(table) == {"b.jpg": {"dog": P, "cat": N}, "a.jpg": {}}
    np.testing.assert_allclose(table.facts["x1"].to_pylist()[:2], [0.3, 0.5], atol=1e-7)
    assert table.facts["x0"].null_count == 1
    assert readings(table)["column 'state'", "(blank)"] == ("nothing known", 1)


def test_complete_leaves_labels_open_that_are_said_to_be_unknown(read):
    text = "image,class,state\na.jpg,cat,unknown\na.jpg,dog,1\nb.jpg,cow,1\n"
    assert labels(read(text, complete=True)) == {"a.jpg": {"dog": P, "cow": N}, "b.jpg": {"cat": N, "dog": N, "cow": P}}


def test_what_we_write_is_read_back(tmp_path):
    table = LabelTable.build(
        ["b/ä, 1.jpg", "a.jpg", "c.jpg"],
        ClassNames.of(["cat", "dog", 'the "big" one']),
        image=np.array([0, 0, 1, 0]),
        class_=np.array([2, 1, 0, 2]),
        state=np.array([P, N, P, P]),
        locations=np.array([[0.25, 0.5, 0.75, 1], [np.nan] * 4, [np.nan] * 4, [0.5, 0.5, 0.5, 0.5]]),
        complete_set=np.array([-1, 0, -1]),
        complete_classes=np.array([[True, False, True]]),
    )
    write_csv(table, tmp_path / "out.csv")
    back = read_csv(tmp_path / "out.csv")
    assert back.classes == table.classes
    assert labels(back) == labels(table)
    corners = [name for name in table.facts.column_names if name[0] in "xy"]
    assert back.facts.select(corners).drop_null().to_pylist() == table.facts.select(corners).drop_null().to_pylist()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "a.jpg,cat,,,,,",
            "row 2: the class is 'cat' and the state ''; give both, or neither for an image with nothing known.",
        ),
        (
            "a.jpg,,1,,,,",
            "row 2: the class is '' and the state '1'; give both, or neither for an image with nothing known.",
        ),
        (
            "a.jpg,cat,1,12,0,1,1",
            "row 2, column 'x0': '12' is not in 0..1; divide pixels by the width or height of the photo.",
        ),
        (
            "a.jpg,cat,1,nan,0,1,1",
            "row 2, column 'x0': 'nan' is not in 0..1; divide pixels by the width or height of the photo.",
        ),
        (
            "a.jpg,cat,1,a,0,1,1",
            "row 2, column 'x0': 'a' is not in 0..1; divide pixels by the width or height of the photo.",
        ),
        (
            "a.jpg,cat,1,.1,.2,,.4",
            "row 2: the location .1, .2, (blank), .4 is not x0 <= x1, y0 <= y1; give all four corners, or none.",
        ),
        (
            "a.jpg,cat,1,.5,0,.4,1",
            "row 2: the location .5, 0, .4, 1 is not x0 <= x1, y0 <= y1; give all four corners, or none.",
        ),
    ],
)
def test_broken_label_rows(read, row, message):
    with pytest.raises(DataError) as error:
        read(f"image,class,state,x0,y0,x1,y1\n{row}\nb.jpg,dog,1,,,,\n")
    assert str(error.value).split("labels.csv ")[1] == message


def test_a_location_needs_four_columns(read):
    with pytest.raises(DataError, match="a location needs the columns x0, y0, x1 and y1, but 'y0' is missing"):
        read("image,class,state,x0\na.jpg,cat,1,0.1\n")


# ------------------------------------------------------------------------------------------------ splits and photos


def test_splits(read):
    table = read("image,split,tags\na.jpg,Train,cat\nb.jpg,valid,dog\nc.jpg,,dog\na.jpg,training,dog\n")
    assert table.split_names.to_pylist() == ["train", "val", ""]
    assert readings(table)["column 'split'", "valid"] == ("split 'val'", 1)
    assert readings(table)["column 'split'", "(blank)"] == ("no split", 1)


def test_one_photo_in_two_splits(read):
    with pytest.raises(
        DataError, match=r"row 4, column 'split': the photo 'a\.jpg' is in 'val' and in 'train'; put it in"
    ):
        read("image,split,tags\na.jpg,train,cat\nb.jpg,val,dog\na.jpg,val,cat\n")


def test_photos_are_found_beside_the_file(read, make_photo, tmp_path):
    make_photo("images/a.jpg")
    make_photo("images/sub/b.jpg")
    make_photo("images/more.jpg")
    table = read("image,tags\na,cat\nsub\\b.jpg,dog\n")
    assert (table.root, table.images.to_pylist()) == (tmp_path / "images", ["a.jpg", "sub/b.jpg"])


def test_facts_about_photos_that_are_not_there(read, make_photo, tmp_path):
    """The fact about the missing photo goes, the others keep their images."""
    make_photo("p/a.jpg")
    make_photo("p/c.jpg")
    for text in ("image,tags\nb.jpg,cat\na.jpg,dog\nc.jpg,none\n", "image,cat,dog\nb.jpg,1,0\na.jpg,,1\nc.jpg,0,0\n"):
        table = read(text, images=tmp_path / "p")
        assert labels(table) == {"a.jpg": {"dog": P}, "c.jpg": {"cat": N, "dog": N}}
        assert [e.item for e in table.notes.excluded] == ["b.jpg"]


def test_complete_annotations_of_photos_that_are_not_there(read, make_photo, tmp_path):
    make_photo("p/a.jpg")
    make_photo("p/c.jpg")
    table = read("image,cat,dog\nb.jpg,-1,0\na.jpg,,1\nc.jpg,-1,\n", images=tmp_path / "p", complete=True)
    assert labels(table) == {"a.jpg": {"cat": N, "dog": P}, "c.jpg": {"dog": N}}


def test_rows_without_an_image(read):
    with pytest.raises(
        DataError, match=r"row 3, column 'image': there is no image name; fill it in, or remove the row\."
    ):
        read("image,tags\na.jpg,cat\n ,dog\n")


@pytest.mark.parametrize("text", ["image,tags\n", "image,tags\na.jpg,none\n", "image,tags\na.jpg,|\n"])
def test_nothing_to_learn(read, text):
    with pytest.raises(DataError, match=r"no row names a class, so there is nothing to learn|it is not clear which"):
        read(text)
