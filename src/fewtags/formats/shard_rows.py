"""The photos of a shard with what is known about each, and the split that the names of shards and folders say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from fewtags.formats.common import is_split
from fewtags.formats.metadata import Row
from fewtags.table.table import Notes

PHOTO = "photo in the shard"
"""Name of the column of photos in messages."""


@final
@dataclass
class ShardRows:
    """The photos of a shard.

    Attributes:
        rows: a row for each photo.
        labelled: some have labels beside them.
        notes: about members and columns that are not read.
        left: columns that are not read, because their names are those of columns that name photos.
    """

    rows: list[Row]
    labelled: bool
    notes: Notes = field(default_factory=Notes)
    left: tuple[str, ...] = ()


def with_unknown(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows; those without labels get a null for each field, since nothing is known about them."""
    fields = dict.fromkeys(key for row in rows for key in row.record if key != PHOTO)
    for row in rows:
        yield row if len(row.record) > 1 else replace(row, record={**row.record, **fields})


def with_splits(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows with the split that the name of their shard says, unless some row has one of its own."""
    if any(row.record.get("split") for row in rows):
        yield from rows
        return
    split_of = {file: _split_of(file) for file in {row.file for row in rows}}
    inside = [is_split(_inside(row).partition("/")[0]) if "/" in _inside(row) else "" for row in rows]
    splits = inside if all(inside) else [split_of[row.file] for row in rows]
    counts = Counter(splits)
    for row, split in zip(rows, splits, strict=True):
        yield replace(row, record={**row.record, "split": split}) if len(counts) > 1 or split else row


def _split_of(shard: Path) -> str:
    """Return the split of a name such as `train-00000-of-00002.parquet`, or of the folder of the shard; "" for none."""
    stem = re.sub(r"(-\d+-of-\d+.*|[-_.]?\d+)$", "", shard.stem)
    last = re.split(r"[-_.]", stem)[-1]  # of imagenet1k-train-000.tar
    return is_split(stem) or is_split(last) or is_split(shard.parent.name)


def _inside(row: Row) -> str:
    """Return the name of a photo in its shard."""
    name = str(row.record[PHOTO])
    return name.partition(f"{row.file.name}/")[2] or name
