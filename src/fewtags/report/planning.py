"""The figure of a budget plan: expected mAP of each label type by annotation time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from fewtags.budget.curves import FARTHEST
from fewtags.budget.planner import BudgetPlan, Purchase
from fewtags.report.figures import COLOURS as FIGURE_COLOURS
from fewtags.report.figures import add_legend, save_png, tidy

COLOURS = (*FIGURE_COLOURS, "#6a4c93")
POINTS = 60


def plan_figure(plan: BudgetPlan) -> Figure:
    """Plot mAP against hours, a line per type, with its interval; measured runs as dots, the budget as a line."""
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for purchase, colour in zip(plan.purchases, COLOURS, strict=False):
        _draw(axes, plan, purchase, colour)
    hours = plan.seconds / 3600
    axes.axvline(hours, color="#555", linestyle=":", linewidth=1.4, label=f"budget, {hours:,.1f} h")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("hours of annotation", fontsize=10)
    axes.set_ylabel("expected mAP", fontsize=10)
    tidy(axes)
    add_legend(axes)
    return figure


def _draw(axes: Axes, plan: BudgetPlan, purchase: Purchase, colour: str) -> None:
    each = plan.cost.seconds_per_pair(purchase.kind) / 3600
    curve = (plan.guide.curves or {}).get(purchase.kind)
    if curve is not None:
        axes.plot(curve.labels * each, curve.measured, "o", color=colour, markersize=4, alpha=0.7)
        beyond = np.geomspace(curve.most, curve.most * FARTHEST, POINTS)
        labels = np.append(np.geomspace(curve.labels.min(), curve.most, POINTS)[:-1], beyond)
    else:
        labels = np.geomspace(purchase.labels / 100, purchase.labels * 100, 10 * POINTS)
    guess = plan.guide.guesses.get(purchase.kind)
    if guess is None:
        return
    found = [(x * each, e) for x in labels if (e := guess(float(x), "mAP")).value is not None]
    for style, part in (("-", [f for f in found if f[1].factor <= 1]), ("--", [f for f in found if f[1].factor >= 1])):
        if len(part) > 1:
            name = purchase.kind.described() if style == "-" else None
            axes.plot([x for x, _ in part], [e.value or 0.0 for _, e in part], style, color=colour, label=name)
    banded = [(x, e.low, e.high) for x, e in found if e.low is not None and e.high is not None]
    if banded:
        hours, low, high = zip(*banded, strict=True)
        axes.fill_between(hours, low, high, color=colour, alpha=0.12)


def save_plan_figure(plan: BudgetPlan, path: Path) -> None:
    """Write the figure as PNG; missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_png(plan_figure(plan), path)
