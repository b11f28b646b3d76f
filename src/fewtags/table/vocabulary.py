"""One vocabulary for several tables: a class keeps its position in every split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.table.table import FACTS, LabelTable


def with_classes(table: LabelTable, classes: ClassNames) -> LabelTable:
    """The same labels under another vocabulary that holds all of the table's classes.

    Images that are closed stay closed for the classes they were closed for; classes that are new are unknown there.

    Raises:
        DataError: a class of the table is missing in `classes`.
    """
    if table.classes == classes:
        return table
    if missing := [i for i in table.classes.ids if i not in classes]:
        raise DataError(
            f"class {missing[0]!r} of the table is not in the vocabulary ({', '.join(classes.ids[:5])}, ...)."
        )
    position = np.array([classes.index(i) for i in table.classes.ids], np.int32)
    moved = position[table.facts["class"].to_numpy()] if len(position) else np.zeros(0, np.int32)
    covers = np.zeros((len(table.covers), len(classes)), np.bool_)
    covers[:, position] = table.covers
    facts = table.facts.set_column(1, FACTS.field(1), pa.array(moved, pa.int32()))
    return replace(table, classes=classes, facts=facts, covers=covers)


def common_vocabulary(tables: Mapping[str, LabelTable]) -> dict[str, LabelTable]:
    """All tables under the union of their classes, in order of appearance.

    Where a table misses classes that another one has, its images say nothing about them, and a message says so.

    Raises:
        DataError: two tables give one class id different display names.
    """
    names: dict[str, str] = {}
    for split, table in tables.items():
        for class_id, name in zip(table.classes.ids, table.classes.names, strict=True):
            if names.setdefault(class_id, name) != name:
                raise DataError(
                    f"{split}: class {class_id!r} is called {name!r} here and {names[class_id]!r} before; use one name."
                )
    classes = ClassNames.of(names, names.values())
    out = {}
    for split, table in tables.items():
        new = [i for i in classes.ids if i not in table.classes]
        message = (
            f"{split}: {len(new)} classes occur in other splits only ({', '.join(new[:5])}); they are unknown here."
        )
        out[split] = with_classes(table, classes).noting(*([message] if new else []))
    return out


def match_images(truth: LabelTable, table: LabelTable) -> LabelTable:
    """The rows of `truth` for the images of `table`, in its order, under its classes.

    Raises:
        DataError: `truth` lacks an image, or has classes of its own.
    """
    position = {key: n for n, key in enumerate(truth.images.to_pylist())}
    keys = table.images.to_pylist()
    if missing := [key for key in keys if key not in position]:
        raise DataError(f"the complete labels lack {len(missing)} of {len(keys)} images, for example {missing[0]!r}.")
    return with_classes(truth.subset(np.array([position[key] for key in keys])), table.classes)
