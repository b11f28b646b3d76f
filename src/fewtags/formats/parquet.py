"""The label tables that `fewtags` itself writes."""

from __future__ import annotations

from pathlib import Path

from fewtags.formats.options import ReadOptions
from fewtags.shards.parquet import holds_photos
from fewtags.table.storage import load
from fewtags.table.table import LabelTable


def recognise(path: Path) -> str:
    """Return why a file is a label table: every Parquet file is taken for one, unless it has photos."""
    return "by its ending" if path.suffix.lower() == ".parquet" and not holds_photos(path) else ""


def read_parquet(path: Path, images: Path | None = None, options: ReadOptions | None = None) -> LabelTable:  # noqa: ARG001
    """Load a label table. `images` replaces the folder of the photos that the file names; options have no effect.

    Raises:
        DataError: the file is not a label table.
    """
    return load(path, root=images)
