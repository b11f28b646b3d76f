"""Scores of a teacher from tables."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fewtags.errors import DataError
from fewtags.formats.scores import read_scores, scores_of
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable


def cells(found):
    """{(image, class): score}."""
    ids = found.classes.ids
    return {(found.images[i], ids[c]): float(s) for i, c, s in zip(found.image, found.class_, found.score, strict=True)}


EXPECTED = {("a.jpg", "cat"): 0.5, ("a.jpg", "dog"): 0.25, ("b.jpg", "dog"): 1.0}
LONG = "image,class,name,score\na.jpg,cat,Cat,.5\na.jpg,dog,Dog,0.25\nb.jpg,dog,Dog,1\nb.jpg,cat,Cat,\n"
WIDE = "image,cat,dog\na.jpg,0.5,0.25\nb.jpg,,1.0\n"


@pytest.mark.parametrize("text", [LONG, LONG.replace("score", "probability"), WIDE, WIDE.replace("image", "File Name")])
def test_long_and_wide_tables_say_the_same(tmp_path, text):
    path = tmp_path / "scores.csv"
    path.write_text(text)
    assert cells(read_scores(path)) == EXPECTED


def test_parquet_in_both_forms(tmp_path):
    wide = {"image": ["a.jpg", "b.jpg"], "cat": [0.5, None], "dog": [0.25, 1.0]}
    long = {"image": ["a.jpg", "a.jpg", "b.jpg"], "class": ["cat", "dog", "dog"], "score": [0.5, 0.25, 1.0]}
    for name, table in (("wide", wide), ("long", long)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(table), path)
        assert cells(read_scores(path)) == EXPECTED
    assert read_scores(tmp_path / "long.parquet").where == str(tmp_path / "long.parquet")


def test_display_names_of_the_long_form(tmp_path):
    (tmp_path / "s.csv").write_text(LONG)
    assert read_scores(tmp_path / "s.csv").classes.names == ("Cat", "Dog")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,class,score\na.jpg,cat,50\n", "row 2: the score of 'cat' is 50, which is not in 0..1"),
        ("image,class,score\na.jpg,cat,-0.1\nb.jpg,cat,inf\n", "1 more such cell"),
        ("image,cat\na.jpg,yes\n", "row 2, column 'cat': 'yes' is not a number"),
        ("image,class,score\na.jpg,,.5\n", "row 2: there is no class; fill it in"),
        ("image,class,score\n ,cat,.5\n", "row 2: there is no image; fill it in"),
        (
            "image,class,score\na.jpg,cat,.5\na.jpg,cat,.6\n",
            "row 3: 'a.jpg' and 'cat' have the score 0.6, but 0.5 in row 2",
        ),
        ("photo_id,cat\na.jpg,.5\n", "no column is called 'image'"),
        ("image,cat\na.jpg,\n", "there is no score"),
    ],
)
def test_what_is_wrong_is_named_with_its_row(tmp_path, text, message):
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_scores(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_the_same_score_twice_is_one(tmp_path):
    (tmp_path / "s.csv").write_text("image,class,score\na.jpg,cat,.5\na.jpg,cat,.5\n")
    assert cells(read_scores(tmp_path / "s.csv")) == {("a.jpg", "cat"): 0.5}


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "s.parquet").write_bytes(b"no")
    (tmp_path / "s.json").write_text("{}")
    for name, message in (("s.parquet", "as Parquet"), ("s.json", ".csv or .parquet"), ("none.csv", "is not a file")):
        with pytest.raises(DataError, match=message):
            read_scores(tmp_path / name)


def test_an_array_has_the_rows_and_classes_of_the_labels(tmp_path):
    one = np.array([0, 1])
    table = LabelTable.build(
        ["a.jpg", "b.jpg"], ClassNames.of(["cat", "dog"]), image=one, class_=one, state=one * 0 + 1
    )
    values = np.array([[0.5, 0.25], [np.nan, 1.0]])
    assert cells(scores_of(values, table)) == EXPECTED
    with pytest.raises(DataError, match=r"expected numbers \[2, 2\]"):
        scores_of(values[:1], table)
    with pytest.raises(DataError, match=r"row of 'b\.jpg' in the array"):
        scores_of(values * 2, table)
    with pytest.raises(DataError, match="type list cannot be read as scores"):
        scores_of([0.5], table)
