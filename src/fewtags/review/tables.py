"""Questions and suspicious labels as rows: CSV, Parquet, and text for a terminal."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fewtags.errors import ConfigError
from fewtags.files import replacing
from fewtags.review.questions import Question
from fewtags.review.suspicious import Suspicion
from fewtags.text import counted, safe_cell

ENDINGS = (".csv", ".parquet")
CORNERS = ("x0", "y0", "x1", "y1")
WIDTH = 80
Row = Mapping[str, Any]


def question_rows(questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Return a row for each question; a corner without a box is None."""
    return [
        {
            "image": q.image,
            "class": q.class_,
            "name": q.name,
            "probability": round(q.probability, 6),
            "rank": q.rank,
            "expected": round(q.expected, 2),
            "gain": round(q.gain, 6),
            **dict(zip(CORNERS, (None,) * 4 if q.box is None else (round(v, 5) for v in q.box), strict=True)),
            "reason": q.reason,
        }
        for q in questions
    ]


def suspicion_rows(found: Sequence[Suspicion]) -> list[dict[str, Any]]:
    """Return a row for each suspicious label."""
    return [
        {
            "image": s.image,
            "class": s.class_,
            "name": s.name,
            "label": s.state,
            "probability": round(s.probability, 6),
            "self_confidence": round(s.self_confidence, 6),
            "suspicion": round(s.suspicion, 4),
            "reason": s.reason,
        }
        for s in found
    ]


def refuse_ending(out: Path) -> None:
    """Raise ConfigError if a table cannot be written to a file with this ending."""
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--out {out}: expected a file ending in {' or '.join(ENDINGS)}.")


def write_table(rows: Sequence[Row], out: Path) -> None:
    """Write rows to CSV or Parquet, as a whole or not at all; missing folders are made.

    Raises:
        ConfigError: another ending.
        DiskError: the file cannot be written.
    """
    refuse_ending(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        if out.suffix.lower() == ".parquet":
            pq.write_table(pa.Table.from_pylist(list(rows)), temporary)
            return
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(rows[0] if rows else ("image", "class"))
            for row in rows:
                writer.writerow([safe_cell(v) if isinstance(v, str) else "" if v is None else v for v in row.values()])


def text_table(rows: Sequence[Row], limit: int, wrong: bool = False) -> str:
    """Return the first rows as a table of at most 80 columns, and a line that explains it; `wrong` for suspicions."""
    return "\n".join(_lines(rows, limit, wrong))


def _lines(rows: Sequence[Row], limit: int, wrong: bool) -> Iterator[str]:
    if not rows:
        yield "no label contradicts the model" if wrong else "nothing to ask: every class is known in every photo"
        return
    last = ("label", "self-conf.", "suspicion") if wrong else ("prob.", "rank", "of expected", "gain")
    cells = [_wrong_cells(row) if wrong else _question_cells(row) for row in rows[:limit]]
    widths = [max(len(head), *(len(cell[n]) for cell in cells)) for n, head in enumerate(last)]
    left = WIDTH - sum(widths) - 2 * (len(last) + 1)
    class_width = min(max(5, *(len(row["name"]) for row in rows[:limit])), left // 2)
    image_width = min(max(5, *(len(row["image"]) for row in rows[:limit])), left - class_width)
    columns = [(image_width, "<"), (class_width, "<"), *((width, ">") for width in widths)]
    for values in (
        ("photo", "class", *last),
        *(
            (_cut(row["image"], image_width), _cut(row["name"], class_width, tail=False), *cell)
            for row, cell in zip(rows[:limit], cells, strict=True)
        ),
    ):
        yield "  ".join(f"{value:{side}{width}}" for value, (width, side) in zip(values, columns, strict=True)).rstrip()
    if len(rows) > limit:
        yield f"and {counted(len(rows) - limit, 'more row')}; --out writes all of them"


def _question_cells(row: Row) -> tuple[str, ...]:
    return f"{row['probability']:.2f}", f"{row['rank']:,}", f"{row['expected']:,.0f}", f"{row['gain']:.2g}"


def _wrong_cells(row: Row) -> tuple[str, ...]:
    return row["label"], f"{row['self_confidence']:.2f}", f"{row['suspicion']:.2f}"


def _cut(text: str, width: int, *, tail: bool = True) -> str:
    """Shorten a text; of a path, the end is kept."""
    if len(text) <= width:
        return text
    return "…" + text[-(width - 1) :] if tail else text[: width - 1] + "…"
