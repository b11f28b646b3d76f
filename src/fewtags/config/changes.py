"""Differences between the settings that a run began with and those of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fewtags.errors import CheckpointError


def settings_tree(model: BaseModel) -> dict[str, Any]:
    """Return settings as plain values."""
    tree: dict[str, Any] = model.model_dump(mode="json", serialize_as_any=True)
    return tree


def refuse_edited(file: Path, began: Mapping[str, Any], now: Mapping[str, Any], editable: tuple[str, ...] = ()) -> None:
    """Compare settings with those that a run began with; `editable`: dotted keys that may differ.

    Raises:
        CheckpointError: another key has changed; the message names it.
    """
    recorded = dict(_flat(began))
    if new := next((key for key in dict(_flat(now)) if key not in recorded and not _is_in_list(key)), None):
        raise CheckpointError(f"the run was begun by an older fewtags, which had no setting {new}; start a new run.")
    if change := changed_setting(began, now, editable):
        raise CheckpointError(
            f"{file} was edited since the run began: {change}; restore the value, or start a new run."
        )


def changed_setting(began: Mapping[str, Any], now: Mapping[str, Any], ignored: tuple[str, ...] = ()) -> str | None:
    """Describe the first difference between two trees of settings; None if they are equal.

    >>> changed_setting({"train": {"seed": 0}}, {"train": {"seed": 3}})
    'train.seed 0 -> 3'
    """
    before, after = dict(_flat(began)), dict(_flat(now))
    for key in {**after, **before}:
        if key not in ignored and before.get(key) != after.get(key):
            return f"{key} {_shown(before.get(key))} -> {_shown(after.get(key))}"
    return None


def _is_in_list(key: str) -> bool:
    """Whether a dotted key is an element of a list, whose length may have changed.

    >>> _is_in_list("data.positive_words.0"), _is_in_list("train.baseline")
    (True, False)
    """
    return any(part.isdigit() for part in key.split("."))


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and plain values."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from _flat(value, f"{path}.{place}")
    else:
        yield path, tree


def _shown(value: Any) -> str:
    return "(not set)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
