"""What all readers share: the options, the words of messages, and closing images."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, final, get_args
from xml.etree.ElementTree import ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames
from fewtags.text import suggest

Blank = Literal["unknown", "negative"]
Uncertain = Literal["ignore", "ones", "zeros"]
Difficult = Literal["unknown", "positive", "negative"]
Crowd = Literal["positive", "unknown"]
Points = Literal["pixels", "fractions"]
PlaceKind = Literal["boxes", "points", "none"]


@final
@dataclass(frozen=True)
class ReadOptions:
    """How to read annotations; each reader takes what concerns it, None means "derive from the file".

    Attributes:
        complete: whatever is not named in an image is known to be absent (else it is unknown).
        blank: what an empty or NaN cell of a class column means.
        uncertain: what -1 or "u" in a class column means: unknown, positive or negative (CheXpert's U-Ignore, U-Ones,
            U-Zeros).
        difficult: what a VOC object marked difficult means.
        crowd: what a COCO annotation with `iscrowd` and an OpenImages box with `IsGroupOf` mean.
        places: what is read of where COCO's objects are: their boxes, a point drawn in each mask, or nothing.
        point_seed: of these points; another seed, other points.
        none_folder: the folder or tag that says "none of the classes is here"; "" for no such name.
        image_column: the CSV column, or the key of a Label Studio task, with the image paths.
        columns: the CSV columns that are classes, or the one that holds tags; the Label Studio controls that are read.
        points: what the columns x and y of a CSV count.
        delimiter: what separates the cells of a CSV ("tab" for a tabulator).
        tags_separator: what separates the tags in a cell ("space" for a blank).
        positive_words: further words for positive in class columns; case does not matter.
        negative_words: further words for negative.
        unknown_words: further words for unknown.

    Raises:
        ConfigError: a value that is not among the allowed ones, or one word with two meanings.
    """

    complete: bool = False
    blank: Blank = "unknown"
    uncertain: Uncertain = "ignore"
    difficult: Difficult = "unknown"
    crowd: Crowd = "positive"
    places: PlaceKind = "boxes"
    point_seed: int = 0
    none_folder: str = "none"
    image_column: str | None = None
    columns: tuple[str, ...] | None = None
    points: Points | None = None
    delimiter: str | None = None
    tags_separator: str | None = None
    positive_words: tuple[str, ...] = ()
    negative_words: tuple[str, ...] = ()
    unknown_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choices: dict[str, object] = {"blank": Blank, "uncertain": Uncertain, "difficult": Difficult, "crowd": Crowd}
        choices["places"] = PlaceKind
        if self.points is not None:
            choices["points"] = Points
        for name, choice in choices.items():
            value, allowed = getattr(self, name), get_args(choice)
            if value not in allowed:
                hint = suggest(str(value), allowed)
                raise ConfigError(f"{name} = {value!r}{hint}: expected one of {', '.join(allowed)}.")
        words: Counter[str] = Counter()
        for name in ("columns", "positive_words", "negative_words", "unknown_words"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"{name} takes several names; write ({value!r},).")
            if name != "columns":
                words.update({fold(word) for word in value})
        if twice := [word for word, meanings in words.items() if meanings > 1]:
            raise ConfigError(f"the word {twice[0]!r} has two meanings; leave it in one of the *_words options only.")

    def without_effect(self, used: Iterable[str]) -> list[str]:
        """Options that were changed but that a reader which looks only at `used` will not see."""
        changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return [name for name in changed if name not in set(used)]


def fold(word: str) -> str:
    """The form in which words are compared: without outer blanks, lower case."""
    return word.strip().casefold()


def split_name(text: str) -> str:
    """The usual name of a split: "train", "val" or "test" for their common spellings, else the text as it is.

    >>> split_name("Validation")
    'val'
    """
    known = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
    folded = fold(text)
    return known.get(folded, folded if folded in {"train", "val", "test"} else text.strip())


def named_classes(names: Mapping[int, str] | Mapping[int | str, str]) -> ClassNames:
    """The vocabulary of a file that numbers its classes; classes that share a name stay apart.

    Args:
        names: name of each number, in the order of the classes.

    >>> named_classes({0: "crane", 1: "cup", 5: "crane"}).ids
    ('crane#0', 'cup', 'crane#5')
    """
    uses = Counter(names.values())
    return ClassNames.of((name if uses[name] == 1 else f"{name}#{key}" for key, name in names.items()), names.values())


def read_json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The contents of a JSON file that is not trusted.

    Args:
        path: the file, UTF-8 with or without byte order mark.
        hook: called with every object while it is parsed, so that what is not needed never fills the memory.

    Raises:
        DataError: not JSON, or not UTF-8.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"), object_hook=hook)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); is the file complete?"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start:,}); save it as UTF-8.") from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not JSON that annotations are made of ({error}).") from None


def number_of(text: str) -> float:
    """The number that a text is; NaN for anything else, and for what only Python reads ("1_000", digits of any script).

    >>> number_of(" 2.5e1 "), number_of("1_000")
    (25.0, nan)
    """
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def plain_text(value: object) -> str:
    """A text without outer blanks; "" for anything else, and for what JSON can write but no file or table can hold."""
    try:
        return value.encode().decode().strip() if isinstance(value, str) else ""
    except UnicodeEncodeError:
        return ""


def xml_trouble(error: Exception) -> str:
    """What is wrong with an XML file, to be put after its name."""
    if isinstance(error, DefusedXmlException):
        return "defines XML entities, which annotations have no use for and attacks are made of"
    return f"is not valid XML ({error})" if isinstance(error, ParseError) else str(error)


def close_images(
    images: int, classes: int, image: NDArray[np.integer], class_: NDArray[np.integer]
) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Close all images for all classes, except for single cells that stay unknown.

    Args:
        images: how many images.
        classes: how many classes.
        image: int [K], images of the cells to leave open.
        class_: int [K], their classes.

    Returns:
        `closed` int16 [N] and `covers` bool [S, C] of a `LabelTable`; row 0 covers all classes.

    Raises:
        DataError: there are more sets of open classes than int16 can number.
    """
    closed = np.zeros(images, np.int16)
    covers = [np.ones(classes, np.bool_)]
    open_image, open_class = np.divmod(distinct(np.asarray(image, np.int64) * classes + class_), classes)
    starts = np.flatnonzero(np.diff(open_image, prepend=-1))
    rows: dict[bytes, int] = {}
    ends = [*starts[1:], len(open_image)][: len(starts)]  # without cells there is no run of them either
    for start, end in zip(starts, ends, strict=True):
        classes_here = open_class[start:end]
        row = rows.setdefault(classes_here.tobytes(), len(covers))
        if row == len(covers):
            if row > np.iinfo(np.int16).max:
                raise DataError(
                    f"complete annotation with more than {row - 1:,} different sets of uncertain classes cannot be "
                    "stored; give uncertain cells a meaning, or read without complete."
                )
            covers.append(covers[0].copy())
            covers[row][classes_here] = False
        closed[open_image[start]] = row
    return closed, np.stack(covers)


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted values without repeats; `np.unique` hashes, which takes minutes for cell numbers as regular as ours."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def distinct_facts(
    image: NDArray[np.integer], class_: NDArray[np.integer], state: NDArray[np.integer], located: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which facts [F] say something of their own: those with a location, and the first of those without that agree.

    A location says more than the same state without one, wherever they stand.
    """
    cell = np.asarray(image, np.int64) * np.int64(np.max(class_, initial=0) + 1) + class_
    code = cell * 3 + state + 1
    first = np.zeros(len(code), np.bool_)
    order = np.argsort(code, kind="stable")
    first[order[np.diff(code[order], prepend=-1) > 0]] = True
    alone: NDArray[np.bool_] = first & ~np.isin(code, code[located], kind="sort")
    return located | alone
