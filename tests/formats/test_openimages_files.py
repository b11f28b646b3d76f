import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.formats.openimages_files import describe, find_files, is_openimages, kind_of, read_rows
from fewtags.labels import Label

LABELS = "ImageID,Source,LabelName,Confidence\n"


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("ImageID,Source,LabelName,Confidence", "labels"),
        ("\ufeffImageID,LabelName,Confidence", "labels"),
        ("ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax", "boxes"),
        ("ImageId,X,Y,Label,EstimatedYesNo,Source,YesVotes,NoVotes,UnsureVotes,TextLabel", "points"),
        ("ImageId,X,Y,Label", "others"),
        ("ImageID,Subset,OriginalURL", "images"),
        ("LabelName,DisplayName", "classes"),
        ("/m/011k07,Tortoise", "classes"),
        ('/g/11b5l7,"Cat, wild"', "classes"),
        ("/m/011k07,Tortoise,more", "others"),
        ("MaskPath,ImageID,LabelName,BoxID", "others"),
        ("image,label", "others"),
        ("ImageID,LabelName,\rConfidence", "others"),
        ("", "others"),
    ],
)
def test_kinds(tmp_path, header, kind):
    file = tmp_path / "a.csv"
    file.write_text(f"{header}\n")
    assert kind_of(file) == kind
    assert is_openimages(file) == (kind in ("labels", "boxes", "points"))
    file.rename(tmp_path / "a.txt")
    assert kind_of(tmp_path / "a.txt") == "others"


def test_files_beside_and_below(tmp_path):
    for name in ("metadata/classes", "labels/x", "y", "deep/labels/z"):
        file = tmp_path / f"{name}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("/m/1,a\n" if "classes" in name else LABELS)
    found = find_files(tmp_path)
    assert [file.relative_to(tmp_path).as_posix() for file in found["labels"]] == ["y.csv", "labels/x.csv"]
    assert [file.name for file in found["classes"]] == ["classes.csv"]
    one = find_files(tmp_path / "y.csv")
    assert ([file.name for file in one["labels"]], len(one["classes"])) == (["y.csv"], 1)


def test_rows(tmp_path):
    """Columns may come in any order, and those that are not needed may hold anything."""
    file = tmp_path / "a.csv"
    file.write_text("Confidence,Note,LabelName,ImageID\n1.0,?,/m/1,b\n0,,/m/2,a\n0.5,,/m/1,b\n")
    rows = read_rows(file)
    assert (rows.image[0], rows.image[1].tolist()) == (["b", "a"], [0, 1, 0])
    assert rows.class_[1].tolist() == [0, 1, 0]
    assert rows.state.tolist() == [Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN]
    assert (list(rows.sources), rows.source.tolist(), rows.boxed, len(rows)) == ([""], [0, 0, 0], False, 3)
    assert np.isnan(rows.corners).all()


def test_a_box_is_no_negative(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("ImageID,LabelName,Confidence,XMin,XMax,YMin,YMax\na,/m/1,0,0,1,0,1\na,/m/1,1,0,.5,0,.25\n")
    rows = read_rows(file)
    assert rows.state.tolist() == [Label.UNKNOWN, Label.POSITIVE]
    assert rows.corners.tolist() == [[0, 0, 1, 1], [0, 0, 0.5, 0.25]]


def test_descriptions(tmp_path):
    """With and without a header; the first file that names an id counts."""
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text('/m/1,Cat\n\n/m/2,"Cat, wild"\n')
    other.write_text("DisplayName,LabelName\nDog,/m/3\nPuss,/m/1\n")
    assert describe([one, other]) == {"/m/1": "Cat", "/m/2": "Cat, wild", "/m/3": "Dog"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"/m/1,Cat\n/m/2\n", "'/m/2' is not an id and a name, such as '/m/011k07,Tortoise'."),
        (b"/m/1, \n", "'/m/1, ' is not an id and a name, such as '/m/011k07,Tortoise'."),
        (b"/m/1,\xff\n", "not UTF-8 text (byte 5); save it as UTF-8."),
        (b"/m/1,Cat\n/m/2,Dog\n/m/1,Puss\n", "'/m/1' is called 'Cat' and 'Puss'; remove one of the rows."),
    ],
)
def test_broken_descriptions(tmp_path, data, message):
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(DataError) as error:
        describe([tmp_path / "a.csv"])
    assert str(error.value) == f"{tmp_path}/a.csv: {message}"


