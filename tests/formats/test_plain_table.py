"""The fast reader of plain text tables: it reads what the careful one reads, or leaves the table to it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fewtags.formats.plain_table
import fewtags.formats.sheet
from fewtags.errors import ConfigError, DataError
from fewtags.formats.csv import read_csv
from fewtags.formats.options import ReadOptions
from fewtags.formats.plain_table import plain_columns
from fewtags.formats.sheet import read_sheet

BOM = "\ufeff"


def sheet(file, delimiter):
    try:
        found = read_sheet(file, delimiter)
    except (DataError, ConfigError) as error:
        return str(error)
    assert [*found.values] == [column.counts() for column in found.coded]
    counts = [[*column.items()] for column in found.values]
    return found.delimiter, found.header, [[*column] for column in found.columns], found.lines.tolist(), counts


def table(file, options):
    try:
        found = read_csv(file, None, options)
    except (DataError, ConfigError) as error:
        return str(error)
    return found.fingerprint, found.notes, found.facts.to_pylist()


def both(read, file, given):
    """What the fast and the careful reader say, and whether the fast one was used."""
    used = []
    plain = fewtags.formats.sheet._plain_sheet

    def watched(*arguments):
        used.append(plain(*arguments))
        return used[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fewtags.formats.sheet, "_plain_sheet", watched)
        fast = read(file, given)
        patch.setattr(fewtags.formats.sheet, "_plain_sheet", lambda *_: None)
        return fast, read(file, given), bool(used and used[0] is not None)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "a.csv"


@pytest.fixture(params=[(1, 200), (1 << 24, 1 << 20)], ids=["small parts", "large parts"])
def parts(request, monkeypatch):
    block, part = request.param
    monkeypatch.setattr(fewtags.formats.plain_table, "_BLOCK", block)
    monkeypatch.setattr(fewtags.formats.plain_table, "_PART", part)


scraps = st.sampled_from(
    [*',;\t|"\n a1é', "\r\n", "\r", '""', ',"', '",', "\n\n", "x.jpg", "\0", "\u2028", "NaN", "\x1a"]
)
unusual = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@unusual
@given(
    header=st.sampled_from(
        ["image,class,state\n", "a,b\r\n", '"a","b"\n', "sep=;\na;b\n", BOM + "a\tb\n", "a|b\n", "", 'a,"b\n"\n']
    ),
    body=st.lists(scraps, max_size=14),
    delimiter=st.sampled_from([None, None, None, ",", ";", "tab", "é", "\n", "::"]),
)
def test_any_text(file, parts, header, body, delimiter):
    file.write_bytes((header + "".join(body)).encode())
    fast, careful, _ = both(sheet, file, delimiter)
    assert fast == careful


texts = st.text(st.sampled_from("ab é'#"), max_size=5)


@st.composite
def plain(draw):
    """A table that is plain, as bytes: one line end, one delimiter, cells quoted or not."""
    comma, end = draw(st.sampled_from(",\t;|")), draw(st.sampled_from(["\n", "\r\n"]))
    quoted = texts.map(lambda text: f'"{text}"') | texts.map(lambda text: f'"{text}{comma}{text}"')
    rows = draw(st.lists(st.lists(texts | quoted, min_size=3, max_size=3), min_size=1, max_size=20))
    lines = [*map(comma.join, [["image", '"class"', "x"], *rows])]
    return ((BOM if draw(st.booleans()) else "") + end.join(lines) + draw(st.sampled_from(["", end]))).encode()


@unusual
@given(data=plain())
def test_plain_tables_are_read_fast(file, parts, data):
    file.write_bytes(data)
    fast, careful, used = both(sheet, file, None)
    assert fast == careful
    assert used


@unusual
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["a.jpg", "b.jpg", "b.jpg", " a.jpg", "", "../c.jpg"]),
            st.sampled_from(["cat", "dog", "cat ", "", "none", "not cat", "-dog"]),
            st.sampled_from(["positive", "negative", "1", "0", "", "?", "-1", "maybe"]),
            st.sampled_from(["", "", "0.5", "nan", "x", "1.5"]),
        ),
        min_size=1,
        max_size=6,
    ),
    columns=st.sampled_from(
        [
            ("image", "class", "state"),
            ("image", "class"),
            ("image", "cat", "dog"),
            ("image", "class", "x0", "y0", "x1", "y1"),
        ]
    ),
    options=st.sampled_from([{}, {"complete": True}, {"uncertain": "ones"}, {"blank": "negative"}]),
)
def test_tables_of_labels(file, rows, columns, options):
    """The same labels, notes and errors, with file, row and value."""
    cells = [(row[0], *{3: row[1:3], 2: row[1:2], 6: (row[1], *row[3:] * 4)}[len(columns)]) for row in rows]
    file.write_text("".join(",".join(row) + "\n" for row in [columns, *cells]))
    fast, careful, _ = both(table, file, ReadOptions(**options))
    assert fast == careful


@pytest.mark.parametrize(
    "text",
    [
        'a,b\nx"y,z\n',  # a quote within a cell
        'a,b\n"x"y,z\n',
        'a,b\n"x""y",z\n',  # a doubled quote
        'a,b\n"x\ny",z\n',  # a line end within a cell
        'a,b\n",","",x",\n',
        "a,b\n\nx,y\n",  # a blank line
        "a,b\nx\n",
        "a,b\nx,y,\n",  # a blank cell beyond the header
        "a,b\nx,\0\n",
        "a,b\nx\r,y\n",
        "a,b\nx,\x80\n",
        "a,b\nx," + "y" * 100_001,
        "a,b\n",
        "",
    ],
)
def test_what_is_not_plain(text):
    assert plain_columns(text.encode("latin-1"), ",", 2) is None


def test_a_plain_table():
    columns = plain_columns(b'a,b\r\nx,"1,2"\r\ny,\r\nx,""', ",", 2)
    assert [(column.words, column.codes.tolist()) for column in columns] == [
        (["x", "y"], [0, 1, 0]),
        (["1,2", ""], [0, 1, 1]),
    ]
