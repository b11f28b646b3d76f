"""`fewtags simulate --protocol cole`: read label files in the order that the published labels need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fewtags.cli.progress import say
from fewtags.cli.reading import read_labels, reading_flags, split_sizes, training_images
from fewtags.cli.train import read_settings
from fewtags.errors import ConfigError

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable


def make_cole(
    data: str,
    images: Path | None,
    test: str | None,
    test_images: Path | None,
    *,
    complete: bool,
    assignments: list[str] | None,
    seed: int | None,
) -> LabelTable:
    """Read complete labels and make the benchmark of Cole et al. from them; the notes are not printed yet."""
    from fewtags.budget.cole import cole_benchmark
    from fewtags.budget.simulate import COLE_SEED

    whole = _read_published(data, images, complete, assignments)
    measured = None if test is None else _read_published(test, test_images, complete, assignments)
    if measured is not None:
        say(*(f"test: {message}" for message in measured.notes.messages))
    train, measured = _official_splits(whole, measured)
    return cole_benchmark(train, measured, COLE_SEED if seed is None else seed)


def _read_published(data: str, images: Path | None, complete: bool, assignments: list[str] | None) -> LabelTable:
    """Read complete labels in the published order.

    COCO: images with an annotation, sorted by id as text. VOC: images with an object that is not difficult, sorted by
    file name; difficult objects count as absent. Other formats: all images in the order of the file.
    """
    from fewtags.budget.cole import coco_in_order, voc_in_order
    from fewtags.formats.read import detect

    given = read_settings(None, reading_flags(data, images, complete), assignments or []).data
    kind, _ = detect(Path(data), given.format)
    if kind == "coco":
        return coco_in_order(Path(data), images, _read(data, images, True, assignments))
    if kind != "voc":
        table = _read(data, images, complete, assignments)
        say(f"note: {data}: the images are taken in the order of the file; it must be that of the published labels")
        return table
    if "difficult" in given.model_fields_set and given.difficult != "negative":
        raise ConfigError(
            f"--set data.difficult={given.difficult}: the published labels take difficult objects as absent "
            "(data.difficult=negative). Leave it out, or use --protocol single."
        )
    return voc_in_order(Path(data), _read(data, images, True, [*(assignments or []), "data.difficult=negative"]))


def _read(data: str, images: Path | None, complete: bool, assignments: list[str] | None) -> LabelTable:
    """Read labels as `read_labels` does, and drop the messages, which it prints."""
    table = read_labels([data], None if images is None else [images], complete, assignments)
    return replace(table, notes=replace(table.notes, messages=()))


def _official_splits(table: LabelTable, test: LabelTable | None) -> tuple[LabelTable, LabelTable | None]:
    """Return the official training set, and the images to test on: `test`, or else split "val", or else "test".

    A message counts the images of other splits, which are left out.
    """
    training = training_images(table)
    train, named = table.subset(training), {}
    if not training.all():
        named = {**table.subset(~training).named_splits()}
    if test is None:
        test = next((named.pop(name) for name in ("val", "test") if name in named), None)
    if named:
        train = train.noting(f"left out: {split_sizes(named)}")
    return train, test
