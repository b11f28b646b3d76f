"""Shrunken copies of photos: the pixels of views, and what happens when copies are missing, damaged or not writable."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pictures import colours, save, with_orientation
from PIL import Image
from shard_files import KINDS, make_source, png

from fewtags.errors import DataError
from fewtags.geometry import View
from fewtags.labels import LabelMatrix
from fewtags.photos.augment import ResizedCrop, SquareCrop
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.cache import PhotoCache
from fewtags.photos.dataset import Failure, PhotoFolder, TrainSet, read_through
from fewtags.photos.decode import read_image
from fewtags.photos.loader import Collate, EpochSampler, TrainLoader
from fewtags.photos.workers import Workers
from fewtags.shards.places import place

# Python 3.12 and later warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

PLAIN = Collate((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
PART = View.crop(0.1, 0.3, 0.7, 0.8)
COUNT = 7


def copies(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def read(cache, path, view=PART, size=8):
    pixels, _, problem = cache.read_through(path, lambda _: view, size)
    assert problem == ""
    return pixels


def resized(pixels, box, size=8):
    """Pixels left, top, right, bottom of a picture, resized by Pillow."""
    return np.asarray(Image.fromarray(pixels).crop(box).resize((size, size), Image.Resampling.BILINEAR))


def assert_close(first, second, most=1):
    """torch rounds weights of the filter in another way than Pillow."""
    assert np.abs(first.astype(int) - second).max() <= most


# Pixels


def test_a_view_is_a_crop_of_the_resized_photo(tmp_path):
    """40 x 20 pixels with a shorter side of 10: a copy of 20 x 10, and a view of x 2 to 14, y 3 to 8 of it.

    Its file has 8 bytes that say what it is, 16 of the digest, four numbers of 4 bytes, and 3 x 20 x 10 of pixels.
    """
    photo = save(tmp_path / "a.png", colours(20, 40))
    cache = PhotoCache(tmp_path / "cache", 10)
    small = read_image(photo, size=(10, 20))
    assert cache.size_of(photo) == (640, False)
    first = read(cache, photo)
    assert cache.size_of(photo) == (640, True)
    (copy,) = copies(tmp_path / "cache")
    assert copy.parent.parent == tmp_path / "cache" / "10px"
    assert copy.read_bytes()[40:] == small.tobytes()
    assert_close(first, resized(small, (2, 3, 14, 8)))
    np.testing.assert_array_equal(read(cache, photo), first)


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
@pytest.mark.parametrize(
    ("turn", "flipped"),
    [
        (View.identity(), ()),
        (View.flip(), (1,)),
        (View((1.0, 0.0, 0.0, 0.0, -1.0, 1.0)), (0,)),
        (View((-1.0, 0.0, 1.0, 0.0, -1.0, 1.0)), (0, 1)),
    ],
)
def test_edges_are_rounded_to_pixels_of_the_copy(tmp_path, monkeypatch, turn, flipped, capability):
    """x .13 to .68 of 20 pixels: 3 to 14; y .26 to .84 of 10: 3 to 8. The view says so, and flips stay."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    photo = save(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (10, 20, 3), np.uint8))
    cache = PhotoCache(tmp_path / "cache", 10)
    pixels, view, _ = cache.read_through(photo, lambda _: View.crop(0.13, 0.26, 0.68, 0.84).then(turn), 8)
    assert_close(pixels, np.flip(resized(np.asarray(Image.open(photo)), (3, 3, 14, 8)), flipped))
    np.testing.assert_allclose(view.matrix, View.crop(0.15, 0.3, 0.7, 0.8).then(turn).matrix, atol=1e-12)


def test_views_that_are_turned_are_refused(tmp_path):
    photo = save(tmp_path / "a.png", colours(20, 40))
    with pytest.raises(NotImplementedError, match="only crops and flips of copies can be read"):
        read(PhotoCache(tmp_path / "cache", 10), photo, View((0.0, 1.0, 0.0, 1.0, 0.0, 0.0)))


