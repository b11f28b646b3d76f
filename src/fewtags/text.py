"""Parts of messages: numbers with their nouns, short lists, and suggestions for misspelt words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun; the plural defaults to the singular with an s.

    >>> counted(1, "photo is", "photos are"), counted(2000, "class", "classes")
    ('1 photo is', '2,000 classes')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def some(items: Sequence[str], limit: int = 5) -> str:
    """Return the first few items in quotes, and the number of the others.

    >>> some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    head = ", ".join(repr(item) for item in items[:limit])
    return head if len(items) <= limit else f"{head} and {len(items) - limit:,} more"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the closest known word, or an empty string.

    >>> suggest("brid", ["bird", "cat"])
    " (did you mean 'bird'?)"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
