"""All places of photos give the same results: folders, tar and Parquet files, on a disk and behind a URL."""

import csv
import pickle

import fsspec
import numpy as np
import pytest
from shard_files import KINDS, make_source, png
from tiny_model import make_model
from typer.testing import CliRunner

from fewtags.cli.main import app
from fewtags.engine.given_photos import GivenPhotos
from fewtags.engine.model import save_model
from fewtags.engine.photo_record import ANY_SIZE, changed_contents, photo_contents, photo_sizes
from fewtags.engine.places import find_photos
from fewtags.errors import DataError
from fewtags.formats.read import read
from fewtags.formats.unlabelled import check_photos, unlabelled
from fewtags.labels import ClassNames
from fewtags.photos.dataset import PhotoFolder
from fewtags.photos.decode import open_photo, read_image
from fewtags.photos.scan import scan
from fewtags.review import questions
from fewtags.review.pictures import Pictures
from fewtags.shards import index
from fewtags.shards.photos import photo_exists
from fewtags.shards.places import place
from fewtags.table.content import photo_paths, same_content
from fewtags.table.storage import load, save

FILES = {
    "a/1.png": png(1),
    "a/2.png": b"not a photo",
    "b/3.png": png(3, (30, 20)),
    "b/copy.png": png(1),
    "größe.png": png(4),
}
"""In the order of their names, which is that of a folder."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEWTAGS_CACHE", str(tmp_path / "cache"))
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(params=KINDS)
def source(request, tmp_path):
    return make_source(request.param, FILES, tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, *make_model())
    return path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def rows(path, source):
    """The rows of a table, with the names of photos below their place."""
    with path.open(encoding="utf-8", newline="") as file:
        return [[row[0].removeprefix(f"{source}/"), *row[1:]] for row in csv.reader(file)]


def test_each_photo_is_found_once_under_its_name(source):
    found, _ = find_photos([source])
    assert [str(path) for path in found] == [f"{source}/{name}" for name in FILES]


def test_pixels_are_those_of_the_file(source, tmp_path):
    for name in ("a/1.png", "b/3.png", "größe.png"):
        (tmp_path / "plain.png").write_bytes(FILES[name])
        assert np.array_equal(read_image(f"{source}/{name}"), read_image(tmp_path / "plain.png"))


def test_a_missing_photo_is_named(source):
    assert not photo_exists(f"{source}/a/7.png")
    with pytest.raises(DataError) as caught, open_photo(place(f"{source}/a/7.png")):
        pass
    assert str(caught.value) == f"{source}/a/7.png: no such file; check the path and the image folder."


def test_scan_and_copies(source):
    paths = [f"{source}/{name}" for name in [*FILES, "a/none.png"]]
    found = scan(paths)
    assert found.width.tolist() == [24, 0, 20, 24, 24, 0]
    assert found.unreadable.keys() == {1}
    assert found.missing == {5}
    assert same_content(paths) == [(0, 3)]


def test_labels_name_the_photos(source, tmp_path):
    """The same table for each place, also with names that leave out the shard, and after it was saved."""
    labels = tmp_path / "labels.csv"
    labels.write_text("image,cat,dog\na/1.png,1,0\nb/3,,1\ngröße.png,0,1\n", "utf-8")
    table = read(labels, images=source)
    assert table.images.to_pylist() == ["a/1.png", "b/3.png", "größe.png"]
    save(table, tmp_path / "table.parquet", keep_root=True)
    again = load(tmp_path / "table.parquet")
    assert (str(again.root), again.fingerprint) == (source, table.fingerprint)
    photos = pickle.loads(pickle.dumps(PhotoFolder(again.root, again.images)))
    assert str(photos.path(1)) == f"{source}/b/3.png"
    assert all(map(photo_exists, photo_paths(again)))


def test_unlabelled_photos(source):
    table = check_photos(unlabelled(source))
    assert table.images.to_pylist() == [name for name in FILES if name != "a/2.png"]
    assert [(e.item, e.kind) for e in table.notes.excluded] == [("a/2.png", "unreadable")]


def test_predict_writes_the_same_table(model, tmp_path):
    """One row for each photo in its order; the photo that cannot be read is in the other table."""
    tables = {}
    for kind in KINDS:
        source = make_source(kind, FILES, tmp_path / kind)
        out = tmp_path / f"{kind}.csv"
        result = run("predict", model, source, "--wide", "--cpu", "--batch-size", 2, "--out", out)
        assert result.exit_code == 1, result.stderr
        tables[kind] = rows(out, source), rows(out.with_name(f"{kind}.unreadable.csv"), source)
        assert [row[0] for row in tables[kind][0]] == ["image", "a/1.png", "b/3.png", "b/copy.png", "größe.png"]
        assert tables[kind] == tables["folder"]
    assert tables["folder"][1][1][0] == "a/2.png"


def test_workers_read_shards(model, tmp_path):
    for kind in ("tar", "struct"):
        source = make_source(kind, FILES, tmp_path / kind)
        found = {}
        for workers in (0, 2):
            out = tmp_path / f"{kind}-{workers}.csv"
            run("predict", model, source, "--wide", "--cpu", "--batch-size", 2, "--workers", workers, "--out", out)
            found[workers] = out.read_text("utf-8")
        assert found[0] == found[2]


def test_heatmaps_and_python(source, model, tmp_path):
    result = run("heatmap", model, source, "--class", "n01", "--cpu", "--out", tmp_path / "maps")
    assert result.exit_code == 1
    written = {path.relative_to(tmp_path / "maps").as_posix() for path in (tmp_path / "maps").rglob("*.png")}
    assert written == {f"{name.removesuffix('.png')}.n01.png" for name in FILES if name != "a/2.png"}
    assert GivenPhotos.of([source, f"{source}/a/1.png"]).names == (
        *(f"{source}/{name}" for name in FILES),
        f"{source}/a/1.png",
    )


def test_review_shows_the_photos(source, tmp_path):
    """The same picture as of the file, again from the cache, and one table of the photos to ask about."""
    pictures = Pictures(tmp_path / "pictures")
    (tmp_path / "plain.png").write_bytes(FILES["b/3.png"])
    shown = pictures.photo(place(f"{source}/b/3.png"), 16)
    assert shown.read_bytes() == pictures.photo(tmp_path / "plain.png", 16).read_bytes()
    assert pictures.photo(place(f"{source}/b/3.png"), 16) == shown
    table, _ = questions.unlabelled([source], ClassNames.of(["cat"]))
    assert (str(table.root), table.images.to_pylist()) == (source, [*FILES])
    with pytest.raises(DataError, match="photos on a disk and behind a URL have no folder in common"):
        questions.unlabelled([tmp_path / "plain.png", "memory://a.png"], ClassNames.of(["cat"]))


def test_a_resumed_run_sees_changed_photos(source, tmp_path):
    """Sizes are those of the photos, or any for a row of a Parquet file; another content is seen."""
    table = unlabelled(source)
    sizes = photo_sizes(table)
    known = [len(content) for content in FILES.values()]
    assert sizes.tolist() in (known, [ANY_SIZE] * len(known))
    before = photo_contents(table)
    assert not changed_contents(table, before).any()
    changed = {**FILES, "b/3.png": png(9, (30, 20))}
    for kind in KINDS:
        if make_source(kind, changed, tmp_path) == source:
            break
    index._OPEN.clear()  # each process asks a server once
    after = changed_contents(table, before)
    assert after[2]
    assert source.startswith("memory:") or after.sum() == 1  # what a server says is about the whole shard
