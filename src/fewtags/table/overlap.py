"""Photos that training shares with validation or test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fewtags.errors import DataError
from fewtags.table.content import photo_paths, same_content
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, flag


def leave_out_measured(tables: Mapping[str, LabelTable]) -> dict[str, LabelTable]:
    """Return the tables, where "train" lacks the photos that "val" or "test" contains too.

    Photos are the same if their files are, or the bytes of their files. A message counts those left out, and the notes
    list each. Tables without a folder of photos are not compared.

    Raises:
        DataError: no training photo is left.
    """
    train = tables["train"]
    others = {name: table for name, table in tables.items() if name in ("val", "test")}
    groups = _equal_photos({"train": train, **others})
    shared: dict[int, tuple[str, str]] = {}
    for group in groups:
        measured = [(split, row) for split, row in group if split != "train"]
        for split, row in group:
            if split == "train" and measured:
                shared[row] = (measured[0][0], str(others[measured[0][0]].images[measured[0][1]].as_py()))
    if not shared:
        return dict(tables)
    counts = {name: sum(split == name for split, _ in shared.values()) for name in others}
    where = " and ".join(f"{name} ({count:,})" for name, count in counts.items() if count)
    if len(shared) == len(train):
        raise DataError(
            f"all {len(train):,} training photos are also in {where}, so no photo is left to train on. Give other "
            f"photos to validate or test on; without {flag('val')}, a tenth of the training photos is held out."
        )
    kept = np.ones(len(train), np.bool_)
    kept[list(shared)] = False
    excluded = [
        Excluded(str(train.images[row].as_py()), f"the same photo is in {split}: {key}", "train")
        for row, (split, key) in sorted(shared.items())
    ]
    are = counted(len(shared), "photo is", "photos are")
    message = f"train: {are} also in {where}, and left out of training; {int(kept.sum()):,} of {len(train):,} remain"
    notes = train.notes + Notes(excluded=tuple(excluded), messages=(message,))
    return {**tables, "train": replace(train.subset(kept), notes=notes)}


def _equal_photos(tables: Mapping[str, LabelTable]) -> list[list[tuple[str, int]]]:
    """Return groups of images, as split and row, that show the same photo: one file, or files with equal bytes."""
    owners: dict[str, list[tuple[str, int]]] = {}
    for split, table in tables.items():
        for row, path in enumerate(photo_paths(table)):
            owners.setdefault(path, []).append((split, row))
    paths = list(owners)
    copies = [[image for n in group for image in owners[paths[n]]] for group in same_content(paths)]
    return [*(group for group in owners.values() if len(group) > 1), *copies]
