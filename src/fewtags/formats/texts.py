"""What the text about a photo is: tags, a caption, or rows of numbers. One rule for all formats."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from fewtags.formats.common import number_of
from fewtags.text import setting

_JOINTS = tuple(map(re.compile, (r"\s*[/\\+&]\s*", r"\s+and\s+|_and_", "_", "-", r"\s+")))
"""What may separate tags, although it is not read so, because names contain it."""
_SCORED = re.compile(r".*?\S\s*[:=(\[]\s*(?:[01]?[.,]\d+|[01]|\d{1,3}\s*%)\s*[)\]]?")
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


def several_in_one(tags: Iterable[str]) -> list[str]:
    """Return tags that may be several, because each of their parts is a tag.

    >>> several_in_one(["dog", "cat", "dog + cat", "dog_and_cat", "hot dog"])
    ['dog + cat', 'dog_and_cat']
    """
    known = dict.fromkeys(tags)
    return [tag for tag in known if any(_all_known(joint.split(tag), known) for joint in _JOINTS)]


def _all_known(parts: Sequence[str], tags: Collection[str]) -> bool:
    return len(parts) > 1 and all(part in tags for part in parts)


def words_that_recur(tags: Iterable[str]) -> list[str]:
    """Return the tags of several words if most of these words are in several tags, as words of tags are, not of names.

    >>> words_that_recur(["haze primary", "clear primary", "clear primary water", "haze water"])[:2]
    ['haze primary', 'clear primary']
    >>> words_that_recur(["traffic light", "stop sign", "hot dog", "dog"])
    []
    """
    known = [*dict.fromkeys(tags)]
    several = [tag for tag in known if len(tag.split()) > 1]
    uses = Counter(word for tag in known for word in {*tag.split()})
    again = sum(n > 1 for n in uses.values())
    return several if len(several) > 2 and 3 * again >= 2 * len(uses) else []


def tag_with_score(tags: Iterable[str]) -> str:
    """Return a tag with a score, such as "dog:0.9", if most tags have one and not all are whole; else "".

    >>> tag_with_score(["dog:0.9", "cat (1)"]), tag_with_score(["size: 1", "f=1.8 lens"])
    ('dog:0.9', '')
    """
    known = [*dict.fromkeys(tags)]
    scored = [tag for tag in known if _SCORED.fullmatch(tag)]
    broken = [tag for tag in scored if re.search(r"[.,%]", tag)]
    return broken[0] if broken and 2 * len(scored) > len(known) else ""