def test_broken_quotes_in_descriptions(tmp_path):
    (tmp_path / "a.csv").write_text('/m/1,Cat\n/m/2,"Dog"x\n')
    with pytest.raises(DataError) as error:
        describe([tmp_path / "a.csv"])
    expected = f"{tmp_path}/a.csv row 2: broken quotes (',' expected after '\"'); close each quoted cell."
    assert str(error.value) == expected


def test_a_name_of_two_lines_and_the_same_row_twice(tmp_path):
    (tmp_path / "a.csv").write_text('/m/1,"Cat\nwild"\n/m/2,Dog\n/m/2,Dog\n')
    assert describe([tmp_path / "a.csv"]) == {"/m/1": "Cat\nwild", "/m/2": "Dog"}


def test_blanks_around_ids_do_not_count(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(f"{LABELS} a ,v, /m/1 , 1 \na,v,/m/1,1\n")
    rows = read_rows(file)
    assert ([*rows.image[0]], [*rows.class_[0]]) == (["a", "a"], ["/m/1", "/m/1"])
    assert rows.state.tolist() == [Label.POSITIVE] * 2


def test_rows_of_points(tmp_path):
    """Only yes says something of the whole photo; quoted text with commas is passed over."""
    file = tmp_path / "a.csv"
    file.write_text(
        "ImageId,X,Y,Label,EstimatedYesNo,Source,YesVotes,NoVotes,UnsureVotes,TextLabel\n"
        'b,0.25,0.5,/m/1,yes,ih,3,0,0,"Cat, wild"\na,0.75,1,/m/2,No,cc,0,1,0,\nb,0,0.125,/m/2,unsure,cc,1,1,1,Dog\n'
    )
    rows = read_rows(file)
    assert ([*rows.image[0]], [*rows.class_[0]]) == (["b", "a"], ["/m/1", "/m/2"])
    assert rows.state.tolist() == [Label.POSITIVE, Label.UNKNOWN, Label.UNKNOWN]
    assert rows.corners.tolist() == [[0.25, 0.5, 0.25, 0.5], [0.75, 1.0, 0.75, 1.0], [0.0, 0.125, 0.0, 0.125]]
    assert (rows.boxed, rows.pointed, [*rows.confidence[0]], [*rows.sources]) == (
        *(False, True, ["yes", "No", "unsure"]),
        ["ih", "cc"],
    )


def test_answers_that_are_none(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("ImageId,X,Y,Label,EstimatedYesNo\na,0,0,/m/1,yes\na,0,0,/m/1,1\n")
    with pytest.raises(DataError) as error:
        read_rows(file)
    assert str(error.value) == f"{file} row 3: EstimatedYesNo is '1'; expected yes, no or unsure."
    file.write_text("ImageId,X,X,Y,Label,EstimatedYesNo\na,0,0,0,/m/1,yes\n")
    with pytest.raises(DataError) as error:
        read_rows(file)
    assert str(error.value) == f"{file}: several columns are called 'X'; rename or remove one."
    file.write_text("ImageId,X,Y,Label,EstimatedYesNo\na,0,0,/m/1,yes\na,0,0,,yes\n")
    with pytest.raises(DataError) as error:
        read_rows(file)
    assert str(error.value) == f"{file} row 3: there is no Label; fill it in, or remove the row."


@pytest.mark.parametrize("flag", ["yes", "true", "2"])
def test_flags_that_are_no_numbers(tmp_path, flag):
    """A group that is spelt otherwise would be taken for a single object."""
    file = tmp_path / "a.csv"
    file.write_text(
        f"ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf\na,/m/1,0,1,0,1,1\na,/m/1,0,1,0,1,-1\na,/m/1,0,1,0,1,{flag}\n"
    )
    with pytest.raises(DataError) as error:
        read_rows(file)
    assert str(error.value) == f"{file} row 4: IsGroupOf is {flag!r}; expected 1, 0 or -1."


def test_repeated_columns_and_rows_of_another_length_are_refused(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("ImageID,ImageID,LabelName,Confidence\na,b,/m/1,1\n")
    with pytest.raises(DataError) as error:
        read_rows(file)
    assert str(error.value) == f"{file}: several columns are called 'ImageID'; rename or remove one."
    file.write_text(f"{LABELS}a,v,/m/1\n")
    with pytest.raises(DataError, match=r"Row #2: Expected 4 columns, got 3.*\. Fix that row; cells are separated by"):
        read_rows(file)
