"""Rows of questions in files and on the terminal."""

import csv

import pyarrow.parquet as pq
import pytest

from fewtags.errors import ConfigError
from fewtags.review.questions import Question
from fewtags.review.tables import question_rows, text_table, write_table


def make(n, image="a.jpg", class_="cat", box=(0, 0.25, 0.5, 1)):
    return Question(
        image=image,
        class_=class_,
        name=class_,
        probability=0.5,
        rank=n,
        expected=3.2,
        reason="why, so",
        box=box,
        gain=1.5,
    )


def test_csv_and_parquet_have_the_same_rows(tmp_path):
    rows = question_rows([make(1), make(2, "=b.jpg", box=None)])
    write_table(rows, tmp_path / "new" / "q.csv")
    write_table(rows, tmp_path / "q.parquet")
    with (tmp_path / "new" / "q.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert pq.read_table(tmp_path / "q.parquet").to_pylist() == rows
    assert {key: str(value) for key, value in rows[0].items()} == first
    assert (second["image"], second["x0"]) == ("'=b.jpg", "")  # a spreadsheet must not run it


def test_another_ending(tmp_path):
    with pytest.raises(ConfigError, match=r"--out .*q.txt: expected a file ending in .csv or .parquet."):
        write_table([], tmp_path / "q.txt")


def test_text_fits_a_terminal():
    rows = question_rows(
        [make(n, f"{'very/' * 20}{n}.jpg", "a class with a rather long name, even so") for n in range(1, 9)]
    )
    lines = text_table(rows, 5).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 7
    assert lines[-1] == "and 3 more rows; --out writes all of them"
    assert "/1.jpg  a class" in lines[1]


def test_nothing_to_show():
    assert text_table([], 5) == "nothing to ask: every class is known in every photo"
    assert text_table([], 5, wrong=True) == "no label contradicts the model"
