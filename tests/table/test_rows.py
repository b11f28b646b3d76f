"""The rows of a Parquet file: the fast ways through a file that we wrote read what the careful ones read."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewtags.table.coded
import fewtags.table.rows
from fewtags.errors import DataError
from fewtags.table.coded import WORDS
from fewtags.table.rows import COLUMNS
from fewtags.table.storage import load

HEADER = {"format": 1, "ids": ["cat", "dog"], "names": ["cat", "dog"], "covers": [[0]], "root": None, "messages": []}
NUMBERS = ("x0", "y0", "x1", "y1")


def words(*values):
    return st.sampled_from(values)


@st.composite
def rows(draw):
    """Rows, most of them possible; images and splits in one run or not."""
    image = words("a", "b", "c", "é", *([None] if draw(st.integers(0, 9)) == 0 else []))
    silent = st.fixed_dictionaries({"class": st.none(), "state": st.none(), "source": st.none()})
    fact = st.fixed_dictionaries(
        {"class": words("cat", "dog", "dog", "bird")}
        if draw(st.integers(0, 9)) == 0
        else {"class": words("cat", "dog"), "state": words(-1, 1), "source": words("one", "two")}
    )
    found = draw(st.lists(st.tuples(image, fact | silent), max_size=12))
    if draw(st.booleans()):
        found.sort(key=lambda row: row[0] or "")
    split = dict(zip("abcé", draw(st.lists(words("train", "val"), min_size=4, max_size=4)), strict=True))
    named, closed, boxed = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    return [
        dict.fromkeys(COLUMNS)
        | row
        | {"image": name, "split": split.get(name) if named else None, "closed": 0 if closed and name == "a" else None}
        | (dict.fromkeys(NUMBERS, 0.5) if boxed and i % 2 and row["class"] else {})
        for i, (name, row) in enumerate(found)
    ]


def write(path, found, group, words):
    """Words are texts, codes of one dictionary, or codes of a dictionary of each row group, as `save` writes them."""
    kinds = {name: pa.string() if kind == WORDS and words == "texts" else kind for name, kind in COLUMNS.items()}
    schema = pa.schema(list(kinds.items()), metadata={b"fewtags": json.dumps(HEADER).encode()})
    table = pa.Table.from_pylist(found, schema)
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        for start in range(0, max(1, len(found)), group):
            own = pa.Table.from_pylist(found[start : start + group], schema)
            file.write_table(own if words == "own codes" else table.slice(start, group))


def outcome(path):
    """Everything in a table, or the error."""
    try:
        table = load(path)
    except DataError as error:
        return str(error)
    columns = {name: table.facts[name].to_pylist() for name in table.facts.column_names}
    splits = None if table.split_names is None else table.split_names.to_pylist()
    return table.images.to_pylist(), columns, table.complete_set.tolist(), splits, table.matrix.dense().tolist()


@pytest.mark.filterwarnings("error")
@given(found=rows(), group=st.integers(1, 5), kind=words("texts", "codes", "own codes"))
def test_fast_and_careful_ways_agree(tmp_path_factory, found, group, kind):
    path = tmp_path_factory.mktemp("rows") / "table.parquet"
    write(path, found, group, kind)
    fast = outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fewtags.table.coded, "_in_own_order", lambda _: None)
        patch.setattr(fewtags.table.rows, "_is_null", lambda *_: False)
        patch.setattr(fewtags.table.rows, "checked", fewtags.table.coded.coded)
        assert outcome(path) == fast
    if isinstance(fast, tuple):
        assert fast[0] == list(dict.fromkeys(row["image"] for row in found))
        facts = [row for row in found if row["class"]]
        assert [fast[0][i] for i in fast[1]["image"]] == [row["image"] for row in facts]
        assert [HEADER["ids"][c] for c in fast[1]["class"]] == [row["class"] for row in facts]
        for name in ("state", "source", *NUMBERS):
            assert fast[1][name] == [row[name] for row in facts]


def test_an_image_that_ends_a_row_group_and_begins_the_next(tmp_path):
    """And one that comes back later: codes are of words in order of appearance in both."""
    for images in ("aabbbc", "aabbca"):
        found = [dict.fromkeys(COLUMNS) | {"image": image} for image in images]
        write(tmp_path / "table.parquet", found, 2, "own codes")
        with pyarrow.parquet.ParquetFile(tmp_path / "table.parquet") as file:
            column = file.read(["image"])["image"]
        fast = fewtags.table.coded._in_own_order(column)
        careful = fewtags.table.coded._in_any_order(column)
        assert careful.words.to_pylist() == ["a", "b", "c"]
        assert (fast is None) == (images == "aabbca")
        if fast is not None:
            assert fast.words.to_pylist() == careful.words.to_pylist()
            assert fast.codes.tolist() == careful.codes.tolist() == [0, 0, 1, 1, 1, 2]
