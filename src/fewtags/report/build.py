"""Put a report together: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from fewtags.engine.checkpoint import write_text
from fewtags.errors import ConfigError
from fewtags.metrics.ranking import resampled_means
from fewtags.report.figures import class_bars, curves, png, png_pixels, score_distributions
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
        difference=difference(runs, shared[-1]) if len(runs) == 2 else None,
        gallery=cards(runs),
        progress=[(run.name, over_epochs(run)) for run in runs],
        scale=png_pixels(scale()),
    )


def _has_classes(run: RunData, split: str) -> bool:
    return run.evaluations[split]["mAP"] is not None


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
