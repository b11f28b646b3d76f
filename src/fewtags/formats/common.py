"""Helpers of several readers: names of splits and classes, values of untrusted files, bounding boxes, facts."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.formats.options import fold
from fewtags.labels import ClassNames
from fewtags.photos.listing import SYSTEM_FOLDERS, is_hidden_name
from fewtags.text import some

Point = tuple[float, float]
Corners = tuple[float, float, float, float]
NO_CORNERS: Corners = (math.nan,) * 4
_MOST_VALUES = 20


_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trainset", "trn", "tr"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "valset", "validset", "dev", "devset", "eval", "evaluation"), "val"),
    **dict.fromkeys(("test", "testing", "testset", "tst", "holdout"), "test"),
}
# Words beside the name of a split that change nothing: "train_set", "test-images", "val2017".
_BESIDE_SPLITS = frozenset(
    [
        "set",
        "sets",
        "subset",
        "split",
        "splits",
        "data",
        "dataset",
        "image",
        "images",
        "img",
        "imgs",
        "photo",
        "photos",
        "picture",
        "pictures",
        "folder",
        "files",
        "part",
        "jpg",
        "jpeg",
        "png",
        "labels",
        "list",
        "all",
    ]
)


def is_split(text: str) -> str:
    """Return "train", "val" or "test" if a name says so and nothing else, such as "training_set"; else "".

    >>> is_split("Validation"), is_split("train2017"), is_split("TestImages"), is_split("train_station")
    ('val', 'train', 'test', '')
    """
    parts = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text))
    words = [fold(part) for part in parts]
    splits = [word for word in words if word in _SPLIT_WORDS]
    rest = {word for word in words if word not in _SPLIT_WORDS}
    return _SPLIT_WORDS[splits[0]] if len(splits) == 1 and rest <= _BESIDE_SPLITS else ""


def split_name(text: str) -> str:
    """Return "train", "val" or "test" for a name that says so, see `is_split`, and any other name as it is.

    >>> split_name("Validation"), split_name(" fold 1 ")
    ('val', 'fold 1')
    """
    return is_split(text) or text.strip()


def clean_name(text: str) -> str:
    r"""Return the name of a class in the form in which equal-looking names are equal.

    Accents are composed (NFC), invisible characters are dropped, and runs of blanks become one.

    >>> clean_name(" cafe\u0301\u200b  au\xa0lait")
    'café au lait'
    """
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    words = " ".join(unicodedata.normalize("NFC", text).split())
    visible = "".join(c for c in words if unicodedata.category(c) not in ("Cf", "Cc") or c == "\u200d")
    return " ".join(visible.split())


def joined_names(where: str, spellings: Iterable[str]) -> tuple[str, ...]:
    r"""Return a warning if several spellings of class names look the same and are read as one class.

    >>> joined_names("a.csv", ["cafe\u0301", "caf\xe9", "cat", "cat "])[0].partition(": ")[2]
    "spellings that look the same ('café') are one class each; they differ in blanks, accents or invisible characters"
    """
    forms: dict[str, set[str]] = defaultdict(set)
    for text in dict.fromkeys(spellings):
        forms[clean_name(text)].add(text.strip())
    if not (same := sorted(name for name, texts in forms.items() if name and len(texts) > 1)):
        return ()
    text = f"spellings that look the same ({some(same)}) are one class each; they differ in blanks, accents or"
    return (f"{where}: {text} invisible characters",)


def named_classes(names: Mapping[int, str] | Mapping[int | str, str]) -> ClassNames:
    """Return the vocabulary of a file that numbers its classes; classes that share a name stay apart.

    >>> named_classes({0: "crane", 1: "cup", 5: "crane"}).ids
    ('crane#0', 'cup', 'crane#5')
    """
    uses = Counter(names.values())
    return ClassNames.of((name if uses[name] == 1 else f"{name}#{key}" for key, name in names.items()), names.values())


def decoded(data: bytes) -> str:
    r"""Return UTF-8 with or without byte order mark, or UTF-16 with one, as Excel and PowerShell write it, as text.

    >>> decoded("caf\xe9".encode("utf-16")) == decoded("caf\xe9".encode("utf-8-sig")) == "caf\xe9"
    True
    """
    return data.decode("utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig")


def text_of(file: Path, largest: int | None = None, what: str = "a label file") -> str:
    """Return the contents of a text file with at most `largest` bytes, see `decoded`.

    Raises:
        DataError: the file cannot be read, is larger (then the message asks whether it is `what`), or is not UTF-8.
    """
    try:
        if largest is not None and file.stat().st_size > largest:
            raise DataError(f"{file}: more than {largest >> 20} MiB; is this {what}?")
        return decoded(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); fix or remove it.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text (byte {error.start:,}); save it as UTF-8.") from None


def read_json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the contents of a JSON file that is not trusted; `hook` can shorten each object during parsing.

    Raises:
        DataError: the file cannot be read, or is not JSON.
    """
    text = text_of(path)
    try:
        return json.loads(text, object_hook=hook)
    except json.JSONDecodeError as error:
        lines = error.msg == "Extra data" and text[error.pos : error.pos + 1] in ("{", "[")
        cure = "if each line is an object of its own, call the file .jsonl" if lines else "is the file complete?"
        raise DataError(
            f"{path} line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}); {cure}"
            f"{'.' if lines else ''}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not a JSON file of annotations ({error}).") from None


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a hook for `read_json` that removes a key, such as long outlines that are not needed."""

    def shortened(record: dict[str, Any]) -> dict[str, Any]:
        record.pop(key, None)
        return record

    return shortened


def first_character(file: Path) -> str:
    """Return the first character of a text file that is not blank, or "" if there is none near its start."""
    with file.open("rb") as stream:
        head = stream.read(4096)
    return head.decode(_code_of(head), "ignore").lstrip("\ufeff \t\r\n")[:1]


def _code_of(head: bytes) -> str:
    """Return the encoding of a text file by its first bytes, see `decoded`; a byte order mark is a character."""
    return {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(head[:2], "utf-8")


def ends_of(file: Path) -> str:
    """Return the first and the last 64 KiB of a text file, which show the keys of a large JSON file."""
    with file.open("rb") as stream:
        head = stream.read(1 << 16)
        stream.seek(max(len(head), (file.stat().st_size - (1 << 16)) // 2 * 2))  # characters of UTF-16 have two bytes
        return (head + stream.read()).decode(_code_of(head), "ignore").lstrip("\ufeff")


def is_hidden(path: str) -> bool:
    """Return whether a relative path, with forward slashes, has a hidden part, see `is_hidden_name`."""
    return any(map(is_hidden_name, path.split("/")))


def count_hidden(*folders: Path) -> int:
    """Return the number of hidden files, and of folders that systems add, in folders and below them."""
    found: set[Path] = set()
    for folder in folders:
        for parent, inside, files in os.walk(folder):
            hidden = [name for name in inside if name in SYSTEM_FOLDERS]
            found.update(Path(parent, name).absolute() for name in hidden)
            inside[:] = [name for name in inside if not name.startswith(".") and name not in hidden]
            found.update(Path(parent, name).absolute() for name in files if name.startswith("."))
    return len(found)


def number_of(text: str) -> float:
    """Return the number that a text states; NaN for other texts, and for spellings that only Python accepts.

    >>> number_of(" 2.5e1 "), number_of("1_000")
    (25.0, nan)
    """
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def xml_number(text: str | None) -> float:
    """Return the number of an XML attribute or element as float; NaN for other texts, infinity and None."""
    number = number_of(text or "")
    return number if math.isfinite(number) else math.nan


def finite_number(value: object) -> float:
    """Return a number of a JSON file as float; NaN for other values and for numbers that are not finite."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text; names of files and texts of JSON can have other characters."""
    return text.encode(errors="ignore").decode() == text


