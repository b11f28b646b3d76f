"""The words of class columns: what a cell such as 1, x, no or ? states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions, fold
from fewtags.formats.sheet import Sheet, with_point
from fewtags.formats.stated import value_readings
from fewtags.labels import Label
from fewtags.table.table import ValueReading
from fewtags.text import quoted, setting


class Meaning(Enum):
    """What a cell states. OPEN cells stay unknown in an image that is otherwise completely annotated."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    OPEN = "unknown"
    BLANK = "blank"

    @property
    def label(self) -> Label:
        """The state of the label."""
        return {Meaning.POSITIVE: Label.POSITIVE, Meaning.NEGATIVE: Label.NEGATIVE}.get(self, Label.UNKNOWN)


YES = frozenset(
    [
        *("true", "yes", "y", "present"),
        *("ja", "j", "wahr", "oui", "vrai", "sí", "si", "sì", "verdadero", "vero", "sim", "verdadeiro"),
        *("tak", "prawda", "да", "kyllä", "evet", "igen", "ano", "waar", "はい", "是"),
    ]
)
"""Words for yes in several languages."""
NO = frozenset(
    [
        *("false", "no", "n", "absent"),
        *("nein", "falsch", "non", "faux", "falso", "não", "nao", "nej", "nei", "nee", "onwaar"),
        *("nie", "fałsz", "нет", "ei", "hayır", "nem", "ne", "いいえ", "否"),
    ]
)
"""Words for no."""
UNSURE = frozenset(
    [
        *("uncertain", "unsure", "not sure", "unclear", "unsicher", "unklar", "fraglich", "incertain", "pas sûr"),
        *("inseguro", "incierto", "dudoso", "no sé", "incerto", "dubbio", "não sei", "onzeker", "osäker", "usikker"),
        *("niepewne", "не уверен", "не знаю", "不确定"),
    ]
)
"""Words for neither yes nor no."""
_KNOWN = {
    Meaning.POSITIVE: {"1", "positive", "pos", "x", "xx", "+", "✓", "✔", "☑", "✅", *YES},
    Meaning.NEGATIVE: {"0", "negative", "neg", "✗", "✘", "❌", "☐", *NO},
    Meaning.OPEN: {"unknown", "?", "unbekannt", "inconnu", "desconocido", "desconhecido", "sconosciuto", "неизвестно"},
    Meaning.BLANK: {"", "nan", "na", "n/a", "<na>", "null", "#n/a", "#na", "#nv"},
}
_UNCERTAIN = {"-1", "u", *UNSURE}
_UNCERTAIN_MEANS = {"ignore": Meaning.OPEN, "ones": Meaning.POSITIVE, "zeros": Meaning.NEGATIVE}


