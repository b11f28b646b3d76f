"""Labels for commands that use a model or make other labels: read as training reads them, and told how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable


def read_labels(
    data: str, images: Path | None, complete: bool, assignments: list[str] | None, *, trains: bool = False
) -> LabelTable:
    """Read one source of labels, and say on stderr how every value was taken and how much was left out.

    Args:
        data: the file or folder.
        images: folder that the image names are relative to.
        complete: what is not named is known to be absent.
        assignments: of `--set`.
        trains: whether the command uses other settings than those of data as well.

    Raises:
        ConfigError: a setting that is not known, or would do nothing.
        DataError: the source is not what it should be.
    """
    from fewtags.cli.progress import say
    from fewtags.cli.train import read_settings
    from fewtags.engine.plan import read_one
    from fewtags.errors import ConfigError

    for assignment in assignments or []:
        if not trains and not assignment.strip().startswith("data."):
            raise ConfigError(f"--set {assignment}: this command takes settings of data alone, such as data.uncertain.")
    flags = {
        "data.train": data,
        "data.complete": complete or None,
        "data.images": None if images is None else str(images),
    }
    table = read_one(read_settings(None, {k: v for k, v in flags.items() if v is not None}, assignments or []).data)
    where = data if images is None else f"{data} --images {images}"
    for line in reading_lines(table, where):
        say(line)
    return table


def reading_lines(table: LabelTable, source: str) -> Iterator[str]:
    """What the reader has to say, in the words of `check`.

    Args:
        table: what was read.
        source: how `fewtags check` is told what to read, to see the list of what was left out.
    """
    from fewtags.check.label_findings import reader_findings
    from fewtags.text import counted

    yield from (f"read: {reading}" for reading in table.notes.readings)
    yield from (str(finding) for finding in reader_findings({"": table}) if finding.code in ("reader", "misread"))
    if excluded := len(table.notes.excluded):
        yield (
            f"warning: {counted(excluded, 'item')} left out while reading; "
            f"`fewtags check {source} --excluded FILE` lists them."
        )


def split_sizes(named: Mapping[str, LabelTable]) -> str:
    """How many images each split has, in words; those of no split are under ""."""
    from fewtags.text import counted

    return ", ".join(
        f"{counted(len(table), 'image')} of " + (f"split {name!r}" if name else "no split")
        for name, table in named.items()
    )
