"""Names of places: URLs, shards, patterns."""

import pickle
from pathlib import Path

import pytest

from fewtags.errors import DataError
from fewtags.shards.places import Url, expand, is_shard, place, splits, spread


def test_a_url_keeps_its_slashes_whatever_it_goes_through():
    url = place(Path("s3://bucket/set/x.tar"))
    assert isinstance(url, Url)
    for same in (url, url.absolute(), url.resolve(), pickle.loads(pickle.dumps(url)), place(str(url)), place(url)):
        assert str(same) == same.as_posix() == "s3://bucket/set/x.tar"
        assert same == url
    photo = url / "a/b.jpg"
    assert (str(photo), f"{photo}") == ("s3://bucket/set/x.tar/a/b.jpg",) * 2
    assert str(photo.parent) == "s3://bucket/set/x.tar/a"
    assert (photo.is_relative_to(url), str(photo.relative_to(url))) == (True, "a/b.jpg")


@pytest.mark.parametrize("text", ["a/b.jpg", "/a/b.jpg", "C:/a.jpg", "a b:/c", "x", ".", "a:b.jpg"])
def test_paths_stay_paths(text):
    assert type(place(text)) is type(Path())
    assert place(text) == Path(text)


def test_a_file_url_is_a_path():
    assert place("file:///data/a.jpg") == place(Path("file:///data/a.jpg")) == Path("/data/a.jpg")


def test_shards_are_known_by_their_ending():
    names = ("a.tar", "a.TAR", "b/a.parquet", "a.tar.gz", "a.tgz", "x.tar/y.tar")
    assert all(map(is_shard, names))
    assert not any(map(is_shard, ("a.jpg", "tar", "a.tar/b.jpg", "a.tarx", "a.gz", "parquet")))


def test_a_photo_in_a_shard_may_be_in_a_folder_with_the_name_of_one():
    assert [*splits("d/a.tar/b.tar/c.jpg")] == [("d/a.tar", "b.tar/c.jpg"), ("d/a.tar/b.tar", "c.jpg")]
    assert [*splits("d/a.jpg")] == [*splits("a.tar")] == []


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("x-{9..11}.tar", ["x-9.tar", "x-10.tar", "x-11.tar"]),
        ("{a,b}-{1..2}", ["a-1", "b-1", "a-2", "b-2"]),
        ("x{a}", ["x{a}"]),
        ("x", ["x"]),
    ],
)
def test_braces(pattern, names):
    assert sorted(spread(pattern)) == sorted(names)


def test_an_empty_range_is_an_error():
    with pytest.raises(DataError, match=r"x\{3\.\.1\}: \{3\.\.1\} has no number; write the smaller one first\."):
        spread("x{3..1}")


def test_patterns_of_files(tmp_path):
    for name in ("b.tar", "a.tar", "c[1].jpg", "{1..2}.jpg"):
        (tmp_path / name).touch()
    assert [path.name for path in expand(tmp_path / "*.tar")] == ["a.tar", "b.tar"]
    assert [path.name for path in expand(tmp_path / "{b,a}.tar")] == ["b.tar", "a.tar"]
    assert expand(tmp_path / "c[1].jpg") == [tmp_path / "c[1].jpg"]  # it exists
    assert expand(tmp_path / "{1..2}.jpg") == [tmp_path / "{1..2}.jpg"]
    with pytest.raises(DataError) as caught:
        expand(tmp_path / "*.jpeg")
    assert str(caught.value) == f"{tmp_path}/*.jpeg: nothing has such a name; check the pattern and the folder."