@final
@dataclass(frozen=True)
class Words:
    """The words of class columns under some options.

    `minus`: "-" means absent, because "+" occurs beside it; `comma`: numbers may have a decimal comma, as in "1,0".

    >>> words = Words(ReadOptions(uncertain="ones"))
    >>> words.meaning(" Yes "), words.meaning("-1.0"), words.meaning("maybe")
    (<Meaning.POSITIVE: 'positive'>, <Meaning.POSITIVE: 'positive'>, None)
    """

    options: ReadOptions
    minus: bool = False
    comma: bool = False

    def meaning(self, value: str) -> Meaning | None:
        """Return what a value means; None if it is not one of the words. Numbers may be written in any way ("1.0")."""
        word = fold(value)
        for meaning, words in self._own.items():
            if word in map(fold, words):
                return meaning
        word = self._plain(word)
        if word in _UNCERTAIN:
            return _UNCERTAIN_MEANS[self.options.uncertain]
        if word in ("-", "−", "–"):
            return Meaning.NEGATIVE if self.minus else None
        return next((meaning for meaning, words in _KNOWN.items() if word in words), None)

    def _plain(self, word: str) -> str:
        return _plain_number(with_point(word) if self.comma else word)

    @property
    def _own(self) -> dict[Meaning, tuple[str, ...]]:
        given = self.options
        words = (given.positive_words, given.negative_words, given.unknown_words)
        return dict(zip((Meaning.POSITIVE, Meaning.NEGATIVE, Meaning.OPEN), words, strict=True))

    def needed(self, value: str) -> Meaning:
        """Return the meaning of a value that is known to have one."""
        meaning = self.meaning(value)
        assert meaning is not None, value
        return meaning

    def is_label(self, value: str) -> bool:
        """Return whether a value is one of the words, and neither blank nor unknown."""
        return self.meaning(value) in (Meaning.POSITIVE, Meaning.NEGATIVE) or self._plain(fold(value)) in _UNCERTAIN

    def readings(self, where: str, values: Iterable[Counter[str]], blank: str) -> tuple[ValueReading, ...]:
        """Return how each value is read, with its count over all columns; the most frequent first."""
        total = sum(values, Counter[str]())
        ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
        rows = ((value.strip() or "(blank)", self._text(value, blank), count) for value, count in ordered)
        return value_readings(where, rows)

    def unsure(self, where: str, values: Iterable[Counter[str]]) -> tuple[str, ...]:
        """Return a warning if -1, read as uncertain, is the only word that could mean absent."""
        total = sum(values, Counter[str]())
        own = {fold(word) for word in (*self.options.unknown_words, *self.options.positive_words)}
        uses = sum(n for value, n in total.items() if self._plain(fold(value)) == "-1" and fold(value) not in own)
        found = {self.meaning(value) for value in total}
        absent = self.options.complete or self.options.blank == "negative"
        if not uses or self.options.uncertain != "ignore" or Meaning.POSITIVE not in found:
            return ()
        if Meaning.NEGATIVE in found or (absent and Meaning.BLANK in found):
            return ()
        return (
            f"{where}: no word means absent (0), and -1 is read as uncertain, so that {uses:,} cells are unknown. If "
            f"-1 means absent, pass {setting('uncertain', 'zeros')}; if it means uncertain, pass "
            f"{setting('unknown_words', ['-1'])} to confirm it.",
        )

    def _text(self, value: str, blank: str) -> str:
        meaning = self.needed(value)
        text = blank if meaning is Meaning.BLANK else meaning.value
        own = {fold(word) for words in self._own.values() for word in words}
        uncertain = self._plain(fold(value)) in _UNCERTAIN and fold(value) not in own
        return f"{text} (uncertain: {self.options.uncertain})" if uncertain else text


def words_of(sheet: Sheet, options: ReadOptions) -> Words:
    """Return the words of a sheet: "-" means absent in a table that has "+"."""
    plus = any("+" in map(str.strip, values) for values in sheet.values)
    return Words(options, plus, sheet.decimal_comma)


def _plain_number(word: str) -> str:
    """Return -1.0 and other spellings as -1."""
    try:
        number = float(word)
    except ValueError:
        return word
    return str(int(number)) if number in (-1, 0, 1) else word


def check_words(sheet: Sheet, columns: Sequence[int], words: Words) -> None:
    """Raise an error for the first value, row by row, that is not one of the words."""
    wrong = {(j, value): n for j in columns for value, n in sheet.values[j].items() if words.meaning(value) is None}
    if wrong:
        row, j, value = min((sheet.columns[j].index(value), j, value) for j, value in wrong)
        more = f" ({sum(wrong.values()) - 1:,} more such cells)" if sum(wrong.values()) > 1 else ""
        raise DataError(
            f"{sheet.at(row, j)}: {quoted(value)} means neither present (1, yes, x) nor absent (0, no){more}. Fix the "
            f"cell, or say what the word means: {setting('positive_words', [value.strip()])}, or negative_words, or "
            f"unknown_words. If some columns are not classes, list the classes: {setting('columns', ['CLASS', '...'])}."
        )
