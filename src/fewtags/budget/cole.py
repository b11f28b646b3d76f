"""The benchmark of Cole et al. (Multi-Label Learning from Single Positive Labels, CVPR 2021), from complete labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from fewtags.budget.simulate import COLE_SEED, cole_split, single_positive
from fewtags.errors import DataError
from fewtags.formats.coco import published_order
from fewtags.labels import Label
from fewtags.table.merge import merge, with_classes
from fewtags.table.table import LabelTable, Notes
from fewtags.text import counted, quoted


def cole_benchmark(official_train: LabelTable, test: LabelTable | None = None, seed: int = COLE_SEED) -> LabelTable:
    """Return one table with the splits train, val and test.

    One positive is drawn for each image of the official training set, in the order of its rows and classes. Then a
    fifth of the images becomes val, with complete labels; the others are train. `test` is the official validation set.

    Args:
        official_train: complete labels, in the published order.
        test: complete labels to test on, if there are any.
        seed: of the drawn labels. The split always has the published seed, `COLE_SEED`.

    Raises:
        DataError: unknown cells, or fewer than three training images; images of train that are also in test.
        ConfigError: a seed that the protocol does not accept.
    """
    train, val = cole_split(len(official_train))
    if not len(val):
        raise DataError(f"{len(official_train)} training images are too few: val would have none of them.")
    drawn = single_positive(official_train, seed, "cole")
    parts = {"train": drawn.subset(train), "val": official_train.subset(val)}
    parts |= {} if test is None else {"test": test}
    named = [
        replace(part, split_names=pa.array([name] * len(part), pa.string()), notes=Notes())
        for name, part in parts.items()
    ]
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in parts.items())
    message = f"splits as in Cole et al. (seed {COLE_SEED}): {sizes}; val and test keep their complete labels"
    return replace(merge(named), notes=drawn.notes).noting(message)


def coco_in_order(path: Path, images: Path | None, table: LabelTable) -> LabelTable:
    """Return the images with an annotation, sorted by id as text, and the classes in the order of the COCO file."""
    keys, classes = published_order(path, images)
    row = {key: i for i, key in enumerate(table.images.to_pylist())}
    ordered = with_classes(table.subset([row[key] for key in keys]), classes)
    if len(keys) < len(table):
        ordered = ordered.noting(_left_out(len(table) - len(keys), len(table)))
    return ordered.noting("images in the order of their ids as text, as in Cole et al.")


def voc_in_order(path: Path, table: LabelTable) -> LabelTable:
    """Return the images with an object that is not difficult, sorted by file name.

    Raises:
        DataError: a photo is missing.
    """
    refuse_missing(path, table)
    names = [PurePosixPath(key).stem + ".jpg" for key in table.images.to_pylist()]
    ordered = table.subset(sorted(range(len(names)), key=lambda i: names[i]))
    annotated = ordered.matrix.image_counts(Label.POSITIVE) > 0
    if not annotated.all():
        ordered = ordered.subset(annotated).noting(_left_out(int(np.count_nonzero(~annotated)), len(table)))
    return ordered.noting("images in the order of their file names, as in Cole et al.")


def _left_out(few: int, images: int) -> str:
    return f"{few:,} of {images:,} images without annotation are left out"


def refuse_missing(path: Path, table: LabelTable) -> None:
    """Raise DataError if photos of a table are missing, because each image changes the labels of those after it."""
    if missing := [row for row in table.notes.excluded if row.kind == "missing"]:
        raise DataError(
            f"{path}: {counted(len(missing), 'photo is', 'photos are')} missing (first: {quoted(missing[0].item)}), "
            "but each image changes the random labels of those after it. Give the folder with all photos (--images "
            "FOLDER), or use --protocol single."
        )
