"""The benchmark of Cole et al. (Multi-Label Learning from Single Positive Labels, CVPR 2021), from complete labels."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from fewtags.budget.simulate import COLE_SEED, cole_split, single_positive
from fewtags.errors import DataError
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable, Notes


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
