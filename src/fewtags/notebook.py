"""HTML of results in notebooks, and data frames; pandas is imported only when a frame is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fewtags.errors import ConfigError

MOST_ROWS = 20
"""Largest number of rows of a table in a notebook; the others are counted."""


def html_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], notes: Iterable[str] = ()) -> str:
    """Return a small table with a title and notes below it; every text is escaped.

    >>> html_table("<1 image>", (), ())
    '<div><b>&lt;1 image&gt;</b></div>'
    """
    lines = [*notes]
    if len(rows) > MOST_ROWS:
        lines.append(f"and {len(rows) - MOST_ROWS:,} more rows")
    head = "".join(f"<th>{escape(word)}</th>" for word in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows[:MOST_ROWS]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<div><b>{escape(title)}</b>{table}" + "".join(f"<div>{escape(line)}</div>" for line in lines) + "</div>"


def photo_frame(photos: Sequence[str], columns: Mapping[str, Any]) -> Any:
    """Return a pandas DataFrame with the column image, and a column for each class.

    Raises ConfigError if pandas is not installed, or a class is called image.
    """
    if "image" in columns:
        raise ConfigError("a class is named 'image', like the column of the photos; rename it.")
    return data_frame({"image": photos, **columns})


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas DataFrame of columns. Raises ConfigError if pandas is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ConfigError("to_pandas needs pandas, which is not installed; run: pip install pandas") from error
    return pd.DataFrame(dict(columns))
