"""The files of a run folder that a report reads: their structure, checked so that a damaged file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fewtags.config.parse import load_toml
from fewtags.engine import json_records
from fewtags.engine.checkpoint import reading_record
from fewtags.engine.json_records import check_kind

CURE = "restore it; the model itself is in another file and can still be used"

Number = float | int


class _Recorded(BaseModel):
    model_config = ConfigDict(strict=True)


class Facts(_Recorded):
    """What the page shows of `environment.json`."""

    python: str
    device: str
    gpu: str | None
    packages: dict[str, str | None]
    method: dict[str, Any]
    notes: list[str]


class Notes(_Recorded):
    """What the page of a pretraining run shows of `environment.json`."""

    notes: list[str]


class _Summary(_Recorded):
    images: int
    classes: list[Any]
    kind: str
    positives_per_image: Number | None
    positives: int
    negatives: int
    unknowns: int
    without_label: int


class _Finding(_Recorded):
    level: str
    message: str
    items: list[str]


class _Reading(_Recorded):
    where: str
    value: str
    meaning: str
    count: int


class _Excluded(_Recorded):
    item: str
    reason: str


class Findings(_Recorded):
    """What the page shows of `check.json`."""

    splits: dict[str, _Summary]
    findings: list[_Finding]
    readings: list[_Reading]
    excluded: list[_Excluded]


class _ClassRow(_Recorded):
    id: str
    name: str
    average_precision: Number | None
    positives: int
    negatives: int
    unknown: int
    threshold: Number


class Evaluated(_Recorded):
    """What the page shows of `evaluation/<split>.json`."""

    per_class: list[_ClassRow]
    mean_ap: Number | None = Field(alias="mAP")
    threshold_rules: list[str] = []  # older runs have none


class Epoch(_Recorded):
    """A line of `metrics.jsonl`."""

    epoch: int
    stage: str


def read_json(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Read a JSON file as `json_records.read_json`; the cure is that of a report."""
    return json_records.read_json(path, kind, CURE)


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read `metrics.jsonl`.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    with reading_record(path, CURE):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if not lines:
            raise ValueError("it has no epochs")
        check_kind(list[Epoch], lines)
        return lines


def read_resolved(path: Path, model: Any) -> dict[str, Any]:
    """Read `resolved.toml`.

    Args:
        path: the file.
        model: pydantic model of its content.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    with reading_record(path, CURE):
        content = load_toml(path)
        check_kind(model, content)
        return content
