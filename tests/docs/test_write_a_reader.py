"""The reader of docs/write_a_reader.md is run on files, and the guide names every format."""

import re
from pathlib import Path

import pytest
from seen import facts, labels

from fewtags.errors import DataError
from fewtags.formats import FORMATS
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

DOCS = Path(__file__).parents[2] / "docs"
P, N = Label.POSITIVE, Label.NEGATIVE


@pytest.fixture(scope="module")
def page():
    return (DOCS / "write_a_reader.md").read_text("utf-8")


@pytest.fixture(scope="module")
def reader(page):
    """The names that the module of the page defines."""
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(code, "docs/write_a_reader.md", "exec"), names)
    return names["read_jsonlines"]


@pytest.fixture
def example(page, tmp_path):
    (text,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "a.ndjson").write_text(text)
    return tmp_path / "a.ndjson"


def test_the_example_is_read(reader, example):
    table = reader(example)
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P}, "b.jpg": {}}
    assert facts(table) == [("a.jpg", "cat", P, (0.1, 0.1, 0.5, 0.5)), ("a.jpg", "dog", P, None)]
    assert table.split_names.to_pylist() == ["train", ""]
    assert [str(r) for r in table.notes.readings] == [
        "a.ndjson: label -> positive (2)",
        "a.ndjson: class that is not named -> unknown (2)",
    ]
    assert labels(reader(example, options=ReadOptions(complete=True)))["b.jpg"] == {"cat": N, "dog": N}


def test_what_cannot_be_read_is_reported(reader, tmp_path):
    file = tmp_path / "a.ndjson"
    file.write_text('{"image": "a.jpg", "labels": [{"name": "cat", "box": [0.1, "x"]}, 3]}\n')
    table = reader(file)
    assert labels(table) == {"a.jpg": {"cat": P}}
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("line 1", "label 3 has no name"),
        ("line 1", "its box has coordinates that are not numbers; its label is kept"),
    ]
    file.write_text('{"image": "a.jpg", "labels": [{"name": "cat"}]}\n{"labels": []}\n')
    with pytest.raises(DataError, match=r"line 2: expected an object with 'image'"):
        reader(file)


def test_the_guide_names_every_format():
    """In the order of `FORMATS`, where it says how to name one."""
    assert f"({', '.join(f'`{name}`' for name in FORMATS)})" in (DOCS / "guide.md").read_text("utf-8")
