"""What the rows of a text table say, whatever its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.delimited import Sheet
from fewtags.formats.words import Words
from fewtags.labels import ClassNames
from fewtags.table.table import ValueReading


@final
@dataclass(frozen=True)
class CsvStated:
    """What the rows of a sheet say.

    Attributes:
        classes: the vocabulary.
        row: int64 [F], row of each fact.
        class_: int64 [F].
        state: int8 [F], positive or negative.
        locations: float64 [F, 4] in 0..1, NaN for none.
        pixels: float64 [F, 2] x, y of points in pixels, NaN for none; or None.
        open: int64 [K, 2] row and class of cells that are said to be unknown.
        closes: bool [R], rows that say all there is to say about their image.
        nothing: bool [R], rows that say that none of the classes is in their image.
        readings: what each value was taken for.
        messages: how that was found out.
        warnings: what may be meant otherwise.
    """

    classes: ClassNames
    row: NDArray[np.int64]
    class_: NDArray[np.int64]
    state: NDArray[np.int8]
    locations: NDArray[np.float64]
    open: NDArray[np.int64]
    closes: NDArray[np.bool_]
    nothing: NDArray[np.bool_]
    readings: tuple[ValueReading, ...]
    messages: tuple[str, ...] = ()
    pixels: NDArray[np.float64] | None = None
    warnings: tuple[str, ...] = ()


def check_words(sheet: Sheet, columns: Sequence[int], words: Words) -> None:
    """Raises for the first value, row by row, that is none of the words."""
    wrong = {(j, value): n for j in columns for value, n in sheet.values[j].items() if words.meaning(value) is None}
    if wrong:
        row, j, value = min((sheet.columns[j].index(value), j, value) for j, value in wrong)
        more = f" ({sum(wrong.values()) - 1:,} more such cells)" if sum(wrong.values()) > 1 else ""
        raise DataError(
            f"{sheet.at(row, j)}: {value!r} says neither present (1, yes) nor absent (0, no){more}. Mend the cell, add "
            "the word to positive_words, negative_words or unknown_words, or pass as columns those that are classes."
        )
