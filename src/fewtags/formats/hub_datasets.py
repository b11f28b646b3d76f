"""Label tables from `datasets` of Hugging Face, and back."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.photos.decode import EXTENSIONS
from fewtags.photos.pillow import DAMAGE, open_picture
from fewtags.table.table import LabelTable, Notes
from fewtags.text import counted, some

INSTALL = "pip install 'fewtags[datasets]'"
NEGATIVES = "negatives"
"""Column of the classes that are known to be absent, as `to_datasets` writes it."""


def from_datasets(dataset: Any, folder: Path | str, *, labels: str | None = None, complete: bool = False) -> LabelTable:
    """Write the photos of a `datasets.Dataset` into a folder, and make a label table of them.

    Photos are written with their own bytes, and named by their row. The labels of a row are one class or a list of
    classes, as `ClassLabel` or text; None and -1, which stand for hidden labels, are unknown. A column `negatives` has
    classes that are absent. Photos whose labels are unknown stay in the table.

    Args:
        dataset: one split of a data set, with one column of images.
        folder: for the photos; it must be new or empty.
        labels: the column with the labels; None: the only one whose features are `ClassLabel`s.
        complete: whether every class that a row with labels does not name is absent; otherwise it is unknown.

    Raises:
        ConfigError: `datasets` is not installed.
        DataError: not a `Dataset`, not one column of images or labels, or a folder with files.
    """
    import_datasets()
    folder = Path(folder)
    images, labels = _columns(dataset, labels)
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} has files; give a new folder for the photos of the data set.")
    rows = dataset.select_columns([c for c in (images, labels, NEGATIVES) if c in dataset.features])
    present, absent = ([*_names(rows, column)] for column in (labels, NEGATIVES))
    named = _class_names(dataset, labels) or sorted({name for row in (*present, *absent) for name in row or ()})
    classes = ClassNames.of(named)
    if not len(classes):
        raise DataError(f"the column {labels!r} names no class.")
    facts = [
        (i, classes.index(name), state)
        for state, column in ((Label.POSITIVE, present), (Label.NEGATIVE, absent))
        for i, names in enumerate(column)
        for name in names or ()
    ]
    image, class_, state = np.array(facts, np.int64).reshape(-1, 3).T
    labelled = np.array([names is not None for names in present], np.bool_)
    notes: tuple[str, ...] = (f"{counted(len(rows), 'photo')} of a data set, labels from the column {labels!r}",)
    if hidden := int((~labelled).sum()):
        notes += (f"{counted(hidden, 'photo has', 'photos have')} no labels (None or -1): unknown",)
    return LabelTable.build(
        [*_write_photos(rows, images, folder)],
        classes,
        image=image,
        class_=class_,
        state=state,
        source="datasets",
        complete_set=np.where(labelled & complete, 0, -1),
        complete_classes=np.ones((1, len(classes)), np.bool_),
        root=folder,
        notes=Notes(messages=notes),
    )


def to_datasets(table: LabelTable) -> Any:
    """Return a `datasets.Dataset`: image, labels (classes that are present), negatives (classes that are absent).

    Classes in neither list are unknown. Photos are read from their files when they are used; `push_to_hub` and
    `save_to_disk` of the result store them.

    Raises:
        ConfigError: `datasets` is not installed.
        DataError: the table has no folder of photos.
    """
    datasets = import_datasets()
    root, names = table.require_root(), datasets.ClassLabel(names=[*table.classes.ids])
    columns: dict[str, list[Any]] = {"image": [], "labels": [], NEGATIVES: []}
    for i, key in enumerate(table.images.to_pylist()):
        (states,) = table.matrix.rows([i])
        columns["image"].append(str(root / key))
        columns["labels"].append(np.flatnonzero(states == Label.POSITIVE).tolist())
        columns[NEGATIVES].append(np.flatnonzero(states == Label.NEGATIVE).tolist())
    listed = datasets.Sequence(names)
    features = datasets.Features({"image": datasets.Image(), "labels": listed, NEGATIVES: listed})
    return datasets.Dataset.from_dict(columns, features=features)


def import_datasets() -> Any:
    """Return the package `datasets`, or raise ConfigError."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs {error.name}, which is not installed: {INSTALL}.") from error
    return datasets


def _columns(dataset: Any, labels: str | None) -> tuple[str, str]:
    """Return the columns of the images and of the labels."""
    datasets = sys.modules["datasets"]
    if isinstance(dataset, datasets.DatasetDict):
        raise DataError(f"expected one split, got a DatasetDict; pass for example dataset[{next(iter(dataset))!r}].")
    if not isinstance(dataset, datasets.Dataset):
        raise DataError(f"expected a datasets.Dataset, got an object of the type {type(dataset).__name__}.")
    photos = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
    if len(photos) != 1:
        raise DataError(f"expected one column of images, found {some(photos) if photos else 'none'}; select columns.")
    named = [name for name in dataset.features if name != NEGATIVES and _class_names(dataset, name)]
    if labels is None and len(named) != 1:
        found = some(named) if named else "none"
        raise DataError(f"expected one column of ClassLabels, found {found}; pass labels=COLUMN.")
    if labels is not None and labels not in dataset.features:
        raise DataError(f"there is no column {labels!r}; the data set has {some([*dataset.features])}.")
    return photos[0], labels or named[0]


def _class_names(dataset: Any, column: str) -> list[str]:
    """Return the names of a column's ClassLabel, or of a list of them; an empty list for other columns."""
    feature = dataset.features[column]
    feature = getattr(feature, "feature", feature)  # of a list
    return [*feature.names] if isinstance(feature, sys.modules["datasets"].ClassLabel) else []


def _names(rows: Any, column: str) -> Iterator[list[str] | None]:
    """Yield the class names of each row; None if nothing is known."""
    if column not in rows.features:
        yield from ([] for _ in range(len(rows)))
        return
    names = _class_names(rows, column)
    for value in rows[column]:
        listed = value if isinstance(value, list) else [value]
        known = [one for one in listed if one is not None and one != -1]
        yield [names[one] if names else str(one) for one in known] if known or value == [] else None


def _write_photos(rows: Any, column: str, folder: Path) -> Iterator[str]:
    """Write the photos, and yield their names."""
    folder.mkdir(parents=True, exist_ok=True)
    endings = {kind: ending for ending, kind in reversed(EXTENSIONS.items())}
    stored = rows.select_columns([column]).cast_column(column, sys.modules["datasets"].Image(decode=False))
    for n, row in enumerate(stored):
        photo = row[column] or {}
        content = photo.get("bytes") or (Path(photo["path"]).read_bytes() if photo.get("path") else None)
        if content is None:
            cure = f"dataset.filter(lambda row: row[{column!r}])"
            raise DataError(f"row {n} has no photo; filter the data set first: {cure}.")
        try:
            with open_picture(io.BytesIO(content)) as opened:
                ending = endings.get(str(opened.format), ".jpg")
        except DAMAGE:
            ending = Path(str(photo.get("path") or ".jpg")).suffix or ".jpg"  # reading it will say what is wrong
        name = f"{n:08d}{ending}"
        (folder / name).write_bytes(content)
        yield name