def test_the_side_is_one_and_a_half_crops():
    assert PhotoCache.for_crops(Path("cache"), 448).side == 672
    assert PhotoCache.for_crops(Path("cache"), 33).side == 50


@pytest.mark.parametrize("orientation", range(1, 9))
def test_copies_are_upright(tmp_path, orientation):
    """A smooth picture hardly changes when it is resized twice; the view is that of the displayed photo."""
    photo = save(tmp_path / "a.jpg", colours(60, 90), exif=with_orientation(orientation), quality=98)
    cache, view = PhotoCache(tmp_path / "cache", 40), PART.then(View.flip())
    expected, _ = read_through(photo, lambda _: view, 12)
    for _ in range(2):
        assert_close(read(cache, photo, view, 12), expected, 4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (9, 4), (10, 10)])
def test_a_small_photo_is_stored_as_it_is(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    photo, cache = save(tmp_path / "a.png", pixels), PhotoCache(tmp_path / "cache", 10)
    for _ in range(2):
        assert_close(read(cache, photo, View.identity()), resized(pixels, (0, 0, shape[1], shape[0])))
    assert copies(tmp_path / "cache")[0].read_bytes()[40:] == pixels.tobytes()
    assert read(cache, photo).shape == (8, 8, 3)


def test_a_long_photo_keeps_at_least_a_pixel(tmp_path):
    """1,000 x 2 pixels, side 1: 500 x 1."""
    photo = save(tmp_path / "a.png", colours(2, 1000))
    assert PhotoCache(tmp_path / "cache", 1).size_of(photo) == (40 + 1500, False)
    assert read(PhotoCache(tmp_path / "cache", 1), photo).shape == (8, 8, 3)


def test_the_policy_gets_the_aspect_of_the_photo(tmp_path):
    """101 x 50 pixels; the copy has 20 x 10."""
    photo, seen = save(tmp_path / "a.png", colours(50, 101)), []

    def view_of(aspect):
        seen.append(aspect)
        return PART

    for _ in range(2):
        PhotoCache(tmp_path / "cache", 10).read_through(photo, view_of, 8)
    assert seen == [101 / 50] * 2


# Copies


def test_a_changed_photo_is_read_anew(tmp_path):
    photo = save(tmp_path / "a.png", colours(20, 40))
    cache = PhotoCache(tmp_path / "cache", 10)
    before = read(cache, photo)
    save(photo, 255 - colours(20, 40))
    os.utime(photo, ns=(1, 1))
    after = read(cache, photo)
    assert np.abs(after.astype(int) - before).max() > 50
    np.testing.assert_array_equal(after, read(PhotoCache(tmp_path / "other", 10), photo))
    assert len(copies(tmp_path / "cache")) == 2


def test_other_photos_and_sizes_have_other_copies(tmp_path):
    for name in "ab":
        save(tmp_path / f"{name}.png", colours(20, 40))
        os.utime(tmp_path / f"{name}.png", ns=(1, 1))
        for side in (10, 12):
            read(PhotoCache(tmp_path / "cache", side), tmp_path / f"{name}.png")
    assert len(copies(tmp_path / "cache")) == 4


def test_a_relative_path_has_the_same_copy(tmp_path, monkeypatch):
    photo = save(tmp_path / "a.png", colours(20, 40))
    read(PhotoCache(tmp_path / "cache", 10), photo)
    monkeypatch.chdir(tmp_path)
    assert PhotoCache(Path("cache"), 10).size_of(Path("a.png"))[1]


DAMAGE = {
    "empty": lambda content, _: b"",
    "header cut off": lambda content, _: content[:20],
    "pixels cut off": lambda content, _: content[:-1],
    "too long": lambda content, _: content + b"\0",
    "another format": lambda content, _: b"GIF89a\0\0" + content[8:],
    "of another photo": lambda content, other: other,
    "no width": lambda content, _: content[:24] + b"\0" * 4 + content[28:],
    "no pixels": lambda content, _: content[:32] + b"\0" * 8,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_copy_is_written_again(tmp_path, damage):
    photo, other = (save(tmp_path / f"{name}.png", colours(20, 40)) for name in "ab")
    cache = PhotoCache(tmp_path / "cache", 10)
    expected = read(cache, photo)
    (copy,) = copies(tmp_path / "cache")
    content = copy.read_bytes()
    read(cache, other)
    (second,) = {*copies(tmp_path / "cache")} - {copy}
    copy.write_bytes(DAMAGE[damage](content, second.read_bytes()))
    np.testing.assert_array_equal(read(cache, photo), expected)
    assert copy.read_bytes() == content
    assert len(copies(tmp_path / "cache")) == 2


def test_a_folder_in_place_of_a_copy_is_a_problem(tmp_path):
    photo = save(tmp_path / "a.png", colours(20, 40))
    cache = PhotoCache(tmp_path / "cache", 10)
    expected = read(cache, photo)
    (copy,) = copies(tmp_path / "cache")
    copy.unlink()
    copy.mkdir()
    pixels, _, problem = cache.read_through(photo, lambda _: PART, 8)
    np.testing.assert_array_equal(pixels, expected)
    assert problem == f"cannot write '{copy}': it is not a regular file; give the path of a file"


def test_a_missing_photo_is_an_error_also_with_its_copy(tmp_path):
    photo = save(tmp_path / "a.png", colours(20, 40))
    cache = PhotoCache(tmp_path / "cache", 10)
    read(cache, photo)
    photo.unlink()
    with pytest.raises(DataError) as expected:
        read_image(photo)
    with pytest.raises(DataError) as caught:
        read(cache, photo)
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("kind", KINDS)
def test_photos_in_all_places(tmp_path, kind):
    files = {f"{n}.png": png(n) for n in range(3)}
    root = place(make_source(kind, files, tmp_path))
    cache = PhotoCache(tmp_path / "cache", 10)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        expected = read(PhotoCache(tmp_path / "local", 10), tmp_path / name)
        for _ in range(2):
            np.testing.assert_array_equal(read(cache, root / name), expected)
    assert len(copies(tmp_path / "cache")) == 3


# Disks


@pytest.fixture
def photo(tmp_path):
    return save(tmp_path / "a.png", colours(20, 40))


def problem_of(cache, photo):
    """What is said; the pixels are right, and nothing is left on the disk."""
    pixels, _, problem = cache.read_through(photo, lambda _: PART, 8)
    np.testing.assert_array_equal(pixels, read(PhotoCache(photo.parent / "good", cache.side), photo))
    assert not cache.folder.is_dir() or copies(cache.folder) == []
    return problem


def test_a_file_in_place_of_the_folder(tmp_path, photo):
    (tmp_path / "cache").write_text("")
    problem = problem_of(PhotoCache(tmp_path / "cache", 10), photo)
    assert problem.startswith(f"cannot write {tmp_path / 'cache'}")


def test_some_room_is_left_on_the_disk(tmp_path, photo, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**9))
        _, _, problem = PhotoCache(tmp_path / "cache", 10).read_through(photo, lambda _: PART, 8)
    assert problem == "1.0 GB of its disk are free, and 1 GB are kept free"
    assert copies(tmp_path / "cache") == []


def test_a_disk_that_is_full_all_the_same(tmp_path, photo, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        _, _, problem = PhotoCache(tmp_path / "cache", 10).read_through(photo, lambda _: PART, 8)
    assert problem.startswith(f"cannot write {tmp_path / 'cache'}")
    assert "No space left on device" in problem
    assert copies(tmp_path / "cache") == []


# Loaders


@pytest.fixture
def data(tmp_path):
    """Photos of several sizes, one of them turned by EXIF; some are smaller than their copies would be."""
    draw = np.random.default_rng(0)
    for n in range(COUNT):
        pixels = draw.integers(0, 256, (12 + 3 * n, 40 - 2 * n, 3), np.uint8)
        save(tmp_path / f"{n}.jpg", pixels, exif=with_orientation(6 if n == 3 else 1))
    labels = LabelMatrix.from_dense(np.zeros((COUNT, 2), np.int8))
    photos = PhotoFolder(tmp_path, pa.array([f"{n}.jpg" for n in range(COUNT)]))
    cache = PhotoCache.for_crops(tmp_path / "cache", 12)
    return TrainSet(photos=photos, labels=labels, policy=SquareCrop(12), seed=3, second_view=Strong(), cache=cache)


def images(data, workers=0, epoch=0, start=0):
    loader = TrainLoader(data, EpochSampler(COUNT, 3), PLAIN, Workers(workers))
    batches = [*loader.batches(epoch, start)]
    return torch.cat([torch.cat([batch.images, batch.second_view.images]) for batch in batches])


def test_bits_depend_neither_on_the_copies_nor_on_the_workers(data, tmp_path):
    expected = images(data)
    assert len(copies(tmp_path / "cache")) == COUNT
    assert torch.equal(images(data), expected)
    for workers in (1, 2):
        other = replace(data, cache=PhotoCache.for_crops(tmp_path / f"cache-{workers}", 12))
        for _ in range(2):  # each photo is wanted twice, for both views
            assert torch.equal(images(other, workers), expected)
    copies(tmp_path / "cache")[0].unlink()
    assert torch.equal(images(data), expected)
    assert not torch.equal(images(replace(data, cache=None)), expected)


def test_the_middle_of_an_epoch_needs_no_copies_of_its_beginning(data, tmp_path):
    whole = images(data, epoch=1)
    fresh = replace(data, cache=PhotoCache.for_crops(tmp_path / "fresh", 12))
    rest = images(fresh, epoch=1, start=1)
    assert torch.equal(rest, whole[-len(rest) :])
    assert 0 < len(copies(tmp_path / "fresh")) < COUNT


@pytest.mark.parametrize("policy", [SquareCrop(12), ResizedCrop(12)])
def test_views_are_those_without_a_cache_within_half_a_pixel(data, policy):
    """Copies have 12 pixels or more on each side."""
    cached = replace(data, policy=policy, second_view=None)
    for n in range(COUNT):
        corners = np.array([[0.0, 0.0], [1.0, 1.0]])
        views = [one[1, n].view.to_image(corners) for one in (cached, replace(cached, cache=None), cached)]
        np.testing.assert_array_equal(views[0], views[2])
        assert np.abs(views[0] - views[1]).max() <= 0.5 / 12


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_keeps_why_the_cache_cannot_be_written(data, tmp_path, workers):
    expected = images(data)
    (tmp_path / "file").write_text("")
    broken = replace(data, cache=PhotoCache.for_crops(tmp_path / "file", 12))
    loader = TrainLoader(broken, EpochSampler(COUNT, 3), PLAIN, Workers(workers))
    assert loader.problem == ""
    batches = [*loader.batches(0)]
    both = torch.cat([torch.cat([batch.images, batch.second_view.images]) for batch in batches])
    assert torch.equal(both, expected)
    assert loader.problem.startswith(f"cannot write {tmp_path / 'file'}")
    good = TrainLoader(data, EpochSampler(COUNT, 3), PLAIN, Workers(workers))
    assert [*good.batches(0)]
    assert good.problem == ""


def test_an_unreadable_photo_is_a_failure(data, tmp_path):
    (tmp_path / "2.jpg").write_bytes((tmp_path / "2.jpg").read_bytes()[:300])
    failure = data[0, 2]
    assert isinstance(failure, Failure)
    assert failure == replace(data, cache=None)[0, 2]
    assert copies(tmp_path / "cache") == []