def plain_text(value: object) -> str:
    """Return a text of a JSON file, stripped; "" for other values and for texts that UTF-8 cannot encode."""
    return value.strip() if isinstance(value, str) and is_utf8(value) else ""


def bounds(points: Sequence[Point]) -> Corners:
    """Return the bounding box of points; NaN without points, or if a number is not finite."""
    if not points or not all(math.isfinite(number) for point in points for number in point):
        return NO_CORNERS
    x, y = zip(*points, strict=True)
    return min(x), min(y), max(x), max(y)


def ellipse_bounds(cx: float, cy: float, rx: float, ry: float, degrees: float, ratio: float = 1.0) -> Corners:
    """Return the bounding box of an ellipse that is rotated about its centre; NaN for a negative radius.

    `ratio` is the width of the photo / its height in pixels, if the numbers are fractions of both.
    """
    if min(rx, ry) < 0:
        return NO_CORNERS
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = math.hypot(rx * ratio * cos, ry * sin) / ratio, math.hypot(rx * ratio * sin, ry * cos)
    return cx - x, cy - y, cx + x, cy + y


def ellipse_corners(cx: float, cy: float, rx: float, ry: float, degrees: float, ratio: float = 1.0) -> list[Point]:
    """Return a polygon with 64 corners on an ellipse, see `ellipse_bounds`."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    found = []
    for k in range(64):
        x, y = rx * ratio * math.cos(k * math.pi / 32), ry * math.sin(k * math.pi / 32)
        found.append((cx + (x * cos - y * sin) / ratio, cy + x * sin + y * cos))
    return found


def turned_corners(box: Corners, degrees: float) -> list[Point]:
    """Return the corners of a box that is rotated clockwise about its centre, in pixels."""
    x0, y0, x1, y1 = box
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    cx, cy, w, h = (x0 + x1) / 2, (y0 + y1) / 2, (x1 - x0) / 2, (y1 - y0) / 2
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return [(cx + a * w * cos - b * h * sin, cy + a * w * sin + b * h * cos) for a, b in signs]


def attribute_readings(attributes: Mapping[str, Counter[str]]) -> Iterator[tuple[str, str, int]]:
    """Yield how the values of attributes of objects are read: they are listed, and not used."""
    for name, values in sorted(attributes.items()):
        for value, n in values.most_common(_MOST_VALUES):
            yield f"attribute {name!r} = {value!r}", "not used", n
        if len(values) > _MOST_VALUES:
            rest = sum(values.values()) - sum(n for _, n in values.most_common(_MOST_VALUES))
            yield f"attribute {name!r} = {len(values) - _MOST_VALUES:,} other values", "not used", rest


def xml_trouble(error: Exception) -> str:
    """Return what is wrong with an XML file, for a message that begins with the name of the file."""
    if isinstance(error, DefusedXmlException):
        return "defines XML entities, which annotations do not need and attacks are made of"
    return f"is not valid XML ({error})" if isinstance(error, ParseError) else str(error)


def close_images(
    images: int, classes: int, image: NDArray[np.integer], class_: NDArray[np.integer]
) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Mark N images as completely annotated for C classes, except for K cells (image, class) that stay unknown.

    Returns:
        int16 [N], the set of classes that each image is completely annotated for, and bool [S, C], these sets; set 0
        has all classes.

    Raises:
        DataError: there are more sets than int16 can number.
    """
    closed = np.zeros(images, np.int16)
    open_image, open_class = np.divmod(distinct(np.asarray(image, np.int64) * classes + class_), classes)
    starts = np.flatnonzero(np.diff(open_image, prepend=-1)).tolist()
    rows: dict[bytes, int] = {}
    for start, end in pairwise([*starts, len(open_image)]):
        row = rows.setdefault(open_class[start:end].tobytes(), len(rows) + 1)
        if row > np.iinfo(np.int16).max:
            raise DataError(
                f"complete annotation with more than {row - 1:,} different sets of uncertain classes cannot be stored; "
                "give uncertain cells a meaning, or read without complete."
            )
        closed[open_image[start]] = row
    covers = np.ones((len(rows) + 1, classes), np.bool_)
    for key, row in rows.items():
        covers[row, np.frombuffer(key, np.int64)] = False
    return closed, covers


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sorted values without repeats; `np.unique` hashes, which takes minutes for such regular numbers."""
    values = np.sort(values, kind="stable")  # much faster for values that are almost in order
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def distinct_facts(
    image: NDArray[np.integer], class_: NDArray[np.integer], state: NDArray[np.integer], located: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which facts [F] are kept: all with a location, and the first of equal ones without.

    A fact without a location adds nothing to a located one of the same image, class and state, in either order.
    """
    cell = np.asarray(image, np.int64) * np.int64(np.max(class_, initial=0) + 1) + class_
    code = cell * 3 + state + 1
    first = np.zeros(len(code), np.bool_)
    order = np.argsort(code, kind="stable")
    first[order[np.diff(code[order], prepend=-1) > 0]] = True
    alone: NDArray[np.bool_] = first & ~np.isin(code, code[located], kind="sort")
    return located | alone
