"""The figures of a protocol: their numbers as CSV, and drawings as PNG and SVG."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from fewtags.bench.protocol import Job, Protocol, places_of
from fewtags.bench.sections import Figure
from fewtags.bench.tables import TITLES, best_trials, reported
from fewtags.files import replacing, write_text
from fewtags.report.figures import WIDTH, plain, save_png, tidy

Record = Mapping[str, Any]
GROUP_AXES = {"labels": "number of labels of the image", "sizes": "share of the image that the object covers"}
COLOURS = ("#2364aa", "#d1495b", "#3f7d20", "#8a5a00", "#7a3e9d", "#0f8b8d", "#c96f0a", "#555555")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLUMNS = ("curve", "place", "mean", "sd", "runs", "published")


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """A number of a figure: of a curve at a place of the horizontal axis, the mean and deviation over seeds.

    `x` is where it is drawn, and `published` the number of the paper. A histogram has a point for each bin, with its
    share of the images.
    """

    curve: str
    place: str
    x: float
    mean: float
    sd: float | None
    runs: int
    published: float | None = None


def make_figures(protocol: Protocol, records: Mapping[Job, Record]) -> dict[str, list[Point]]:
    """Return the numbers of each figure of a protocol; figures without any number are left out."""
    chosen = best_trials(protocol, records)
    makers = {"curves": _curves, "groups": _groups, "scores": _scores}
    made = {name: [*makers[figure.kind](protocol, figure, chosen)] for name, figure in protocol.figures.items()}
    return {name: points for name, points in made.items() if points}


def _curves(protocol: Protocol, figure: Figure, chosen: Mapping[Job, Record]) -> Iterator[Point]:
    order = places_of(protocol, figure)
    for row in protocol.figure_rows(figure):
        for set_name, known in protocol.figure_columns(figure):
            values = _values(protocol, chosen, (set_name, known, row), figure.measure)
            if not values:
                continue
            kind, _, word = known.rpartition(" ")
            names = [protocol.data[set_name].title] if len(protocol.data) > 1 else []
            names += [*([kind] if kind else []), protocol.rows[row].label]
            even = figure.scale == "even"
            condition = protocol.conditions.get(known) if even else None
            x = float(order.index(word)) if even else float(word.removesuffix("%"))
            paper = protocol.published_value(figure.measure, row, protocol.column(set_name, known))
            place = word if condition is None else condition.title
            yield _point(", ".join(names), place, x, values, paper)


def _groups(protocol: Protocol, figure: Figure, chosen: Mapping[Job, Record]) -> Iterator[Point]:
    base: dict[tuple[str, str, str], float] = {}
    names = dict.fromkeys(
        key
        for job in chosen
        for key in reported(protocol, chosen[job])
        if key.startswith(f"{figure.measure}, ") and job.row in protocol.figure_rows(figure)
    )
    for set_name, known in protocol.figure_columns(figure):
        if figure.relative_to is not None:
            for key in names:
                if values := _values(protocol, chosen, (set_name, known, figure.relative_to), key):
                    base[set_name, known, key] = statistics.fmean(values)
        for row in protocol.figure_rows(figure):
            for x, key in enumerate(names):
                values = _values(protocol, chosen, (set_name, known, row), key)
                if figure.relative_to is not None:
                    first = base.get((set_name, known, key))
                    values = [100 * (value / first - 1) for value in values] if first else []
                if values:
                    curve = _curve(protocol, figure, (set_name, known, row))
                    yield _point(curve, key.partition(", ")[2], float(x), values)


def _scores(protocol: Protocol, figure: Figure, chosen: Mapping[Job, Record]) -> Iterator[Point]:
    for rank in figure.ranks:
        for set_name, known in protocol.figure_columns(figure):
            for row in protocol.figure_rows(figure):
                key = (set_name, known, row)
                counts = [
                    np.array(found)
                    for job, record in chosen.items()
                    if (job.set_name, job.known, job.row) == key
                    and (found := reported(protocol, record).get(f"scores, {rank}")) is not None
                ]
                if not counts:
                    continue
                shares = np.array([100 * count / count.sum() for count in counts])
                bins = shares.shape[1]
                for n, column in enumerate(shares.T.tolist()):
                    place = f"{RANK_NAMES[rank - 1]} probability {n / bins:g} to {(n + 1) / bins:g}"
                    yield _point(_curve(protocol, figure, key), place, (n + 0.5) / bins, column)


def _curve(protocol: Protocol, figure: Figure, key: tuple[str, str, str]) -> str:
    """The name of a data set, row and condition, without what the figure has only one of."""
    set_name, known, row = key
    title = protocol.conditions[known].title if known in protocol.conditions else known
    parts = [protocol.data[set_name].title] if len(protocol.data) > 1 else []
    parts += [protocol.rows[row].label] if len(protocol.figure_rows(figure)) > 1 or not title else []
    return ", ".join([*parts, *([title] if title else [])])


RANK_NAMES = ("highest", "second", "third", "fourth")


def _values(protocol: Protocol, chosen: Mapping[Job, Record], key: tuple[str, str, str], measure: str) -> list[float]:
    return [
        float(value)
        for job, record in chosen.items()
        if (job.set_name, job.known, job.row) == key and (value := reported(protocol, record).get(measure)) is not None
    ]


def _point(curve: str, place: str, x: float, values: Sequence[float], published: float | None = None) -> Point:
    """The mean and deviation of values over seeds."""
    return Point(
        curve=curve,
        place=place,
        x=x,
        mean=statistics.fmean(values),
        sd=statistics.stdev(values) if len(values) > 1 else None,
        runs=len(values),
        published=published,
    )


# --- output


def write_figures(folder: Path, protocol: Protocol, made: Mapping[str, Sequence[Point]]) -> list[Path]:
    """Write the numbers of each figure as CSV and its drawing as PNG and SVG; return the PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, points in made.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for p in points:
            sd = "" if p.sd is None else f"{p.sd:.4f}"
            writer.writerow([p.curve, p.place, f"{p.mean:.4f}", sd, p.runs, "" if p.published is None else p.published])
        write_text(folder / f"{name}.csv", text.getvalue())
        drawn = draw(protocol, protocol.figures[name], points)
        files.append(folder / f"{name}.png")
        with replacing(files[-1]) as temporary:
            save_png(drawn, temporary)
        # Without a date and random names, the same numbers give the same file.
        with rc_context({"svg.hashsalt": name}), replacing(folder / f"{name}.svg") as temporary:
            drawn.savefig(temporary, format="svg", metadata={"Date": None})
    return files


