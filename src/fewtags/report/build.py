"""Put a report together: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from fewtags.engine.checkpoint import write_text
from fewtags.errors import ConfigError
from fewtags.metrics.ranking import resampled_means
from fewtags.report.figures import COLOURS, curves, png, png_pixels, save_png, score_distributions
from fewtags.report.gallery import cards, over_epochs
from fewtags.report.load import RunData, load_run
from fewtags.report.overlay import scale

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
    if len({run.name for run in loaded}) < len(loaded):
        loaded = [replace(run, name=str(run.path)) for run in loaded]
    if any(run.info.class_ids != loaded[0].info.class_ids for run in loaded):
        raise ConfigError("runs with different classes cannot be shown side by side; report each on its own.")
    for run in loaded:
        save_png(curves([run]), run.path / "curves.png")
    page = out or runs[0] / ("report.html" if len(runs) == 1 else "compare.html")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, render(loaded))
    return page


def render(runs: Sequence[RunData]) -> str:
    """The page as text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Adding zero makes a difference of -0.0 a plain 0.0.
    environment.filters["signed"] = lambda v: f"{round(100 * v, 1) + 0.0:+.1f}"
    environment.filters["percent"] = lambda v: "–" if v is None else f"{100 * v:.1f}"
    template = environment.from_string((files("fewtags.report") / "templates" / "report.html.j2").read_text("utf-8"))
    shared = [s for s in runs[0].evaluations if all(s in run.evaluations for run in runs)]
    return template.render(
        runs=runs,
        title=" / ".join(run.name for run in runs),
        splits=shared,
        curves=png(curves(runs)),
        classes={split: class_rows(runs, split) for split in shared},
        colours=COLOURS,
        scores=png(score_distributions(runs, shared[0])),
        difference=difference(runs, shared[-1]) if len(runs) == 2 else None,
        gallery=cards(runs),
        progress=[(run.name, over_epochs(run)) for run in runs],
        scale=png_pixels(scale()),
    )


def _has_classes(run: RunData, split: str) -> bool:
    return run.evaluations[split]["mAP"] is not None


def class_rows(runs: Sequence[RunData], split: str) -> list[dict[str, Any]]:
    """Per class, best AP of the first run first: what each run's evaluation says, and its threshold's rule.

    Classes without an AP come last, in the order of the vocabulary.
    """
    rows = []
    for c, first in enumerate(runs[0].evaluations[split]["per_class"]):
        each = [
            {**run.evaluations[split]["per_class"][c], "rule": run.evaluations[split]["threshold_rules"][c]}
            for run in runs
        ]
        rows.append({"name": first["name"], "runs": each})
    return sorted(rows, key=lambda row: -(row["runs"][0]["average_precision"] or -1.0))


def difference(runs: Sequence[RunData], split: str) -> dict[str, Any]:
    """Mean AP of the second run less that of the first, with an interval from paired resamples of the images.

    Returns:
        `value`, `low`, `high` and `split`; or `why` there is none, in words.
    """
    tables = [run.tables[split] for run in runs]
    if tables[0].fingerprint != tables[1].fingerprint:
        return {"why": f"The runs were measured on different {split} labels, so their difference would say nothing."}
    if not _has_classes(runs[0], split):
        return {"why": ""}
    labels = tables[0].matrix.dense()
    # The same seed: both see the same images in every resample.
    first, second = (
        resampled_means(run.logits[split].astype(np.float64), labels, np.random.default_rng(0), n_resamples=RESAMPLES)
        for run in runs
    )
    low, high = np.nanquantile(second - first, [0.025, 0.975])
    value = runs[1].evaluations[split]["mAP"] - runs[0].evaluations[split]["mAP"]
    return {"split": split, "value": value, "low": float(low), "high": float(high), "why": ""}
