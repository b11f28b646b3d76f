"""Pilot results in JSON lines and CSV."""

import json
import re

import pytest

from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.curves import Result, fit_curve
from fewtags.budget.results import by_type, read_results
from fewtags.errors import DataError

COST = CostModel(classes=4, positives_per_image=1, instances_per_image=2)
"""A pair with one point takes (3 + 2.4) / 4 = 1.35 s."""


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_three_ways_to_say_how_much(tmp_path):
    """13.5 s buy 10 pairs with a point; 5 complete images of 4 classes are 20 pairs."""
    path = write(
        tmp_path / "r.jsonl",
        {"type": "sp", "labels": 7, "seed": 0, "mAP": 0.25, "mAP_loc": 0.125, "photos": 9, "remark": "mine"},
        {"type": "one point", "budget_seconds": 13.5, "seed": 1, "mAP": 0.5},
        {"type": "SP", "complete_images": 5, "seed": 0, "mAP": 1, "mAP_loc": None},
        {"type": "I", "labels": 3, "budget_seconds": 99, "seed": 0, "mAP": 0},
    )
    sp = Annotation.ONE_POINT
    assert read_results(path, COST) == [
        Result(kind=sp, labels=7, seed=0, mean_ap=0.25, mean_ap_loc=0.125, photos=9),
        Result(kind=sp, labels=10, seed=1, mean_ap=0.5),
        Result(kind=sp, labels=20, seed=0, mean_ap=1.0),
        Result(kind=Annotation.TAGS, labels=3, seed=0, mean_ap=0.0),
    ]
    groups = by_type(read_results(path, COST))
    assert {kind: len(found) for kind, found in groups.items()} == {Annotation.TAGS: 1, sp: 3}


def test_a_csv_says_the_same(tmp_path):
    rows = [
        {"type": "I", "labels": 7, "seed": 2, "mAP": 0.25, "photos": 9},
        {"type": "AB", "labels": 8, "seed": 2, "mAP": 0.5},
    ]
    table = tmp_path / "r.csv"
    table.write_text("\ufefftype,labels,seed,mAP,photos\nI, 7 ,2,0.25,9\nAB,8,2,0.5,\n")
    assert read_results(table, COST) == read_results(write(tmp_path / "r.jsonl", *rows), COST)


GOOD = {"type": "I", "labels": 7, "seed": 0, "mAP": 0.5}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD | {"mAP": 43.2}, "mAP is 43.2; expected a number from 0 to 1; divide percent by 100."),
        (GOOD | {"mAP": "good"}, "mAP is 'good'; expected a number from 0 to 1."),
        (GOOD | {"mAP": True}, "mAP is True; expected a number from 0 to 1."),
        (GOOD | {"seed": 0.5}, "seed is 0.5; expected a whole number."),
        (GOOD | {"labels": -1}, "labels is -1; expected a number from 0."),
        (GOOD | {"labels": 0}, "labels 0 does not buy a label; remove the row."),
        (GOOD | {"seed": 1e30}, "seed is 1e+30; expected a whole number up to 9,007,199,254,740,992; fix the row."),
        (
            GOOD | {"photos": 1e30},
            "photos is 1e+30; expected a whole number up to 9,007,199,254,740,992; fix the row.",
        ),
        (GOOD | {"photos": 1.5}, "photos is 1.5; expected a whole number."),
        (GOOD | {"seed": 10**400}, f"seed is {10**400}; expected a number from 0."),
        (GOOD | {"labels": 1e300}, "labels 1e+300 buys more than 9,007,199,254,740,992 labels; fix the row."),
        (
            {"type": "I", "complete_images": 1e308, "seed": 0, "mAP": 0.5},
            "complete_images 1e+308 buys more than 9,007,199,254,740,992 labels; fix the row.",
        ),
        (GOOD | {"photos": 0}, "photos is 0; expected a number from 1."),
        (
            {"type": "I", "seed": 0, "mAP": 0.5},
            "does not say how much was bought; give one of labels, budget_seconds, complete_images.",
        ),
        (
            {"type": "I", "labels": 7, "seed": 0, "map": 0.5},
            "has no 'mAP'; it has type, labels, seed, map.",
        ),
        (
            GOOD | {"type": "mask"},
            "annotation type 'mask' is not known; known: tags (I), one point (SP), one box (SB), all points (AP), all "
            "boxes (AB).",
        ),
    ],
)
def test_wrong_rows_are_named(tmp_path, row, message):
    path = write(tmp_path / "r.jsonl", GOOD | {"seed": 9}, row)
    with pytest.raises(DataError, match="^" + re.escape(f"{path} row 2: {message}") + "$"):
        read_results(path, COST)


def test_all_boxes_in_seconds_need_the_number_of_objects(tmp_path):
    path = write(tmp_path / "r.jsonl", {"type": "AB", "budget_seconds": 9, "seed": 0, "mAP": 0.5})
    with pytest.raises(DataError, match=r"r\.jsonl row 1: all boxes \(AB\) has no flat cost"):
        read_results(path, CostModel(classes=4, positives_per_image=1))


def test_the_largest_whole_number_is_read_and_fitted(tmp_path):
    path = write(
        tmp_path / "r.jsonl",
        *({"type": "I", "labels": x, "seed": s, "mAP": 0.5} for x in (1000, 2000, 2**53) for s in (0, 2**53)),
    )
    found = read_results(path, COST)
    assert [(r.labels, r.seed) for r in found[-2:]] == [(2**53, 0), (2**53, 2**53)]
    assert fit_curve(found, draws=10).most == 2**53


def test_the_same_run_twice_is_refused(tmp_path):
    path = write(tmp_path / "r.jsonl", GOOD, GOOD | {"mAP": 0.6})
    with pytest.raises(DataError) as error:
        read_results(path, COST)
    assert str(error.value) == (
        f"{path} row 2: tags (I), 7 labels, seed 0 is in row 1 already; keep one of them, or give another seed."
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.jsonl", "", "r.jsonl has no row; `fewtags plan LABELS --run-pilot --out DIR` makes one."),
        ("r.jsonl", '{"type": "I"', "r.jsonl row 1: is not one JSON object; fix or remove the line."),
        ("r.jsonl", "[1]", "r.jsonl row 1: is not one JSON object; fix or remove the line."),
        ("r.csv", "type,seed\nI\n", "r.csv row 2: does not have as many cells as the header; fix the row."),
        ("r.txt", "x", "r.txt: expected a file that ends in .jsonl or .csv."),
    ],
)
def test_broken_files(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        read_results(tmp_path / name, COST)
    assert str(error.value) == f"{tmp_path}/{message}"


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError) as error:
        read_results(tmp_path / "none.csv", COST)
    assert str(error.value) == (
        f"{tmp_path / 'none.csv'} does not exist; give a file of measured runs: `fewtags plan LABELS --run-pilot --out "
        "DIR` makes one."
    )
    (tmp_path / "r.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"r\.csv is not UTF-8 text; save it as UTF-8\.$"):
        read_results(tmp_path / "r.csv", COST)
