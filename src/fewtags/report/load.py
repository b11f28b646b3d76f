"""Read what a report needs from a run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.config.parse import load_toml
from fewtags.engine.baseline import compare
from fewtags.engine.evaluate import evaluate_logits
from fewtags.engine.gallery import GalleryPhoto, load_gallery
from fewtags.engine.model import ModelInfo, read_info
from fewtags.engine.train_run import BASELINE_FILE, CLOCK_FILE
from fewtags.errors import CheckpointError
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


SHOWN = ("positives_per_image", "cl_weight", "scl_weight", "smoothing", "negative_weight", "corrected_averages")


def load_run(path: Path) -> RunData:
    """Read a finished run.

    Raises:
        CheckpointError: the folder is not a run, or the run is not finished.
    """
    if not (path / "model.safetensors").exists():
        state = "is not finished; `fewtags resume` it first" if (path / "run.toml").exists() else "is not a run folder"
        raise CheckpointError(f"{path} {state}.")
    moments = sorted(int(p.stem.split("-")[1]) for p in (path / "gallery").glob("epoch-*.json"))
    check, baseline, clock = path / "check.json", path / BASELINE_FILE, path / CLOCK_FILE
    evaluations = load_evaluations(path)
    return RunData(
        path=path,
        name=path.resolve().name,
        info=read_info(path / "model.safetensors"),
        history=[json.loads(line) for line in (path / "metrics.jsonl").read_text("utf-8").splitlines()],
        environment=_json(path / "environment.json"),
        resolved=load_toml(path / "resolved.toml"),
        check=_json(check) if check.exists() else None,
        evaluations=evaluations,
        logits={split: _logits(path, split) for split in evaluations},
        tables={p.stem: load(p) for p in (path / "tables").glob("*.parquet")},
        gallery=load_gallery(path, "final"),
        progress={epoch: load_gallery(path, f"epoch-{epoch:04d}") for epoch in moments},
        baseline=compare(_json(baseline), evaluations) if baseline.exists() else (),
        seconds=_json(clock) if clock.exists() else {},
    )


def load_evaluations(run: Path) -> dict[str, dict[str, Any]]:
    """Return the evaluations of a run by split, validation first, as `Evaluation.to_dict` wrote them.

    Older versions wrote no list of metrics; it is computed again from the logits and labels of the run.
    """
    found = {}
    for path in sorted((run / "evaluation").glob("*.json"), key=lambda p: p.stem != "val"):
        content = _json(path)
        if "metrics" not in content:
            table, logits = load(run / "tables" / f"{path.stem}.parquet"), _logits(run, path.stem)
            thresholds = np.array([row["threshold"] for row in content["per_class"]])
            again = evaluate_logits(logits, table.matrix.dense(), table.classes, thresholds)
            content["metrics"] = again.to_dict()["metrics"]
        found[path.stem] = content
    return found


def _logits(run: Path, split: str) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = np.load(run / "evaluation" / f"{split}.npy", allow_pickle=False)
    return logits


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
