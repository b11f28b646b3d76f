"""The cache of photos of a run: its folder, and what it will take on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewtags.engine.machine import free_disk
from fewtags.errors import ConfigError, DataError
from fewtags.files import refuse_folder
from fewtags.photos.cache import KEPT_FREE, PhotoCache
from fewtags.photos.dataset import PhotoFolder
from fewtags.shards.places import is_url
from fewtags.table.table import LabelTable
from fewtags.text import counted, named

SAMPLE = 32
"""Photos whose headers are read to estimate the size of the cache."""


def make_cache(folder: str, size: int) -> PhotoCache | None:
    """Return the cache in a folder for crops of `size` pixels; None for no folder."""
    return PhotoCache.for_crops(Path(folder), size) if folder else None


def refuse_cache(folder: str) -> None:
    """Raise ConfigError if the setting `photo_cache` does not name a folder that can be written."""
    if is_url(folder):
        raise ConfigError(f"{named('data.photo_cache', folder)} is a URL; give a folder on a disk of this machine.")
    if folder:
        refuse_folder(Path(folder), named("data.photo_cache"))


def cache_note(cache: PhotoCache, photos: LabelTable, *, chosen: bool = True) -> str:
    """Return a sentence about the size of a cache, estimated from a sample of the photos.

    `chosen`: the size of the crops, on which that of the copies depends, is known.
    """
    what = f"photo cache: {cache.folder} gets a copy of each training photo"
    if not chosen:
        return what
    what += f" with a shorter side of at most {cache.side} px"
    root = photos.require_root()
    if is_url(str(root)):  # a header costs a request
        return what
    folder = PhotoFolder(root, photos.images)
    sizes, there = [], 0
    for index in np.linspace(0, len(photos) - 1, min(SAMPLE, len(photos))).astype(int).tolist():
        try:
            needed, exists = cache.size_of(folder.path(index))
        except DataError:  # it has changed since it was checked; reading it in training says so
            continue
        sizes.append(needed)
        there += exists
    if not sizes:
        return what
    each, free = sum(sizes) / len(sizes), free_disk(cache.folder)
    present = there / len(sizes)
    whole, missing = each * len(photos), each * len(photos) * (1 - present)
    total = f"{whole / 1e9:,.1f} GB" if whole >= 1e9 else f"{whole / 1e6:,.1f} MB"
    text = f"{what}: about {each / 1e3:,.0f} kB each, {total} in all"
    text += f", of which about {present:.0%} are there" if there else ""
    if missing <= free - KEPT_FREE:
        return text
    fitting = int(max(0, free - KEPT_FREE) / each)
    return (
        f"warning: {text}. Only {free / 1e9:,.1f} GB are free, and {KEPT_FREE / 1e9:g} GB are kept free, so there is "
        f"room for {counted(fitting, 'copy', 'copies')} more; the other photos are shrunken again in each epoch"
    )


def problem_note(problem: str) -> str:
    """Return what to say about a cache that cannot be written; `problem` is that of a `TrainLoader`."""
    return (
        f"the photo cache is not complete: {problem}. Photos without a copy are shrunken again in each epoch, with the "
        "same result"
    )
