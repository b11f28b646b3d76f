"""Read labels for commands, with the same settings as training, and report how they were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fewtags.cli.options import Given, plain_paths, without_none
from fewtags.cli.progress import say
from fewtags.cli.train import read_settings
from fewtags.errors import ConfigError, DataError
from fewtags.text import counted, suggest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fewtags.table.table import LabelTable


def reading_flags(
    data: Given,
    images: Given,
    complete: bool,
    *,
    val: Given = None,
    test: Given = None,
    val_images: Given = None,
    test_images: Given = None,
    covers: list[str] | None = None,
) -> dict[str, Any]:
    """Return the settings for the options that name the labels and images."""
    return without_none(
        {
            "data.train": plain_paths(data),
            "data.val": plain_paths(val),
            "data.test": plain_paths(test),
            "data.images": plain_paths(images),
            "data.val_images": plain_paths(val_images),
            "data.test_images": plain_paths(test_images),
            "data.covers": covers or None,
            "data.complete": complete or None,
        }
    )


def _listed(given: Given) -> list[str]:
    found = plain_paths(given)
    return [found] if isinstance(found, str) else found or []


def read_labels(
    data: Given,
    images: Given,
    complete: bool,
    assignments: list[str] | None,
    *,
    covers: list[str] | None = None,
    trains: bool = False,
) -> LabelTable:
    """Read labels; report on stderr how each value was read and how much was left out.

    `trains` allows `assignments` (`--set`) other than those of data.
    """
    from fewtags.engine.tables import read_one

    for assignment in assignments or []:
        if not trains and not assignment.strip().startswith("data."):
            raise ConfigError(f"--set {assignment}: this command only has settings of data, such as data.uncertain.")
    table = read_one(read_settings(None, reading_flags(data, images, complete, covers=covers), assignments or []).data)
    words = [*_listed(data), *(f"--images {folder}" for folder in _listed(images))]
    say(*reading_lines(table, " ".join(words)))
    return table


def point_rule(word: str | None) -> Literal["centre", "uniform"]:
    """Return the rule for points in boxes that `--points` names.

    Raises:
        ConfigError: it names none.
    """
    words = ("object", "centre", "uniform")
    if word not in (None, *words):
        raise ConfigError(f"--points {word!r} is not known{suggest(str(word), words)}; known: {', '.join(words)}.")
    return "uniform" if word == "uniform" else "centre"


def with_outlines(
    data: Given,
    images: Given,
    complete: bool,
    assignments: list[str] | None,
    seed: int,
    *,
    covers: list[str] | None = None,
) -> list[str]:
    """Return the assignments, and those that read points in the outlines of objects, if a label file can have them.

    Settings of the user have priority.
    """
    from fewtags.formats import OUTLINED
    from fewtags.formats.read import detect

    own = list(assignments or [])
    settings = read_settings(None, reading_flags(data, images, complete, covers=covers), own).data
    found = {detect(Path(path), settings.format)[0] for path in _listed(data)}
    if found.isdisjoint(OUTLINED):
        return own
    named = {word.partition("=")[0].strip() for word in own}
    added = {"data.places": "outlines", "data.point_seed": seed}
    if "data.places" in named:
        return own
    return [*own, *(f"{key}={value}" for key, value in added.items() if key not in named)]


def reading_lines(table: LabelTable, source: str) -> Iterator[str]:
    """Yield the reader's messages as `fewtags check SOURCE` prints them."""
    from fewtags.check.label_findings import reader_findings

    yield from (f"read: {reading}" for reading in table.notes.readings)
    left_out = {row.kind for row in table.notes.excluded}
    yield from (str(finding) for finding in reader_findings({"": table}) if finding.code not in left_out)
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


def training_images(table: LabelTable) -> NDArray[np.bool_]:
    """Return bool [N]: the images of split "train"; if there are none, all except those of val and test."""
    import numpy as np

    if table.split_names is None:
        return np.ones(len(table), np.bool_)
    names = np.array([name or "" for name in table.split_names.to_pylist()], str)
    training = names == "train" if "train" in names else ~np.isin(names, ("val", "test"))
    if not training.any():
        raise DataError(
            f"there are no training images to thin, only {split_sizes(table.named_splits())}; name the split of the "
            "training images 'train', or leave it empty."
        )
    return training
