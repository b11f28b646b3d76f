"""What the text about a photo is: tags, a caption, or rows of numbers. One rule for all formats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from fewtags.formats.common import number_of
from fewtags.text import setting

_MOST_WORDS = 5
_SEVERAL = 0.8


def is_sentence(text: str) -> bool:
    """Return whether a text is too long for a tag, or ends like a sentence.

    >>> is_sentence("traffic light"), is_sentence("a photo of a dog on grass"), is_sentence("A dog runs fast.")
    (False, True, True)
    """
    words = len(text.split())
    return words > _MOST_WORDS or (words > 3 and text.rstrip().endswith((".", "!", "?")))


def are_captions(photos: Iterable[Sequence[str]]) -> str:
    """Return a caption if the tags of most photos have one, and nearly all captions are different; else "".

    Long names of classes occur in several photos; captions do not.
    """
    sentences = [[tag for tag in tags if is_sentence(tag)] for tags in photos if tags]
    found = [tag for tags in sentences for tag in tags]
    if 2 * sum(map(bool, sentences)) < len(sentences) or len({*found}) < _SEVERAL * len(found):
        return ""
    return found[0] if found else ""


def captions_text(example: str) -> str:
    """Return why captions are not read, and what to do."""
    return (
        f"{example[:60]!r} looks like a caption, and captions are not tags. Write the tags of each photo instead, such "
        f"as 'cat, dog'; if these are tags, pass what separates them: {setting('tags_separator', ',')}."
    )


def kind_of(texts: Sequence[str]) -> Literal["", "numbers", "captions", "tags"]:
    """Return what most text files beside photos are; "" if all are blank.

    >>> kind_of(["0 .5 .5 .2 .2"]), kind_of(["1girl, solo"]), kind_of(["a dog runs on the wet grass"])
    ('numbers', 'tags', 'captions')
    """
    rows = [row for text in texts for row in text.splitlines() if row.strip()]
    if not rows:
        return ""
    if 2 * sum(map(_are_numbers, rows)) > len(rows):
        return "numbers"
    return "captions" if are_captions(re.split(r"\s*[,\n]\s*", text.strip()) for text in texts) else "tags"


def _are_numbers(row: str) -> bool:
    return not any(math.isnan(number_of(word)) for word in re.split(r"[\s,;]+", row.strip(" \t,;")))
