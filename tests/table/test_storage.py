"""Tables on disk: nothing lost, nothing believed, nothing half written."""

import csv
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewtags.table.storage
from fewtags.errors import DataError, DiskError
from fewtags.files import replacing
from fewtags.formats import csv as table_csv
from fewtags.labels import ClassNames, Label
from fewtags.table.merge import merge
from fewtags.table.storage import load, save, unwritten_classes, write_csv
from fewtags.table.table import FACTS, LabelTable

NOWHERE = (np.nan,) * 4


def table_of(keys, facts, classes=("cat", "dog"), names=None, **more):
    """A table from (image, class, state, box) tuples."""
    return LabelTable.build(
        keys,
        ClassNames.of(classes, names),
        image=np.array([f[0] for f in facts], int),
        class_=np.array([f[1] for f in facts], int),
        state=np.array([f[2] for f in facts], int),
        locations=np.array([f[3] for f in facts], float).reshape(-1, 4),
        **more,
    )


def example():
    """Facts out of order, a box, an image without facts, complete sets, two sources, split names."""
    one = table_of(
        ["ü/b.jpg", "a.jpg", "c, d.jpg", "e.jpg"],
        [(3, 1, -1, NOWHERE), (0, 0, 1, (0.1, 0.2, 0.3, 0.4)), (0, 0, 1, (0.5, 0.5, 0.5, 0.5)), (3, 0, 1, NOWHERE)],
        names=["Cat", "Dog"],
        source="one",
        complete_set=np.array([-1, 1, -1, 0]),
        complete_classes=np.array([[True, False], [True, True]]),
        split=["train", "val", "", "train"],
    )
    return merge([one, table_of(["e.jpg"], [(0, 1, 1, NOWHERE)], source="two")])


@st.composite
def tables(draw):
    n, c, s = draw(st.integers(0, 5)), draw(st.integers(0, 4)), draw(st.integers(0, 2))
    box = st.sampled_from([NOWHERE, (0.0, 0.25, 1 / 3, 1.0)])
    fact = st.tuples(st.integers(0, n - 1), st.integers(0, c - 1), st.sampled_from([-1, 1]), box)
    bits = st.lists(st.booleans(), min_size=c, max_size=c)
    return table_of(
        draw(st.lists(st.text(st.characters(codec="utf-8")), min_size=n, max_size=n, unique=True)),
        draw(st.lists(fact, max_size=10)) if n and c else [],
        [f"c{j}" for j in range(c)],
        source=draw(st.text(st.characters(codec="utf-8"))),
        complete_set=np.array(draw(st.lists(st.integers(-1, s - 1), min_size=n, max_size=n)), int),
        complete_classes=np.array(draw(st.lists(bits, min_size=s, max_size=s)), bool).reshape(s, c),
        split=draw(st.none() | st.lists(st.sampled_from(["train", "val", ""]), min_size=n, max_size=n)),
    )


# --- Parquet


