"""Tar files: damaged, odd and compressed ones. Every message says what to do."""

import gzip
import tarfile

import pytest
from shard_files import member, png, tar_bytes

from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.formats.unlabelled import check_photos, unlabelled
from fewtags.photos.decode import read_image
from fewtags.shards import index
from fewtags.shards.index import index_of
from fewtags.shards.photos import open_bytes

PHOTOS = {f"{n}.png": png(n) for n in range(4)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWTAGS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shard(tmp_path):
    """Write a tar file; names in the results are relative to it."""

    def write(content, name="x.tar"):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def found(shard):
    """The photos in a shard, and the messages."""
    paths, notes = find_photos([shard])
    return [str(path).removeprefix(f"{shard}/") for path in paths], [note.replace(str(shard), "X") for note in notes]


def error_of(shard):
    with pytest.raises(DataError) as caught:
        find_photos([shard])
    return str(caught.value).replace(str(shard), "X")


def read(shard, name):
    with open_bytes(shard / name) as file:
        return file.read()


def test_names_order_and_other_files(shard):
    """Names stay below the shard; the order is that of the bytes; what is not a photo is counted."""
    files = {
        "./z/1.png": PHOTOS["1.png"],
        "/abs/2.PNG": PHOTOS["2.png"],
        "../../up.png": PHOTOS["3.png"],
        "z/1.cls": b"3",
        "z/1.json": b"{}",
        ".hidden.png": PHOTOS["0.png"],
        "__MACOSX/._1.png": b"x",
        "a" * 150 + "/ü.png": PHOTOS["0.png"],
    }
    path = shard(tar_bytes(files, member("z", type=tarfile.DIRTYPE)))
    names, notes = found(path)
    assert names == ["z/1.png", "abs/2.PNG", "up.png", "a" * 150 + "/ü.png"]
    assert notes == ["skipped in X, because they are not photos: (hidden) 2, *.cls 1, *.json 1"]
    assert [read(path, name) for name in names] == [PHOTOS[f"{n}.png"] for n in (1, 2, 3, 0)]


def test_links(shard):
    """A hard link is the file that it names; other links are not read."""
    links = (
        member("hard.png", type=tarfile.LNKTYPE, linkname="./1.png"),
        member("soft.png", type=tarfile.SYMTYPE, linkname="1.png"),
        member("lost.png", type=tarfile.LNKTYPE, linkname="none.png"),
    )
    path = shard(tar_bytes({"1.png": PHOTOS["1.png"]}, *links))
    names, notes = found(path)
    assert sorted(names) == ["1.png", "hard.png"]
    assert notes == ["skipped in X, because they are not photos: (links and special files) 2"]
    assert read(path, "hard.png") == PHOTOS["1.png"]


def test_of_equal_names_the_last_counts(shard, tmp_path):
    path = shard(tar_bytes({"a.png": PHOTOS["0.png"], "./a.png": PHOTOS["1.png"], "b.png": PHOTOS["2.png"]}))
    names, notes = found(path)
    assert names == ["a.png", "b.png"]
    assert notes == ["x.tar: 1 file has the name of a later one, which counts, as in unpacking"]
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert read(path, "a.png") == (tmp_path / "unpacked" / "a.png").read_bytes() == PHOTOS["1.png"]


@pytest.mark.parametrize(
    ("name", "pack", "text"),
    [
        ("x.tar", gzip.compress, "X: is compressed (gzip), so no photo can be read without all before it; unpack it: "),
        ("x.tar.gz", gzip.compress, "X: is compressed, so no photo can be read without all before it; unpack it to a "),
        ("x.tar", lambda content: b"", "X: is empty (0 bytes); copy it again."),
        ("x.tar", lambda content: content[:300], "X: is not a tar file ("),
        ("x.tar", lambda content: png(1), "X: is not a tar file ("),
        ("x.tar", lambda content: b"\0" * 10240, "there is no photo in X."),
    ],
)
def test_what_is_no_tar_file(shard, name, pack, text):
    path = shard(pack(tar_bytes(PHOTOS)), name)
    message = error_of(path)
    assert message.startswith(text), message
    assert message.endswith(".")
    assert "\n" not in message


def damaged(content, header=False):
    """A tar file that ends within the third photo, or whose third header is damaged."""
    with_end = content.index(b"2.png")
    return content[:with_end] + b"\xff" * 200 + content[with_end + 200 :] if header else content[: with_end + 600]


def test_a_cut_shard_has_its_photos_and_an_error_of_its_own(shard):
    """The photo that is cut and the shard itself cannot be read; nothing is left out silently."""
    path = shard(damaged(tar_bytes(PHOTOS)))
    paths, _ = find_photos([path])
    assert [p.name for p in paths] == ["0.png", "1.png", "2.png", "x.tar"]
    assert read_image(paths[1]).shape == (20, 24, 3)
    with pytest.raises(DataError, match=rf"2\.png: its shard ends within it \(88 of .* bytes\); copy {path} again\.$"):
        read_image(paths[2])
    with pytest.raises(DataError) as caught:
        read_image(paths[3])
    said = "the shard is damaged: it ends within the file '2.png'; the 3 files before that are read, copy it again"
    assert str(caught.value) == f"{path}: {said}."
    table = check_photos(unlabelled(path))
    assert table.images.to_pylist() == ["0.png", "1.png"]
    assert {e.item for e in table.notes.excluded} == {"x.tar", "2.png"}


def test_a_damaged_header(shard):
    path = shard(damaged(tar_bytes(PHOTOS), header=True))
    names, _ = found(path)
    assert names == ["0.png", "1.png", str(path)]
    with pytest.raises(DataError, match=r"the header at byte [\d,]+ is damaged, after the file '1\.png'; the 2 files"):
        read_image(path)


def test_a_shard_without_an_end_mark(shard):
    whole = tar_bytes({"0.png": PHOTOS["0.png"]})
    path = shard(whole.rstrip(b"\0").ljust(-(-len(whole.rstrip(b"\0")) // 512) * 512, b"\0"))
    assert found(path)[0] == ["0.png", str(path)]
    with pytest.raises(DataError, match=r"it has no end mark after the file '0\.png', so it may be cut"):
        read_image(path)


def test_one_damaged_shard_does_not_stop_the_others(shard, tmp_path):
    shard(tar_bytes(PHOTOS), "a.tar")
    shard(gzip.compress(tar_bytes(PHOTOS)), "b.tar")
    paths, _ = find_photos([tmp_path])
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [*(f"a.tar/{n}.png" for n in range(4)), "b.tar"]
    with pytest.raises(DataError, match=r"b\.tar: is compressed \(gzip\)"):
        read_image(paths[-1])


def test_a_folder_with_photos_has_no_shards(shard, tmp_path):
    """An archive beside the photos that it has is usual."""
    shard(tar_bytes(PHOTOS))
    (tmp_path / "1.png").write_bytes(PHOTOS["1.png"])
    paths, notes = find_photos([tmp_path])
    assert [path.name for path in paths] == ["1.png"]
    assert notes == [f"skipped in {tmp_path}, because they are not photos: *.tar 1"]


def test_photos_that_are_empty_or_in_a_folder_with_a_name_like_a_shard(shard, tmp_path):
    (tmp_path / "f.tar").mkdir()
    path = shard(tar_bytes({"a.png": PHOTOS["0.png"], "empty.png": b""}), "f.tar/x.tar")
    assert [p.name for p in find_photos([tmp_path / "f.tar"])[0]] == ["a.png", "empty.png"]
    assert read_image(path / "a.png").shape == (20, 24, 3)
    with pytest.raises(DataError, match=r"empty\.png: is empty \(0 bytes\)"):
        read_image(path / "empty.png")


def test_the_index_is_kept_and_made_again_for_a_changed_shard(shard, monkeypatch):
    path = shard(tar_bytes(PHOTOS))
    first = index_of(str(path))
    index._OPEN.clear()
    with monkeypatch.context() as patch:
        patch.setattr(index, "_make", lambda *_: pytest.fail("the index was made again"))
        kept = index_of(str(path))
    assert kept.names.equals(first.names)
    assert [kept.find(name) for name in ("0.png", "3.png", "none", "")] == [0, 3, -1, -1]
    shard(tar_bytes({"other.png": PHOTOS["0.png"]}))
    assert index_of(str(path)).names.to_pylist() == [b"other.png"]
    for cached in (index.cache_folder() / "shards").iterdir():
        cached.write_bytes(b"damaged")
    index._OPEN.clear()
    assert index_of(str(path)).names.to_pylist() == [b"other.png"]


def test_a_cache_that_cannot_be_written_is_not_needed(shard, monkeypatch):
    monkeypatch.setenv("FEWTAGS_CACHE", "/dev/null/cache")
    assert len(index_of(str(shard(tar_bytes(PHOTOS))))) == 4
    monkeypatch.setenv("FEWTAGS_CACHE", "")
    assert index.cache_folder() is None
    assert len(index_of(str(shard(tar_bytes(PHOTOS), "y.tar")))) == 4
