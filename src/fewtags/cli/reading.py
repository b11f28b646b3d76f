"""Read labels for commands, with the same settings as training, and report how they were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtags.cli.options import without_none
from fewtags.cli.progress import say
from fewtags.cli.train import read_settings
from fewtags.errors import ConfigError
from fewtags.text import counted

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable


def reading_flags(
    data: str,
    images: Path | None,
    complete: bool,
    *,
    val: str | None = None,
    test: str | None = None,
    val_images: Path | None = None,
    test_images: Path | None = None,
) -> dict[str, Any]:
    """Return the settings for the options that name the labels and images."""
    return without_none(
        {
            "data.train": data,
            "data.val": val,
            "data.test": test,
            "data.images": None if images is None else str(images),
            "data.val_images": None if val_images is None else str(val_images),
            "data.test_images": None if test_images is None else str(test_images),
            "data.complete": complete or None,
        }
    )


def read_labels(
    data: str, images: Path | None, complete: bool, assignments: list[str] | None, *, trains: bool = False
) -> LabelTable:
    """Read labels; report on stderr how each value was read and how much was left out.

    `trains` allows `assignments` (`--set`) other than those of data.
    """
    from fewtags.engine.plan import read_one

    for assignment in assignments or []:
        if not trains and not assignment.strip().startswith("data."):
            raise ConfigError(f"--set {assignment}: this command only has settings of data, such as data.uncertain.")
    table = read_one(read_settings(None, reading_flags(data, images, complete), assignments or []).data)
    say(*reading_lines(table, data if images is None else f"{data} --images {images}"))
    return table


def reading_lines(table: LabelTable, source: str) -> Iterator[str]:
    """Yield the reader's messages as `fewtags check SOURCE` prints them."""
    from fewtags.check.label_findings import reader_findings

    yield from (f"read: {reading}" for reading in table.notes.readings)
    yield from (str(finding) for finding in reader_findings({"": table}) if finding.code in ("reader", "misread"))
    if excluded := len(table.notes.excluded):
        yield (
            f"warning: {counted(excluded, 'item')} left out while reading; "
            f"`fewtags check {source} --excluded FILE` lists them."
        )


def split_sizes(named: Mapping[str, LabelTable]) -> str:
    """Describe the number of images of each split; images without a split have the key ""."""
    return ", ".join(
        f"{counted(len(table), 'image')} of " + (f"split {name!r}" if name else "no split")
        for name, table in named.items()
    )
