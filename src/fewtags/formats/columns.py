"""A column of a text table, in which values repeat: what repeats is understood once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray


@final
class Column(Sequence[str]):
    """The texts of R rows.

    Attributes:
        words: the distinct texts, in order of appearance.
        codes: int32 [R], position in `words` of the text of each row.

    >>> column = Column.of(["cat", "dog", "cat"])
    >>> column.words, column.codes.tolist(), column[1:]
    (['cat', 'dog'], [0, 1, 0], ['dog', 'cat'])
    """

    def __init__(self, words: list[str], codes: NDArray[np.int32]) -> None:
        self.words, self.codes = words, codes

    @classmethod
    def of(cls, texts: Sequence[str]) -> Column:
        """Return the column of some texts."""
        if isinstance(texts, Column):
            return texts
        position: dict[str, int] = {}
        codes = [position.setdefault(text, len(position)) for text in texts]
        return cls(list(position), np.array(codes, np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self.words[code] for code in self.codes[row].tolist()]
        return self.words[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return map(self.words.__getitem__, self.codes.tolist())

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Return the first row with a text."""
        rows = np.flatnonzero(self.codes[start:stop] == self.words.index(value))
        if not len(rows):
            raise ValueError(f"{value!r} is not in the column")
        return start + int(rows[0])

    def counts(self) -> Counter[str]:
        """Return how often each text occurs, in order of appearance."""
        return Counter(dict(zip(self.words, np.bincount(self.codes, minlength=len(self.words)).tolist(), strict=True)))

    def each(self, function: Callable[[str], Any], kind: DTypeLike) -> NDArray[Any]:
        """Return what a function of a text says about the text of each row, [R]."""
        values = np.fromiter(map(function, self.words), kind, len(self.words))
        return values[self.codes]

    def mapped(self, function: Callable[[str], str]) -> Column:
        """Return the column of the texts that a function makes of the texts."""
        made = Column.of([function(word) for word in self.words])
        return Column(made.words, made.codes[self.codes])
