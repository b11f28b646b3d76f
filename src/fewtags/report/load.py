"""Read what a report needs from a run folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.config.presets import Resolved
from fewtags.config.search import described
from fewtags.engine.baseline import compare
from fewtags.engine.calibration import calibrated_photos
from fewtags.engine.checkpoint import reading_record
from fewtags.engine.evaluate import evaluate_logits
from fewtags.engine.gallery import GalleryPhoto, load_gallery
from fewtags.engine.model import ModelInfo, read_info
from fewtags.engine.places import refuse_unfinished_run
from fewtags.engine.search import read_search
from fewtags.engine.start_worth import WORTH_FILE, StartWorth
from fewtags.engine.train_run import BASELINE_FILE, CLOCK_FILE
from fewtags.metrics.metric import Metric
from fewtags.report.recorded import CURE, Evaluated, Facts, Findings, read_history, read_json, read_resolved
from fewtags.table.storage import load
from fewtags.table.table import LabelTable


@final
@dataclass(frozen=True, kw_only=True)
class RunData:
    """A finished run, read from its folder; dictionaries are by split unless stated otherwise.

    Attributes:
        name: short name for legends and headings.
        history: one record per epoch, see `EpochEnded`.
        environment: versions, weights, method, notes.
        resolved: the settings.
        check: what the check found, or None.
        evaluations: as `Evaluation.to_dict` wrote them.
        logits: float32 [N, C].
        gallery: the photos shown, with the final maps.
        progress: by epoch, the same photos in that epoch.
        baseline: sentences that compare the run with logistic regression; empty if there is no baseline.
        worth: a sentence about the encoder of --init, see `start_worth`; empty without one.
        tried: what was tried before training, best first.
        seconds: wall-clock seconds by phase; empty if they were not recorded.
    """

    path: Path
    name: str
    info: ModelInfo
    history: list[dict[str, Any]]
    environment: dict[str, Any]
    resolved: dict[str, Any]
    check: dict[str, Any] | None
    evaluations: dict[str, dict[str, Any]]
    logits: dict[str, NDArray[np.float32]]
    tables: dict[str, LabelTable]
    gallery: tuple[GalleryPhoto, ...]
    progress: dict[int, tuple[GalleryPhoto, ...]]
    baseline: tuple[str, ...] = ()
    worth: str = ""
    tried: tuple[Tried, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The method with the settings that matter, for headings."""
        method = self.environment["method"]
        settings = {k: v for k, v in method.items() if k in SHOWN and v not in (None, 0, 0.0, False)}
        text = ", ".join(
            k if v is True else f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()
        )
        return f"{method['name']} ({text})" if settings else str(method["name"])


@final
@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate of a search: `value` is its validation mAP in 0..1, `absent` whether unknown counted as absent.

    `left_out` says why it could not be the best; "" if it could.
    """

    name: str
    trained: bool
    value: float | None
    absent: bool
    variance: float
    seconds: float
    left_out: str


SHOWN = ("positives_per_image", "cl_weight", "scl_weight", "smoothing", "negative_weight", "corrected_averages")


def load_run(path: Path) -> RunData:
    """Read a finished run.

    Raises:
        CheckpointError: the folder is not a run, or the run is not finished.
    """
    refuse_unfinished_run(path)
    with reading_record(path / "gallery", CURE):
        moments = sorted(int(p.stem.split("-")[1]) for p in (path / "gallery").glob("epoch-*.json"))
    check = path / "check.json"
    evaluations, info = load_evaluations(path), read_info(path / "model.safetensors")
    return RunData(
        path=path,
        name=path.resolve().name,
        info=info,
        history=read_history(path / "metrics.jsonl"),
        environment=read_json(path / "environment.json", Facts),
        resolved=read_resolved(path / "resolved.toml", Resolved),
        check=read_json(check, Findings) if check.exists() else None,
        evaluations=evaluations,
        logits={split: _logits(path, split) for split in evaluations},
        tables={p.stem: _table(p) for p in (path / "tables").glob("*.parquet")},
        gallery=calibrated_photos(_gallery(path, "final"), info),
        progress={epoch: _gallery(path, f"epoch-{epoch:04d}") for epoch in moments},
        baseline=load_baseline(path, evaluations),
        worth=load_worth(path),
        tried=load_search(path),
        seconds=load_clock(path),
    )


def load_evaluations(run: Path) -> dict[str, dict[str, Any]]:
    """Return the evaluations of a run by split, validation first, as `Evaluation.to_dict` wrote them.

    Older versions wrote no list of metrics; it is computed again from the logits and labels of the run.
    """
    found = {}
    for path in sorted((run / "evaluation").glob("*.json"), key=lambda p: p.stem != "val"):
        content = read_json(path, Evaluated)
        if "metrics" not in content:
            table, logits = _table(run / "tables" / f"{path.stem}.parquet"), _logits(run, path.stem)
            thresholds = np.array([row["threshold"] for row in content["per_class"]])
            again = evaluate_logits(logits, table.matrix.dense(), table.classes, thresholds)
            content["metrics"] = again.to_dict()["metrics"]
        with reading_record(path, CURE):
            for metric in content["metrics"]:
                Metric.from_dict(metric)
        found[path.stem] = content
    return found


def _logits(run: Path, split: str) -> NDArray[np.float32]:
    path = run / "evaluation" / f"{split}.npy"
    with reading_record(path, CURE):
        logits: NDArray[np.float32] = np.load(path, allow_pickle=False)
        if logits.ndim != 2 or logits.dtype != np.float32:
            raise ValueError(f"it contains {logits.dtype} {list(logits.shape)}, not float32 logits")
    return logits


def load_search(run: Path) -> tuple[Tried, ...]:
    """Return what a run tried before training, best first, with what was left out at the end; none for nothing."""
    found = read_search(run)
    if found is None:
        return ()
    every = tuple(trial.candidate for trial in found.trials)
    ordered = sorted(found.trials, key=lambda trial: (trial.left_out != "", -(trial.value or 0.0)))
    return tuple(
        Tried(
            name=described(trial.candidate, every),
            trained=found.chosen is not None and trial == found.trials[found.chosen],
            value=trial.value,
            absent=trial.metric != "mAP",
            variance=trial.logit_variance,
            seconds=trial.seconds,
            left_out=trial.left_out,
        )
        for trial in ordered
    )


def load_baseline(run: Path, evaluations: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return sentences that compare a run with its baseline; none if it has no baseline."""
    path = run / BASELINE_FILE
    if not path.exists():
        return ()
    content = read_json(path)
    with reading_record(path, CURE):
        return compare(content, evaluations)


def load_worth(run: Path) -> str:
    """Return the sentence about the encoder of --init; "" if the run has none."""
    path = run / WORTH_FILE
    return str(StartWorth(**read_json(path, StartWorth))) if path.exists() else ""


def load_clock(run: Path) -> dict[str, float]:
    """Return the seconds of a run by phase; none if they were not recorded."""
    path = run / CLOCK_FILE
    found: dict[str, float] = read_json(path, dict[str, float | int]) if path.exists() else {}
    return found


def _gallery(run: Path, name: str) -> tuple[GalleryPhoto, ...]:
    with reading_record(run / "gallery" / f"{name}.json", CURE):
        return load_gallery(run, name)


def _table(path: Path) -> LabelTable:
    with reading_record(path, CURE):
        return load(path)
