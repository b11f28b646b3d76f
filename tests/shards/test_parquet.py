"""Parquet files with photos: which column, which names, which rows."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shard_files import parquet_bytes, png

from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.formats.unlabelled import unlabelled
from fewtags.photos.decode import read_image
from fewtags.shards import parquet
from fewtags.shards.parquet import photo_column
from fewtags.shards.photos import open_bytes
from fewtags.table.storage import save

PHOTOS = [png(n) for n in range(5)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWTAGS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path):
    def call(columns, **more):
        path = tmp_path / "x.parquet"
        path.write_bytes(parquet_bytes(columns, **more))
        return path

    return call


def names(path):
    return [str(photo).removeprefix(f"{path}/") for photo in find_photos([path])[0]]


def structs(paths, contents=PHOTOS):
    return [{"bytes": content, "path": path} for content, path in zip(contents, paths, strict=True)]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"image": structs(["b/1.png", "a/2.png", "./3", "/4.png", "../5.png"])}, "b/1.png a/2.png 3 4.png 5.png"),
        ({"image": structs([None] * 5), "file_name": list("vwxyz")}, "v w x y z"),
        ({"image": structs(list("aabcd")), "id": [7, 8, 9, 10, 11]}, "7 8 9 10 11"),
        ({"image": structs(list("aabcd"))}, "row-0 row-1 row-2 row-3 row-4"),
        ({"image": PHOTOS, "path": ["", "b", "c", "d", "e"]}, "row-0 row-1 row-2 row-3 row-4"),
        ({"jpg": PHOTOS, "__key__": [r"a\0", "a/1", "a/2", "a/3", "a/4"]}, "a/0 a/1 a/2 a/3 a/4"),
    ],
)  # fmt: skip
def test_rows_are_named_by_a_column_with_distinct_values(write, columns, wanted):
    """Else by their number. Each name gives the bytes of its row, from row groups of two rows."""
    path = write(columns)
    found = names(path)
    assert found == wanted.split()
    for name, content in zip(found, PHOTOS, strict=True):
        with open_bytes(path / name) as file:
            assert file.read() == content


@pytest.mark.parametrize(
    ("columns", "metadata", "chosen"),
    [
        (["label", "image"], None, "image"),
        (["mask", "image"], None, "image"),
        (["mask", "scan"], {"huggingface": json.dumps({"info": {"features": {"scan": {"_type": "Image"}}}})}, "scan"),
        (["photo"], {"huggingface": "damaged"}, "photo"),
    ],
)
def test_the_column_of_photos(columns, metadata, chosen):
    kinds = {"label": pa.int64()}
    schema = pa.schema([(name, kinds.get(name, pa.binary())) for name in columns], metadata=metadata)
    assert photo_column(schema, "x.parquet") == (chosen, None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"left": PHOTOS, "right": PHOTOS},
            "has several columns of bytes, left, right; name the one with the photos 'image'",
        ),
        (
            {"label": [1], "text": ["a"]},
            "has no column of photos, only label, text; expected a column of bytes, or of struct{bytes, path} as "
            "Hugging Face writes it",
        ),
    ],
)
def test_a_file_without_a_clear_column_of_photos(write, columns, message):
    path = write(columns)
    with pytest.raises(DataError) as caught:
        find_photos([path])
    assert str(caught.value) == f"{path}: {message}."


def test_what_is_no_parquet_file(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"x\.parquet: cannot be read as a Parquet file \(.*\); copy it again\.$"):
        find_photos([path])


def test_a_row_without_bytes_and_one_that_is_no_photo(write):
    path = write({"image": structs(["a.png", "b.png"], [None, b"text"])})
    assert names(path) == ["a.png", "b.png"]
    with pytest.raises(DataError, match=r"a\.png: its row has no bytes; write the photo into the Parquet file"):
        read_image(path / "a.png")
    with pytest.raises(DataError, match=r"b\.png: is not a photo \(its first bytes are b'text'\)"):
        read_image(path / "b.png")


def test_messages_say_once_which_columns_are_read(write, tmp_path):
    content = write({"image": structs(list("abcde"))}).read_bytes()
    (tmp_path / "y.parquet").write_bytes(content)
    (tmp_path / "z.parquet").write_bytes(content)
    said = "x.parquet and 2 other files: photos of the column 'image.bytes', named by 'image.path'"
    assert find_photos([tmp_path])[1] == [said]


def test_a_message_says_that_row_groups_are_large(write, monkeypatch):
    path = write({"image": structs(list("abcde")), "label": [0] * 5})
    assert find_photos([path])[1] == ["x.parquet: photos of the column 'image.bytes', named by 'image.path'"]
    monkeypatch.setattr("fewtags.photos.listing._MANY_ROWS", 1)
    assert find_photos([path])[1][0].endswith(
        "; row groups have up to 2 photos, and each photo in random order reads one of them whole"
    )


def test_a_damaged_row_group_is_an_error_of_its_photos(write):
    path = write({"image": structs(list("abcde"))})
    found = names(path)
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    start = start or pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    assert read_image(path / found[0]).shape == (20, 24, 3)
    with pytest.raises(DataError, match=r"x\.parquet: row group 1 cannot be read \(.*\); copy the file again\.$"):
        read_image(path / found[2])


def test_threads_read_rows_at_the_same_time_and_few_groups_are_kept(write):
    path = write({"image": structs(list("abcde"))}, group=1)
    order = [0, 4, 1, 3, 2] * 8

    def read(n):
        with open_bytes(path / "abcde"[n]) as file:
            return file.read()

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(read, order)] == [PHOTOS[n] for n in order]
    (opened,) = [one for group in parquet._OPENED.values() for key, one in group.items() if key[0] == str(path)]
    assert len(opened.groups) == parquet._MOST_GROUPS == 4


def test_a_label_table_is_read_as_one(write, tmp_path):
    """`pretrain tables/train.parquet` uses the photos that the table names; the file has none itself."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(PHOTOS[0])
    save(unlabelled(tmp_path / "images"), tmp_path / "table.parquet", keep_root=True)
    assert unlabelled(tmp_path / "table.parquet").images.to_pylist() == ["1.png"]
