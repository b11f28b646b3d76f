"""The figures of a report, as images that live inside the page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from fewtags.engine.evaluate import sigmoid
from fewtags.report.load import RunData

COLOURS = ("#2364aa", "#d1495b", "#3f7d20", "#8a5a00")
STYLES = ("-", "--")


def png(figure: Figure) -> str:
    """A figure as a data URI."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return _uri(buffer.getvalue(), "png")


def jpeg(pixels: NDArray[np.uint8]) -> str:
    """A picture as a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=88)
    return _uri(buffer.getvalue(), "jpeg")


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def curves(runs: Sequence[RunData]) -> Figure:
    """Loss terms, validation, how many positives the net believes in, and how good the expected positives are."""
    panels: list[tuple[str, dict[str, str], Callable[[Axes], None]]] = [
        ("training loss", _names(runs, "train/", skip=("train/sum_of_probabilities",)), _nothing),
        (
            "validation",
            {k: n for k, n in VALIDATION.items() if any(k in r for run in runs for r in run.history)},
            _nothing,
        ),
        ("positives per image", POSITIVES, lambda axes: _expected_line(axes, runs)),
        ("expected positives among unannotated cells", JUDGED, _unit),
    ]
    panels = [p for p in panels if any(k in r for run in runs for r in run.history for k in p[1])]
    figure = Figure(figsize=(4.1 * len(panels), 3.2), layout="constrained")
    for place, (title, keys, finish) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for n, run in enumerate(runs):
            for style, (key, name) in enumerate(keys.items()):
                points = [(r["epoch"] + 1, r[key]) for r in run.history if r.get(key) is not None]
                if points:
                    label = f"{run.name}: {name}" if len(runs) > 1 else name
                    colour = COLOURS[n % 4] if len(runs) > 1 else COLOURS[style % 4]
                    line = STYLES[style % 2] if len(runs) > 1 else "-"
                    axes.plot(*zip(*points, strict=True), line, color=colour, label=label, linewidth=1.6)
        _stages(axes, runs[0])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        finish(axes)
        axes.legend(fontsize=7, frameon=False)
    return figure


VALIDATION = {
    "val/mAP": "mAP",
    "val/hit@1": "hit@1",
    "val/pessimistic_mAP": "mAP, unknown counted as absent",
}
POSITIVES = {
    "train/sum_of_probabilities": "predicted, training crops",
    "val/predicted_positives": "predicted, validation",
}
JUDGED = {"state/expected_positives_precision": "precision", "state/expected_positives_recall": "recall"}


def _names(runs: Sequence[RunData], prefix: str, skip: tuple[str, ...]) -> dict[str, str]:
    keys = dict.fromkeys(k for run in runs for r in run.history for k in r if k.startswith(prefix) and k not in skip)
    if len(runs) > 1:
        return {"train/loss": "loss"}
    # The loss of a method without further terms is one of its logs.
    return {k: k.removeprefix(prefix) for k in keys}


def _nothing(axes: Axes) -> None:
    pass


def _unit(axes: Axes) -> None:
    axes.set_ylim(0, 1)


def _expected_line(axes: Axes, runs: Sequence[RunData]) -> None:
    for run in runs:
        expected = run.environment["method"].get("positives_per_image")
        if expected:
            axes.axhline(expected, color="#888", linestyle=":", linewidth=1.2, label="expected (K)")
            break
    axes.set_ylim(bottom=0)


def _stages(axes: Axes, run: RunData) -> None:
    """A thin line where one stage ends and the next begins."""
    for before, after in zip(run.history, run.history[1:], strict=False):
        if before["stage"] != after["stage"]:
            axes.axvline(after["epoch"] + 0.5, color="#bbb", linewidth=0.8)


def score_distributions(runs: Sequence[RunData], split: str) -> Figure:
    """Distribution of the highest to fourth highest probability over all images (SCL paper, fig. F.1)."""
    most = min(4, min(run.logits[split].shape[1] for run in runs))
    figure = Figure(figsize=(3.2 * most, 2.5), layout="constrained")
    bins = np.linspace(0, 1, 26).tolist()
    for place in range(most):
        axes = figure.add_subplot(1, most, place + 1)
        for n, run in enumerate(runs):
            ranked = -np.sort(-sigmoid(run.logits[split]), axis=1)[:, place]
            axes.hist(ranked, bins, density=True, histtype="stepfilled", alpha=0.35, color=COLOURS[n % 4])
            axes.hist(ranked, bins, density=True, histtype="step", color=COLOURS[n % 4], label=run.name)
        axes.set_title(f"{('highest', '2nd', '3rd', '4th')[place]} probability", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.set_yticks([])
        if len(runs) > 1 and place == 0:
            axes.legend(fontsize=7, frameon=False)
    return figure


def class_bars(runs: Sequence[RunData], split: str, most: int = 60) -> Figure:
    """AP per class with bootstrap intervals, best first (of many classes: the best and the worst)."""
    rows = [row for row in runs[0].evaluations[split]["per_class"] if row["average_precision"] is not None]
    rows.sort(key=lambda row: row["average_precision"])
    if len(rows) > most:
        rows = rows[: most // 2] + rows[-most // 2 :]
    figure = Figure(figsize=(7, 0.9 + 0.24 * len(rows) * (1 + 0.5 * (len(runs) - 1))), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(runs)
    for n, run in enumerate(runs):
        found = {row["id"]: row for row in run.evaluations[split]["per_class"]}
        for place, row in enumerate(rows):
            mine = found.get(row["id"])
            if mine is None or mine["average_precision"] is None:
                continue
            value, (low, high) = mine["average_precision"], mine["interval"] or (math.nan, math.nan)
            y = place + 0.4 - height * (n + 0.5)
            axes.barh(y, value, height * 0.92, color=COLOURS[n % 4], label=run.name if place == 0 else None)
            if low is not None and not math.isnan(low):
                axes.plot([low, high], [y, y], color="#222", linewidth=1)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("average precision", fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    if len(runs) > 1:
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
