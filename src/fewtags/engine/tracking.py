"""Log a run to TensorBoard, Weights & Biases, MLflow or Trackio, with the trackers of Hugging Face Accelerate."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtags.errors import ConfigError
from fewtags.text import suggest

if TYPE_CHECKING:
    from fewtags.engine.events import Event

TRACKERS = {
    "tensorboard": "pip install 'fewtags[track]'",
    "wandb": "pip install wandb",
    "mlflow": "pip install mlflow",
    "trackio": "pip install trackio",
}
"""The names of the trackers, which are also those of their packages; how to install them."""
PROJECT = "fewtags"
"""Name of the project (MLflow: experiment) that runs are logged to; the run has the name of its folder."""


def check_tracker(name: str) -> None:
    """Check a tracker before anything is read.

    Raises:
        ConfigError: an unknown name, or its package is not installed.
    """
    if name not in TRACKERS:
        raise ConfigError(f"--track {name}{suggest(name, list(TRACKERS))} is not one of {', '.join(TRACKERS)}.")
    if find_spec(name) is None:
        raise ConfigError(f"--track {name} needs {name}, which is not installed: {TRACKERS[name]}.")


def tracked(events: Iterator[Event], name: str, folder: Path, settings: str) -> Iterator[Event]:
    """Yield the events of a run, and log its settings and the numbers of each epoch from the main process.

    Args:
        events: of the run.
        name: of the tracker.
        folder: of the run. TensorBoard's files are in `tensorboard` in it; other trackers have places of their own.
        settings: name of the settings file in the folder.
    """
    from fewtags.engine.events import EpochEnded

    tracker: Any = None
    try:
        for event in events:
            if tracker is None:  # after the run has set up its processes, and written its settings
                tracker = _make(name, folder)
                tracker.start()
                tracker.store_init_configuration(_flat(tomllib.loads((folder / settings).read_text("utf-8"))))
            if isinstance(event, EpochEnded):
                values = {key: value for key, value in event.record.items() if not isinstance(value, str)}
                tracker.log(values, step=int(values.pop("epoch")))
            yield event
    finally:
        if tracker is not None:
            tracker.finish()


def _make(name: str, folder: Path) -> Any:
    from accelerate import tracking

    if name == "tensorboard":
        return tracking.TensorBoardTracker(name, folder)
    run = folder.resolve().name
    if name == "wandb":
        return tracking.WandBTracker(PROJECT, name=run, dir=str(folder))
    if name == "mlflow":
        return tracking.MLflowTracker(PROJECT, run_name=run)
    return tracking.TrackioTracker(PROJECT, name=run)


def _flat(tree: Mapping[str, Any], start: str = "") -> dict[str, str | int | float | bool]:
    """Return settings by dotted key; lists become text, because trackers take no others.

    >>> _flat({"train": {"lr": 0.1, "stages": [{"epochs": 2}]}, "seed": 1})
    {'train.lr': 0.1, 'train.stages': "[{'epochs': 2}]", 'seed': 1}
    """
    found: dict[str, str | int | float | bool] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{start}{key}.")
        else:
            found[start + key] = value if isinstance(value, str | int | float) else str(value)
    return found
