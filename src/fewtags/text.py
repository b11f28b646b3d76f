"""Parts of messages: numbers with their nouns, short lists, and suggestions for misspelt words."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

MOST_NAMED = 20
"""Largest number of classes or photos that a message names; the others are counted."""

_COMMAND_LINE: ContextVar[bool] = ContextVar("command line", default=False)
_GIVEN_AS_FLAGS: ContextVar[frozenset[str]] = ContextVar("settings given as flags", default=frozenset())
_MEASURED: ContextVar[str] = ContextVar("split whose labels are read", default="")
_ARGUMENTS = {
    "json": "to_json()",
    "method": "objective",
    "positives": "positives_per_image",
    "instances": "instances_per_image",
}
"""Arguments in Python that have another name than the flag."""
_FLAGS = {"images": "--images", "complete": "--complete"}
_FLAGS_OF_SETTINGS = {
    "train.preset": "preset",
    "train.minutes": "minutes",
    "train.epochs": "epochs",
    "train.lr": "lr",
    "train.batch_size": "batch-size",
    "train.seed": "seed",
    "objective.name": "method",
    "model.weights": "weights",
    "data.answers": "answers",
    "search.starts": "init",
}
"""Settings that the commands that train take as flags."""
_ARGUMENTS_OF_SETTINGS = {
    "train.preset": "preset",
    "train.epochs": "epochs",
    "train.seed": "seed",
    "objective.name": "objective",
    "model.weights": "weights",
    "model.backbone": "backbone",
    "augment.size": "size",
}
"""Settings that are arguments in Python."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that change a terminal or the order of other characters; tabs and line ends are not among them."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    r"""Return a text with control characters written as escapes, so that a name cannot act on a terminal.

    >>> print(printable("\x1b[31mred\u202e"))
    \x1b[31mred\u202e
    """
    return _CONTROLS.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def safe_cell(text: str) -> str:
    """Return a text for a CSV cell that a spreadsheet does not run as a formula and that has no control characters.

    Texts that begin like a formula get an apostrophe, which spreadsheets read as "this is text".

    >>> safe_cell("=1+1"), safe_cell("cat")
    ("'=1+1", 'cat')
    """
    return printable(f"'{text}" if text.startswith(_FORMULA) else text)


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun; the plural defaults to the singular with an s.

    >>> counted(1, "photo is", "photos are"), counted(2000, "class", "classes")
    ('1 photo is', '2,000 classes')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def quoted(name: str) -> str:
    r"""Return a name in quotes, with control characters as escapes and with single backslashes, as people type them.

    >>> print(quoted("C:\\Users\\ana.jpg"))
    'C:\Users\ana.jpg'
    """
    return repr(name).replace("\\\\", "\\")


def apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers with the same digits after the point: two, or up to four where fewer would look equal.

    >>> apart(0.5, 0.25), apart(0.4713, 0.4741)
    (('0.50', '0.25'), ('0.471', '0.474'))
    """
    digits = next((d for d in (2, 3, 4) if f"{one:.{d}f}" != f"{other:.{d}f}"), 2)
    return f"{one:.{digits}f}", f"{other:.{digits}f}"


def some(items: Sequence[str], limit: int = 5) -> str:
    """Return the first few items in quotes, and the number of the others.

    >>> some(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    head = ", ".join(quoted(item) for item in items[:limit])
    return head if len(items) <= limit else f"{head} and {len(items) - limit:,} more"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the closest known word, or an empty string.

    >>> suggest("brid", ["bird", "cat"])
    " (did you mean 'bird'?)"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@contextmanager
def command_line() -> Iterator[None]:
    """Let messages name settings as the user of a command types them, see `setting`."""
    token = _COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _COMMAND_LINE.reset(token)


@contextmanager
def given_as_flags(keys: Iterable[str]) -> Iterator[None]:
    """Let messages about wrong values name the flags of these settings, see `value_of`."""
    token = _GIVEN_AS_FLAGS.set(frozenset(keys))
    try:
        yield
    finally:
        _GIVEN_AS_FLAGS.reset(token)


@contextmanager
def reading_of(split: str) -> Iterator[None]:
    """Let messages name the folder of the photos of a split that has labels of its own, see `setting`."""
    token = _MEASURED.set(split)
    try:
        yield
    finally:
        _MEASURED.reset(token)


def flag(name: str, value: str = "") -> str:
    """Return how the user passes an option: a flag of the command, or an argument in Python.

    `name` is the flag without its dashes. With a value, the result can be typed.

    >>> flag("val"), flag("val-images", "FOLDER"), flag("method", "bce")
    ('val', "val_images='FOLDER'", "objective='bce'")
    >>> with command_line():
    ...     flag("val"), flag("val-images", "FOLDER"), flag("method", "bce")
    ('--val', '--val-images FOLDER', '--method bce')
    """
    if _COMMAND_LINE.get():
        return f"--{name} {value}".rstrip()
    argument = _ARGUMENTS.get(name, name.replace("-", "_"))
    return f"{argument}={value!r}" if value else argument


def named(key: str, value: str | float | None = None) -> str:
    """Return how the user gives a setting of a run: its flag or its argument if it has one, else its dotted key.

    >>> named("train.epochs", 3), named("train.minutes", 2.5), named("train.select", "last")
    ('epochs=3', 'train.minutes = 2.5', 'train.select = "last"')
    >>> with command_line():
    ...     named("train.preset"), named("train.minutes", 2.5), named("augment.size", 64)
    ('--preset', '--minutes 2.5', 'augment.size = 64')
    """
    commanded = _COMMAND_LINE.get()
    name = (_FLAGS_OF_SETTINGS if commanded else _ARGUMENTS_OF_SETTINGS).get(key)
    if value is None:
        return key if name is None else f"--{name}" if commanded else name
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if name is None:
        return f'{key} = "{text}"' if isinstance(value, str) else f"{key} = {text}"
    return f"--{name} {shlex.quote(text)}" if commanded else f"{name}={value!r}"


def value_of(key: str, value: object) -> str:
    """Return a setting with the value that the user gave: as a flag if it was one, else the dotted key.

    >>> value_of("train.lr", 0.0)
    'train.lr = 0.0'
    >>> with command_line(), given_as_flags(["train.lr"]):
    ...     value_of("train.lr", 0.0), value_of("train.seed", 0.0)
    ('--lr 0', 'train.seed = 0.0')
    """
    if key in _GIVEN_AS_FLAGS.get() and isinstance(value, str | float | int):
        return named(key, value)
    return f"{key} = {value!r}"


def run_setting(key: str, value: str) -> str:
    """Return how the user passes a setting of a run by its dotted key.

    >>> run_setting("data.near_copies", "leave_out")
    "settings={'data.near_copies': 'leave_out'}"
    >>> with command_line():
    ...     run_setting("data.near_copies", "leave_out")
    '--set data.near_copies=leave_out'
    """
    return f"--set {shlex.quote(f'{key}={value}')}" if _COMMAND_LINE.get() else f"settings={ {key: value}!r}"


def method_setting(key: str, value: str | float) -> str:
    """Return how the user passes a setting of the method: an option of the command, or an argument of the objective.

    >>> method_setting("image_unknown", "negative")
    "image_unknown='negative'"
    >>> with command_line():
    ...     method_setting("image_unknown", "negative"), method_setting("prior_threshold", 1)
    ('--set objective.image_unknown=negative', '--set objective.prior_threshold=1')
    """
    return f"--set objective.{key}={value}" if _COMMAND_LINE.get() else f"{key}={value!r}"


def setting(name: str, value: str | bool | Sequence[str] = "NAME") -> str:
    """Return how the user passes a setting of the readers: an option of the command, or an argument in Python.

    >>> setting("columns", ["cat", "dog"]), setting("images", "FOLDER"), setting("complete", True)
    ("ReadOptions(columns=('cat', 'dog'))", "images='FOLDER'", 'ReadOptions(complete=True)')
    >>> with command_line():
    ...     setting("columns", ["cat", "dog"]), setting("images", "FOLDER"), setting("complete", True)
    ('--set data.columns=cat,dog', '--images FOLDER', '--complete')
    >>> with reading_of("val"):
    ...     setting("images", "FOLDER")
    "val_images='FOLDER'"
    """
    if name == "images" and isinstance(value, str) and _MEASURED.get():
        return flag(f"{_MEASURED.get()}-images", shlex.quote(value) if _COMMAND_LINE.get() else value)
    if not _COMMAND_LINE.get():
        given = value if isinstance(value, str | bool) else tuple(value)
        return f"{name}={given!r}" if name in ("images", "format") else f"ReadOptions({name}={given!r})"
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = value
    else:  # the short form splits at commas, and takes "-1" for a number
        plain = all(word == "..." or re.fullmatch(r"[^\W\d][^,\[\]]*", word) for word in value)
        text = ",".join(value) if plain else json.dumps(list(value), ensure_ascii=False)
    if name in _FLAGS:
        return _FLAGS[name] if isinstance(value, bool) else f"{_FLAGS[name]} {shlex.quote(text)}"
    return f"--set {shlex.quote(f'data.{name}={text}')}"
