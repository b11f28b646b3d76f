"""The figure of a plan."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.curves import Result
from fewtags.budget.planner import Guide, paper_guide, pilot_guide, plan_budget
from fewtags.report.planning import plan_figure, save_plan_figure

COST = CostModel(classes=4, positives_per_image=1)


@pytest.fixture(scope="module")
def guide() -> Guide:
    """A pilot with tags only: 100 to 800 labels, three seeds."""
    runs = [
        Result(kind=Annotation.TAGS, labels=x, seed=s, mean_ap=0.8 - 0.3 * (x / 100) ** -0.5 + 0.001 * s)
        for x in (100, 200, 400, 800)
        for s in range(3)
    ]
    return pilot_guide(runs, "the test")


def test_runs_curve_and_extrapolation_are_drawn_in_hours(guide: Guide) -> None:
    """A tag is a second: 800 labels are 0.222 h, where the line becomes dashes; they end at four times as much."""
    plan = plan_budget(1800, 1000, COST, guide, [Annotation.TAGS, Annotation.ONE_POINT])
    dots, solid, dashed, budget = plan_figure(plan).axes[0].lines
    assert len(dots.get_xdata()) == 12
    assert np.max(dots.get_xdata()) == pytest.approx(800 / 3600)
    assert np.max(solid.get_xdata()) == np.min(dashed.get_xdata()) == pytest.approx(800 / 3600)
    assert np.max(dashed.get_xdata()) == pytest.approx(3200 / 3600)
    assert budget.get_xdata() == [0.5, 0.5]
    for x, y in zip(solid.get_xdata(), solid.get_ydata(), strict=True):
        assert y == pytest.approx(0.8 - 0.3 * (x * 36) ** -0.5 + 0.001, abs=2e-3)


def test_the_papers_curves_are_drawn_where_they_say_something() -> None:
    """Labels per class of the paper: 207 to 3,311 tags, of 4 classes 828 to 13,245 s."""
    plan = plan_budget(3600, 5000, COST, paper_guide(4), [Annotation.TAGS])
    line, _ = plan_figure(plan).axes[0].lines
    hours = np.array(line.get_xdata())
    assert 828 / 3600 <= hours.min() < 1.2 * 828 / 3600
    assert 0.8 * 13_245 / 3600 < hours.max() <= 13_245 / 3600
    labels = [text.get_text() for text in plan_figure(plan).axes[0].get_legend().get_texts()]
    assert labels == ["tags (I)", "budget, 1.0 h"]


def test_it_is_written_as_png(guide: Guide, tmp_path: Path) -> None:
    out = tmp_path / "new" / "plan.png"
    save_plan_figure(plan_budget(1800, 1000, COST, guide), out)
    with Image.open(out) as picture:
        assert picture.format == "PNG"
