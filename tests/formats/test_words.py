from collections import Counter

import pytest

from fewtags.formats.common import ReadOptions
from fewtags.formats.words import Meaning, Words
from fewtags.labels import Label

POSITIVE, NEGATIVE, OPEN, BLANK = Meaning.POSITIVE, Meaning.NEGATIVE, Meaning.OPEN, Meaning.BLANK


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (["1", "1.0", " 1 ", "1e0", "true", "TRUE", "yes", "Y", "positive", "present"], POSITIVE),
        (["0", "0.0", "-0", "false", "No", "n", "negative", "absent"], NEGATIVE),
        (["-1", "-1.0", "u", "uncertain", "unknown", "?"], OPEN),
        (["", "  ", "nan", "NaN", "NA", "N/A", "null", "<NA>"], BLANK),
        (["maybe", "2", "0.5", "-2", "inf", "cat", "none", "m", "f"], None),
    ],
)
def test_meanings(words, meaning):
    assert {Words(ReadOptions()).meaning(word) for word in words} == {meaning}


@pytest.mark.parametrize(("uncertain", "meaning"), [("ones", POSITIVE), ("zeros", NEGATIVE), ("ignore", OPEN)])
def test_uncertain(uncertain, meaning):
    assert Words(ReadOptions(uncertain=uncertain)).meaning("-1") is meaning


def test_own_words_come_first():
    """Our own numbers, where 0 is unknown and -1 negative."""
    words = Words(ReadOptions(negative_words=("-1",), unknown_words=("0",), positive_words=("OK ",)))
    assert [words.meaning(w) for w in ("-1", "0", "ok", "1", "-1.0")] == [NEGATIVE, OPEN, POSITIVE, POSITIVE, OPEN]


def test_labels():
    states = {Label.POSITIVE: POSITIVE, Label.NEGATIVE: NEGATIVE}
    assert {meaning.label for meaning in (OPEN, BLANK)} == {Label.UNKNOWN}
    assert all(meaning.label is label for label, meaning in states.items())


def test_what_says_something():
    words = Words(ReadOptions())
    assert [w for w in ("1", "0", "-1", "u", "?", "", "nan", "cat") if words.says_something(w)] == ["1", "0", "-1", "u"]


def test_readings_name_every_value():
    words = Words(ReadOptions(uncertain="ones", unknown_words=("x",)))
    values = [Counter({"1": 2, "1.0": 1, "": 3}), Counter({"": 1, "-1": 1, "x": 1, "nan": 2})]
    assert [str(r) for r in words.readings("a.csv", values, "negative")] == [
        "a.csv: (blank) -> negative (4)",
        "a.csv: 1 -> positive (2)",
        "a.csv: nan -> negative (2)",
        "a.csv: -1 -> positive (uncertain: ones) (1)",
        "a.csv: 1.0 -> positive (1)",
        "a.csv: x -> unknown (1)",
    ]


UNSURE = (
    "a.csv: nothing says absent (0), and -1 is read as uncertain, so that these {} cells are unknown. If -1 means "
    "absent, pass --set data.uncertain=zeros; if it does mean uncertain, --set 'data.unknown_words=[\"-1\"]' says so."
)


@pytest.mark.parametrize(
    ("counts", "options", "uses"),
    [
        ({"1": 4, "-1": 2, "-1.0": 3, "": 9}, {}, 5),
        ({"1": 4, "-1": 2, "u": 7}, {}, 2),  # "u" is uncertain by its name
        ({"1": 4, "-1": 2, "0": 1}, {}, 0),  # CheXpert
        ({"1": 4, "u": 2}, {}, 0),
        ({"-1": 2}, {}, 0),
        ({"1": 4, "-1": 2}, {"uncertain": "zeros"}, 0),
        ({"1": 4, "-1": 2}, {"uncertain": "ones"}, 0),
        ({"1": 4, "-1": 2}, {"negative_words": ("-1",)}, 0),
        ({"1": 4, "-1": 2}, {"unknown_words": ("-1",)}, 0),
        ({"1": 4, "-1": 2}, {"positive_words": ("-1",)}, 0),
        ({"1": 4, "-1": 2, "": 3}, {"blank": "negative"}, 0),  # blank says absent
        ({"1": 4, "-1": 2}, {"blank": "negative"}, 2),
        ({"1": 4, "-1": 2, "": 3}, {"complete": True}, 0),
    ],
)
def test_minus_one_without_a_zero_is_told(counts, options, uses):
    found = Words(ReadOptions(**options)).unsure("a.csv", [Counter(counts)])
    assert found == ((UNSURE.format(uses),) if uses else ())
