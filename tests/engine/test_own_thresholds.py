"""Thresholds of the user: texts, files, mappings."""

import numpy as np
import pytest

from fewtags.engine.model import ModelInfo
from fewtags.engine.own_thresholds import with_thresholds
from fewtags.errors import ConfigError, DataError, FewtagsError
from fewtags.nets.spatial import HeadPlan
from fewtags.text import command_line

INFO = ModelInfo(
    backbone="test_resnet",
    output_stride=0,
    head=HeadPlan(),
    size=64,
    policy="coco",
    class_ids=("cat", "c2", "a=b"),
    class_names=("cat", "Traffic Light", "a=b"),
    thresholds=(0.1, 0.2, 0.3),
    threshold_rules=("class_f1", "half", "half"),
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    method={},
    selection="",
    version="0",
)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (0.5, (0.5, 0.5, 0.5)),
        (np.float32(0.5), (0.5, 0.5, 0.5)),
        (1, (1, 1, 1)),
        ("1e-1", (0.1, 0.1, 0.1)),
        ({"cat": 0.7}, (0.7, 0.2, 0.3)),
        ("traffic_light=.5", (0.1, 0.5, 0.3)),
        ("a=b=0.9", (0.1, 0.2, 0.9)),
        (["0.4", "cat = 0.6"], (0.6, 0.4, 0.4)),
        ([{"cat": 0.6}, 0.4], (0.6, 0.4, 0.4)),
        (["cat=0.6", "cat=0.60"], (0.6, 0.2, 0.3)),
    ],
)
def test_what_is_given(given, values):
    found, notes = with_thresholds(INFO, given)
    assert found.thresholds == values
    assert notes == []
    changed = [a != b for a, b in zip(found.thresholds, INFO.thresholds, strict=True)]
    assert all(rule == "own" for rule, new in zip(found.threshold_rules, changed, strict=True) if new)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "class,threshold\ncat,0.7\nc2,.5\n"),
        ("t.csv", "cat,0.7\nc2,.5\n"),
        ("t.csv", "\ufeffThreshold;Name\n0,7;cat\n0,5;traffic light\n"),
        ("t.csv", "image\tclass\tthreshold\na.jpg\tcat\t0.7\nb.jpg\tcat\t0.7\nb.jpg\tc2\t0.5\n"),
        ("t.csv", "sep=;\nclass;threshold\ncat;0,7\nc2;0,5\n"),
        ("t.json", '{"cat": 0.7, "c2": 0.5}'),
        ("t.json", '{"thresholds": [{"class": "cat", "threshold": 0.7}, {"class": "c2", "threshold": 0.5}]}'),
        ("T.JSON", '[{"class": "cat", "threshold": 0.7}, {"class": "c2", "threshold": "0.5"}]'),
        ("t.toml", 'cat = 0.7\n"traffic light" = 0.5\n'),
        ("t.toml", "[thresholds]\ncat = 0.7\nc2 = 0.5\n"),
    ],
)
def test_files(tmp_path, name, content):
    file = tmp_path / name
    file.write_text(content, "utf-8")
    assert with_thresholds(INFO, file)[0].thresholds == (0.7, 0.5, 0.3)
    assert with_thresholds(INFO, str(file))[0].thresholds == (0.7, 0.5, 0.3)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            "30",
            ConfigError,
            "--threshold 30: '30' is not a threshold; expected a number from 0 to 1; did you mean 0.3?",
        ),
        ("0,3", ConfigError, "did you mean 0.3?"),
        (
            "cat=30%",
            ConfigError,
            "--threshold cat=30%: '30%' is not a threshold; expected a number from 0 to 1; did you",
        ),
        ("nan", ConfigError, "'nan' is not a threshold"),
        ("cat", ConfigError, "CLASS=NUMBER or a file (.csv, .json, .toml)."),
        ("cta=0.3", DataError, "--threshold cta=0.3: 'cta' is not a class of this model (did you mean 'cat'?)."),
        (
            ["0.3", "0.4"],
            ConfigError,
            "the threshold is given twice, as 0.3 (--threshold 0.3) and 0.4 (--threshold 0.4)",
        ),
        (
            "cat=0.3,c2=0.4",
            ConfigError,
            "--threshold cat=0.3,c2=0.4: expected CLASS=NUMBER; for several classes, repeat",
        ),
        ("=0.3", DataError, "--threshold =0.3: the name of the class is missing."),
        (["cat=0.3", "Cat=0.4"], ConfigError, "the threshold of class 'cat' is given twice"),
        ("none.csv", DataError, "none.csv cannot be read: No such file"),
    ],
)
def test_refused(given, error, text):
    with command_line(), pytest.raises(error) as caught:
        with_thresholds(INFO, given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.csv", "class,threshold\ncat,0.7\nbrid,0.5\n", "t.csv row 3: 'brid' is not a class of this model"),
        ("t.csv", "class,threshold\n,0.7\n", "t.csv row 2: the name of the class is missing."),
        ("t.json", '{"cat": 0.7, "c2": 0.1, "cat": 0.5}', "t.json cannot be read as JSON: 'cat' is there twice"),
        ("t.csv", "class,threshold\ncat,high\n", "t.csv row 2: 'high' is not a threshold"),
        ("t.csv", "class,threshold\ncat\n", "t.csv row 2: 1 cell; expected a class and a threshold."),
        ("t.csv", "a,b,c\n1,2,3\n", "expected the columns class and threshold, found a, b, c."),
        ("t.csv", "", "expected the columns class and threshold, found nothing."),
        ("t.csv", "class,threshold\n", "has no threshold."),
        ("t.json", "[1, 2]", 'expected {"class": threshold, ...}.'),
        ("t.json", "{}", "has no threshold."),
        ("t.json", "[" * 100_000, "cannot be read as JSON"),
        ("t.json", '{"cat": true}', "'True' is not a threshold"),
        ("t.toml", "cat = ", "cannot be read as TOML"),
        ("t.json", '{"cat": {"x": 1}}', "is not a threshold"),
    ],
)
def test_damaged_files(tmp_path, name, content, text):
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(FewtagsError) as caught:
        with_thresholds(INFO, tmp_path / name)
    assert text in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_two_classes_of_one_spelling_are_asked_about():
    from dataclasses import replace

    info = replace(INFO, class_ids=("cat", "CAT", "x"), class_names=("cat", "CAT", "x"))
    assert with_thresholds(info, "CAT=0.9")[0].thresholds == (0.1, 0.9, 0.3)
    with pytest.raises(DataError, match="'Cat' could be the classes 'cat' and 'CAT'; write the id of one"):
        with_thresholds(info, "Cat=0.9")


def test_a_file_that_is_not_utf8(tmp_path):
    (tmp_path / "t.csv").write_text("class,threshold\ncat,0.7\n", "utf-16")
    with pytest.raises(DataError, match=r"t\.csv is not UTF-8; save it as UTF-8\."):
        with_thresholds(INFO, tmp_path / "t.csv")
