"""The report of a pretraining run, and the page of nearest photos."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewtags.config.pretrain import PretrainResolved
from fewtags.engine.checkpoint import reading_record
from fewtags.engine.collapse import COLLAPSED
from fewtags.engine.encoder_file import EncoderInfo, load_encoder
from fewtags.engine.methods import collapsed_losses
from fewtags.engine.runfolder import ENCODER_FILE
from fewtags.engine.start_worth import PRETRAINED_WORTH_FILE, PretrainingWorth
from fewtags.errors import CheckpointError, DataError
from fewtags.files import write_text
from fewtags.nets.encoder import Encoder
from fewtags.photos.augment import WholeImage
from fewtags.photos.scan import Tick
from fewtags.report.build import render_template
from fewtags.report.figures import COLOURS, WIDTH, add_legend, label_epochs, png
from fewtags.report.neighbours import NeighbourRows, neighbour_rows
from fewtags.report.recorded import CURE, Notes, read_history, read_json, read_resolved
from fewtags.table.storage import load
from fewtags.table.table import LabelTable

Record = Mapping[str, Any]


def build_pretraining_report(run: Path, *, device: torch.device | None = None, tick: Tick | None = None) -> Path:
    """Write `report.html` of a pretraining run into its folder. An unfinished run gets the curves only.

    The encoder runs on `device`, by default the CPU.

    Raises:
        CheckpointError: it has not finished an epoch.
    """
    if not (run / "metrics.jsonl").exists():
        raise CheckpointError(f"{run} has not finished an epoch, so there is nothing to report yet.")
    history = read_history(run / "metrics.jsonl")
    resolved = read_resolved(run / "resolved.toml", PretrainResolved)
    with reading_record(run / "tables" / "train.parquet", CURE):
        table = load(run / "tables" / "train.parquet")
    rows, missing = None, "the run is not finished"
    if (run / ENCODER_FILE).exists():
        encoder, info = load_encoder(run)
        where = device or torch.device("cpu")
        try:
            rows, missing = neighbour_rows(encoder, table, WholeImage(info.size), where, tick=tick), ""
        except DataError as error:  # photos may have been removed since
            missing = str(error)
    notes: list[str] = read_json(run / "environment.json", Notes)["notes"]
    values = {
        "title": run.name,
        "resolved": resolved,
        "photos": len(table),
        "epochs": len(history),
        "settings": {k: v for k, v in resolved["objective"].items() if k != "name" and v is not None},
        "last": history[-1],
        "collapsed": float(history[-1].get("train/spread", 1.0)) < COLLAPSED,
        "churn": churn(history[-1]),
        "curves": png(curves(history, resolved["objective"])),
        "rows": rows,
        "missing": missing,
        "worth": load_pretraining_worth(run),
        "notes": notes,
        "folder": str(run),
    }
    write_text(run / "report.html", render_template("pretraining.html.j2", values))
    return run / "report.html"


def load_pretraining_worth(run: Path) -> str:
    """Return the sentence about the encoder before and after training; "" if no labels decide it."""
    path = run / PRETRAINED_WORTH_FILE
    return str(PretrainingWorth(**read_json(path, PretrainingWorth))) if path.exists() else ""


def build_neighbours_page(
    encoder: Encoder, info: EncoderInfo, table: LabelTable, rows: NeighbourRows, out: Path, source: str
) -> None:
    """Write the page of nearest photos; `source` describes where the encoder came from."""
    features = encoder.features_dim
    values = {"info": info, "rows": rows, "source": source, "photos": len(table), "features": features}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, render_template("neighbours.html.j2", values))


def churn(record: Record) -> float | None:
    """Return the share of earlier neighbours that were in the queue again but not chosen again; None without any."""
    met, kept = record.get("train/neighbours_met"), record.get("train/neighbours_kept")
    return None if not met or kept is None else 1 - kept / met


def curves(history: Sequence[Record], objective: Mapping[str, Any]) -> Figure:
    """Plot the losses, the spread of the vectors, and the change of the neighbours."""
    panels: list[tuple[str, dict[str, list[tuple[int, float]]]]] = [
        (title, {name: _points(history, f"train/{key}") for key, name in names.items()})
        for title, names in (("loss", LOSSES), ("spread", SPREADS))
    ]
    changes = [(int(r["epoch"]) + 1, value) for r in history if (value := churn(r)) is not None]
    if changes:
        panels.append(("neighbours", {"changed since the epoch before": changes}))
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    for place, (title, lines) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for colour, (name, points) in zip(COLOURS, ((n, p) for n, p in lines.items() if p), strict=False):
            dot = "o" if len(points) == 1 else None
            axes.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.8, marker=dot)
        if title == "loss":
            _levels(axes, objective)
        if title == "spread":
            axes.axhline(COLLAPSED, color="#b3261e", linestyle=":", linewidth=1.4, label="collapsed below")
        if title != "loss":
            axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(1.05, axes.get_ylim()[1]))
        label_epochs(axes, title)
        add_legend(axes)
    return figure


LOSSES = {"loss": "total", "infonce": "InfoNCE", "dense_infonce": "dense InfoNCE", "neighbour_loss": "neighbours"}
SPREADS = {"spread": "spread of z (1: all around)", "mean_key": "length of the mean key", "positive": "cosine of views"}


def _levels(axes: Axes, objective: Mapping[str, Any]) -> None:
    """Draw the losses of a net without any information and of a collapsed net."""
    size = objective.get("queue_size")
    if size:
        axes.axhline(math.log(size + 1), color="#888", linestyle=":", linewidth=1.2, label="InfoNCE by chance")
    for name, level in collapsed_losses(objective).items():
        axes.axhline(level, color="#b3261e", linestyle=":", linewidth=1.2, label=f"{LOSSES.get(name, name)}, collapsed")


def _points(history: Sequence[Record], key: str) -> list[tuple[int, float]]:
    return [(int(r["epoch"]) + 1, float(r[key])) for r in history if r.get(key) is not None]
