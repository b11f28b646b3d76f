"""JSON files of a run folder, whose structure is checked so that a damaged file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fewtags.engine.checkpoint import RESTORE, reading_record


def read_json(path: Path, kind: Any = dict[str, Any], cure: str = RESTORE) -> Any:
    """Read a JSON file of a run folder.

    Args:
        path: the file.
        kind: what it must contain at least.
        cure: what the user can do if it is damaged.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    with reading_record(path, cure):
        content = json.loads(path.read_text("utf-8"))
        check_kind(kind, content)
        return content


def check_kind(kind: Any, content: Any) -> None:
    """Raise ValueError with the first place that is not of a kind, a type or a model of pydantic."""
    try:
        TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
