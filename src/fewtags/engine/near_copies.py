"""Near copies of photos (encoded again, resized) in the split and in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.photos.alike import BITS, INSTALL, can_compare, find_alike, linked
from fewtags.table.content import content_groups, photo_paths
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, run_setting


def copy_groups(table: LabelTable, near: bool) -> tuple[NDArray[np.int64], str]:
    """Return groups int64 [N] of photos to keep on one side of a split, and words for what they have in common.

    Photos are in one group if their files are equal or, with `near` and if the library is installed, if they look
    alike. If more than half of the photos are linked, only equal files count.
    """
    groups = content_groups(table)
    if not near or not can_compare():
        return groups, "equal photos together"
    alike, rows = find_alike(photo_paths(table)), np.arange(len(table))
    joined = linked(len(table), np.concatenate([np.stack([rows, g], 1) for g in (groups, alike.groups)]))
    if len(joined) and np.bincount(joined).max() > len(joined) / 2:
        return groups, "equal photos together; most photos look alike (frames of a film?), which is not considered"
    return joined, "equal photos and photos that look alike together"


def leave_out_alike(tables: Mapping[str, LabelTable]) -> dict[str, LabelTable]:
    """Return the tables, where "train" lacks the photos that look like one of "val" or "test"; notes list each.

    Raises:
        ConfigError: the library for comparing photos is not installed.
        DataError: no training photo is left.
    """
    if not can_compare():
        asked = run_setting("data.near_copies", "leave_out")
        raise ConfigError(f"{asked} needs the library imagehash: {INSTALL}.")
    splits = [name for name in ("val", "test", "train") if name in tables]
    in_train = np.repeat([split == "train" for split in splits], [len(photo_paths(tables[split])) for split in splits])
    owners = [(split, row) for split in splits for row in range(len(photo_paths(tables[split])))]
    alike = find_alike([path for split in splits for path in photo_paths(tables[split])])
    train, excluded, lost = tables["train"], [], []
    for a, b, distance in alike.nearest(in_train[alike.pairs[:, 1]] & ~in_train[alike.pairs[:, 0]]):
        (split, row), (_, own) = owners[a], owners[b]
        key = tables[split].images[row].as_py()
        lost.append(own)
        reason = f"looks like a photo of {split}: {key} (distance {distance} of {BITS})"
        excluded.append(Excluded(str(train.images[own].as_py()), reason, "train"))
    if not lost:
        return dict(tables)
    if len(lost) == len(train):
        raise DataError("all training photos look like photos to validate or test on, so no photo is left to train on.")
    kept = np.ones(len(train), np.bool_)
    kept[lost] = False
    are = counted(len(lost), "photo looks", "photos look")
    message = f"train: {are} like photos of another split, and left out of training; {kept.sum():,} remain"
    notes = train.notes + Notes(excluded=tuple(excluded), messages=(message,))
    return {**tables, "train": replace(train.subset(kept), notes=notes)}
