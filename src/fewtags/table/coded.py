"""Columns of words as codes of their distinct words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.table.keys import repeated_key

WORDS = pa.dictionary(pa.int32(), pa.string())


@final
@dataclass(frozen=True)
class Coded:
    """A column of words, whoever wrote the file: the distinct words in order of appearance, and the code of each row.

    The code is -1 in a row without a word.
    """

    words: pa.Array
    codes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.codes)


def checked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the same column; an error if its words are not UTF-8, as not every writer's are."""
    for part in column.chunks:
        part.dictionary.validate(full=True)
    return column


def coded(column: pa.ChunkedArray) -> Coded:
    """Return a column of texts or of dictionaries.

    Raises:
        ArrowException: the words are not texts, or not UTF-8.
    """
    return _in_own_order(column) or _in_any_order(column)


def _in_own_order(column: pa.ChunkedArray) -> Coded | None:
    """The words of images in one run each, as in a file that `save` wrote; None if it may be another column.

    Then the dictionaries of the parts, one after the other, are the words in order of appearance; the first word of a
    part may be the last one of the part before. No word needs to be looked up.
    """
    if column.type != WORDS or column.null_count:
        return None
    words, codes = [pa.array([], pa.string())], np.empty(len(column), np.int32)
    row = total = 0
    for part in checked(column).chunks:
        own, found = part.dictionary, codes_of(part)
        if own.null_count or len(first_rows(found)) != len(own):
            return None
        again = len(own) > 0 and len(words[-1]) > 0 and words[-1][-1] == own[0]
        np.add(found, total - again, out=codes[row : row + len(part)])
        row, total = row + len(part), total + len(own) - again
        if len(own) > again:
            words.append(own[again:])
    texts = pa.concat_arrays(words)
    return Coded(texts, codes) if repeated_key(texts) is None else None


def _in_any_order(column: pa.ChunkedArray) -> Coded:
    """Any column of words. Decoding every row is what costs time, and is done only if codes are in another order."""
    if column.type == WORDS and column.num_chunks:
        words = column.unify_dictionaries().combine_chunks()
        words.dictionary.validate(full=True)  # Not every writer's strings are UTF-8.
        codes = codes_of(words)
        alone = len(words.dictionary) == 1 and words.null_count < len(words)
        if not words.dictionary.null_count and (alone or len(first_rows(codes)) == len(words.dictionary)):
            return Coded(words.dictionary, codes)
    words = column.cast(pa.string()).combine_chunks().dictionary_encode()
    words.validate(full=True)
    return Coded(words.dictionary, codes_of(words))


def codes_of(words: pa.DictionaryArray) -> NDArray[np.int32]:
    """Return the code of each row, -1 for null."""
    codes = words.indices if words.indices.null_count == 0 else pc.fill_null(words.indices, -1)
    return np.asarray(codes.to_numpy(), np.int32)


def first_rows(codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rows in which a code is larger than all before: the first row of every code, if they are in order."""
    if np.any(codes[1:] < codes[:-1]):
        codes = np.maximum.accumulate(codes)
    return np.flatnonzero(np.concatenate([codes[:1] >= 0, codes[1:] > codes[:-1]]))
