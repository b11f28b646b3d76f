"""What the words in a class column mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import final

from fewtags.formats.common import ReadOptions, fold
from fewtags.labels import Label
from fewtags.table.table import ValueReading


class Meaning(Enum):
    """What a cell says. OPEN is said to be unknown, and stays so where everything else is annotated completely."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    OPEN = "unknown"
    BLANK = "blank"

    @property
    def label(self) -> Label:
        """The state it stands for."""
        return {Meaning.POSITIVE: Label.POSITIVE, Meaning.NEGATIVE: Label.NEGATIVE}.get(self, Label.UNKNOWN)


_POSITIVE = frozenset({"1", "true", "yes", "y", "positive", "present"})
_NEGATIVE = frozenset({"0", "false", "no", "n", "negative", "absent"})
_UNCERTAIN = frozenset({"-1", "u", "uncertain"})
_OPEN = frozenset({"unknown", "?"})
_BLANK = frozenset({"", "nan", "na", "n/a", "<na>", "null"})
_UNCERTAIN_MEANS = {"ignore": Meaning.OPEN, "ones": Meaning.POSITIVE, "zeros": Meaning.NEGATIVE}


@final
@dataclass(frozen=True)
class Words:
    """The words of class columns under some options.

    >>> words = Words(ReadOptions(uncertain="ones"))
    >>> words.meaning(" Yes "), words.meaning("-1.0"), words.meaning("maybe")
    (<Meaning.POSITIVE: 'positive'>, <Meaning.POSITIVE: 'positive'>, None)
    """

    options: ReadOptions

    def meaning(self, value: str) -> Meaning | None:
        """What a value means; None if it is none of the words. Numbers may be written in any way ("1.0")."""
        word = fold(value)
        own = (
            (self.options.positive_words, Meaning.POSITIVE),
            (self.options.negative_words, Meaning.NEGATIVE),
            (self.options.unknown_words, Meaning.OPEN),
        )
        for words, meaning in own:
            if any(word == fold(known) for known in words):
                return meaning
        word = _plain_number(word)
        known = (
            (_POSITIVE, Meaning.POSITIVE),
            (_NEGATIVE, Meaning.NEGATIVE),
            (_UNCERTAIN, _UNCERTAIN_MEANS[self.options.uncertain]),
            (_OPEN, Meaning.OPEN),
            (_BLANK, Meaning.BLANK),
        )
        return next((meaning for words, meaning in known if word in words), None)

    def needed(self, value: str) -> Meaning:
        """The meaning of a value that is known to have one."""
        meaning = self.meaning(value)
        assert meaning is not None, value
        return meaning

    def says_something(self, value: str) -> bool:
        """Whether a value is one of the words, and neither blank nor unknown."""
        return self.meaning(value) in (Meaning.POSITIVE, Meaning.NEGATIVE) or _plain_number(fold(value)) in _UNCERTAIN

    def readings(self, where: str, values: Iterable[Counter[str]], blank: str) -> tuple[ValueReading, ...]:
        """How each value is understood, with its count over all columns; the most frequent first."""
        total = sum(values, Counter[str]())
        return tuple(
            ValueReading(where, value.strip() or "(blank)", self._text(value, blank), count)
            for value, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
        )

    def unsure(self, where: str, values: Iterable[Counter[str]]) -> tuple[str, ...]:
        """A warning where -1, read as uncertain, is the only word that could mean absent."""
        total = sum(values, Counter[str]())
        own = {fold(word) for word in (*self.options.unknown_words, *self.options.positive_words)}
        uses = sum(n for value, n in total.items() if _plain_number(fold(value)) == "-1" and fold(value) not in own)
        found = {self.meaning(value) for value in total}
        absent = self.options.complete or self.options.blank == "negative"
        if not uses or self.options.uncertain != "ignore" or Meaning.POSITIVE not in found:
            return ()
        if Meaning.NEGATIVE in found or (absent and Meaning.BLANK in found):
            return ()
        return (
            f"{where}: nothing says absent (0), and -1 is read as uncertain, so that these {uses:,} cells are unknown. "
            "If -1 means absent, pass --set data.uncertain=zeros; if it does mean uncertain, --set "
            "'data.unknown_words=[\"-1\"]' says so.",
        )

    def _text(self, value: str, blank: str) -> str:
        meaning = self.needed(value)
        text = blank if meaning is Meaning.BLANK else meaning.value
        own = (*self.options.positive_words, *self.options.negative_words, *self.options.unknown_words)
        uncertain = _plain_number(fold(value)) in _UNCERTAIN and fold(value) not in map(fold, own)
        return f"{text} (uncertain: {self.options.uncertain})" if uncertain else text


def _plain_number(word: str) -> str:
    """-1.0 and the like as -1."""
    try:
        number = float(word)
    except ValueError:
        return word
    return str(int(number)) if number in (-1, 0, 1) else word
