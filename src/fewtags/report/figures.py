"""The figures of a report, as images embedded in the page."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from fewtags.engine.evaluate import sigmoid
from fewtags.report.load import RunData

COLOURS = ("#2364aa", "#d1495b", "#3f7d20", "#8a5a00")
STYLES = ("-", "--")
# Inches; the page shows a figure about this wide at 100 dots per inch, so that its letters have the size of the text.
WIDTH = 11.0


def save_png(figure: Figure, file: Path | io.BytesIO) -> None:
    """Write a figure. Letters that matplotlib's font lacks (in a folder's name) become boxes without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        figure.savefig(file, format="png", dpi=150)


def png(figure: Figure) -> str:
    """Return a figure as a data URI."""
    buffer = io.BytesIO()
    save_png(figure, buffer)
    return _uri(buffer.getvalue(), "png")


def png_pixels(pixels: NDArray[np.uint8]) -> str:
    """Return a small drawing as a data URI, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return _uri(buffer.getvalue(), "png")


def jpeg(pixels: NDArray[np.uint8]) -> str:
    """Return a picture as a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=85, optimize=True)
    return _uri(buffer.getvalue(), "jpeg")


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def curves(runs: Sequence[RunData]) -> Figure:
    """Plot loss terms, validation metrics, positives per image, and the quality of the expected positives."""
    logged = dict.fromkeys(k for run in runs for r in run.history for k in r)
    # The loss of a method without further terms is one of its logs.
    terms = {k: k[6:] for k in logged if k.startswith("train/") and k != "train/sum_of_probabilities"}
    panels: list[tuple[str, dict[str, str], Callable[[Axes], object] | None]] = [
        ("training loss", terms if len(runs) == 1 else {"train/loss": "loss"}, None),
        ("validation", {k: n for k, n in VALIDATION.items() if k in logged}, None),
        ("positives per image", POSITIVES, lambda axes: _expected_line(axes, runs)),
        ("expected positives among unannotated cells", JUDGED, lambda axes: axes.set_ylim(0, 1)),
    ]
    panels = [p for p in panels if any(k in logged for k in p[1])]
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(WIDTH, 3.3 * rows), layout="constrained")
    for place, (title, keys, finish) in enumerate(panels, 1):
        axes = figure.add_subplot(rows, min(2, len(panels)), place)
        for n, run in enumerate(runs):
            for style, (key, name) in enumerate(keys.items()):
                points = [(r["epoch"] + 1, r[key]) for r in run.history if r.get(key) is not None]
                if points:
                    label = f"{plain(run.name)}: {name}" if len(runs) > 1 else name
                    colour = COLOURS[n % 4] if len(runs) > 1 else COLOURS[style % 4]
                    line = STYLES[style % 2] if len(runs) > 1 else "-"
                    dot = "o" if len(points) == 1 else None
                    axes.plot(*zip(*points, strict=True), line, marker=dot, color=colour, label=label, linewidth=1.8)
        for before, after in zip(runs[0].history, runs[0].history[1:], strict=False):
            if before["stage"] != after["stage"]:
                axes.axvline(after["epoch"] + 0.5, color="#bbb", linewidth=0.8)
        label_epochs(axes, title)
        if finish is not None:
            finish(axes)
        axes.set_xlim(0.5, 0.5 + max(len(run.history) for run in runs))
        add_legend(axes)
    return figure


LEGEND = 24
"""Most characters of a run's name in a legend."""

VALIDATION = {"val/mAP": "mAP", "val/hit@1": "hit@1", "val/pessimistic_mAP": "mAP, unknown counted as absent"}
POSITIVES = {
    "train/sum_of_probabilities": "predicted, training crops",
    "val/predicted_positives": "predicted, validation",
}
JUDGED = {"state/expected_positives_precision": "precision", "state/expected_positives_recall": "recall"}


def plain(text: str) -> str:
    """Escape text for matplotlib: no mathematics, and no leading underscore, which would hide the text.

    Long text is cut to its end, which distinguishes paths, so that the legend leaves room for the plot.
    """
    end = text if len(text) <= LEGEND else f"…{text[1 - LEGEND :]}"
    escaped = end.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def tidy(axes: Axes) -> None:
    """Draw a faint grid and no frame at the top and on the right."""
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def label_epochs(axes: Axes, title: str) -> None:
    """Set the title of a plot, and label its horizontal axis by epochs."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("epoch", fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    tidy(axes)


def add_legend(axes: Axes) -> None:
    """Add a legend below the plot, where it hides nothing."""
    axes.legend(fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, borderaxespad=0)


def _expected_line(axes: Axes, runs: Sequence[RunData]) -> None:
    expected = next((k for run in runs if (k := run.environment["method"].get("positives_per_image"))), 0.0)
    if expected:
        axes.axhline(expected, color="#555", linestyle=":", linewidth=1.4, label=f"expected (K = {expected:.2f})")
    highest = max((float(v) for line in axes.lines for v in np.atleast_1d(line.get_ydata())), default=1.0)
    axes.set_ylim(0, 1.08 * highest)


def score_distributions(runs: Sequence[RunData], split: str) -> Figure:
    """Plot the distribution of the highest to fourth highest probability over all images (SCL paper, fig. F.1)."""
    most = min(4, min(run.logits[split].shape[1] for run in runs))
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    bins = np.linspace(0, 1, 26).tolist()
    for place in range(most):
        axes = figure.add_subplot(1, most, place + 1)
        for n, run in enumerate(runs):
            ranked = -np.sort(-sigmoid(run.logits[split]), axis=1)[:, place]
            axes.hist(ranked, bins, density=True, histtype="stepfilled", alpha=0.35, color=COLOURS[n % 4])
            axes.hist(ranked, bins, density=True, histtype="step", color=COLOURS[n % 4], label=plain(run.name))
        axes.set_title(f"{('highest', '2nd', '3rd', '4th')[place]} probability", fontsize=11)
        axes.set_xlim(0, 1)
        tidy(axes)
        axes.set_yticks([])
        if len(runs) > 1 and place == 0:
            axes.legend(fontsize=9, frameon=False)
    return figure
