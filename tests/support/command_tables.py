"""Tables that commands write."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from typer.testing import Result

Run = Callable[..., Result]


def read(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]