def draw(protocol: Protocol, figure: Figure, points: Sequence[Point]) -> Drawing:
    """Draw the points of a figure; bars of deviation only where several seeds ran."""
    if figure.kind == "scores":
        return _draw_scores(figure, points)
    drawing = Drawing(figsize=(WIDTH * 0.7, 4.2), layout="constrained")
    axes = drawing.add_subplot()
    curves = list(dict.fromkeys(p.curve for p in points))
    for n, curve in enumerate(curves):
        own = sorted((p for p in points if p.curve == curve), key=lambda p: p.x)
        colour, marker = COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]
        xs, means = [p.x for p in own], [p.mean for p in own]
        errors = [p.sd or 0.0 for p in own] if any(p.sd for p in own) else None
        axes.errorbar(xs, means, errors, marker=marker, color=colour, label=plain(curve), linewidth=1.8, capsize=3)
        if papers := [p for p in own if p.published is not None]:
            xs, values = [p.x for p in papers], np.array([p.published for p in papers], np.float64)
            label = f"{plain(curve)}, published"
            axes.plot(xs, values, ":", marker=marker, fillstyle="none", color=colour, linewidth=1.2, label=label)
    _name_places(axes, figure, points)
    if figure.relative_to is not None:
        axes.axhline(0, color="#555", linewidth=1)
        axes.set_ylabel(f"gain over {plain(protocol.rows[figure.relative_to].label)}, %", fontsize=10)
    else:
        measure = figure.measure if figure.kind == "curves" else "val"
        axes.set_ylabel(f"{plain(TITLES.get(measure, measure))}, %", fontsize=10)
    axes.set_title(figure.title, fontsize=11)
    tidy(axes)
    axes.legend(fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    return drawing


def _name_places(axes: Axes, figure: Figure, points: Sequence[Point]) -> None:
    places = {p.x: p.place for p in points}
    if figure.scale == "log":
        axes.set_xscale("log")
    turned = any(len(place) > 9 for place in places.values())
    axes.set_xticks([*places], [*places.values()], rotation=30 if turned else 0, ha="right" if turned else "center")
    if figure.scale == "log":
        axes.minorticks_off()
    axes.set_xlabel(figure.axis or GROUP_AXES.get(figure.measure, ""), fontsize=10)


def _draw_scores(figure: Figure, points: Sequence[Point]) -> Drawing:
    drawing = Drawing(figsize=(max(WIDTH * 0.5, 2.9 * len(figure.ranks)), 3.2), layout="constrained")
    curves = list(dict.fromkeys(p.curve for p in points))
    for number, rank in enumerate(figure.ranks, 1):
        axes = drawing.add_subplot(1, len(figure.ranks), number)
        for n, curve in enumerate(curves):
            own = [p for p in points if p.curve == curve and p.place.startswith(RANK_NAMES[rank - 1])]
            edges = np.linspace(0, 1, len(own) + 1)
            axes.stairs(
                [p.mean for p in own], edges, color=COLOURS[n % len(COLOURS)], label=plain(curve), linewidth=1.8
            )
        axes.set_title(f"{RANK_NAMES[rank - 1]} probability", fontsize=11)
        axes.set_xlim(0, 1)
        tidy(axes)
        if number == 1:
            axes.set_ylabel("validation images, %", fontsize=10)
            axes.legend(fontsize=9, frameon=False)
    drawing.suptitle(figure.title, fontsize=11)
    return drawing
