"""Whether photos have changed since a run began."""

import os
import shutil

import numpy as np
import pytest

from fewtags.engine import photo_record
from fewtags.engine.photo_record import READ_WHOLE, changed_contents, photo_contents


@pytest.fixture
def table(scenes, tmp_path):
    """Three photos that may be changed."""
    few = scenes.train.subset(np.arange(3))
    return few.with_root(shutil.copytree(few.root, tmp_path / "photos"))


def photo(table, n):
    return table.root / table.images[n].as_py()


def paint(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_copy_with_other_times_is_the_same(table, tmp_path):
    before = photo_contents(table)
    copied = table.with_root(shutil.copytree(table.root, tmp_path / "copy", copy_function=shutil.copy))
    assert (photo_contents(copied)[:, :2] != before[:, :2]).all()
    assert not changed_contents(copied, before).any()


def test_another_content_of_the_same_size_and_modification_time_is_found(table):
    before = photo_contents(table)
    times = photo(table, 1).stat()
    paint(photo(table, 1))
    os.utime(photo(table, 1), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert changed_contents(table, before).tolist() == [False, True, False]


def test_photos_that_nothing_has_touched_are_not_read(table, monkeypatch):
    before = photo_contents(table)
    monkeypatch.setattr(photo_record, "_digest", lambda path: pytest.fail(path))
    assert not changed_contents(table, before).any()


def test_a_missing_photo_has_no_content(table):
    before = photo_contents(table)
    photo(table, 2).unlink()
    assert photo_contents(table)[2].tolist() == [0, 0, 0, 0]
    assert changed_contents(table, before).tolist() == [False, False, True]


@pytest.mark.parametrize("at", [0, -1, READ_WHOLE // 2])
def test_large_photos_are_compared_by_samples(table, at):
    """Samples of 64 KiB nearly cover a file of 4 MiB and one byte."""
    photo(table, 0).write_bytes(bytes(READ_WHOLE + 1))
    before = photo_contents(table)
    paint(photo(table, 0), at)
    assert changed_contents(table, before).tolist() == [True, False, False]
