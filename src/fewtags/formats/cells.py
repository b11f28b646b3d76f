"""Values of programs (JSON, pandas) as the cells of a text table."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def text_of_value(value: object) -> str:
    """Return the cell of a text table for a single value; missing values are blank.

    >>> [text_of_value(value) for value in (True, 1, None, float("nan"), "cat")]
    ['true', '1', '', '', 'cat']
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float | np.floating) and math.isnan(value):
        return ""
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def is_list(value: object) -> bool:
    """Return whether a value has several parts in one cell."""
    return isinstance(value, list | tuple | set | frozenset | np.ndarray)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return value if isinstance(value, list | tuple | np.ndarray) else [value]


def text_of_list(value: object) -> str:
    """Return the cell of a text table for a list of tags, as Python writes it; missing and blank parts are left out.

    >>> text_of_list(["cat", None, "traffic light"]), text_of_list([]), text_of_list("cat")
    ("['cat', 'traffic light']", '', "['cat']")
    """
    texts = [text for part in _parts(value) if (text := text_of_value(part))]
    quoted = ["'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'" for text in texts]
    return f"[{', '.join(quoted)}]" if quoted else ""


def is_nested(value: object) -> bool:
    """Return whether a value is an object, bytes or a complex number, or a list of these or of lists."""
    return any(is_list(part) or isinstance(part, dict | bytes | complex) for part in _parts(value))
