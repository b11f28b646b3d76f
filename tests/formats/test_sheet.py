import csv
import io
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewtags.errors import ConfigError, DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.sheet import read_sheet
from fewtags.formats.words import Meaning, Words
from fewtags.labels import Label

POSITIVE, NEGATIVE, OPEN, BLANK = Meaning.POSITIVE, Meaning.NEGATIVE, Meaning.OPEN, Meaning.BLANK


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.csv"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("image,tags\na.jpg,cat;dog|x\n", ","),
        ("image;tags\na.jpg;cat,dog,x\n", ";"),
        ("image\ttags\na.jpg\tcat,dog\n", "\t"),
        ("image|tags\na.jpg|cat,dog\n", "|"),
        ('\n\n"image; or, so";tags\nx;y\n', ";"),
    ],
)
def test_the_header_tells_the_delimiter(write, text, delimiter):
    sheet = read_sheet(write(text))
    assert sheet.delimiter == delimiter
    assert len(sheet.header) == 2


def test_cells_rows_and_lines(write):
    """Line 1 is blank, the header is line 2, the quoted cell spans lines 3 and 4, so that the last row is line 6."""
    sheet = read_sheet(write('\r\n image ,tags\r\n"a, 1.jpg","big\r\ncat"\r\n\r\nb.jpg,"say ""hi"""\r\n'))
    assert sheet.header == ("image", "tags")
    assert [list(column) for column in sheet.columns] == [["a, 1.jpg", "b.jpg"], ["big\r\ncat", 'say "hi"']]
    assert sheet.lines.tolist() == [3, 6]
    assert sheet.at(1, 0).endswith("a.csv row 6, column 'image'")
    assert sheet.first(1, 'say "hi"').endswith("a.csv row 6, column 'tags'")


def test_byte_order_mark_and_unicode(write):
    sheet = read_sheet(write(b"\xef\xbb\xbfimage,tags\n" + "ä.jpg,größe\n".encode()))
    assert (sheet.header, sheet.columns[1][0]) == (("image", "tags"), "größe")


def test_a_delimiter_that_is_given(write):
    file = write("image:a\tb\nx:1\t2\n")
    assert read_sheet(file, ":").header == ("image", "a b")
    assert read_sheet(file, "tab").header == read_sheet(file, "\\t").header == ("image:a", "b")
    with pytest.raises(ConfigError, match=r"delimiter '::': expected one character, or 'tab'\."):
        read_sheet(file, "::")
    for mark in ("\n", "\r", '"'):  # the csv module of Python 3.13 refuses them, too
        with pytest.raises(ConfigError, match="cannot stand between cells"):
            read_sheet(file, mark)


def test_a_header_alone(write):
    sheet = read_sheet(write("image,tags\n"))
    assert (len(sheet), [list(column) for column in sheet.columns]) == (0, [[], []])


def test_blank_cells_alone(write):
    with pytest.raises(DataError) as error:
        read_sheet(write(",\n;\n"))
    assert str(error.value).endswith(
        "a.csv row 1: the file has blank cells only; expected a header such as 'image,tags'."
    )


def test_more_rows_than_a_block(write):
    sheet = read_sheet(write("image,n\n" + "".join(f"{i}.jpg,{i}\n" for i in range(1_000))))
    assert list(sheet.columns[1]) == [str(i) for i in range(1_000)]
    assert sheet.lines[-1] == 1_001


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cells, cells, cells), max_size=6), delimiter=st.sampled_from(",\t;|"))
def test_whatever_the_standard_library_writes_is_read_back(write, rows, delimiter):
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([("i", "a", "b"), *rows])
    sheet = read_sheet(write(out.getvalue()))
    assert list(zip(*sheet.columns, strict=True)) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty; expected a header such as 'image,tags' and a row per photo."),
        (
            'image,tags\na,"b\nc,d\n',
            " row 2: broken quotes (unexpected end of data); close each quoted cell, and write a quote inside it "
            "twice.",
        ),
        (
            'image,tags\n\na,"b"c\n',
            " row 3: broken quotes (',' expected after '\"'); close each quoted cell, and write a quote inside it "
            "twice.",
        ),
        (
            "image,tags\na,b\nc,d,e\n",
            " row 3: 3 cells, but the header has 2; if 'd,e' is one cell, write it in quotes, as in \"d,e\"; if "
            "another character separates the cells, pass ReadOptions(delimiter='CHARACTER').",
        ),
        (
            "image\na.jpg\n",
            ": a single column 'image' when split at ','; expected an image column and labels. Pass "
            "ReadOptions(delimiter='CHARACTER') if another character separates the cells.",
        ),
        ("image,a,a\n", ": several columns are called 'a'; rename them."),
        ("a.jpg,cat\n", " row 1: 'a.jpg' looks like a photo, not like a column; add a header such as 'image,tags'."),
        (b"image,tags\na,b\nc,\xff\n", " row 3: not UTF-8 text; save the table as 'CSV UTF-8'."),
        (b"image,tags\na,\0\n", " row 2: a null character; is this a text file?"),
    ],
)
def test_errors(write, text, message):
    file = write(text)
    with pytest.raises(DataError) as error:
        read_sheet(file)
    assert str(error.value) == f"{file}{message}"


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_sheet(tmp_path)


def test_columns_are_found_by_name(write):
    sheet = read_sheet(write("image,Cat,cat,Dog\nx,1,2,3\n"))
    assert (sheet.find("cat"), sheet.find("dog "), sheet.find("Cat")) == (2, 3, 1)
    with pytest.raises(DataError) as error:
        sheet.find("Dgo")
    assert str(error.value).endswith(
        "there is no column 'Dgo' (did you mean 'Dog'?); its columns are 'image', 'Cat', 'cat', 'Dog'."
    )
    with pytest.raises(DataError, match="there is no column 'CAT'"):
        sheet.find("CAT")


def test_a_quote_that_is_left_open_over_a_long_text(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('image,tags\na.jpg,"' + "x" * 200_000 + "\n")
    with pytest.raises(DataError) as error:
        read_sheet(file)
    assert str(error.value) == (
        f"{file} row 2: a cell is too long (field larger than field limit (131072)); is a quote left open?"
    )


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


def test_what_is_label():
    words = Words(ReadOptions())
    assert [w for w in ("1", "0", "-1", "u", "?", "", "nan", "cat") if words.is_label(w)] == ["1", "0", "-1", "u"]


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
    "a.csv: no word means absent (0), and -1 is read as uncertain, so that {} cells are unknown. If -1 means "
    "absent, pass ReadOptions(uncertain='zeros'); if it means uncertain, pass "
    "ReadOptions(unknown_words=('-1',)) to confirm it."
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
def test_minus_one_without_a_zero_is_reported(counts, options, uses):
    found = Words(ReadOptions(**options)).unsure("a.csv", [Counter(counts)])
    assert found == ((UNSURE.format(uses),) if uses else ())
