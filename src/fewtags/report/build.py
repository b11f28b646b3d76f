"""Put a report together: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from fewtags.data.images import read_image
from fewtags.data.table import LabelTable
from fewtags.engine.checkpoint import write_text
from fewtags.engine.gallery import Shown
from fewtags.errors import ConfigError, DataError
from fewtags.metrics.ranking import average_precision, mean_of_known
from fewtags.report.figures import class_bars, curves, jpeg, png, score_distributions
from fewtags.report.load import RunData, load_run
from fewtags.report.overlay import overlay

SIDE = 200
RESAMPLES = 500


def build_report(runs: Sequence[Path], out: Path | None) -> Path:
    """Write the report of one run, or of several beside each other, and `curves.png` of each.

    Args:
        runs: finished run folders. Several must have the same classes.
        out: the HTML file; None: `report.html` in the first folder, `compare.html` there for several.

    Returns:
        the file.

    Raises:
        CheckpointError: a run is not finished.
        ConfigError: runs that cannot be compared.
    """
    loaded = [load_run(path) for path in runs]
    if any(run.info.class_ids != loaded[0].info.class_ids for run in loaded):
        raise ConfigError("runs with different classes cannot be shown side by side; report each on its own.")
    for run in loaded:
        curves([run]).savefig(run.path / "curves.png", dpi=110)
    page = out or runs[0] / ("report.html" if len(runs) == 1 else "compare.html")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, render(loaded))
    return page


def render(runs: Sequence[RunData]) -> str:
    """The page as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda v: "–" if v is None else f"{100 * v:.1f}"
    template = environment.from_string((files("fewtags.report") / "templates" / "report.html.j2").read_text("utf-8"))
    shared = [s for s in runs[0].evaluations if all(s in run.evaluations for run in runs)]
    return template.render(
        runs=runs,
        title=" / ".join(run.name for run in runs),
        splits=shared,
        curves=png(curves(runs)),
        bars={split: png(class_bars(runs, split)) for split in shared if _has_classes(runs[0], split)},
        scores=png(score_distributions(runs, shared[0])),
        difference=_difference(runs, shared[-1]) if len(runs) == 2 else None,
        gallery=_gallery(runs),
        progress=[_progress(run) for run in runs],
    )


def _has_classes(run: RunData, split: str) -> bool:
    return run.evaluations[split]["mAP"] is not None


def _difference(runs: Sequence[RunData], split: str) -> dict[str, Any] | None:
    """Mean AP of the second run less that of the first on the same images, with a paired bootstrap interval."""
    first, second = (run.logits[split].astype(np.float64) for run in runs)
    tables = [run.tables[split] for run in runs]
    labels = tables[0].matrix.dense()
    if tables[0].fingerprint != tables[1].fingerprint or not _has_classes(runs[0], split):
        return None
    rng = np.random.default_rng(0)
    counted = np.array([row["average_precision"] is not None for row in runs[0].evaluations[split]["per_class"]])
    draws = []
    for _ in range(RESAMPLES):
        rows = rng.integers(len(labels), size=len(labels))
        draws.append(_mean(second, labels, rows, counted) - _mean(first, labels, rows, counted))
    everyone = np.arange(len(labels))
    value = _mean(second, labels, everyone, counted) - _mean(first, labels, everyone, counted)
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return {"split": split, "value": value, "low": float(low), "high": float(high)}


def _mean(
    scores: NDArray[np.float64], labels: NDArray[np.int8], rows: NDArray[np.int64], counted: NDArray[np.bool_]
) -> float:
    return mean_of_known(average_precision(scores[rows][:, counted], labels[rows][:, counted]))


def _gallery(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Photos of the first run that all runs show, each with one row of overlays per run."""
    photos = []
    for n, shown in enumerate(runs[0].gallery):
        rows = []
        for run in runs:
            same = next((s for s in run.gallery if (s.split, s.key) == (shown.split, shown.key)), None)
            if same is not None:
                rows.append({"run": run.name, "panels": _panels(run, same)})
        picture = _photo(runs[0].tables[shown.split], shown.key)
        photos.append({"number": n + 1, "split": shown.split, "key": shown.key, "picture": jpeg(picture), "rows": rows})
    return photos


def _panels(run: RunData, shown: Shown) -> list[dict[str, Any]]:
    photo = _photo(run.tables[shown.split], shown.key)
    names = run.info.classes.display
    return [
        {
            "name": names[panel.class_],
            "role": panel.role,
            "prob": panel.prob,
            "present": panel.prob >= run.info.thresholds[panel.class_],
            "picture": jpeg(overlay(photo, panel.map)),
        }
        for panel in shown.panels
    ]


def _progress(run: RunData) -> list[dict[str, Any]]:
    """For two training photos: the maps of the classes shown at the end, over the epochs that were kept (fig. 3)."""
    rows: list[dict[str, Any]] = []
    for n, final in enumerate(run.gallery):
        if final.split != "train" or len({row["key"] for row in rows} | {final.key}) > 2:
            continue
        photo = _photo(run.tables["train"], final.key)
        for panel in final.panels[:3]:
            steps = []
            for epoch, shown in run.progress.items():
                then = next((p for p in shown[n].panels if p.class_ == panel.class_), None)
                if then is not None:
                    steps.append(
                        {"epoch": epoch + 1, "prob": then.prob, "picture": jpeg(overlay(photo, then.map, 120))}
                    )
            name = run.info.classes.display[panel.class_]
            rows.append({"run": run.name, "key": final.key, "name": name, "role": panel.role, "steps": steps})
    return rows


def _photo(table: LabelTable, key: str) -> NDArray[np.uint8]:
    """The photo, small; a grey square where it is gone since training."""
    try:
        pixels = read_image((table.root or Path()) / key)
    except DataError:
        return np.full((SIDE, SIDE, 3), 128, np.uint8)
    step = max(pixels.shape[:2]) / SIDE
    if step <= 1:
        return pixels
    return read_image(
        (table.root or Path()) / key,
        size=(max(1, round(pixels.shape[0] / step)), max(1, round(pixels.shape[1] / step))),
    )
