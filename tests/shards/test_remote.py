"""Files behind URLs: what is asked of a server, and what is said when it does not answer."""

import sys

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from shard_files import png, tar_bytes

from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.formats.read import read
from fewtags.photos.decode import read_image
from fewtags.shards import remote
from fewtags.shards.places import place

PHOTOS = {f"{n}.png": png(n) for n in range(4)}


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """fsspec's file system in memory, with `memory://bucket/x-0.tar` and `x-1.tar`; its paths are those of the test."""
    monkeypatch.setenv("FEWTAGS_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/x-0.tar", tar_bytes(PHOTOS))
    system.pipe_file("/bucket/x-1.tar", tar_bytes({"y.png": PHOTOS["0.png"]}))
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    remote._BLOCKS.clear()


def error_of(call, *arguments, **more):
    with pytest.raises(DataError) as caught:
        call(*arguments, **more)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize(
    "given",
    ["memory://bucket", "memory://bucket/x-{0..1}.tar", "memory://bucket/x-*.tar", "memory://bucket/x-[01].tar"],
)
def test_folders_and_patterns(given):
    found, _ = find_photos([given])
    wanted = [*(f"memory://bucket/x-0.tar/{n}.png" for n in range(4)), "memory://bucket/x-1.tar/y.png"]
    assert [str(path) for path in found] == wanted


def test_what_does_not_exist():
    for given in ("memory://bucket/none.tar", "memory://nowhere", "memory://bucket/x-{0..2}.tar"):
        name = "memory://bucket/x-2.tar" if "{" in given else given
        assert error_of(find_photos, [given]) == f"{name} does not exist; check the bucket or host, and the path in it."
    assert error_of(find_photos, ["memory://bucket/*.jpg"]).endswith("check the pattern and the folder.")
    assert "no such file" in error_of(read_image, place("memory://bucket/none.png"))
    assert "no such file" in error_of(read_image, place("memory://bucket/x-0.tar/none.png"))


def test_images_behind_a_url_that_does_not_exist(tmp_path):
    (tmp_path / "labels.csv").write_text("image,cat\n1.png,1\n")
    said = error_of(read, tmp_path / "labels.csv", images="memory://nowhere")
    assert said == "memory://nowhere does not exist; check the bucket or host, and the path in it."


@pytest.mark.parametrize(
    ("url", "package", "message"),
    [
        ("s3://bucket/x.tar", "s3fs", "s3:// needs another package: pip install 'fewtags[s3]'"),
        ("gs://bucket/x.tar", "gcsfs", "gs:// needs another package: pip install 'fewtags[gs]'"),
        (
            "sftp://host/x.tar",
            "paramiko",
            'sftp:// needs another package: SFTPFileSystem requires "paramiko" to be installed',
        ),
        (
            "nope://host/x.tar",
            "nope",
            "nope:// is not a protocol that fsspec knows; write s3://, gs://, hf://, https:// or a path",
        ),
    ],
)
def test_packages_that_are_missing(url, package, message, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    assert error_of(find_photos, [url]) == f"{url}: {message}."


def test_other_errors_of_a_server_are_one_sentence(monkeypatch):
    def refuse(*arguments, **more):
        raise PermissionError("Forbidden.\nand a long answer")

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    said = "memory://bucket/new.tar: cannot be read (PermissionError: Forbidden); check the address, your access and "
    assert error_of(find_photos, ["memory://bucket/new.tar"]) == f"{said}the network."


def test_photos_in_order_need_one_request_and_others_one_each(memory, monkeypatch):
    """Four photos in their order are one range of the shard; backwards, each photo is a range of its own."""
    asked = []
    real = MemoryFileSystem.cat_file

    def count(self, path, start=None, end=None, **more):
        asked.append((start, end))
        return real(self, path, start, end, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", count)
    paths = find_photos(["memory://bucket/x-0.tar"])[0]
    forwards = [read_image(path).tobytes() for path in paths]
    assert len(asked) == 1
    asked.clear()
    remote._BLOCKS.clear()
    monkeypatch.setattr(remote, "_NEAR", -1)  # this shard is small: everything in it is near
    backwards = [read_image(path).tobytes() for path in reversed(paths)]
    assert backwards[::-1] == forwards
    assert [end - start for start, end in asked] == [len(content) for content in reversed(PHOTOS.values())]


def test_a_single_photo_and_its_folder(memory):
    memory.pipe_file("/photos/a/1.png", PHOTOS["1.png"])
    memory.pipe_file("/photos/a/empty.png", b"")
    memory.pipe_file("/photos/.hidden/2.png", PHOTOS["1.png"])
    found, notes = find_photos(["memory://photos"])
    assert [str(path) for path in found] == ["memory://photos/a/1.png", "memory://photos/a/empty.png"]
    assert notes == ["skipped in memory://photos, because they are not photos: (hidden) 1"]
    assert find_photos(["memory://photos/a/1.png"])[0] == found[:1]
    assert read_image(found[0]).shape == (20, 24, 3)
    assert "is empty (0 bytes)" in error_of(read_image, found[1])
    assert "is a shard, not a photo" in error_of(read_image, place("memory://bucket/x-0.tar"))
