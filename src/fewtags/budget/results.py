"""Read the results of pilot runs: JSON lines or CSV, one run per row."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.curves import Result
from fewtags.errors import ConfigError, DataError
from fewtags.text import suggest

AMOUNTS = ("labels", "budget_seconds", "complete_images")
"""Columns that may state how much was bought; the first one that a row has is used."""
LARGEST = 2**53
"""Whole numbers up to here are exact in JSON and as float64."""
MADE = "`fewtags plan LABELS --run-pilot --out DIR` makes one"


def read_results(path: Path, cost: CostModel) -> list[Result]:
    """Read measured runs from a file that ends in .jsonl or .csv.

    Each row has `type` (see `Annotation.of`), `seed`, `mAP` in 0..1 on complete labels, optionally `mAP_loc` and
    `photos` (number of photos that the purchase could choose from), and one of `labels` ((image, class) pairs),
    `budget_seconds` (converted to pairs at flat cost) or `complete_images` (times the number of classes). Other columns
    are ignored.

    Raises:
        DataError: the file cannot be read or is empty, or a row is invalid (with its number).
    """
    found: dict[tuple[Annotation, int, int], tuple[int, Result]] = {}
    for number, row in _rows(path):
        place = f"{path} row {number}"
        result = _result(row, place, cost)
        earlier, _ = found.setdefault((result.kind, result.labels, result.seed), (number, result))
        if earlier != number:
            raise DataError(
                f"{place}: {result.kind.described()}, {result.labels:,} labels, seed {result.seed} is in row {earlier} "
                "already; keep one of them, or give another seed."
            )
    if not found:
        raise DataError(f"{path} has no row; {MADE}.")
    return [result for _, result in found.values()]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their numbers: lines of JSON, or rows below the header of a CSV."""
    ending = path.suffix.lower()
    if ending not in (".jsonl", ".csv"):
        raise DataError(f"{path}: expected a file that ends in .jsonl or .csv.")
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give a file of measured runs: {MADE}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; save it as UTF-8.") from None
    if ending == ".csv":
        for number, cells in enumerate(csv.DictReader(text.splitlines()), 2):
            if None in cells or None in cells.values():
                raise DataError(f"{path} row {number}: does not have as many cells as the header; fix the row.")
            yield number, {name: cell.strip() for name, cell in cells.items() if cell.strip()}
        return
    for number, line in ((n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{path} row {number}: is not one JSON object; fix or remove the line.")
        yield number, {name: value for name, value in row.items() if value is not None}


def _result(row: Mapping[str, Any], place: str, cost: CostModel) -> Result:
    for name in ("type", "seed", "mAP"):
        if name not in row:
            raise DataError(f"{place}: has no {name!r}{suggest(name, row)}; it has {', '.join(row) or 'no column'}.")
    try:
        kind = Annotation.of(str(row["type"]))
        labels = _labels(row, place, kind, cost)
    except ConfigError as error:
        raise DataError(f"{place}: {error}") from None
    return Result(
        kind=kind,
        labels=labels,
        seed=_whole(row, "seed", place),
        mean_ap=_number(row, "mAP", place, most=1),
        mean_ap_loc=_number(row, "mAP_loc", place, most=1) if "mAP_loc" in row else None,
        photos=_whole(row, "photos", place, least=1) if "photos" in row else None,
    )


def _labels(row: Mapping[str, Any], place: str, kind: Annotation, cost: CostModel) -> int:
    for name in AMOUNTS:
        if name in row:
            amount = _number(row, name, place)
            each = {"labels": 1.0, "complete_images": float(cost.classes)}.get(name)
            bought = amount * each if each else amount / cost.seconds_per_pair(kind)
            if bought > LARGEST:
                raise DataError(f"{place}: {name} {amount:g} buys more than {LARGEST:,} labels; fix the row.")
            labels = math.floor(bought + 0.5)
            if labels < 1:
                raise DataError(f"{place}: {name} {amount:g} does not buy a label; remove the row.")
            return labels
    raise DataError(f"{place}: does not say how much was bought; give one of {', '.join(AMOUNTS)}.")


def _whole(row: Mapping[str, Any], name: str, place: str, least: float = 0) -> int:
    value = _number(row, name, place, least)
    if value != math.floor(value):
        raise DataError(f"{place}: {name} is {value:g}; expected a whole number.")
    if value > LARGEST:
        raise DataError(f"{place}: {name} is {value:g}; expected a whole number up to {LARGEST:,}; fix the row.")
    return int(value)


def _number(row: Mapping[str, Any], name: str, place: str, least: float = 0, most: float = math.inf) -> float:
    try:
        value = math.nan if isinstance(row[name], bool) else float(row[name])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not least <= value <= most or value == math.inf:
        expected = f"a number from {least:g}" + (f" to {most:g}" if most < math.inf else "")
        hint = "; divide percent by 100" if most == 1 and 1 < value <= 100 else ""
        raise DataError(f"{place}: {name} is {row[name]!r}; expected {expected}{hint}.")
    return value


def by_type(results: Sequence[Result]) -> dict[Annotation, list[Result]]:
    """Group results by type, in the order of `Annotation`."""
    return {kind: found for kind in Annotation if (found := [r for r in results if r.kind is kind])}
