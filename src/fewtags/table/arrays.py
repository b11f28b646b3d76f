"""Label tables from dense arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable
from fewtags.text import quoted


def from_array(
    images: Sequence[str],
    classes: Sequence[str] | ClassNames,
    labels: ArrayLike,
    *,
    zero: Literal["negative", "unknown"] | None = None,
    root: Path | str | None = None,
) -> LabelTable:
    """Make a label table from an array with a row per image and a column per class.

    1 is positive, -1 is negative and NaN is unknown. 0 is unknown beside -1, and negative beside NaN; an array with
    neither or both needs `zero`.

    Args:
        images: N unique image names, relative to `root`.
        classes: C class names.
        labels: numbers or bools [N, C].
        zero: meaning of 0 and False.
        root: folder of the photos.

    Raises:
        DataError: another shape, another value, or a 0 with two possible meanings.

    >>> table = from_array(["a.jpg", "b.jpg"], ["cat", "dog"], [[1, 0], [np.nan, 1]])
    >>> table.matrix.dense().tolist()
    [[1, -1], [0, 1]]
    """
    if isinstance(images, str):
        raise DataError(f"images is the text {images!r}; give a list of image names.")
    if isinstance(classes, str):
        raise DataError(f"classes is the text {classes!r}; give a list of names.")
    names = classes if isinstance(classes, ClassNames) else ClassNames.of(map(str, classes))
    try:
        values = np.asarray(labels)
        if values.dtype.kind == "c":
            raise TypeError("complex numbers")
        values = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"labels is not an array of numbers ({error}); use 1, 0, -1 and NaN.") from None
    expected = (len(images), len(names))
    if values.shape != expected:
        raise DataError(
            f"labels has the shape {values.shape}; expected {expected}: a row for each image and a column for each "
            "class."
        )
    wrong = ~(np.isnan(values) | np.isin(values, (-1, 0, 1)))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise DataError(
            f"labels[{row}, {column}] ({quoted(images[row])}, {names.ids[column]!r}) is {values[row, column]:g}; "
            "expected 1, 0, -1 or NaN. Compare probabilities with a threshold first."
        )
    minus, nan = bool((values == -1).any()), bool(np.isnan(values).any())
    if zero is None and minus == nan and (values == 0).any():
        beside = "beside -1 and NaN" if minus else "without -1 or NaN"
        raise DataError(
            f"labels has 0 {beside}, which may mean absent or unknown; pass zero='negative' or zero='unknown'."
        )
    absent = zero == "negative" or (zero is None and nan)
    state = np.where(np.isnan(values), Label.UNKNOWN, values).astype(np.int8)
    if absent:
        state[values == 0] = Label.NEGATIVE
    image, class_ = np.nonzero(state != Label.UNKNOWN)
    return LabelTable.build(
        [str(image) for image in images],
        names,
        image=image,
        class_=class_,
        state=state[image, class_],
        source="array",
        root=None if root is None else Path(root),
    )