@given(tables())
def test_what_is_saved_is_loaded(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("tables") / "table.parquet"
    save(table, path)
    found = load(path)
    assert found.fingerprint == table.fingerprint
    assert found.images.to_pylist() == table.images.to_pylist()
    assert found.facts.schema == FACTS
    assert sorted(found.facts["source"].to_pylist()) == sorted(table.facts["source"].to_pylist())
    if len(table):  # Without images there are no rows to say that the images have split names.
        assert (found.split_names is None) == (table.split_names is None)
        assert table.split_names is None or found.split_names.to_pylist() == table.split_names.to_pylist()


def test_a_file_can_be_read_by_anyone(tmp_path):
    """Rows by image, in the table's order, one for each silent image too; ids, not display names; nulls for nothing."""
    save(example(), tmp_path / "table.parquet")
    raw = pyarrow.parquet.read_table(tmp_path / "table.parquet")
    rows = [
        tuple(row.values()) for row in raw.select(["image", "class", "state", "source", "split", "closed"]).to_pylist()
    ]
    assert rows == [
        ("ü/b.jpg", "cat", 1, "one", "train", None),
        ("ü/b.jpg", "cat", 1, "one", "train", None),
        ("a.jpg", None, None, None, "val", 1),
        ("c, d.jpg", None, None, None, "", None),
        ("e.jpg", "dog", -1, "one", "train", 0),
        ("e.jpg", "cat", 1, "one", "train", 0),
        ("e.jpg", "dog", 1, "two", "train", 0),
    ]
    assert raw["x1"].to_pylist() == [pytest.approx(0.3), 0.5, None, None, None, None, None]
    assert json.loads(raw.schema.metadata[b"fewtags"]) == {
        "format": 1,
        "ids": ["cat", "dog"],
        "names": ["Cat", "Dog"],
        "covers": [[0], [0, 1]],
        "root": None,
        "messages": ["merged 2 sources (1 4, 2 1 images) into 4 images, 2 classes"],
    }


def test_display_names_messages_and_splits_come_back(tmp_path):
    save(example(), tmp_path / "table.parquet")
    found = load(tmp_path / "table.parquet")
    assert found.classes == ClassNames.of(["cat", "dog"], ["Cat", "Dog"])
    assert found.notes.messages == example().notes.messages
    assert list(found.named_splits()) == ["train", "val", ""]
    assert found.summary() == example().summary()


def test_the_root_is_stored_only_when_asked_for_and_can_be_replaced(tmp_path):
    table, path = example().with_root("photos/new"), tmp_path / "table.parquet"
    save(table, path)
    assert load(path).root is None
    assert load(path, root="here").root == Path("here")
    save(table, path, keep_root=True)
    assert load(path).root == Path("photos/new")
    assert load(path, root=Path("here")).root == Path("here")


def test_a_file_rewritten_by_another_tool_is_read_too(tmp_path):
    """Plain strings, wide numbers, row groups, images not in one run: what a data-frame library makes of the file."""
    save(example(), tmp_path / "table.parquet")
    raw = pyarrow.parquet.read_table(tmp_path / "table.parquet").take([0, 2, 3, 4, 1, 5, 6])
    wide = {pa.int8(): pa.int64(), pa.int16(): pa.int64(), pa.float32(): pa.float64()}
    plain = pa.table(
        {name: raw[name].cast(wide.get(raw[name].type, pa.large_string())) for name in raw.column_names},
        metadata=raw.schema.metadata,
    )
    pyarrow.parquet.write_table(plain, tmp_path / "other.parquet", row_group_size=2)
    assert load(tmp_path / "other.parquet").fingerprint == example().fingerprint


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_row_groups_have_the_words_of_their_own_images(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(fewtags.table.storage, "_ROW_GROUP", rows)
    save(example(), tmp_path / "table.parquet")
    assert load(tmp_path / "table.parquet").fingerprint == example().fingerprint
    with pyarrow.parquet.ParquetFile(tmp_path / "table.parquet") as file:
        assert file.metadata.num_row_groups == -(-file.metadata.num_rows // rows)
        first = file.read_row_group(0, ["image"])["image"].chunk(0)
    assert 0 < len(first.dictionary) <= rows


def test_codes_in_another_order_are_put_in_order_of_appearance(tmp_path):
    """Another program's dictionary: it begins with a word that no row has, and with the last image."""
    save(example(), tmp_path / "table.parquet")
    raw = pyarrow.parquet.read_table(tmp_path / "table.parquet")
    words = raw["image"].combine_chunks()
    keys = words.dictionary.to_pylist()
    turned = pa.DictionaryArray.from_arrays(
        pa.array([len(keys) - code for code in words.indices.to_pylist()], pa.int32()), pa.array(["other", *keys[::-1]])
    )
    pyarrow.parquet.write_table(raw.set_column(0, "image", turned), tmp_path / "other.parquet")
    assert load(tmp_path / "other.parquet").images.to_pylist() == example().images.to_pylist()
    assert load(tmp_path / "other.parquet").fingerprint == example().fingerprint


def test_saving_replaces_a_file_only_when_it_succeeds(tmp_path, monkeypatch):
    path = tmp_path / "table.parquet"
    save(example(), path)
    before = path.read_bytes()

    class Full:
        def __init__(self, where, schema, **options):
            Path(where).write_bytes(b"half of it")
            raise OSError("No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "ParquetWriter", Full)
    with pytest.raises(OSError, match="No space left"):
        save(example(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["table.parquet"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DiskError) as error:
        save(example(), tmp_path / "no" / "table.parquet")
    assert str(error.value) == (
        f"cannot write {str(tmp_path / 'no' / 'table.parquet')!r}: the folder {str(tmp_path / 'no')!r} does "
        f"not exist; make "
        "it first."
    )


def test_replacing_leaves_nothing_behind(tmp_path):
    with replacing(tmp_path / "x") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "x").exists()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x", "new")]


# --- files that are not to be trusted


def rewritten(path, change=None, header=None):
    """The example's file with some columns or its header changed; the columns as plain types."""
    save(example(), path)
    raw = pyarrow.parquet.read_table(path)
    columns = {name: raw[name].to_pylist() for name in raw.column_names}
    for name, row, value in change or ():
        columns[name][row] = value
    said = json.loads(raw.schema.metadata[b"fewtags"])
    for key, value in (header or {}).items():
        said[key] = value
        if value is None:
            del said[key]
    types = {name: pa.string() if pa.types.is_dictionary(raw[name].type) else raw[name].type for name in columns}
    schema = pa.schema(list(types.items()), metadata={b"fewtags": json.dumps(said).encode()})
    pyarrow.parquet.write_table(pa.table(columns, schema=schema), path)
    return path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ([("image", 2, None)], "row 3 (image None) has no image"),
        ([("state", 0, 3)], "row 1 (image 'ü/b.jpg') has a state that is neither -1 nor 1"),
        ([("state", 0, None)], "row 1 (image 'ü/b.jpg') has a state that is neither -1 nor 1"),
        ([("state", 2, 1)], "row 3 (image 'a.jpg') has a state but no class"),
        ([("class", 5, "bird")], "row 6 (image 'e.jpg') has a class that is not in the file's vocabulary"),
        ([("source", 4, None)], "row 5 (image 'e.jpg') has a label without a source"),
        ([("closed", 6, 1)], "row 7 (image 'e.jpg') has a different 'closed' than other rows of the same image"),
        ([("closed", 2, 2)], "row 3 (image 'a.jpg') has a 'closed' that is not one of the 2 sets of classes"),
        ([("closed", 2, -2)], "row 3 (image 'a.jpg') has a 'closed' that is not one of the 2 sets of classes"),
        ([("split", 5, "val")], "row 6 (image 'e.jpg') is in another split than other rows of the same image"),
        ([("split", 3, None)], "row 4 (image 'c, d.jpg') has no split, but other rows have one"),
        *(
            ([change], "row 1 (image 'ü/b.jpg') has a location that is not 0 <= x0 <= x1 <= 1 and 0 <= y0 <= y1 <= 1")
            for change in (
                ("x0", 0, None),
                ("x0", 0, 0.9),
                ("x0", 0, -0.1),
                ("y1", 0, 1.1),
                ("y1", 0, float("nan")),
                ("x1", 0, float("inf")),
            )
        ),
    ],
)
def test_rows_that_cannot_be(tmp_path, change, why):
    with pytest.raises(DataError) as error:
        load(rewritten(tmp_path / "table.parquet", change))
    assert str(error.value) == f"table.parquet {why}; the file was changed or damaged."


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": 2}, "table.parquet has format 2, this fewtags reads 1; install a newer fewtags."),
        ({"format": None}, "table.parquet: its 'fewtags' metadata is damaged (format: Field required)."),
        (
            {"format": "1"},
            "table.parquet: its 'fewtags' metadata is damaged (format: Input should be a valid integer).",
        ),
        (
            {"ids": ["cat", 3]},
            "table.parquet: its 'fewtags' metadata is damaged (ids.1: Input should be a valid string).",
        ),
        (
            {"covers": [[0], [-1]]},
            "table.parquet: its 'fewtags' metadata is damaged (covers.1.0: Input should be greater than or equal "
            "to 0).",
        ),
        (
            {"more": 1},
            "table.parquet: its 'fewtags' metadata is damaged (more: Extra inputs are not permitted).",
        ),
        (
            {"covers": [[0], [0, 2]]},
            "table.parquet: 'covers' in its metadata has class number 2, but there are 2 classes.",
        ),
        ({"names": ["Cat"]}, "2 class ids but 1 display names; give one name per id."),
    ],
)
def test_headers_that_cannot_be(tmp_path, header, message):
    with pytest.raises(DataError) as error:
        load(rewritten(tmp_path / "table.parquet", header=header))
    assert str(error.value) == message


@pytest.mark.parametrize("said", [b"no json", b"[" * 100_000, b"\xff\xfe", b"[1]"])
def test_metadata_that_is_no_header(tmp_path, said):
    pyarrow.parquet.write_table(pa.table({}).replace_schema_metadata({b"fewtags": said}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"^x\.parquet: its 'fewtags' metadata is damaged"):
        load(tmp_path / "x.parquet")


def test_other_files_are_told_apart(tmp_path):
    with pytest.raises(DataError, match=r"there is no file '.*nothing\.parquet'"):
        load(tmp_path / "nothing.parquet")
    with pytest.raises(DataError, match="cannot be read as a Parquet file"):
        load(tmp_path)
    (tmp_path / "text.parquet").write_text("image,class\na.jpg,cat\n")
    with pytest.raises(DataError, match=r"text\.parquet cannot be read as a Parquet file"):
        load(tmp_path / "text.parquet")
    pyarrow.parquet.write_table(pa.table({"image": ["a.jpg"]}), tmp_path / "frame.parquet")
    with pytest.raises(DataError) as error:
        load(tmp_path / "frame.parquet")
    assert str(error.value) == (
        "frame.parquet is a Parquet file but not a label table (its metadata has no 'fewtags'); give a CSV instead."
    )


def test_a_cut_off_file_is_an_error(tmp_path):
    save(example(), tmp_path / "table.parquet")
    whole = (tmp_path / "table.parquet").read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        (tmp_path / "table.parquet").write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"table\.parquet cannot be read as a Parquet file"):
            load(tmp_path / "table.parquet")


def test_flipped_bytes_are_found(tmp_path):
    """Whatever byte of the rows is damaged (before the footer): the table is as it was, or there is an error."""
    path = tmp_path / "table.parquet"
    save(example(), path)
    whole, fingerprint = path.read_bytes(), example().fingerprint
    outcomes = []
    for at in range(0, len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            outcomes.append(load(path).fingerprint == fingerprint)
        except DataError:
            outcomes.append(None)
    assert outcomes.count(None) > len(outcomes) / 2
    assert False not in outcomes


def test_a_damaged_footer_is_found(tmp_path):
    """pyarrow ends the process if it is asked for damaged statistics, so they are not asked for."""
    path = tmp_path / "table.parquet"
    save(example(), path)
    whole, damaged = path.read_bytes(), 0
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in range(footer, footer + 120):  # the schema: with another one, the statistics do not fit
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
        with suppress(DataError):
            load(path)
            continue
        damaged += 1
    assert damaged > 20


def test_text_that_is_not_utf8(tmp_path):
    path = rewritten(tmp_path / "table.parquet")
    raw = pyarrow.parquet.read_table(path)
    codes, names = raw["image"].combine_chunks().dictionary_encode().indices, [b"\xff.jpg", b"a", b"b", b"c"]
    images = pa.array(names).take(codes).view(pa.string())
    pyarrow.parquet.write_table(raw.set_column(0, "image", images), path)
    with pytest.raises(DataError, match=r"table\.parquet: column 'image' has type string, not dictionary"):
        load(path)


def test_missing_and_mistyped_columns(tmp_path):
    save(example(), tmp_path / "table.parquet")
    raw = pyarrow.parquet.read_table(tmp_path / "table.parquet")
    pyarrow.parquet.write_table(raw.drop_columns("state"), tmp_path / "less.parquet")
    with pytest.raises(DataError) as error:
        load(tmp_path / "less.parquet")
    assert str(error.value) == (
        "less.parquet has no column 'state'; a label table has image, class, state, x0, y0, x1, y1, source, "
        "split, closed."
    )
    words = raw.set_column(2, "state", pa.array(["yes"] * len(raw)))
    pyarrow.parquet.write_table(words, tmp_path / "words.parquet")
    with pytest.raises(DataError, match=r"words\.parquet: column 'state' has type string, not int8 \("):
        load(tmp_path / "words.parquet")
    big = raw.set_column(2, "state", pa.array([1000] * len(raw)))
    pyarrow.parquet.write_table(big, tmp_path / "big.parquet")
    with pytest.raises(DataError, match=r"big\.parquet: column 'state' has type int64, not int8 \("):
        load(tmp_path / "big.parquet")


# --- CSV


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_by_hand(tmp_path):
    """ "a.jpg" is complete for both classes and has no fact, "e.jpg" for cat, which it has; "c, d.jpg" has no label."""
    write_csv(example(), tmp_path / "table.csv")
    rows = read_csv(tmp_path / "table.csv")
    assert list(rows[0]) == ["image", "class", "state", "x0", "y0", "x1", "y1", "source", "split"]
    assert [(r["image"], r["class"], r["state"], r["source"]) for r in rows] == [
        ("ü/b.jpg", "cat", "positive", "one"),
        ("ü/b.jpg", "cat", "positive", "one"),
        ("a.jpg", "cat", "negative", "(complete annotation)"),
        ("a.jpg", "dog", "negative", "(complete annotation)"),
        ("c, d.jpg", "", "", ""),
        ("e.jpg", "dog", "negative", "one"),
        ("e.jpg", "cat", "positive", "one"),
        ("e.jpg", "dog", "positive", "two"),
    ]
    assert [r["x0"] for r in rows] == ["0.1", "0.5", "", "", "", "", "", ""]
    assert [r["split"] for r in rows] == ["train", "train", "val", "val", "", "train", "train", "train"]


def test_csv_without_splits_has_no_column_of_them(tmp_path):
    write_csv(replace(example(), split_names=None), tmp_path / "table.csv")
    assert list(read_csv(tmp_path / "table.csv")[0])[-2:] == ["y1", "source"]


def test_the_reader_of_csv_finds_the_splits_again(tmp_path):
    """One image of each split, one of them without a label, and one of no split."""
    keys = ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    for key in keys:
        (tmp_path / key).touch()
    table = table_of(
        keys,
        [(0, 0, 1, (0.25, 0.25, 0.5, 0.75)), (1, 1, -1, NOWHERE), (3, 0, 1, NOWHERE)],
        split=["train", "val", "extra set", ""],
    )
    write_csv(table, tmp_path / "table.csv")
    back = table_csv.read_csv(tmp_path / "table.csv")
    assert back.split_names.to_pylist() == ["train", "val", "extra set", ""]
    assert back.fingerprint == table.fingerprint


def test_classes_that_a_csv_does_not_name():
    """Cat is named by a fact, dog by a complete set alone; emu by a set that no image uses, and fox not at all."""
    table = table_of(
        ["a.jpg", "b.jpg"],
        [(0, 0, 1, NOWHERE)],
        classes=("cat", "dog", "emu", "fox"),
        complete_set=np.array([-1, 1]),
        complete_classes=np.array([[False, False, True, False], [False, True, False, False]]),
    )
    assert unwritten_classes(table) == ["emu", "fox"]
    assert unwritten_classes(replace(table, complete_set=np.full(2, -1, np.int16))) == ["dog", "emu", "fox"]
    assert unwritten_classes(table.subset([])) == ["cat", "dog", "emu", "fox"]


@given(tables(), st.integers(1, 7))
def test_csv_says_what_the_table_says(tmp_path_factory, table, block):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fewtags.table.storage, "_CSV_BLOCK", block)
        write_csv(table, path)
    rows = read_csv(path)
    assert list(dict.fromkeys(r["image"] for r in rows)) == table.images.to_pylist()
    dense = table.matrix.dense()
    for i, key in enumerate(table.images.to_pylist()):
        for j, class_id in enumerate(table.classes.ids):
            states = {r["state"] for r in rows if (r["image"], r["class"]) == (key, class_id)}
            expected = {Label.POSITIVE: {"positive"}, Label.NEGATIVE: {"negative"}}.get(dense[i, j])
            assert states == expected if expected else states in (set(), {"positive", "negative"})


def test_csv_without_implied_negatives(tmp_path):
    write_csv(example(), tmp_path / "table.csv", implied_negatives=False)
    rows = read_csv(tmp_path / "table.csv")
    assert len(rows) == 7
    assert [r["class"] for r in rows if r["image"] == "a.jpg"] == [""]


def test_too_many_implied_negatives_for_a_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(fewtags.table.storage, "_MOST_CSV_ROWS", 2)
    with pytest.raises(DataError) as error:
        write_csv(example(), tmp_path / "table.csv")
    assert str(error.value) == (
        "3 negatives of completely annotated images are too many for a CSV (at most 2); give a name that ends in "
        ".parquet, or in Python implied_negatives=False."
    )
    write_csv(replace(example(), complete_set=np.full(4, -1, np.int16)), tmp_path / "table.csv")
    assert len(read_csv(tmp_path / "table.csv")) == 7
