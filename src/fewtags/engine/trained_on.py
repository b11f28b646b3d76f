"""Whether photos were trained on, by the record of a run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fewtags.engine.checkpoint import reading_record
from fewtags.engine.photo_record import photo_digests
from fewtags.engine.runfolder import TRAINING, RunFolder
from fewtags.table.content import photo_paths
from fewtags.table.storage import load
from fewtags.table.table import LabelTable
from fewtags.text import counted


def trained_on(run: Path | None, table: LabelTable) -> list[str]:
    """Return a warning that counts the photos of a table that the run in a folder was trained on; else nothing.

    A photo is the same if its path is, or its content. Without the record of a run, nothing is known.

    Raises:
        CheckpointError: the record is damaged.
    """
    file = Path() if run is None else run / "tables" / "train.parquet"
    if run is None or not file.exists():
        return []
    with reading_record(file):
        trained = load(file)
    known = {os.path.realpath(path) for path in photo_paths(trained)}
    paths = photo_paths(table)
    same = np.array([os.path.realpath(path) in known for path in paths], np.bool_)
    contents = RunFolder(run, TRAINING).contents_path("train")
    if contents.exists():
        with reading_record(contents):
            recorded = {tuple(row) for row in np.load(contents, allow_pickle=False)[:, 2:].tolist()} - {(0, 0)}
        same |= np.array([tuple(row) in recorded for row in photo_digests(paths).tolist()], np.bool_)
    if not same.any():
        return []
    example = table.images[int(np.argmax(same))].as_py()
    return [
        f"warning: the model was trained on {counted(int(same.sum()), 'photo')} of these {len(paths):,}, for example "
        f"{example}; scores on them are too good. Evaluate on other photos."
    ]
