"""s3:// against a local server, where `moto[server]` and `s3fs` are installed; other protocols share the code."""

import io

import numpy as np
import pytest
from PIL import Image
from shard_files import parquet_bytes, png, tar_bytes

from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.photos.decode import read_image
from fewtags.photos.threads import read_ahead
from fewtags.shards.places import place

pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

PHOTOS = {f"a/{n}.png": png(n) for n in range(4)}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """`s3://photos` with a shard of each kind and a folder of photos."""
    import s3fs

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "FEWTAGS_CACHE": str(tmp_path_factory.mktemp("cache")),
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir("photos")
        system.pipe_file("photos/tar/x-00.tar", tar_bytes(PHOTOS))
        rows = [{"bytes": content, "path": name} for name, content in PHOTOS.items()]
        system.pipe_file("photos/rows/x.parquet", parquet_bytes({"image": rows}))
        for name, content in PHOTOS.items():
            system.pipe_file(f"photos/files/{name}", content)
        yield system
    running.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("s3://photos/tar/x-{00..00}.tar", "s3://photos/tar/x-00.tar"),
        ("s3://photos/tar", "s3://photos/tar/x-00.tar"),
        ("s3://photos/rows/*.parquet", "s3://photos/rows/x.parquet"),
        ("s3://photos/files", "s3://photos/files"),
    ],
)
def test_photos_of_a_bucket(bucket, given, start):
    """Threads read all photos, in any order."""
    found, _ = find_photos([given])
    assert [str(path) for path in found] == [f"{start}/{name}" for name in PHOTOS]
    order = [3, 0, 2, 1]
    pixels = [one for batch in read_ahead(lambda n: read_image(found[n]), [order], 4) for one in batch]
    for n, seen in zip(order, pixels, strict=True):
        assert np.array_equal(seen, np.asarray(Image.open(io.BytesIO(PHOTOS[f"a/{n}.png"]))))


@pytest.mark.parametrize("given", ["s3://nowhere/x.tar", "s3://nowhere", "s3://photos/none.tar"])
def test_a_bucket_or_shard_that_does_not_exist(bucket, given):
    with pytest.raises(DataError) as caught:
        find_photos([given])
    assert str(caught.value) == f"{given} does not exist; check the bucket or host, and the path in it."


def test_a_photo_that_does_not_exist(bucket):
    with pytest.raises(DataError, match=r"s3://photos/none\.png: no such file"):
        read_image(place("s3://photos/none.png"))


def test_a_server_that_does_not_answer(bucket, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(DataError, match=r"^s3://photos/x\.tar: cannot be read \(\w+: .*\); check the address, your"):
        find_photos(["s3://photos/x.tar"])
