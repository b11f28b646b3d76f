"""The memory of large photos: one at a time, and one error of ours where it does not suffice."""

import threading

import numpy as np
import pytest
from pictures import colours, error_of, save, with_orientation
from PIL import Image

from fewtags.photos import decode
from fewtags.photos.decode import open_photo, read_image


def _error(*_, **__):
    raise MemoryError


@pytest.mark.parametrize("stage", ["load", "convert", "resize", "transpose"])
def test_too_little_memory_is_one_error_at_every_stage(tmp_path, monkeypatch, stage):
    """Only the decoder was guarded; a photo that decodes may still not fit when its colours are converted."""
    grey = {"convert": colours(8, 8)[:, :, 0]}.get(stage, colours(8, 8))
    path = save(tmp_path / "a.png", grey, exif=with_orientation(6))
    monkeypatch.setattr(Image.Image if stage != "load" else decode.ImageFile.ImageFile, stage, _error)
    assert error_of(path) == f"{path}: does not fit into memory once it is decoded; shrink the photo."


def _most_at_once(path, threads: int = 4, wait: float = 0.05) -> int:
    """Return how many threads were inside `open_photo` at the same time."""
    inside, most, count = 0, 0, threading.Lock()
    start, enough = threading.Barrier(threads), threading.Event()

    def read():
        nonlocal inside, most
        start.wait()
        with open_photo(path) as photo:
            with count:
                inside += 1
                most = max(most, inside)
                if inside == threads:
                    enough.set()
            enough.wait(wait)
            photo.read()
            with count:
                inside -= 1

    workers = [threading.Thread(target=read) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return most


def test_large_photos_are_read_one_at_a_time(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", colours(8, 8))
    assert _most_at_once(path, wait=60.0) == 4
    monkeypatch.setattr(decode, "LARGE", 63)
    assert _most_at_once(path) == 1


def test_an_error_releases_the_lock_of_large_photos(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", colours(8, 8))
    monkeypatch.setattr(decode, "LARGE", 63)
    with monkeypatch.context() as broken:
        broken.setattr(Image.Image, "resize", _error)
        error_of(path)
    found = []
    reader = threading.Thread(target=lambda: found.append(read_image(path)), daemon=True)
    reader.start()
    reader.join(60)
    assert np.shape(found) == (1, 8, 8, 3)
